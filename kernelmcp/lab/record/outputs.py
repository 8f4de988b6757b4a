"""Converts the outputs of a log for a notebook: valid, harmless and bounded.

They were bounded when written, and are checked again anyway. The limits are those of the log (`cells/line.py`).
"""

import itertools
import json
import re
from typing import Any

from kernelmcp.cells.fold import (
    MAX_ERROR_NAME_CHARS,
    MAX_ERROR_VALUE_CHARS,
    MAX_MIME_TYPES,
    MAX_TRACEBACK_CHARS,
)
from kernelmcp.cells.line import MAX_METADATA_BYTES, bundle, size
from kernelmcp.lab.tame import tame_bundle, tame_metadata
from kernelmcp.output.sanitize import as_dict, as_list, clean, clean_json, cut_middle, is_mime_type, joined

DISPLAYS = ("display_data", "execute_result")
# A run of moves is one: there may be millions.
MOVES = re.compile(r"(\n|\x08*\r[\r\x08]*|\x08+)")


class Tamed(dict[str, Any]):
    """A mime bundle that is valid, harmless and bounded already."""


def tame_line(line: dict[str, Any]) -> dict[str, Any]:
    """Sanitize the bundles of a line of the log, and apply the moves in an ended cell's text, in place. A line may have
    megabytes of them: call it in a thread."""
    for op in map(as_list, as_list(line.get("ops"))):
        if op[0:1] in (["show"], ["change"]) and len(op) > 2:
            op[2] = _tamed(op[2])
    for output in map(as_dict, as_list(line.get("outputs"))):
        if "data" in output:
            output["data"] = _tamed(output["data"])
        if output.get("output_type") == "stream":
            output["text"] = overprinted("", 0, joined(output.get("text", "")))[0]
    return line


def _tamed(data: Any) -> Tamed:
    """Empty if it is nested too deeply."""
    if isinstance(data, Tamed):
        return data
    given = as_dict(data)
    named = [mime for mime in given if is_mime_type(mime)][:MAX_MIME_TYPES]
    try:
        return Tamed(tame_bundle(bundle(clean_json({mime: given[mime] for mime in named}))))
    except ValueError:
        return Tamed()


def display(kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """A displayed object or a result. None if it is nested too deeply or has nothing to show."""
    data = _tamed(content.get("data"))
    try:
        metadata = tame_metadata(clean_json(as_dict(content.get("metadata"))))
    except ValueError:
        return None
    if not data:
        return None
    if size(metadata) > MAX_METADATA_BYTES:
        metadata = {}
    output: dict[str, Any] = {"output_type": kind, "data": data, "metadata": metadata}
    if kind == "execute_result":
        output["execution_count"] = count(content.get("execution_count"))
    return output


def error(name: Any, value: Any, traceback: str) -> dict[str, Any]:
    return {
        "output_type": "error",
        "ename": clean(name)[:MAX_ERROR_NAME_CHARS],
        "evalue": cut_middle(clean(value), MAX_ERROR_VALUE_CHARS),
        "traceback": cut_middle(clean(traceback), MAX_TRACEBACK_CHARS).split("\n"),
    }


def stream(name: Any, text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stderr" if name == "stderr" else "stdout", "text": clean(text)}


def overprinted(line: str, at: int, text: str) -> tuple[str, int]:
    """What a line shows once `text` was printed from its column `at` on, as a progress bar is (carriage returns,
    backspaces), and the column in the last line then."""
    text = text.replace("\r\n", "\n")
    if "\r" not in text and "\b" not in text:
        shown = line[:at] + text.partition("\n")[0]
        whole = shown + line[len(shown) :] + text[len(shown) - at :]
        return whole, len(whole.rpartition("\n")[2]) if "\n" in text else len(shown)
    done: list[str] = []
    characters = list(line)
    pieces = iter(MOVES.split(text))
    for part in pieces:
        characters[at : at + len(part)] = part
        at += len(part)
        move = next(pieces, "")
        if move == "\n":
            done.append("".join(characters))
            characters, at = [], 0
        else:
            at = 0 if "\r" in move else max(0, at - len(move))
    return "\n".join([*done, "".join(characters)]), at


def of_cell(cell: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """The outputs of an ended cell, and the position of each display in them, by its number."""
    found: list[dict[str, Any]] = []
    places: dict[int, int] = {}
    given = as_dict(as_dict(cell.get("metadata")).get("kernelmcp")).get("displays")
    numbers = iter(as_list(given) if isinstance(given, list) else itertools.count())
    for output in map(as_dict, as_list(cell.get("outputs"))):
        shown = None
        kind = output.get("output_type")
        number: Any = next(numbers, None) if kind in DISPLAYS else None
        if kind == "stream":
            shown = stream(output.get("name"), overprinted("", 0, joined(output.get("text", "")))[0])
        elif kind == "error":
            traceback = "\n".join(map(str, as_list(output.get("traceback"))))
            shown = error(output.get("ename", "Error"), output.get("evalue", ""), traceback)
        elif kind in DISPLAYS:
            shown = display(str(kind), output)
        if shown is not None and weight(shown) is not None:
            if isinstance(number, int):
                places[number] = len(found)
            found.append(shown)
    return found, places


def weight(output: dict[str, Any]) -> int | None:
    """Its size in the notebook. None if it is not valid JSON (NaN): a document with it can no longer be saved."""
    try:
        return len(json.dumps(output, allow_nan=False))
    except ValueError:
        return None


def count(found: Any) -> int | None:
    """The execution count, if it is valid."""
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**53 else None
