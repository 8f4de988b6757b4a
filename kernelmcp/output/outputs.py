"""The outputs of one execution: two text streams, a result, an error and displayed objects, as iopub delivers them.

Text is kept up to a limit, on disk beyond 1 MiB, so that a cell with 20 MB of output costs no memory; displayed objects
are kept up to a number and an amount of memory, including updates and metadata. Dropped items are counted. Nothing here
can fail on hostile content: lone surrogates are replaced, wrong types become text, values that are nested too deeply
are dropped.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from kernelmcp.config.models import Policy
from kernelmcp.output.sanitize import (
    as_dict,
    clean,
    clean_json,
    cut_middle,
    is_mime_type,
    joined,
    weight,
    without_colour,
)
from kernelmcp.output.spool import Spool

# Alternating prints to stdout and stderr create one segment each; the transcript needs no finer order.
MAX_SEGMENTS = 10_000
# The readable part of a result that is too large to be kept.
RESULT_HEAD_CHARS = 100_000
MAX_ERROR_NAME_CHARS = 200
MAX_ERROR_VALUE_CHARS = 20_000
MAX_TRACEBACK_CHARS = 200_000
# An update changes at most this many displays of an id, the newest ones, so that its cost is bounded.
MAX_DISPLAYS_PER_ID = 100
MAX_DISPLAY_ID_CHARS = 200
# Number of help texts of one cell, and the length of each.
MAX_PAGES = 10
MAX_PAGE_CHARS = 100_000
# Limit for the mime types of one displayed object. A plotting library sends five.
MAX_MIME_TYPES = 32

StreamName = Literal["stdout", "stderr"]


@dataclass(slots=True, eq=False)
class Display:
    """One displayed object: a mime bundle."""

    kind: Literal["display_data", "execute_result"]
    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None
    weight: int
    revision: int
    """That of its execution's outputs when it was shown or last updated."""


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


class DisplayIds:
    """The displays of a session by display id: any of its cells may update them."""

    def __init__(self) -> None:
        self._displays: dict[str, list[tuple[Outputs, Display]]] = {}

    def add(self, display_id: str, owner: "Outputs", display: Display) -> None:
        known = self._displays.setdefault(display_id, [])
        known.append((owner, display))
        del known[:-MAX_DISPLAYS_PER_ID]

    def discard(self, owner: "Outputs") -> None:
        """Forget the displays of one execution."""
        for display_id in {display.display_id for display in owner.displays if display.display_id}:
            others = [entry for entry in self._displays.get(display_id, []) if entry[0] is not owner]
            if others:
                self._displays[display_id] = others
            else:
                self._displays.pop(display_id, None)

    def find(self, display_id: str) -> list[tuple["Outputs", Display]]:
        return self._displays.get(display_id, [])


@dataclass(eq=False)
class Outputs:
    """The record of one execution's outputs. `feed` is called for each iopub message, in order."""

    policy: Policy
    folder: Path | None = None
    """Folder for streams that are too long for memory; if None, they stay in memory."""
    display_ids: DisplayIds = field(default_factory=DisplayIds)
    on_text: Callable[[str], None] | None = None
    """Called with each piece of new text, for progress notifications."""
    displays: list[Display] = field(default_factory=list[Display])
    dropped_displays: int = 0
    """Displayed objects and updates of them that were dropped."""
    dropped_types: int = 0
    """Values of displayed objects that were dropped: too many, or the name is not a mime type."""
    error: GuestError | None = None
    result: str | None = None
    result_chars: int = 0
    """The length of the whole result; `result` is its beginning if the object was not kept."""
    execution_count: int | None = None
    segments: list[Segment] = field(default_factory=list[Segment])
    clears: int = 0
    """How often the outputs were cleared."""
    revision: int = 0
    """How often a display was shown or updated."""
    _clear_next: bool = False
    _held: int = 0

    def __post_init__(self) -> None:
        self.stdout = Spool(self.policy.stdout_max_bytes, self.folder)
        self.stderr = Spool(self.policy.stderr_max_bytes, self.folder)

    @property
    def memory_bytes(self) -> int:
        return self._held + self.stdout.memory_bytes + self.stderr.memory_bytes

    @property
    def disk_bytes(self) -> int:
        return self.stdout.size + self.stderr.size

    def spool(self, name: StreamName) -> Spool:
        return self.stdout if name == "stdout" else self.stderr

    def feed(self, kind: str, content: dict[str, Any]) -> None:
        if content.get("unread") and kind != "error":
            self.dropped_displays += 1
            return
        handler = self._HANDLERS.get(kind)
        if handler is not None:
            if self._clear_next and kind in ("stream", "display_data", "execute_result", "error"):
                self._clear()
            handler(self, content)

    def feed_pages(self, payload: Any) -> None:
        """Add the help texts (`name?`) of an execute_reply's payload as displayed objects: there is no pager here."""
        for item in cast("list[Any]", payload)[:MAX_PAGES] if isinstance(payload, list) else []:
            page = as_dict(item)
            text = as_dict(page.get("data")).get("text/plain")
            if page.get("source") == "page" and isinstance(text, str):
                self.feed("display_data", {"data": {"text/plain": without_colour(clean(text[:MAX_PAGE_CHARS]))}})

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
        display = self._add_display("execute_result", content)
        text = as_dict((display and display.data) or content.get("data")).get("text/plain")
        if text is None:
            self.result, self.result_chars = None, 0
            return
        whole = joined(text)
        self.result_chars = len(whole)
        # If the display was kept, this is the same string and takes no more memory; otherwise only its beginning is
        # kept.
        self.result = whole if display is not None else clean(whole[:RESULT_HEAD_CHARS])

    def _add_display(self, kind: Literal["display_data", "execute_result"], content: dict[str, Any]) -> Display | None:
        bundle = self._bundle(content)
        if bundle is None or len(self.displays) >= self.policy.max_outputs or not self._has_room(bundle[2]):
            self.dropped_displays += 1
            return None
        display_id = _display_id(content)
        self.revision += 1
        display = Display(kind, bundle[0], bundle[1], display_id or None, bundle[2], self.revision)
        self._held += display.weight
        self.segments.append(Segment(None, len(self.displays), 0))
        self.displays.append(display)
        if display_id:
            self.display_ids.add(display_id, self, display)
        return display

    def _bundle(self, content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], int] | None:
        """Data, metadata and the memory they take; None if they are nested too deeply, or no data is left."""
        given = as_dict(content.get("data"))
        named = {mime: value for mime, value in given.items() if is_mime_type(mime)}
        kept = {mime: named[mime] for mime in list(named)[:MAX_MIME_TYPES]}
        self.dropped_types += len(given) - len(kept)
        try:
            data, metadata = clean_json(kept), clean_json(as_dict(content.get("metadata")))
        except ValueError:
            return None
        if given and not kept:
            return None
        if isinstance(text := data.get("text/plain"), list):
            data["text/plain"] = joined(cast("list[Any]", text))
        return data, metadata, weight(data, metadata)

    def _has_room(self, more: int) -> bool:
        return self._held + more <= self.policy.outputs_max_bytes

    def _update_display_data(self, content: dict[str, Any]) -> None:
        found = self.display_ids.find(_display_id(content))
        bundle = self._bundle(content) if found else None
        for owner, display in found:
            if bundle is None or not self._replace(owner, display, *bundle):
                self.dropped_displays += 1

    def _replace(
        self, owner: "Outputs", display: Display, data: dict[str, Any], metadata: dict[str, Any], weight: int
    ) -> bool:
        """Update a display in place, if it fits. Its growth in an earlier cell counts against this one as well."""
        more = weight - display.weight
        if more > 0 and not (owner._has_room(more) and self._has_room(more)):
            return False
        owner._held += more
        if owner is not self:
            self._held += max(0, more)
        owner.revision += 1
        display.data, display.metadata, display.weight, display.revision = data, metadata, weight, owner.revision
        return True

    def _error(self, content: dict[str, Any]) -> None:
        self.error = guest_error(content)

    def _clear_output(self, content: dict[str, Any]) -> None:
        if content.get("wait"):
            self._clear_next = True
        else:
            self._clear()

    def _clear(self) -> None:
        """Delete the cell's output so far, as a notebook does."""
        self._clear_next = False
        self.clears += 1
        self.stdout.clear()
        self.stderr.clear()
        self.display_ids.discard(self)
        self.displays.clear()
        self.segments.clear()
        self.result, self.result_chars = None, 0
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
        """Displayed objects with their numbers, but not a result that is only text: `result` has that."""
        for number, display in enumerate(self.displays):
            if display.kind == "display_data" or display.data.keys() - {"text/plain"}:
                yield number, display

    def close(self) -> None:
        """Free memory and disk."""
        self._clear()
        self.stdout.close()
        self.stderr.close()


def _display_id(content: dict[str, Any]) -> str:
    """The display id; empty if it is not a string or too long, because it is kept as long as the session."""
    display_id: Any = as_dict(content.get("transient")).get("display_id")
    return clean(display_id) if isinstance(display_id, str) and len(display_id) <= MAX_DISPLAY_ID_CHARS else ""


def guest_error(content: dict[str, Any]) -> GuestError:
    """The error in an error message or an error reply; the middle of a very long text is cut out."""
    traceback = content.get("traceback")
    lines = cast("list[Any]", traceback) if isinstance(traceback, list) else []
    return GuestError(
        clean(content.get("ename", "Error"))[:MAX_ERROR_NAME_CHARS],
        cut_middle(clean(content.get("evalue", "")), MAX_ERROR_VALUE_CHARS),
        without_colour(cut_middle("\n".join(map(clean, lines)), MAX_TRACEBACK_CHARS)),
    )
