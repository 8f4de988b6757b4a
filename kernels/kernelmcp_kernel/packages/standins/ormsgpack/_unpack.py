"""MessagePack to values."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from typing import Any

from ._options import EPOCH, OPT_DATETIME_AS_TIMESTAMP_EXT, OPT_NON_STR_KEYS, TIMESTAMP, TOO_DEEP

_MAX_DEPTH = 1022

MsgpackDecodeError = ValueError


def unpackb(
    obj: bytes | bytearray | memoryview,
    /,
    *,
    ext_hook: Callable[[int, bytes], Any] | None = None,
    option: int | None = None,
) -> Any:
    """Parse MessagePack. Raises MsgpackDecodeError, which is ValueError."""
    chosen: Any = option or 0
    given: Any = obj
    if not isinstance(chosen, int) or chosen & ~(OPT_NON_STR_KEYS | OPT_DATETIME_AS_TIMESTAMP_EXT):
        raise MsgpackDecodeError("Invalid opts")
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise MsgpackDecodeError("Input must be bytes, bytearray, memoryview")
    try:
        return _Reader(bytes(obj), ext_hook, chosen).read(0)
    except RecursionError:
        raise MsgpackDecodeError(TOO_DEEP) from None


# Formats with a length: how the length is encoded, by the first byte.
_LENGTHS = {
    **dict.fromkeys((0xC4, 0xC7, 0xD9), ">B"),
    **dict.fromkeys((0xC5, 0xC8, 0xDA, 0xDC, 0xDE), ">H"),
    **dict.fromkeys((0xC6, 0xC9, 0xDB, 0xDD, 0xDF), ">I"),
}
_NUMBERS = dict(zip(range(0xCA, 0xD4), (">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True))
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class _Reader:
    def __init__(self, data: bytes, ext_hook: Callable[[int, bytes], Any] | None, option: int) -> None:
        self.data, self.ext_hook, self.option = data, ext_hook, option
        self.at = 0

    def read(self, depth: int, *, key: bool = False) -> Any:
        if depth > _MAX_DEPTH:
            raise MsgpackDecodeError(TOO_DEEP)
        (code,) = self._bytes(1)
        is_text = 0xA0 <= code < 0xC0 or 0xD9 <= code <= 0xDB
        if key and not is_text and not self.option & OPT_NON_STR_KEYS:
            raise MsgpackDecodeError(f"invalid type 0x{code:02x} of a key")
        if code < 0x80 or code >= 0xE0:
            return code if code < 0x80 else code - 0x100
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        if code == 0xC1:
            raise MsgpackDecodeError("invalid type Reserved")
        return self._collected(code, depth, key=key)

    def _collected(self, code: int, depth: int, *, key: bool) -> Any:
        """Read a value with a length."""
        if 0xD4 <= code <= 0xD8:
            return self._extension(1 << code - 0xD4, key=key)
        length = self._number(_LENGTHS[code]) if code in _LENGTHS else code & (0x1F if code >= 0xA0 else 0x0F)
        if 0xA0 <= code < 0xC0 or 0xD9 <= code <= 0xDB:
            try:
                return self._bytes(length).decode()
            except UnicodeDecodeError:
                raise MsgpackDecodeError("invalid UTF-8 string") from None
        if 0xC4 <= code <= 0xC6:
            return self._bytes(length)
        if 0xC7 <= code <= 0xC9:
            return self._extension(length, key=key)
        if 0x90 <= code < 0xA0 or code in (0xDC, 0xDD):
            values = [self.read(depth + 1, key=key) for _ in range(length)]
            return tuple(values) if key else values
        if key:
            raise MsgpackDecodeError("invalid type of a key: a map")
        return {self.read(depth + 1, key=True): self.read(depth + 1) for _ in range(length)}

    def _extension(self, length: int, *, key: bool) -> Any:
        tag, data = self._number(">b"), self._bytes(length)
        if tag == TIMESTAMP and self.option & OPT_DATETIME_AS_TIMESTAMP_EXT:
            return _moment(data)
        if key:
            raise MsgpackDecodeError("invalid type of a key: an extension")
        if self.ext_hook is None:
            raise MsgpackDecodeError("ext_hook missing")
        return self.ext_hook(tag, data)

    def _number(self, how: str) -> Any:
        return struct.unpack(how, self._bytes(struct.calcsize(how)))[0]

    def _bytes(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise MsgpackDecodeError("unexpected end of file")
        self.at += count
        return found


def _moment(data: bytes) -> datetime.datetime:
    try:
        if len(data) == 12:
            nanoseconds, seconds = struct.unpack(">Iq", data)
        elif len(data) == 8:
            (both,) = struct.unpack(">Q", data)
            nanoseconds, seconds = both >> 34, both & (1 << 34) - 1
        else:
            nanoseconds, (seconds,) = 0, struct.unpack(">I", data)
        if nanoseconds >= 10**9:
            raise ValueError
        return EPOCH + datetime.timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    except (struct.error, ValueError, OverflowError):
        raise MsgpackDecodeError("invalid value") from None
