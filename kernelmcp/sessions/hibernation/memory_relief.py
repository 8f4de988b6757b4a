"""While memory is short, ends the kernels of idle sessions, those first that were idle longest. Their variables are
saved, and come back with the next call. A session whose variables cannot be saved is left alone."""

import time
from collections.abc import Callable

import anyio
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.errors import InvalidArgument, StorageFailed
from kernelmcp.kernel.memory_use import MemoryUse, memory_use
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session

CHECK_SECONDS = 1.0
# A session that was used so recently is probably about to be used again.
MIN_IDLE_SECONDS = 5.0
# After an attempt to save its variables that failed.
RETRY_SECONDS = 60.0

log = structlog.get_logger(__name__)


class MemoryRelief:
    """The relief of one server."""

    def __init__(self, settings: Settings, registry: Registry, use: Callable[[], MemoryUse] = memory_use) -> None:
        self._settings = settings
        self._registry = registry
        self._use = use
        self._not_before: dict[Session, float] = {}
        """When to try again to save a session's variables, by the monotonic clock."""

    async def run(self) -> None:
        """Check periodically. Runs for the server's life."""
        while True:
            await anyio.sleep(CHECK_SECONDS)
            try:
                while (session := self._longest_idle()) is not None and self._is_short():
                    self._not_before[session] = time.monotonic() + RETRY_SECONDS  # if it goes on
                    await self._relieve(session)
            except Exception:
                log.exception("idle sessions could not be ended to free memory")
                await anyio.sleep(RETRY_SECONDS)

    def _is_short(self) -> bool:
        sessions = self._settings.config.sessions
        return sessions.hibernate and self._use().share > sessions.memory_share

    def _longest_idle(self) -> Session | None:
        now = time.monotonic()
        live = [session for session in self._registry.every() if session.kernel is not None]
        self._not_before = {session: due for session, due in self._not_before.items() if session in live and due > now}
        idle = [
            session
            for session in live
            if session.is_idle and now > session.last_used + MIN_IDLE_SECONDS and session not in self._not_before
        ]
        return min(idle, key=lambda session: session.last_used, default=None)

    async def _relieve(self, session: Session) -> None:
        log.info(
            "memory is short: ending the kernel of the session that was idle longest",
            session=session.id,
            principal=session.principal,
        )
        try:
            with session.past.storing():
                await session.stop_if_idle(must_end=False, must_save=True)
        except (InvalidArgument, StorageFailed) as exc:
            log.info(
                "its variables could not be saved: it goes on",
                session=session.id,
                principal=session.principal,
                reason=exc.message,
            )
