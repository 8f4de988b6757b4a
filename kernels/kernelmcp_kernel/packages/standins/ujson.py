"""JSON with the names and values of ujson (5.12), which is in C; this one is Python's json with other defaults."""

# A kind is any type.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Callable
from typing import IO, Any

__all__ = ["JSONDecodeError", "decode", "dump", "dumps", "encode", "load", "loads"]
__version__ = "5.12.0"

_KEYS = (str, int, float, type(None))

JSONDecodeError = json.JSONDecodeError


def loads(obj: str | bytes | bytearray | memoryview) -> Any:
    """Parse JSON. Raises JSONDecodeError."""
    return json.loads(bytes(obj) if isinstance(obj, memoryview) else obj)


def load(fp: IO[Any]) -> Any:
    """Parse JSON from a file. Raises JSONDecodeError."""
    return loads(fp.read())


def dumps(
    obj: Any,
    *,
    ensure_ascii: bool = True,
    encode_html_chars: bool = False,
    escape_forward_slashes: bool = True,
    sort_keys: bool = False,
    indent: int = 0,
    allow_nan: bool = True,
    reject_bytes: bool = True,
    default: Callable[[Any], Any] | None = None,
    separators: tuple[str, str] | None = None,
) -> str:
    """Serialize to JSON. Raises OverflowError, TypeError, ValueError."""

    def plain(value: Any) -> Any:
        if isinstance(value, (bytes, bytearray)) and not reject_bytes:
            return value.decode()
        for name in ("toDict", "__json__"):
            if callable(method := getattr(value, name, None)):
                found: Any = method()
                return json.loads(found) if name == "__json__" else found
        if default is None:
            raise TypeError(f"{value!r} is not JSON serializable")
        return default(value)

    text = json.dumps(
        _with_names(obj),
        ensure_ascii=ensure_ascii,
        sort_keys=sort_keys,
        indent=indent or None,
        allow_nan=allow_nan,
        default=plain,
        separators=separators or (",", ": " if indent else ":"),
    )
    if escape_forward_slashes:
        text = text.replace("/", "\\/")
    if encode_html_chars:
        for character in "<>&":
            text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _with_names(value: Any) -> Any:
    """Convert all keys to text."""
    kind: Any = type(value)
    if issubclass(kind, dict):
        return {key if isinstance(key, _KEYS) else str(key): _with_names(each) for key, each in value.items()}
    return [_with_names(each) for each in value] if issubclass(kind, (list, tuple)) else value


def dump(obj: Any, fp: IO[str], **options: Any) -> None:
    """Serialize to a file. Raises the same errors as dumps."""
    fp.write(dumps(obj, **options))


encode, decode = dumps, loads
