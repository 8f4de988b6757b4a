"""A notebook that runs in a session: its cells are queued together, and the first failure ends it.

They are queued together so that other requests to the session run after the notebook and not in between.
"""

import asyncio

from kernelmcp.executions.execution import Execution
from kernelmcp.notebook.code_cells import CodeCell
from kernelmcp.sessions.session import Session


class Replay:
    """The executions of one notebook, and their places among its code cells. A cell that had failed when the notebook
    was saved may fail again. `left_out`: the number of cells that ask for a checkpoint, which do not run."""

    def __init__(self, session: Session, cells: list[CodeCell]) -> None:
        self._session = session
        self.numbers = [number for number, cell in enumerate(cells, 1) if not cell.asks_for_past]
        self.count = len(cells)
        self.left_out = len(cells) - len(self.numbers)
        cells = [cell for cell in cells if not cell.asks_for_past]
        self.executions = [session.submit(cell.code, is_queued_anyway=True) for cell in cells]
        self._may_fail = {one for one, cell in zip(self.executions, cells, strict=True) if cell.may_fail}
        self.failed: Execution | None = None
        for execution in self.executions:
            execution.on_finish.append(self._note_end)

    @property
    def current(self) -> Execution:
        """The first execution that runs or waits, or else the last one."""
        return next((one for one in self.executions if not one.done.is_set()), self.executions[-1])

    @property
    def ended(self) -> int:
        """Number of cells that ran to their end, successfully or with an allowed failure."""
        ran = (one for one in self.executions if one.done.is_set() and one.started is not None)
        return sum(one is not self.failed for one in ran)

    async def wait(self, seconds: float) -> None:
        """Wait until all cells have ended, or `seconds` have passed."""
        try:
            async with asyncio.timeout(seconds):
                for execution in self.executions:
                    await execution.done.wait()
        except TimeoutError:
            pass

    def cancel(self) -> None:
        """Interrupt the cell that runs; those that wait do not run, whatever that one does with the interrupt."""
        for execution in reversed(self.executions):
            if not execution.done.is_set():
                self._session.queue.interrupt(execution)

    def _note_end(self, execution: Execution) -> None:
        is_well = execution.status == "ok" or (execution.status == "error" and execution in self._may_fail)
        if is_well or self.failed is not None:
            return
        self.failed = execution
        for later in self.executions[self.executions.index(execution) + 1 :]:
            self._session.queue.interrupt(later)
