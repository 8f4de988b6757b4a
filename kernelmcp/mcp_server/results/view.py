"""The part of an execution's outputs that a result shows: all of it, or the part since the last answer."""

import re
import zlib
from dataclasses import dataclass, field, replace

from kernelmcp.cells.cell import Display, Outputs, StreamName
from kernelmcp.cells.line import FIRST_REVISION
from kernelmcp.errors import InvalidArgument
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.results.host_folders import HostFolders
from kernelmcp.mcp_server.results.links import uri
from kernelmcp.mcp_server.results.truncation import cut_spool, cut_text
from kernelmcp.mcp_server.schemas import Truncation
from kernelmcp.output.sanitize import REPORT_SIGN, counted, without_colour

# Bytes of a stream to search for progress lines or new text; of longer ones only the ends are read.
MAX_READ_BYTES = 1 << 20
# The output of earlier cells' tasks gets this fraction of a result's budget.
BACKGROUND_SHARE = 8
# A line's states between carriage returns that are looked at, the last ones: they may all be blank.
MAX_STATES = 5000
# Lines and escape sequences of a text in which the cursor's moves up are followed.
MAX_MOVES = 20_000
_UP = re.compile(r"\x1b\[(\d{0,3})A")
_ERASE = re.compile(r"\x1b\[[0-2]?K")
_CURSOR = re.compile("-".join(["([0-9]{1,15})"] * 4) + "(?:-([0-9a-f]{8}))?")


@dataclass(frozen=True)
class Cursor:
    """A position in the outputs: bytes of stdout and stderr, how often a display was shown or updated, and how often
    all were cleared."""

    stdout: int = 0
    stderr: int = 0
    revision: int = 0
    clears: int = 0
    mark: str = field(default="", compare=False)
    """Of the execution; empty in cursors of earlier versions."""

    @classmethod
    def parse(cls, text: str | None, execution_id: str) -> "Cursor":
        """Raises InvalidArgument. None is the beginning, and so is a position in another execution's outputs."""
        if text is None:
            return cls()
        if (match := _CURSOR.fullmatch(text)) is None:
            raise InvalidArgument(
                f"{text[:100]!r} is not a position in an output",
                "Use the cursor of the last result, or omit it.",
                argument="since",
            )
        *numbers, mark = match.groups(default="")
        return cls(*map(int, numbers), mark=mark) if mark in ("", _mark(execution_id)) else cls()

    def within(self, outputs: Outputs) -> "Cursor":
        """The same position in these outputs: if they are a record that lacks text, and the position is one of the
        running cell, the beginning of both streams, whose bytes are others."""
        is_of_record = self.revision < FIRST_REVISION <= outputs.revision
        lacks = any(outputs.noted or ()) or outputs.dropped_displays or any(one.is_cut for one in outputs.segments)
        return replace(self, stdout=0, stderr=0) if is_of_record and lacks else self

    def __str__(self) -> str:
        return f"{self.stdout}-{self.stderr}-{self.revision}-{self.clears}" + (f"-{self.mark}" if self.mark else "")


def _mark(execution_id: str) -> str:
    return f"{zlib.crc32(execution_id.encode()):08x}"


@dataclass(frozen=True)
class View:
    execution: Execution
    since: Cursor = Cursor()
    host: HostFolders | None = None
    about_missing: str | None = None
    """A note about a file that was not found."""

    @property
    def host_path(self) -> str | None:
        """The workspace's path on this machine; None for clients elsewhere."""
        return self.host.workspace if self.host else None

    @property
    def end(self) -> Cursor:
        """The start of the next view."""
        outputs = self.execution.outputs
        sizes = outputs.stdout.size, outputs.stderr.size
        return Cursor(*sizes, outputs.revision, outputs.clears, _mark(self.execution.id))

    def chars(self, name: StreamName) -> int:
        """Approximate number of characters of a stream to show."""
        spool = self.execution.outputs.spool(name)
        return max(0, spool.size - start) if (start := self._start(name)) else spool.total_chars

    def stream(self, name: StreamName, budget: int, truncated: dict[str, Truncation]) -> tuple[str, str]:
        """A stream truncated to the budget: unchanged, and as a terminal would show it, for the text. Cuts of the first
        are noted in `truncated`."""
        spool, link, start = self.execution.outputs.spool(name), uri(self.execution, name), self._start(name)
        if start:
            fresh = spool.read(first := max(start, spool.size - MAX_READ_BYTES))

            def cut(text: str, truncated: dict[str, Truncation]) -> str:
                kept = first - start + len(text)
                total = kept + spool.dropped_chars
                return cut_text(text, total, budget, link, name, truncated, kept=kept, whole=False)

            return cut(fresh, truncated), cut(without_overwritten(fresh), {})
        text = cut_spool(spool, budget, link, name, truncated)
        if not spool.has_returns:
            return text, text
        if spool.size > MAX_READ_BYTES or spool.dropped_chars:
            return text, without_overwritten(text)
        shown = without_overwritten(spool.read())
        return text, cut_text(shown, len(shown), budget, link, name, {}, whole=False)

    def background(self, budget: int) -> str | None:
        """The end of the output of earlier cells' tasks since then, in a small share of the budget."""
        text = without_overwritten(self.execution.background or "").rstrip("\n")
        if (over := len(text) - budget // BACKGROUND_SHARE) > 0:
            text = f"[... {counted(over, 'character')} left out ...]\n{text[over:]}"
        return text or None

    def displays(self) -> list[tuple[int, Display]]:
        """The displayed objects to show, with their numbers: those shown or updated since then."""
        since = 0 if self._was_cleared else self.since.revision
        return [(number, each) for number, each in self.execution.outputs.rich_displays() if each.revision > since]

    @property
    def _was_cleared(self) -> bool:
        """True if the cell has cleared its output since then. Then everything is shown."""
        return self.since.clears != self.execution.outputs.clears

    def _start(self, name: StreamName) -> int:
        since = self.since.within(self.execution.outputs)
        start = since.stdout if name == "stdout" else since.stderr
        is_beyond = start > self.execution.outputs.spool(name).size
        return 0 if self._was_cleared or is_beyond else start


def without_overwritten(text: str) -> str:
    """Each line as its carriage returns leave it: for a progress bar, the last state."""
    if "\r" not in text:
        return text
    if _UP.search(text) and text.count("\n") + text.count("\x1b[") <= MAX_MOVES:
        return _after_moves(text)
    return "\n".join(_last_state(line) if "\r" in line else line for line in text.split("\n"))


def _after_moves(text: str) -> str:
    """The same where the cursor also moves up, as for bars below each other, but not to a report or beyond it."""
    rows: list[str] = []
    row = top = -1
    for line in text.split("\n"):
        row += 1
        if row == len(rows):
            rows.append("")
        parts = _UP.split(line)  # texts, and between them by how many rows the cursor moves
        for at in range(0, len(parts), 2):
            if at:
                rows_up = int(parts[at - 1] or 1) or 1
                if row - rows_up <= top:  # to what is above this text
                    rows.insert(top + 1, "")
                row = max(top + 1, row - rows_up)
            states = parts[at].split("\r")
            shown = [n for n, state in enumerate(states) if state and (without_colour(state) or _ERASE.search(state))]
            if shown:  # also one of blanks, which is how a bar is removed
                state = states[shown[-1]]
                goes_on = at and shown[-1] == 0 and not _ERASE.search(state)
                rows[row] = (rows[row] if goes_on else "") + _ERASE.sub("", state)
                top = row if REPORT_SIGN in state else top
    while len(rows) > row + 1 and not rows[-1].strip():
        rows.pop()
    return "\n".join(each if each.strip() else "" for each in rows)


def _last_state(line: str) -> str:
    for state in reversed(line.rsplit("\r", MAX_STATES)):
        if state and without_colour(state).strip():
            return state
    return ""
