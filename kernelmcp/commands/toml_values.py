"""Formats values as TOML, for the commands that add tables to a settings file."""

import json
from typing import Any, cast


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, cast('list[Any]', value)))}]"
    if isinstance(value, dict):
        pairs = (f"{toml_value(key)} = {toml_value(one)}" for key, one in cast("dict[str, Any]", value).items())
        return f"{{ {', '.join(pairs)} }}"
    # A basic TOML string has JSON's escapes, plus one for DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
