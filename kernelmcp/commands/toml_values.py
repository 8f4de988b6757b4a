"""Values as TOML, for the commands that add tables to a file of settings."""

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
    # A basic string of TOML has JSON's escapes; it wants one for DEL, too.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
