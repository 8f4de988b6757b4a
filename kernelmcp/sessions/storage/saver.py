"""Saves a session's transcript and record: shortly after a cell, or at once.

Must not know kernels or MCP.
"""

import asyncio
import math
from pathlib import Path

import anyio.abc
import anyio.to_thread
import structlog

from kernelmcp.notebook.drafts import Drafts
from kernelmcp.notebook.transcript import Transcript
from kernelmcp.sessions import background
from kernelmcp.sessions.storage.session_files import SessionFiles

# Minimum interval between writes: a burst of cells costs few.
APART_SECONDS = 0.5
# Delay of the first write: the cell's result is sent before it.
DELAY_SECONDS = 0.02

log = structlog.get_logger(__name__)


class Saver:
    """Saves one session."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, directory: Path, transcript: Transcript, files: SessionFiles, drafts: Drafts
    ) -> None:
        self._tasks = tasks
        self._directory = directory
        self._transcript = transcript
        self._files = files
        self._drafts = drafts
        self._timer: asyncio.TimerHandle | None = None
        self._last = -math.inf
        """When it was last saved, by the loop's clock."""

    @property
    def is_done(self) -> bool:
        """True if everything is on disk."""
        return self._timer is None and not self._transcript.changed

    def save_soon(self) -> None:
        """Save shortly, together with the changes until then."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(
                max(loop.time() + DELAY_SECONDS, self._last + APART_SECONDS),
                lambda: background.start(self._tasks, "saving a session", self.save),
            )

    def cancel(self) -> None:
        """Cancel a scheduled save."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def save(self) -> None:
        """Write the transcript, if it has changed, and the record."""
        self.cancel()
        self._last = asyncio.get_running_loop().time()
        if not self._directory.exists():
            return  # the session was destroyed meanwhile
        if self._transcript.changed:
            try:
                await anyio.to_thread.run_sync(self._transcript.save, abandon_on_cancel=True)
                if not self._transcript.changed:
                    self._drafts.delete_ended()
            except OSError as exc:
                log.error("the transcript could not be written", directory=self._directory.name, error=str(exc))
        self._files.save_record()
