"""The executions that a session keeps: its newest, within limits on their number and total size.

A client fetches the rest of a long output within minutes; unfetched output must not pile up in memory or on disk.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.event import Op
from kernelmcp.cells.fold import DisplayIds, Fold, OnEvent
from kernelmcp.config.settings import Settings
from kernelmcp.executions.execution import Execution

# In the directory of a session.
OUTPUTS = "outputs"
# Disk space for the streams of all of a session's finished executions, in units of one execution's limit.
DISK_SHARES = 4
# Memory for the executions of a session without a kernel: enough for text, not for pictures.
STOPPED_BYTES = 4 * 1024 * 1024


class KeptExecutions:
    """The executions of one session by id, oldest first. Those that have not ended, or whose result a call is about to
    get, are always kept."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._display_ids = DisplayIds()
        self._kept: dict[str, Execution] = {}
        self._growing: dict[str, Execution] = {}
        """Those that have not ended, and those that had output since they were measured."""
        self._sizes: dict[str, tuple[int, int]] = {}
        """Memory and disk space of the others, in bytes."""
        self._memory = self._disk = 0
        """Their sums."""
        # Left by a server that ended without cleaning up; nothing refers to it any more.
        shutil.rmtree(folder, ignore_errors=True)

    def new_fold(self, execution_id: str, on_event: OnEvent) -> Fold:
        """The fold of an execution that will be added."""
        policy = self._settings.policy
        outputs = Outputs((policy.stdout_max_bytes, policy.stderr_max_bytes), self._folder)

        def hear(op: Op) -> None:
            if execution_id in self._sizes:
                self._unsettle(execution_id)
                self._growing[execution_id] = self._kept[execution_id]
            on_event(op)

        return Fold(outputs, policy, self._display_ids, hear)

    def get(self, execution_id: str) -> Execution | None:
        return self._kept.get(execution_id)

    def by_request(self, request_id: str) -> Execution | None:
        """The execution that the HTTP request with this id has submitted."""
        return next((execution for execution in self if execution.request_id == request_id), None)

    def __iter__(self) -> Iterator[Execution]:
        return iter(list(self._kept.values()))

    def add(self, execution: Execution) -> None:
        self._kept[execution.id] = self._growing[execution.id] = execution

    def trim(self, *, stopped: bool = False) -> None:
        """Forget the oldest until the rest is within the limits. The newest one that ran to an end is kept, unless the
        session is `stopped`."""
        policy = self._settings.policy
        limits = (
            self._settings.config.sessions.kept_executions,
            STOPPED_BYTES if stopped else policy.outputs_max_bytes,
            DISK_SHARES * (policy.stdout_max_bytes + policy.stderr_max_bytes),
        )
        growing = self._measure()
        count, memory, disk = len(self._kept), self._memory, self._disk
        for size in growing.values():
            memory, disk = memory + size[0], disk + size[1]
        ended = (each for each in reversed(self._kept.values()) if each.done.is_set() and each.started is not None)
        spared = None if stopped else next(ended, None)
        forgotten: list[Execution] = []
        for execution in self._kept.values():
            if count <= limits[0] and memory <= limits[1] and disk <= limits[2]:
                break
            size = self._sizes.get(execution.id) or growing[execution.id]
            count, memory, disk = count - 1, memory - size[0], disk - size[1]
            if execution.done.is_set() and execution is not spared and not execution.callers:
                forgotten.append(execution)
        for execution in forgotten:
            self._forget(execution)

    def _measure(self) -> dict[str, tuple[int, int]]:
        """Measure what has grown. Returns the sizes of those that have not ended."""
        sizes: dict[str, tuple[int, int]] = {}
        for execution in list(self._growing.values()):
            size = execution.memory_bytes, execution.outputs.disk_bytes
            if execution.done.is_set():
                del self._growing[execution.id]
                self._sizes[execution.id] = size
                self._memory, self._disk = self._memory + size[0], self._disk + size[1]
            else:
                sizes[execution.id] = size
        return sizes

    def _unsettle(self, execution_id: str) -> None:
        memory, disk = self._sizes.pop(execution_id, (0, 0))
        self._memory, self._disk = self._memory - memory, self._disk - disk

    def clear(self) -> None:
        """Forget all executions and delete their files."""
        for execution in self:
            self._forget(execution)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _forget(self, execution: Execution) -> None:
        if execution.fold is not None and not execution.callers:
            execution.fold.close()
        self._unsettle(execution.id)
        self._growing.pop(execution.id, None)
        del self._kept[execution.id]
