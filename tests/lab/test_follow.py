"""A follower writes into a session's notebook what its kernel publishes, and what the journal and the drafts have."""

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_ydoc import YNotebook

from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.record import follow
from kernelmcp.lab.record.follow import Document, Follower
from kernelmcp.lab.record.iopub import Event
from kernelmcp.lab.record.journal_tail import JournalTail
from kernelmcp.lab.record.record import Record, cell_id

DEADLINE_SECONDS = 60


class FakeIopub:
    """What a kernel publishes, as a test says."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.some = asyncio.Event()

    def publish(self, execution_id: str, kind: str, client: str = "server", **content: Any) -> None:
        self.events.append(Event(execution_id, client, kind, content))
        self.some.set()

    async def read(self) -> None:
        await asyncio.Event().wait()

    async def wait(self) -> None:
        await self.some.wait()

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        self.some.clear()
        return events

    def close(self) -> None:
        pass


class Session:
    """A session's directory and its notebook in Lab."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder
        self.journal = folder / "notebook.jsonl"
        (folder / "running").mkdir()
        self.notebook = YNotebook()
        self.notebook.set({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        self.record, self.tail = Record(), JournalTail(folder)
        self.persons = Persons(folder / "persons.json")
        self.iopub = FakeIopub()

    def execute(self, execution_id: str, text: str = "", **facts: Any) -> None:
        self.append(self.line(execution_id, text, **facts))

    def append(self, *lines: str) -> None:
        """In one write: nobody reads the journal in between."""
        with self.journal.open("a") as stream:
            stream.write("".join(lines))

    def line(self, execution_id: str, text: str = "", **facts: Any) -> str:
        cell = {
            "cell_type": "code",
            "id": "0123abcd",
            "metadata": {"trusted": False, "kernelmcp": {"execution_id": execution_id, **facts}},
            "execution_count": 1,
            "source": execution_id,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": text or execution_id}],
        }
        return json.dumps(cell) + "\n"

    def draft(self, execution_id: str, *lines: dict[str, Any]) -> None:
        header = {"execution_id": execution_id, "code": execution_id}
        with (self.directory / "running" / f"{execution_id}.jsonl").open("a") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in [header, *lines])

    def follow(self, steps: Callable[["Session"], Any]) -> None:
        """Runs the steps while a follower of a new kernel process works."""

        async def document() -> Any:
            return self.notebook

        async def run() -> None:
            descriptor = Descriptor("k", "s", "", "python", self.directory, Path(), Path())
            iopub: Any = self.iopub
            self.iopub.some = asyncio.Event()
            follower = Follower(
                descriptor, iopub, self.record, self.tail, self.persons, Document(document, lambda: True)
            )
            task = asyncio.create_task(follower.run())
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await steps(self)
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await follower.end("ended at {}", "k1")

        asyncio.run(run())

    @property
    def shown(self) -> dict[str, str]:
        """Source and text of each cell that was executed, in order."""
        cells = [cell for cell in self.notebook.get()["cells"] if cell["source"] and cell["cell_type"] == "code"]
        return {cell["source"]: "".join(one.get("text", "") for one in cell["outputs"]) for cell in cells}

    async def becomes(self, **shown: str) -> None:
        await self.until(lambda: self.shown == shown)

    async def until(self, condition: Callable[[], bool]) -> None:
        changed = asyncio.Event()
        self.notebook.observe(lambda *_: changed.set())
        while not condition():
            await changed.wait()
            changed.clear()


def test_what_was_executed_while_lab_was_closed_is_there_in_order_once(tmp_path: Path) -> None:
    session = Session(tmp_path)
    for name in ("one", "two", "three"):
        session.execute(name)

    async def first(session: Session) -> None:
        await session.becomes(one="one", two="two", three="three")

    session.follow(first)
    session.execute("four")
    session.record, session.tail = Record(), JournalTail(tmp_path)  # another Lab

    async def second(session: Session) -> None:
        await session.becomes(one="one", two="two", three="three", four="four")

    session.follow(second)
    assert [cell["cell_type"] for cell in session.notebook.get()["cells"]].count("markdown") == 1


async def begins(session: Session) -> None:
    """A cell that has not ended."""
    session.iopub.publish("one", "execute_input", code="one", execution_count=1)
    session.iopub.publish("one", "stream", name="stdout", text="a")
    await session.becomes(one="a")


def test_a_cell_grows_as_it_runs(tmp_path: Path) -> None:
    session = Session(tmp_path)

    async def steps(session: Session) -> None:
        await begins(session)
        session.iopub.publish("one", "stream", name="stdout", text="b")
        session.iopub.publish("one", "stream", name="stdout", text="c")
        await session.becomes(one="abc")
        session.iopub.publish("one", "end")
        session.execute("one", "abc")
        session.iopub.publish("two", "execute_input", code="two", execution_count=2)
        await session.becomes(one="abc", two="")

    session.follow(steps)


def test_of_updates_of_one_display_that_come_at_once_the_last_one_counts() -> None:
    def update(name: str, text: str) -> Event:
        content = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": name}}
        return Event("one", "server", "update_display_data", content)

    flood = [update("a", "1"), update("a", "2"), update("b", "3"), update("a", "4"), update("a", "5")]
    shown = [event.content["data"]["text/plain"] for event in follow._joined(flood)]
    assert shown == ["2", "3", "5"]


def test_a_cell_of_a_browser_is_written_by_the_browser_alone(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.persons.add("browser")
    session.execute("mine", by="person", client="browser")
    session.execute("theirs", by="person", client="console")
    session.execute("model")

    async def steps(session: Session) -> None:
        await session.becomes(theirs="theirs", model="model")

    session.follow(steps)
    [cell] = [cell for cell in session.notebook.get()["cells"] if cell["source"] == "theirs"]
    assert cell["metadata"]["kernelmcp"]["by"] == "person"


def test_a_cell_that_runs_when_lab_opens_is_shown_from_its_draft_and_then_from_the_journal(tmp_path: Path) -> None:
    session = Session(tmp_path)
    text = {"kind": "stream", "content": {"name": "stdout", "text": "first "}}
    session.draft("long", {"began": True}, text)
    session.draft("waits")

    async def steps(session: Session) -> None:
        await session.becomes(long="first ")
        session.iopub.publish("long", "stream", name="stdout", text="of the kernel, and in the draft")
        session.iopub.publish("long", "end")
        session.execute("long", "first and the rest")
        await session.becomes(long="first and the rest")

    session.follow(steps)


def test_what_lab_could_not_show_live_comes_from_the_journal(tmp_path: Path) -> None:
    session = Session(tmp_path)

    async def steps(session: Session) -> None:
        session.iopub.publish("one", "execute_input", code="one", execution_count=1)
        session.iopub.publish("one", "stream", name="stdout", text="a")
        session.iopub.publish("one", "left_out")
        session.iopub.publish("one", "end")
        session.execute("one", "a and what was cut")
        session.iopub.publish("unseen", "end")
        session.execute("unseen")
        await session.becomes(one="a and what was cut", unseen="unseen")

    session.follow(steps)


def test_a_cell_that_the_journal_has_late_stands_before_those_that_came_after_it(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.execute("before")

    async def steps(session: Session) -> None:
        await session.becomes(before="before")
        session.iopub.publish("next", "execute_input", code="next", execution_count=2)
        session.iopub.publish("next", "end")
        await session.becomes(before="before", next="")
        session.append(session.line("first"), session.line("next"))
        session.iopub.publish("unknown", "end")
        await session.until(lambda: "first" in session.shown)

    session.follow(steps)
    assert list(session.shown) == ["before", "first", "next"]


def test_a_cell_that_died_with_its_kernel_is_as_the_journal_has_it(tmp_path: Path) -> None:
    session = Session(tmp_path)

    session.follow(begins)
    session.execute("one", "a, and then it died")
    session.follow(lambda session: session.becomes(one="a, and then it died"))


def test_a_damaged_journal_shows_what_can_be_read(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.execute("one")
    with session.journal.open("ab") as stream:
        stream.write(b"\xff\xfe damaged\n[]\n7\n{}\n" + b"[" * 5000 + b"\n")
        stream.write(b'{"cell_type": "code", "source": {"a": 1}, "outputs": 5, "metadata": 7, "id": []}\n')
    session.execute("two")
    with session.journal.open("ab") as stream:
        stream.write(b'{"half a line')

    async def steps(session: Session) -> None:
        await session.until(lambda: {"one", "two"} <= session.shown.keys())

    session.follow(steps)


DAMAGED = {
    "no JSON": {"outputs": [{"output_type": "display_data", "data": {"application/json": [math.nan]}, "metadata": {}}]},
    "endless": {
        "outputs": [{"output_type": "execute_result", "data": {"text/plain": "1"}, "metadata": {"a": math.inf}}]
    },
    "source": {"source": 7},
    "nothing": {"source": None, "outputs": None, "execution_count": None},
    "surrogate": {"metadata": {"kernelmcp": {"execution_id": "\ud800"}}, "source": "\ud800"},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_cell_costs_neither_the_others_nor_the_notebook(tmp_path: Path, damage: str) -> None:
    session = Session(tmp_path)
    session.execute("one")
    cell = json.loads(session.journal.read_text()) | {"metadata": {"kernelmcp": {"execution_id": "damaged"}}}
    with session.journal.open("a") as stream:
        stream.write(json.dumps(cell | DAMAGED[damage]) + "\n")
    session.execute("two")

    async def steps(session: Session) -> None:
        await session.until(lambda: {"one", "two"} <= session.shown.keys())

    session.follow(steps)
    json.dumps(session.notebook.get(), allow_nan=False).encode()  # it can be saved


def test_a_journal_that_is_no_file_shows_nothing(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.journal.mkdir()
    assert session.tail.new() == []
    session.journal.rmdir()
    session.journal.symlink_to("/etc/passwd")
    assert session.tail.new() == []


def test_a_journal_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.execute("one")
    session.execute("two")
    assert [entry.execution_id for entry in session.tail.new()] == ["one", "two"]
    assert session.tail.new() == []
    session.journal.unlink()
    session.execute("two")
    entries = session.tail.new()
    assert [cell["source"] for cell in session.tail.cells(entries)] == ["two"]


def test_a_journal_that_was_written_anew_brings_nothing_back(tmp_path: Path) -> None:
    """The server has made it smaller; the notebook has left out its oldest cells before that."""
    session = Session(tmp_path)
    for name in ("one", "two", "three"):
        session.execute(name)

    async def steps(session: Session) -> None:
        await session.becomes(one="one", two="two", three="three")
        with session.notebook.ydoc.transaction():
            del session.notebook.ycells[0]
            del session.record.sizes[cell_id("one")]
        anew = session.directory / "anew"
        anew.write_bytes(session.journal.read_bytes())
        anew.replace(session.journal)
        session.iopub.publish("four", "end")
        session.execute("four")
        await session.until(lambda: "four" in session.shown)

    session.follow(steps)
    assert list(session.shown) == ["two", "three", "four"]
