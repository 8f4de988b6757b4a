"""Converts a kernel's outputs for a notebook: valid, harmless and bounded, whatever the guest sent.

The limits are those of the transcript (`notebook/cells.py`).
"""

import json
from typing import Any

from kernelmcp.lab.tame import tame_bundle, tame_metadata
from kernelmcp.notebook.cells import MAX_METADATA_BYTES, bundle, size
from kernelmcp.output.outputs import (
    MAX_DISPLAY_ID_CHARS,
    MAX_ERROR_NAME_CHARS,
    MAX_ERROR_VALUE_CHARS,
    MAX_MIME_TYPES,
    MAX_TRACEBACK_CHARS,
)
from kernelmcp.output.sanitize import as_dict, as_list, clean, clean_json, cut_middle, is_mime_type, joined

DISPLAYS = ("display_data", "execute_result")
# Key in an output's metadata: the display id whose later messages update it.
DISPLAY_ID = "kernelmcp_display_id"


def display(kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """A displayed object or a result. None if it is nested too deeply or has nothing to show."""
    given = as_dict(content.get("data"))
    named = [mime for mime in given if is_mime_type(mime)][:MAX_MIME_TYPES]
    try:
        data = tame_bundle(bundle(clean_json({mime: given[mime] for mime in named})))
        metadata = tame_metadata(clean_json(as_dict(content.get("metadata"))))
    except ValueError:
        return None
    if not data:
        return None
    if size(metadata) > MAX_METADATA_BYTES:
        metadata = {}
    if shown_as := display_id(content):
        metadata[DISPLAY_ID] = shown_as
    output: dict[str, Any] = {"output_type": kind, "data": data, "metadata": metadata}
    if kind == "execute_result":
        output["execution_count"] = count(content.get("execution_count"))
    return output


def error(content: dict[str, Any]) -> dict[str, Any]:
    traceback = "\n".join(map(clean, as_list(content.get("traceback"))))
    return {
        "output_type": "error",
        "ename": clean(content.get("ename", "Error"))[:MAX_ERROR_NAME_CHARS],
        "evalue": cut_middle(clean(content.get("evalue", "")), MAX_ERROR_VALUE_CHARS),
        "traceback": cut_middle(traceback, MAX_TRACEBACK_CHARS).split("\n"),
    }


def stream(name: Any, text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stderr" if name == "stderr" else "stdout", "text": text}


def of_cell(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a journal's cell. They were bounded when written, and are checked again anyway."""
    found: list[dict[str, Any]] = []
    for output in map(as_dict, as_list(cell.get("outputs"))):
        kind = output.get("output_type")
        if kind == "stream":
            found.append(stream(output.get("name"), clean(joined(output.get("text", "")))))
        elif kind == "error":
            found.append(error(output))
        elif kind in DISPLAYS and (shown := display(str(kind), output)) is not None:
            found.append(shown)
    return [output for output in found if weight(output) is not None]


def weight(output: dict[str, Any]) -> int | None:
    """Its size in the notebook. None if it is not valid JSON (NaN): a document with it can no longer be saved."""
    try:
        return len(json.dumps(output, allow_nan=False))
    except ValueError:
        return None


def display_id(content: dict[str, Any]) -> str:
    """The display id. Empty if there is none, or it is not a short text."""
    found: Any = as_dict(content.get("transient")).get("display_id")
    return clean(found) if isinstance(found, str) and len(found) <= MAX_DISPLAY_ID_CHARS else ""


def count(found: Any) -> int | None:
    """The execution count, if it is valid."""
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**53 else None
