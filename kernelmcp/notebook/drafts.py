"""The output so far of a session's running executions, on disk: for executions that run when the server is killed,
which no journal has.

One file for each, once it takes longer than a moment; new output is appended periodically. It is deleted when the
journal has the execution, except when the server ends: then the next one reports what it interrupted.
"""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from kernelmcp.executions.execution import Execution
from kernelmcp.notebook.cells import MAX_CELL_BYTES, MAX_SOURCE_CHARS, MAX_TEXT_CHARS, MAX_VALUE_BYTES

# The folder, in the directory of a session.
DRAFTS = "running"
# No client knows the id of a shorter execution: it has not been sent yet.
FIRST_SECONDS = 0.25
INTERVAL_SECONDS = 0.5
ESCAPED = 6

log = structlog.get_logger(__name__)


class Drafts:
    """The drafts of one session. All methods but `left_behind` run in the event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended: list[Path] = []

    def begin(self, execution: Execution) -> None:
        """Keep this execution's output, if it takes longer."""
        _Draft(self._folder / f"{execution.id}.jsonl", execution, self._ended.append)

    def delete_ended(self) -> None:
        """Delete the drafts of ended executions, which the journal has."""
        while self._ended:
            delete(self._ended.pop())

    def left_behind(self) -> list[Path]:
        """The drafts of an earlier server. Called before the first execution begins."""
        return sorted(self._folder.glob("*.jsonl")) if self._folder.is_dir() else []


def delete(*drafts: Path) -> None:
    for draft in drafts:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


class _Draft:
    def __init__(self, file: Path, execution: Execution, on_end: Any) -> None:
        self._file = file
        self._execution = execution
        self._on_end = on_end
        self._bytes = 0
        self._written = 0
        """In total, so that a cell that clears its output repeatedly writes no more than others."""
        self._began = False
        self._streams = {"stdout": 0, "stderr": 0}
        self._displays = 0
        self._timer: asyncio.TimerHandle = asyncio.get_running_loop().call_later(FIRST_SECONDS, self._write)
        execution.on_finish.append(self._end)

    def _end(self, execution: Execution) -> None:
        self._timer.cancel()
        stopped = execution.error is not None and execution.error.name == "ServerStopped"
        if not self._bytes or stopped:
            return
        if execution.started is None:
            delete(self._file)  # no journal has it
        else:
            self._on_end(self._file)

    def _write(self) -> None:
        try:
            if lines := self._news():
                self._append(lines)
        except OSError as exc:
            log.error("a running execution could not be written", execution=self._execution.id, error=str(exc))
            return
        if self._written < MAX_CELL_BYTES:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._write)

    def _append(self, lines: list[dict[str, Any]]) -> None:
        data = bytearray()
        for line in lines:
            encoded = json.dumps(line).encode() + b"\n"
            if self._written + len(data) + len(encoded) > MAX_CELL_BYTES:
                self._written = MAX_CELL_BYTES  # full: nothing more is written
                break
            data += encoded
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        anew = 0 if self._bytes else os.O_TRUNC
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | anew | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if (done := os.write(fd, data)) < len(data):
                os.ftruncate(fd, self._bytes)  # a partial line would corrupt the next one
                raise OSError(f"only {done} of {len(data)} bytes were written")
        finally:
            os.close(fd)
        self._bytes += len(data)
        self._written += len(data)

    def _news(self) -> list[dict[str, Any]]:
        execution, outputs = self._execution, self._execution.outputs
        spools = {"stdout": outputs.stdout, "stderr": outputs.stderr}
        if len(outputs.displays) < self._displays or any(
            spool.size < self._streams[name] for name, spool in spools.items()
        ):
            # The cell has cleared its output.
            self._bytes, self._began, self._displays, self._streams = 0, False, 0, dict.fromkeys(self._streams, 0)
        lines: list[dict[str, Any]] = []
        if not self._bytes:
            created_at, code = execution.created_at.isoformat(), execution.code[:MAX_SOURCE_CHARS]
            lines.append({"execution_id": execution.id, "created_at": created_at, "code": code})
        if execution.started is not None and not self._began:
            self._began = True
            lines.append({"began": True})
        for name, spool in spools.items():
            lines += self._new_text(name, spool.size)
        room = ESCAPED * MAX_CELL_BYTES
        for display in outputs.displays[self._displays :]:
            # JSON takes up to six bytes for a character; a display that cannot fit is not encoded.
            room -= ESCAPED * display.weight
            if display.weight <= MAX_VALUE_BYTES and room >= 0:
                lines.append({"kind": display.kind, "content": {"data": display.data, "metadata": display.metadata}})
        self._displays = len(outputs.displays)
        return lines

    def _new_text(self, name: Any, size: int) -> list[dict[str, Any]]:
        start, end = self._streams[name], min(size, MAX_TEXT_CHARS)
        self._streams[name] = max(start, size)
        found: list[dict[str, Any]] = []
        if start < end:
            text = self._execution.outputs.spool(name).read(start, end)
            found.append({"kind": "stream", "content": {"name": name, "text": text}})
        if start <= MAX_TEXT_CHARS < size:
            words = f"\n[what the cell wrote to {name} after this was not kept: the server ended]\n"
            found.append({"kind": "stream", "content": {"name": name, "text": words}})
        return found
