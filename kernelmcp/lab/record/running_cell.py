"""The outputs of a cell, written into its shared cell as its events arrive, within the limits of the transcript."""

from dataclasses import dataclass, field
from typing import Any

from kernelmcp.cells.event import Op
from kernelmcp.cells.line import MAX_CELL_BYTES
from kernelmcp.lab.record import outputs
from kernelmcp.lab.record.shared_cells import change_end, shared_output

# Appending to a shared list takes longer the longer it is. Lab shows fifty outputs until one asks for more.
MAX_OUTPUTS = 1000
# A longer line is no progress bar, and each change of it would go through all of it.
MAX_LINE_CHARS = 10_000


@dataclass(slots=True)
class RunningCell:
    """One execution's cell, and its remaining room. `ycell` is always that cell of the document.

    A cell that has ended may have a task that still runs.
    """

    source_chars: int
    room: int = MAX_CELL_BYTES
    count: int = 0
    """The number of outputs in the document."""
    displays: int = 0
    """The number of displays so far: the next one's number."""
    places: dict[int, int] = field(default_factory=dict[int, int])
    """Maps the number of a display to the position of its output."""
    line: str | None = None
    """The last line of the last output, if that is text. None if it is not known, and text goes to its end."""
    column: int = 0
    """Where in this line the next text goes."""
    redraws: int = MAX_CELL_BYTES
    """The remaining room for outputs that are written again because an earlier one has changed."""
    lines: int = 0
    """The number of lines of events that it has."""
    lines_read: int = 0
    """The number of those that were read since the log was last read from its beginning."""

    @property
    def weight(self) -> int:
        """Its maximum size in the notebook: cleared outputs stay in the document's history for a while."""
        return self.source_chars + MAX_CELL_BYTES - self.room

    def feed(self, ycell: Any, ops: list[Op]) -> None:
        """Apply the next line of events, unless it was applied before the log was read again."""
        self.lines_read += 1
        if self.lines_read <= self.lines:
            return
        self.lines = self.lines_read
        youtputs = ycell["outputs"]
        if len(youtputs) != self.count:  # a person has cleared them
            self.places.clear()
        for op in ops:
            self._apply(youtputs, op)
        self.count = len(youtputs)

    def _apply(self, youtputs: Any, op: Op) -> None:
        match op:
            case ["text", name, str() as text]:
                self._text(youtputs, outputs.stream(name, text[: max(0, self.room)]))
            case ["show", *_] if self.room <= 0 or len(youtputs) >= MAX_OUTPUTS:
                self.displays += 1
            case ["show", "display_data" | "execute_result" as kind, data, metadata, _]:
                self._show(youtputs, outputs.display(kind, {"data": data, "metadata": metadata}))
            case ["change", int() as number, data, metadata] if self.room > 0 and number in self.places:
                self._change(youtputs, number, outputs.display("display_data", {"data": data, "metadata": metadata}))
            case ["error", name, value, str() as traceback]:
                self._add(youtputs, outputs.error(name, value, traceback))
            case ["clear"]:
                youtputs.clear()
                self.places.clear()
                self.displays = 0
            case _:  # of a later version, or about what is not shown
                pass

    def _text(self, youtputs: Any, output: dict[str, Any]) -> None:
        text = output["text"]
        last = youtputs[len(youtputs) - 1] if len(youtputs) else None
        if last is not None and (last.get("output_type"), last.get("name")) == ("stream", output["name"]):
            self._continue(last["text"], text)
        else:
            output["text"] = self._overprinted("", 0, text)
            if not output["text"] or not self._append(youtputs, output):
                self.line = None  # the last output is another one
                return
        self.room -= len(text)

    def _continue(self, shared: Any, text: str) -> None:
        line = str(shared).rpartition("\n")[2] if self.line is None else self.line
        new = self._overprinted(line, len(line) if self.line is None else self.column, text)
        change_end(shared, line, new)

    def _overprinted(self, line: str, at: int, text: str) -> str:
        """As a terminal shows it: a tab that is open does not move back by itself. Too long a line only grows."""
        if len(line) <= MAX_LINE_CHARS:
            shown, self.column = outputs.overprinted(line, at, text)
            self.line = shown.rpartition("\n")[2]
        else:
            shown = line + text
            self.line = shown.rpartition("\n")[2]
            self.column = len(self.line)
        return shown

    def _show(self, youtputs: Any, output: dict[str, Any] | None) -> None:
        if self._add(youtputs, output):
            self.places[self.displays] = len(youtputs) - 1
        self.displays += 1

    def _change(self, youtputs: Any, number: int, new: dict[str, Any] | None) -> None:
        """Update a display. Each update takes room: one message may change a hundred of them."""
        at = self.places.get(number)
        if at is None or new is None or not self._may_redraw(youtputs, at) or not self._take(new):
            return
        changed = youtputs[at].to_py() | {"data": new["data"], "metadata": new["metadata"]}
        rest = [youtputs[later].to_py() for later in range(at + 1, len(youtputs))]
        del youtputs[at:]  # with the later ones: a tab adds whatever is new at its end
        youtputs.extend([shared_output(output) for output in [changed, *rest]])

    def _may_redraw(self, youtputs: Any, at: int) -> bool:
        """Whether there is room to write again what comes after an output. Else its change is shown when the cell has
        ended."""
        later = range(at + 1, len(youtputs)) if self.redraws else ()
        self.redraws = max(0, self.redraws - sum(outputs.weight(youtputs[each].to_py()) or 0 for each in later))
        return self.redraws > 0 or at == len(youtputs) - 1

    def _add(self, youtputs: Any, output: dict[str, Any] | None) -> bool:
        return output is not None and self._take(output) and self._append(youtputs, output)

    def _take(self, output: dict[str, Any]) -> bool:
        """Reserve room for it; returns whether there was enough."""
        weight = outputs.weight(output)
        if weight is None or weight > self.room:
            return False
        self.room -= weight
        return True

    def _append(self, youtputs: Any, output: dict[str, Any]) -> bool:
        if len(youtputs) >= MAX_OUTPUTS:
            return False
        youtputs.append(shared_output(output))
        return True
