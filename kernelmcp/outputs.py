"""What one execution put out: two text streams, a result, an error and displayed objects, as iopub delivers them.

Text is kept whole up to a cap, on disk beyond 1 MiB, so that a cell with 20 MB of output costs no memory; displayed
objects are kept up to a count and a size. What is dropped is counted. Nothing here can fail on hostile content: lone
surrogates are replaced, wrong types become text. Above: executions, results, transcript. Below: nothing.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from kernelmcp.config import Policy

# Up to here a stream stays in memory; a result never shows more than a few thousand characters of it.
IN_MEMORY_BYTES = 1024 * 1024
# Alternating prints to stdout and stderr make one segment each; the transcript needs no more order than this.
MAX_SEGMENTS = 10_000
UTF8_MAX_BYTES = 4

StreamName = Literal["stdout", "stderr"]
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean(text: Any) -> str:
    """Text that UTF-8 can carry: a lone surrogate becomes U+FFFD."""
    text = text if isinstance(text, str) else str(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_json(value: Any) -> Any:
    """A JSON value with every string cleaned."""
    match value:
        case str():
            return clean(value)
        case list():
            return [clean_json(item) for item in cast("list[Any]", value)]
        case dict():
            return {clean(key): clean_json(item) for key, item in cast("dict[Any, Any]", value).items()}
        case _:
            return value


def without_colour(text: str) -> str:
    return _ANSI.sub("", text)


class Spool:
    """Append-only text, in memory at first, then in an anonymous file; knows its length in characters."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None
        self.size: int = 0
        """Bytes kept."""
        self.chars: int = 0
        """Characters kept."""
        self.dropped_chars = 0

    @property
    def total_chars(self) -> int:
        return self.chars + self.dropped_chars

    def append(self, text: str) -> int:
        """Keep what fits; returns how many bytes were kept."""
        data = text.encode()
        room = self._max_bytes - self.size
        if len(data) > room:
            kept = data[:room].decode("utf-8", "ignore")
            self.dropped_chars += len(text) - len(kept)
            text, data = kept, kept.encode()
        if not data:
            return 0
        if self._file is None:
            # Closed in close(): it lives as long as the execution's record.
            self._file = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
        self._file.seek(self.size)
        self._file.write(data)
        self.size += len(data)
        self.chars += len(text)
        return len(data)

    def read(self, start: int = 0, end: int | None = None) -> str:
        """The text between two byte positions; a character that is cut through is left out."""
        if self._file is None:
            return ""
        self._file.seek(start)
        return self._file.read((self.size if end is None else min(end, self.size)) - start).decode("utf-8", "ignore")

    def head(self, chars: int) -> str:
        return self.read(0, chars * UTF8_MAX_BYTES)[:chars]

    def tail(self, chars: int) -> str:
        return self.read(max(0, self.size - chars * UTF8_MAX_BYTES))[-chars:] if chars else ""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.size = self.chars = 0


@dataclass(slots=True)
class Display:
    """One displayed object: a mime bundle."""

    kind: Literal["display_data", "execute_result"]
    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None
    size: int


@dataclass(slots=True)
class Segment:
    """A run of one stream, in bytes of its spool, or (`name` is None) the display at index `start`."""

    name: StreamName | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GuestError:
    name: str
    value: str
    traceback: str


@dataclass
class Outputs:
    """The record of one execution's outputs. `feed` is called for each iopub message, in order."""

    policy: Policy
    on_text: Callable[[str], None] | None = None
    """Told about each piece of new text; for progress."""
    update_elsewhere: Callable[[str, dict[str, Any], dict[str, Any]], None] | None = None
    """Told about an update of a display that this execution did not make."""
    displays: list[Display] = field(default_factory=list[Display])
    dropped_displays: int = 0
    error: GuestError | None = None
    result: str | None = None
    execution_count: int | None = None
    segments: list[Segment] = field(default_factory=list[Segment])
    _clear_next: bool = False
    _held: int = 0

    def __post_init__(self) -> None:
        self.stdout = Spool(self.policy.stdout_max_bytes)
        self.stderr = Spool(self.policy.stderr_max_bytes)

    def spool(self, name: StreamName) -> Spool:
        return self.stdout if name == "stdout" else self.stderr

    def feed(self, kind: str, content: dict[str, Any]) -> None:
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            if self._clear_next and kind in ("stream", "display_data", "execute_result", "error"):
                self._clear()
            handler(self, content)

    def _stream(self, content: dict[str, Any]) -> None:
        name: StreamName = "stderr" if content.get("name") == "stderr" else "stdout"
        text = clean(content.get("text", ""))
        spool = self.spool(name)
        start = spool.size
        if kept := spool.append(text):
            last = self.segments[-1] if self.segments else None
            if last is not None and last.name == name:
                last.end = start + kept
            elif len(self.segments) < MAX_SEGMENTS:
                self.segments.append(Segment(name, start, start + kept))
        if self.on_text is not None:
            self.on_text(text)

    def _display_data(self, content: dict[str, Any]) -> None:
        self._add_display("display_data", content)

    def _execute_result(self, content: dict[str, Any]) -> None:
        text = _as_dict(content.get("data")).get("text/plain")
        self.result = None if text is None else clean(joined(text))
        self._add_display("execute_result", content)

    def _add_display(self, kind: Literal["display_data", "execute_result"], content: dict[str, Any]) -> None:
        data = clean_json(_as_dict(content.get("data")))
        size = sum(len(value) if isinstance(value, str) else len(json.dumps(value)) for value in data.values())
        if len(self.displays) >= self.policy.max_outputs or self._held + size > self.policy.outputs_max_bytes:
            self.dropped_displays += 1
            return
        self._held += size
        display_id = _as_dict(content.get("transient")).get("display_id")
        metadata = clean_json(_as_dict(content.get("metadata")))
        self.segments.append(Segment(None, len(self.displays), 0))
        self.displays.append(Display(kind, data, metadata, str(display_id) if display_id else None, size))

    def _update_display_data(self, content: dict[str, Any]) -> None:
        display_id = _as_dict(content.get("transient")).get("display_id")
        data, metadata = clean_json(_as_dict(content.get("data"))), clean_json(_as_dict(content.get("metadata")))
        if display_id and not self.update_display(str(display_id), data, metadata) and self.update_elsewhere:
            self.update_elsewhere(str(display_id), data, metadata)

    def update_display(self, display_id: str, data: dict[str, Any], metadata: dict[str, Any]) -> bool:
        found = False
        for display in self.displays:
            if display.display_id == display_id:
                display.data, display.metadata, found = data, metadata, True
        return found

    def _error(self, content: dict[str, Any]) -> None:
        self.error = guest_error(content)

    def _clear_output(self, content: dict[str, Any]) -> None:
        if content.get("wait"):
            self._clear_next = True
        else:
            self._clear()

    def _clear(self) -> None:
        """As a notebook does: what the cell showed so far is gone."""
        self._clear_next = False
        self.stdout.close()
        self.stderr.close()
        self.displays.clear()
        self.segments.clear()
        self._held = 0

    _HANDLERS: ClassVar[dict[str, Callable[["Outputs", dict[str, Any]], None]]] = {
        "stream": _stream,
        "display_data": _display_data,
        "execute_result": _execute_result,
        "update_display_data": _update_display_data,
        "error": _error,
        "clear_output": _clear_output,
    }

    def rich_displays(self) -> Iterator[tuple[int, Display]]:
        """Displayed objects with their numbers; a result that is only text is in `result` already."""
        for number, display in enumerate(self.displays):
            if display.kind == "display_data" or display.data.keys() - {"text/plain"}:
                yield number, display

    def close(self) -> None:
        self.stdout.close()
        self.stderr.close()
        self.displays.clear()
        self.segments.clear()


def guest_error(content: dict[str, Any]) -> GuestError:
    traceback = content.get("traceback")
    lines = [clean(line) for line in cast("list[Any]", traceback)] if isinstance(traceback, list) else []
    return GuestError(
        clean(content.get("ename", "Error")), clean(content.get("evalue", "")), without_colour("\n".join(lines))
    )


def _as_dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def joined(value: Any) -> str:
    """A mime bundle's text may be a list of lines."""
    return "".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
