"""The documents of jupyter-collaboration as Lab uses them: nothing is written into one that is not saved."""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_server_fileid.manager import ArbitraryFileIdManager
from jupyter_server_ydoc.app import YDocExtension
from jupyter_server_ydoc.loaders import FileLoaderMapping
from jupyter_server_ydoc.websocketserver import JupyterWebsocketServer

from kernelmcp.lab.shared import stores
from kernelmcp.lab.shared.contents import Contents
from kernelmcp.lab.shared.documents import Documents
from kernelmcp.lab.shared.history import History

NAME = "s.ipynb"
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def cell(source: str, **outputs: Any) -> dict[str, Any]:
    kind = "code" if outputs else "markdown"
    return {"cell_type": kind, "id": source or "empty", "metadata": {}, "source": source} | outputs


class Lab:
    """What Lab has of documents: its files, their ids, and the rooms."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "notebooks" / NAME
        self.file.parent.mkdir()
        self.ids = ArbitraryFileIdManager(root_dir=str(self.file.parent), db_path=str(folder / "ids.db"))
        self.contents = Contents(root_dir=str(self.file.parent), delete_to_trash=False)
        log, settings = logging.getLogger(__name__), {"contents_manager": self.contents, "file_id_manager": self.ids}
        self.web_app = SimpleNamespace(settings=settings)
        self.extension: Any = SimpleNamespace(
            serverapp=SimpleNamespace(web_app=self.web_app, event_logger=SimpleNamespace(emit=lambda **_: None)),
            log=log,
            ystore_class=lambda path, log: None,
            document_save_delay=0.0,
            document_load_progressively=False,
            notebook_output_delay_threshold_mb=100,
            file_loaders=FileLoaderMapping(settings, log),
            ywebsocket_server=JupyterWebsocketServer(None, rooms_ready=False, auto_clean_rooms=False, log=log),  # type: ignore[arg-type]
            _room_locks=defaultdict(asyncio.Lock),
        )
        self.extension.get_document = lambda **given: YDocExtension.get_document(self.extension, **given)
        app = SimpleNamespace(
            root_dir=str(self.file.parent),
            web_app=self.web_app,
            contents_manager=self.contents,
            extension_manager=SimpleNamespace(extension_apps={"jupyter_server_ydoc": [self.extension]}),
        )
        self.documents = Documents(app)

    def cells(self) -> list[str]:
        return ["".join(cell["source"]) for cell in json.loads(self.file.read_text())["cells"]]

    async def add(self, source: str, **outputs: Any) -> Any:
        """Write a cell into the document, as a follower does, until it is saved."""
        document = await self.documents.get(NAME)
        document.append_cell(cell(source, **outputs))
        saving = [room._saving_document for room in self.extension.ywebsocket_server.rooms.values()]
        await asyncio.gather(*filter(None, saving))
        return document


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    lab = Lab(tmp_path)
    await lab.documents.start()
    lab.documents.make(NAME, "python")
    yield lab
    await lab.extension.file_loaders.clear()
    await lab.extension.ywebsocket_server.stop()


async def test_a_persons_large_output_is_no_damage(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_FOREIGN_BYTES", 2000)
    large = {"output_type": "stream", "name": "stdout", "text": 3000 * "x"}
    document = await lab.add("show()", execution_count=1, outputs=[large])
    assert lab.file.stat().st_size > 2000
    await lab.documents.prepare(NAME, "python")  # its kernel was restarted
    assert lab.cells() == ["", "show()"]
    assert (await lab.documents.get(NAME)) is document
    stores.check_notebook(lab.file)  # as after Lab was restarted
    assert lab.cells() == ["", "show()"]


async def test_a_document_that_is_open_is_what_counts(lab: Lab) -> None:
    document = await lab.add("typed")
    lab.file.unlink()
    await lab.documents.prepare(NAME, "python")
    await lab.add("more")
    assert lab.cells() == ["", "typed", "more"]
    assert (await lab.documents.get(NAME)) is document


async def test_a_document_that_could_not_be_read_is_loaded_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> Any:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(lab.contents, "_read_file", read)
        patched.setattr(Path, "read_bytes", read)
        with pytest.raises(OSError, match="too many"):
            await lab.documents.get(NAME)
    assert lab.file.exists()
    await lab.add("typed")
    assert lab.cells() == ["", "typed"]


async def cancel_loading(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    is_reading = asyncio.Event()

    async def read(*_: Any) -> None:
        is_reading.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(lab.contents, "_read_file", read)
        loading = asyncio.create_task(lab.documents.get(NAME))
        await is_reading.wait()
        loading.cancel()
        await asyncio.wait([loading])


async def test_a_document_whose_loading_was_cancelled_is_loaded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.file.write_text(json.dumps(json.loads(lab.file.read_text()) | {"cells": [cell("there")]}))
    await cancel_loading(lab, monkeypatch)
    await lab.add("typed")
    assert lab.cells() == ["there", "typed"]


async def begin_anew(lab: Lab) -> None:
    """The file cannot be loaded, and another one takes its place."""
    await lab.documents.prepare(NAME, "python")
    with pytest.raises(Exception, match=r".+"):
        await lab.documents.get(NAME)
    await lab.documents.keep(NAME, "python")
    await lab.add("typed")
    assert lab.cells() == ["", "typed"]


@pytest.mark.parametrize(
    "content",
    [
        {"nbformat": 4, "nbformat_minor": 5, "cells": []},
        {"nbformat": 4, "nbformat_minor": "5", "metadata": {}, "cells": []},
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell("a", outputs=[1])]},
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell("a") | {"source": 7}]},
    ],
    ids=["metadata", "version", "output", "source"],
)
async def test_what_a_document_cannot_load_is_put_aside(lab: Lab, content: dict[str, Any]) -> None:
    lab.file.write_text(json.dumps(content))
    await begin_anew(lab)
    assert json.loads(lab.file.with_name("s.damaged.ipynb").read_text()) == content


@pytest.mark.parametrize("is_large", [False, True], ids=["after its loading was cancelled", "large"])
async def test_what_cannot_be_loaded_is_put_aside(lab: Lab, monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    lab.file.write_text(json.dumps(json.loads(lab.file.read_text()) | {"cells": [cell("a", outputs=[1])]}))
    if is_large:
        monkeypatch.setattr(stores, "MAX_FOREIGN_BYTES", 100)
    else:
        await cancel_loading(lab, monkeypatch)
    await begin_anew(lab)
    assert lab.file.with_name("s.damaged.ipynb").exists()


async def test_a_history_that_cannot_be_applied_is_begun_anew(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(History, "file", tmp_path / "histories.db", raising=False)
    monkeypatch.setattr(History, "_database", None)
    lab.extension.ystore_class = History
    path = f".notebook:{lab.ids.index(NAME)}.y"
    (sessions := tmp_path / stores.SESSIONS).write_text("{}")
    await History(path).write(b"\xff")
    await History("another").write(b"\xff")
    with pytest.raises(ValueError, match="decode"):
        await lab.documents.get(NAME)
    await lab.add("typed")
    assert lab.cells() == ["", "typed"]
    assert not sessions.exists()  # open tabs are reloaded
    assert [each async for each in History("another").read()]


async def test_a_session_that_comes_back_after_its_notebook_was_deleted_is_saved_in_the_new_one(lab: Lab) -> None:
    old = await lab.add("old")
    await lab.contents.delete(NAME)
    lab.ids.delete(NAME)  # as its listener does
    assert not lab.documents.is_open(NAME)
    await lab.documents.prepare(NAME, "python")
    new = await lab.add("new")
    assert lab.cells() == ["", "new"]
    assert new is not old
    tab = lab.extension.ywebsocket_server.rooms[f"json:notebook:{lab.ids.index(NAME)}"]
    assert tab._document is new
