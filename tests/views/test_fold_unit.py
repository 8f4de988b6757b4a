"""What a guest sends for views alone is in no result and no record."""

import json
from typing import Any

import pytest

from kernelmcp.cells import cell, line
from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.event import Op
from kernelmcp.cells.fold import VIEW_TYPE, DisplayIds, Fold
from kernelmcp.config.models import Policy
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.results.view import Cursor
from kernelmcp.mcp_server.views.pages import MAX_PAGE_BYTES, MAX_TEXT_CHARS, TABLE, page, raw

ROWS = {"schema": {"fields": [{"name": "a"}]}, "data": [{"a": 1}], "rows": 5000}


def fold_of(events: list[Op], **limits: Any) -> Fold:
    return Fold(Outputs(), Policy(**limits), DisplayIds(), events.append)


def shown(views: Any, number: int = 0) -> dict[str, Any]:
    data = {"text/plain": f"table {number}", VIEW_TYPE: views}
    return {"data": data, "metadata": {}, "transient": {"display_id": "one"}}


def test_the_forms_for_views_are_beside_the_bundle() -> None:
    events: list[Op] = []
    fold = fold_of(events)
    fold.hear("display_data", shown({TABLE: ROWS}))
    [display] = fold.outputs.displays
    assert display.data == {"text/plain": "table 0"}
    assert display.for_views == {TABLE: ROWS}
    assert VIEW_TYPE not in str(events)
    assert VIEW_TYPE.encode() not in line.to_line("a" * 16, "x", {}, fold.outputs)
    assert raw(fold.outputs, 0, TABLE) is not None
    assert fold.outputs.held == display.weight > 0


def test_an_update_replaces_them() -> None:
    fold = fold_of([])
    fold.hear("display_data", shown({TABLE: ROWS}))
    before = fold.outputs.held
    fold.hear("update_display_data", shown({TABLE: {**ROWS, "rows": 1}}, 1))
    assert fold.outputs.displays[0].for_views[TABLE]["rows"] == 1
    assert fold.outputs.held == before
    fold.hear("update_display_data", shown({}, 2))
    assert fold.outputs.displays[0].for_views == {}
    assert fold.outputs.held == fold.outputs.displays[0].weight < before


def test_forms_for_many_displays_of_an_id_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be a million values, for a hundred displays."""
    fold, weighed = fold_of([]), list[Any]()
    for number in range(10):
        fold.hear("display_data", shown({}, number))
    monkeypatch.setattr("kernelmcp.cells.fold.weight", lambda *values: weighed.extend(values) or 1)
    fold.hear("update_display_data", shown({TABLE: ROWS}))
    assert weighed.count({TABLE: ROWS}) == 1
    assert all(display.for_views == {TABLE: ROWS} for display in fold.outputs.displays)


def test_without_room_for_them_the_object_stays() -> None:
    fold = fold_of([], outputs_max_bytes=10_000)
    fold.hear("display_data", shown({TABLE: {**ROWS, "data": [{"a": n} for n in range(1000)]}}))
    [display] = fold.outputs.displays
    assert display.data == {"text/plain": "table 0"}
    assert display.for_views == {}
    assert fold.outputs.held <= 10_000


@pytest.mark.parametrize("views", [None, "text", [1], {"no type": 1}, {TABLE: float("nan")}])
def test_strange_forms_are_left_out_or_harmless(views: Any) -> None:
    fold = fold_of([])
    fold.hear("display_data", shown(views))
    assert fold.outputs.displays[0].data == {"text/plain": "table 0"}
    assert fold.outputs.displays[0].for_views in ({}, {TABLE: None})


def test_forms_that_are_nested_too_deeply_are_left_out() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    fold = fold_of([])
    fold.hear("display_data", shown({TABLE: deep}))
    assert fold.outputs.displays[0].for_views == {}


@pytest.mark.parametrize("sign", ["a", "\u4e2d", '"', "\\", "\x01", "\U0001f600"])
@pytest.mark.parametrize("value", [lambda text: text, lambda text: [text, text]], ids=["text", "list"])
def test_a_page_is_small_in_a_message_whatever_its_values_and_texts_hold(sign: str, value: Any) -> None:
    fold = fold_of([])
    fold.hear("stream", {"name": "stdout", "text": sign * 400_000})
    for count in (400_000, 60_000, 10):
        fold.hear("display_data", {"data": {"application/json": value(sign * count)}, "metadata": {}})
    found = page(Execution("s", "local", "code", 1, fold.outputs, fold), Cursor())
    assert len(json.dumps(found, ensure_ascii=False).encode()) <= MAX_PAGE_BYTES
    shown = [part["data"] for part in json.loads(found)["parts"] if "display" in part]
    assert shown[-1] == {"application/json": value(sign * 10)}
    assert raw(fold.outputs, 0, "application/json") is not None


def test_the_first_text_of_a_page_says_if_there_was_more() -> None:
    def parts(*texts: tuple[str, str], since: str | None = None) -> list[tuple[str, bool]]:
        fold = fold_of([])
        for name, text in texts:
            fold.hear("stream", {"name": name, "text": text})
        execution = Execution("s", "local", "code", 1, fold.outputs, fold, "e")
        found = json.loads(page(execution, Cursor.parse(since, "e")))
        return [(part["text"], part.get("cut", False)) for part in found["parts"]]

    many = [("stdout", "a"), ("stderr", "b")] * 300
    assert parts(*many) == [("a", True), ("b", False), *[("a", False), ("b", False)] * 249]
    assert parts(*many, since="50-50-0-0") == [("a", False), ("b", False)] * 250
    long = "x" * MAX_TEXT_CHARS
    assert parts(("stderr", "early"), ("stdout", long)) == [(long, True)]
    assert parts(("stderr", "early"), ("stdout", long), since="0-5-0-0") == [(long, False)]


def test_a_page_has_text_that_came_after_the_last_possible_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "MAX_SEGMENTS", 2)
    fold = fold_of([])
    for name, text in (("stdout", "a"), ("stderr", "b"), ("stdout", "c"), ("stderr", "d"), ("stdout", "e")):
        fold.hear("stream", {"name": name, "text": text})
    execution = Execution("s", "local", "code", 1, fold.outputs, fold)
    assert [part["text"] for part in json.loads(page(execution, Cursor()))["parts"]] == ["a", "bd", "ce"]
    assert [part["text"] for part in json.loads(page(execution, Cursor(2, 2)))["parts"]] == ["e"]
