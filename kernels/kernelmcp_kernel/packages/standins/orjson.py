"""JSON with the names and values of orjson (3.13), which is written in Rust; this one is pure Python.

Differences: it is slower, and its error messages are Python's.
"""

# A kind is any type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import uuid
from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring
from typing import Any

__all__ = ["Fragment", "JSONDecodeError", "JSONEncodeError", "dumps", "loads"]
__version__ = "3.13.0"

OPT_INDENT_2 = 1
OPT_NAIVE_UTC = 1 << 1
OPT_NON_STR_KEYS = 1 << 2
OPT_OMIT_MICROSECONDS = 1 << 3
OPT_SERIALIZE_NUMPY = 1 << 4
OPT_SORT_KEYS = 1 << 5
OPT_STRICT_INTEGER = 1 << 6
OPT_UTC_Z = 1 << 7
OPT_PASSTHROUGH_SUBCLASS = 1 << 8
OPT_PASSTHROUGH_DATETIME = 1 << 9
OPT_APPEND_NEWLINE = 1 << 10
OPT_PASSTHROUGH_DATACLASS = 1 << 11
OPT_SERIALIZE_DATACLASS = OPT_SERIALIZE_UUID = 0

_MAX_DEPTH = 254
_LONGEST_INTEGER = 20  # digits, or a sign and digits
_TOO_DEEP = "Recursion limit reached"
_NO_KEY = "Dict key must be str"
_SUBCLASSES = (str, int, dict, list)

JSONEncodeError = TypeError


class JSONDecodeError(json.JSONDecodeError):
    """Invalid JSON."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fragment:
    """Text that is already JSON."""

    contents: str | bytes


def loads(obj: str | bytes | bytearray | memoryview, /) -> Any:
    """Parse JSON. Raises JSONDecodeError."""
    try:
        text = obj if isinstance(obj, str) else bytes(obj).decode()
        found = json.loads(text, parse_constant=_no_constant, parse_int=_integer, parse_float=_float)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # raises ValueError for half of a surrogate pair
        return found
    except json.JSONDecodeError as error:
        raise JSONDecodeError(error.msg, error.doc, error.pos) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise JSONDecodeError(str(error), "", 0) from None


def _integer(text: str) -> int | float:
    found = int(text) if len(text) <= _LONGEST_INTEGER else 2**64
    return found if -(2**63) <= found < 2**64 else float(text)


def _float(text: str) -> float:
    if math.isinf(found := float(text)):
        raise ValueError("number out of range")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def dumps(obj: Any, /, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """Serialize to JSON. Raises JSONEncodeError, which is TypeError."""
    writer = _Writer(default, option or 0)
    try:
        text = "".join(writer.write(obj, 0))
        return (text + "\n" * bool(writer.option & OPT_APPEND_NEWLINE)).encode()
    except UnicodeEncodeError:
        raise JSONEncodeError("str is not valid UTF-8: surrogates not allowed") from None
    except RecursionError:
        raise JSONEncodeError(_TOO_DEEP) from None


class _Writer:
    def __init__(self, default: Callable[[Any], Any] | None, option: int) -> None:
        self.default, self.option = default, option
        self.calls = 0
        """Calls of `default` for the current value."""

    def write(self, value: Any, depth: int) -> Iterator[str]:
        if depth > _MAX_DEPTH:
            raise JSONEncodeError(_TOO_DEEP)
        kind: Any = type(value)
        if not self.option & OPT_PASSTHROUGH_SUBCLASS:
            kind = next((each for each in _SUBCLASSES if issubclass(kind, each) and kind is not bool), kind)
        if issubclass(kind, enum.Enum) or isinstance(value, enum.Enum):
            yield from self.write(value.value, depth)
        elif kind is dict:
            yield from self._collection("{}", self._pairs(value, depth), depth)
        elif kind is list or kind is tuple:
            yield from self._collection("[]", (self.write(each, depth + 1) for each in value), depth)
        elif (text := self._scalar(value, kind)) is not None:
            yield text
        elif dataclasses.is_dataclass(kind) and not self.option & OPT_PASSTHROUGH_DATACLASS:
            yield from self._collection("{}", self._pairs(_fields(value), depth), depth)
        elif (plain := self._of_numpy(value)) is not None:
            yield from self.write(plain, depth)
        else:
            yield from self._with_default(value, depth)

    def _with_default(self, value: Any, depth: int) -> Iterator[str]:
        if self.default is None:
            raise JSONEncodeError(f"Type is not JSON serializable: {type(value).__name__}")
        if self.calls >= _MAX_DEPTH:
            raise JSONEncodeError("default serializer exceeds recursion limit")
        self.calls += 1
        yield from self.write(self.default(value), depth)
        self.calls -= 1

    def _scalar(self, value: Any, kind: type) -> str | None:
        if value is None or kind is bool:
            return {None: "null", True: "true", False: "false"}[value]
        if kind is str:
            return encode_basestring(value)
        if kind is int:
            bits = (-(2**53) + 1, 2**53 - 1) if self.option & OPT_STRICT_INTEGER else (-(2**63), 2**64 - 1)
            if not bits[0] <= value <= bits[1]:
                raise JSONEncodeError(f"Integer exceeds {53 if self.option & OPT_STRICT_INTEGER else 64}-bit range")
            return int.__repr__(value)
        if kind is float:
            return _number(value)
        if kind is Fragment:
            return value.contents if isinstance(value.contents, str) else value.contents.decode()
        if kind is uuid.UUID:
            return f'"{value}"'
        moment = kind in (datetime.datetime, datetime.date, datetime.time)
        if moment and not self.option & OPT_PASSTHROUGH_DATETIME:
            return f'"{self._moment(value)}"'
        return None

    def _moment(self, value: Any) -> str:
        if isinstance(value, datetime.time) and value.tzinfo is not None:
            raise JSONEncodeError("datetime.time must not have tzinfo set")
        if type(value) is not datetime.date and self.option & OPT_OMIT_MICROSECONDS:
            value = value.replace(microsecond=0)
        if isinstance(value, datetime.datetime) and value.tzinfo is None and self.option & OPT_NAIVE_UTC:
            value = value.replace(tzinfo=datetime.UTC)
        text = value.isoformat()
        return text.removesuffix("+00:00") + "Z" if self.option & OPT_UTC_Z and text.endswith("+00:00") else text

    def _pairs(self, value: dict[Any, Any], depth: int) -> Iterator[Iterable[str]]:
        named = [(self._key(key), each) for key, each in value.items()]
        if self.option & OPT_SORT_KEYS:
            named.sort(key=lambda pair: pair[0].encode())
        colon = ": " if self.option & OPT_INDENT_2 else ":"
        for name, each in named:
            yield (encode_basestring(name), colon, *self.write(each, depth + 1))

    def _key(self, key: Any) -> str:
        if type(key) is str:
            return key
        if not self.option & OPT_NON_STR_KEYS:
            raise JSONEncodeError(_NO_KEY)
        if isinstance(key, enum.Enum):
            return self._key(key.value)
        if isinstance(key, str):
            return str.__str__(key)
        text = self._scalar(key, key.__class__)
        if text is None or isinstance(key, Fragment):
            raise JSONEncodeError(f"{_NO_KEY} or a type that OPT_NON_STR_KEYS knows")
        return text.strip('"')

    def _collection(self, ends: str, items: Iterable[Iterable[str]], depth: int) -> Iterator[str]:
        indent = f"\n{'  ' * (depth + 1)}" if self.option & OPT_INDENT_2 else ""
        yield ends[0]
        number = -1
        for number, item in enumerate(items):
            yield ("," if number else "") + indent
            yield from item
        yield (f"\n{'  ' * depth}" if indent and number >= 0 else "") + ends[1]

    def _of_numpy(self, value: Any) -> Any:
        is_numpy = type(value).__module__ == "numpy" and self.option & OPT_SERIALIZE_NUMPY
        if not is_numpy:
            return None
        if type(value).__name__ == "datetime64":
            return value.astype("datetime64[us]").item()
        return value.tolist()


def _fields(value: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if not name.startswith("_")}


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "null"
    text = repr(value)
    if text.endswith("e-05"):  # the smallest exponent that is not written
        sign, digits = ("-" if value < 0 else ""), text.removesuffix("e-05").lstrip("-").replace(".", "")
        return f"{sign}0.0000{digits}"
    return text.replace("e-0", "e-")
