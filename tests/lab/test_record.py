"""The record of a session in its shared document: what a kernel does becomes cells, whatever a guest sends."""

import json
import re
from typing import Any

import nbformat
import pytest
from jupyter_ydoc import YNotebook

from kernelmcp.lab.record import record as record_module
from kernelmcp.lab.record.record import Record, cell_id
from kernelmcp.lab.record.running_cell import MAX_OUTPUTS
from kernelmcp.notebook.cells import MAX_CELL_BYTES, MAX_TEXT_CHARS


class Opened:
    """A document, and a record that writes into it as a follower does."""

    def __init__(self) -> None:
        self.notebook = YNotebook()
        self.notebook.set({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
        self.record = Record()
        self.record.notebook = self.notebook
        self.record.look()

    def run(self, execution_id: str, *messages: tuple[str, dict[str, Any]], code: str = "", end: bool = True) -> bool:
        with self.notebook.ydoc.transaction():
            self.record.begin(execution_id, code or execution_id, 1, "model")
            self.feed(execution_id, *messages)
            return self.record.end(execution_id) if end else False

    def feed(self, execution_id: str, *messages: tuple[str, dict[str, Any]]) -> None:
        for kind, content in messages:
            self.record.feed(execution_id, kind, content)

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


def journal_cell(execution_id: str, text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": "0123abcd",
        "metadata": {"trusted": False, "kernelmcp": {"execution_id": execution_id}},
        "execution_count": 1,
        "source": execution_id,
        "outputs": [{"output_type": "stream", "name": "stdout", "text": text}],
    }


def test_an_execution_becomes_a_cell_with_its_outputs_in_order(opened: Opened) -> None:
    assert opened.run(
        "one",
        stream("a"),
        stream("b"),
        stream("c", "stderr"),
        display({"text/plain": "d"}),
        stream("e"),
        ("execute_result", {"data": {"text/plain": "f"}, "execution_count": 1}),
        ("error", {"ename": "E", "evalue": "v", "traceback": ["t", "u"]}),
        code="x = 1",
    )
    cell = opened.cells[0]
    assert (cell["source"], cell["execution_count"]) == ("x = 1", 1)
    assert cell["metadata"]["kernelmcp"] == {"by": "model", "execution_id": "one"}
    assert [cell["metadata"][name] for name in ("trusted", "editable", "deletable")] == [False] * 3
    assert cell["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "ab"},
        {"output_type": "stream", "name": "stderr", "text": "c"},
        {"output_type": "display_data", "data": {"text/plain": "d"}, "metadata": {}},
        {"output_type": "stream", "name": "stdout", "text": "e"},
        {"output_type": "execute_result", "data": {"text/plain": "f"}, "metadata": {}, "execution_count": 1},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["t", "u"]},
    ]
    opened.check()


def test_a_cell_says_that_it_runs_until_it_has_ended(opened: Opened) -> None:
    opened.run("one", end=False)
    ycell = opened.notebook.ycells[0]
    assert (ycell["execution_state"], ycell["metadata"]["kernelmcp"]["running"]) == ("running", True)
    with opened.notebook.ydoc.transaction():
        assert opened.record.end("one")
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


def test_displays_are_updated_wherever_they_are_shown(opened: Opened) -> None:
    opened.run("one", display({"text/plain": "1"}, "bar"), display({"text/plain": "other"}, "else"))
    update = display({"text/plain": "2"}, "bar")[1]
    opened.run("two", ("update_display_data", update), ("update_display_data", display({}, "unknown")[1]))
    assert [output["data"]["text/plain"] for output in opened.outputs("one")] == ["2", "other"]
    assert opened.outputs("two") == []
    opened.check()


def test_an_update_of_many_displays_takes_room_for_each(opened: Opened) -> None:
    shown = [display({"text/plain": "x"}, "bar")] * MAX_OUTPUTS
    update = ("update_display_data", display({"text/plain": MAX_TEXT_CHARS * "y"}, "bar")[1])
    opened.run("one", *shown, update, update, end=False)
    assert sum(len(output["data"]["text/plain"]) for output in opened.outputs("one")) <= MAX_CELL_BYTES
    assert len(opened.notebook._ydoc.get_update()) <= 2 * MAX_CELL_BYTES
    with opened.notebook._ydoc.transaction():
        assert not opened.record.end("one")  # the journal has it


def test_an_update_after_a_person_has_cleared_outputs_changes_nothing_else(opened: Opened) -> None:
    opened.run("one", display({"text/plain": "1"}, "bar"), display({"text/plain": "2"}, "bar"), end=False)
    with opened.notebook._ydoc.transaction():
        opened.notebook.ycells[0]["outputs"].clear()
        opened.feed("one", stream("text"), ("update_display_data", display({"text/plain": "3"}, "bar")[1]))
    assert [output.get("text") for output in opened.outputs("one")] == ["text"]


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
    assert opened.record.end("one")


def test_the_journal_fills_what_lab_has_not_seen_once_and_in_order(opened: Opened) -> None:
    opened.run("one", stream("1"))
    for cell in (journal_cell("one", "1"), journal_cell("two", "2"), journal_cell("three", "3")):
        opened.record.put(cell)
    again = Record()
    again.notebook = opened.notebook
    again.look()
    for cell in (journal_cell("two", "2"), journal_cell("three", "3")):
        again.put(cell)
    again.put(journal_cell("late", "l"), before="three")
    assert opened.sources[:4] == ["one", "two", "late", "three"]
    assert [cell["outputs"][0]["text"] for cell in opened.cells[:4]] == ["1", "2", "l", "3"]
    opened.check()


def test_a_cell_that_ran_when_lab_was_killed_is_as_the_journal_has_it(opened: Opened) -> None:
    opened.run("one", stream("half"), end=False)
    again = Record()
    again.notebook = opened.notebook
    again.look()
    assert again.unfinished == {cell_id("one")}
    again.put(journal_cell("one", "half and the rest"))
    assert again.unfinished == set()
    assert [output["text"] for output in opened.outputs("one")] == ["half and the rest"]
    again.feed("one", *stream("more"))  # it comes late, and the journal had it
    assert [output["text"] for output in opened.outputs("one")] == ["half and the rest"]


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
    assert opened.record.abandoned == ["one"]
    assert opened.notebook.ycells[0]["execution_state"] == "idle"


def test_a_cell_that_a_person_deleted_does_not_come_back_from_the_journal(opened: Opened) -> None:
    opened.run("one", end=False)
    del opened.notebook.ycells[0]
    opened.record.put(journal_cell("one", "1"))
    assert opened.sources == [""]
    assert not opened.record.unfinished


# -- hostile guests -----------------------------------------------------------------------------------------------


def test_a_flood_of_text_is_cut_where_the_transcript_cuts_it(opened: Opened) -> None:
    assert not opened.run("one", *[stream("x" * 1000)] * 200)
    assert [len(output["text"]) for output in opened.outputs("one")] == [MAX_TEXT_CHARS]
    opened.record.say_left_out("one")
    assert "100 more outputs of this cell were left out" in opened.outputs("one")[-1]["text"]
    assert not opened.record.unfinished


def test_large_outputs_of_one_cell_are_bounded_together(opened: Opened) -> None:
    opened.run("one", *[display({"image/png": "x" * 1_000_000})] * 64)
    assert len(opened.outputs("one")) == 4
    assert sum(opened.record.sizes.values()) <= MAX_CELL_BYTES + 1000


def test_clearing_does_not_give_the_room_back(opened: Opened) -> None:
    big = display({"image/png": "x" * 1_000_000})
    opened.run("one", *[big, ("clear_output", {})] * 40, big)
    assert opened.outputs("one") == []


def test_thousands_of_displays_and_alternating_streams_are_bounded(opened: Opened) -> None:
    opened.run("one", *[display({"text/plain": "x"}, str(number)) for number in range(10_000)])
    assert len(opened.outputs("one")) == MAX_OUTPUTS
    assert len(opened.record._displays) <= record_module.MAX_DISPLAY_IDS
    opened.run("two", *[stream("o"), stream("e", "stderr")] * 5000)
    assert len(opened.outputs("two")) == MAX_OUTPUTS


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
def test_what_is_no_output_is_left_out_and_counted(opened: Opened, content: dict[str, Any]) -> None:
    assert not opened.run("one", ("display_data", content))
    assert opened.outputs("one") == []
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
    opened.run("one", ("display_data", content))
    assert len(opened.outputs("one")) == 1
    assert len(opened.outputs("one")[0]["data"]) <= 32
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
    opened.run("one", (kind, content))
    opened.check()


def test_no_output_claims_trust_nor_another_ones_display_id(opened: Opened) -> None:
    metadata = {"trusted": True, "a": {"trusted": True, "b": 1}, "kernelmcp_display_id": "forged"}
    opened.run("one", ("display_data", {"data": {"text/html": "<b>"}, "metadata": metadata}))
    assert opened.outputs("one")[0]["metadata"] == {}


@pytest.mark.parametrize("mime", ["text/html", "text/markdown", "application/x-of-somebody"])
def test_no_tag_of_an_output_leads_away(opened: Opened, mime: str) -> None:
    markup = ["<b>kept</b><ME", "TA http-equiv=refresh content='0;url=//evil'><link rel=dns-prefetch><base/><metadata>"]
    opened.run("one", ("display_data", {"data": {mime: markup}}))
    shown = "".join(opened.outputs("one")[0]["data"][mime])
    assert shown.startswith("<b>kept</b>")
    assert not re.search(r"<(meta|link|base)", shown, re.IGNORECASE)


def test_a_chart_that_would_need_a_script_shows_as_its_picture(opened: Opened) -> None:
    chart = {"text/html": ["<div></div><scr", "ipt>draw()</script>"], "image/png": "AAAA", "text/plain": "x"}
    table = {"text/html": "<table></table>", "image/png": "AAAA"}
    only = {"text/html": "<iframe></iframe>", "text/plain": "x"}
    opened.run("one", display(chart), display(table), display(only))
    shown = [set(output["data"]) for output in opened.outputs("one")]
    assert shown == [{"image/png", "text/plain"}, set(table), {"text/plain"}]


def test_source_that_a_guest_cannot_bound_is_cut(opened: Opened) -> None:
    opened.run("one", code="x" * 3_000_000)
    assert len(opened.sources[0]) < 1_001_000


def test_a_notebook_that_grows_for_ever_loses_its_oldest_outputs_then_cells(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_module, "MAX_NOTEBOOK_BYTES", 400_000)
    monkeypatch.setattr(record_module, "SHRUNK_BYTES", 300_000)
    monkeypatch.setattr(record_module, "MAX_CELLS", 20)
    for number in range(60):
        opened.run(str(number), stream("x" * 50_000))
        opened.record.shrink()
    texts = [cell["outputs"][0]["text"] for cell in opened.cells if cell["outputs"]]
    assert len(texts) == 20
    assert "were left out" in texts[0]
    assert texts[-1] == "x" * 50_000
    assert sum(map(len, texts)) <= 400_000
    assert opened.sources[-2:] == ["59", ""]


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
    opened.record.say_left_out("died")  # nor has the journal
    assert not opened.record.unfinished
