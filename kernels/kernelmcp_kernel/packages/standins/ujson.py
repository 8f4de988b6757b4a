"""JSON with the names and values of ujson (5.12), which is in C; this one is Python's json with other defaults."""

# A kind is any type.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import IO, Any

__all__ = ["JSONDecodeError", "decode", "dump", "dumps", "encode", "load", "loads"]
__version__ = "5.12.0"

# Python's own `ensure_ascii` escapes DEL, too.
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
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
    options: dict[str, Any] = {"sort_keys": sort_keys, "indent": indent or None, "allow_nan": allow_nan}
    options["separators"] = separators or (",", ": " if indent else ":")
    try:
        text = json.dumps(
            _with_names(obj),
            ensure_ascii=False,
            default=lambda value: _plain(value, default, reject_bytes=reject_bytes),
            **options,
        )
    except ValueError as error:
        if "Out of range" in str(error):
            raise OverflowError("Invalid value when encoding double") from None
        raise
    if ensure_ascii:
        text = _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    if escape_forward_slashes:
        text = text.replace("/", "\\/")
    if encode_html_chars:
        for character in "<>&":
            text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(value: Any, default: Callable[[Any], Any] | None, *, reject_bytes: bool) -> Any:
    """Convert a value that JSON does not have."""
    if isinstance(value, (bytes, bytearray)) and not reject_bytes:
        return value.decode()
    for name in ("toDict", "__json__"):
        if callable(method := getattr(value, name, None)):
            found: Any = method()
            return json.loads(found) if name == "__json__" else found
    if default is None:
        raise TypeError(f"{value!r} is not JSON serializable")
    return default(value)


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
