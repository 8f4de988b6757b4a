"""The lines of a session's log (`notebook.jsonl`): events, and the ended cells themselves.

The first bytes of a line tell its kind, without parsing it. Events hold what the fold accepted, not what a kernel sent:
they are clean, bounded and final, so that a reader applies them and decides nothing. The end of a cell is the whole
cell as a line of nbformat, which supersedes its earlier events.
"""

import json
import re
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from kernelmcp.output.sanitize import as_dict, as_list, clean

Op = list[Any]
"""The effect of an output on its cell: `["text", stream, text]`, `["show", kind, data, metadata, display_id]`,
`["change", n, data, metadata]`, `["clear"]`, `["error", name, value, traceback]`, `["head", text, chars]` (of a result
that is too large to be kept), `["dropped", displays, types]`."""

_ID = rb"[A-Za-z0-9_-]{1,64}"
_ID_TEXT = re.compile(_ID.decode())
_EVENT = re.compile(rb'\{"e": "(submitted|began|output|cancelled)", "c": "(' + _ID + rb')"(, "late": true)?')
# `sum` is the CRC of the line with zeros in its place.
_CELL = re.compile(
    rb'\{"cell_type": "(?:code|markdown|raw)", "id": "' + _ID + rb'", "metadata": \{"kernelmcp": '
    rb'\{"sum": "([0-9a-f]{8})", (?:"execution_id": "(' + _ID + rb')"|"left_out": [0-9]+)'
)
EVENT_PREFIX = b'{"e": "'
NO_SUM = "00000000"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def submitted(cell_id: str, at: str, code: str, request: str | None = None) -> bytes:
    """`request`: the id of the HTTP request, of characters that JSON does not escape."""
    made_by = {"request": request} if request else {}
    return utf8({"e": "submitted", "c": cell_id, "at": at, **made_by, "code": code})


def began(cell_id: str, at: str, facts: dict[str, Any]) -> bytes:
    return json.dumps({"e": "began", "c": cell_id, "at": at, **facts}).encode()


def cancelled(cell_id: str, *, as_task: bool = False) -> bytes:
    """The event of a cell that never began, and is not in the notebook. `as_task`: with `tasks/cancel`."""
    return json.dumps({"e": "cancelled", "c": cell_id, **({"as_task": True} if as_task else {})}).encode()


def output(cell_id: str, ops: Sequence[Op], *, late: bool = False) -> list[bytes]:
    """The parts of the line. `late`: the cell had ended. Raises `ValueError` for values that JSON does not have."""
    head = json.dumps({"e": "output", "c": cell_id, **({"late": True} if late else {})})
    return [f'{head[:-1]}, "ops": '.encode(), encoded(ops), b"}"]


def utf8(value: Any) -> bytes:
    """JSON in UTF-8, with the spaces that `kind_of` expects. A lone surrogate becomes U+FFFD."""
    return clean(json.dumps(value, ensure_ascii=False)).encode()


def encoded(value: Any) -> bytes:
    """Compact JSON in UTF-8; a large text is copied once. Raises `ValueError` for values that JSON does not have."""
    try:
        return msgspec.json.encode(value)
    except TypeError as exc:
        raise ValueError(str(exc)) from exc


def is_id(text: object) -> bool:
    """True if an event can name its cell so."""
    return isinstance(text, str) and _ID_TEXT.fullmatch(text) is not None


def kind_of(line: bytes) -> tuple[str, str]:
    """The kind and the cell's id: of an event ("late" for an output after the end), "cell" for an ended cell, "note"
    without an id for a note of ours, and two empty texts for anything else, such as lines of older versions."""
    if (found := _EVENT.match(line)) is not None:
        return "late" if found[3] else found[1].decode(), found[2].decode()
    if (found := _CELL.match(line)) is not None:
        return ("cell", found[2].decode()) if found[2] is not None else ("note", "")
    return "", ""


def sealed(head: bytes, *more: bytes) -> bytes:
    """An ended cell's line with its checksum, from its parts, the first of which has `NO_SUM`. A picture is copied
    once."""
    if (found := _CELL.match(head)) is None:
        raise ValueError(f"not the beginning of a cell's line: {head[:100]!r}")
    start, end = found.span(1)
    crc = 0
    for part in (head, *more):
        crc = zlib.crc32(part, crc)
    return b"".join([head[:start], b"%08x" % crc, head[end:], *more])


def is_whole(line: bytes) -> bool:
    """True if a cell's line is as it was sealed."""
    if (found := _CELL.match(line)) is None:
        return False
    start, end = found.span(1)
    crc = zlib.crc32(memoryview(line)[end:], zlib.crc32(NO_SUM.encode(), zlib.crc32(line[:start])))
    return found[1] == b"%08x" % crc


def sum_of(line: bytes) -> str:
    """The checksum of a cell's line; empty if it has none."""
    return found[1].decode() if (found := _CELL.match(line)) is not None else ""


def parsed(line: bytes) -> dict[str, Any]:
    """Empty for a line that is not a JSON object."""
    try:
        return as_dict(json.loads(line))
    except (ValueError, RecursionError):
        return {}


def ops_of(line: bytes) -> list[Op]:
    """The effects of an `output` event."""
    return [as_list(op) for op in as_list(parsed(line).get("ops"))]
