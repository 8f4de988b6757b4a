"""The audit: one JSON line for each call, and for each change of a server's tools, in an append-only file.

Lines are collected and written in a thread, a moment later: neither a slow disk nor a large argument blocks the server.
Only its owner can access the file; when it is large it is renamed (FILE.1, FILE.2, ...), and the oldest is deleted.
Several servers may write one file. Must not know sessions, policy or MCP.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.executions.tool_calls import ToolCallRecord

# Lines that arrive within this time are written together.
DELAY_SECONDS = 0.05
MAX_FILE_BYTES = 16 * 1024 * 1024
OLDER_FILES = 4
# A disk that rejects lines must not fill the memory.
MAX_WAITING = 20_000
# Limit for arguments that wait for their hashes; those beyond it get none.
MAX_WAITING_BYTES = 32 * 1024 * 1024
# Limit for the values of one call's arguments.
MAX_LINE_CHARS = 100_000
# Limit for tool names in one line.
MAX_TOOLS = 200

log = structlog.get_logger(__name__)


class Audit:
    """The audit of one server process. `add` and `note_tools` are for the event loop; `run` is one task for the
    server's life."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: list[ToolCallRecord | dict[str, Any]] = []
        self._waiting_bytes = 0
        self._work = asyncio.Event()
        self._lost = 0
        self._failed = False

    @property
    def file(self) -> Path | None:
        return audit_file(self._settings)

    def add(self, line: ToolCallRecord | dict[str, Any]) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
            return
        if isinstance(line, ToolCallRecord):
            self._waiting_bytes += line.arguments_size
            if self._waiting_bytes > MAX_WAITING_BYTES:
                line.seal_without_hash()
        self._waiting.append(line)
        self._work.set()

    def note_tools(self, server: str, changes: dict[Literal["new", "changed", "gone"], list[str]]) -> None:
        """Note that a server's tools have changed."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        named = {kind: names[:MAX_TOOLS] for kind, names in changes.items() if names}
        counts = {f"{kind}_count": len(names) for kind, names in changes.items() if names}
        self.add({"time": now, "event": "tools_changed", "server": server, **named, **counts})

    async def run(self) -> None:
        """Write added lines until the server ends, and then the rest."""
        try:
            while True:
                await self._work.wait()
                await anyio.sleep(DELAY_SECONDS)
                self._work.clear()
                await self._write()
        finally:
            with anyio.CancelScope(shield=True):
                await self._write()

    async def _write(self) -> None:
        waiting, size, lost = self._waiting, self._waiting_bytes, self._lost
        self._waiting, self._waiting_bytes = [], 0
        said: list[dict[str, Any]] = (
            [{"time": datetime.now(UTC).isoformat(), "event": "lines_lost", "count": lost}] if lost else []
        )
        if not waiting and not said:
            return
        try:
            written = await anyio.to_thread.run_sync(self._write_lines, [*waiting, *said])
        except BaseException:  # cancelled before it began
            self._waiting, self._waiting_bytes = waiting + self._waiting, size + self._waiting_bytes
            raise
        self._lost += -lost if written else len(waiting)

    def _write_lines(self, lines: list[ToolCallRecord | dict[str, Any]]) -> bool:
        """Write lines; False if they are lost. Blocking."""
        keep_values, file = self._settings.config.upstreams.audit_values, self.file
        text = "".join(_line(line, keep_values=keep_values) for line in lines)
        if file is None:
            return True
        try:
            append(file, text)
        except OSError as exc:
            if not self._failed:
                log.error("the audit cannot be written", file=str(file), error=str(exc))
            self._failed = True
            return False
        self._failed = False
        return True


def audit_file(settings: Settings) -> Path | None:
    """The audit's path; None if the settings disable it."""
    name = settings.config.upstreams.audit_file
    return settings.home / name if name else None


def _line(line: ToolCallRecord | dict[str, Any], *, keep_values: bool) -> str:
    if isinstance(line, ToolCallRecord):
        line.seal(keep_values=keep_values)
        found = line.to_dict()
        line.values = None
        text = json.dumps(found)
        if len(text) > MAX_LINE_CHARS:
            text = json.dumps({**found, "arguments": "(too long)"})
        return f"{text}\n"
    return f"{json.dumps(line)}\n"


def append(file: Path, text: str, max_bytes: int = MAX_FILE_BYTES) -> None:
    """Append text. Blocking. Raises OSError, also if the file is a link or not its owner's."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            if not _is_same(fd, file):
                continue  # another server has renamed it
            if size and size + len(text) > max_bytes:
                _rotate(file)
                continue
            try:
                with open(fd, "ab", closefd=False) as stream:
                    stream.write(text.encode())
            except OSError:
                os.ftruncate(fd, size)  # half a line would spoil the next one
                raise
            return
        finally:
            os.close(fd)


def _is_same(fd: int, file: Path) -> bool:
    try:
        there = file.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _rotate(file: Path) -> None:
    for number in range(OLDER_FILES - 1, 0, -1):
        older = _older(file, number)
        if older.exists():
            older.replace(_older(file, number + 1))
    file.replace(_older(file, 1))


def _older(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of it and of the older files, oldest first; an unreadable line is omitted. Blocking."""
    for path in [*(_older(file, number) for number in range(OLDER_FILES, 0, -1)), file]:
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            continue
        with stream:
            for line in stream:
                try:
                    found: Any = json.loads(line)
                except ValueError:
                    continue
                if isinstance(found, dict):
                    yield found
