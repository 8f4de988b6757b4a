"""A home with many stored sessions: each record is read once, a sweep takes no session's files, and searches are few at
a time."""

import os
import threading
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import anyio
import anyio.to_thread
import pytest

from kernelmcp.errors import InvalidArgument
from kernelmcp.files.home import Home
from kernelmcp.mcp_server.descriptions import describe, describe_all
from kernelmcp.mcp_server.notebook_sources import NotebookSources
from kernelmcp.mcp_server.resources import Resources
from kernelmcp.sessions.caller import LOCAL, Caller
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.storage.record import Record, read_record
from kernelmcp.sessions.storage.stored import MAX_SEARCHES, StoredSessions

from .fake_kernels import opened, settings_of
from .stored_sessions import store_sessions

CALLER = Caller(LOCAL, lambda: None)


def test_a_record_is_read_again_only_when_its_file_has_changed(tmp_path: Path) -> None:
    names = store_sessions(tmp_path / "home", 8)
    home = Home(tmp_path / "home", tmp_path / "run")
    for name in names:
        os.utime(home.sessions / name / "session.json", (0, 0))
    stored = StoredSessions(home)
    first = {record.session_id: record for record in stored.records(CALLER)}
    first[names[3]].model_copy(update={"execution_count": 7}).write(home.sessions / names[3])
    for file in (home.sessions / names[5]).iterdir():
        file.unlink()
    second = {record.session_id: record for record in stored.records(CALLER)}
    assert sorted(second) == sorted({*names} - {names[5]})
    assert [name for name in second if second[name] is not first[name]] == [names[3]]
    assert second[names[3]].execution_count == 7


def test_a_record_that_has_just_changed_is_not_trusted_to_be_the_same(tmp_path: Path) -> None:
    [name] = store_sessions(tmp_path / "home", 1)
    stored = StoredSessions(Home(tmp_path / "home", tmp_path / "run"))
    [before] = stored.records(CALLER)
    [after] = stored.records(CALLER)
    assert (before, before is after) == (after, False), name


class _MovesWhileListed(Home):
    """A session comes back from the trash, or goes there, as soon as the trash was listed."""

    def trashed(self) -> list[Path]:
        found = super().trashed()
        for source, target in ((self.trash, self.sessions), (self.sessions, self.trash)):
            if (source / "moves").is_dir():
                (source / "moves").rename(target / "moves")
                break
        return found


def test_a_sweep_takes_the_files_of_no_session_that_moves_meanwhile(tmp_path: Path) -> None:
    for place in ("sessions", "trash"):
        root = tmp_path / place
        [name] = store_sessions(root, 1)
        home = _MovesWhileListed(root, tmp_path / "run")
        home.trash.mkdir()
        (home.sessions / name).rename(root / place / "moves")
        (left := home.sandboxes / "89abcdef-1" / "workspace").mkdir(parents=True)
        home.sweep_sandboxes()
        assert [file.read_text() for file in home.sandboxes.glob("*/workspace/f")] == [name]
        assert not left.exists()


def test_a_sweep_takes_no_files_while_a_record_cannot_be_read(tmp_path: Path) -> None:
    names = store_sessions(tmp_path / "home", 2)
    home = Home(tmp_path / "home", tmp_path / "run")
    for file in (home.sessions / names[0]).glob("session.*"):
        file.unlink()
        file.mkdir()
    home.sweep_sandboxes()
    assert sorted(file.read_text() for file in home.sandboxes.glob("*/workspace/f")) == names


@pytest.mark.anyio
async def test_searches_take_few_threads_however_many_calls_want_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    [name] = store_sessions(tmp_path, 1)
    record = read_record(tmp_path / "sessions" / name)

    def found(*_: object) -> Record | None:
        return record

    def search(*_: object) -> list[object]:
        may_end.wait(20)
        return []

    monkeypatch.setattr(StoredSessions, "record", found)
    for work in ("records", "workspaces", "find_execution"):
        monkeypatch.setattr(StoredSessions, work, search)

    async def read_notebook(registry: Registry, caller: Caller) -> None:
        session = MagicMock(principal=caller.principal, transcript=MagicMock(to_json=search))
        sessions = MagicMock(get=MagicMock(return_value=session), stored=registry.stored)
        await Resources(sessions, lambda _: caller, MagicMock()).notebook("s", MagicMock())

    async def read_source(registry: Registry, caller: Caller) -> None:
        session = MagicMock(transcript=MagicMock(to_json=lambda: str(search())))
        sessions = MagicMock(get=MagicMock(return_value=session), stored=registry.stored)
        with pytest.raises(InvalidArgument, match="not a notebook"):
            await NotebookSources(MagicMock(), sessions).read("kernelmcp://sessions/s/notebook", caller, None)

    async with opened(settings_of(tmp_path)) as (registry, _), anyio.create_task_group() as tasks:
        threads: list[float] = []
        for principal, ask in (
            ("token:a", partial(describe, session_id=name)),
            ("token:b", describe_all),
            ("token:c", partial(Registry.execution, execution_id="unknown")),
            ("token:d", read_notebook),
            ("token:e", read_source),
        ):
            for _ in range(20):
                tasks.start_soon(ask, registry, Caller(principal, lambda: None))
            await anyio.wait_all_tasks_blocked()
            threads.append(anyio.to_thread.current_default_thread_limiter().borrowed_tokens)
        may_end.set()
        assert threads == [1, 2, MAX_SEARCHES, MAX_SEARCHES, MAX_SEARCHES]


@pytest.mark.anyio
@pytest.mark.parametrize("is_listed", [False, True])
async def test_a_description_that_had_to_wait_tells_how_the_session_is_now(tmp_path: Path, is_listed: bool) -> None:
    caller = Caller(LOCAL, lambda: None)
    found: list[int] = []

    async def read(registry: Registry) -> None:
        infos = (
            (await describe_all(registry, caller))["sessions"] if is_listed else [await describe(registry, caller, "s")]
        )
        found.extend(info["execution_count"] for info in infos)

    async with opened(settings_of(tmp_path)) as (registry, _):
        session, _ = await registry.find_or_create(caller, "s")
        async with anyio.create_task_group() as tasks, registry.stored.searches.turn(LOCAL):
            tasks.start_soon(read, registry)
            await anyio.wait_all_tasks_blocked()
            session.record.execution_count = 7
    assert found == [7]
