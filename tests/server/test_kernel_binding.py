"""What a session's kernel binding leaves on disk for the next server, without a kernel."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import zmq.asyncio

from kernelmcp.config.models import Config, Values
from kernelmcp.config.settings import Settings
from kernelmcp.files.home import Home
from kernelmcp.files.volume_files import VolumeFiles
from kernelmcp.kernel.connection import make_context
from kernelmcp.kernel.pool import Pool
from kernelmcp.sessions.hibernation.saved_variables import SavedVariables
from kernelmcp.sessions.kernel_binding import KernelBinding
from kernelmcp.sessions.life import Life
from kernelmcp.sessions.storage.disk_use import DiskUse
from kernelmcp.sessions.storage.record import Record, now, read_record
from kernelmcp.sessions.storage.session_files import SessionFiles
from kernelmcp.sessions.storage.stored import StoredSessions

pytestmark = pytest.mark.anyio


class Nobody:
    """Uses no kernel: these servers have none."""

    def hear_late(self, execution_id: str, kind: str, content: dict[str, Any]) -> None: ...

    def hear_other(self, request: dict[str, Any], kind: str, content: dict[str, Any]) -> None: ...

    def hear_other_use(self) -> None: ...

    is_running = False

    def kernel_changed(self) -> None: ...


class Server:
    """What one server process has of a session. One that is killed does nothing more, so this has no end."""

    def __init__(self, folder: Path, tasks: anyio.abc.TaskGroup, context: zmq.asyncio.Context) -> None:
        home = Home(folder / "home", folder / "runtime")
        self.directory = home.sessions / "s"
        self.directory.mkdir(parents=True, exist_ok=True)
        config = Config.model_validate({"server": {"home": home.root}})
        settings = Settings(Values(config=config))
        record = read_record(self.directory) or Record(
            session_id="s", principal="local", created_at=now(), last_used_at=now()
        )
        disk = DiskUse(settings, home, StoredSessions(home))
        files = SessionFiles(home, disk, tasks, self.directory, record, VolumeFiles(settings))
        pool = Pool(settings, home, context, tasks)
        saved = SavedVariables(home.root, self.directory, record, enabled=True)
        self.binding = KernelBinding(settings, pool, tasks, record, Life("s"), files, saved, Nobody())


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[], Server]]:
    """Start a server on the same home as the one before it."""
    with make_context() as context:
        async with anyio.create_task_group() as tasks:
            yield lambda: Server(tmp_path, tasks, context)


async def test_the_first_execution_is_on_disk_before_it_is_sent(start: Callable[[], Server]) -> None:
    killed = start()
    assert not killed.binding.begin().lost  # there was nothing to lose
    assert not killed.binding.begin().lost
    written = read_record(killed.directory)
    assert written is not None
    assert written.has_run
    following = start()
    assert following.binding.begin().lost  # what it had is lost
    assert not following.binding.begin().lost  # and that is said once


async def test_what_another_client_executes_is_on_disk_at_once(start: Callable[[], Server]) -> None:
    start().binding.note_used()
    assert start().binding.begin().lost
