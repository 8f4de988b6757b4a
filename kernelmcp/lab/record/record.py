"""The shared notebook of one session: the model's executions become its cells, while persons edit it.

Only shared documents show a change in an open tab without a dialog and without losing what a person types
(docs/lab.md). Every method is called within one transaction of the document, in the event loop. A cell's id is derived
from its execution's id, so that a cell appears once however often Lab was killed. Must not know kernels.
"""

import json
from collections import OrderedDict
from hashlib import sha256
from typing import Any, Literal

from kernelmcp.lab.record import outputs
from kernelmcp.lab.record.running_cell import RunningCell
from kernelmcp.lab.record.shared_cells import code_cell, is_draft, number, shared_output
from kernelmcp.notebook.cells import MAX_SOURCE_CHARS, cut, note
from kernelmcp.notebook.transcript import MAX_NOTEBOOK_BYTES, MIN_LINE_BYTES, SHRUNK_BYTES
from kernelmcp.output.sanitize import as_dict, clean, joined

# A background task still prints into the cell of its execution, if that is one of the last.
RECENT = 20
MAX_DISPLAY_IDS = 1000
# A browser draws larger notebooks slowly.
MAX_CELLS = 5000
OUTPUTS_LEFT_OUT = "the outputs of this cell were left out: the notebook had grown too large"
By = Literal["model", "person"]


def cell_id(execution_id: str) -> str:
    return "k" + sha256(execution_id.encode("utf-8", "replace")).hexdigest()[:23]


class Record:
    """The cells of one session's executions, in its document. The caller sets `notebook` before each transaction: a
    document may have been unloaded meanwhile."""

    def __init__(self) -> None:
        self.notebook: Any = None
        self.sizes: OrderedDict[str, int] = OrderedDict()
        """The existing cells of executions, in their order, with their sizes."""
        self.unfinished: set[str] = set()
        """Existing cells whose end was not seen."""
        self.abandoned: list[str] = []
        """Executions that ran when the kernel ended: the journal has their outcome."""
        self._shown: OrderedDict[str, RunningCell] = OrderedDict()
        self._displays: OrderedDict[str, str] = OrderedDict()
        """Maps a display id to the cell that shows it."""

    def look(self) -> None:
        """Find the document's cells: it may be one of an earlier Lab."""
        self.sizes.clear()
        self.unfinished.clear()
        for ycell in self.notebook.ycells:
            facts = as_dict(ycell["metadata"].get("kernelmcp"))
            if "execution_id" in facts or "note" in facts:
                name = str(ycell["id"])
                self.sizes[name] = len(json.dumps(ycell.to_py()))
                if facts.get("running"):
                    self.unfinished.add(name)

    def knows(self, execution_id: str) -> bool:
        return cell_id(execution_id) in self.sizes

    def is_whole(self, execution_id: str) -> bool:
        """True if it is complete: taken from the journal, or seen to its end."""
        name = cell_id(execution_id)
        return name in self.sizes and name not in self.unfinished

    def is_open(self, execution_id: str) -> bool:
        """True if it is neither complete nor shown live."""
        return execution_id not in self._shown and not self.is_whole(execution_id)

    # -- messages of the kernel ---------------------------------------------------------------------------------

    def begin(self, execution_id: str, code: str, execution_count: Any, by: By) -> None:
        name = cell_id(execution_id)
        if self.is_whole(execution_id):
            return  # taken from the journal; the kernel's message is late
        source = cut(clean(code), MAX_SOURCE_CHARS, "# ")
        if name not in self.sizes:
            facts = {"by": by, "execution_id": execution_id, "running": True}
            self._insert(code_cell(name, source, outputs.count(execution_count), facts, []), len(source))
        elif (ycell := self._find(name)) is not None:
            ycell["outputs"].clear()  # started again from its draft
        self.unfinished.add(name)
        self._remember(execution_id, RunningCell(name, len(source)))
        if (ycell := self._find(name)) is not None:
            ycell["execution_state"] = "running"

    def feed(self, execution_id: str, kind: str, content: dict[str, Any]) -> None:
        """Handle one output message of an execution that has begun."""
        if kind == "update_display_data":
            self._update(content)
            return
        shown = self._shown.get(execution_id)
        ycell = self._find(shown.cell) if shown is not None else None
        if shown is None or ycell is None:
            return
        for display_id in shown.feed(ycell, kind, content):
            self._displays[display_id] = shown.cell
            self._displays.move_to_end(display_id)
            if len(self._displays) > MAX_DISPLAY_IDS:
                self._displays.popitem(last=False)
        self.sizes[shown.cell] = shown.weight

    def leave_out(self, execution_id: str) -> None:
        """Note that one of its messages was dropped."""
        if (shown := self._shown.get(execution_id)) is not None:
            shown.left_out += 1

    def end(self, execution_id: str, *, whole: bool = True) -> bool:
        """Note its end. False if its cell is incomplete: the journal has all that is kept of it."""
        shown = self._shown.get(execution_id)
        if shown is None or shown.left_out or not whole:
            return False
        self._finish(shown.cell)
        return True

    def say_left_out(self, execution_id: str) -> None:
        """Note in the cell that outputs are missing: the journal does not have them either."""
        name = cell_id(execution_id)
        shown, ycell = self._shown.get(execution_id), self._find(name)
        if shown is not None and ycell is not None and shown.left_out:
            words = f"{shown.left_out:,} more outputs of this cell were left out of the notebook"
            ycell["outputs"].append(shared_output(note(words)))
            shown.left_out = 0
        self._finish(name)

    def abandon(self) -> None:
        """Abandon the running executions: the kernel is gone."""
        self.abandoned = [one for one, shown in self._shown.items() if shown.cell in self.unfinished]
        for name in self.unfinished:
            if (ycell := self._find(name)) is not None:
                ycell["execution_state"] = "idle"
        self._shown.clear()

    # -- cells of the journal -----------------------------------------------------------------------------------

    def put(self, cell: dict[str, Any], before: str | None = None) -> None:
        """Insert a cell of the journal before that of another execution, or replace the existing version."""
        facts = as_dict(as_dict(cell.get("metadata")).get("kernelmcp"))
        execution_id = clean(facts.get("execution_id", cell.get("id", "")))
        name = cell_id(execution_id)
        found = outputs.of_cell(cell)
        weight = sum(outputs.weight(output) or 0 for output in found)
        self._shown.pop(execution_id, None)  # the cell already contains the messages still to come
        if name in self.sizes:
            if (ycell := self._find(name)) is not None:
                ycell["outputs"].clear()
                ycell["outputs"].extend([shared_output(output) for output in found])
                ycell["execution_count"] = number(outputs.count(cell.get("execution_count")))
                self.sizes[name] = weight
            self._finish(name)
            return
        source = clean(joined(cell.get("source", "")))[: 2 * MAX_SOURCE_CHARS]
        if cell.get("cell_type") != "code":
            self.note(execution_id, source)
            return
        by = "person" if facts.get("by") == "person" else "model"
        known = {"by": by, "execution_id": execution_id}
        count = outputs.count(cell.get("execution_count"))
        self._insert(code_cell(name, source, count, known, found), weight + len(source), before)

    def note(self, key: str, words: str) -> None:
        """Insert a cell with a note, once for each key."""
        name = cell_id(key)
        if name not in self.sizes:
            metadata = {"editable": False, "kernelmcp": {"note": True}}
            cell = {"cell_type": "markdown", "id": name, "metadata": metadata, "source": words}
            self._insert(cell, len(words))

    def shrink(self) -> None:
        """Limit the notebook to the size of a transcript: omit the oldest outputs first, then the oldest cells."""
        total = sum(self.sizes.values())
        if total <= MAX_NOTEBOOK_BYTES and len(self.sizes) <= MAX_CELLS:
            return
        places = {str(ycell["id"]): at for at, ycell in enumerate(self.notebook.ycells)}
        for name, weight in list(self.sizes.items()):
            if total <= SHRUNK_BYTES:
                break
            if (
                weight > MIN_LINE_BYTES
                and name not in self.unfinished
                and name in places
                and "outputs" in (ycell := self.notebook.ycells[places[name]])
            ):
                ycell["outputs"].clear()
                ycell["outputs"].append(shared_output(note(OUTPUTS_LEFT_OUT)))
                self.sizes[name] = MIN_LINE_BYTES
                total -= weight - MIN_LINE_BYTES
        gone = [name for name in self.sizes if name not in self.unfinished][: max(0, len(self.sizes) - MAX_CELLS)]
        for at in sorted((places[name] for name in gone if name in places), reverse=True):
            del self.notebook.ycells[at]
        for name in gone:
            del self.sizes[name]

    # -- cells --------------------------------------------------------------------------------------------------

    def _insert(self, cell: dict[str, Any], weight: int, before: str | None = None) -> None:
        """Insert it after the last executed cell: what a person is typing at the end stays below it."""
        ycells = self.notebook.ycells
        at = None if before is None else self._place(cell_id(before))
        if at is None:
            at = len(ycells)
            while at and is_draft(ycells[at - 1]):
                at -= 1
        ycells.insert(at, self.notebook.create_ycell(cell))
        self.sizes[cell["id"]] = weight

    def _find(self, name: str) -> Any:
        """The cell with this id; None if a person has deleted it."""
        at = self._place(name)
        return None if at is None else self.notebook.ycells[at]

    def _place(self, name: str) -> int | None:
        """The index of a cell; it is usually one of the last."""
        ycells = self.notebook.ycells
        return next((at for at in range(len(ycells) - 1, -1, -1) if ycells[at]["id"] == name), None)

    def _finish(self, name: str) -> None:
        self.unfinished.discard(name)
        if (ycell := self._find(name)) is not None:
            ycell["execution_state"] = "idle"
            facts = as_dict(ycell["metadata"].get("kernelmcp"))
            ycell["metadata"]["kernelmcp"] = {key: facts[key] for key in facts if key != "running"}

    def _remember(self, execution_id: str, shown: RunningCell) -> None:
        self._shown[execution_id] = shown
        while len(self._shown) > RECENT:
            oldest = next((one for one, old in self._shown.items() if old.cell not in self.unfinished), None)
            del self._shown[oldest if oldest is not None else next(iter(self._shown))]

    def _update(self, content: dict[str, Any]) -> None:
        """Update every display with this id in the newest cell that has one."""
        display_id = outputs.display_id(content)
        name = self._displays.get(display_id)
        shown = next((one for one in self._shown.values() if one.cell == name), None)
        ycell = self._find(name) if name is not None and shown is not None else None
        if shown is not None and ycell is not None:
            shown.update(ycell, display_id, content)
