"""The record of a session in its shared document: what its log says becomes cells, whatever a guest sends."""

import json
import re
from typing import Any

import nbformat
import pytest
from jupyter_ydoc import YNotebook

from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.event import Op
from kernelmcp.cells.fold import DisplayIds, Fold
from kernelmcp.cells.line import MAX_CELL_BYTES, MAX_TEXT_CHARS, to_line
from kernelmcp.config.models import Policy
from kernelmcp.lab.record import cell_record as record_module
from kernelmcp.lab.record import outputs
from kernelmcp.lab.record.cell_record import Record, cell_id
from kernelmcp.lab.record.running_cell import MAX_OUTPUTS


class Opened:
    """A document, and a record that writes into it as a follower does."""

    def __init__(self) -> None:
        self.notebook = YNotebook()
        self.notebook.set({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        self.codes: dict[str, str] = {}
        self.folds: dict[str, Fold] = {}
        self.ids = DisplayIds()
        self.look_again()

    def look_again(self) -> None:
        """As another Lab does."""
        self.record = Record()
        self.record.notebook = self.notebook
        self.record.look()

    def run(self, execution_id: str, *messages: tuple[str, dict[str, Any]], code: str = "", end: bool = True) -> None:
        """A cell whose events are as the server makes them, and not bounded by its log."""
        self.codes[execution_id] = code or execution_id
        self.folds[execution_id] = Fold(
            Outputs(), Policy(), self.ids, lambda op: self.apply(execution_id, self.op_as_in_the_log(op))
        )
        with self.notebook.ydoc.transaction():
            self.record.submitted(execution_id, code or execution_id)
            self.record.began(execution_id, "model")
            self.feed(execution_id, *messages)
            if end:
                self.end(execution_id)

    def op_as_in_the_log(self, op: Op) -> Op:
        return json.loads(json.dumps(op, allow_nan=False))

    def feed(self, execution_id: str, *messages: tuple[str, dict[str, Any]]) -> None:
        for kind, content in messages:
            self.folds[execution_id].hear(kind, content)

    def apply(self, execution_id: str, *ops: Op) -> None:
        self.record.feed(execution_id, list(ops))

    def end(self, execution_id: str) -> None:
        outputs = self.folds[execution_id].outputs
        outputs.execution_count = 1
        line = to_line(execution_id, self.codes[execution_id], {"status": "ok"}, outputs)
        self.record.put(json.loads(line))

    @property
    def cells(self) -> list[dict[str, Any]]:
        return self.notebook.get()["cells"]

    @property
    def sources(self) -> list[str]:
        return [cell["source"] for cell in self.cells]

    def outputs(self, execution_id: str) -> list[dict[str, Any]]:
        [cell] = [cell for cell in self.cells if cell["id"] == cell_id(execution_id)]
        return cell["outputs"]

    def check(self) -> None:
        """It can be saved, as a notebook that others can open."""
        saved = json.loads(json.dumps(self.notebook.get(), allow_nan=False))
        nbformat.validate(nbformat.from_dict(saved))


@pytest.fixture
def opened() -> Opened:
    return Opened()


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def display(data: Any, display_id: str = "", **content: Any) -> tuple[str, dict[str, Any]]:
    return "display_data", {"data": data, "metadata": {}, "transient": {"display_id": display_id}, **content}


def ended_cell(execution_id: str, text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": "0123abcd",
        "metadata": {"trusted": False, "kernelmcp": {"execution_id": execution_id}},
        "execution_count": 1,
        "source": execution_id,
        "outputs": [{"output_type": "stream", "name": "stdout", "text": text}],
    }


def test_an_execution_becomes_a_cell_with_its_outputs_in_order(opened: Opened) -> None:
    opened.run(
        "one",
        stream("a"),
        stream("b"),
        stream("c", "stderr"),
        display({"text/plain": "d"}),
        stream("e"),
        ("execute_result", {"data": {"text/plain": "f"}, "execution_count": 1}),
        ("error", {"ename": "E", "evalue": "v", "traceback": ["t", "u"]}),
        code="x = 1",
        end=False,
    )
    while_it_ran = opened.outputs("one")
    opened.end("one")
    cell = opened.cells[0]
    assert (cell["source"], cell["execution_count"]) == ("x = 1", 1)
    assert cell["metadata"]["kernelmcp"].keys() == {"by", "execution_id", "sum"}
    assert [cell["metadata"][name] for name in ("trusted", "editable", "deletable")] == [False] * 3
    assert cell["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "ab"},
        {"output_type": "stream", "name": "stderr", "text": "c"},
        {"output_type": "display_data", "data": {"text/plain": "d"}, "metadata": {}},
        {"output_type": "stream", "name": "stdout", "text": "e"},
        {"output_type": "execute_result", "data": {"text/plain": "f"}, "metadata": {}, "execution_count": 1},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t", "u"]},
    ]
    assert [one | {"execution_count": 1} for one in while_it_ran] == [
        one | {"execution_count": 1} for one in cell["outputs"]
    ]
    opened.check()


def test_a_cell_says_that_it_runs_until_it_has_ended(opened: Opened) -> None:
    opened.run("one", end=False)
    ycell = opened.notebook.ycells[0]
    assert (ycell["execution_state"], ycell["metadata"]["kernelmcp"]["running"]) == ("running", True)
    with opened.notebook.ydoc.transaction():
        opened.end("one")
    ycell = opened.notebook.ycells[0]
    assert (ycell["execution_state"], "running" in ycell["metadata"]["kernelmcp"]) == ("idle", False)


def test_what_a_person_types_at_the_end_stays_behind_the_models_cells(opened: Opened) -> None:
    opened.run("one")
    opened.notebook.set_cell(1, source="draft")
    opened.notebook.append_cell({"cell_type": "code", "source": "second draft", "outputs": []})
    opened.run("two")
    assert opened.sources == ["one", "two", "draft", "second draft"]


def test_a_cell_that_a_person_has_executed_or_written_stays_before(opened: Opened) -> None:
    opened.run("one")
    del opened.notebook.ycells[-1]
    opened.notebook.append_cell({"cell_type": "code", "source": "theirs", "execution_count": 4.0, "outputs": []})
    opened.notebook.append_cell({"cell_type": "markdown", "source": "a note"})
    opened.run("two")
    assert opened.sources == ["one", "theirs", "a note", "two"]


def update(text: str, display_id: str) -> tuple[str, dict[str, Any]]:
    return "update_display_data", display({"text/plain": text}, display_id)[1]


def test_displays_are_updated_wherever_they_are_shown(opened: Opened) -> None:
    opened.run("one", display({"text/plain": "1"}, "bar"), display({"text/plain": "other"}, "else"))
    opened.run("two", display({"text/plain": "1"}, "bar"))
    opened.run("three", update("2", "bar"), update("3", "unknown"))
    assert [output["data"]["text/plain"] for output in opened.outputs("one")] == ["2", "other"]
    assert [output["data"]["text/plain"] for output in opened.outputs("two")] == ["2"]
    assert opened.outputs("three") == []
    opened.check()


def test_an_update_of_many_displays_takes_room_for_each(opened: Opened) -> None:
    shown = [display({"text/plain": "x"}, "bar")] * MAX_OUTPUTS
    large = update(MAX_TEXT_CHARS * "y", "bar")
    opened.run("one", *shown, large, large, end=False)
    assert sum(len(output["data"]["text/plain"]) for output in opened.outputs("one")) <= MAX_CELL_BYTES
    assert len(opened.notebook._ydoc.get_update()) <= 2 * MAX_CELL_BYTES


def test_an_update_after_a_person_has_cleared_outputs_changes_nothing_else(opened: Opened) -> None:
    opened.run("one", display({"text/plain": "1"}, "bar"), display({"text/plain": "2"}, "bar"), end=False)
    with opened.notebook._ydoc.transaction():
        opened.notebook.ycells[0]["outputs"].clear()
        opened.feed("one", stream("text"), update("3", "bar"))
    assert [output.get("text") for output in opened.outputs("one")] == ["text"]
    opened.feed("one", display({"text/plain": "4"}, "new"), update("5", "new"), update("6", "bar"))
    assert [output["data"]["text/plain"] for output in opened.outputs("one")[1:]] == ["5"]


def test_an_update_after_a_cleared_output_finds_its_display(opened: Opened) -> None:
    opened.run("one", display({"text/plain": "1"}, "gone"), ("clear_output", {}), stream("a"), end=False)
    opened.feed("one", display({"text/plain": "2"}, "bar"), update("no", "gone"), update("3", "bar"))
    assert [output.get("data") for output in opened.outputs("one")] == [None, {"text/plain": "3"}]


def test_an_update_finds_its_display_in_a_cell_that_lacks_others(opened: Opened) -> None:
    outputs = [{"output_type": "display_data", "data": {"text/plain": text}} for text in "ab"]
    facts = {"execution_id": "one", "displays": [1, 3]}
    opened.record.put(ended_cell("one", "") | {"outputs": outputs, "metadata": {"kernelmcp": facts}})
    opened.apply("one", *[["change", number, {"text/plain": str(number)}, {}] for number in range(4)])
    assert [output["data"]["text/plain"] for output in opened.outputs("one")] == ["1", "3"]


def test_an_update_finds_its_display_among_outputs_that_cannot_be_shown(opened: Opened) -> None:
    opened.run("one", display({"text/html": "x"}, "gone"), display({"text/plain": "1"}, "bar"), end=False)
    opened.apply("one", ["show", "display_data", {"no mime type": "x"}, {}, None])
    opened.apply("one", ["show", "display_data", {"text/plain": "2"}, {}, None])
    opened.apply("one", ["change", 3, {"text/plain": "3"}, {}], ["change", 2, {"text/plain": "no"}, {}])
    assert [output["data"].get("text/plain") for output in opened.outputs("one")] == [None, "1", "3"]


def test_an_update_finds_its_late_display_after_one_that_cannot_be_shown(opened: Opened) -> None:
    opened.run("one", display({}))
    opened.feed("one", display({"text/plain": "1"}, "bar"), update("2", "bar"))
    assert [output["data"] for output in opened.outputs("one")] == [{"text/plain": "2"}]


@pytest.mark.parametrize("number", [-1, 7, True, "0", None, 2**70])
def test_a_change_of_a_display_that_is_not_there_changes_nothing(opened: Opened, number: Any) -> None:
    opened.run("one", stream("a"), end=False)
    opened.apply("one", ["change", number, {"text/plain": "x"}, {}])
    assert [output.get("text") for output in opened.outputs("one")] == ["a"]


def test_the_end_of_a_cell_touches_only_the_outputs_that_have_changed(opened: Opened) -> None:
    opened.run("one", stream("a"), display({"text/plain": "b"}), stream("c"), end=False)
    changes: list[Any] = []
    youtputs = opened.notebook.ycells[0]["outputs"]
    subscription = youtputs.observe_deep(lambda events: changes.extend(event.delta for event in events))
    outputs = opened.folds["one"].outputs
    outputs.apply(["text", "stdout", "d"])
    outputs.apply(["text", "stderr", "e"])
    with opened.notebook.ydoc.transaction():
        opened.end("one")
    youtputs.unobserve(subscription)
    assert [output.get("text") for output in opened.outputs("one")] == ["a", None, "cd", "e"]
    assert [[next(iter(change)) for change in delta] for delta in changes] == [["retain", "insert"]] * 2
    opened.check()


def test_outputs_of_a_cell_that_ended_with_fewer_are_gone(opened: Opened) -> None:
    opened.run("one", stream("a"), stream("b", "stderr"), display({"text/plain": "c"}), end=False)
    opened.record.put(ended_cell("one", "other"))
    assert [output["text"] for output in opened.outputs("one")] == ["other"]


def test_late_output_of_a_cell_appears_in_it(opened: Opened) -> None:
    opened.run("one", stream("a"), display({"text/plain": "1"}, "bar"))
    opened.run("two")
    opened.feed("one", stream("late"), update("2", "bar"))
    assert [output.get("text") for output in opened.outputs("one")] == ["a", None, "late"]
    assert opened.outputs("one")[1]["data"] == {"text/plain": "2"}
    assert opened.notebook.ycells[0]["execution_state"] == "idle"
    opened.check()


def test_a_display_that_came_late_is_updated(opened: Opened) -> None:
    opened.run("one", display({"text/plain": "1"}))
    opened.feed("one", display({"text/plain": "2"}, "bar"), update("3", "bar"))
    assert [output["data"]["text/plain"] for output in opened.outputs("one")] == ["1", "3"]


def test_a_cell_and_its_late_output_are_bounded_together(opened: Opened) -> None:
    opened.run("one", *[display({"image/png": "x" * 1_000_000})] * 3)
    opened.feed("one", *[display({"image/png": "x" * 1_000_000})] * 3)
    assert len(opened.outputs("one")) == 4


def test_events_that_are_read_again_are_applied_once(opened: Opened) -> None:
    opened.run("one", stream("a"), stream("b"), end=False)
    opened.record.submitted("one", "one")
    opened.record.began("one", "model")
    opened.apply("one", ["text", "stdout", "a"])
    opened.apply("one", ["text", "stdout", "b"])
    opened.apply("one", ["text", "stdout", "c"])
    assert [output["text"] for output in opened.outputs("one")] == ["abc"]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["\r 0%|  |", "\r50%|█ |", "\r100%|██|\n", "done\n"], "100%|██|\ndone\n"),
        (["before\n", "1 of 2\r", "2", " of 2\r", "ok"], "before\nokof 2"),
        (["é🎉\b\b", "x", "\b", "yz", "!"], "yz!"),
        (["a\r\nb\r", "\nc"], "a\nb\nc"),
        (["\r", "", "late"], "late"),
    ],
)
def test_a_line_that_is_printed_over_is_as_in_a_terminal(opened: Opened, texts: list[str], shown: str) -> None:
    """An open tab shows what the document holds, and moves back in it only when it loads it."""
    opened.run("bar", end=False)
    for text in texts:
        with opened.notebook.ydoc.transaction():
            opened.feed("bar", stream(text))
    assert opened.outputs("bar")[0]["text"] == shown
    with opened.notebook.ydoc.transaction():
        opened.end("bar")
    assert opened.outputs("bar")[0]["text"] == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\r" * 1_000_000 + "x", "x"),
        ("ab" + "\b" * 1_000_000 + "x", "xb"),
        ("ab" + "\b\r" * 500_000 + "x", "xb"),
        ("a\r\n" * 3, "a\n" * 3),
    ],
    ids=["returns", "backspaces", "both", "lines"],
)
def test_moves_of_an_ended_cell_cost_little_and_are_none_of_the_event_loop(text: str, shown: str) -> None:
    pieces = len(outputs.MOVES.split(text))
    assert pieces < 20
    ended = {"outputs": [{"output_type": "stream", "name": "stdout", "text": [text]}, {"output_type": "error"}]}
    assert outputs.tame_line(ended)["outputs"][0]["text"] == shown


def test_a_tab_is_told_what_a_progress_bar_removes_before_what_it_adds(opened: Opened) -> None:
    """Lab removes from the end of the text, whatever the position."""
    opened.run("bar", stream("before\n\rstep 1"), end=False)
    changes: list[Any] = []
    text = opened.notebook.ycells[0]["outputs"][0]["text"]
    subscription = text.observe(lambda event: changes.append(event.delta))
    with opened.notebook.ydoc.transaction():
        opened.feed("bar", stream("\rstep 2"))
    text.unobserve(subscription)
    assert changes == [[{"retain": 12}, {"delete": 1}, {"insert": "2"}]]


class Tab:
    """The outputs of the first cell as Lab's own code draws each change of the document: what is new is added at the
    end, a stream to the output before it if the last one added was of that stream."""

    def __init__(self, opened: Opened) -> None:
        self.shown: list[str] = []
        self._last_name = ""
        self._outputs = opened.notebook.ycells[0]["outputs"]
        for output in self._outputs:
            self._add(output.to_py())
        self._outputs.observe_deep(lambda events: [self._draw(event) for event in events])

    def _draw(self, event: Any) -> None:
        if event.path:
            for change in event.delta:
                self.shown[-1] = self.shown[-1][: len(self.shown[-1]) - change.get("delete", 0)]
                self.shown[-1] += change.get("insert", "")
            return
        at = 0
        for change in event.delta:
            at += change.get("retain", 0)
            del self.shown[at : at + change.get("delete", 0)]
            for output in change.get("insert", ()):
                self._add(output.to_py())

    def _add(self, output: dict[str, Any]) -> None:
        name = output.get("name", "")
        text = output["text"] if name else output["data"]["text/plain"]
        if name and name == self._last_name and self.shown:
            self.shown[-1] += text
        else:
            self.shown.append(text)
        self._last_name = name


def test_an_open_tab_shows_a_changed_display_in_its_place(opened: Opened) -> None:
    opened.run("a", display({"text/plain": "0"}, "d"), stream("below"), display({"text/plain": "last"}), end=False)
    tab = Tab(opened)
    for number in "12":
        with opened.notebook.ydoc.transaction():
            opened.feed("a", ("update_display_data", display({"text/plain": number}, "d")[1]))
        assert tab.shown == [number, "below", "last"]
    with opened.notebook.ydoc.transaction():
        opened.end("a")
    assert tab.shown == ["2", "below", "last"]


def test_what_is_below_a_display_is_not_written_again_for_ever(opened: Opened) -> None:
    opened.run("a", display({"text/plain": "0"}, "d"), stream("x" * (MAX_CELL_BYTES // 4)), end=False)
    for number in range(9):
        with opened.notebook.ydoc.transaction():
            opened.feed("a", ("update_display_data", display({"text/plain": f"{number}"}, "d")[1]))
    assert opened.outputs("a")[0]["data"]["text/plain"] == "2"
    with opened.notebook.ydoc.transaction():
        opened.end("a")
    assert opened.outputs("a")[0]["data"]["text/plain"] == "8"


@pytest.mark.parametrize("first", [(), (display({"text/plain": "a picture"}),), (stream("warning", "stderr"),)])
def test_an_open_tab_adds_a_text_that_was_cut_at_its_end_to_no_other(opened: Opened, first: tuple[Any, ...]) -> None:
    opened.run("a", *first, stream("xyz" * MAX_TEXT_CHARS), end=False)
    tab = Tab(opened)
    with opened.notebook.ydoc.transaction():
        opened.end("a")
    assert tab.shown == [output.get("text") or output["data"]["text/plain"] for output in opened.outputs("a")]


def test_an_open_tab_adds_a_new_output_to_no_stream_before_it(opened: Opened) -> None:
    opened.run("a", stream("1", "stderr"), stream("2"), stream("3", "stderr"), stream("4"), end=False)
    tab = Tab(opened)
    with opened.notebook.ydoc.transaction():
        cell = ended_cell("a", "another one")
        cell["outputs"].insert(0, {"output_type": "stream", "name": "stderr", "text": "1"})
        opened.record.put(cell)
    assert tab.shown == ["1", "another one"]


def test_a_very_long_line_only_grows(opened: Opened) -> None:
    opened.run("long", stream("x" * 20_000), end=False)
    with opened.notebook.ydoc.transaction():
        opened.feed("long", stream("\ry"))
    assert opened.outputs("long")[0]["text"] == "x" * 20_000 + "\ry"


def test_cleared_output_is_gone_at_once_or_with_the_next_output(opened: Opened) -> None:
    opened.run("one", stream("a"), ("clear_output", {"wait": False}), stream("b"))
    assert [output["text"] for output in opened.outputs("one")] == ["b"]
    opened.run("two", stream("a"), ("clear_output", {"wait": True}), end=False)
    assert [output["text"] for output in opened.outputs("two")] == ["a"]
    opened.feed("two", stream("b"))
    assert [output["text"] for output in opened.outputs("two")] == ["b"]


def test_a_cell_that_a_person_deleted_is_not_missed(opened: Opened) -> None:
    opened.run("one", end=False)
    del opened.notebook.ycells[0]
    opened.feed("one", stream("a"), display({"text/plain": "b"}))
    opened.end("one")
    assert opened.sources == [""]
    assert not opened.record.unfinished


def test_the_log_fills_what_lab_has_not_seen_once_and_in_order(opened: Opened) -> None:
    opened.run("one", stream("1"))
    for cell in (ended_cell("one", "1"), ended_cell("two", "2"), ended_cell("three", "3")):
        opened.record.put(cell)
    opened.look_again()
    for cell in (ended_cell("two", "2"), ended_cell("three", "3")):
        opened.record.put(cell)
    opened.record.put(ended_cell("late", "l"), before="three")
    assert opened.sources[:4] == ["one", "two", "late", "three"]
    assert [cell["outputs"][0]["text"] for cell in opened.cells[:4]] == ["1", "2", "l", "3"]
    opened.check()


def test_a_cell_that_ran_when_lab_was_killed_is_as_it_ended(opened: Opened) -> None:
    opened.run("one", stream("half"), end=False)
    opened.look_again()
    assert opened.record.unfinished == {cell_id("one")}
    opened.record.put(ended_cell("one", "half and the rest"))
    assert opened.record.unfinished == set()
    assert [output["text"] for output in opened.outputs("one")] == ["half and the rest"]


def test_a_cell_that_runs_when_lab_was_killed_is_shown_from_its_first_event(opened: Opened) -> None:
    opened.run("one", stream("half"), end=False)
    opened.look_again()
    opened.apply("one", ["text", "stdout", "not before it began"])
    opened.record.submitted("one", "one")
    opened.record.began("one", "model")
    opened.apply("one", ["text", "stdout", "half"], ["text", "stdout", " and more"])
    assert [output["text"] for output in opened.outputs("one")] == ["half and more"]
    assert opened.sources == ["one", ""]


def test_a_cell_whose_line_has_changed_is_known_to_be_out_of_date(opened: Opened) -> None:
    cell = ended_cell("one", "1")
    cell["metadata"]["kernelmcp"]["sum"] = "0123abcd"
    opened.record.put(cell)
    opened.look_again()
    assert [opened.record.is_current("one", checksum) for checksum in ("0123abcd", "0123abce")] == [True, False]
    opened.check()


def test_a_note_is_there_once(opened: Opened) -> None:
    for _ in range(2):
        opened.record.note("kernel 1", "*ended*")
    again = Record()
    again.notebook = opened.notebook
    again.look()
    again.note("kernel 1", "*ended*")
    assert opened.sources == ["*ended*", ""]
    opened.check()


def test_a_kernel_that_ends_leaves_no_cell_running(opened: Opened) -> None:
    opened.run("one", end=False)
    opened.record.abandon()
    assert opened.notebook.ycells[0]["execution_state"] == "idle"


def test_a_cell_that_a_person_deleted_does_not_come_back_from_the_log(opened: Opened) -> None:
    opened.run("one", end=False)
    del opened.notebook.ycells[0]
    opened.record.put(ended_cell("one", "1"))
    assert opened.sources == [""]
    assert not opened.record.unfinished


# -- hostile guests -----------------------------------------------------------------------------------------------


def test_a_flood_of_text_is_cut_where_the_transcript_cuts_it(opened: Opened) -> None:
    opened.run("one", *[stream("x" * 100_000)] * 80, end=False)
    assert sum(len(output["text"]) for output in opened.outputs("one")) == MAX_CELL_BYTES
    opened.end("one")
    [output] = opened.outputs("one")
    assert output["text"].startswith("x" * MAX_TEXT_CHARS + "\n[")
    assert not opened.record.unfinished


def test_large_outputs_of_one_cell_are_bounded_together(opened: Opened) -> None:
    opened.run("one", *[display({"image/png": "x" * 1_000_000})] * 64, end=False)
    assert len(opened.outputs("one")) == 4
    opened.end("one")
    assert [output["output_type"] for output in opened.outputs("one")] == 4 * ["display_data"] + ["stream"]
    assert sum(opened.record.sizes.values()) <= MAX_CELL_BYTES + 1000


def test_clearing_does_not_give_the_room_back(opened: Opened) -> None:
    big = display({"image/png": "x" * 1_000_000})
    opened.run("one", *[big, ("clear_output", {})] * 40, big, end=False)
    assert opened.outputs("one") == []


def test_thousands_of_displays_and_alternating_streams_are_bounded(opened: Opened) -> None:
    opened.run("one", *[display({"text/plain": "x"}, str(number)) for number in range(10_000)], end=False)
    assert len(opened.outputs("one")) <= MAX_OUTPUTS
    for _ in range(2 * MAX_OUTPUTS):
        opened.apply("one", ["show", "display_data", {"text/plain": "x"}, {}, None])
    assert len(opened.outputs("one")) == MAX_OUTPUTS
    assert len(opened.record._shown[cell_id("one")].places) == MAX_OUTPUTS
    opened.run("two", *[stream("o"), stream("e", "stderr")] * MAX_OUTPUTS, end=False)
    assert len(opened.outputs("two")) == MAX_OUTPUTS
    before = opened.outputs("two")[-1]["text"]
    opened.feed("two", stream("abcdef" * len(before)))  # no output of its own any more
    opened.feed("two", stream("\r5", "stderr"))
    assert opened.outputs("two")[-1]["text"] == "5" + before[1:]


def deep(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    "content",
    [
        {"data": {"text/plain": "x"}, "metadata": deep(500)},
        {"data": {"application/json": deep(500)}},
        {"data": None},
        {"data": []},
        {"data": {"not a mime type": "x"}},
        {"data": {}},
        {},
    ],
)
def test_what_is_no_output_is_left_out(opened: Opened, content: dict[str, Any]) -> None:
    opened.run("one", ("display_data", content), end=False)
    assert opened.outputs("one") == []
    opened.apply("one", ["show", "display_data", content.get("data"), content.get("metadata"), None])
    assert opened.outputs("one") == []
    cell = ended_cell("two", "x") | {"outputs": [{"output_type": "display_data", **content}]}
    opened.record.put(cell)
    assert opened.outputs("two") == []
    opened.check()


@pytest.mark.parametrize(
    "content",
    [
        {"data": {"text/plain": ["a", "b"]}, "metadata": None, "transient": 7},
        {"data": {"text/plain": {"a": 1}}, "metadata": "x", "transient": {"display_id": 5}},
        {"data": {"text/plain": "\ud800"}, "metadata": {"\ud800": "\ud800"}},
        {"data": {"application/json": {"n": float("nan"), "m": float("inf")}}},
        {"data": {"application/json": {"n": 2**80, "m": -(10**400), "b": True, "none": None}}},
        {"data": {f"a/{number}": "x" for number in range(1000)}},
        {"data": {"text/plain": "x", "<script>": "y", "a/b\n": "z"}},
        {"data": {"image/png": 7}},
    ],
)
def test_odd_outputs_become_valid_ones(opened: Opened, content: dict[str, Any]) -> None:
    opened.run("one", ("display_data", content), end=False)
    opened.run("two", ("display_data", content))
    opened.record.put(ended_cell("three", "x") | {"outputs": [{"output_type": "display_data", **content}]})
    opened.run("four", display({"text/plain": "x"}, "bar"))
    opened.apply("four", ["change", 0, content["data"], content.get("metadata")])
    for name in ("one", "two", "three", "four"):
        [output] = opened.outputs(name)
        assert 1 <= len(output["data"]) <= 32
    opened.check()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("stream", {"name": "evil", "text": 7}),
        ("stream", {"name": None}),
        ("error", {"ename": 7, "evalue": None, "traceback": "not a list"}),
        ("error", {"traceback": [["x"], {}, None, "\ud800"]}),
        ("execute_result", {"data": {"text/plain": "x"}, "execution_count": "many"}),
        ("execute_result", {"data": {"text/plain": "x"}, "execution_count": 2**80}),
        ("clear_output", {"wait": "yes"}),
        ("update_display_data", {"transient": {"display_id": []}}),
        ("comm_open", {}),
    ],
)
def test_odd_messages_leave_a_valid_notebook(opened: Opened, kind: str, content: dict[str, Any]) -> None:
    opened.run("one", (kind, content), end=False)
    opened.check()
    opened.end("one")
    opened.check()


@pytest.mark.parametrize(
    "op",
    [
        [],
        [[]],
        ["text"],
        ["text", [], 7],
        ["text", {}, "x"],
        ["show", "stream", {"text/plain": "x"}, {}, None],
        ["show", "display_data", 7, 7, 7],
        ["show", "execute_result", {"text/plain": "\ud800"}, {"a": float("nan")}, []],
        ["error", 7, None, "\ud800"],
        ["error", "E", "v", ["t"]],
        ["clear", 1],
        ["dropped", 1, 1],
        ["of a later version"],
    ],
)
def test_odd_events_leave_a_valid_notebook(opened: Opened, op: Op) -> None:
    opened.run("one", stream("a"), end=False)
    opened.apply("one", op)
    assert opened.outputs("one")[0]["text"] in ("a", "ax")
    opened.check()


def shown_on_every_path(opened: Opened, data: dict[str, Any], metadata: Any = None) -> list[dict[str, Any]]:
    """What a display becomes while its cell runs, by a change, late, at the end of its cell, and from an old log."""
    content = {"data": data, "metadata": metadata or {}}
    event: Op = ["show", "display_data", data, metadata or {}, None]
    opened.run("runs", ("display_data", content), end=False)
    opened.run("forged", end=False)
    opened.apply("forged", event)
    opened.run("changed", display({"text/plain": "x"}), end=False)
    opened.apply("changed", ["change", 0, data, metadata or {}])
    opened.run("ended", ("display_data", content))
    opened.run("late")
    opened.apply("late", event)
    opened.record.put(ended_cell("old", "x") | {"outputs": [{"output_type": "display_data", **content}]})
    found = [opened.outputs(name) for name in ("runs", "forged", "changed", "ended", "late", "old")]
    assert [len(outputs) for outputs in found] == [1] * len(found)
    return [output for outputs in found for output in outputs]


def test_no_output_claims_trust_or_another_way_to_be_shown(opened: Opened) -> None:
    metadata = {"trusted": True, "a": {"trusted": True, "b": 1}, "text/html": {"isolated": True}}
    for output in shown_on_every_path(opened, {"text/html": "<b>"}, metadata):
        assert output["metadata"] == {}


@pytest.mark.parametrize("mime", ["text/html", "text/markdown", "application/x-of-somebody"])
def test_no_tag_of_an_output_leads_away(opened: Opened, mime: str) -> None:
    markup = ["<b>kept</b><ME", "TA http-equiv=refresh content='0;url=//evil'><link rel=dns-prefetch><base/><metadata>"]
    for output in shown_on_every_path(opened, {mime: markup}):
        shown = "".join(output["data"][mime])
        assert shown.startswith("<b>kept</b>")
        assert not re.search(r"<(meta|link|base)", shown, re.IGNORECASE)


def test_a_chart_that_would_need_a_script_shows_as_its_picture(opened: Opened) -> None:
    chart = {"text/html": ["<div></div><scr", "ipt>draw()</script>"], "image/png": "AAAA", "text/plain": "x"}
    table = {"text/html": "<table></table>", "image/png": "AAAA"}
    only = {"text/html": "<iframe></iframe>", "text/plain": "x"}
    for given, kept in ((chart, {"image/png", "text/plain"}), (table, set(table)), (only, {"text/plain"})):
        for output in shown_on_every_path(Opened(), given):
            assert set(output["data"]) == kept


def test_source_that_a_guest_cannot_bound_is_cut(opened: Opened) -> None:
    opened.run("one", code="x" * 3_000_000, end=False)
    assert len(opened.sources[0]) < 1_001_000


def test_a_notebook_that_grows_for_ever_loses_its_oldest_outputs_then_cells(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "MAX_NOTEBOOK_BYTES", 400_000)
    monkeypatch.setattr(record_module, "SHRUNK_BYTES", 300_000)
    monkeypatch.setattr(record_module, "MAX_CELLS", 20)
    monkeypatch.setattr(record_module, "SHRUNK_CELLS", 15)
    for number in range(60):
        opened.run(str(number), stream("x" * 50_000))
        opened.record.shrink()
    texts = [cell["outputs"][0]["text"] for cell in opened.cells if cell["outputs"]]
    assert len(texts) == 18, "15 were left after each sixth"
    assert "were left out" in texts[0]
    assert texts[-1] == "x" * 50_000
    assert sum(map(len, texts)) <= 400_000
    assert opened.sources[-2:] == ["59", ""]


def test_a_copy_of_a_cell_is_a_persons_own(opened: Opened) -> None:
    opened.run("one", stream("x" * 1_000))
    copy = opened.cells[0] | {"id": "a-copy", "outputs": [], "execution_count": None}
    opened.notebook.ycells.append(opened.notebook.create_ycell(copy))
    opened.look_again()
    assert list(opened.record.sizes) == [cell_id("one")]
    opened.run("two")
    assert [cell["id"] for cell in opened.cells][:2] == [cell_id("one"), cell_id("two")]


def test_a_notebook_whose_code_grows_for_ever_loses_its_oldest_cells(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "MAX_NOTEBOOK_BYTES", 400_000)
    monkeypatch.setattr(record_module, "SHRUNK_BYTES", 300_000)
    for number in range(30):
        opened.run(str(number), stream("x" * 10_000), code=f"#{number}".ljust(50_000))
        opened.record.shrink()
    assert 200_000 < sum(map(len, opened.sources)) <= 400_000
    assert opened.sources[-2].startswith("#29")
    assert not opened.record.knows("0")


def test_a_cell_whose_end_nobody_saw_does_not_keep_the_notebook_large(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "MAX_NOTEBOOK_BYTES", 400_000)
    monkeypatch.setattr(record_module, "SHRUNK_BYTES", 300_000)
    opened.run("died", stream("x" * 50_000), end=False)
    opened.record.abandon()
    for number in range(20):
        opened.run(str(number), stream("x" * 50_000))
        opened.record.shrink()
    assert sum(len(output["text"]) for cell in opened.cells for output in cell.get("outputs", [])) <= 400_000
