"""The shared notebook of one session: the model's executions become its cells, while persons edit it.

Only shared documents show a change in an open tab without a dialog and without losing what a person types
(docs/lab.md). Every method is called within one transaction of the document, in the event loop. A cell's id is derived
from its execution's id, so that a cell appears once however often Lab was killed. Must not know kernels.
"""

import json
from collections import OrderedDict
from hashlib import sha256
from typing import Any, Literal

from kernelmcp.cells.event import Op
from kernelmcp.cells.line import MAX_CELL_BYTES, MAX_SOURCE_CHARS, cut, note
from kernelmcp.lab.record import outputs
from kernelmcp.lab.record.running_cell import RunningCell
from kernelmcp.lab.record.shared_cells import code_cell, is_draft, is_of_record, number, shared_output, write_outputs
from kernelmcp.notebook.transcript import MAX_NOTEBOOK_BYTES, MIN_LINE_BYTES, SHRUNK_BYTES
from kernelmcp.output.sanitize import as_dict, as_list, clean, joined

# A browser draws larger notebooks slowly.
MAX_CELLS = 5000
# What is left of more: each removal goes through all cells, and must not be necessary again for the next one.
SHRUNK_CELLS = MAX_CELLS * 3 // 4
OUTPUTS_LEFT_OUT = "the outputs of this cell were left out: the notebook had grown too large"
By = Literal["model", "person"]


def cell_id(execution_id: str) -> str:
    return "k" + sha256(clean(execution_id).encode()).hexdigest()[:23]


class Record:
    """The cells of one session's executions, in its document. The caller sets `notebook` before each transaction: a
    document may have been unloaded meanwhile."""

    def __init__(self) -> None:
        self.notebook: Any = None
        self.sizes: OrderedDict[str, int] = OrderedDict()
        """The existing cells of executions, in their order, with their sizes."""
        self.unfinished: set[str] = set()
        """Existing cells whose end was not seen."""
        self._sums: dict[str, str] = {}
        """The checksums of the log's lines that cells were taken from."""
        self._codes: dict[str, str] = {}
        """The code of waiting executions."""
        self._shown: dict[str, RunningCell] = {}
        """Cells whose next events can be applied."""

    def look(self) -> None:
        """Find the document's cells: it may be one of an earlier Lab."""
        for ycell in self.notebook.ycells:
            facts = as_dict(ycell["metadata"].get("kernelmcp"))
            if is_of_record(ycell) and ("execution_id" in facts or "note" in facts):
                name = str(ycell["id"])
                self.sizes[name] = len(json.dumps(ycell.to_py()))
                if facts.get("running"):
                    self.unfinished.add(name)
                if isinstance(checksum := facts.get("sum"), str):
                    self._sums[name] = checksum

    def knows(self, execution_id: str) -> bool:
        return cell_id(execution_id) in self.sizes

    def is_whole(self, execution_id: str) -> bool:
        """True if it is complete: as it ended."""
        name = cell_id(execution_id)
        return name in self.sizes and name not in self.unfinished

    def is_current(self, execution_id: str, checksum: str) -> bool:
        """True if it is complete, and its line in the log is still the same: late output changes it."""
        return self.is_whole(execution_id) and self._sums.get(cell_id(execution_id), checksum) == checksum

    def is_shown(self, execution_id: str) -> bool:
        """True if its next events can be applied."""
        return cell_id(execution_id) in self._shown

    # -- events -------------------------------------------------------------------------------------------------

    def submitted(self, execution_id: str, code: str) -> None:
        self._codes[execution_id] = cut(clean(code), MAX_SOURCE_CHARS, "# ")
        if (shown := self._shown.get(cell_id(execution_id))) is not None:
            shown.lines_read = 0

    def cancelled(self, execution_id: str) -> None:
        """Note that it never began."""
        self._codes.pop(execution_id, None)

    def began(self, execution_id: str, by: By) -> None:
        name, source = cell_id(execution_id), self._codes.pop(execution_id, "")
        if name in self._shown or self.is_whole(execution_id):
            return
        if name not in self.sizes:
            facts = {"by": by, "execution_id": execution_id, "running": True}
            self._insert(code_cell(name, source, None, facts, []), len(source))
        self.unfinished.add(name)
        self._shown[name] = RunningCell(len(source))
        if (ycell := self._find(name)) is not None:
            ycell["outputs"].clear()  # an earlier Lab has shown some
            ycell["execution_state"] = "running"

    def feed(self, execution_id: str, ops: list[Op]) -> None:
        """Apply a line of events of an execution that has begun, and perhaps ended."""
        name = cell_id(execution_id)
        shown = self._shown.get(name)
        if shown is not None and (ycell := self._find(name)) is not None:
            shown.feed(ycell, ops)
            self.sizes[name] = shown.weight
            if name not in self.unfinished and self._sums.get(name):
                self._finish(name, "")  # the outputs are no longer those of the cell's line

    def abandon(self) -> None:
        """Abandon the running executions: the kernel is gone."""
        for name in self.unfinished:
            if (ycell := self._find(name)) is not None:
                ycell["execution_state"] = "idle"
        self._shown.clear()

    # -- ended cells --------------------------------------------------------------------------------------------

    def put(self, cell: dict[str, Any], before: str | None = None) -> None:
        """Insert an ended cell before that of another execution, or replace the existing version."""
        facts = as_dict(as_dict(cell.get("metadata")).get("kernelmcp"))
        execution_id = clean(facts.get("execution_id", cell.get("id", "")))
        name = cell_id(execution_id)
        source = clean(joined(cell.get("source", "")))[: 2 * MAX_SOURCE_CHARS]
        if cell.get("cell_type") != "code":
            self.note(execution_id, source)
            return
        found, places = outputs.of_cell(cell)
        weight = sum(outputs.weight(output) or 0 for output in found)
        count = outputs.count(cell.get("execution_count"))
        if name not in self.sizes:
            by = "person" if facts.get("by") == "person" else "model"
            self._insert(code_cell(name, source, count, {"by": by, "execution_id": execution_id}, found), 0, before)
        elif (ycell := self._find(name)) is not None:
            write_outputs(ycell["outputs"], found)
            ycell["execution_count"] = number(count)
        self.sizes[name] = weight + len(source)
        self._codes.pop(execution_id, None)
        room, shown = max(0, MAX_CELL_BYTES - weight), facts.get("shown")
        kinds = [as_dict(output).get("output_type") for output in as_list(cell.get("outputs"))]
        displays = shown if isinstance(shown, int) else sum(kind in outputs.DISPLAYS for kind in kinds)
        self._shown[name] = RunningCell(len(source), room, len(found), displays, places)
        self._finish(name, str(facts.get("sum", "")))

    def complete(self, name: str, cell: dict[str, Any]) -> None:
        """Put the outputs of an ended cell into a person's own, if the browser that wrote them was gone before."""
        ycell = self._find(name)
        if ycell is not None and ycell.get("execution_state") == "running":
            found, _ = outputs.of_cell(cell)
            ycell["outputs"].clear()
            ycell["outputs"].extend([shared_output(output) for output in found])
            ycell["execution_count"] = number(outputs.count(cell.get("execution_count")))
            ycell["execution_state"] = "idle"

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
        most = SHRUNK_CELLS if len(self.sizes) > MAX_CELLS else MAX_CELLS
        places = {str(ycell["id"]): at for at, ycell in enumerate(self.notebook.ycells)}
        total = self._without_oldest_outputs(total, places)
        gone: list[str] = []
        for name, weight in self.sizes.items():
            if total <= SHRUNK_BYTES and len(self.sizes) - len(gone) <= most:
                break
            if name not in self.unfinished:
                gone.append(name)
                total -= weight
        for at in sorted((places[name] for name in gone if name in places), reverse=True):
            del self.notebook.ycells[at]
        for name in gone:
            del self.sizes[name]
            self._sums.pop(name, None)
            self._shown.pop(name, None)

    def _without_oldest_outputs(self, total: int, places: dict[str, int]) -> int:
        """Omit outputs, and return the size that is left."""
        for name, weight in list(self.sizes.items()):
            if total <= SHRUNK_BYTES:
                break
            if weight <= MIN_LINE_BYTES or name in self.unfinished or name not in places:
                continue
            ycell = self.notebook.ycells[places[name]]
            kept = MIN_LINE_BYTES + len(ycell["source"])
            if "outputs" in ycell and weight > kept:
                ycell["outputs"].clear()
                ycell["outputs"].append(shared_output(note(OUTPUTS_LEFT_OUT)))
                self.sizes[name] = kept
                total -= weight - kept
        return total

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

    def _finish(self, name: str, checksum: str) -> None:
        self.unfinished.discard(name)
        self._sums[name] = checksum
        if (ycell := self._find(name)) is not None:
            ycell["execution_state"] = "idle"
            facts = as_dict(ycell["metadata"].get("kernelmcp"))
            known = {key: facts[key] for key in facts if key != "running"}
            ycell["metadata"]["kernelmcp"] = known | {"sum": checksum}
