"""A home that cannot be reached, and kernels that do not start: the server goes on, and nothing stays behind."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
import zmq.asyncio

from kernelmcp.config.models import Config, Flavor
from kernelmcp.config.settings import Settings, Values
from kernelmcp.errors import ConfigurationError, KernelStartFailed, StorageFailed
from kernelmcp.executions.execution import Execution
from kernelmcp.files.home import Home, SandboxDirectory, open_home
from kernelmcp.kernel import pool as pool_module
from kernelmcp.kernel.forks import Forks
from kernelmcp.kernel.pool import Pool, PooledKernel
from kernelmcp.kernel.process import Kernel, Launch
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session
from kernelmcp.sessions.storage import saver
from kernelmcp.sessions.storage.disk_use import DiskUse
from kernelmcp.sessions.storage.old_sessions import OldSessions
from kernelmcp.sessions.storage.record import Record, now, read_record
from kernelmcp.sessions.storage.stored import StoredSessions

from .support import wait_until

pytestmark = pytest.mark.anyio

# `stat` of it is refused by every file system, with an error that is not "there is none".
OUT_OF_REACH = Path("/" + "x" * 5000)
CALLER = Caller("token:a", lambda: None)


def settings_in(folder: Path, **sections: Any) -> Settings:
    config = {"server": {"home": folder / "home", "runtime": folder / "run"}, **sections}
    return Settings(Values(config=Config.model_validate(config)))


class NoKernels:
    """Starts none. By then, the log has what was submitted."""

    sessions: Registry

    async def take(self, _flavor: Flavor) -> PooledKernel:
        for session in self.sessions.every():
            session.log.flush()
        raise KernelStartFailed("it ended at once")


@asynccontextmanager
async def registry_of(folder: Path) -> AsyncIterator[Registry]:
    settings, kernels = settings_in(folder), NoKernels()
    with open_home(settings.home, folder / "run") as home:
        async with anyio.create_task_group() as tasks:
            kernels.sessions = Registry(settings, home, cast("Pool", kernels), tasks)
            yield kernels.sessions
            tasks.cancel_scope.cancel()


def end_cell(session: Session, execution_id: str) -> None:
    fold = session.executions.new_fold(execution_id, session.log.submitted(execution_id, now(), "1").add)
    execution = Execution(session.id, session.principal, "1", 1, fold.outputs, fold, execution_id)
    execution.started = execution.submitted
    session.log.flush()  # nothing is about to be written by itself
    session.executions.add(execution)
    execution.finish("ok", None, state_lost=False)
    session.execution_ended(execution)


def test_a_home_out_of_reach_is_said_and_a_workspace_there_is_not_whole(tmp_path: Path) -> None:
    home = Home(tmp_path, tmp_path / "run")
    with pytest.raises(StorageFailed, match="no longer exists"):
        home.check()
    home.sandboxes = OUT_OF_REACH
    with pytest.raises(StorageFailed, match="cannot be used now"):
        home.check()
    assert not SandboxDirectory(OUT_OF_REACH).is_whole


async def test_the_pool_outlives_whatever_prevents_a_warm_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0)
    settings = settings_in(tmp_path, sessions={"warm_pool_size": 1})
    failures: list[Exception] = [OSError("a disk that is away"), RuntimeError("can't start new thread")]
    refusals = [ConfigurationError("a link is in the place of a volume")]
    came = anyio.Event()

    class Failing(Pool):
        async def start(self, flavor: Flavor) -> PooledKernel:
            if failures:
                raise failures.pop()
            came.set()
            return cast("PooledKernel", "a kernel")

        def _drop_unusable(self) -> None:
            if refusals:
                raise refusals.pop()

    async with anyio.create_task_group() as tasks:
        pool = Failing(settings, cast("Home", None), cast("Any", None), cast("Forks", None), tasks)
        tasks.start_soon(pool.keep_warm)
        with anyio.fail_after(10):
            await came.wait()
        tasks.cancel_scope.cancel()


async def test_a_kernel_without_an_environment_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ConfigurationError("a link is in the place of a volume")

    monkeypatch.setattr(pool_module, "kernel_environment", refuse)
    settings = settings_in(tmp_path)
    with open_home(settings.home, tmp_path / "run") as home:
        async with anyio.create_task_group() as tasks:
            pool = Pool(settings, home, cast("Any", None), cast("Forks", None), tasks)
            with pytest.raises(ConfigurationError):
                await pool.start("medium")
        assert [each for each in home.sandboxes.iterdir() if each.is_dir()] == []


async def test_a_kernel_whose_files_cannot_be_deleted_ends_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "the disk is away")

    (tmp_path / "k.log").touch()
    context = zmq.asyncio.Context()
    kernel = Kernel(context, Launch("none", tmp_path, "k", tmp_path, {}, 1.0))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail)
        await kernel.close()
    await kernel.close()
    assert os.listdir(tmp_path) == []
    context.term()


async def test_a_session_without_a_kernel_is_saved_and_can_be_let_go(tmp_path: Path) -> None:
    async with registry_of(tmp_path) as registry:
        session, _ = await registry.find_or_create(CALLER, None)
        execution = session.submit("1")
        with anyio.fail_after(10):
            await execution.done.wait()
        assert not session.is_settled
        await registry.release(session, lambda: False)
        assert registry.every() == []
        session, _ = await registry.find_or_create(CALLER, None)
        execution = session.submit("1")
        with anyio.fail_after(10):
            await execution.done.wait()
        assert await anyio.to_thread.run_sync(wait_until, lambda: session.is_settled), "without anybody's help"


async def test_a_cell_that_ended_while_the_home_was_away_is_written_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "RETRY_SECONDS", 0)
    async with registry_of(tmp_path) as registry:
        session, _ = await registry.find_or_create(CALLER, "s")
        await anyio.wait_all_tasks_blocked()  # its first kernel has not started by then
        session.files.save_record()
        os.rename(tmp_path / "home", tmp_path / "away")
        end_cell(session, "cellcellcellcell0001")
        await session._saver.save()
        assert not session.log.is_written
        os.rename(tmp_path / "away", tmp_path / "home")
        assert await anyio.to_thread.run_sync(wait_until, lambda: session.log.is_written)
        assert b"cellcellcellcell0001" in (session.place / "notebook.jsonl").read_bytes()


async def test_a_session_that_cannot_be_closed_keeps_no_other_from_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registry_of(tmp_path) as registry:
        broken, _ = await registry.find_or_create(CALLER, "broken")
        whole, _ = await registry.find_or_create(CALLER, "whole")
        whole.files.save_record()
        end_cell(whole, "cellcellcellcell0001")

        def fail() -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(broken.log, "flush", fail)
        await registry.close()
        assert not broken.is_saving
        assert b"cellcellcellcell0001" in (whole.place / "notebook.jsonl").read_bytes()


async def test_a_sweep_measures_a_changed_session_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(tmp_path)
    with open_home(settings.home, tmp_path / "run") as home:
        stored = StoredSessions(home)
        use = DiskUse(settings, home, stored)
        directory = stored.directory("token:a", "s")
        directory.mkdir()
        Record(session_id="s", principal="token:a", created_at=now(), last_used_at=now()).write(directory)
        measure, measured = use._measure, list[Path]()

        def counted(folder: Path) -> Any:
            measured.append(folder)
            if len(measured) == 2:
                use.note_changed(folder, "token:a")  # another kernel of it ends meanwhile
            return measure(folder)

        monkeypatch.setattr(use, "_measure", counted)
        for change, walks in ((True, 1), (False, 1), (True, 2), (False, 3), (False, 3)):
            if change:
                use.note_changed(directory, "token:a")
            await use.measure_all()
            assert len(measured) == walks


def test_a_runtime_folder_of_others_loses_nothing(tmp_path: Path) -> None:
    """The home, for example: Lab's folder has a lock too."""
    theirs, ended = tmp_path / "lab", tmp_path / "0123abcd"
    for folder in (theirs, ended):
        folder.mkdir()
        (folder / "lock").touch()
        os.utime(folder / "lock", (0, 0))
    with open_home(tmp_path / "home", tmp_path):
        assert (theirs.exists(), ended.exists()) == (True, False)


def test_a_workspace_is_emptied_although_its_tmp_has_vanished(tmp_path: Path) -> None:
    sandbox = SandboxDirectory(tmp_path / "sandbox")
    sandbox.make()
    (sandbox.workspace / "file").touch()
    (sandbox.path / "tmp").rmdir()
    sandbox.path.chmod(0o500)
    sandbox.empty_workspace()
    assert (sandbox.path / "tmp").is_dir()
    assert list(sandbox.workspace.iterdir()) == []


def test_an_old_session_that_is_partly_deleted_has_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one its checkpoints would stay for ever, and somebody who names it would get a directory on its way
    out."""
    settings = settings_in(tmp_path)
    with open_home(settings.home, tmp_path / "run") as home:
        stored = StoredSessions(home)
        directory = stored.directory("token:a", "s")
        (directory / "checkpoints" / "f").mkdir(parents=True)
        record = Record(session_id="s", principal="token:a", created_at=now(), last_used_at="2020-01-01T00:00:00+00:00")
        record.write(directory)
        for file in ("lock", "trashed.json"):
            (directory / file).touch()
        sweep = OldSessions(settings, home, DiskUse(settings, home, stored)).sweep_trash
        trashed = home.trash / directory.name
        home.trash.mkdir()
        directory.rename(trashed)
        (trashed / "trashed.json").write_text(json.dumps([f"2020-02-0{day}" for day in range(1, 9)]))

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.EIO, "the disk is away")

        with monkeypatch.context() as patched:
            patched.setattr(os, "rmdir", fail)
            sweep()
        assert read_record(trashed) == record
        (trashed / "trashed.json").write_text(json.dumps([f"2020-02-0{day}" for day in range(1, 9)]))
        sweep()
        assert not trashed.exists()
