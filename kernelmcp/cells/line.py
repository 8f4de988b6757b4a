"""A cell as one line of JSON in the form of nbformat 4.5, and back: valid and bounded whatever the guest sent.

Output that is too long to read is truncated, and the cell says so; the whole is a resource while the execution is kept.
Must not know executions or files.
"""

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any, cast

from kernelmcp.cells import event
from kernelmcp.cells.cell import Outputs, Segment
from kernelmcp.cells.cell_format import is_valid_cell
from kernelmcp.cells.event import Op
from kernelmcp.output.sanitize import as_dict, as_list, clean, counted, joined

MAX_SOURCE_CHARS = 1_000_000
# One stream's run of text, or a text/plain or text/markdown.
MAX_TEXT_CHARS = 100_000
# One value of a mime bundle that truncation would break, such as a picture; and a display's metadata.
MAX_VALUE_BYTES = 2 * 1024 * 1024
MAX_METADATA_BYTES = 64 * 1024
# Longest note on a text that was cut.
NOTE_CHARS = 100
# All outputs of one cell.
MAX_CELL_BYTES = 4 * 1024 * 1024
VALUE_NOT_KEPT = "[this value was too large to be kept with the transcript]"
NOT_KEPT = "[this output was too large to be kept with the transcript]"
# A line may claim any number for a display.
MAX_PLACES = 10_000
# A record does not know the revisions of its displays. Its own begin beyond those of any running cell, so that all of
# them are new to a client whose cursor is of the time when the cell ran.
FIRST_REVISION = 10**12
_CUTTABLE = ("text/plain", "text/markdown")
# In nbformat, only these may contain other values than text.
_JSON_TYPE = re.compile(r"application/(.*\+)?json")


def to_line(execution_id: str, code: str, facts: dict[str, Any], outputs: Outputs, cell_id: str = "") -> bytes:
    """An ended cell, without the newline. `facts` is what a result says besides the outputs."""
    encoded, about = _encoded_outputs(outputs)
    chars = [outputs.stdout.total_chars, outputs.stderr.total_chars]
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": cell_id or secrets.token_hex(4),
        # Never trusted: the HTML and SVG in the outputs come from the guest.
        "metadata": {
            "kernelmcp": {"sum": event.NO_SUM, "execution_id": execution_id, **facts, "chars": chars, **about},
            "trusted": False,
        },
        "execution_count": _execution_count(outputs),
        "source": cut(code, MAX_SOURCE_CHARS, "# "),
    }
    parts = [part for one in encoded for part in (b", ", one)][1:]
    return event.sealed(event.utf8(cell)[:-1] + b', "outputs": [', *parts, b"]}")


def from_line(line: bytes) -> tuple[str, dict[str, Any], Outputs]:
    """Code, facts and outputs of an ended cell, without our notes about what was left out. Displays keep their numbers,
    because the client has them in URIs."""
    cell = event.parsed(line)
    facts = as_dict(as_dict(cell.get("metadata")).get("kernelmcp"))
    outputs = Outputs(revision=FIRST_REVISION)
    count = cell.get("execution_count")
    outputs.execution_count = count if isinstance(count, int) else None
    places, notes, cuts = iter(as_list(facts.get("displays"))), as_list(facts.get("notes")), as_list(facts.get("cut"))
    replaced = 0

    def fill(place: Any) -> None:
        nonlocal replaced
        while isinstance(place, int) and len(outputs.displays) < min(place, MAX_PLACES):
            outputs.apply(["show", "display_data", {"text/plain": NOT_KEPT}, {}, None])
            replaced += 1

    for index, output in enumerate(map(as_dict, as_list(cell.get("outputs")))):
        kind = output.get("output_type")
        if index in notes:
            continue
        if kind == "stream":
            outputs.apply(["text", output.get("name"), joined(output.get("text", ""))])
            if index in cuts and outputs.segments:
                outputs.segments[-1].is_cut = True
        elif kind in ("display_data", "execute_result"):
            fill(next(places, None))
            data = as_dict(output.get("data"))
            if "text/plain" in data:
                data["text/plain"] = joined(data["text/plain"])
            outputs.apply(["show", kind, data, as_dict(output.get("metadata")), None])
        elif kind == "error":
            traceback = "\n".join(map(str, as_list(output.get("traceback"))))
            outputs.apply(["error", str(output.get("ename")), str(output.get("evalue")), traceback])
    fill(facts.get("shown"))
    _count_missing(outputs, facts, replaced)
    return joined(cell.get("source", "")), facts, outputs


def _count_missing(outputs: Outputs, facts: dict[str, Any], replaced: int) -> None:
    """What the cell had, and its line lacks. `replaced` displays have a text in their place."""
    dropped = facts.get("dropped")
    outputs.dropped_displays = max(0, dropped - replaced) if isinstance(dropped, int) else 0
    for spool, total in zip((outputs.stdout, outputs.stderr), as_list(facts.get("chars")), strict=False):
        if isinstance(total, int):
            spool.dropped_chars = max(spool.dropped_chars, total - spool.chars)
    outputs.noted = _noted_in(facts)
    clears = facts.get("clears")
    outputs.clears = clears if type(clears) is int and clears > 0 else 0


def _noted_in(facts: dict[str, Any]) -> tuple[int, int]:
    match facts.get("noted"):
        case [int() as cut_bytes, int() as dropped_chars]:
            return cut_bytes, dropped_chars
        case _:
            return 0, 0


def with_changes(line: bytes, ops: list[Op]) -> bytes:
    """An ended cell with what came after its end."""
    code, facts, outputs = from_line(line)
    cell, (_, execution_id) = event.parsed(line), event.kind_of(line)
    for op in ops:
        outputs.apply(op)
    derived = ("sum", "execution_id", "chars", "displays", "shown", "notes", "dropped", "cut", "noted", "clears")
    kept = {name: value for name, value in facts.items() if name not in derived}
    cell_id = cell["id"] if event.is_id(cell.get("id")) else ""
    return to_line(execution_id or _id_of(cell, facts), code, kept, outputs, cell_id)


def is_cell(line: bytes) -> bool:
    """True if a line of the log is a valid notebook cell: as it was sealed or, of an older version, as nbformat defines
    it."""
    if event.is_whole(line):
        return True
    if event.kind_of(line)[0]:
        return False
    try:
        return is_valid_cell(json.loads(line))
    except (ValueError, RecursionError):
        return False


def resealed(cell: dict[str, Any]) -> bytes:
    """The line of a parsed cell, perhaps of an older version or of another program."""
    metadata = as_dict(cell.get("metadata"))
    ours = as_dict(metadata.get("kernelmcp"))
    if left_out := _left_out_in(ours):
        first: dict[str, Any] = {"sum": event.NO_SUM, "left_out": left_out}
    else:
        first = {"sum": event.NO_SUM, "execution_id": _id_of(cell, ours)}
    head: dict[str, Any] = {
        "cell_type": cell.get("cell_type"),
        "id": cell["id"] if event.is_id(cell.get("id")) else secrets.token_hex(4),
        "metadata": {"kernelmcp": {**first, **{name: ours[name] for name in ours if name not in first}}},
    }
    head["metadata"] |= {name: metadata[name] for name in metadata if name != "kernelmcp"}
    return event.sealed(event.utf8(head | {name: cell[name] for name in cell if name not in head}))


def _id_of(cell: dict[str, Any], ours: dict[str, Any]) -> str:
    """A cell of another program has no execution id: its own id stands for it."""
    found = next((one for one in (ours.get("execution_id"), cell.get("id")) if event.is_id(one)), None)
    return found or secrets.token_hex(8)


def without_outputs(line: bytes) -> bytes:
    """The cell with a note instead of its outputs, except its error; unchanged if that would not be shorter."""
    cell = event.parsed(line)
    facts = as_dict(as_dict(cell.get("metadata")).get("kernelmcp"))
    notes = as_list(facts.get("notes"))
    outputs = [as_dict(output) for index, output in enumerate(as_list(cell.get("outputs"))) if index not in notes]
    kept = [output for output in outputs if output.get("output_type") == "error"]
    if len(kept) == len(outputs):
        return line
    texts = [joined(output["text"]) for output in outputs if "text" in output]
    displays = len(outputs) - len(texts) - len(kept)
    cut_bytes, dropped_chars = _noted_in(facts)
    facts |= {
        "dropped": displays + (dropped if isinstance(dropped := facts.get("dropped"), int) else 0),
        "displays": [],
        "shown": facts.get("shown", displays),
        "noted": [cut_bytes + sum(len(clean(text).encode()) for text in texts), dropped_chars],
        "notes": [0],
    }
    facts.pop("cut", None)
    words = "the outputs of this cell were left out: the notebook had grown too large"
    # A name that comes twice in the line may have any value the second time.
    metadata = {**as_dict(cell.get("metadata")), "kernelmcp": facts}
    shorter = resealed({**cell, "cell_type": "code", "outputs": [note(words), *kept], "metadata": metadata})
    return shorter if len(shorter) < len(line) else line


def left_out_cell(count: int, why: str) -> bytes:
    """A cell that stands for omitted ones."""
    cell = {
        "cell_type": "markdown",
        "id": secrets.token_hex(4),
        "metadata": {"kernelmcp": {"sum": event.NO_SUM, "left_out": count}},
        "source": f"*{counted(count, 'cell was', 'cells were')} left out: {why}.*",
    }
    return event.sealed(json.dumps(cell).encode())


def left_out_count(line: bytes) -> int:
    """Number of cells that the line stands for, if it is such a cell; else 0."""
    return _left_out_in(as_dict(as_dict(event.parsed(line).get("metadata")).get("kernelmcp")))


def _left_out_in(facts: dict[str, Any]) -> int:
    return found if type(found := facts.get("left_out")) is int and found > 0 else 0


def _encoded_outputs(outputs: Outputs) -> tuple[list[bytes], dict[str, Any]]:
    """The outputs as JSON, and facts about them: "dropped", how many were left out; "displays", the numbers of the rest
    in their URIs, and "shown", how many there were; "cut", the indexes of the texts that end with a note, and "notes",
    those of the outputs that are notes; "noted", what they say of text; "clears", how often all were cleared, which a
    client's cursor counts."""
    encoded: list[bytes] = []
    displays: list[int] = []
    cuts: list[int] = []
    facts: dict[str, Any] = {}
    room, left_out = MAX_CELL_BYTES, outputs.dropped_displays
    for (number, output), segment in zip(_outputs(outputs), outputs.segments, strict=True):
        text = event.encoded(output)
        if len(text) > room:
            left_out += 1
        else:
            room -= len(text)
            cuts += [len(encoded)] if segment.is_cut or _is_long(segment) else []
            encoded.append(text)
            displays += [] if number is None else [number]
    if left_out:
        facts["dropped"] = left_out
    if len(displays) < len(outputs.displays):
        facts |= {"displays": displays, "shown": len(outputs.displays)}
    if cuts:
        facts["cut"] = cuts
    if outputs.clears:
        facts["clears"] = outputs.clears
    if any(noted := _noted(outputs)):
        facts["noted"] = noted
    if notes := list(_notes(*noted, left_out)):
        facts["notes"] = list(range(len(encoded), len(encoded) + len(notes)))
        encoded += [json.dumps(one).encode() for one in notes]
    if (error := outputs.error) is not None:
        lines = error.traceback.splitlines()
        found = {"output_type": "error", "ename": error.name, "evalue": error.value, "traceback": lines}
        encoded.append(json.dumps(found).encode())
    return encoded, facts


def _noted(outputs: Outputs) -> tuple[int, int]:
    """The bytes of text that no run has, and the characters that were not kept."""
    cut_bytes, dropped_chars = outputs.noted or (0, outputs.stdout.dropped_chars + outputs.stderr.dropped_chars)
    placed = sum(segment.end - segment.start for segment in outputs.segments if segment.name is not None)
    return cut_bytes + outputs.disk_bytes - placed, dropped_chars


def _notes(cut_bytes: int, dropped_chars: int, left_out: int) -> Iterator[dict[str, Any]]:
    if cut_bytes:
        words = counted(cut_bytes, "more byte of output was", "more bytes of output were")
        yield note(f"{words} cut from the notebook")
    if dropped_chars:
        yield note(f"{counted(dropped_chars, 'character of output was', 'characters of output were')} not kept")
    if left_out:
        more = counted(left_out, "more output of this cell was", "more outputs of this cell were")
        yield note(f"{more} left out of the notebook")


def _outputs(outputs: Outputs) -> list[tuple[int | None, dict[str, Any]]]:
    """The outputs in their order, displays with their numbers; the text of each stream is read from disk in one go."""
    texts = {
        name: iter(
            outputs.spool(name).read_all(
                (segment.start, _end_of(segment)) for segment in outputs.segments if segment.name == name
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
        if _is_long(segment):
            text += f"\n[{segment.end - segment.start - MAX_TEXT_CHARS:,} more bytes were cut from the notebook]\n"
        found.append((None, {"output_type": "stream", "name": segment.name, "text": text}))
    return found


def _is_long(segment: Segment) -> bool:
    return segment.name is not None and segment.end - segment.start > MAX_TEXT_CHARS + NOTE_CHARS


def _end_of(segment: Segment) -> int:
    return segment.start + MAX_TEXT_CHARS if _is_long(segment) else segment.end


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
    """The text, or its beginning and a note; which is left as it is if it is cut again."""
    if len(text) <= max_chars + NOTE_CHARS:
        return text
    return f"{text[:max_chars]}\n{prefix}[{len(text) - max_chars:,} more characters were cut from the notebook]"


def note(words: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stderr", "text": f"[{words}]\n"}


def _execution_count(outputs: Outputs) -> int | None:
    """The execution count if it is valid: it comes from the kernel and may be anything."""
    count: Any = outputs.execution_count
    return count if type(count) is int and count >= 0 else None
