"""nbformat 4.5's own schema of a cell, as a check that does not import nbformat.

nbformat imports jsonschema and, with that, 38 parsers that rfc3987_syntax builds if JupyterLab is installed: up to 2 s
of CPU before the first line of an old log is read. fastjsonschema, which nbformat can use as well, takes 40 ms. A test
compares the two.
"""

import functools
import json
from collections.abc import Callable
from importlib.metadata import files
from typing import Any, cast

_SCHEMA = "nbformat/v4/nbformat.v4.5.schema.json"


def is_valid_cell(cell: Any) -> bool:
    """True if a parsed cell is valid in a notebook of format 4.5."""
    from fastjsonschema import JsonSchemaValueException

    try:
        _check()(cell)
    except (JsonSchemaValueException, RecursionError):
        return False
    return True


@functools.cache
def _check() -> Callable[[Any], Any]:
    import fastjsonschema

    [file] = [file for file in files("nbformat") or () if str(file) == _SCHEMA]
    definitions: dict[str, Any] = json.loads(file.read_text("utf-8"))["definitions"]
    return cast("Any", fastjsonschema).compile({**definitions["cell"], "definitions": definitions})
