"""What reaches Lab's page of a guest's output: an allow-list of markup, whatever shape a guest gives it; texts as they
were.
"""

import json
from typing import Any

import pytest

from kernelmcp.lab.connections import tamed_content
from kernelmcp.lab.page_policy import content_security_policy
from kernelmcp.lab.record.outputs import display
from kernelmcp.lab.tame import MAX_HTML_CHARS, MAX_WIDGET_CHARS, clean_html, tame_bundle, tame_metadata, tame_state

AWAY = "<meta http-equiv=refresh content='0;url=http://away.example'>"
NOT_SHOWN = "[this HTML is too long to be shown, or nested too deep]"
PICTURE = "data:image/png;base64,aGk="


def test_texts_without_markup_are_as_they_were() -> None:
    state = {"_options_labels": ["<5", "5-10", ">10"], "description": "< 7", "value": "a & b"}
    message = {"data": {"method": "update", "state": state}}
    assert tamed_content("comm_msg", message) == message
    assert tame_bundle({"application/json": ["<a>", "b"]}) == {"application/json": ["<a>", "b"]}
    assert tame_bundle({"text/plain": "<b>", "image/png": "<b>"}) == {"text/plain": "<b>", "image/png": "<b>"}


@pytest.mark.parametrize(
    "markup", [AWAY, [AWAY], ["<me", AWAY[3:]], ["<me", [AWAY[3:]]], {"a": AWAY}, [["<ME"], ["TA>"]], [AWAY, 7]]
)
@pytest.mark.parametrize("kind", ["display_data", "execute_result", "update_display_data", "inspect_reply"])
def test_no_markup_of_a_bundle_leads_away(kind: str, markup: Any) -> None:
    found = tamed_content(kind, {"data": {"text/html": markup}})["data"]["text/html"]
    assert isinstance(found, str)
    assert "<meta" not in found.lower()


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("<button data-commandlinker-command='x' data-commandlinker-args='{}'>b</button>", "b"),
        ("<b data-commandlinker-command=x onclick=y id=z class=jp-Dialog name=n>b</b>", "<b>b</b>"),
        ("<iframe srcdoc='&lt;meta http-equiv=refresh&gt;'></iframe><object></object><embed>x", "x"),
        ("<style>html{zoom:.05}</style>x<script>y</script>", "x"),
        ("<svg><style>html{}</style><a xlink:href='javascript:1'>t</a></svg>x", "x"),
        ("<form action=/logout><input name=x></form>x", "x"),
        ("<img src='/logout'><img src='http://a.b/'><img src='data:text/html,x'>", "<img><img><img>"),
        (f"<img src='{PICTURE}'>", f'<img src="{PICTURE}">'),
        ("<a href='javascript:1'>x</a>", '<a rel="noopener noreferrer">x</a>'),
        ("<a href='/logout'>x</a>", '<a rel="noopener noreferrer">x</a>'),
        ("<a href='https://a.b/'>x</a>", '<a href="https://a.b/" rel="noopener noreferrer">x</a>'),
        ("<p style='color:red;position:fixed;zoom:9;margin:-9px;transform:none'>x</p>", '<p style="color:red">x</p>'),
        ("<table class='dataframe jp-Dialog'></table>", '<table class="dataframe"></table>'),
    ],
)
def test_what_is_left_of_markup(markup: str, expected: str) -> None:
    assert clean_html(markup) == expected
    for way in (
        tamed_content("display_data", {"data": {"text/html": markup}})["data"]["text/html"],
        tamed_content("comm_msg", {"data": {"state": {"value": markup}}})["data"]["state"]["value"],
        (display("display_data", {"data": {"text/html": markup}, "metadata": {}}) or {})["data"]["text/html"],
    ):
        assert way == expected


def test_tags_of_markdown_are_text_but_for_plain_ones() -> None:
    given = "a <b>x</b><br/> <https://a.b/> `a<b` 1 < 2 <div onclick=x> <img src=/logout> </div> <!-- c -->"
    found = tame_bundle({"text/markdown": given})["text/markdown"]
    assert found.replace("\N{WORD JOINER}", "") == given
    for tag in ("<div", "</div", "<img", "<!--"):
        assert tag not in found
    for kept in ("<b>x</b><br/>", "<https://a.b/>", "1 < 2"):
        assert kept in found


@pytest.mark.parametrize(
    "markup",
    [
        "<div>" * 200_000,
        "".join(f"<p><b title={n}>" for n in range(50_000)),
        "<div><table><td></div></td></table>" * 20_000,
        "".join(f"<b title={n}><table><td></b></td></table>" for n in range(20_000)),
        "<svg>" + "<li>" * 100_000,
        "x" + "<b>x</b>" * 1_000_000,
    ],
    ids=["nested", "opened again", "ends that end nothing", "formats that end nothing", "foreign", "long"],
)
def test_markup_that_would_take_long_is_not_shown(markup: str) -> None:
    assert "too long to be shown, or nested too deep" in clean_html(markup)


@pytest.mark.parametrize(
    ("kind", "where", "limit"),
    [("comm_msg", "state", MAX_WIDGET_CHARS), ("update_display_data", "data", MAX_HTML_CHARS)],
)
def test_texts_of_one_message_that_would_take_long_together_are_not_shown(kind: str, where: str, limit: int) -> None:
    texts = {f"x/{number}": "<b>x</b>" * (limit // 20) for number in range(8)}
    found = list(tamed_content(kind, {where: texts | {"x/last": "<i>y</i>"}})[where].values())
    assert [len(text) > limit // 4 for text in found] == [True] * 2 + [False] * 7
    assert all("too long to be shown" in text for text in found[2:-1])
    assert found[-1] == "<i>y</i>"


def test_pages_of_one_reply_that_would_take_long_together_are_not_shown() -> None:
    page = {"data": {"text/html": "<b>x</b>" * (MAX_HTML_CHARS // 20)}}
    pages = tamed_content("execute_reply", {"payload": [page] * 4})["payload"]
    assert [page["data"]["text/html"].startswith("<b>") for page in pages] == [True] * 2 + [False] * 2


# Each opens elements and seems to close them, to whoever does not read it as a parser does.
SEEMINGLY_CLOSED = [
    '<b title="></b>%d">',
    "<b title='></b>' lang=%d>",
    "<div><!--</div>-->",
    "<div><!-- --!></div title='></div>'><div>",
    "<rp>",
    "<td><li></td><td><dd></td>",
    "<section><div></section><li></div></section><section><div></section><dd></div></section>",
    "<table><table></table><li></table><table><table></table><dd></table>",
    "<html><rt></html>",
    "<kbd></\N{KELVIN SIGN}bd>",
    "<div></ div>",
    "<div><?</div>",
    "<div><title></div></title>",
    "<div><script><!--<script></script></div></script>",
    "<svg><g><![CDATA[</g>]]>",
    "<svg><g><style><!--</style></g>-->",
    "<p><li></p><p><dd></p>",
    "<span><li></span><span><dd></span>",
    "<table><b title=%d><td></b></td></table>",
    "<table><b title=%d><td><th></td></b></table>",
    "<table><b title=%d><div><td></div></b></table>",
]


@pytest.mark.parametrize("piece", SEEMINGLY_CLOSED)
def test_an_end_tag_that_a_parser_ignores_ends_nothing(piece: str) -> None:
    markup = "".join(piece.replace("%d", str(number)) for number in range(300))
    assert "too long to be shown, or nested too deep" in clean_html(f"{markup}x")


@pytest.mark.parametrize(
    "markup",
    [
        "<p>" + "".join(f"<b title={number}>" for number in range(90)) + "<div>x</div>" * 2_000,
        "<p>" + "".join(f"<b title='{number}{'y' * 9_000}'>" for number in range(49)) + "<div>x</div>" * 30,
        "<table>" + "<br>" * 20_000,
        "<table>" + "<tr>></tr>" * 20_000,
        "<table><td></tr>" + "<br>" * 20_000,
        "<table><td><col>" + "<br>" * 20_000,
        "<table><li>" + "<li>" * 20_000,
        "<b " + " ".join(f"a{number}" for number in range(20_000)) + ">",
    ],
    ids=[
        "formats",
        "long formats",
        "moved",
        "moved text",
        "after a row",
        "after a column",
        "moved items",
        "attributes",
    ],
)
def test_what_a_parser_would_copy_or_move_too_often_is_not_shown(markup: str) -> None:
    assert "too long to be shown, or nested too deep" in clean_html(markup)


def test_what_only_looks_like_markup_counts_for_nothing() -> None:
    piece = "<p title='<b>'>x<!-- <b> --></p><script>'<b>'</script><textarea><b></textarea>\n"
    assert clean_html(piece * 300).count("<p") == 300


def test_long_tables_and_lists_are_shown() -> None:
    row = "<tr>" + "<td>1.25</td>" * 8 + "</tr>"
    table = f"<table><tbody>{row * 5_000}</tbody></table>"
    assert len(table) < MAX_HTML_CHARS
    assert clean_html(table).count("<tr>") == 5_000
    assert clean_html(f"<b>{table}</b>").count("<tr>") == 5_000
    assert clean_html("<ul>" + "<li>a<li>b" * 5_000 + "</ul>").count("<li>") == 10_000
    assert clean_html("<table>" + "<tr><td>a<td>b</tr>" * 5_000 + "</table>").count("<td>") == 10_000
    icons = "<svg><path></path></svg><br>" * 300
    assert clean_html(icons).count("<br>") == 300


def test_html_that_shows_nothing_without_its_script_gives_way() -> None:
    figure = "<div id=x></div><script>draw()</script>"
    assert tame_bundle({"text/html": figure, "text/plain": "Figure"}) == {"text/plain": "Figure"}
    assert tame_bundle({"text/html": f"said{figure}", "image/png": "x"}) == {"image/png": "x"}
    assert tame_bundle({"text/html": f"said{figure}", "text/plain": "x"})["text/html"] == "said<div></div>"


def test_of_metadata_only_sizes_are_left() -> None:
    given = {"text/html": {"isolated": True}, "image/png": {"width": 3, "height": {"a": 1}, "x": 1}, "trusted": True}
    assert tame_metadata(given) == {"image/png": {"width": 3}}
    assert tamed_content("display_data", {"data": {}, "metadata": given})["metadata"] == {"image/png": {"width": 3}}


def test_a_list_of_texts_that_spreads_a_tag_is_one() -> None:
    assert tame_state(["<", "img src=x onerror=y>"]) == ["<img>"]
    assert tame_state(["<b>x</b>", "y"]) == ["<b>x</b>", "y"]


def test_a_list_of_texts_counts_once() -> None:
    texts = ["a<br>b" + "x" * 24] * 4_000
    assert tame_state({"text": texts}) == {"text": texts}


def test_of_a_list_that_is_too_long_together_only_markup_is_not_shown() -> None:
    labels = ["label 1234"] * 21_000
    assert tame_state([*labels, "<b>x</b>"]) == [*labels, NOT_SHOWN]
    texts = ["x" * (MAX_WIDGET_CHARS // 2), "<b>y</b>", "<", "img src=x onerror=z>"]
    assert tame_state(texts * 2) == [texts[0], NOT_SHOWN, NOT_SHOWN, texts[3]] * 2
    assert tame_state([["<b>y</b>", texts[0]], texts])[1] == [texts[0], NOT_SHOWN, NOT_SHOWN, texts[3]]


def test_what_a_pager_shows_leads_nowhere_and_the_next_cells_code_is_as_it_was() -> None:
    code = {"source": "set_next_input", "text": "html = '<meta name=a>'", "replace": False}
    page = {"source": "page", "start": 0, "data": {"text/plain": "x", "text/html": AWAY}}
    found = tamed_content("execute_reply", {"status": "ok", "payload": [code, page, {"source": "page", "data": 7}]})
    assert found["payload"][0] == code
    assert "<meta" not in json.dumps(found["payload"][1:])
    assert found["status"] == "ok"


@pytest.mark.parametrize("host", ["127.0.0.1:8888", "localhost:9", "[::1]:8888"])
def test_scripts_come_from_lab_s_folders_only(host: str) -> None:
    assert f"script-src {host}/static/ {host}/lab/extensions/ 'unsafe-eval';" in content_security_policy(host, "/")


@pytest.mark.parametrize("host", ["", "a b", "evil; script-src *", "a.b/c", "x" * 300])
def test_a_strange_host_has_no_scripts(host: str) -> None:
    assert "script-src  'unsafe-eval';" in content_security_policy(host, "/")
