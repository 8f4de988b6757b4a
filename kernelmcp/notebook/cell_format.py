"""nbformat 4.5's schema of a cell, as a check in plain Python.

nbformat's own check imports jsonschema and, with that, 38 parsers that rfc3987_syntax builds: up to 2 s of CPU before
the first line of a journal is read. A test compares the two.
"""

import re
from typing import Any, cast

# In nbformat, only these may contain anything but text.
JSON_TYPE = re.compile(r"application/(.*\+)?json")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME = re.compile(r".+")
_TAG = re.compile(r"[^,]+")
_OF_EVERY_CELL = {"id", "cell_type", "metadata", "source"}
_OF_CODE = _OF_EVERY_CELL | {"outputs", "execution_count"}
_OF_OUTPUTS = {
    "stream": {"output_type", "name", "text"},
    "display_data": {"output_type", "data", "metadata"},
    "execute_result": {"output_type", "data", "metadata", "execution_count"},
    "error": {"output_type", "ename", "evalue", "traceback"},
}


def is_valid_cell(cell: Any) -> bool:
    """Whether a parsed cell may stand in a notebook of format 4.5."""
    if not isinstance(cell, dict):
        return False
    found = cast("dict[str, Any]", cell)
    kind = found.get("cell_type")
    if not (_is_text(found.get("id"), _ID) and _is_lines(found.get("source")) and _is_metadata(found, kind)):
        return False
    if kind == "code":
        outputs = found.get("outputs")
        return (
            found.keys() == _OF_CODE
            and _is_count(found["execution_count"])
            and isinstance(outputs, list)
            and all(map(_is_output, cast("list[Any]", outputs)))
        )
    if kind in ("markdown", "raw"):
        return found.keys() - {"attachments"} == _OF_EVERY_CELL and _are_attachments(found.get("attachments", {}))
    return False


def _is_metadata(cell: dict[str, Any], kind: Any) -> bool:
    metadata = cell.get("metadata")
    if not isinstance(metadata, dict):
        return False
    found = cast("dict[str, Any]", metadata)
    if not (
        _is_text(found.get("name", "-"), _NAME)
        and _are_tags(found.get("tags", []))
        and isinstance(found.get("jupyter", {}), dict)
    ):
        return False
    if kind == "raw":
        return isinstance(found.get("format", ""), str)
    return kind != "code" or (
        isinstance(found.get("collapsed", False), bool)
        and (found.get("scrolled", "auto") == "auto" or isinstance(found["scrolled"], bool))
        and _are_times(found.get("execution", {}))
    )


def _are_tags(tags: Any) -> bool:
    if not isinstance(tags, list):
        return False
    found = cast("list[Any]", tags)
    return all(_is_text(tag, _TAG) for tag in found) and len(set(found)) == len(found)


def _are_times(times: Any) -> bool:
    return isinstance(times, dict) and all(isinstance(time, str) for time in cast("dict[str, Any]", times).values())


def _are_attachments(attachments: Any) -> bool:
    return isinstance(attachments, dict) and all(map(_is_bundle, cast("dict[str, Any]", attachments).values()))


def _is_output(output: Any) -> bool:
    if not isinstance(output, dict):
        return False
    found = cast("dict[str, Any]", output)
    kind = found.get("output_type")
    if not isinstance(kind, str) or found.keys() != _OF_OUTPUTS.get(kind):
        return False
    if kind == "stream":
        return isinstance(found["name"], str) and _is_lines(found["text"])
    if kind == "error":
        is_named = isinstance(found["ename"], str) and isinstance(found["evalue"], str)
        return is_named and isinstance(found["traceback"], list) and _is_lines(found["traceback"])
    return _is_bundle(found["data"]) and isinstance(found["metadata"], dict) and _is_count(found.get("execution_count"))


def _is_bundle(bundle: Any) -> bool:
    return isinstance(bundle, dict) and all(
        _is_lines(value) or JSON_TYPE.fullmatch(mime) is not None
        for mime, value in cast("dict[str, Any]", bundle).items()
    )


def _is_lines(value: Any) -> bool:
    """A text, or a list of its lines."""
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(line, str) for line in cast("list[Any]", value))
    )


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
