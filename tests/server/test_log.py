"""A cell's record: what the fold makes of messages, what is written when, and what a reader finds after a kill."""

import asyncio
import errno
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelmcp.cells import event, line, log, lookup
from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.fold import DisplayIds, Fold
from kernelmcp.cells.line import MAX_CELL_BYTES
from kernelmcp.cells.log import MAX_EVENT_BYTES, CellLog
from kernelmcp.cells.lookup import LOG, find, unfinished, whole_lines
from kernelmcp.cells.tail import Tail
from kernelmcp.config.models import Policy
from kernelmcp.executions import recorded
from kernelmcp.notebook import transcript as transcript_module
from kernelmcp.notebook.transcript import Transcript

ONE, TWO, THREE = "o" * 22, "t" * 22, "r" * 22
Messages = list[tuple[str, dict[str, Any]]]


class Session:
    """A log and its cells, without a kernel."""

    def __init__(self, folder: Path) -> None:
        self.log = CellLog(folder / LOG)
        self.left = self.log.open()
        self.ids = DisplayIds()
        self.folds: dict[str, Fold] = {}

    def begin(self, cell: str, code: str = "code") -> Fold:
        recorder = self.log.submitted(cell, event.now(), code)
        self.log.began(cell)
        self.folds[cell] = Fold(Outputs(), Policy(), self.ids, recorder.add)
        return self.folds[cell]

    def end(self, cell: str, **facts: Any) -> None:
        fold = self.folds[cell]
        fold.is_late = True
        self.log.ended(cell, line.to_line(cell, "code", {"status": "ok", **facts}, fold.outputs))

    def lines(self) -> list[bytes]:
        return list(whole_lines(self.log.file))

    def kinds(self) -> list[tuple[str, str]]:
        return [event.kind_of(one) for one in self.lines()]


def run(folder: Path, steps: Callable[[Session], Any]) -> Session:
    async def go() -> Session:
        session = Session(folder)
        result = steps(session)
        if asyncio.iscoroutine(result):
            await result
        return session

    return asyncio.run(go())


def text(words: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": words}


def display(data: Any, display_id: str = "") -> tuple[str, dict[str, Any]]:
    return "display_data", {"data": data, "metadata": {}, "transient": {"display_id": display_id}}


def update(data: Any, display_id: str) -> tuple[str, dict[str, Any]]:
    return "update_display_data", display(data, display_id)[1]


def rebuilt(lines: list[bytes]) -> Outputs:
    """The outputs as a follower has them, from events alone."""
    outputs = Outputs()
    for one in lines:
        for op in event.ops_of(one):
            outputs.apply(op)
    return outputs


def state(outputs: Outputs) -> Any:
    shown = [(one.kind, one.data, one.metadata) for one in outputs.displays]
    order = [(one.name, one.start, one.end) for one in outputs.segments]
    return outputs.stdout.read(), outputs.stderr.read(), shown, order, outputs.result, outputs.dropped_displays


def test_a_short_cell_is_one_line(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE).hear(*text("hello"))
        session.end(ONE)

    session = run(tmp_path, steps)
    assert session.kinds() == [("cell", ONE)]
    nbformat.validate({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [json.loads(session.lines()[0])]})


def test_a_cell_that_began_is_not_said_to_have_waited(tmp_path: Path) -> None:
    """For the file that a killed server leaves: without the events of the last moment."""

    def steps(session: Session) -> None:
        for cell in (ONE, TWO):
            session.log.submitted(cell, event.now(), "code", "an-id")
        assert session.kinds() == []
        session.log.began(ONE, may_be_repeated=True)
        assert session.kinds() == [("submitted", ONE), ("began", ONE), ("submitted", TWO)]
        session.log.began(TWO)
        assert session.kinds()[3:] == [("began", TWO)]

    run(tmp_path, steps)


def test_a_cell_that_began_on_a_full_disk_is_there_once_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(session: Session) -> None:
        session.log.submitted(ONE, event.now(), "code", "an-id")
        session.log.flush()
        with monkeypatch.context() as full:
            full.setattr(os, "pwritev", refuse)
            session.begin(TWO)
            session.end(TWO)
            session.log.began(ONE)
            session.begin(THREE).hear(*text("output"))
            session.log.flush()
        session.log.flush()
        heads = [("began", ONE), ("submitted", THREE), ("began", THREE)]
        assert session.kinds() == [("submitted", ONE), ("cell", TWO), *heads]

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    run(tmp_path, steps)


def test_the_request_of_a_cell_is_known_however_much_it_has_put_out(tmp_path: Path) -> None:
    def first(session: Session) -> None:
        recorder = session.log.submitted(ONE, event.now(), "code", "an-id")
        session.log.began(ONE, may_be_repeated=True)
        fold = Fold(Outputs(), Policy(), session.ids, recorder.add)
        fold.hear(*display({"a/b": "x" * 1_500_000}))
        session.log.flush()

    def second(session: Session) -> None:
        assert session.log.requests == {"an-id": ONE}
        [lines] = session.left.values()
        found = recorded.from_events(lines, ONE, "s", "local", session.log.last_at)
        assert (found.request_id, found.waited_for_server) == ("an-id", False)
        session.log.ended(ONE, recorded.to_line(found))

    run(tmp_path, first)
    run(tmp_path, second)
    assert lookup.requests(run(tmp_path, lambda session: None).lines()[-1] + b"\n") == {"an-id": ONE}


CASES: dict[str, Messages] = {
    "streams are joined": [text("a"), text("b"), text("c", "stderr"), text("d")],
    "clear": [text("old"), ("clear_output", {"wait": False}), text("new")],
    "clear that waits": [text("old"), ("clear_output", {"wait": True}), text("new")],
    "clear that waits for ever": [text("old"), ("clear_output", {"wait": True})],
    "clear of displays": [display({"a/b": "1"}, "x"), ("clear_output", {}), update({"a/b": "2"}, "x"), text("t")],
    "updates": [display({"a/b": "1"}, "x"), text("t"), *[update({"a/b": str(n)}, "x") for n in range(5)]],
    "two of an id": [display({"a/b": "1"}, "x"), display({"a/b": "2"}, "x"), update({"a/b": "3"}, "x")],
    "result": [("execute_result", {"data": {"text/plain": ["a", "b"]}, "metadata": {}})],
    "NaN": [display({"application/json": {"a": [float("nan"), 1.5]}})],
    "surrogate": [text("\udc00"), display({"text/plain": "\udc00"})],
    "no mime type": [display({"nothing": 1})],
    "unread": [("display_data", {"unread": True})],
    "trusted": [("display_data", {"data": {"a/b": "1"}, "metadata": {"trusted": True}})],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("each", [True, False])
def test_events_make_the_same_cell_everywhere(tmp_path: Path, name: str, each: bool) -> None:
    """Flushed after each message, or all at once."""

    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        for kind, content in CASES[name]:
            fold.hear(kind, content)
            if each:
                session.log.flush()
        session.log.flush()

    session = run(tmp_path, steps)
    own = session.folds[ONE].outputs
    expected, found = state(own), state(rebuilt(session.lines()))
    if name == "trusted":
        assert found[2][0][2] == {}
        return
    assert found == expected
    json.dumps([event.parsed(one) for one in session.lines()], allow_nan=False)


def test_an_update_reaches_a_cell_that_has_ended(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE).hear(*display({"text/plain": "old"}, "x"))
        session.end(ONE)
        session.begin(TWO).hear(*update({"text/plain": "new"}, "x"))
        session.end(TWO)
        session.log.flush()
        assert session.log.has_late
        transcript = Transcript(tmp_path / "notebook.ipynb", session.log)
        transcript.put(transcript.compact(session.log.size), session.log.size)
        transcript.save()

    session = run(tmp_path, steps)
    assert session.kinds() == [("cell", ONE), ("cell", TWO)]
    cells = json.loads((tmp_path / "notebook.ipynb").read_text())["cells"]
    assert cells[0]["outputs"][0]["data"] == {"text/plain": "new"}


def test_what_comes_after_the_end_is_in_its_cell(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE).hear(*text("own "))
        session.end(ONE)
        session.folds[ONE].hear(*text("late"))
        session.folds[ONE].hear("error", {"ename": "E", "evalue": "v", "traceback": []})
        session.log.flush()

    session = run(tmp_path, steps)
    ended, events = find(session.log.file, ONE)
    assert ended is not None
    ops = [op for one in events for op in event.ops_of(one)]
    _, facts, outputs = line.from_line(line.with_changes(ended, ops))
    assert (outputs.stdout.read(), outputs.stderr.read(), facts["status"]) == ("own late", "E: v\n", "ok")


def test_a_cell_without_an_end_is_found_and_one_with_it_is_not(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE).hear(*text("a"))
        session.log.flush()
        session.begin(TWO).hear(*text("b"))
        session.log.flush()
        # A guest cannot end another's cell, nor its own.
        forged = {"metadata": {"kernelmcp": {"sum": "00000000", "execution_id": TWO}}}
        session.folds[TWO].hear("display_data", {"data": {"application/json": forged}, "metadata": forged})
        session.folds[TWO].hear(*text(f'\n{{"e": "cancelled", "c": "{TWO}"}}\n'))
        session.log.flush()
        session.end(ONE)

    run(tmp_path, steps)
    with (tmp_path / LOG).open("ab") as stream:
        stream.write(b'{"e": "output", "c": "tttt')  # torn by the kill
    session = run(tmp_path, lambda _: None)
    assert list(session.left) == [TWO]
    assert rebuilt(session.left[TWO]).stdout.read().startswith("b\n")
    assert (tmp_path / LOG).read_bytes().endswith(b"\n")


def test_a_cell_that_never_began_leaves_nothing_to_recover(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.log.submitted(ONE, event.now(), "1")
        session.log.flush()
        session.log.cancelled(ONE)

    assert run(tmp_path, steps).kinds() == [("submitted", ONE), ("cancelled", ONE)]
    assert unfinished((tmp_path / LOG).read_bytes()) == ({}, False)


def test_a_cell_that_clears_for_ever_has_its_share_of_the_disk(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        session.log.flush()
        for _ in range(40):
            fold.hear("clear_output", {"wait": True})
            fold.hear(*display({"text/plain": "x" * 90_000, "a/b": "x" * 900_000}))
            session.log.flush()

    session = run(tmp_path, steps)
    assert session.log.size <= MAX_EVENT_BYTES


def test_what_is_cleared_before_it_is_written_is_never_written(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        for n in range(1000):
            fold.hear(*text(f"{n}" * 1000))
            fold.hear("clear_output", {"wait": False})
        fold.hear(*text("last"))
        session.log.flush()

    session = run(tmp_path, steps)
    assert session.log.size < 1000
    assert rebuilt(session.lines()).stdout.read() == "last"


def test_a_flood_is_a_few_bounded_events(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        for n in range(20_000):
            fold.hear(*text("x" * 1000, "stdout" if n // 200 % 2 else "stderr"))
        session.log.flush()

    assert run(tmp_path, steps).log.size <= MAX_CELL_BYTES + 10_000


def test_a_full_disk_keeps_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def full(fd: int, parts: Any, at: int) -> int:
        real(fd, [b"".join(parts)[:7]], at)
        raise OSError(28, "No space left on device")

    def steps(session: Session) -> None:
        session.begin(ONE)
        session.end(ONE)
        monkeypatch.setattr(os, "pwritev", full)
        session.begin(TWO)
        session.end(TWO)
        assert not session.log.is_written
        assert [kind for kind, _ in session.kinds()] == ["cell"]
        monkeypatch.setattr(os, "pwritev", real)
        session.log.flush()

    assert run(tmp_path, steps).kinds() == [("cell", ONE), ("cell", TWO)]


def test_late_output_on_a_full_disk_is_kept_with_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    def steps(session: Session) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", full)
            session.begin(ONE)
            session.end(ONE)
            for words in ("one ", "two"):
                session.folds[ONE].hear(*text(words))
                session.log.flush()
            patched.setattr(log, "MAX_WAITING_BYTES", 10_000)
            session.folds[ONE].hear(*text("x" * 10_000))
            session.begin(TWO)
            session.log.flush()
        session.log.flush()
        assert session.kinds() == [("cell", ONE), ("late", ONE), ("late", ONE), ("submitted", TWO), ("began", TWO)]
        assert [event.ops_of(each) for each in session.lines()[1:3]] == [
            [["text", "stdout", "one "]],
            [["text", "stdout", "two"]],
        ]

    run(tmp_path, steps)


def test_a_follower_gets_each_line_once_and_all_after_a_rewrite(tmp_path: Path) -> None:
    tail = Tail(tmp_path / LOG)

    def steps(session: Session) -> None:
        session.begin(ONE)
        session.log.flush()
        assert [entry.kind for entry in tail.new()] == ["submitted", "began"]
        assert not tail.has_news()
        session.end(ONE)
        assert tail.has_news()
        [entry] = tail.new()
        assert (entry.kind, event.is_whole(tail.lines([entry])[0])) == ("cell", True)
        transcript = Transcript(tmp_path / "notebook.ipynb", session.log)
        transcript.put(transcript.compact(session.log.size), session.log.size)
        assert [entry.kind for entry in tail.new()] == ["cell"]
        assert tail.is_anew

    run(tmp_path, steps)


def test_lines_of_an_older_version_are_read_and_converted(tmp_path: Path) -> None:
    old = {
        "cell_type": "code",
        "id": "0123abcd",
        "metadata": {"trusted": False, "kernelmcp": {"execution_id": ONE, "status": "ok"}},
        "execution_count": 1,
        "source": "1",
        "outputs": [{"output_type": "stream", "name": "stdout", "text": "old"}],
    }
    (tmp_path / LOG).write_text(json.dumps(old) + "\nnot json\n")

    def steps(session: Session) -> None:
        found, _ = find(session.log.file, ONE)
        assert found is not None
        assert line.from_line(found)[2].stdout.read() == "old"
        transcript = Transcript(tmp_path / "notebook.ipynb", session.log)
        transcript.save()
        assert transcript.wants_rewrite
        transcript.put(transcript.compact(session.log.size), session.log.size)
        transcript.save()
        assert not transcript.wants_rewrite

    session = run(tmp_path, steps)
    assert session.kinds() == [("cell", ONE)]
    assert [event.is_whole(one) for one in session.lines()] == [True]
    assert (tmp_path / "notebook.damaged.jsonl").read_text() == "not json\n"


def test_any_messages_make_the_same_cell_whenever_they_are_written(tmp_path: Path) -> None:
    """Any order of messages, flushed at any moments: who reads the events has what the server has."""
    kinds: list[Callable[[int], tuple[str, dict[str, Any]]]] = [
        lambda n: text(f"{n} "),
        lambda n: text(f"{n}\n", "stderr"),
        lambda n: display({"text/plain": str(n)}, f"id{n % 3}"),
        lambda n: update({"text/plain": f"new {n}"}, f"id{n % 3}"),
        lambda _: ("clear_output", {"wait": True}),
        lambda _: ("clear_output", {"wait": False}),
        lambda n: ("execute_result", {"data": {"text/plain": f"r{n}"}, "metadata": {}}),
        lambda _: ("display_data", {"unread": True}),
    ]
    for seed in range(60):
        draw = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()

        def steps(session: Session, draw: random.Random = draw) -> None:
            folds = [session.begin(ONE), session.begin(TWO)]
            for n in range(draw.randrange(40)):
                draw.choice(folds).hear(*draw.choice(kinds)(n))
                if draw.random() < 0.2:
                    session.log.flush()
            session.log.flush()

        session = run(folder, steps)
        for cell in (ONE, TWO):
            own = session.folds[cell].outputs
            events = [one for one in session.lines() if event.kind_of(one) == ("output", cell)]
            assert state(rebuilt(events)) == state(own), seed
            ended = line.to_line(cell, "code", {}, own)
            assert state(line.from_line(ended)[2])[:3] == state(own)[:3], seed


def test_a_log_that_is_cut_anywhere_opens_with_all_whole_lines(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE).hear(*text("a"))
        session.end(ONE)
        session.begin(TWO).hear(*text("b"))
        session.log.flush()
        session.folds[ONE].hear(*text("late"))
        session.log.flush()

    whole = run(tmp_path, steps).log.file.read_bytes()
    for length in range(len(whole)):
        (tmp_path / LOG).write_bytes(whole[:length])
        session = run(tmp_path, lambda _: None)
        assert (tmp_path / LOG).read_bytes() == whole[: whole.rfind(b"\n", 0, length) + 1]
        assert set(session.left) <= {TWO}
        assert session.log.has_late == (b'"late": true' in (tmp_path / LOG).read_bytes())


def test_what_came_late_before_a_kill_is_put_into_its_cell_by_the_next_server(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE).hear(*text("own "))
        session.log.flush()
        session.end(ONE)
        session.folds[ONE].hear(*text("late"))
        session.log.flush()

    run(tmp_path, steps)

    def again(session: Session) -> None:
        assert not session.left
        transcript = Transcript(tmp_path / "notebook.ipynb", session.log)
        assert transcript.wants_rewrite
        transcript.put(transcript.compact(session.log.size), session.log.size)
        transcript.save()

    run(tmp_path, again)
    [cell] = json.loads((tmp_path / "notebook.ipynb").read_text())["cells"]
    assert cell["outputs"][0]["text"] == "own late"


def test_a_notebook_without_a_log_becomes_one(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": "1", "outputs": []}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell, {**cell, "id": "kept"}]}
    (tmp_path / "notebook.ipynb").write_text(json.dumps(book))

    def steps(session: Session) -> None:
        transcript = Transcript(tmp_path / "notebook.ipynb", session.log)
        session.begin(ONE)
        session.end(ONE)
        transcript.save()
        assert len(json.loads(transcript.to_json())["cells"]) == 3
        transcript.put(transcript.compact(session.log.size), session.log.size)
        transcript.save()
        assert not transcript.changed

    session = run(tmp_path, steps)
    assert [json.loads(one)["source"] for one in session.lines()] == ["1", "1", "code"]
    assert json.loads(session.lines()[1])["id"] == "kept"
    cells = json.loads((tmp_path / "notebook.ipynb").read_text())["cells"]
    assert [one["source"] for one in cells] == ["1", "1", "code"]


def test_a_notebook_with_half_a_character_becomes_a_log_whose_cells_are_read(tmp_path: Path) -> None:
    output = {"output_type": "stream", "name": "stdout", "text": "half \ud83d"}
    cell = {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": "1", "outputs": [output]}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    (tmp_path / "notebook.ipynb").write_text(json.dumps(book))

    def steps(session: Session) -> None:
        transcript = Transcript(tmp_path / "notebook.ipynb", session.log)
        transcript.save()
        transcript.put(transcript.compact(session.log.size), session.log.size)

    [found] = run(tmp_path, steps).lines()
    assert line.from_line(found)[2].stdout.read() == "half \ufffd"


def rewrite(session: Session) -> Transcript:
    """As the server does, at once."""
    session.log.flush()
    session.log.has_late = False
    transcript = Transcript(session.log.file.with_suffix(".ipynb"), session.log)
    transcript.put(transcript.compact(session.log.size), session.log.size)
    return transcript


@pytest.mark.parametrize("what", ["waiting", "running"])
def test_cells_that_have_not_ended_take_no_room_of_those_that_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(transcript_module, "MAX_NOTEBOOK_BYTES", 320_000)
    monkeypatch.setattr(transcript_module, "SHRUNK_BYTES", 240_000)

    def steps(session: Session) -> None:
        for number in range(25):
            session.begin(f"{number:022}").hear(*display({"a/b": "x" * 10_000}))
            session.end(f"{number:022}")
        before = session.lines()
        if what == "waiting":
            for number in range(35):
                session.log.submitted(f"w{number:021}", event.now(), "x" * 10_000)
        else:
            fold = session.begin(ONE)
            for _ in range(35):
                fold.hear("clear_output", {})
                fold.hear(*display({"a/b": "x" * 10_000}))
                session.log.flush()
        transcript = rewrite(session)
        assert session.lines()[:25] == before
        assert session.log.size > 500_000
        assert not transcript.wants_rewrite, "it would be the same"
        for number in range(25, 35):
            session.begin(f"{number:022}").hear(*display({"a/b": "x" * 10_000}))
            session.end(f"{number:022}")
        assert transcript.wants_rewrite
        rewrite(session)
        assert sum(len(one) > 10_000 for one in session.lines() if event.kind_of(one)[0] == "cell") < 25

    run(tmp_path, steps)


def test_code_of_any_letters_takes_its_bytes(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.log.submitted(ONE, event.now(), "\u4e2d" * 100_000 + "\ud800")
        session.log.flush()
        assert session.log.size < 301_000
        session.log.ended(ONE, line.to_line(ONE, "\u4e2d" * 100_000 + "\ud800", {}, Outputs()))
        rewrite(session)
        assert session.log.size < 301_000
        assert line.from_line(session.lines()[0])[0] == "\u4e2d" * 100_000 + "\ufffd"

    run(tmp_path, steps)


def test_updates_of_ended_cells_have_one_budget_until_the_log_is_rewritten(tmp_path: Path) -> None:
    """Each update is written for each cell that shows the display."""

    def steps(session: Session) -> None:
        cells = [f"{number:022}" for number in range(40)]
        for cell in cells:
            session.begin(cell).hear(*display({"a/b": "x" * 100_000}, "shown"))
            session.end(cell)
        fold = session.begin(ONE)
        for number in range(30):
            fold.hear(*update({"a/b": f"{number}" * 50_000}, "shown"))
            session.log.flush()
        assert session.log.size < 2 * MAX_EVENT_BYTES
        for _ in range(2):  # the second has what waited for the first
            rewrite(session)
        for cell in cells:
            ended, events = find(session.log.file, cell)
            assert ended is not None
            assert line.from_line(line.with_changes(ended, [op for one in events for op in event.ops_of(one)]))[
                2
            ].displays[0].data == {"a/b": "29" * 50_000}

    run(tmp_path, steps)


def test_what_is_not_kept_of_late_output_costs_nothing(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE)
        session.end(ONE)
        for _ in range(100):
            session.folds[ONE].hear(*text("x" * 99_999))
        session.log.flush()
        noted: list[int] = []
        session.log.on_late = lambda: noted.append(1)
        for _ in range(10):
            session.folds[ONE].hear(*text("more"))
        assert not noted

    run(tmp_path, steps)


def test_a_rewriting_that_fails_leaves_the_log_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, __: Path) -> None:
        raise OSError(28, "No space left on device")

    def steps(session: Session) -> None:
        session.begin(ONE).hear(*text("own"))
        session.end(ONE)
        before = session.log.file.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", full)
            with pytest.raises(OSError, match="No space"):
                rewrite(session)
        assert [one.name for one in tmp_path.iterdir()] == [LOG]
        with pytest.raises(FileNotFoundError):
            session.log.put(tmp_path / "never written", session.log.size)
        assert session.log.file.read_bytes() == before

    run(tmp_path, steps)


def test_what_a_killed_rewriting_leaves_is_deleted(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        session.begin(ONE)
        session.end(ONE)
        session.log.rewrite(lambda lines: lines, session.log.size)

    run(tmp_path, steps)
    assert len(list(tmp_path.iterdir())) == 2
    run(tmp_path, lambda _: None)
    assert [one.name for one in tmp_path.iterdir()] == [LOG]


def test_displays_keep_their_numbers_when_the_last_ones_did_not_fit(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        for number in range(3):  # two have room in a line
            fold.hear(*display({"a/b": f"{number}" * 1_900_000}))
        session.end(ONE)
        fold.hear(*display({"text/plain": "late"}, "d"))
        fold.hear(*update({"text/plain": "new"}, "d"))
        rewrite(session)

    session = run(tmp_path, steps)
    ended, _ = find(session.log.file, ONE)
    assert ended is not None
    shown = line.from_line(ended)[2].displays
    assert [one.data.get("text/plain") for one in shown] == [None, None, line.NOT_KEPT, "new"]


def test_a_value_of_the_guests_does_not_make_a_cell_one_that_a_server_stopped(tmp_path: Path) -> None:
    facts = {"status": "ok", "ms": 1.0, "queued_ms": 0.5}
    good = b""
    for value in (
        {"stopped": True, "x": '"queued_ms": 1, "stopped": true'},
        {"queued_ms": 1.0, "stopped": True},
        [{"kernelmcp": {"queued_ms": 1.0, "stopped": True}}],
    ):
        good = line.to_line(ONE, "1", {**facts, "return_value": value}, Outputs())
        (tmp_path / LOG).write_bytes(good + b"\n")
        assert run(tmp_path, lambda _: None).log.stopped == []
    (tmp_path / LOG).write_bytes(good + b"\n" + line.to_line(TWO, "2", {**facts, "stopped": True}, Outputs()) + b"\n")
    assert run(tmp_path, lambda _: None).log.stopped == [TWO]


def test_a_text_that_was_cut_is_not_cut_again(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        fold = session.begin(ONE, "# " * 1_000_000)
        fold.hear(*text("x" * 5_000_000))
        fold.hear("execute_result", {"data": {"text/plain": "y" * 150_000}, "metadata": {}})
        session.end(ONE)
        fold.hear(*text("late", "stderr"))
        rewrite(session)

    first = run(tmp_path, steps)
    [ended] = first.lines()
    assert (ended.count(b"4,900,000 more bytes"), ended.count(b"50,000 more characters")) == (1, 1)


def test_a_cell_keeps_its_id_in_the_notebook(tmp_path: Path) -> None:
    ids: list[str] = []

    def steps(session: Session) -> None:
        session.begin(ONE)
        session.end(ONE)
        for _ in range(2):
            ids.append(json.loads(session.lines()[0])["id"])
            session.folds[ONE].hear(*text("late"))
            rewrite(session)

    run(tmp_path, steps)
    assert ids[0] == ids[1]


def test_a_flood_of_dropped_displays_is_one_event(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        for _ in range(50_000):
            fold.hear("display_data", {"unread": True})
        session.log.flush()

    session = run(tmp_path, steps)
    assert session.log.size < 1000
    assert rebuilt(session.lines()).dropped_displays == 50_000


class Unsearched(list[Any]):
    """Can be extended and indexed, and nobody looks for anything in it."""

    __iter__: Any = None


def test_an_update_looks_through_no_other_displays_and_events(tmp_path: Path) -> None:
    """A guest may send 10,000, each for 100 of 1,000 displays."""

    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        for number in range(5):
            fold.hear(*display({"a/b": str(number)}, "x" if number % 2 else ""))
        recorder = session.log._recorders[ONE]  # pyright: ignore[reportPrivateUsage]
        events = recorder.ops
        fold.outputs.displays, recorder.ops = Unsearched(fold.outputs.displays), Unsearched(events)
        for text in ("first", "second"):
            fold.hear(*update({"a/b": text}, "x"))
        fold.outputs.displays, recorder.ops = fold.outputs.displays[:], events
        session.log.flush()

    session = run(tmp_path, steps)
    shown = [each.data["a/b"] for each in rebuilt(session.lines()).displays]
    assert shown == ["0", "second", "2", "second", "4"]


def test_displays_beyond_the_limit_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fold = Fold(Outputs(), Policy(max_outputs=1), DisplayIds())
    fold.hear(*display({"a/b": "1"}))
    monkeypatch.setattr("kernelmcp.cells.fold.clean_json", None)
    fold.hear(*display({"a/b": "2"}))
    fold.hear("execute_result", {"data": {"text/plain": "3"}})
    fold.hear(*update({"a/b": "4"}, "of nothing"))
    assert (len(fold.outputs.displays), fold.outputs.dropped_displays, fold.outputs.result) == (1, 2, "3")


def test_a_notebook_stays_within_its_limit_after_a_rewriting_just_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript_module, "MAX_NOTEBOOK_BYTES", 320_000)
    monkeypatch.setattr(transcript_module, "SHRUNK_BYTES", 240_000)
    notebook = tmp_path / "notebook.ipynb"

    def steps(session: Session) -> None:
        transcript = Transcript(notebook, session.log)
        transcript.save()
        for number in range(35):
            cell = f"{number:022}"
            session.begin(cell).hear(*display({"a/b": "x" * 10_000}))
            session.end(cell)
            if number == 29:
                session.folds[cell].hear(*text("late"))
                session.log.flush()
            transcript.save()
            if transcript.wants_rewrite:
                session.log.has_late = False
                transcript.put(transcript.compact(session.log.size), session.log.size)
                transcript.save()
            assert not transcript.wants_rewrite
            assert notebook.stat().st_size <= 320_000

    assert run(tmp_path, steps).log.size > 200_000


def test_an_event_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    later = b'{"e": "paused", "c": "' + ONE.encode() + b'"}\n'

    def steps(session: Session) -> None:
        session.begin(ONE)
        session.end(ONE)
        added = line.left_out_cell(3, "why") + b"\n" + later
        with session.log.file.open("ab") as stream:
            stream.write(added)
        session.log.size += len(added)
        rewrite(session)

    assert run(tmp_path, steps).log.file.read_bytes().endswith(later)
    assert not (tmp_path / "notebook.damaged.jsonl").exists()


def test_of_a_log_that_is_too_large_to_be_searched_the_end_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(session: Session) -> None:
        for number in range(20):
            cell = f"{number:022}"
            session.begin(cell).hear(*text("x" * 10_000))
            session.end(cell)
        session.begin(ONE)
        session.log.flush()

    whole = run(tmp_path, steps).log
    monkeypatch.setattr(lookup, "SEARCHED_BYTES", whole.size // 2)
    opened = run(tmp_path, lambda _: None)
    assert list(opened.left) == [ONE]
    assert opened.log.size == whole.size
    assert find(whole.file, f"{0:022}") == (None, [])
    assert find(whole.file, f"{19:022}")[0] == opened.lines()[19]


def test_a_cell_without_its_outputs_has_its_error_and_no_output_that_is_none(tmp_path: Path) -> None:
    outputs = Outputs()
    for op in (
        ["text", "stdout", "x" * 150_000],
        ["show", "display_data", {"image/png": "x" * 5000}, {}, None],
        ["error", "ValueError", "bad", "where\nit was"],
    ):
        outputs.apply(op)
    ended = line.to_line(ONE, "code", {}, outputs)
    shorter = line.without_outputs(ended)
    assert line.without_outputs(shorter) == shorter
    assert json.loads(shorter)["outputs"][0]["text"].startswith("[the outputs of this cell were left out")
    for found, chars in ((shorter, 150_000), (line.with_changes(shorter, [["text", "stdout", "late"]]), 150_004)):
        _, _, left = line.from_line(found)
        assert left.error == outputs.error
        assert left.stderr.read() == ""
        assert left.stdout.total_chars == chars
        assert [one.data for one in left.displays] == [{"text/plain": line.NOT_KEPT}]
        assert left.dropped_displays == 0
    restored = line.with_changes(shorter, [["change", 0, {"text/plain": "new"}, {}]])
    assert line.from_line(restored)[2].displays[0].data == {"text/plain": "new"}
    assert "more bytes of output were cut" in restored.decode()
    hostile = json.loads(ended)
    hostile["metadata"]["kernelmcp"] |= {"dropped": "x", "noted": {}, "notes": 7, "shown": [], "cut": None}
    assert event.is_whole(line.without_outputs(line.resealed(hostile)))


@pytest.mark.parametrize(
    "twice",
    [
        {"metadata": 5},
        {"cell_type": "x"},
        {"id": "not an id"},
        {"metadata": {"kernelmcp": {"execution_id": "not an id"}}},
        {"metadata": {"kernelmcp": {"left_out": -1}}},
    ],
)
@pytest.mark.parametrize("late", [["late"], []])
def test_a_line_that_has_a_name_twice_keeps_no_log_from_being_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: dict[str, Any], late: list[str]
) -> None:
    monkeypatch.setattr(transcript_module, "MAX_NOTEBOOK_BYTES", 10_000)
    monkeypatch.setattr(transcript_module, "SHRUNK_BYTES", 10_000)

    def steps(session: Session) -> None:
        outputs = Outputs()
        outputs.apply(["text", "stdout", "x" * 20_000])
        ended = line.to_line(ONE, "code", {}, outputs)
        unsealed = ended.replace(event.sum_of(ended).encode(), event.NO_SUM.encode(), 1)
        hostile = event.sealed(unsealed[:-1] + b", " + json.dumps(twice).encode()[1:])
        session.log.ended(ONE, hostile)
        for words in late:
            session.log._write(*event.output(ONE, [["text", "stdout", words]], late=True), b"\n")
        rewrite(session)

    session = run(tmp_path, steps)
    assert all(map(event.is_whole, session.lines()))
    assert session.log.size < 2000


def test_a_full_disk_costs_outputs_before_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    def steps(session: Session) -> None:
        monkeypatch.setattr(os, "pwritev", full)
        for number in range(12):  # 3.8 MB each: eight fit
            cell = f"{number:022}"
            fold = session.begin(cell)
            for _ in range(2):
                fold.hear(*display({"a/b": "x" * 1_900_000}))
            session.end(cell)
            session.log.flush()
        monkeypatch.setattr(os, "pwritev", real)
        session.log.flush()

    assert [kind for kind, _ in run(tmp_path, steps).kinds()] == ["cell"] * 12


def test_a_cell_that_has_ended_knows_how_often_it_was_cleared(tmp_path: Path) -> None:
    def steps(session: Session) -> None:
        fold = session.begin(ONE)
        for number in range(3):
            fold.hear(*text(f"{number}"))
            fold.hear("clear_output", {"wait": False})
        fold.hear(*text("result"))
        session.end(ONE)
        fold.hear(*text("late"))
        rewrite(session)

    ended, _ = find(run(tmp_path, steps).log.file, ONE)
    assert ended is not None
    _, _, outputs = line.from_line(ended)
    assert (outputs.clears, outputs.stdout.read()) == (3, "resultlate")


@pytest.mark.parametrize("clears", [-1, True, 1.5, "2", None, [3]])
def test_a_line_with_an_odd_number_of_clears_has_none(clears: object) -> None:
    cell = {"cell_type": "code", "outputs": [], "source": "", "metadata": {"kernelmcp": {"clears": clears}}}
    assert line.from_line(json.dumps(cell).encode())[2].clears == 0


def test_a_persons_cell_that_a_kill_cut_is_the_persons() -> None:
    lines = [
        event.submitted(ONE, event.now(), "x = 1"),
        event.began(ONE, event.now(), {"by": "person", "client": "Lab"}),
    ]
    found = recorded.from_events(lines, ONE, "s", "local", 0.0)
    assert found.client == "Lab"
    facts = json.loads(recorded.to_line(found))["metadata"]["kernelmcp"]
    assert (facts["by"], facts["client"]) == ("person", "Lab")
    assert recorded.from_events([*lines[:1], event.began(ONE, event.now(), {})], ONE, "s", "local", 0.0).client is None
