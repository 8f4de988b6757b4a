"""What a view reads of an execution: its outputs in their order, from a position on, as soon as there are any.

The addresses are `kernelmcp://executions/ID/view?since=CURSOR&wait=SECONDS` for a page of outputs,
`kernelmcp://executions/ID/raw?n=N&type=MIME` for one that is too large for a page, and, as long as the id is unknown,
`kernelmcp://views/latest?code=MARK`: the newest execution of this code among the caller's own, with `live=1` only one
that runs. A page has at most `MAX_PAGE_BYTES`.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import msgspec

from kernelmcp.cells.cell import Display, Outputs, Segment, StreamName
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.results.links import changed_files
from kernelmcp.mcp_server.results.view import Cursor, View
from kernelmcp.output.sanitize import REPORT_SIGN, cut_middle, joined
from kernelmcp.output.spool import UTF8_MAX_BYTES

MAX_WAIT_SECONDS = 20.0
# Hosts refuse messages over 1 MB.
MAX_PAGE_BYTES = 900_000
# All values of displayed objects on a page, as they are in a message; longer ones are read alone.
MAX_VALUES_BYTES = 500_000
MAX_TEXT_CHARS = 100_000
MIN_TEXT_CHARS = 10_000
MAX_DISPLAYS = 200
# Runs of text between which streams alternate.
MAX_RUNS = 500
MAX_ERROR_CHARS = 20_000
MAX_FILES = 50
# A value that is read alone.
MAX_RAW_BYTES = 24 * 1024 * 1024
TABLE = "application/vnd.dataresource+json"
CHARTS = ("application/vnd.plotly.v1+json", "application/vnd.vegalite.v6+json", "application/vnd.vegalite.v5+json")
# The types that a view shows, the best one first.
SHOWN = (
    *CHARTS,
    TABLE,
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "text/html",
    "text/markdown",
    "text/latex",
    "application/json",
    "text/plain",
)
# What is shown at once, before a chart is drawn.
STILL = ("image/svg+xml", "image/png", "text/html", "text/plain")
_ADDRESS = re.compile(
    r"kernelmcp://(?:executions/(?P<id>[A-Za-z0-9_-]{1,100})/(?P<part>view|raw)|views/latest)\?(?P<query>.{0,300})"
)
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,3})?")


@dataclass(frozen=True)
class Asked:
    """What an address asks for."""

    execution_id: str | None
    """None: the newest execution of `code`."""
    code: str
    is_live: bool
    is_raw: bool
    since: str | None
    wait_seconds: float
    number: int
    mime: str

    @classmethod
    def parse(cls, uri: str) -> "Asked | None":
        """None if it is no address of a view."""
        if (found := _ADDRESS.fullmatch(uri)) is None:
            return None
        query = {name: values[0] for name, values in parse_qs(found["query"]).items()}
        return cls(
            found["id"],
            query.get("code", ""),
            query.get("live") == "1",
            found["part"] == "raw",
            query.get("since"),
            min(_number(query.get("wait")), MAX_WAIT_SECONDS),
            int(_number(query.get("n"))),
            query.get("type", ""),
        )


def is_page(uri: object) -> bool:
    """True for the address of a page: its answer is bounded, and may come after a while."""
    return isinstance(uri, str) and (found := _ADDRESS.fullmatch(uri)) is not None and found["part"] != "raw"


def may_wait(uri: object) -> bool:
    """True for the address of a page whose answer may be held until there are outputs."""
    asked = Asked.parse(uri) if isinstance(uri, str) else None
    return asked is not None and not asked.is_raw and asked.wait_seconds > 0


def _number(text: str | None) -> float:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else 0.0


def mark(code: str) -> str:
    """Identifies a client's code among its caller's own: CRC-32 and length in bytes, which any page can compute."""
    data = code.encode(errors="replace")
    return f"{zlib.crc32(data):08x}-{len(data)}"


def page(execution: Execution, since: Cursor) -> str:
    """The outputs after a position, as JSON."""
    chars = MAX_TEXT_CHARS
    while True:
        encoded = msgspec.json.encode(_page(execution, since, chars)).decode()
        # A control character takes seven bytes, and the setting of a limit may have any value.
        if _bytes_in_message(encoded) <= MAX_PAGE_BYTES or chars <= MIN_TEXT_CHARS:
            return encoded
        chars //= 2


def _bytes_in_message(encoded: str) -> int:
    """The size of JSON in a message, where it is a text."""
    return len(msgspec.json.encode(encoded))


def _page(execution: Execution, since: Cursor, max_chars: int) -> dict[str, Any]:
    outputs, view = execution.outputs, View(execution, since)
    is_beyond = since.stdout > outputs.stdout.size or since.stderr > outputs.stderr.size
    is_same = since.clears == outputs.clears and since == since.within(outputs)
    is_whole = is_beyond or not is_same or since == Cursor(clears=since.clears)
    start = Cursor() if is_whole else since
    error = execution.error
    return {
        "execution_id": execution.id,
        "session_id": execution.session_id,
        "execution_count": outputs.execution_count,
        "status": execution.status,
        "waits": execution.started is None and execution.status == "running",
        "time_ms": round(execution.execution_time_ms, 1),
        "cursor": str(view.end),
        "since": "" if is_whole else str(since),
        "parts": _parts(outputs, start, max_chars),
        "displays": len(outputs.displays),
        "dropped": outputs.dropped_displays,
        "chars_dropped": outputs.stdout.dropped_chars + outputs.stderr.dropped_chars,
        "error": error
        and {
            "name": error.name,
            "value": cut_middle(error.value, MAX_ERROR_CHARS),
            "traceback": cut_middle(error.traceback, MAX_ERROR_CHARS),
        },
        "files": [{"path": file["path"], "size": file["size"], "uri": file["uri"]} for file in _files(execution)],
        "lost": execution.state_lost,
        "restored": execution.restored_at is not None and not execution.state_lost,
    }


def _files(execution: Execution) -> Any:
    return changed_files(execution, None)[:MAX_FILES]


def _parts(outputs: Outputs, since: Cursor, max_chars: int) -> list[dict[str, Any]]:
    """The new outputs in their order. Of text, the newest is kept, and the first says if there was more."""
    room, runs = MAX_VALUES_BYTES, MAX_RUNS
    displays = [number for number, each in enumerate(outputs.displays) if each.revision > since.revision]
    shown: dict[int, dict[str, Any]] = {}
    for number in displays[:MAX_DISPLAYS]:
        shown[number], used = _display(number, outputs.displays[number], room)
        room -= used
    parts: list[dict[str, Any]] = []
    first: dict[str, Any] = {}
    for segment in reversed(_segments(outputs)):
        if segment.name is None:
            parts += [shown[segment.start]] if segment.start in shown else []
        elif max_chars <= 0 or not runs:
            if _start(segment, since) < segment.end:
                first["cut"] = True
        elif (part := _text(outputs, segment.name, segment, since, max_chars)) is not None:
            max_chars -= len(part["text"])
            runs -= 1
            first = part
            parts.append(part)
    return parts[::-1]


def _segments(outputs: Outputs) -> list[Segment]:
    """With the text that came after the last possible one."""
    placed = {segment.name: segment.end for segment in outputs.segments}
    rest = [
        Segment("stdout", placed.get("stdout", 0), outputs.stdout.size),
        Segment("stderr", placed.get("stderr", 0), outputs.stderr.size),
    ]
    return [*outputs.segments, *(segment for segment in rest if segment.start < segment.end)]


def _start(segment: Segment, since: Cursor) -> int:
    return max(segment.start, since.stdout if segment.name == "stdout" else since.stderr)


def _text(outputs: Outputs, name: StreamName, segment: Segment, since: Cursor, max_chars: int) -> dict[str, Any] | None:
    """A run of a stream, from the position on; None if it has nothing new."""
    start = _start(segment, since)
    if start >= segment.end:
        return None
    first = max(start, segment.end - UTF8_MAX_BYTES * max_chars)
    text = outputs.spool(name).read(first, segment.end)
    is_cut = first > start or len(text) > max_chars
    shown = text[-max_chars:].replace(REPORT_SIGN, "") if name == "stderr" else text[-max_chars:]
    return {"stream": name, "text": shown, **({"cut": True} if is_cut else {})}


def _display(number: int, display: Display, room: int) -> tuple[dict[str, Any], int]:
    """A displayed object, and the size of its values: its best form, and what is shown before that is drawn. A value
    without room is read alone."""
    data = {**display.data, **display.for_views}
    best = next((kind for kind in SHOWN if kind in data), "")
    still = next((kind for kind in STILL if kind in data), "") if best in CHARTS else ""
    sent: dict[str, Any] = {}
    used = 0
    for kind in dict.fromkeys((still, best, "text/plain")):
        if kind in data:
            value = value_of(data[kind], kind)
            encoded = msgspec.json.encode(value)
            size = len(encoded) if len(encoded) > room else _bytes_in_message(encoded.decode())
            if used + size <= room:
                sent[kind] = value
                used += size
    found = {"display": number, "best": best, "still": still, "data": sent}
    return found, used


def value_of(value: Any, kind: str) -> Any:
    """A value of a mime bundle; text is one string."""
    return joined(value) if kind.startswith(("text/", "image/")) else value


def raw(outputs: Outputs, number: int, kind: str) -> str | None:
    """A single value as JSON; None if there is none, or it is too large."""
    if number >= len(outputs.displays):
        return None
    data = {**outputs.displays[number].data, **outputs.displays[number].for_views}
    encoded = msgspec.json.encode(value_of(data[kind], kind)) if kind in data else b""
    return encoded.decode() if 0 < len(encoded) <= MAX_RAW_BYTES else None
