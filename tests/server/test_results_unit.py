"""What a model reads of a result: `content` alone, within the budget; and which clients get the structure as well."""

import base64
import json
import random
import re
from typing import Any

import pytest

from kernelmcp.cells import cell
from kernelmcp.cells import line as cell_line
from kernelmcp.cells.cell import Outputs
from kernelmcp.cells.fold import DisplayIds, Fold
from kernelmcp.cells.line import NOT_KEPT
from kernelmcp.config.models import Policy
from kernelmcp.executions import handler_call
from kernelmcp.executions.execution import Execution
from kernelmcp.executions.recorded import from_line, to_line
from kernelmcp.files.workspace import Piece
from kernelmcp.mcp_server.results.execution_result import to_result
from kernelmcp.mcp_server.results.readable import MAX_FORM_CHARS, readable, text_of_html
from kernelmcp.mcp_server.results.truncation import MIN_SHARE_CHARS, cut_text, density
from kernelmcp.mcp_server.results.view import MAX_MOVES, MAX_READ_BYTES, Cursor, View, without_overwritten
from kernelmcp.mcp_server.tools.file_contents import picture_result
from kernelmcp.mcp_server.views.pages import page
from kernelmcp.output.sanitize import REPORT
from kernelmcp.pictures import headers

from . import bombs

pytestmark = pytest.mark.anyio


# How many times as many tokens as prose, as o200k_base and Anthropic's tokenizer counted them.
DENSE = {
    "prose": ("A result keeps to its budget, and says where the rest is. " * 40, 0.9, 1.2),
    "rows of numbers": ("2026-01-01,N,p0,0,0.00\n" * 100, 2.7, 3.2),
    "numbers, one a line": ("".join(f"{number}\n" for number in range(60_000, 60_400)), 1.9, 2.1),
    "a list": ("{'a': 1.25, 'b': [1, 2, 3]}, " * 60, 2.3, 2.8),
    "Japanese": ("日本語のテキスト" * 100, 3, 4),
    "French": ("Les résultats dépassent déjà la limite prévue à l'été, où l'on s'arrêta. " * 30, 1, 1.6),
    "Russian": ("Результат больше не помещается целиком, поэтому показаны начало и конец. " * 30, 1, 2),
    "base64": (base64.b64encode(random.Random(1).randbytes(2_000)).decode(), 2.5, 3),
    "paths": ("kernels/kernelmcp_kernel/languages/python/image_of_the_guest.py\n" * 40, 0.9, 1.7),
    "one sign": ("z" * 2_000, 4, 4),
    "nothing": ("", 1, 1),
}


@pytest.mark.parametrize("text", DENSE)
def test_the_denser_a_text_that_is_cut_the_less_is_shown(text: str) -> None:
    sample, least, most = DENSE[text]
    assert least <= density(sample) <= most
    if sample:
        shown = cut_text(sample * 100, len(sample) * 100, 4_000, "LINK", "result", {})
        assert 4_000 / most * 0.9 <= len(shown) <= 4_000 / least * 1.1 + 200


def test_a_small_share_keeps_its_first_and_last_lines() -> None:
    text = "1.25,2.5,3.75\n" * 1_000
    assert len(cut_text(text, len(text), MIN_SHARE_CHARS, "", "result", {})) > MIN_SHARE_CHARS - 2 * 14


@pytest.mark.parametrize(
    "html",
    [
        "<" * 100_000,
        "<script>" * 20_000,
        "<script></script" * 10_000,
        "<pre>\n" * 10_000,
        "<p " * 50_000,
        "&" * 100_000,
        "<!--" * 30_000,
    ],
)
def test_hostile_html_is_read_in_bounds(html: str) -> None:
    assert len(text_of_html(html)) <= 2_010


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>5 < 6 and 7 > 3</p>", "5 < 6 and 7 > 3"),
        ("<p>a<!-- <b>not</b> seen > --> b<!doctype html></p>", "a b"),
        ("a<!-- without an end <b>b</b>", "a"),
        ("a<script>'<!--' + '<p>'</SCRIPT >b<Style>/* <!-- */</style> c<script>d", "ab c"),
        ("<head><!-- <script> <head> --><title>t</title></head>a", "a"),
        ("<pre>one\n  two", "one\ntwo"),
        ("a<img src='" + "x" * 30_000 + "'>b", "a"),
        ("a<video>cannot be played</video> b", "a b"),
        ("<pre>one\n  two</pre> <p>three\nfour</p>", "one\ntwo\nthree four"),
    ],
)
def test_html_is_read_as_it_is_seen(html: str, text: str) -> None:
    assert text_of_html(html) == text


NAMES_A_TYPE = {"text/plain": "<IPython.core.display.JSON object>"}


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        ({**NAMES_A_TYPE, "application/json": {"a": [1, "é"]}}, '{"a": [1, "é"]}'),
        ({**NAMES_A_TYPE, "application/json": {"a": 1}, "text/html": "<b>x</b>"}, '{"a": 1}'),
        ({"text/plain": "Tree(3)", "application/json": {"a": 1}}, "Tree(3)"),
        ({"application/json": 0}, "0"),
        ({**NAMES_A_TYPE, "text/latex": "$x^2$", "text/html": "<b>x</b>"}, "$x^2$"),
        ({"text/plain": "x**2", "text/latex": "$x^2$"}, "x**2"),
        (NAMES_A_TYPE, NAMES_A_TYPE["text/plain"]),
    ],
)
def test_json_is_read_where_the_text_only_names_a_type(bundle: dict[str, Any], text: str) -> None:
    assert readable(bundle) == text


def test_of_long_json_the_beginning_is_read() -> None:
    assert readable({"application/json": ["x"] * 100_000}) == json.dumps(["x"] * 1000)[:MAX_FORM_CHARS] + " [...]"


def test_carriage_returns_leave_the_last_state_of_each_line() -> None:
    assert without_overwritten("a\rb\rc\nd\n") == "c\nd\n"
    assert without_overwritten("50%\r100%\r") == "100%"
    assert without_overwritten("dos\r\nlines\r\n") == "dos\nlines\n"
    assert without_overwritten("\r\r") == ""
    nested = "\r0/2\n\r0/3\x1b[A\n\r    \x1b[A\n\r1/3\x1b[A\n\r    \x1b[A\r2/2\n"
    assert without_overwritten(nested) == "2/2\n"
    assert without_overwritten(f"before\n{nested}after") == "before\n2/2\nafter"
    assert without_overwritten("\r0/2\n\r3/3\x1b[A\r2/2\x1b[0m\r\x1b[0m\n") == "2/2\x1b[0m\n3/3"
    assert without_overwritten("one\ntwo\r\x1b[2K\x1b[1A\x1b[2K1\n2\n") == "1\n2\n"
    assert without_overwritten("\x1b[9A\x1b[999A\rtop") == "top"
    assert without_overwritten("hello \x1b[1Aworld\r\n") == "world\nhello "
    assert without_overwritten("a \n\r\x1b[0Ab\n") == "a b\n"
    assert without_overwritten("of before\r\n\x1b[A\x1b[A\r50%\n") == "50%\nof before"
    report = f"{REPORT} The variables are lost."
    for moves in ("\x1b[A\rmine\n", "\x1b[9A mine\n", "\x1b[A\x1b[A\x1b[2Kmine\r\n", "\x1b[1A\r\x1b[A\rmine\n"):
        assert report in without_overwritten(f"\r\n{report}\n{moves}").split("\n")
        assert report in without_overwritten(f"\r\n{report}{moves}").split("\n")
    long = "x" * 50_000
    assert without_overwritten(f"50%\r{long}" + "\r" * 4000) == long
    many = "\r\x1b[A" + "x\n" * MAX_MOVES
    assert without_overwritten(many) == "\x1b[A" + many[4:], "each line alone: that is done in little time"
    assert without_overwritten("\x1b[32m50%\r\x1b[32m100%\r\x1b[0m\ndone") == "\x1b[32m100%\ndone"


@pytest.mark.parametrize(
    "html", ["<![<!", "<!DOCTYPE [", "<?x", "</", "<a b='>'>x", "&#99999999999;", "<td", "<p>a<!-- b -->c"]
)
def test_no_html_is_an_error(html: str) -> None:
    text_of_html(html)


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("", "(no output)"),
        ("\n", "(no output)"),
        ("  ", "  (no output)"),
        ("\u200b\ufeff", "\u200b\ufeff(no output)"),
        ("\t\n x", "\t\n x"),
    ],
)
async def test_every_result_has_a_text_that_is_seen(printed: str, told: str) -> None:
    outputs = Outputs()
    fold = Fold(outputs, Policy(), DisplayIds())
    fold.hear("stream", {"name": "stdout", "text": printed})
    execution = Execution("s", "local", "code", 1, outputs, fold)
    execution.finish("ok", None, state_lost=False)
    [block] = (await to_result(execution, 1_000, None)).content
    assert (block.type, block.text) == ("text", told)


def printing(max_bytes: int, *texts: str) -> Execution:
    outputs = Outputs(max_stream_bytes=(max_bytes, max_bytes))
    fold = Fold(outputs, Policy(), DisplayIds())
    for text in texts:
        fold.hear("stream", {"name": "stdout", "text": text})
    return Execution("s", "local", "code", 1, outputs, fold)


async def text_of(execution: Execution, since: Cursor | None = None, budget: int = 8_000) -> str:
    block = (await to_result(execution, budget, None, since)).content[0]
    assert block.type == "text"
    return block.text


async def test_of_output_that_was_not_kept_each_result_says_so() -> None:
    execution = printing(1_000, "x" * 900, "y" * 7_501)
    gone = "characters were not kept ...]"
    assert f"[... 7,401 of 8,401 {gone}" in await text_of(execution)
    assert f"y\n[... 7,401 of 7,501 {gone}" in await text_of(execution, Cursor(stdout=900))
    assert f"[... 7,401 of 7,401 {gone}" in await text_of(execution, Cursor(stdout=1_000))
    assert "of them: read_file(" in await text_of(execution, budget=500)
    assert json.loads(page(execution, Cursor(stdout=900)))["chars_dropped"] == 7_401


async def test_a_cursor_of_another_execution_hides_nothing() -> None:
    first, second = printing(1_000, "first"), printing(1_000, "second")
    for each in (first, second):
        each.finish("ok", None, state_lost=False)
    cursor = str(View(first).end)
    own, foreign, older = (
        Cursor.parse(*given) for given in ((cursor, first.id), (cursor, second.id), ("5-0-0-0", first.id))
    )
    assert (str(own), own, foreign) == (cursor, older, Cursor())
    assert await text_of(first, own) == "(no newer output)"
    assert await text_of(second, foreign) == "second"
    assert json.loads(page(first, own))["parts"] == []
    assert json.loads(page(first, own))["since"] == cursor
    assert json.loads(page(second, foreign))["parts"][0]["text"] == "second"


async def test_new_output_of_which_only_the_end_is_read_says_so() -> None:
    size = 3 * MAX_READ_BYTES
    told = await text_of(printing(size, "x" * size), Cursor(stdout=1))
    found = re.search(r"([0-9,]+) of ([0-9,]+) characters left out: read_file", told)
    assert found is not None
    assert found[2] == f"{size - 1:,}"


async def test_each_result_of_a_cell_is_told_and_the_last_one_is_its_result() -> None:
    outputs = Outputs()
    fold = Fold(outputs, Policy(), DisplayIds())
    for text in ("'first'", "'second'", "'third'"):
        fold.hear("execute_result", {"data": {"text/plain": text}, "execution_count": 1})
    execution = Execution("s", "local", "code", 1, outputs, fold)
    execution.finish("ok", None, state_lost=False)
    structured = (await to_result(execution, 8_000, None)).structured_content
    assert structured is not None
    assert await text_of(execution) == "'first'\n'second'\n'third'"
    assert structured["result"] == "'third'"
    assert [one["uri"].rpartition("/")[2] for one in structured["outputs"]] == ["0", "1"]


async def test_the_text_for_a_next_cell_is_shown() -> None:
    outputs = Outputs()
    fold = Fold(outputs, Policy(), DisplayIds())
    fold.hear_pages([{"source": "set_next_input", "text": "# %load x.py\nx = 1", "replace": True}, {"source": []}])
    execution = Execution("s", "local", "code", 1, outputs, fold)
    execution.finish("ok", None, state_lost=False)
    assert await text_of(execution) == "# %load x.py\nx = 1"


async def test_an_object_without_a_text_is_named_by_its_own_form() -> None:
    outputs = Outputs()
    fold = Fold(outputs, Policy(), DisplayIds())
    fold.hear("execute_result", {"data": {**NAMES_A_TYPE, "application/x-form": "x"}, "execution_count": 1})
    execution = Execution("s", "local", "code", 1, outputs, fold)
    execution.finish("ok", None, state_lost=False)
    assert await text_of(execution) == "[displayed: application/x-form]"


@pytest.mark.parametrize("kind", ["audio/wav", "video/mp4"])
@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_sound_or_a_film_is_named_and_none_of_its_bytes_are_shown(kind: str, size: int) -> None:
    """As IPython's `Audio` and `Video` write them."""
    element = kind.partition("/")[0]
    written = (
        f'\n <{element} controls="controls" >\n  <source src="data:{kind};base64,{"x" * size}" type="{kind}" />\n'
        f"  Your browser does not support the {element} element.\n </{element}>\n"
    )
    outputs = Outputs()
    fold = Fold(outputs, Policy(), DisplayIds())
    fold.hear("execute_result", {"data": {**NAMES_A_TYPE, "text/html": written}, "execution_count": 1})
    execution = Execution("s", "local", "code", 1, outputs, fold)
    execution.finish("ok", None, state_lost=False)
    assert await text_of(execution) == f"[displayed: {kind}]"


async def test_a_cursor_of_the_running_cell_shows_the_displays_of_its_record() -> None:
    outputs = Outputs()
    fold = Fold(outputs, Policy(), DisplayIds())
    content = {"data": {"text/plain": "a bar"}, "transient": {"display_id": "bar"}}
    for kind in ("display_data", "update_display_data", "update_display_data"):
        fold.hear(kind, content)
    execution = Execution("s", "local", "code", 1, outputs, fold)
    cursor = View(execution).end
    fold.hear("display_data", {"data": {"text/plain": "the end"}})
    execution.finish("ok", None, state_lost=False)
    assert await text_of(execution, cursor) == "the end"
    recorded = from_line(to_line(execution), execution.id, "s", "local")
    assert await text_of(recorded, cursor) == "a bar\nthe end"
    assert [part["display"] for part in json.loads(page(recorded, cursor))["parts"]] == [0, 1]
    assert View(recorded, Cursor.parse(str(View(recorded).end), recorded.id)).displays() == []


async def test_a_cursor_of_the_running_cell_shows_all_text_of_a_record_that_was_cut() -> None:
    outputs = Outputs()
    outputs.apply(["text", "stdout", "x" * 120_000])
    execution = Execution("s", "local", "code", 1, outputs)
    cursor = View(execution).end
    for name, text in (("stdout", "x" * 30_000), ("stderr", "between"), ("stdout", "found" + "y" * 30_000)):
        outputs.apply(["text", name, text])
    execution.finish("ok", None, state_lost=False)
    recorded = from_line(to_line(execution), execution.id, "s", "local")
    assert "found" in await text_of(recorded, cursor, budget=500_000)
    shown = json.loads(page(recorded, cursor))
    assert shown["since"] == ""  # a view that has the text so far begins anew
    assert "found" in shown["parts"][-1]["text"]
    later = json.loads(page(recorded, Cursor.parse(shown["cursor"], recorded.id)))
    assert (later["since"], later["parts"]) == (shown["cursor"], [])


PNG, JPEG = bombs.flat_png(20), bombs.flat_jpeg(20, 20)
THUMBNAIL = b"\xff\xe1" + (len(JPEG) + 2).to_bytes(2, "big") + JPEG
DAMAGED = {
    "rubbish": PNG[:8] + b"\0" * 50,
    "header alone": PNG[:33],
    "cut": PNG[:-1],
    "no pixels": PNG[:33] + PNG[-12:],
    "changed": PNG[:50] + bytes([PNG[50] ^ 1]) + PNG[51:],
    "JPEG without its end": JPEG[:2] + THUMBNAIL + JPEG[2:-2],
    "JPEG without a scan": JPEG[: JPEG.index(b"\xff\xda")] + JPEG[-2:],
}


@pytest.mark.parametrize("kind", DAMAGED)
async def test_a_damaged_picture_fits_nowhere_and_is_named(kind: str) -> None:
    data = DAMAGED[kind]
    outputs = Outputs()
    content = {"data": {"image/png": base64.b64encode(data).decode()}}
    Fold(outputs, Policy(), DisplayIds()).hear("display_data", content)
    execution = Execution("s", "local", "code", 1, outputs)
    assert "[1 picture could not be put into this result: read_file of kernelmcp://" in await text_of(execution)
    assert await picture_result("s", "a.png", Piece(data, len(data)), "local") is None


@pytest.mark.parametrize(
    "data",
    [PNG, JPEG, JPEG[:2] + THUMBNAIL + JPEG[2:], PNG + b"more", JPEG + b"a film"],
    ids=["PNG", "JPEG", "with a thumbnail", "PNG and more", "JPEG and a film"],
)
def test_a_whole_picture_is_recognized_whatever_else_is_in_its_file(data: bytes) -> None:
    found = headers.recognize(data)
    assert found is not None
    assert (found.width, found.height) == (20, 20)


def test_a_number_that_json_does_not_have_is_null() -> None:
    """A kernel of somebody else's, or a hostile one, sends NaN: Python reads it, no client does."""
    outputs = Outputs()
    content = json.loads('{"data": {"application/x+json": {"a": [NaN, -Infinity, 1.5]}}}')
    Fold(outputs, Policy(), DisplayIds()).hear("display_data", content)
    assert outputs.displays[0].data == {"application/x+json": {"a": [None, None, 1.5]}}


def test_a_returned_number_that_is_too_large_for_json_is_refused() -> None:
    text = base64.b64encode(b'{"a": [1e999]}').decode()
    with pytest.raises(handler_call.NoReturnValue, match="not usable"):
        handler_call.return_value({handler_call.NAME: {"status": "ok", "data": {"text/plain": text}}})


@pytest.mark.parametrize(
    ("most", "large", "dropped", "replaced"),
    [(2, 0, 2, 0), (64, 3, 0, 1), (64, 0, 0, 0)],  # two large ones have room
)
def test_notes_of_the_transcript_are_no_output_of_the_cell(most: int, large: int, dropped: int, replaced: int) -> None:
    outputs = Outputs()
    fold = Fold(outputs, Policy(max_outputs=most), DisplayIds())
    fold.hear("stream", {"name": "stderr", "text": "its own"})
    for size in [10] * (4 - large) + [1_900_000] * large:
        fold.hear("display_data", {"data": {"image/png": "x" * size}})
    execution = Execution("s", "local", "1", 1, outputs)
    execution.finish("ok", None, state_lost=False)
    line = to_line(execution)
    said = {0: b"", 1: b"[1 more output of this cell was left", 2: b"[2 more outputs of this cell were left"}
    assert said[dropped + replaced] in line
    assert (b"left out of the notebook" in line) == bool(dropped or replaced)
    found = from_line(line, execution.id, "s", "local")
    assert found.outputs.stderr.read() == "its own"
    assert found.outputs.dropped_displays == dropped
    assert len(found.outputs.displays) == min(most, 4), "each keeps its number"
    assert [one.data.get("text/plain") for one in found.outputs.displays].count(NOT_KEPT) == replaced


def texts_of(line: bytes) -> list[str]:
    return [output["text"] for output in json.loads(line)["outputs"]]


def test_late_output_leaves_true_what_the_transcript_says_of_a_long_cell() -> None:
    outputs = Outputs((1_000_000, 1_000))
    outputs.apply(["text", "stderr", "x" * 1_500])
    outputs.apply(["text", "stdout", "line\n" * 50_000])
    line = cell_line.to_line("c" * 20, "code", {}, outputs)
    cut = "line\n" * 20_000 + "\n[150,000 more bytes were cut from the notebook]\n"
    said = "[500 characters of output were not kept]\n"
    assert texts_of(line) == ["x" * 1_000, cut, said]
    for text in ("late\n", "later\n" * 20):
        line = cell_line.with_changes(line, [["text", "stdout", text]])
    assert texts_of(line) == ["x" * 1_000, cut, "late\n" + "later\n" * 20, said]
    assert cell_line.from_line(line)[2].stdout.total_chars == 250_125
    assert texts_of(cell_line.with_changes(line, [["clear"], ["text", "stdout", "new"]])) == ["new"]


def test_late_output_of_a_cell_with_too_many_runs_is_counted_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "MAX_SEGMENTS", 2)
    outputs = Outputs()
    for name, text in (("stdout", "a"), ("stderr", "b"), ("stdout", "é\n")):
        outputs.apply(["text", name, text])
    line = cell_line.to_line("c" * 20, "code", {}, outputs)
    assert texts_of(line) == ["a", "b", "[3 more bytes of output were cut from the notebook]\n"]
    for _ in range(2):
        line = cell_line.with_changes(line, [["text", "stdout", "late\n"]])
    assert texts_of(line) == ["a", "b", "[13 more bytes of output were cut from the notebook]\n"]
