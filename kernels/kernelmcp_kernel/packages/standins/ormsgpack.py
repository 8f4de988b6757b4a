"""MessagePack with the names and values of ormsgpack (1.13), which is written in Rust; this one is pure Python.

Differences: it is slower, supports some hundred levels of nesting, and has different texts in some errors; numpy arrays
in the other byte order are written by value, and UTC offsets with seconds keep their seconds.
"""

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

__all__ = [
    "OPT_DATETIME_AS_TIMESTAMP_EXT",
    "OPT_NAIVE_UTC",
    "OPT_NON_STR_KEYS",
    "OPT_OMIT_MICROSECONDS",
    "OPT_PASSTHROUGH_BIG_INT",
    "OPT_PASSTHROUGH_DATACLASS",
    "OPT_PASSTHROUGH_DATETIME",
    "OPT_PASSTHROUGH_ENUM",
    "OPT_PASSTHROUGH_SUBCLASS",
    "OPT_PASSTHROUGH_TUPLE",
    "OPT_PASSTHROUGH_UUID",
    "OPT_REPLACE_SURROGATES",
    "OPT_SERIALIZE_NUMPY",
    "OPT_SERIALIZE_PYDANTIC",
    "OPT_SORT_KEYS",
    "OPT_UTC_Z",
    "Ext",
    "Fragment",
    "MsgpackDecodeError",
    "MsgpackEncodeError",
    "__version__",
    "packb",
    "unpackb",
]
__version__ = "1.13.1"

OPT_NAIVE_UTC = 1
OPT_NON_STR_KEYS = 1 << 1
OPT_OMIT_MICROSECONDS = 1 << 2
OPT_PASSTHROUGH_BIG_INT = 1 << 3
OPT_PASSTHROUGH_DATACLASS = 1 << 4
OPT_PASSTHROUGH_DATETIME = 1 << 5
OPT_PASSTHROUGH_SUBCLASS = 1 << 6
OPT_PASSTHROUGH_TUPLE = 1 << 7
OPT_SERIALIZE_NUMPY = 1 << 8
OPT_SERIALIZE_PYDANTIC = 1 << 9
OPT_SORT_KEYS = 1 << 10
OPT_UTC_Z = 1 << 11
OPT_PASSTHROUGH_UUID = 1 << 12
OPT_PASSTHROUGH_ENUM = 1 << 13
OPT_DATETIME_AS_TIMESTAMP_EXT = 1 << 14
OPT_REPLACE_SURROGATES = 1 << 15

_TIMESTAMP = -1  # the type of an extension
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TOO_DEEP = "Recursion limit reached"
_OPTIONS = (1 << 16) - 1
_MAX_DEPTH = 255
_MAX_READ_DEPTH = 1022
_SUBCLASSES = (str, int, dict, list)
_KEYS = (str, int, float, bool, bytes, type(None))

MsgpackEncodeError = TypeError
MsgpackDecodeError = ValueError


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
        raise MsgpackEncodeError(_TOO_DEEP) from None
    return b"".join(writer.parts)


class _Writer:
    def __init__(self, default: Callable[[Any], Any] | None, option: int) -> None:
        self.default, self.option = default, option
        self.parts: list[bytes] = []
        self.calls = 0
        """Calls of `default` for the current value."""

    def write(self, value: Any, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise MsgpackEncodeError(_TOO_DEEP)
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
            self._put_ext(_TIMESTAMP, _to_timestamp(value))
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


def _to_timestamp(value: datetime.datetime) -> bytes:
    since = value - _EPOCH
    seconds, nanoseconds = since.days * 86400 + since.seconds, since.microseconds * 1000
    if not 0 <= seconds < 1 << 34:
        return struct.pack(">Iq", nanoseconds, seconds)
    is_short = not nanoseconds and seconds < 1 << 32
    return struct.pack(">I", seconds) if is_short else struct.pack(">Q", nanoseconds << 34 | seconds)


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
        raise MsgpackDecodeError(_TOO_DEEP) from None


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
        if depth > _MAX_READ_DEPTH:
            raise MsgpackDecodeError(_TOO_DEEP)
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
        if tag == _TIMESTAMP and self.option & OPT_DATETIME_AS_TIMESTAMP_EXT:
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
        return _EPOCH + datetime.timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    except (struct.error, ValueError, OverflowError):
        raise MsgpackDecodeError("invalid value") from None
