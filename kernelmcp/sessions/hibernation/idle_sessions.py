"""Ends the kernels of sessions that nobody has used for `default_timeout_seconds`. Their variables are saved."""

import time
from functools import partial

import anyio
import anyio.abc
import structlog

from kernelmcp.config.settings import Settings
from kernelmcp.sessions import background
from kernelmcp.sessions.registry import Registry

# Checks per idle lifetime.
CHECKS_PER_LIFE = 20
MAX_CHECK_SECONDS = 30.0

log = structlog.get_logger(__name__)


async def stop_idle_sessions(settings: Settings, registry: Registry, tasks: anyio.abc.TaskGroup) -> None:
    """Check periodically. Runs for the server's life."""
    while True:
        life = settings.config.sessions.default_timeout_seconds
        await anyio.sleep(min(life / CHECKS_PER_LIFE, MAX_CHECK_SECONDS))
        for session in registry.every():
            due = max(session.last_used + life, session.queue.binding.variables.saved.next_attempt)
            has_kernel = session.kernel is not None or session.state == "starting"
            if has_kernel and session.is_idle and time.monotonic() > due:
                log.info("stopping an idle session", session=session.id, principal=session.principal)
                background.start(tasks, "stopping an idle session", partial(session.stop_if_idle, must_end=False))
