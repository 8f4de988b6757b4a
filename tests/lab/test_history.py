"""The changes of Lab's documents: there after a kill, in order, and not for ever more."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pycrdt
import pytest

from kernelmcp.lab.shared import history
from kernelmcp.lab.shared.history import History

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(History, "file", tmp_path / "histories.db", raising=False)
    monkeypatch.setattr(History, "_database", None)
    return History.file


async def write(kept: History, *texts: str) -> Any:
    """A document with these texts in it, of which `kept` is the history."""
    document: Any = pycrdt.Doc({"texts": pycrdt.Array()})
    changes: list[bytes] = []
    document.observe(lambda event: changes.append(event.update))
    for text in texts:
        document["texts"].append(text)
    for change in changes:
        await kept.write(change)
    return document


async def read(kept: History) -> list[str]:
    document: Any = pycrdt.Doc({"texts": pycrdt.Array()})
    await kept.apply_updates(document)
    return document["texts"].to_py()


async def test_what_was_written_is_there_for_the_next_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    await write(History("a"), "one", "two")
    await write(History("b"), "other")
    monkeypatch.setattr(History, "_database", None)  # nothing was closed: as after a kill
    assert await read(History("a")) == ["one", "two"]
    assert await read(History("b")) == ["other"]
    with pytest.raises(history.YDocNotFound):
        await read(History("c"))


async def test_a_long_history_becomes_one_change_and_loses_nothing(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr(history, "SQUASH_BYTES", 10_000)
    kept = History("a")
    await write(History("b"), "other")
    document = await write(kept, *(str(number) for number in range(1000)))
    while kept._squashing is not None:
        await asyncio.wait([kept._squashing])
    assert await read(History("a")) == document["texts"].to_py()
    assert await read(History("b")) == ["other"]
    with sqlite3.connect(file) as found:
        assert found.execute("SELECT count(*) FROM changes").fetchone()[0] < 1000


async def test_deleted_outputs_leave_the_history(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setattr(history, "SQUASH_BYTES", 1_000_000)
    kept = History("a")
    document: Any = pycrdt.Doc({"texts": pycrdt.Array()})
    changes: list[bytes] = []
    document.observe(lambda event: changes.append(event.update))
    for number in range(60):
        document["texts"].append(str(number) + 100_000 * "x")
        del document["texts"][0]
    for change in changes:
        await kept.write(change)
        while kept._squashing is not None:
            await asyncio.wait([kept._squashing])
    with sqlite3.connect(file) as found:
        assert found.execute("SELECT sum(length(change)) FROM changes").fetchone()[0] < 2_000_000


async def test_a_change_that_could_not_be_written_is_written_with_the_next(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = History("a")
    document = await write(kept, "one")
    changes: list[bytes] = []
    document.observe(lambda event: changes.append(event.update))
    for text in ("two", "three", "four"):
        document["texts"].append(text)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    await kept.write(changes[0])
    await kept.write(changes[1])
    other.execute("ROLLBACK")
    other.close()
    await kept.write(changes[2])
    assert await read(kept) == ["one", "two", "three", "four"]
    assert caplog.text.count("could not be kept") == 1


async def test_a_change_that_comes_while_a_history_is_replaced_waits_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    replace, begun, goes_on = history.replace_changes, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def held(*given: Any) -> None:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # as long as a large history takes
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        other.execute("ROLLBACK")
        other.close()
        replace(*given)

    monkeypatch.setattr(history, "replace_changes", held)
    monkeypatch.setattr(history, "SQUASH_BYTES", 1000)
    kept = History("a")
    document = await write(kept, 1000 * "x")
    changes: list[bytes] = []
    document.observe(lambda event: changes.append(event.update))
    document["texts"].append("y")
    await begun.wait()
    writing = asyncio.create_task(kept.write(changes[0]))
    await asyncio.sleep(0)
    goes_on.set()
    await writing
    assert await read(kept) == [1000 * "x", "y"]
    while kept._squashing is not None:
        await asyncio.wait([kept._squashing])


async def test_a_damaged_database_ends_no_document(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = History("a")
    await write(kept, "one")
    History._opened().execute("DROP TABLE changes")
    await write(kept, "two")
    with pytest.raises(history.YDocNotFound):
        await read(kept)
    assert "could not be kept" in caplog.text
