"""Applies changed settings files while the server runs.

An invalid file is reported in the log, once, and the old values stay; `kernelmcp doctor` reports it too. Settings that
cannot change under live sessions wait for the next start (`settings.FIXED_AT_START`).
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from kernelmcp.atomic import read_small
from kernelmcp.config.load import MAX_FILE_BYTES
from kernelmcp.config.settings import Place, Settings
from kernelmcp.errors import ConfigurationError

# How long a file must stay unchanged before it is read, in seconds: editors write in several steps.
SETTLE_SECONDS = 0.1
# How often the watching thread checks for changes and for its end, in milliseconds: it delays the server's end by as
# much.
STEP_MS = 50

log = structlog.get_logger(__name__)


Check = Callable[[Settings], None]
"""Checks whether a running server may apply settings. Raises `ConfigurationError`."""


async def keep_current(settings: Settings, check: Check) -> None:
    """Apply changes for the server's life. If the file system reports no changes, logs this and returns."""
    if settings.sources is None:
        return
    places = settings.sources.places
    seen = await anyio.to_thread.run_sync(_contents, places)

    async def catch_up() -> None:
        take_over(settings, check)

    async with anyio.create_task_group() as tasks:
        stop = anyio.Event()
        tasks.start_soon(_set_at_the_end, stop)
        try:
            folders = await anyio.to_thread.run_sync(_folders, places)
            # Not imported before the first cell.
            watchfiles = await anyio.to_thread.run_sync(importlib.import_module, "watchfiles")
            # Runs once the loop below watches: changes since the server read its settings are not reported.
            tasks.start_soon(catch_up)
            # No filter: the default one skips folders of names such as .venv.
            watch = watchfiles.awatch(*folders, watch_filter=None, recursive=False, step=STEP_MS, stop_event=stop)
            async for _ in watch:
                # Compared by content, because the log or other files may be in the same directory.
                if (found := await _settled(places)) != seen:
                    seen = found
                    take_over(settings, check)
        except (OSError, RuntimeError, ExceptionGroup) as exc:  # a RuntimeError where the system has no more watches
            log.warning("changed settings take effect only after a restart: files are not watched", error=str(exc))
        tasks.cancel_scope.cancel()


def _folders(places: tuple[Place, ...]) -> set[Path]:
    """The directories of the files, and of those that links lead to. A replaced file (an editor's save, a mounted
    secret) is another file, so the files themselves are not watched."""
    named = (path for place in places for path in (place.path, Path(os.path.realpath(place.path))))
    return {path.parent for path in named if os.path.isdir(path.parent)}


async def _set_at_the_end(stop: anyio.Event) -> None:
    """Set `stop` at the end: the watching thread can't be cancelled, and checks only this event."""
    try:
        await anyio.sleep_forever()
    finally:
        stop.set()


def take_over(settings: Settings, check: Check) -> None:
    try:
        changed, waiting = settings.reload(check)
    except ConfigurationError as exc:
        log.error("the changed settings are invalid; the old ones stay in effect", error=exc.message)
        return
    except Exception:
        # Our bug, which is no reason to end all sessions.
        log.exception("the changed settings could not be applied; the old ones stay in effect")
        return
    if changed:
        log.info("settings have changed", changed=changed)
    if waiting:
        log.warning("some changed settings take effect only after a restart", changed=waiting)


async def _settled(places: tuple[Place, ...]) -> list[bytes | str]:
    """The content of the files once they are stable: a file that is being written is empty for a moment."""
    before = await anyio.to_thread.run_sync(_contents, places)
    while True:
        await anyio.sleep(SETTLE_SECONDS)
        found = await anyio.to_thread.run_sync(_contents, places)
        if found == before:
            return found
        before = found


def _contents(places: tuple[Place, ...]) -> list[bytes | str]:
    found: list[bytes | str] = []
    for place in places:
        try:
            found.append(read_small(place.path, MAX_FILE_BYTES))
        except OSError as exc:
            found.append(str(exc.errno))
    return found
