"""All sessions of a server: found or made for a caller, limited, and stopped when idle.

Every lookup is by `(principal, handle)`, never by connection; another principal's session reads as not found.
Above: tools, resources. Below: sessions, home. Must not know MCP.
"""

import hashlib
import json
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import structlog

from kernelmcp.config import Flavor, Settings
from kernelmcp.errors import ExecutionNotFound, InvalidArgument, ResourceLimitExceeded, SessionNotFound
from kernelmcp.executions import Execution
from kernelmcp.home import Home, lock_session
from kernelmcp.pool import Pool
from kernelmcp.sessions import Session

LOCAL = "local"
"""The principal of stdio: whoever may start the process."""
# How often idle sessions are looked for, as a share of the idle life.
EXPIRY_CHECKS_PER_LIFE = 20
MAX_EXPIRY_CHECK_SECONDS = 30.0
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and which session is meant when the call names none."""

    principal: str
    default_handle: str | None


def mint_handle() -> str:
    """192 random bits, a valid name."""
    return secrets.token_hex(24)


class Registry:
    """The sessions of one server process."""

    def __init__(self, settings: Settings, home: Home, pool: Pool, tasks: anyio.abc.TaskGroup) -> None:
        self._settings = settings
        self._home = home
        self._pool = pool
        self._tasks = tasks
        self._sessions: dict[tuple[str, str], Session] = {}

    # -- find ---------------------------------------------------------------------------------------------------

    def get(self, caller: Caller, session_id: str | None) -> Session:
        """An existing session. Raises `SessionNotFound`."""
        handle = session_id or caller.default_handle
        if handle is not None:
            self._check_name(handle)
            session = self._sessions.get((caller.principal, handle)) or self._revive(caller, handle)
            if session is not None:
                return session
        raise SessionNotFound(
            f"there is no session {session_id!r}" if session_id else "you have no session yet",
            "List yours with get_sessions; execute_code or create_session makes one.",
            session_id=session_id,
        )

    def find_or_create(
        self, caller: Caller, session_id: str | None, flavor: Flavor | None = None
    ) -> tuple[Session, bool]:
        """The caller's session and whether it is new."""
        handle = session_id or caller.default_handle or mint_handle()
        session = self._sessions.get((caller.principal, handle))
        if session is not None:
            if not session.wanted:
                self._admit(caller)
            return session, False
        self._check_name(handle)
        self._admit(caller)
        session = self._revive(caller, handle)
        if session is not None:
            return session, False
        now = datetime.now(UTC).isoformat()
        record: dict[str, Any] = {
            "session_id": handle,
            "principal": caller.principal,
            "language": "python",
            "flavor": flavor or self._settings.policy.default_flavor,
            "created_at": now,
            "last_used_at": now,
            "execution_count": 0,
            "berths": [],
        }
        return self._open(self._directory(caller, handle), record), True

    def all(self, caller: Caller) -> list[Session]:
        return [session for (principal, _), session in self._sessions.items() if principal == caller.principal]

    def execution(self, caller: Caller, execution_id: str) -> Execution:
        for session in self.all(caller):
            if (found := session.executions.get(execution_id)) is not None:
                return found
        raise ExecutionNotFound(
            f"there is no execution {execution_id!r}",
            "Ids come from execute_code. A session keeps its newest executions only, and none outlives its server.",
            execution_id=execution_id,
        )

    def _check_name(self, handle: str) -> None:
        if not _NAME.fullmatch(handle) or handle in (".", ".."):
            raise InvalidArgument(
                f"{handle!r} is not a session id",
                "Use 1 to 64 of the characters A-Z a-z 0-9 . _ - or leave it out.",
                argument="session_id",
            )

    # -- make and end -------------------------------------------------------------------------------------------

    def _admit(self, caller: Caller) -> None:
        limits = self._settings.config.sessions
        live = [session for session in self._sessions.values() if session.wanted]
        own = [session for session in live if session.principal == caller.principal]
        for held, limit, whose in (
            (len(own), limits.max_sessions_per_client, "you have"),
            (len(live), limits.max_sessions, "the server has"),
        ):
            if held >= limit:
                raise ResourceLimitExceeded(
                    f"{whose} {held} running sessions, and {limit} are allowed",
                    "Use one of them (get_sessions lists yours), or end one with destroy_session or stop_session.",
                    limit=limit,
                )

    def _directory(self, caller: Caller, handle: str) -> Path:
        # "~" is in no session name, so one principal's name can't be another's directory.
        prefix = "" if caller.principal == LOCAL else f"{hashlib.sha256(caller.principal.encode()).hexdigest()[:16]}~"
        return self._home.sessions / f"{prefix}{handle}"

    def _revive(self, caller: Caller, handle: str) -> Session | None:
        """A session of an earlier server process: its files and transcript are there, its variables are not."""
        directory = self._directory(caller, handle)
        try:
            record = json.loads((directory / "session.json").read_text("utf-8"))
            if record["principal"] != caller.principal or record["session_id"] != handle:
                return None
            return self._open(directory, record)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            log.error("damaged session record", directory=str(directory))
            return None

    def _open(self, directory: Path, record: dict[str, Any]) -> Session:
        directory.mkdir(mode=0o700, exist_ok=True)
        lock = lock_session(directory, record["session_id"])
        session = Session(
            settings=self._settings,
            home=self._home,
            pool=self._pool,
            tasks=self._tasks,
            directory=directory,
            lock=lock,
            record=record,
        )
        self._sessions[session.principal, session.id] = session
        self._tasks.start_soon(session.run)
        return session

    async def destroy(self, session: Session) -> None:
        await session.destroy()
        self._sessions.pop((session.principal, session.id), None)

    # -- background ---------------------------------------------------------------------------------------------

    async def stop_idle(self) -> None:
        """Runs for the server's life."""
        life = self._settings.config.sessions.default_timeout_seconds
        while True:
            await anyio.sleep(min(life / EXPIRY_CHECKS_PER_LIFE, MAX_EXPIRY_CHECK_SECONDS))
            for session in list(self._sessions.values()):
                if session.wanted and session.is_idle and time.monotonic() - session.last_used > life:
                    log.info("stopping an idle session", session=session.id)
                    await session.stop()

    async def close(self) -> None:
        """Write what is not written. The kernels end with their task group."""
        for session in self._sessions.values():
            await session.save()
