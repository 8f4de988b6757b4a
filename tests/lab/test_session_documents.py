"""Lab as the servers are: what fails for one session, or is taken away from it, costs the others nothing."""

import asyncio
import errno
import json
import logging
import os
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_ydoc import YNotebook

from kernelmcp.lab import watch as watch_module
from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.lab.names import Names
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.shared import documents as documents_module
from kernelmcp.lab.shared import history
from kernelmcp.lab.shared.contents import Contents
from kernelmcp.lab.shared.history import History, complete_files
from kernelmcp.lab.shared.stores import SESSIONS
from kernelmcp.lab.watch import Watch

NOTEBOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def session(folder: Path, number: int, *, live: bool) -> Descriptor:
    kernel_id = f"00000000-0000-0000-0000-{number:012}"
    connection = folder / f"{number}.json" if live else None
    return Descriptor(kernel_id, f"s{number}", "", "python", folder, folder / "control", connection)


class Room:
    """A document that is open."""

    def __init__(self, name: str) -> None:
        self.ready, self.clients, self.room_id = True, {1}, f"json:notebook:{name}"
        self._saving_document = asyncio.get_running_loop().create_future()
        self._update_lock, self.saved = asyncio.Lock(), 0
        self._document = SimpleNamespace(aget=self.aget)
        self._file = SimpleNamespace(_lock=asyncio.Lock(), last_modified=None)

    async def _maybe_save_document(self, saving: None, save_now: bool) -> None:
        self.saved += save_now

    async def aget(self) -> dict[str, Any]:
        return NOTEBOOK | {"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "typed"}]}


def watching(folder: Path, sessions: list[Descriptor], *rooms: Room) -> Any:
    notebooks = folder / "notebooks"
    notebooks.mkdir(exist_ok=True)
    server = SimpleNamespace(rooms={room.room_id: room for room in rooms})
    file_ids = SimpleNamespace(get_id=lambda name: name)
    app = SimpleNamespace(
        root_dir=str(notebooks),
        web_app=SimpleNamespace(settings={"file_id_manager": file_ids}),
        log=logging.getLogger(__name__),
        kernel_manager=SimpleNamespace(list_kernel_ids=list),
        contents_manager=Contents(root_dir=str(notebooks)),
        extension_manager=SimpleNamespace(
            extension_apps={"jupyter_server_ydoc": [SimpleNamespace(ywebsocket_server=server)]}
        ),
    )
    found = SimpleNamespace(left_out=[], read=lambda: {one.kernel_id: one for one in sessions})
    questions = SimpleNamespace(follow=lambda _: None)
    names = Names(folder / "names.json", notebooks)
    return Watch(app, found, names, Persons(folder / "persons.json"), questions)  # type: ignore[arg-type]


async def test_a_notebook_that_cannot_be_written_keeps_no_other_from_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watching(tmp_path, [session(tmp_path, number, live=False) for number in range(3)])
    made = watch._documents.make

    def make(name: str, language: str) -> None:
        if name == "s1.ipynb":
            raise PermissionError("read-only")
        made(name, language)

    monkeypatch.setattr(watch._documents, "make", make)
    for _ in range(3):
        await watch._look()
    assert {file.name for file in (tmp_path / "notebooks").glob("*.ipynb")} == {"s0.ipynb", "s2.ipynb"}
    assert caplog.text.count("'s1' cannot be shown") == 1


async def test_a_notebook_that_is_deleted_while_it_is_open_is_written_again(tmp_path: Path) -> None:
    one, room = session(tmp_path, 0, live=True), Room("s0.ipynb")
    watch = watching(tmp_path, [one], room)
    watch._followed[one.kernel_id] = watch_module._Followed(one, None, None)  # type: ignore[arg-type]
    file = tmp_path / "notebooks" / "s0.ipynb"
    await watch._look()
    assert json.loads(file.read_text())["cells"][0]["source"] == ["typed"]
    assert room._file.last_modified is not None  # or it would be taken for a change of somebody else's
    watch._app.extension_manager.extension_apps["jupyter_server_ydoc"][0].ywebsocket_server.rooms.clear()
    file.unlink()
    await watch._look()
    assert json.loads(file.read_text())["cells"] == []


async def test_a_document_that_does_not_stop_changing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(documents_module, "SAVE_SHARE", 0.0)
    room = Room("s0.ipynb")
    kept = watching(tmp_path, [], room)._documents
    for _ in range(3):
        await kept.save_late()
    assert room.saved == 2
    room._saving_document.set_result(None)
    await kept.save_late()
    assert room.saved == 2


class Killed:
    """What a killed Lab has left: notebooks, the last changes of their documents, and the ids of both."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ids = folder / "notebooks", folder / "ids.db"
        self.folder.mkdir()
        with sqlite3.connect(self.ids) as ids:
            ids.execute("CREATE TABLE Files (id TEXT, path TEXT)")

    async def add(self, name: str, content: dict[str, Any], *, later: float) -> Path:
        """A notebook as it was saved this many seconds after (before, if less than 0) its last change, "typed"."""
        typed = YNotebook()
        typed.set(await Room("").aget())
        await Contents(root_dir=str(self.folder)).save({"type": "notebook", "content": content}, name)
        return await self.keep(name, typed, later=later)

    async def keep(self, name: str, document: Any, *, later: float) -> Path:
        await History(f".notebook:id-{name}.y").write(document._ydoc.get_update())
        file = self.folder / name
        os.utime(file, (time.time() + later,) * 2)
        with sqlite3.connect(self.ids) as ids:
            ids.execute("INSERT INTO Files VALUES (?, ?)", [f"id-{name}", str(file)])
        return file

    def complete(self) -> None:
        complete_files(History.file, self.ids, self.folder)


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killed:
    monkeypatch.setattr(History, "file", tmp_path / "histories.db", raising=False)
    monkeypatch.setattr(History, "_database", None)
    return Killed(tmp_path)


def saying(source: str) -> dict[str, Any]:
    return NOTEBOOK | {"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": source}]}


def source_of(file: Path) -> str:
    return "".join(json.loads(file.read_text())["cells"][0]["source"])


@pytest.mark.parametrize(("later", "source"), [(-60, "typed"), (3600, "in the file")])
async def test_what_a_killed_lab_had_not_saved_is_in_the_notebook(killed: Killed, later: float, source: str) -> None:
    file = await killed.add("s0.ipynb", saying("in the file"), later=later)
    killed.complete()
    assert source_of(file) == source
    assert list(killed.folder.glob("*.ipynb")) == [file]


async def test_a_notebook_from_a_backup_is_kept_beside_what_lab_had_not_saved(killed: Killed) -> None:
    file = await killed.add("s0.ipynb", saying("yesterday"), later=-86400)
    killed.complete()
    assert source_of(file) == "typed"
    assert source_of(killed.folder / "s0.damaged.ipynb") == "yesterday"


@pytest.mark.parametrize("later", [1, -86400])
async def test_a_notebook_that_was_saved_is_not_written_again(killed: Killed, later: float) -> None:
    file = await killed.add("s0.ipynb", saying("typed"), later=later)
    before = file.stat()
    killed.complete()
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(killed.folder.glob("*.ipynb")) == [file]


OUTPUT = {"output_type": "display_data", "data": {"application/json": {"a": [1, 2.0, 1e20]}}, "metadata": {}}


@pytest.mark.parametrize(
    "content",
    [
        NOTEBOOK | {"cells": [saying("typed")["cells"][0] | {"attachments": {}}]},
        NOTEBOOK
        | {
            "cells": [
                {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [OUTPUT], "source": "x\ny"},
            ],
            "metadata": {"widgets": {"a": 1.5}},
        },
        NOTEBOOK | {"nbformat_minor": 2, "cells": [{"cell_type": "raw", "metadata": {}, "source": ["a\n", "b"]}]},
    ],
    ids=["attachments", "output", "old"],
)
@pytest.mark.filterwarnings("ignore::nbformat.warnings.MissingIDFieldWarning")
async def test_a_notebook_that_was_only_opened_is_not_written(killed: Killed, content: dict[str, Any]) -> None:
    file = killed.folder / "s0.ipynb"
    file.write_text(json.dumps(content))
    document: Any = YNotebook()
    document.set((await Contents(root_dir=str(killed.folder)).get("s0.ipynb"))["content"])
    before = file.read_text()
    await killed.keep("s0.ipynb", document, later=-86400)
    killed.complete()
    assert file.read_text() == before
    assert list(killed.folder.glob("*.ipynb")) == [file]


async def test_metadata_that_a_killed_lab_had_not_saved_is_in_the_notebook(killed: Killed) -> None:
    file = killed.folder / "s0.ipynb"
    file.write_text(json.dumps(saying("typed")))
    document: Any = YNotebook()
    document.set(saying("typed") | {"metadata": {"title": "new"}})
    await killed.keep("s0.ipynb", document, later=-60)
    killed.complete()
    assert json.loads(file.read_text())["metadata"]["title"] == "new"


async def test_a_damaged_history_is_begun_anew(killed: Killed) -> None:
    await killed.add("s0.ipynb", saying("in the file"), later=-60)
    await killed.add("s1.ipynb", saying("typed"), later=-60)
    (sessions := History.file.with_name(SESSIONS)).write_text("{}")
    killed.complete()
    assert sessions.exists()
    with History._opened() as database:
        database.execute("UPDATE changes SET change = X'ff' WHERE path = '.notebook:id-s0.ipynb.y'")
    killed.complete()
    assert History._opened().execute("SELECT path FROM changes").fetchall() == [(".notebook:id-s1.ipynb.y",)]
    assert not sessions.exists()  # or open tabs would show each cell twice


async def test_a_damaged_history_is_found_where_the_file_is_newer(killed: Killed) -> None:
    file = await killed.add("s0.ipynb", saying("in the file"), later=3600)
    with History._opened() as database:
        database.execute("UPDATE changes SET change = X'ff'")
    killed.complete()
    assert History._opened().execute("SELECT path FROM changes").fetchall() == []
    assert source_of(file) == "in the file"


@pytest.mark.parametrize(("saved", "later"), [("typed", 1), ("newer", 3600)])
async def test_a_notebook_whose_file_and_history_are_as_they_were_is_not_loaded_again(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, saved: str, later: float
) -> None:
    loaded: list[str] = []
    content = history._content

    def load(database: sqlite3.Connection, path: str, sessions: Path) -> dict[str, Any]:
        loaded.append(path)
        return content(database, path, sessions)

    monkeypatch.setattr(history, "_content", load)
    file = await killed.add("s0.ipynb", saying(saved), later=later)
    killed.complete()
    killed.complete()
    assert (len(loaded), source_of(file)) == (1, saved)
    file.write_text(json.dumps(saying("older")))
    os.utime(file, (time.time() - 60,) * 2)
    killed.complete()
    assert (len(loaded), source_of(file)) == (2, "typed")
    document: Any = YNotebook()
    document.set(NOTEBOOK | {"cells": [saying("more")["cells"][0] | {"id": "b"}]})
    await History(".notebook:id-s0.ipynb.y").write(document._ydoc.get_update())
    killed.complete()
    assert len(loaded) == 3


async def test_a_folder_with_the_name_of_the_copy_costs_nothing(killed: Killed) -> None:
    file = await killed.add("s0.ipynb", saying("yesterday"), later=-86400)
    (killed.folder / "s0.damaged.ipynb").mkdir()
    killed.complete()
    assert source_of(file) == "typed"
    [copy] = killed.folder.glob("s0.damaged.*.ipynb")
    assert source_of(copy) == "yesterday"


async def test_a_full_disk_costs_no_history(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    file = await killed.add("s0.ipynb", saying("in the file"), later=-60)
    with monkeypatch.context() as patched:
        patched.setattr(history, "replace_text", full)
        killed.complete()
    assert "s0.ipynb when it ended could not be saved now: " in caplog.text
    assert source_of(file) == "in the file"
    killed.complete()
    assert source_of(file) == "typed"


async def test_a_damaged_history_keeps_no_other_notebook_from_being_saved(
    killed: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    files = [await killed.add(f"s{number}.ipynb", saying("in the file"), later=-60) for number in range(3)]
    with History._opened() as database:
        database.execute("UPDATE changes SET change = X'ff' WHERE path = '.notebook:id-s0.ipynb.y'")
    killed.complete()
    assert [source_of(file) for file in files] == ["in the file", "typed", "typed"]
    assert caplog.text.count("s0.ipynb when it ended is lost") == 1


async def test_a_history_that_cannot_be_read_now_is_kept(
    killed: Killed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted(*_: Any) -> None:
        raise MemoryError

    file = await killed.add("s0.ipynb", saying("in the file"), later=-60)
    with monkeypatch.context() as patched:
        patched.setattr(history, "YNotebook", exhausted)
        killed.complete()
    with History._opened() as database:
        database.execute("UPDATE changes SET change = CAST(change || X'ff' AS TEXT)")
    killed.complete()
    assert "Could not decode to UTF-8" in caplog.text  # an sqlite3.Error
    assert source_of(file) == "in the file"
    with History._opened() as database:
        database.execute(
            "UPDATE changes SET change = substr(CAST(change AS BLOB), 1, length(CAST(change AS BLOB)) - 1)"
        )
    killed.complete()
    assert source_of(file) == "typed"


async def test_a_damaged_history_that_cannot_be_deleted_keeps_no_other_notebook_from_being_saved(
    killed: Killed,
) -> None:
    files = [await killed.add(f"s{number}.ipynb", saying("in the file"), later=-60) for number in range(2)]
    with History._opened() as database:
        database.execute("UPDATE changes SET change = X'ff' WHERE path = '.notebook:id-s0.ipynb.y'")
    database.execute("BEGIN IMMEDIATE")  # another connection waits, and its DELETE fails
    killed.complete()
    database.rollback()
    assert [source_of(file) for file in files] == ["in the file", "typed"]
