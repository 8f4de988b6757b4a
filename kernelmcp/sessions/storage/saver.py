"""Saves a session's transcript and record: shortly after a cell, or at once.

Must not know kernels or MCP.
"""

import asyncio
import math
import os
from pathlib import Path

import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.cells.log import CellLog
from kernelmcp.notebook.transcript import MAX_NOTEBOOK_BYTES, Transcript
from kernelmcp.sessions import background
from kernelmcp.sessions.storage.session_files import SessionFiles

# Minimum interval between writes: a burst of cells costs few.
APART_SECONDS = 0.5
# The same in durations of the last write: a large log that is rewritten for each late output costs a twentieth.
APART_SHARE = 20
# Delay of the next attempt if the disk is full or away.
RETRY_SECONDS = 5.0
# Delay of the first write: the cell's result is sent before it.
DELAY_SECONDS = 0.02

log = structlog.get_logger(__name__)


class Saver:
    """Saves one session."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, directory: Path, log: CellLog, transcript: Transcript, files: SessionFiles
    ) -> None:
        self._tasks = tasks
        self._directory = directory
        self._transcript = transcript
        self._files = files
        self._log = log
        self._is_rewriting = False
        self._running = 0
        """How many saves run now."""
        self._is_closed = False
        self._took = 0.0
        """The duration of the last write, seconds."""
        self._timer: asyncio.TimerHandle | None = None
        self._last = -math.inf
        """When it was last saved, by the loop's clock."""

    @property
    def is_done(self) -> bool:
        """True if everything is on disk."""
        return self._timer is None and not self._running and not self._transcript.changed

    def save_soon(self) -> None:
        """Save shortly, together with the changes until then."""
        loop = asyncio.get_running_loop()
        at = max(loop.time() + DELAY_SECONDS, self._last + self._apart)
        if self._timer is None or self._timer.when() > at:  # the log has grown large since
            self._cancel()
            self._timer = loop.call_at(at, lambda: background.start(self._tasks, "saving a session", self.save))

    @property
    def _apart(self) -> float:
        is_large = self._log.size > 2 * MAX_NOTEBOOK_BYTES  # to be rewritten before it is too large to be read
        return APART_SECONDS if is_large else max(APART_SECONDS, APART_SHARE * self._took)

    def close(self) -> None:
        """Save nothing more: the session is deleted, or somebody else's."""
        self._is_closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def save(self) -> None:
        """Write the transcript, if it has changed, and the record."""
        self._cancel()
        self._last = asyncio.get_running_loop().time()
        self._running += 1
        try:
            await self._save()
        finally:
            self._running -= 1

    async def _save(self) -> None:
        is_done = self._is_there and await self._write_if_changed() and self._log.is_written
        if not self._is_closed and (self._transcript.changed or not self._log.is_written):
            if not is_done:
                self._last += RETRY_SECONDS
            self.save_soon()

    @property
    def _is_there(self) -> bool:
        """False while the home is away, or cannot be reached."""
        return os.path.isdir(self._directory)

    async def _write_if_changed(self) -> bool:
        """False if the transcript could not be written."""
        is_done = True
        if self._transcript.changed and not self._is_closed:
            began = asyncio.get_running_loop().time()
            try:
                await self._write()
            except OSError as exc:
                log.error("the transcript could not be written", directory=self._directory.name, error=str(exc))
                is_done = False
            self._took = asyncio.get_running_loop().time() - began
        if not self._is_closed:
            self._files.save_record()
        return is_done

    async def _write(self) -> None:
        if not self._log.is_written:
            self._log.flush()
        await anyio.to_thread.run_sync(self._transcript.save, abandon_on_cancel=True)
        if self._transcript.wants_rewrite and not self._is_rewriting:
            self._log.flush()  # what came late is in this rewriting
            self._is_rewriting, upto = True, self._log.size
            had_late, self._log.has_late = self._log.has_late, not self._log.is_written
            try:
                new = await anyio.to_thread.run_sync(self._transcript.compact, upto, abandon_on_cancel=True)
                self._transcript.put(new, upto)
            except BaseException:
                self._log.has_late = self._log.has_late or had_late
                raise
            finally:
                self._is_rewriting = False
            await anyio.to_thread.run_sync(self._transcript.save, abandon_on_cancel=True)
            if self._log.has_late:
                self.save_soon()  # a save in the meantime could not rewrite it
