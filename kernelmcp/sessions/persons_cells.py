"""Cells that a person runs in a session's kernel, from JupyterLab or another Jupyter client.

A kernel reports on iopub to all of its clients what each of them executes. Here such a cell becomes an execution like
those of the model: it is in the transcript, and the model's own cells wait for it and report it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio

from kernelmcp.cells import event
from kernelmcp.cells.log import CellLog
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.ids import is_id, mint_id
from kernelmcp.executions.kept_executions import KeptExecutions
from kernelmcp.kernel.process import PAST_REQUEST, VARIABLES_LOST
from kernelmcp.output.sanitize import clean
from kernelmcp.sessions.kernel_binding import KernelBinding
from kernelmcp.sessions.storage.record import Record

# Bounds memory if a person's client never learns that a cell has ended (its kernel hangs).
MAX_RUNNING = 100
MAX_CLIENT_CHARS = 100
MAX_LANGUAGE_CHARS = 64
# For a caller to whom it stands in the way.
PERSON_RUNS = "A person runs a cell, in JupyterLab or another client: wait; the person can interrupt it."


class PersonsCells:
    """The cells that persons run in one session. All methods run in the event loop.

    `end` is called with each, once it has ended; `ask` with one that asks for a checkpoint.
    """

    def __init__(
        self,
        record: Record,
        binding: KernelBinding,
        executions: KeptExecutions,
        log: CellLog,
        *,
        end: Callable[[Execution], None],
        ask: Callable[[Execution, dict[str, Any]], None],
    ) -> None:
        self._record = record
        self._binding = binding
        self._executions = executions
        self._log = log
        self._end = end
        self._ask = ask
        self._requests: dict[str, Execution | None] = {}
        """Requests that the kernel works on, by message id; None for silent ones, such as a widget's."""
        self._waiters: list[asyncio.Future[None]] = []
        """Resolved when another cell has begun."""
        self._ended_since = 0
        self.has_asked = False
        """The cell that runs has asked for a checkpoint, or to go back to one: it runs nothing in the guest."""
        self.idle = asyncio.Event()
        """Set while no person's cell runs, and nothing that a widget calls."""
        self.idle.set()

    def hear(self, request: dict[str, Any], kind: str, content: dict[str, Any]) -> None:
        """Handle an iopub message of a request that another client sent (`kernel.connection.IopubListener`)."""
        msg_id = request.get("msg_id")
        if not isinstance(msg_id, str):
            return
        execution = self._requests.get(msg_id)
        if kind == "status":
            self.has_asked = False
            self.note_use(request, begins=content.get("execution_state") != "idle")
        elif kind == "execute_input" and msg_id in self._requests and execution is None:
            client = clean(str(request.get("session", "")))[:MAX_CLIENT_CHARS]
            self._requests[msg_id] = self._begin(content, msg_id, client)
        elif kind == VARIABLES_LOST and msg_id in self._requests:
            self._lost(content.get("language"))
        elif kind == PAST_REQUEST and execution is not None:
            self.has_asked = True
            self._ask(execution, content)
        elif execution is not None:
            if kind == "display_data":
                self._binding.note_packages(content)
            execution.hear(kind, content)

    def note_use(self, request: dict[str, Any], *, begins: bool) -> None:
        """Note that the kernel works on a request of another client, or no longer does."""
        msg_id = request.get("msg_id")
        if not isinstance(msg_id, str):
            return
        if not begins:
            self._ended(msg_id)
        elif len(self._requests) < MAX_RUNNING:
            self._requests.setdefault(msg_id, None)
            self.idle.clear()

    def _lost(self, language: object) -> None:
        named = clean(language)[:MAX_LANGUAGE_CHARS] if isinstance(language, str) else None
        if named in self._binding.losses_said:
            self._binding.losses_said.remove(named)
        else:
            self._binding.variables.ended(guest_lost=True, language=named)

    async def wait_idle(self, cancelled: asyncio.Event) -> None:
        """Wait while a person's cell runs: its time does not count as the model's. Ends when `cancelled` is set,
        too."""
        while not self.idle.is_set() and not cancelled.is_set():
            waits = [asyncio.ensure_future(event.wait()) for event in (self.idle, cancelled)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def running(self, msg_id: str) -> Execution | None:
        """The running cell whose request has this id, if any."""
        return self._requests.get(msg_id)

    async def wait_running(self, msg_id: str, seconds: float) -> None:
        """Wait until the kernel reports that this cell runs, for at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self.running(msg_id) is None:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter

    def take_count(self) -> int:
        """Return the number of cells that have ended since the last call."""
        count, self._ended_since = self._ended_since, 0
        return count

    def kernel_ended(self) -> None:
        """End the running cells: their kernel has ended."""
        for execution in [one for one in self._requests.values() if one is not None]:
            execution.finish_killed("the kernel ended while the cell ran")
            self._note(execution)
        self._requests.clear()
        self.has_asked = False
        self.idle.set()

    def _begin(self, content: dict[str, Any], msg_id: str, client: str) -> Execution:
        self._binding.variables.note_used()
        is_free = is_id(msg_id) and self._executions.get(msg_id) is None
        own_id = msg_id if is_free else mint_id()
        code = clean(str(content.get("code", "")))
        fold = self._executions.new_fold(own_id, self._log.submitted(own_id, event.now(), code).add)
        self._log.began(own_id, by="person", client=client)
        execution = Execution(
            self._record.session_id, self._record.principal, code, 0.0, fold.outputs, fold, own_id, client=client
        )
        execution.started = execution.submitted
        execution.outputs.execution_count = content.get("execution_count")
        self._executions.add(execution)
        asyncio.get_running_loop().call_soon(self._wake)
        return execution

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _ended(self, msg_id: str) -> None:
        execution = self._requests.pop(msg_id, None)
        if execution is not None:
            execution.finish_of_person()
            self._note(execution)
        if not self._requests:
            self.idle.set()

    def _note(self, execution: Execution) -> None:
        self._ended_since += 1
        self._end(execution)
