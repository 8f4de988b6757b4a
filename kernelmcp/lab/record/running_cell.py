"""The outputs of a cell, written into its shared cell as its events arrive, within the limits of the transcript."""

from dataclasses import dataclass, field
from typing import Any

from kernelmcp.cells.event import Op
from kernelmcp.cells.line import MAX_CELL_BYTES
from kernelmcp.lab.record import outputs
from kernelmcp.lab.record.shared_cells import shared_output

# Appending to a shared list takes longer the longer it is. Lab shows fifty outputs until one asks for more.
MAX_OUTPUTS = 1000


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
            shared = last["text"]
            shared += text  # `last["text"] += text` would assign the shared text again, which no tab shows
        elif not text or not self._append(youtputs, output):
            return
        self.room -= len(text)

    def _show(self, youtputs: Any, output: dict[str, Any] | None) -> None:
        if self._add(youtputs, output):
            self.places[self.displays] = len(youtputs) - 1
        self.displays += 1

    def _change(self, youtputs: Any, number: int, new: dict[str, Any] | None) -> None:
        """Update a display. Each update takes room: one message may change a hundred of them."""
        at = self.places.get(number)
        if at is not None and new is not None and self._take(new):
            youtputs[at] = shared_output(youtputs[at].to_py() | {"data": new["data"], "metadata": new["metadata"]})

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
