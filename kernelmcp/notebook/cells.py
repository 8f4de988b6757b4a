"""Converts an execution to a notebook cell (nbformat 4.5), one line of JSON: valid and bounded whatever the guest sent.

Output that is too long to read is truncated, and the cell says so; the whole is a resource while the execution is kept.
"""

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any, cast

from kernelmcp.executions.execution import Execution
from kernelmcp.notebook.cell_format import is_valid_cell
from kernelmcp.output.outputs import Outputs
from kernelmcp.output.sanitize import as_dict, clean, joined

MAX_SOURCE_CHARS = 1_000_000
# One stream's run of text, or a text/plain or text/markdown.
MAX_TEXT_CHARS = 100_000
# One value of a mime bundle that truncation would break, such as a picture; and a display's metadata.
MAX_VALUE_BYTES = 2 * 1024 * 1024
MAX_METADATA_BYTES = 64 * 1024
# All outputs of one cell.
MAX_CELL_BYTES = 4 * 1024 * 1024
VALUE_NOT_KEPT = "[this value was too large to be kept with the transcript]"
_CUTTABLE = ("text/plain", "text/markdown")
# In nbformat, only these may contain other values than text.
_JSON_TYPE = re.compile(r"application/(.*\+)?json")


def to_line(execution: Execution) -> bytes:
    """One cell, without the newline."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": secrets.token_hex(4),
        # Never trusted: the HTML and SVG in the outputs come from the guest.
        "metadata": {"trusted": False, "kernelmcp": _facts(execution)},
        "execution_count": _execution_count(execution.outputs),
        "source": cut(execution.code, MAX_SOURCE_CHARS, "# "),
    }
    encoded, facts = _encoded_outputs(execution)
    cell["metadata"]["kernelmcp"] |= facts
    return f'{json.dumps(cell)[:-1]}, "outputs": [{", ".join(encoded)}]}}'.encode()


def _facts(execution: Execution) -> dict[str, Any]:
    """The facts of a result besides the outputs, so that a later server can repeat it (`finished`)."""
    outputs = execution.outputs
    facts: dict[str, Any] = {
        "execution_id": execution.id,
        "status": execution.status,
        "created_at": execution.created_at.isoformat(timespec="milliseconds"),
        "ms": round(execution.execution_time_ms, 2),
        "queued_ms": round(execution.queued_ms, 2),
        "chars": [outputs.stdout.total_chars, outputs.stderr.total_chars],
    }
    if execution.client is not None:
        facts |= {"by": "person", "client": execution.client}
    if execution.state_lost:
        facts["lost"] = True
    if execution.call is not None and execution.status == "ok":
        value = execution.return_value
        facts["return_value"] = value if size(value) <= MAX_METADATA_BYTES else VALUE_NOT_KEPT
    files = [[file.path, file.size] for file in execution.files_changed if clean(file.path) == file.path]
    while files and size(files) > MAX_METADATA_BYTES:
        files = files[: len(files) // 2]
    if files:
        facts["files"] = files
    return facts


def is_cell(line: bytes) -> bool:
    """True if a line of the journal is a valid notebook cell, as nbformat defines it."""
    try:
        return is_valid_cell(json.loads(line))
    except (ValueError, RecursionError):
        return False


def without_outputs(line: bytes) -> bytes:
    """The cell with a note instead of its outputs; unchanged if that would not be shorter."""
    cell = as_dict(json.loads(line))
    if not cell.get("outputs"):
        return line
    cell["outputs"] = [note("the outputs of this cell were left out: the notebook had grown too large")]
    shorter = json.dumps(cell).encode()
    return shorter if len(shorter) < len(line) else line


def left_out_cell(count: int, why: str) -> bytes:
    """A cell that stands for omitted ones."""
    return json.dumps(
        {
            "cell_type": "markdown",
            "id": secrets.token_hex(4),
            "metadata": {"kernelmcp": {"left_out": count}},
            "source": f"*{count:,} cells were left out: {why}.*",
        }
    ).encode()


def left_out_count(line: bytes) -> int:
    """Number of cells that the line stands for, if it is such a cell; else 0."""
    found = as_dict(as_dict(as_dict(json.loads(line)).get("metadata")).get("kernelmcp")).get("left_out")
    return found if isinstance(found, int) else 0


def _encoded_outputs(execution: Execution) -> tuple[list[str], dict[str, Any]]:
    """The outputs as JSON, and facts about them: "dropped", how many were left out; "displays", the numbers of the rest
    in their URIs; "notes", the indexes of the outputs that are notes about it."""
    encoded: list[str] = []
    displays: list[int] = []
    facts: dict[str, Any] = {}
    room, left_out = MAX_CELL_BYTES, execution.outputs.dropped_displays
    for number, output in _outputs(execution.outputs):
        text = json.dumps(output)
        if len(text) > room:
            left_out += 1
        else:
            room -= len(text)
            encoded.append(text)
            displays += [] if number is None else [number]
    if left_out:
        facts["dropped"] = left_out
    if len(displays) < len(execution.outputs.displays):
        facts["displays"] = displays
    if notes := list(_notes(execution.outputs, left_out)):
        facts["notes"] = list(range(len(encoded), len(encoded) + len(notes)))
        encoded += map(json.dumps, notes)
    if (error := execution.error) is not None:
        lines = error.traceback.splitlines()
        found = {"output_type": "error", "ename": error.name, "evalue": error.value, "traceback": lines}
        encoded.append(json.dumps(found))
    return encoded, facts


def _notes(outputs: Outputs, left_out: int) -> Iterator[dict[str, Any]]:
    placed = sum(segment.end - segment.start for segment in outputs.segments if segment.name is not None)
    if missing := outputs.disk_bytes - placed:
        yield note(f"{missing:,} more bytes of output were cut from the notebook")
    if dropped := outputs.stdout.dropped_chars + outputs.stderr.dropped_chars:
        yield note(f"{dropped:,} characters of output were not kept")
    if left_out:
        yield note(f"{left_out:,} more outputs of this cell were left out of the notebook")


def _outputs(outputs: Outputs) -> list[tuple[int | None, dict[str, Any]]]:
    """The outputs in their order, displays with their numbers; the text of each stream is read from disk in one go."""
    texts = {
        name: iter(
            outputs.spool(name).read_all(
                (segment.start, min(segment.end, segment.start + MAX_TEXT_CHARS))
                for segment in outputs.segments
                if segment.name == name
            )
        )
        for name in ("stdout", "stderr")
    }
    found: list[tuple[int | None, dict[str, Any]]] = []
    for segment in outputs.segments:
        if segment.name is None:
            found.append((segment.start, _display(outputs, segment.start)))
            continue
        text = next(texts[segment.name])
        if segment.end - segment.start > MAX_TEXT_CHARS:
            text += f"\n[{segment.end - segment.start - MAX_TEXT_CHARS:,} more bytes were cut from the notebook]\n"
        found.append((None, {"output_type": "stream", "name": segment.name, "text": text}))
    return found


def _display(outputs: Outputs, number: int) -> dict[str, Any]:
    display = outputs.displays[number]
    metadata = untrusted(display.metadata)
    output: dict[str, Any] = {
        "output_type": display.kind,
        "data": bundle(display.data),
        "metadata": metadata if size(metadata) <= MAX_METADATA_BYTES else {},
    }
    if display.kind == "execute_result":
        output["execution_count"] = _execution_count(outputs)
    return output


def bundle(data: dict[str, Any]) -> dict[str, Any]:
    """The values in nbformat's form, truncated or omitted if they are too large."""
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    for mime, value in with_texts(data).items():
        if mime in _CUTTABLE:
            kept[mime] = cut(value, MAX_TEXT_CHARS)
        elif size(value) <= MAX_VALUE_BYTES:
            kept[mime] = value
        else:
            left_out.append(mime)
    if left_out:
        words = f"[{', '.join(left_out)[:1000]}: too large for the notebook]"
        kept["text/plain"] = "\n".join([kept["text/plain"], words]) if "text/plain" in kept else words
    return kept


def with_texts(data: dict[str, Any]) -> dict[str, Any]:
    """A mime bundle with text values, except for JSON types."""
    return {
        mime: value
        if _JSON_TYPE.fullmatch(mime)
        else joined(cast("Any", value))
        if isinstance(value, str | list)
        else json.dumps(value)
        for mime, value in data.items()
    }


def untrusted(metadata: dict[str, Any]) -> dict[str, Any]:
    """A guest's metadata without `trusted`, which only a person may set."""
    return {
        name: untrusted(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in metadata.items()
        if name != "trusted"
    }


def size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(json.dumps(value))


def cut(text: str, max_chars: int, prefix: str = "") -> str:
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n{prefix}[{len(text) - max_chars:,} more characters were cut from the notebook]"


def note(words: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stderr", "text": f"[{words}]\n"}


def _execution_count(outputs: Outputs) -> int | None:
    """The execution count if it is valid: it comes from the kernel and may be anything."""
    count: Any = outputs.execution_count
    return count if isinstance(count, int) and count >= 0 else None
