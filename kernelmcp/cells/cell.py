"""The outputs of one cell, as its events make them: two text streams, a result, an error and displayed objects.

The same for a running cell, for one of the log, and for one that is shown elsewhere. `apply` decides nothing: the fold
has decided. Must not know messages, limits of displays, or the log's file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernelmcp.cells.event import Op
from kernelmcp.output.sanitize import as_dict
from kernelmcp.output.spool import Spool

# Alternating prints to stdout and stderr create one segment each; the transcript needs no finer order.
MAX_SEGMENTS = 10_000

StreamName = Literal["stdout", "stderr"]
DisplayKind = Literal["display_data", "execute_result"]


@dataclass(slots=True, eq=False)
class Display:
    """One displayed object: a mime bundle."""

    kind: DisplayKind
    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None
    weight: int
    """The memory that it takes, in bytes."""
    revision: int
    """That of its cell's outputs when it was shown or last updated."""
    number: int
    """Its index in its cell's displays."""
    for_views: dict[str, Any] = field(default_factory=dict[str, Any])
    """More forms by mime type, for views alone: they are in no result and no record."""


@dataclass(slots=True)
class Segment:
    """A run of one stream, in bytes of its spool, or (`name` is None) the display at index `start`."""

    name: StreamName | None
    start: int
    end: int
    is_cut: bool = False
    """True in a record if it ends with a note on the rest of the run."""


@dataclass(frozen=True, slots=True)
class GuestError:
    name: str
    value: str
    traceback: str


@dataclass(eq=False)
class Outputs:
    """The outputs of one cell so far."""

    max_stream_bytes: tuple[int, int] = (1 << 30, 1 << 30)
    """Limits for stdout and stderr."""
    folder: Path | None = None
    """Folder for streams that are too long for memory; if None, they stay in memory."""
    on_text: Callable[[str], None] | None = None
    """Called with each piece of new text, for progress notifications; for anything else, with none."""
    displays: list[Display] = field(default_factory=list[Display])
    segments: list[Segment] = field(default_factory=list[Segment])
    dropped_displays: int = 0
    """Displayed objects and updates of them that were dropped."""
    dropped_types: int = 0
    """Values of displayed objects that were dropped: too many, or the name is not a mime type."""
    error: GuestError | None = None
    result: str | None = None
    result_chars: int = 0
    """The length of the whole result; `result` is its beginning if the object was not kept."""
    result_number: int | None = None
    """The number of the display that `result` is the text of: the cell's last result, if it was kept."""
    execution_count: int | None = None
    clears: int = 0
    """How often the outputs were cleared."""
    revision: int = 0
    """How often a display was shown or updated."""
    held: int = 0
    """The memory of the displays, in bytes."""
    noted: tuple[int, int] | None = None
    """In a record, the bytes that were cut and the characters that were not kept, as its notes say."""

    def __post_init__(self) -> None:
        self.stdout = Spool(self.max_stream_bytes[0], self.folder)
        self.stderr = Spool(self.max_stream_bytes[1], self.folder)

    @property
    def memory_bytes(self) -> int:
        return self.held + self.stdout.memory_bytes + self.stderr.memory_bytes

    @property
    def disk_bytes(self) -> int:
        return self.stdout.size + self.stderr.size

    def spool(self, name: StreamName) -> Spool:
        return self.stdout if name == "stdout" else self.stderr

    def rich_displays(self) -> Iterator[tuple[int, Display]]:
        """Displayed objects with their numbers, but not the last result if it is only text: `result` has that."""
        for number, display in enumerate(self.displays):
            if number != self.result_number or display.data.keys() - {"text/plain"}:
                yield number, display

    # -- events -------------------------------------------------------------------------------------------------

    def apply(self, op: Op, weight: int = 0) -> None:
        """Apply one event. `weight` is the memory of its display, in bytes."""
        match op:
            case ["text", "stdout" | "stderr" as name, str() as text]:
                self._text(name, text)
            case ["show", "display_data" | "execute_result" as kind, data, metadata, display_id]:
                self.revision += 1
                number = len(self.displays)
                self._show(Display(kind, as_dict(data), as_dict(metadata), display_id, weight, self.revision, number))
            case ["change", int() as n, data, metadata] if 0 <= n < len(self.displays):
                self.revision += 1
                display = self.displays[n]
                self.held += weight - display.weight
                display.data, display.metadata, display.weight = as_dict(data), as_dict(metadata), weight
                display.revision = self.revision
            case ["clear"]:
                self._clear()
            case ["error", str() as name, str() as value, str() as traceback]:
                self.error = GuestError(name, value, traceback)
            case ["head", str() as text, int() as chars]:
                self.result, self.result_chars, self.result_number = text, chars, None
            case ["dropped", int() as displays, int() as types]:
                self.dropped_displays += displays
                self.dropped_types += types
            case _:  # of a later version
                pass
        if self.on_text is not None and op[0] != "text":
            self.on_text("")

    def _text(self, name: StreamName, text: str) -> None:
        spool = self.spool(name)
        start = spool.size
        if kept := spool.append(text):
            last = self.segments[-1] if self.segments else None
            if last is not None and last.name == name and not last.is_cut:
                last.end = start + kept
            elif len(self.segments) < MAX_SEGMENTS:
                self.segments.append(Segment(name, start, start + kept))
        if self.on_text is not None:
            self.on_text(text)

    def _show(self, display: Display) -> None:
        self.held += display.weight
        self.segments.append(Segment(None, len(self.displays), 0))
        if display.kind == "execute_result":
            self.result_number = len(self.displays)
            text = display.data.get("text/plain")
            # The same string: it takes no more memory.
            self.result = text if isinstance(text, str) else None
            self.result_chars = len(self.result or "")
        self.displays.append(display)

    def _clear(self) -> None:
        """Delete the cell's output so far, as a notebook does."""
        self.clears += 1
        self.stdout.clear()
        self.stderr.clear()
        self.displays.clear()
        self.segments.clear()
        self.result, self.result_chars, self.result_number = None, 0, None
        self.held = 0
        self.noted = self.noted and (0, 0)

    def close(self) -> None:
        """Free memory and disk."""
        self._clear()
        self.stdout.close()
        self.stderr.close()
