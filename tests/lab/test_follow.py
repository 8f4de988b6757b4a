"""A follower puts a session's log into its notebook: as it comes, once, and as it ended."""

import asyncio
import json
import math
import threading
from collections.abc import Awaitable, Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_ydoc import YNotebook

from kernelmcp.cells import event, line
from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.fold import DisplayIds, Fold
from kernelmcp.cells.log import CellLog
from kernelmcp.cells.lookup import LOG
from kernelmcp.cells.tail import Tail
from kernelmcp.config.models import Policy
from kernelmcp.lab.descriptors import Descriptor
from kernelmcp.lab.persons import Persons
from kernelmcp.lab.record import cell_record as record_module
from kernelmcp.lab.record import follow as follow_module
from kernelmcp.lab.record import outputs as outputs_module
from kernelmcp.lab.record.cell_record import cell_id
from kernelmcp.lab.record.follow import Document, Follower
from kernelmcp.lab.tame import tame_bundle

DEADLINE_SECONDS = 60


class Session:
    """A session's directory, the log that its server writes, and its notebook in Lab."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder
        self.file = folder / LOG
        self.log = CellLog(self.file)
        self.ids = DisplayIds()
        self.folds: dict[str, Fold] = {}
        self.notebook = YNotebook()
        self.notebook.set({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        self.persons = Persons(folder / "persons.json")
        self.states: list[str] = []
        self.changed = asyncio.Event()
        self.is_open = True

    # -- the server ---------------------------------------------------------------------------------------------

    def submit(self, cell: str) -> None:
        recorder = self.log.submitted(cell, event.now(), cell)
        self.folds[cell] = Fold(Outputs(), Policy(), self.ids, recorder.add)

    def begin(self, cell: str, *messages: tuple[str, dict[str, Any]], **facts: Any) -> None:
        self.submit(cell)
        self.log.began(cell, **facts)
        self.hear(cell, *messages)

    def hear(self, cell: str, *messages: tuple[str, dict[str, Any]]) -> None:
        for kind, content in messages:
            self.folds[cell].hear(kind, content)

    def end(self, cell: str, **facts: Any) -> None:
        self.folds[cell].is_late = True
        self.log.ended(cell, line.to_line(cell, cell, {"status": "ok", **facts}, self.folds[cell].outputs))

    def execute(self, cell: str, *messages: tuple[str, dict[str, Any]], **facts: Any) -> None:
        """A cell that begins and ends before its events are written."""
        self.begin(cell, *(messages or (stream(cell),)), **facts)
        self.end(cell, **facts)

    def compact(self) -> None:
        """Write the log anew, as the server does: late events are in the lines of their cells."""
        changes: dict[str, list[Any]] = {}
        lines = self.file.read_bytes().splitlines()
        for one in lines:
            kind, cell = event.kind_of(one)
            if kind == "late":
                changes.setdefault(cell, []).extend(event.ops_of(one))
        ended = {event.kind_of(one)[1] for one in lines if event.kind_of(one)[0] == "cell"}
        kept: list[bytes] = []
        for one in lines:
            kind, cell = event.kind_of(one)
            if kind == "cell" and cell in changes:
                kept.append(line.with_changes(one, changes[cell]))
            elif kind in ("cell", "note", "") or cell not in ended:
                kept.append(one)
        new = self.log.rewrite(lambda _: iter(kept), 0)
        self.log.put(new, self.log.size)

    def append(self, *lines: str) -> None:
        """In one write, as a server of an older version has done."""
        with self.file.open("a") as stream:
            stream.write("".join(lines))

    def old_line(self, execution_id: str, **changes: Any) -> str:
        cell = {
            "cell_type": "code",
            "id": "0123abcd",
            "metadata": {"trusted": False, "kernelmcp": {"execution_id": execution_id}},
            "execution_count": 1,
            "source": execution_id,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": execution_id}],
        }
        return json.dumps(cell | changes) + "\n"

    # -- Lab ----------------------------------------------------------------------------------------------------

    def follow(self, steps: Callable[["Session"], Awaitable[Any]], end: str = "ended at {}") -> None:
        """Run the steps while a follower of a new kernel process works."""

        async def document() -> Any:
            return self.notebook

        async def run() -> None:
            descriptor = Descriptor("k", "s", "", "python", self.directory, Path(), Path())
            self.changed = asyncio.Event()
            self.follower = Follower(descriptor, self.persons, Document(document, lambda: self.is_open), self.on_state)
            task = asyncio.create_task(self.follower.run())
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await steps(self)
                    self.log.flush()
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await self.follower.end(end, "k1")

        asyncio.run(run())
        nbformat.validate(nbformat.from_dict(json.loads(json.dumps(self.notebook.get(), allow_nan=False))))

    def on_state(self, state: str) -> None:
        self.states.append(state)
        self.changed.set()

    def away(self, steps: Callable[[], None]) -> None:
        """Run the steps while no Lab is there."""

        async def run() -> None:
            steps()
            self.log.flush()

        asyncio.run(run())

    @property
    def shown(self) -> dict[str, str]:
        """Source and text of each cell that was executed, in order; of displays, their text."""
        cells = [cell for cell in self.notebook.get()["cells"] if cell["source"] and cell["cell_type"] == "code"]
        assert len({cell["source"] for cell in cells}) == len(cells)
        return {cell["source"]: "".join(map(text_of, cell["outputs"])) for cell in cells}

    @property
    def notes(self) -> list[str]:
        return [cell["source"] for cell in self.notebook.get()["cells"] if cell["cell_type"] == "markdown"]

    def cell(self, execution_id: str) -> Any:
        return next(cell for cell in self.notebook.ycells if cell["id"] == cell_id(execution_id))

    async def becomes(self, **shown: str) -> None:
        try:
            await self.until(lambda: self.shown == shown)
        except asyncio.CancelledError:
            assert self.shown == shown
            raise

    async def until(self, condition: Callable[[], bool]) -> None:
        subscription = self.notebook.ydoc.observe(lambda _: self.changed.set())
        while not condition():
            await self.changed.wait()
            self.changed.clear()
        self.notebook.ydoc.unobserve(subscription)


def text_of(output: dict[str, Any]) -> str:
    return output.get("text", "") + output.get("data", {}).get("text/plain", "")


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def display(text: str, kind: str = "display_data") -> tuple[str, dict[str, Any]]:
    return kind, {"data": {"text/plain": text}, "transient": {"display_id": "bar"}}


def update(text: str) -> tuple[str, dict[str, Any]]:
    return display(text, "update_display_data")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_what_was_executed_while_lab_was_closed_is_there_in_order_once(session: Session) -> None:
    session.away(lambda: [session.execute(name) for name in ("one", "two", "three")].clear())

    async def first(session: Session) -> None:
        await session.becomes(one="one", two="two", three="three")

    session.follow(first)
    session.away(lambda: session.execute("four"))

    async def second(session: Session) -> None:
        await session.becomes(one="one", two="two", three="three", four="four")

    session.follow(second)
    assert [cell["cell_type"] for cell in session.notebook.get()["cells"]].count("markdown") == 1


def test_a_cell_grows_as_it_runs(session: Session) -> None:
    async def steps(session: Session) -> None:
        session.begin("one", stream("a"))
        await session.becomes(one="a")
        assert session.cell("one")["execution_state"] == "running"
        assert session.cell("one")["metadata"]["kernelmcp"]["running"]
        session.hear("one", stream("b"), stream("c"))
        await session.becomes(one="abc")
        session.hear("one", display("old"))
        await session.becomes(one="abcold")
        session.hear("one", update("1"), update("2"), update("new"))
        await session.becomes(one="abcnew")
        session.hear("one", ("clear_output", {"wait": True}), stream("d", "stderr"))
        await session.becomes(one="d")
        session.end("one")
        await session.until(lambda: session.cell("one")["execution_state"] == "idle")
        session.begin("two")
        await session.becomes(one="d", two="")

    session.follow(steps)


def test_a_kernel_is_busy_while_a_cell_runs_and_then_idle(session: Session) -> None:
    session.persons.add("browser")

    async def steps(session: Session) -> None:
        session.begin("one", by="person", client="browser")
        session.log.flush()
        await session.until(lambda: "busy" in session.states)
        session.end("one", by="person", client="browser")
        session.execute("two")
        await session.becomes(two="two")

    session.follow(steps)
    assert [state for state, _ in groupby(session.states)] == ["busy", "idle"]


def test_a_waiting_cell_that_is_cancelled_is_not_shown(session: Session) -> None:
    async def steps(session: Session) -> None:
        session.submit("one")
        session.submit("two")
        session.log.flush()
        session.log.cancelled("one")
        session.log.began("two")
        await session.becomes(two="")
        session.end("two")
        session.submit("three")
        session.log.flush()
        await session.until(lambda: "three" in session.follower._record._codes)
        session.log.began("three")
        session.end("three")
        await session.becomes(two="", three="")

    session.follow(steps)
    assert not session.follower._record._codes


def test_a_cell_of_a_browser_is_written_by_the_browser_alone(session: Session) -> None:
    session.persons.add("browser")

    def steps() -> None:
        session.execute("mine", by="person", client="browser")
        session.execute("theirs", by="person", client="console")
        session.execute("model")

    async def running(session: Session) -> None:
        await session.becomes(theirs="theirs", model="model")
        session.begin("again", stream("a"), by="person", client="browser")
        session.log.flush()
        session.hear("again", stream("b"))
        session.log.flush()
        session.end("again", by="person", client="browser")
        session.hear("again", stream("late"))
        session.begin("console", stream("a"), by="person", client="console")
        await session.becomes(theirs="theirs", model="model", console="a")

    session.away(steps)
    session.follow(running)
    assert list(session.shown) == ["theirs", "model", "console"]
    for name in ("theirs", "console"):
        assert session.cell(name)["metadata"]["kernelmcp"]["by"] == "person"


@pytest.mark.parametrize(("is_open", "is_newest"), [(False, True), (True, True), (False, False)])
def test_a_cell_of_a_browser_that_has_gone_is_completed_at_its_end(
    session: Session, *, is_open: bool, is_newest: bool
) -> None:
    mine = {"cell_type": "code", "id": "c1", "source": "", "outputs": [], "metadata": {}, "execution_count": None}
    session.notebook.set({"cells": [mine], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    [ycell] = session.notebook.ycells
    session.persons.add("browser")
    session.persons.opened("browser")
    session.persons.sent("one", "c1")
    if not is_newest:
        session.persons.sent("again", "c1")  # from the tab that was opened then
    ycell["execution_state"] = "running"
    ycell["outputs"].append({"output_type": "stream", "name": "stdout", "text": "a"})  # that the browser has written

    async def steps(session: Session) -> None:
        session.begin("one", stream("a"), by="person", client="browser")
        if not is_open:
            session.persons.closed("browser")
        session.hear("one", stream("b"))
        session.folds["one"].outputs.execution_count = 7
        session.end("one", by="person", client="browser")
        session.execute("model")
        await session.until(lambda: "model" in session.shown)
        assert [session.notebook.get()["cells"][1]["source"]] == ["model"]

    session.follow(steps)
    found = session.notebook.get()["cells"][0]
    text = "".join(map(text_of, found["outputs"]))
    is_completed = is_newest and not is_open
    assert (text, ycell["execution_state"]) == (("ab", "idle") if is_completed else ("a", "running"))
    assert (found["execution_count"], found["metadata"]) == (7 if is_completed else None, {})


def test_a_cell_that_runs_when_lab_opens_is_shown_with_its_output_so_far(session: Session) -> None:
    async def closed(session: Session) -> None:
        session.begin("long", stream("first "))
        await session.becomes(long="first ")

    async def steps(session: Session) -> None:
        await session.becomes(long="first second ")
        assert session.cell("long")["execution_state"] == "running"
        session.hear("long", stream("third "))
        await session.becomes(long="first second third ")
        session.hear("long", stream("and the rest"))
        session.end("long")
        await session.becomes(long="first second third and the rest")

    session.follow(closed, "it was closed")
    session.away(lambda: session.hear("long", stream("second ")))
    session.follow(steps)


def test_html_is_sanitized_in_a_thread(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes of it, in one line of the log, would stop Lab for seconds."""
    threads: dict[str, threading.Thread] = {}

    def spy(data: dict[str, Any]) -> dict[str, Any]:
        threads[data["text/html"]] = threading.current_thread()
        return tame_bundle(data)

    def html(kind: str, text: str) -> tuple[str, dict[str, Any]]:
        return kind, {"data": {"text/html": f"<script></script>{text}"}, "transient": {"display_id": "bar"}}

    def outputs() -> list[str]:
        return [output["data"]["text/html"] for cell in session.notebook.get()["cells"] for output in cell["outputs"]]

    monkeypatch.setattr(outputs_module, "tame_bundle", spy)
    session.away(lambda: session.execute("ended", html("display_data", "a")))

    async def steps(session: Session) -> None:
        session.begin("live", html("display_data", "b"))
        await session.until(lambda: outputs() == ["a", "b"])
        session.hear("live", html("update_display_data", "c"))
        await session.until(lambda: outputs()[1:] == ["c"])

    session.follow(steps)
    assert len(threads) == 3
    assert threading.main_thread() not in threads.values()


def test_an_update_by_a_later_cell_changes_the_earlier_one(session: Session) -> None:
    async def steps(session: Session) -> None:
        session.execute("one", display("old"))
        await session.becomes(one="old")
        session.execute("two", update("new"))
        await session.becomes(one="new", two="")
        session.begin("three", update("newer"))
        await session.becomes(one="newer", two="", three="")
        session.end("three")

    session.follow(steps)


def test_late_output_of_a_task_appears_in_its_cell(session: Session) -> None:
    async def steps(session: Session) -> None:
        session.execute("one", stream("a"))
        session.execute("two", stream("b"))
        session.hear("one", stream("late"))
        await session.becomes(one="alate", two="b")
        session.hear("one", stream("r"))
        await session.becomes(one="alater", two="b")
        assert session.cell("one")["execution_state"] == "idle"

    session.follow(steps)


def test_late_output_is_there_once_when_lab_opens_again(session: Session) -> None:
    """Its log has the line of the cell and the late events, and the notebook has both."""

    async def first(session: Session) -> None:
        session.execute("one", stream("a"), display("old"))
        session.hear("one", stream("b"), update("new"))
        await session.becomes(one="anewb")

    async def second(session: Session) -> None:
        session.execute("two")
        await session.becomes(one="anewbc", two="two")
        session.hear("one", stream("d"))
        await session.becomes(one="anewbcd", two="two")

    session.follow(first)
    session.away(lambda: session.hear("one", stream("c")))
    session.follow(second)


def test_late_output_of_a_cell_that_an_earlier_lab_has_shown_finds_its_displays(session: Session) -> None:
    async def first(session: Session) -> None:
        session.execute("one", ("display_data", {"data": {"text/html": "x"}}), display("old"))
        session.execute("two")
        await session.becomes(one="old", two="two")

    async def second(session: Session) -> None:
        session.execute("three")
        await session.becomes(one="old", two="two", three="three")
        for message in (update("new"), stream("a")):
            session.hear("one", message)
            session.log.flush()
        await session.becomes(one="newa", two="two", three="three")

    session.follow(first)
    session.follow(second)


def test_late_output_that_the_log_has_only_in_the_line_of_its_cell_is_shown(session: Session) -> None:
    """Lab was closed, or did not look, between the event and the rewriting of the log."""

    async def first(session: Session) -> None:
        session.execute("one", stream("a"))
        session.execute("two")
        await session.becomes(one="a", two="two")
        session.hear("one", stream("b"))
        session.log.flush()
        session.compact()
        await session.becomes(one="ab", two="two")

    async def second(session: Session) -> None:
        await session.becomes(one="abc", two="two")

    session.follow(first)
    session.away(lambda: session.hear("one", stream("c")))
    session.away(session.compact)
    session.follow(second)


def test_late_output_that_the_log_no_longer_has_is_gone(session: Session) -> None:
    """It was cleared before Lab looked again: the line of its cell is as it was before it came."""

    async def first(session: Session) -> None:
        session.begin("one")
        session.end("one")
        session.hear("one", stream("late"))
        await session.becomes(one="late")
        session.hear("one", ("clear_output", {}))
        session.log.flush()
        session.compact()
        await session.becomes(one="")
        session.hear("one", stream("again"))
        await session.becomes(one="again")

    async def second(session: Session) -> None:
        await session.becomes(one="")

    session.follow(first)
    session.away(lambda: session.hear("one", ("clear_output", {})))
    session.away(session.compact)
    session.follow(second)


def test_what_is_read_again_is_not_written_again(session: Session) -> None:
    """A log that was compacted is read again, and nothing that a tab shows is drawn again."""

    async def steps(session: Session) -> None:
        session.execute("one", stream("a"), display("x"))
        session.begin("two", stream("b"), display("y"))
        await session.becomes(one="ax", two="by")
        session.hear("one", stream("late"))
        await session.becomes(one="axlate", two="by")
        changed: list[Any] = []
        both = [session.cell(name)["outputs"] for name in ("one", "two")]
        subscriptions = [youtputs.observe_deep(changed.append) for youtputs in both]
        session.compact()
        session.hear("two", stream("c"))
        await session.becomes(one="axlate", two="byc")
        assert len(changed) == 1
        for youtputs, subscription in zip(both, subscriptions, strict=True):
            youtputs.unobserve(subscription)

    session.follow(steps)
    assert session.shown == {"one": "axlate", "two": "byc"}


def test_cells_that_are_missing_stand_before_those_that_came_after_them(session: Session) -> None:
    session.away(lambda: session.execute("before"))
    session.follow(lambda session: session.becomes(before="before"))
    session.away(lambda: session.begin("next"))

    async def steps(session: Session) -> None:
        await session.becomes(before="before", next="")
        lines = session.file.read_text().splitlines(keepends=True)
        anew = session.directory / "anew"
        anew.write_text(lines[0] + session.old_line("first") + "".join(lines[1:]))
        anew.replace(session.file)
        await session.until(lambda: "first" in session.shown)

    session.follow(steps)
    assert list(session.shown) == ["before", "first", "next"]


def test_a_cell_that_died_with_its_kernel_is_as_it_ended(session: Session) -> None:
    async def dies(session: Session) -> None:
        session.begin("one", stream("a"))
        await session.becomes(one="a")

    session.follow(dies)
    assert session.cell("one")["execution_state"] == "idle"
    session.away(lambda: (session.hear("one", stream(", and then it died")), session.end("one"))[1])
    session.follow(lambda session: session.becomes(one="a, and then it died"))
    assert not session.follower._record.unfinished


def test_what_came_just_before_the_kernel_ended_is_there_and_a_note_after_it(session: Session) -> None:
    async def steps(session: Session) -> None:
        session.is_open = False  # it looks seldom
        session.execute("one")
        await session.becomes(one="one")
        session.execute("two")

    session.follow(steps)
    assert session.shown == {"one": "one", "two": "two"}
    assert [cell["cell_type"] for cell in session.notebook.get()["cells"]][:3] == ["code", "code", "markdown"]
    assert session.notes[0].startswith("*ended at ")


def test_lines_that_a_follower_has_read_and_not_written_are_written_at_the_end(session: Session) -> None:
    session.away(lambda: session.execute("one"))

    async def nothing(session: Session) -> None:
        session.follower._tail.new()

    session.follow(nothing)
    assert session.shown == {"one": "one"}


def test_what_a_person_types_stays_below(session: Session) -> None:
    async def steps(session: Session) -> None:
        session.execute("one")
        await session.becomes(one="one")
        session.notebook.set_cell(1, source="draft")
        session.begin("two", stream("a"))
        await session.becomes(one="one", two="a", draft="")
        session.end("two")

    session.follow(steps)
    assert list(session.shown) == ["one", "two", "draft"]


def test_a_notebook_with_many_cells_loses_the_oldest_and_they_do_not_come_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "MAX_CELLS", 2)
    monkeypatch.setattr(record_module, "SHRUNK_CELLS", 2)
    session.away(lambda: [session.execute(name) for name in ("one", "two", "three")].clear())

    async def steps(session: Session) -> None:
        await session.becomes(two="two", three="three")
        session.hear("one", stream("late"))
        session.log.flush()
        session.compact()
        session.execute("four")
        await session.becomes(three="three", four="four")
        session.hear("one", stream("later"), update("x"))
        session.execute("five")
        await session.becomes(four="four", five="five")

    session.follow(steps)
    assert list(session.shown) == ["four", "five"]
    record = session.follower._record
    assert record._sums.keys() <= record.sizes.keys()


def test_cells_of_a_long_log_that_the_notebook_has_no_room_for_are_never_written(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "MAX_CELLS", 2)

    def steps() -> None:
        session.begin("one", stream("events of its own"))
        session.begin("running", stream("output"))
        session.log.flush()
        session.end("one")
        for name in ("two", "three", "four"):
            session.execute(name)
        session.hear("two", stream("late"))

    async def all_of_it(session: Session) -> None:
        await session.becomes(running="output", three="three", four="four")

    session.away(steps)
    session.follow(all_of_it)


def test_a_cell_that_was_shown_as_running_ends_however_many_end_after_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "MAX_CELLS", 2)

    async def runs(session: Session) -> None:
        session.begin("running", stream("output"))
        await session.becomes(running="output")

    def steps() -> None:
        session.hear("running", stream(" more"))
        session.end("running")
        for name in ("two", "three", "four"):
            session.execute(name)

    async def has_ended(session: Session) -> None:
        await session.becomes(running="output more", three="three", four="four")

    session.follow(runs)
    session.away(steps)
    session.follow(has_ended)
    assert "running" not in session.cell("running")["metadata"]["kernelmcp"]


def test_a_persons_cell_has_ended_however_many_end_after_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "MAX_CELLS", 2)
    mine = {"cell_type": "code", "id": "c1", "source": "", "outputs": [], "metadata": {}, "execution_count": None}
    session.notebook.set({"cells": [mine], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    [ycell] = session.notebook.ycells
    session.persons.add("browser")
    session.persons.sent("one", "c1")
    ycell["execution_state"] = "running"

    async def steps(session: Session) -> None:
        session.begin("one", stream("mine"), by="person", client="browser")
        session.log.flush()
        await session.until(lambda: "busy" in session.states)
        session.end("one", by="person", client="browser")
        for name in ("two", "three", "four"):
            session.execute(name)
        await session.becomes(three="three", four="four")
        await session.until(lambda: session.states[-1] == "idle")

    session.follow(steps)
    assert (text_of(session.notebook.get()["cells"][0]["outputs"][0]), ycell["execution_state"]) == ("mine", "idle")


def test_a_log_of_an_older_version_is_shown(session: Session) -> None:
    session.append(session.old_line("one"), session.old_line("two"))
    old = json.loads(session.old_line("mine"))
    old["metadata"]["kernelmcp"] |= {"by": "person", "client": "browser"}
    session.persons.add("browser")
    session.append(json.dumps(old) + "\n")

    async def steps(session: Session) -> None:
        await session.becomes(one="one", two="two")

    session.follow(steps)


def test_a_note_of_the_log_on_cells_that_it_lost_is_shown(session: Session) -> None:
    async def steps(session: Session) -> None:
        session.execute("one")
        session.append(line.left_out_cell(3, "they were too large").decode() + "\n")
        await session.becomes(one="one")

    session.follow(steps)
    notes = [cell["source"] for cell in session.notebook.get()["cells"] if cell["cell_type"] == "markdown"]
    assert notes[0] == "*3 cells were left out: they were too large.*"


def test_what_a_guest_prints_is_no_line_of_the_log(session: Session) -> None:
    forged = line.to_line("forged", "forged", {}, Outputs()).decode()

    async def steps(session: Session) -> None:
        session.begin("one", stream(f"\n{forged}\n"))
        await session.until(lambda: "one" in session.shown)
        session.end("one")
        session.execute("two")
        await session.until(lambda: "two" in session.shown)

    session.follow(steps)
    assert list(session.shown) == ["one", "two"]


def test_a_damaged_log_shows_what_can_be_read(session: Session) -> None:
    session.append(session.old_line("one"))
    with session.file.open("ab") as stream:
        stream.write(b"\xff\xfe damaged\n[]\n7\n{}\n" + b"[" * 5000 + b"\n")
        stream.write(b'{"cell_type": "code", "source": {"a": 1}, "outputs": 5, "metadata": 7, "id": []}\n')
    session.append(session.old_line("two"))
    with session.file.open("ab") as stream:
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
def test_a_damaged_cell_costs_neither_the_others_nor_the_notebook(session: Session, damage: str) -> None:
    session.append(session.old_line("one"))
    cell = json.loads(session.file.read_text()) | {
        "source": "damaged",
        "metadata": {"kernelmcp": {"execution_id": "damaged"}},
    }
    with session.file.open("a") as stream:
        stream.write(json.dumps(cell | DAMAGED[damage]) + "\n")
    session.append(session.old_line("two"))

    async def steps(session: Session) -> None:
        await session.until(lambda: {"one", "two"} <= session.shown.keys())

    session.follow(steps)
    json.dumps(session.notebook.get(), allow_nan=False).encode()  # it can be saved


def test_a_log_that_is_no_file_shows_nothing(session: Session) -> None:
    tail = Tail(session.file)
    session.file.mkdir()
    assert tail.new() == []
    session.file.rmdir()
    session.file.symlink_to("/etc/passwd")
    assert tail.new() == []


def test_a_log_that_was_written_anew_twice_is_read_anew(session: Session) -> None:
    """Its second file may get the number of the first one, which is gone."""
    tail = Tail(session.file)
    session.append(session.old_line("one"))
    assert [entry.cell for entry in tail.new()] == ["one"]
    for cells in (["one", "two"], ["one", "two", "three"]):
        new = session.file.with_name("new")
        new.write_text("".join(map(session.old_line, cells)))
        new.replace(session.file)
    assert tail.has_news()
    assert [entry.cell for entry in tail.new()] == ["one", "two", "three"]


def test_a_log_that_was_written_anew_is_read_anew(session: Session) -> None:
    tail = Tail(session.file)
    session.append(session.old_line("one"), session.old_line("two"))
    assert [entry.cell for entry in tail.new()] == ["one", "two"]
    assert tail.new() == []
    session.file.unlink()
    session.append(session.old_line("two"))
    assert [json.loads(found)["source"] for found in tail.lines(tail.new())] == ["two"]
