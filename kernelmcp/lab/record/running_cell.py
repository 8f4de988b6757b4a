"""The outputs of a running cell, written into its shared cell as they arrive, within the limits of the transcript."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kernelmcp.lab.record import outputs
from kernelmcp.lab.record.shared_cells import shared_output
from kernelmcp.notebook.cells import MAX_CELL_BYTES, MAX_TEXT_CHARS
from kernelmcp.output.sanitize import as_dict, clean

# Appending to a shared list takes longer the longer it is. Lab shows fifty outputs until one asks for more.
MAX_OUTPUTS = 1000


@dataclass(slots=True)
class RunningCell:
    """One execution's cell, and its remaining room. `ycell` is always that cell of the document."""

    cell: str
    """Its id."""
    source_chars: int
    room: int = MAX_CELL_BYTES
    left_out: int = 0
    """Number of omitted outputs."""
    clear_next: bool = False
    run: tuple[str, int] = ("", 0)
    """The stream of its last output, and that output's length."""
    displays: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Maps a display id to the positions of its outputs."""

    @property
    def weight(self) -> int:
        """Its maximum size in the notebook: cleared outputs stay in the document's history for a while."""
        return self.source_chars + MAX_CELL_BYTES - self.room

    def feed(self, ycell: Any, kind: str, content: dict[str, Any]) -> Iterable[str]:
        """Handle one output message. Returns the display ids that later messages may update here."""
        if kind == "clear_output":
            if content.get("wait"):
                self.clear_next = True
            else:
                self._clear(ycell)
            return ()
        if self.clear_next:
            self._clear(ycell)
        if kind == "stream":
            self._stream(ycell, content)
        elif kind == "error":
            self._add(ycell, outputs.error(content))
        elif kind in outputs.DISPLAYS:
            return self._display(ycell, kind, content)
        return ()

    def update(self, ycell: Any, display_id: str, content: dict[str, Any]) -> None:
        """Update every display with this id. Each takes room: a message may change a thousand of them."""
        youtputs = ycell["outputs"]
        new = outputs.display("display_data", content)
        for at in self.displays.get(display_id, ()):
            old = youtputs[at] if at < len(youtputs) else None  # a person may have cleared the outputs
            if old is None or as_dict(old.get("metadata")).get(outputs.DISPLAY_ID) != display_id:
                continue
            if new is None or not self._take(new):
                self.left_out += 1
                return
            youtputs[at] = shared_output(old.to_py() | {"data": new["data"], "metadata": new["metadata"]})

    def _stream(self, ycell: Any, content: dict[str, Any]) -> None:
        text = clean(content.get("text", ""))
        output = outputs.stream(content.get("name"), text)
        youtputs = ycell["outputs"]
        last = youtputs[len(youtputs) - 1] if len(youtputs) else None
        name, chars = self.run
        if last is None or name != output["name"] or last.get("output_type") != "stream" or last.get("name") != name:
            chars, last = 0, None
        kept = text[: max(0, min(MAX_TEXT_CHARS - chars, self.room))]
        if len(kept) < len(text):
            self.left_out += 1
        if not kept:
            return
        self.room -= len(kept)
        self.run = (output["name"], chars + len(kept))
        if last is None:
            self._append(youtputs, output | {"text": kept})
        else:
            shared = last["text"]
            shared += kept  # `last["text"] += kept` would assign the shared text again, which no tab shows

    def _display(self, ycell: Any, kind: str, content: dict[str, Any]) -> Iterable[str]:
        output = outputs.display(kind, content)
        if output is None:
            self.left_out += 1
        elif self._add(ycell, output) and (display_id := output["metadata"].get(outputs.DISPLAY_ID)):
            self.displays.setdefault(display_id, []).append(len(ycell["outputs"]) - 1)
            return (display_id,)
        return ()

    def _add(self, ycell: Any, output: dict[str, Any]) -> bool:
        if not self._take(output):
            self.left_out += 1
            return False
        self.run = ("", 0)
        return self._append(ycell["outputs"], output)

    def _take(self, output: dict[str, Any]) -> bool:
        """Reserve room for it; returns whether there was enough."""
        weight = outputs.weight(output)
        if weight is None or weight > self.room:
            return False
        self.room -= weight
        return True

    def _append(self, youtputs: Any, output: dict[str, Any]) -> bool:
        if len(youtputs) >= MAX_OUTPUTS:
            self.left_out += 1
            return False
        youtputs.append(shared_output(output))
        return True

    def _clear(self, ycell: Any) -> None:
        self.clear_next = False
        self.run = ("", 0)
        ycell["outputs"].clear()
        self.displays.clear()
