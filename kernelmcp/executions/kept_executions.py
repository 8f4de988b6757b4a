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
    """The executions of one session by id, oldest first. Those that have not ended are always kept."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._display_ids = DisplayIds()
        self._kept: dict[str, Execution] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        """Memory and disk space of those that have ended, in bytes, unless they had output since."""
        # Left by a server that ended without cleaning up; nothing refers to it any more.
        shutil.rmtree(folder, ignore_errors=True)

    def new_fold(self, execution_id: str, on_event: OnEvent) -> Fold:
        """The fold of an execution that will be added."""
        policy = self._settings.policy
        outputs = Outputs((policy.stdout_max_bytes, policy.stderr_max_bytes), self._folder)

        def hear(op: Op) -> None:
            self._sizes.pop(execution_id, None)
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
        self._kept[execution.id] = execution

    def trim(self, *, stopped: bool = False) -> None:
        """Forget the oldest until the rest is within the limits. The newest ended one is kept, unless the session is
        `stopped`."""
        policy = self._settings.policy
        count = self._settings.config.sessions.kept_executions
        memory = STOPPED_BYTES if stopped else policy.outputs_max_bytes
        disk = DISK_SHARES * (policy.stdout_max_bytes + policy.stderr_max_bytes)
        exempt = not stopped
        for execution in reversed(list(self._kept.values())):
            size = self._sizes.get(execution.id) or self._measure(execution)
            count, memory, disk = count - 1, memory - size[0], disk - size[1]
            if execution.done.is_set():
                if not exempt and min(count, memory, disk) < 0:
                    self._forget(execution)
                exempt = False

    def _measure(self, execution: Execution) -> tuple[int, int]:
        size = execution.memory_bytes, execution.outputs.disk_bytes
        if execution.done.is_set():
            self._sizes[execution.id] = size
        return size

    def clear(self) -> None:
        """Forget all executions and delete their files."""
        for execution in self:
            self._forget(execution)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _forget(self, execution: Execution) -> None:
        if execution.fold is not None:
            execution.fold.close()
        self._sizes.pop(execution.id, None)
        del self._kept[execution.id]
