"""Look-ups in a session's log, which another process or thread may be writing. Blocking; nothing is parsed that is not
asked for."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelmcp.atomic import open_own
from kernelmcp.cells import event
from kernelmcp.output.sanitize import as_dict

# Beside the notebook, in the directory of a session.
LOG = "notebook.jsonl"
# A larger file is not ours.
MAX_LOG_BYTES = 1024 * 1024 * 1024
# What is searched, at the end of a log: all of it, unless cells come faster than it is rewritten.
SEARCHED_BYTES = 128 * 1024 * 1024
# What a search reads at once: the interpreter does nothing else meanwhile.
PIECE_BYTES = 4 * 1024 * 1024
# The beginning of a line that has its kind and, of an ended cell, its status.
HEAD_BYTES = 400
# Where HTTP requests are looked for, at the end of a log.
REQUESTS_BYTES = 1024 * 1024
# At the beginning of a line, where no guest writes: a cell, and the HTTP request for which it began.
_REQUEST = re.compile(
    rb'^\{"(?:e": "submitted", "c": "([A-Za-z0-9_-]{1,64})", "at": "[^"]{1,40}"|cell_type": "code", "id": '
    rb'"[^"]{1,64}", "metadata": \{"kernelmcp": \{"sum": "[0-9a-f]{8}", "execution_id": "([A-Za-z0-9_-]{1,64})"), '
    rb'"request": "([A-Za-z0-9._:-]{1,128})"',
    re.MULTILINE,
)
# Where `recorded` writes it, before anything of a guest's: a return value may have the same words.
_STOPPED = re.compile(rb'\{"cell_type": [^{}]*\{"kernelmcp": \{[^{}]*"queued_ms": [0-9.e+-]+, "stopped": true')


def last_bytes(file: Path) -> tuple[int, bytes]:
    """The last `SEARCHED_BYTES` of the file, from the beginning of a line, and where they begin. Not mapped: a map of a
    file that its writer shortens ends the process. Raises `OSError`."""
    with open_own(file) as stream:
        at = max(0, stream.seek(0, os.SEEK_END) - SEARCHED_BYTES)
        stream.seek(at)
        if at:
            at += len(stream.readline())
        return at, stream.read(SEARCHED_BYTES)


def whole_lines(file: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The lines between two positions, without their newlines; the last one only if it is complete."""
    try:
        stream = open_own(file)
    except FileNotFoundError:
        return
    with stream:
        stream.seek(start)
        at = start
        for line in stream:
            at += len(line)
            if not line.endswith(b"\n") or (end is not None and at > end):
                return
            yield line[:-1]


def unfinished(data: bytes) -> tuple[dict[str, list[bytes]], bool]:
    """The events of each cell without a line of its end, oldest first; and whether ended cells have changed since."""
    found: dict[str, list[bytes]] = {}
    has_late = False
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        kind, cell = event.kind_of(data[at : min(end, at + HEAD_BYTES)])
        if kind == "submitted":
            found[cell] = [data[at:end]]
        elif kind in ("cell", "cancelled"):
            found.pop(cell, None)
        elif kind == "late":
            has_late = True
        elif cell in found:
            found[cell].append(data[at:end])
        at = end + 1 if found else data.find(b"\n" + event.EVENT_PREFIX, end) + 1 or len(data)
    return found, has_late


def stopped(data: bytes) -> list[str]:
    """The ids of the last cells, as far back as they ended with their server."""
    found: list[str] = []
    end = data.rfind(b"\n")
    while end > 0:
        start = data.rfind(b"\n", 0, end) + 1
        kind, cell = event.kind_of(head := data[start : min(end, start + HEAD_BYTES)])
        if kind == "cell":
            if _STOPPED.match(head) is None:
                break
            found.append(cell)
        end = start - 1
    return found[::-1]


def requests(data: bytes, unfinished: Iterable[bytes] = ()) -> dict[str, str]:
    """The last cells that began for HTTP requests of these ids: a balancer repeats a request at once. `unfinished`: the
    lines of those that never ended, wherever they are."""
    recent = data[data.rfind(b"\n", 0, -REQUESTS_BYTES) + 1 :] if len(data) > REQUESTS_BYTES else data
    recent = b"\n".join((*unfinished, recent))
    if b'", "request": "' not in recent:
        return {}
    return {found[3].decode(): (found[1] or found[2]).decode() for found in _REQUEST.finditer(recent)}


def find(file: Path, cell: str) -> tuple[bytes | None, list[bytes]]:
    """The line of a cell, if it has ended, and its events that the line does not have. Raises `OSError`."""
    events: list[bytes] = []
    for data in _from_end(file):
        ended = _end_of(data, cell)
        events[:0] = _events(data, 0 if ended is None else ended[1], cell)
        if ended is not None:
            return data[ended[0] : ended[1]], events
    return None, events


def _from_end(file: Path) -> Iterator[bytes]:
    """The file in pieces of whole lines, the last one first. Only the last may lack its newline."""
    try:
        stream = open_own(file)
    except FileNotFoundError:
        return
    with stream:
        at, rest = stream.seek(0, os.SEEK_END), b""
        first = max(0, at - SEARCHED_BYTES)
        while at > first:
            end, at = at, max(first, at - PIECE_BYTES)
            stream.seek(at)
            data = stream.read(end - at) + rest
            begin = (data.find(b"\n") + 1 or len(data)) if at else 0
            rest = data[:begin]
            yield data[begin:]


def _events(data: bytes, at: int, cell: str) -> Iterator[bytes]:
    """The events of a cell from there on."""
    wanted = b'", "c": "%b"' % cell.encode()
    at = data.find(wanted, at)
    while at >= 0:
        start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        if end < 0:
            break
        if event.kind_of(line := data[start:end])[1] == cell:
            yield line
        at = data.find(wanted, end)


def _end_of(data: bytes, cell: str) -> tuple[int, int] | None:
    """The position of the newest line of an ended cell. A guest can print any id, but not at the beginning of a
    line."""
    wanted = b'"execution_id": "%b"' % cell.encode()
    before = len(data)
    while (at := data.rfind(wanted, 0, before)) >= 0:
        start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        end = len(data) if end < 0 else end
        line = data[start:end]
        if event.kind_of(line) == ("cell", cell) or _is_old(line, cell):
            return start, end
        before = start
    return None


def _is_old(line: bytes, cell: str) -> bool:
    """True for a cell of an older version, which has no checksum."""
    if event.kind_of(line)[0] or not line.startswith(b'{"cell_type"'):
        return False
    facts = as_dict(as_dict(event.parsed(line).get("metadata")).get("kernelmcp"))
    return facts.get("execution_id") == cell
