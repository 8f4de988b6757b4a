"""Calls that a load balancer repeats, because their server ended before it answered: what each was answered, for an
hour, in the home that the servers share.

For tools that must not do their work twice, other than those that run cells: a cell is in its session's log. A call
that was begun and has no answer is not made again, because nobody knows how far it came.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import structlog
from mcp_types import CallToolResult
from pydantic import ValidationError

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.errors import ResourceLimitExceeded
from kernelmcp.sessions.caller import Caller

TOOLS = frozenset(
    {
        "create_session",
        "checkpoint_session",
        "restore_session",
        "stop_session",
        "destroy_session",
        "reset_workspace",
        "install_package",
        "write_file",
    }
)
FOLDER = "requests"
# A balancer repeats a call at once; this is for servers whose clocks differ.
KEEP_SECONDS = 3600.0
SWEEP_SECONDS = 600.0
# For the end of a call whose server lives.
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.1

log = structlog.get_logger(__name__)


class RepeatedCalls:
    """The answers of all servers with this home, by their calls."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER
        self._swept = -SWEEP_SECONDS

    def key_of(self, tool: str, arguments: Mapping[str, Any], caller: Caller) -> str | None:
        """None if the call may be made again, or is none of a balancer."""
        if tool not in TOOLS or caller.request_id is None:
            return None
        call = json.dumps([caller.principal, caller.request_id, tool, dict(arguments)], sort_keys=True)
        return hashlib.sha256(call.encode("utf-8", "surrogatepass")).hexdigest()

    async def begin(self, key: str) -> CallToolResult | None:
        """The answer if the call was made before; None if it is new. Raises OSError, and `ResourceLimitExceeded` if it
        was begun and has no answer."""
        if await anyio.to_thread.run_sync(self._begin, key):
            return None
        with anyio.move_on_after(WAIT_SECONDS):
            while (found := await anyio.to_thread.run_sync(self._read, key)) is None:  # noqa: ASYNC110  # another server's
                await anyio.sleep(POLL_SECONDS)
            return found
        raise ResourceLimitExceeded(
            "this call was begun, and is not made again: its server has ended, or still works on it",
            "Wait, then check what it did, with get_sessions or get_workspace_info, before you call again.",
        )

    async def end(self, key: str, result: CallToolResult) -> None:
        """Keep the answer. One that cannot be kept is as one that never came."""
        try:
            await anyio.to_thread.run_sync(replace_text, self._file(key), result.model_dump_json(by_alias=True))
        except OSError as exc:
            log.warning("the answer of a call could not be kept", error=str(exc))

    def _begin(self, key: str) -> bool:
        """True if nobody has begun it."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        try:
            os.close(os.open(self._file(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            is_new = True
        except FileExistsError:
            is_new = False
        if time.monotonic() - self._swept >= SWEEP_SECONDS:
            self._swept = time.monotonic()
            self._sweep(self._file(key).name)
        return is_new

    def _read(self, key: str) -> CallToolResult | None:
        with suppress(OSError, ValidationError):
            return CallToolResult.model_validate_json(read_small(self._file(key), follow=False), by_name=False)
        return None

    def _sweep(self, kept: str) -> None:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if entry.name != kept and age > KEEP_SECONDS:
                        os.unlink(entry.path)

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.json"
