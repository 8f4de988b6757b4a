"""Values to MessagePack."""

# A kind is any type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import datetime
import enum
import struct
import uuid
from collections.abc import Callable
from typing import Any

from ._options import (
    OPT_DATETIME_AS_TIMESTAMP_EXT,
    OPT_NAIVE_UTC,
    OPT_NON_STR_KEYS,
    OPT_OMIT_MICROSECONDS,
    OPT_PASSTHROUGH_BIG_INT,
    OPT_PASSTHROUGH_DATACLASS,
    OPT_PASSTHROUGH_DATETIME,
    OPT_PASSTHROUGH_ENUM,
    OPT_PASSTHROUGH_SUBCLASS,
    OPT_PASSTHROUGH_TUPLE,
    OPT_PASSTHROUGH_UUID,
    OPT_REPLACE_SURROGATES,
    OPT_SERIALIZE_NUMPY,
    OPT_SERIALIZE_PYDANTIC,
    OPT_SORT_KEYS,
    OPT_UTC_Z,
    TIMESTAMP,
    TOO_DEEP,
    to_timestamp,
)

_OPTIONS = (1 << 16) - 1
_MAX_DEPTH = 255
_SUBCLASSES = (str, int, dict, list)
_KEYS = (str, int, float, bool, bytes, type(None))

MsgpackEncodeError = TypeError


@dataclasses.dataclass(frozen=True, slots=True)
class Ext:
    """A value of an extension type: the type (0 to 127), and its bytes."""

    tag: int
    data: bytes

    def __post_init__(self) -> None:
        _check_bytes("Ext", "second", self.data)


@dataclasses.dataclass(frozen=True, slots=True)
class Fragment:
    """Bytes that are already MessagePack."""

    data: bytes

    def __post_init__(self) -> None:
        _check_bytes("Fragment", "first", self.data)


def _check_bytes(kind: str, which: str, data: object) -> None:
    if not isinstance(data, bytes):
        raise TypeError(f"{kind}.__new__() {which} argument must be bytes")


def packb(obj: Any, /, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """Serialize to MessagePack. Raises MsgpackEncodeError, which is TypeError."""
    chosen: Any = option or 0
    if not isinstance(chosen, int) or chosen & ~_OPTIONS:
        raise MsgpackEncodeError("Invalid opts")
    writer = _Writer(default, chosen)
    try:
        writer.write(obj, 0)
    except RecursionError:
        raise MsgpackEncodeError(TOO_DEEP) from None
    return b"".join(writer.parts)


class _Writer:
    def __init__(self, default: Callable[[Any], Any] | None, option: int) -> None:
        self.default, self.option = default, option
        self.parts: list[bytes] = []
        self.calls = 0
        """Calls of `default` for the current value."""

    def write(self, value: Any, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise MsgpackEncodeError(TOO_DEEP)
        kind: Any = type(value)
        if isinstance(value, enum.Enum):
            if self.option & OPT_PASSTHROUGH_ENUM:
                self._write_default(value, depth)
            else:
                self.write(value.value, depth)
            return
        if not self.option & OPT_PASSTHROUGH_SUBCLASS:
            kind = next((each for each in _SUBCLASSES if issubclass(kind, each) and kind is not bool), kind)
        if kind is dict:
            self._write_map(value, depth)
        elif kind is list:
            self._write_array(list.__getitem__(value, slice(None)), depth)
        elif kind is tuple and not self.option & OPT_PASSTHROUGH_TUPLE:
            self._write_array(value, depth)
        elif not (
            self._write_scalar(value, kind) or self._write_fields(value, kind, depth) or self._write_numpy(value, kind)
        ):
            self._write_default(value, depth)

    def _write_default(self, value: Any, depth: int) -> None:
        unknown = f"Type is not msgpack serializable: {_name(type(value))}"
        if self.default is None:
            raise MsgpackEncodeError(unknown)
        if self.calls >= _MAX_DEPTH:
            raise MsgpackEncodeError("Recursion limit for default hook reached")
        try:
            plain = self.default(value)
        except Exception as error:
            raise MsgpackEncodeError(unknown) from error
        self.calls += 1
        self.write(plain, depth)
        self.calls -= 1

    def _write_array(self, values: Any, depth: int) -> None:
        self.parts.append(_head(len(values), 0x90, 15, 0xDC))
        for each in values:
            self.write(each, depth + 1)

    def _write_map(self, value: dict[Any, Any], depth: int) -> None:
        pairs: list[tuple[Any, Any]] = list(dict.items(value))
        self.parts.append(_head(len(pairs), 0x80, 15, 0xDE))
        if self.option & OPT_SORT_KEYS:
            if pairs and self.option & OPT_NON_STR_KEYS:
                raise MsgpackEncodeError("OPT_NON_STR_KEYS is not compatible with OPT_SORT_KEYS")
            for key, _ in pairs:
                self._check_key(key)
            pairs = sorted(pairs, key=lambda pair: pair[0].encode(errors="surrogatepass"))
        for key, each in pairs:
            self._write_key(key)
            self.write(each, depth + 1)

    def _check_key(self, key: Any) -> None:
        if type(key) is not str and not self.option & OPT_NON_STR_KEYS:
            raise MsgpackEncodeError("Dict key must be str")

    def _write_key(self, key: Any) -> None:
        self._check_key(key)
        while isinstance(key, enum.Enum):
            key = key.value
        kind: Any = type(key)
        if kind is tuple:
            self.parts.append(_head(len(key), 0x90, 15, 0xDC))
            for each in key:
                self._write_key(each)
            return
        kind = next((each for each in (str, int) if issubclass(kind, each) and kind is not bool), kind)
        if kind is uuid.UUID:
            self._write_text(str(key))
        elif kind in (datetime.datetime, datetime.date, datetime.time):
            self._write_moment(key)
        elif kind not in _KEYS or not self._write_scalar(key, kind):
            raise MsgpackEncodeError("Dict key must a type serializable with OPT_NON_STR_KEYS")

    def _write_scalar(self, value: Any, kind: type) -> bool:
        """Write a scalar; return False if the value is not one."""
        if value is None or kind is bool:
            self.parts.append({None: b"\xc0", True: b"\xc3", False: b"\xc2"}[value])
        elif kind is str:
            self._write_text(value)
        elif kind is int:
            return self._write_integer(value)
        elif kind is float:
            self.parts.append(struct.pack(">Bd", 0xCB, value))
        elif kind in (bytes, bytearray, memoryview):
            data = bytes(value)
            self.parts += _head(len(data), 0, -1, 0xC5, 0xC4), data
        elif kind is Ext:
            self._write_ext(value.tag, value.data)
        elif kind is Fragment:
            self.parts.append(value.data)
        else:
            return self._write_stamp(value, kind)
        return True

    def _write_integer(self, value: int) -> bool:
        if -(2**63) <= value < 2**64:
            self.parts.append(_integer(value))
            return True
        if self.option & OPT_PASSTHROUGH_BIG_INT and self.default is not None:
            return False
        raise MsgpackEncodeError("Integer exceeds 64-bit range")

    def _write_stamp(self, value: Any, kind: type) -> bool:
        if kind is uuid.UUID and not self.option & OPT_PASSTHROUGH_UUID:
            self._write_text(str(value))
            return True
        is_moment = kind in (datetime.datetime, datetime.date, datetime.time)
        if is_moment and not self.option & OPT_PASSTHROUGH_DATETIME:
            self._write_moment(value)
            return True
        return False

    def _write_text(self, text: str) -> None:
        errors = "replace" if self.option & OPT_REPLACE_SURROGATES else "strict"
        try:
            data = str.__str__(text).encode(errors=errors)
        except UnicodeEncodeError:
            raise MsgpackEncodeError("string contains surrogates") from None
        self.parts += _head(len(data), 0xA0, 31, 0xDA, 0xD9), data

    def _write_ext(self, tag: int, data: bytes) -> None:
        if not 0 <= tag <= 127:
            raise MsgpackEncodeError("Extension type out of range")
        self._put_ext(tag, data)

    def _put_ext(self, tag: int, data: bytes) -> None:
        fixed = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}.get(len(data))
        head = bytes([fixed]) if fixed else _head(len(data), 0, -1, 0xC8, 0xC7)
        self.parts += head, struct.pack("b", tag), data

    def _write_moment(self, value: Any) -> None:
        if isinstance(value, datetime.time) and value.tzinfo is not None:
            raise MsgpackEncodeError("datetime.time must not have tzinfo set")
        if isinstance(value, datetime.datetime) and value.tzinfo is None and self.option & OPT_NAIVE_UTC:
            value = value.replace(tzinfo=datetime.UTC)
        if isinstance(value, datetime.datetime) and value.tzinfo and self.option & OPT_DATETIME_AS_TIMESTAMP_EXT:
            self._put_ext(TIMESTAMP, to_timestamp(value))
            return
        if type(value) is not datetime.date and self.option & OPT_OMIT_MICROSECONDS:
            value = value.replace(microsecond=0)
        text = value.isoformat()
        is_utc_z = self.option & OPT_UTC_Z and text.endswith("+00:00")
        self._write_text(text.removesuffix("+00:00") + "Z" if is_utc_z else text)

    def _write_fields(self, value: Any, kind: Any, depth: int) -> bool:
        """Write the fields of a dataclass or a pydantic model; return False if the value is neither."""
        if dataclasses.is_dataclass(kind) and not self.option & OPT_PASSTHROUGH_DATACLASS:
            found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        elif self.option & OPT_SERIALIZE_PYDANTIC and hasattr(kind, "__pydantic_validator__"):
            found = vars(value)
        else:
            return False
        self._write_map({name: each for name, each in found.items() if not name.startswith("_")}, depth)
        return True

    def _write_numpy(self, value: Any, kind: type) -> bool:
        return bool(self.option & OPT_SERIALIZE_NUMPY) and kind.__module__ == "numpy" and self._write_number(value)

    def _write_number(self, value: Any) -> bool:
        """Write a numpy number, or a contiguous array of numbers; return False for other values."""
        kind: str = value.dtype.kind
        is_number_as_array = not value.ndim and type(value).__name__ == "ndarray"
        if not value.flags.c_contiguous or kind not in "biufM" or is_number_as_array:
            return False
        if value.ndim:
            self.parts.append(_head(len(value), 0x90, 15, 0xDC))
            return all(self._write_number(each) for each in value)
        if kind == "M":
            if str(value) == "NaT":
                raise MsgpackEncodeError("unsupported numpy.datetime64 unit: NaT")
            self._write_moment(value.astype("datetime64[us]").item())
        elif kind == "f" and value.dtype.itemsize <= 4:
            self.parts.append(struct.pack(">Bf", 0xCA, value))
        else:
            plain = value.item()
            self._write_scalar(plain, type(plain))
        return True


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"


def _head(count: int, fixed: int, fixed_max: int, code: int, small: int | None = None) -> bytes:
    """The first bytes of a value with a length: the length is in the format byte, or in the next two or four bytes, or
    in the next one for the `small` format."""
    if count <= fixed_max:
        return bytes([fixed | count])
    if small is not None and count < 1 << 8:
        return struct.pack(">BB", small, count)
    return struct.pack(">BH", code, count) if count < 1 << 16 else struct.pack(">BI", code + 1, count)


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack("b", value) if value < 0 else bytes([value])
    formats = "BHIQ" if value > 0 else "bhiq"
    bits = value if value > 0 else ~value << 1
    size = next(each for each in range(4) if bits < 1 << (8 << each))
    return struct.pack(f">B{formats[size]}", (0xCC if value > 0 else 0xD0) + size, value)
