"""Views as a person sees them, in hosts that do all that a host can, and in poor ones."""

import json
from contextlib import suppress
from typing import Any

import anyio
import pytest
from playwright.async_api import Error, Frame

from ..server.support import Connect
from .rig import CHROMIUM, POLICIES, UI, Tab, dumped

# ruff: noqa: E501, RUF001  # cells, and what is seen of them, as they are

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package is called chromium)"),
]
MAX_STRIP_PX = 30
MIXED = r"""
import sys
from IPython.display import HTML, SVG, Image, display
print("\x1b[1;32mgreen\x1b[0m and \x1b[38;5;208morange\x1b[0m")
display(HTML("<h3>Heading</h3><p style='color: tomato'>paragraph</p>"))
print("to stderr", file=sys.stderr)
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="80" height="40"><rect width="80" height="40"/></svg>'))
open("report.csv", "w").write("a,b\n1,2\n")
"""
TABLE = """
from IPython.display import display
rows = "".join(f"<tr><th>{n}</th><td>city {n % 3}</td><td>{(n * 37) % 50 - 10 or 'inf'}</td></tr>" for n in range(50))
html = f'<table class="dataframe"><thead><tr><th></th><th>city</th><th>price</th></tr></thead><tbody>{rows}</tbody></table>'
display({"text/html": html, "text/plain": "table"}, raw=True)
"""


@pytest.mark.parametrize("policy", POLICIES)
async def test_all_outputs_are_seen_in_their_order(connect: Connect, tab: Tab, policy: str) -> None:
    async with connect(extensions=UI) as client, tab.host(client, policy) as host:
        view = await host.run(MIXED)
        await view.see("iframe")  # before its page is read, a view shows what the result has
        await view.shows("to stderr")
        await view.see("img")
        frame = view.frame.child_frames[0]
        await frame.wait_for_selector("h3")
        assert await frame.evaluate("document.querySelector('h3').innerText") == "Heading"
        kinds = await view.frame.evaluate(
            "[...document.querySelectorAll('pre:not(.code), iframe, figure')].map(node => node.className || node.localName)"
        )
        assert kinds[:4] == ["stdout", "iframe", "stderr", "figure"]
        colours = await view.frame.evaluate("[...document.querySelectorAll('pre span')].map(node => node.style.color)")
        assert colours[1] == "rgb(255, 135, 0)"
        assert "\x1b" not in await view.text()
        assert "↓ report.csv" in await view.text()
        assert (await view.said())["calls"] == []


async def test_a_cell_without_output_is_one_line(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run("x = 1\ny = 2")
        await view.shows("✓")
        await view.shows("▸ 2 lines")
        assert await view.height() <= MAX_STRIP_PX
        await view.frame.click("text=▸ 2 lines")
        await view.shows("y = 2")

        async def is_taller() -> bool:
            return await view.height() > MAX_STRIP_PX

        await view.until(is_taller)


async def test_what_became_of_the_variables_is_in_the_line(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        result = await client.call_tool("execute_code", {"code": "x = 1"})
        await client.call_tool(
            "stop_session", {"session_id": dumped(result)["_meta"]["kernelmcp/result"]["session_id"]}
        )
        await (await host.run("x")).shows("variables restored")
        view = await host.run("import os; os._exit(3)")
        await view.shows("variables lost")
        assert "restored" not in await view.text()


async def test_text_is_seen_while_the_cell_runs(connect: Connect, tab: Tab) -> None:
    code = "import asyncio, os\nprint('step 1')\nawait asyncio.sleep(1)\nprint('step 2')\n"
    code += "while not os.path.exists('go'): await asyncio.sleep(.05)\nprint('step 3')"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.open(code)
        results: list[Any] = []

        async def call() -> None:
            results.append(await client.call_tool("execute_code", {"code": code}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await view.shows("step 2")
            assert not results
            assert "stop" in await view.text()
            await client.call_tool("write_file", {"path": "go", "content": ""})
        await view.give(results[0])
        await view.shows("step 3")
        await view.shows("✓")
        assert (await view.text()).count("step 1") == 1


async def test_a_view_goes_on_after_a_result_that_says_running(connect: Connect, tab: Tab) -> None:
    async with (
        connect(extensions=UI, SESSIONS__INLINE_WAIT_SECONDS="0.2") as client,
        tab.host(client) as host,
    ):
        view = await host.run(
            "import asyncio\nfor n in range(4):\n    print('line', n)\n    await asyncio.sleep(1)\n'end'"
        )
        await view.shows("line 3")
        await view.shows("✓")
        await view.shows("'end'")


async def test_a_person_can_ask_for_a_stop(connect: Connect, tab: Tab) -> None:
    async with (
        connect(extensions=UI, SESSIONS__INLINE_WAIT_SECONDS="0.2") as client,
        tab.host(client) as host,
    ):
        view = await host.run("import asyncio\nprint('begun')\nawait asyncio.sleep(60)")
        await view.shows("begun")
        await view.frame.click("text=stop")

        async def has_asked() -> bool:
            return bool((await view.said())["messages"])

        await view.until(has_asked)
        [message] = (await view.said())["messages"]
        assert message["role"] == "user"
        assert "cancel_execution(execution_id=" in message["content"][0]["text"]
        assert (await view.said())["calls"] == []
        await client.call_tool("cancel_execution", {})
        await view.shows("✗ interrupted")


async def test_an_error_is_folded(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run("def f(x):\n    return 1 / x\nf(0)")
        await view.see("summary")
        await view.shows("ZeroDivisionError: division by zero")
        assert "return 1 / x" not in await view.text()
        await view.frame.click("summary")
        await view.shows("return 1 / x")


async def test_a_table_is_sorted_filtered_and_paged(connect: Connect, tab: Tab) -> None:
    first_row = "[...document.querySelectorAll('tbody tr:first-child > *')].map(cell => cell.innerText)"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(TABLE)
        await view.shows("50 rows × 2 columns · page 1 of 3")
        for expected in ("-10", "inf"):
            await view.frame.press("th:nth-child(3) button", "Enter")
            assert (await view.frame.evaluate(first_row))[2] == expected
        await view.frame.fill("input", "city 1")
        await view.shows("17 of 50 rows")
        await view.frame.fill("input", "")
        await view.frame.click("text=›")
        await view.shows("page 2 of 3")
        await view.frame.click("text=CSV")

        async def is_saved() -> bool:
            return bool((await view.said())["downloads"])

        await view.until(is_saved)
        [saved] = (await view.said())["downloads"]
        assert saved["mimeType"] == "text/csv"
        assert len(saved["text"].splitlines()) == 51


GROUPED = """<thead><tr><th></th><th></th><th colspan="2" halign="left">v</th></tr>
<tr><th></th><th></th><th>min</th><th>max</th></tr><tr><th>k</th><th>n</th><th></th><th></th></tr></thead>
<tbody><tr><th rowspan="2" valign="top">a</th><th>1</th><td>3</td><td>4</td></tr><tr><th>2</th><td>1</td><td>2</td></tr>
<tr><th>b</th><th>1</th><td>7</td><td>9</td></tr></tbody>"""
OF_POLARS = """<thead><tr><th>a</th><th>b</th></tr><tr><td>i64</td><td>str</td></tr></thead>
<tbody><tr><td>1</td><td>&quot;x&quot;</td></tr></tbody>"""
HOSTILE_TABLES = [
    f"<tbody>{('<tr>' + '<td colspan=1000 rowspan=65534>x</td>' + '</tr>') * 300}</tbody>",
    f"<tbody><tr>{'<td colspan=1000 rowspan=0>x</td>' * 2000}</tr></tbody>",
    f"<thead>{'<tr></tr>' * 4000}</thead><tbody><tr>{'<td colspan=900>x</td>' * 5}</tr></tbody>",
    f"<tbody><tr><td colspan=900 rowspan=100>{'x' * 100_000}</td></tr>{'<tr></tr>' * 100}</tbody>",
]


async def test_grouped_rows_and_columns_are_a_table_as_well(connect: Connect, tab: Tab) -> None:
    texts = "[...document.querySelectorAll('tr')].map(row => [...row.children].map(cell => cell.innerText).join('|'))"
    shown = "HTML('{}<table class=\"dataframe\">' + {!r} + '</table>')"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        imported = "from IPython.display import HTML; "
        view = await host.run(imported + shown.format("", GROUPED))
        await view.shows("3 rows × 2 columns")
        assert await view.frame.evaluate(texts) == ["k|n|v / min|v / max", "a|1|3|4", "a|2|1|2", "b|1|7|9"]
        view = await host.run(shown.format("<small>shape: (1_000, 2)</small>", OF_POLARS))
        await view.shows("1 row (the frame has 1,000) × 2 columns")
        assert await view.frame.evaluate(texts) == ["a / i64|b / str", '1|"x"']
        for hostile in HOSTILE_TABLES:
            view = await host.run(shown.format("", hostile))
            await view.shows("HTML of the cell")
        digits = "<tbody><tr><td>1</td></tr></tbody><tfoot><tr><td>" + "1" * 200_000 + "</td></tr></tfoot>"
        view = await host.run(shown.format("", digits))
        await view.shows("1 row × 1 column")


@pytest.mark.parametrize(
    "html",
    [
        "<h3>Sales</h3>{table}<p>3 rows × 2 columns</p>",
        "{table}{table}",
        "<p>first</p><table><tr><td>one</td></tr></table>{table}",
        "{table}<img src='data:image/png;base64,'>",
    ],
)
async def test_html_with_more_than_a_table_is_shown_whole(connect: Connect, tab: Tab, html: str) -> None:
    shown = html.format(table=f'<table class="dataframe">{GROUPED}</table>')
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(f"from IPython.display import HTML; HTML({shown!r})")
        await view.see("iframe, .grid")
        assert "HTML of the cell" in await view.text()


async def test_text_that_was_not_kept_is_counted(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI, POLICY__STDOUT_MAX_BYTES="1024") as client, tab.host(client) as host:
        view = await host.run("print('x' * 2_024, end='')")
        await view.shows("1,000 characters of text were not kept.")


async def test_a_line_that_ends_with_an_escape_keeps_its_text(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(r"print('\x1b[32m50%\r\x1b[32m100%\r\x1b[0m\nafter')")
        await view.shows("after")
        colored = "[...document.querySelectorAll('.stdout span')].map(node => node.innerText)"
        assert await view.frame.evaluate(colored) == ["100%"]


async def test_pictures_files_and_the_notebook_are_saved_by_the_host(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(MIXED)
        await view.see("iframe")
        await view.see("img")
        await view.frame.click("text=↓ report.csv")
        await view.frame.click("text=notebook")
        await view.frame.hover("figure")
        await view.frame.click("text=save")

        async def are_saved() -> bool:
            return len((await view.said())["downloads"]) == 3

        await view.until(are_saved)
        saved = {each["uri"].rpartition("/")[2]: each for each in (await view.said())["downloads"]}
        assert saved["report.csv"]["text"] == "a,b\n1,2\n"
        assert saved["picture.svg"]["text"].startswith("<svg")
        [notebook] = [each for name, each in saved.items() if name.endswith(".ipynb")]
        assert json.loads(notebook["text"])["nbformat"] == 4


@pytest.mark.parametrize("poor", ["no meta", "no reads", "neither", "forgotten"])
async def test_a_poor_host_shows_what_the_result_has(connect: Connect, tab: Tab, poor: str) -> None:
    code = MIXED + "\n'the end'"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        result = dumped(await client.call_tool("execute_code", {"code": code}))
        if poor in ("no meta", "neither"):
            del result["_meta"]
        if poor == "forgotten":
            result["_meta"]["kernelmcp/result"]["execution_id"] = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
        without = ["serverResources"] if poor in ("no reads", "neither") else []
        view = await host.open(code, without=without)
        await view.give(result)
        await view.give(result)  # some hosts send everything twice
        await view.shows("green and orange")
        await view.shows("the end")
        await view.see("img")
        assert (await view.text()).count("the end") == 1


async def test_a_call_that_was_refused_shows_no_earlier_cell(connect: Connect, tab: Tab) -> None:
    code = "'ear' + 'lier'"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        await client.call_tool("execute_code", {"code": code})
        refused = dumped(await client.call_tool("execute_code", {"code": code, "timeout_seconds": -1}))
        assert "execution_id" not in refused["_meta"]["kernelmcp/result"]
        view = await host.open(code)
        await view.give(refused)
        await view.shows("✗ error")
        await view.shows("timeout_seconds")
        await view.marked("pixels")
        assert "earlier" not in await view.text()
        assert not any("wait=0" in uri for uri in (await view.said())["reads"])


WAITS = (
    "import asyncio, os\nprint('step 1')\nwhile not os.path.exists('go'): await asyncio.sleep(.05)\nprint('step 2')\n"
)
FAIL = """failures => {
    const read = window.mcp;
    let count = 0;
    window.mcp = (uri) => (count++ < failures ? JSON.stringify({ error: "not now" }) : read(uri));
}"""


@pytest.mark.parametrize(("failures", "seen"), [(2, "step 3"), (1_000, "● no longer followed")])
async def test_a_view_reads_again_and_says_if_it_no_longer_can(
    connect: Connect, tab: Tab, failures: int, seen: str
) -> None:
    code = WAITS + "while not os.path.exists('on'): await asyncio.sleep(.05)\nprint('step 3')"
    async with (
        connect(extensions=UI, SESSIONS__INLINE_WAIT_SECONDS="0.2") as client,
        tab.host(client) as host,
    ):
        view = await host.run(code)
        await view.shows("step 1")
        await host.page.evaluate(FAIL, failures)
        await client.call_tool("write_file", {"path": "go", "content": ""})
        await view.shows("step 2")  # of the read that had begun
        await client.call_tool("write_file", {"path": "on", "content": ""})
        await view.shows(seen)
        assert "step 2" in await view.text()
        assert "running" not in await view.text()


GAPS = """() => {
    const outputs = new Outputs(document.body, () => false);
    const page = (text, cut, since) => outputs.show({ since, parts: [{ stream: "stdout", text, cut }], status: "running", error: null, displays: 0, dropped: 0 });
    const shown = () => document.querySelector("pre.stdout").textContent;
    page("one\\n", false, "");
    page("two\\n", true, "1");
    const cut = shown();
    for (let each = 0; each < 5; each++) page("x".repeat(99_999) + "\\n", false, "1");
    return [cut, shown()];
}"""


async def test_a_gap_in_the_text_is_seen(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.open("")
        cut, long = await view.frame.evaluate(GAPS)
    gap = "[earlier output is left out here]\n"
    assert cut == f"one\n{gap}two"
    assert long.startswith(f"{gap}xxx")
    assert (long.count(gap), len(long)) == (1, 200_000 - 1)


MANY = """() => {
    const outputs = new Outputs(document.body, () => false);
    const page = (since, displays, dropped, ...numbers) => {
        const parts = numbers.map((display) => ({ display, best: "text/plain", still: "", data: { "text/plain": "x" } }));
        outputs.show({ since, parts, status: "running", error: null, displays, dropped });
        return document.querySelector("p.note")?.textContent ?? "";
    };
    return [page("", 5, 0, 0, 1), page("1", 9, 1, 5, 6), page("2", 9, 1, 0, 2), page("3", 9, 1), page("", 1, 0, 0)];
}"""


async def test_objects_that_no_page_showed_are_counted(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.open("")
        counts = [int(words.split()[0]) if words else 0 for words in await view.frame.evaluate(MANY)]
    assert counts == [3, 6, 5, 5, 0]


async def test_a_host_that_sends_nothing_sees_a_line(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.open("x = 1")
        await view.shows("running")
        await host.page.evaluate("views[0].bridge.sendToolCancelled({reason: 'test'})")
        await view.shows("✗ cancelled")
        assert await view.height() <= MAX_STRIP_PX


async def test_a_host_that_sends_everything_twice_shows_it_once(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        code = "print('on' + 'ce')"
        result = await client.call_tool("execute_code", {"code": code})
        view = await host.open(code)
        for _ in range(2):
            await host.page.evaluate("code => giveInput(0, {code})", code)
            await view.give(result)
        await view.marked("pixels")
        assert (await view.text()).count("once") == 1


async def test_the_theme_and_a_narrow_window(connect: Connect, tab: Tab) -> None:
    ink = "getComputedStyle(document.documentElement).color"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(MIXED + "print('x' * 500)")
        await view.see("iframe")
        await host.page.evaluate("views[0].bridge.setHostContext({theme: 'dark'})")

        async def is_dark() -> bool:
            with suppress(Error, IndexError):  # the frame is being replaced
                return await view.frame.child_frames[0].evaluate(ink) == "rgb(236, 236, 236)"
            return False

        await view.until(is_dark)
        assert await view.frame.evaluate("getComputedStyle(document.body).color") == "rgb(236, 236, 236)"
        await host.page.set_viewport_size({"width": 380, "height": 800})
        await host.page.evaluate(
            "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
        )
        root = "document.documentElement"
        assert not await view.frame.evaluate(f"{root}.scrollWidth > {root}.clientWidth")


async def test_the_keyboard_reaches_everything(connect: Connect, tab: Tab) -> None:
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(MIXED + TABLE + "1 / 0")
        await view.see("summary")
        assert await view.frame.evaluate("document.querySelectorAll('[onclick], a').length") == 0
        without_name = "[...document.querySelectorAll('button, input')].filter(node => !(node.innerText || node.title || node.ariaLabel))"
        assert await view.frame.evaluate(f"{without_name}.length") == 0
        await view.frame.focus("summary")
        await host.page.keyboard.press("Enter")
        await view.shows("Traceback")
        assert await view.frame.evaluate("document.querySelector('[role=status]').innerText") != ""


async def test_hostile_sizes_and_bundles_cost_a_line(connect: Connect, tab: Tab) -> None:
    code = """
from IPython.display import display
for number in range(1_500):  # policy.max_outputs is 1000
    display(number)
display({"text/html": 5, "image/png": ["no", "picture"], "application/json": {"a": [1, None]}}, raw=True)
print("\\r".join(f"{n}%" for n in range(2000)))
"""
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(code)
        await view.shows("more objects are not shown")
        await view.shows("1999%")
        assert "1998%" not in await view.text()


async def test_charts_and_tables_are_drawn_from_their_data(connect: Connect, tab: Tab) -> None:
    vega = {
        "data": {"values": [{"a": name, "b": number} for name, number in zip("ABC", (28, 55, 43), strict=True)]},
        "mark": "bar",
        "encoding": {"x": {"field": "a", "type": "nominal"}, "y": {"field": "b", "type": "quantitative"}},
    }
    plotly = {
        "data": [{"type": "scatter", "x": [1, 2, 3], "y": [2, 1, 3]}],
        "layout": {"height": 200, "title": {"text": "points"}},
    }
    code = f"""
from IPython.display import display
display({{"application/vnd.vegalite.v6+json": {vega!r}, "text/plain": "a vega chart"}}, raw=True)
display({{"application/vnd.plotly.v1+json": {plotly!r}, "text/plain": "a plotly figure"}}, raw=True)
"""
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(code)

        async def are_drawn() -> bool:
            count = "document.querySelectorAll('svg path').length"
            with suppress(Error):  # a frame is being replaced
                counts = [await frame.evaluate(count) for frame in view.frame.child_frames]
                return len(counts) == 2 and min(counts) > 0 and "a vega chart" not in await view.text()
            return False

        await view.until(are_drawn)
        assert await view.frame.evaluate("document.querySelectorAll('iframe.waiting').length") == 0


BAR = {"mark": "bar", "encoding": {"x": {"field": "a"}, "y": {"field": "b"}}}


@pytest.mark.parametrize(
    "specification",
    [
        {"mark": {"a": {}}, "data": {"values": "x"}, "encoding": 5},
        # Vega itself goes on without data, and after an error in its dataflow.
        {"data": {"url": "https://example.com/cars.json"}, **BAR},
        {"data": {"values": [{"a": 1}]}, "transform": [{"calculate": "regexp('(')", "as": "b"}], **BAR},
    ],
    ids=["not a specification", "what would be loaded", "what fails while it is drawn"],
)
async def test_a_chart_that_cannot_be_drawn_is_its_text(
    connect: Connect, tab: Tab, specification: dict[str, Any]
) -> None:
    code = f"from IPython.display import display\ndisplay({{'application/vnd.vegalite.v6+json': {specification!r}, 'text/plain': 'AS TEXT'}}, raw=True)"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        given_up: list[Frame] = []
        host.page.on("framedetached", lambda frame: given_up.append(frame))  # playwright marks the function
        view = await host.run(code)

        async def is_given_up() -> bool:
            return bool(given_up)

        await view.until(is_given_up)
        assert view.frame.child_frames == []
        await view.shows("AS TEXT")


MARKDOWN = r"""
# Findings
The **mean** is $\bar{x}$ for $5 to $6.

| city | p |
|------|---|
| Lima | $\{1\}$ |

$$
a
- b
$$

\[ c \]
"""


async def test_markdown_and_formulas_are_formatted(connect: Connect, tab: Tab) -> None:
    nested = ">" * 5000  # more than the library's stack holds
    code = f"""
from IPython.display import Latex, Markdown, display
display(Markdown({nested!r}))
display(Markdown({MARKDOWN!r}))
display(Latex(r"$\\displaystyle x^{{2}} < 1$"))
"""
    found = "[...document.querySelectorAll('h1, strong, td, math')].map(node => node.localName + (node.getAttribute('display') ?? ''))"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(code)
        await view.see("div > iframe ~ .note:text('LaTeX of the cell')")
        await view.see("div > iframe ~ .note:text('Markdown of the cell')")
        first, second = [
            each for each in view.frame.child_frames if await each.evaluate("document.querySelector('math') !== null")
        ]
        assert await first.evaluate(found) == ["h1", "strong", "math", "td", "td", "math", "mathblock", "mathblock"]
        assert "$5 to $6." in await first.evaluate("document.body.innerText")
        assert await second.evaluate(found) == ["math"]
        assert nested in await view.text()
        assert await view.frame.locator(".note:text('of the cell')").count() == 2


CALL = "{jsonrpc: '2.0', id: 900, method: 'tools/call', params: {name: 'execute_code', arguments: {code: 'evil'}}}"
SCRIPTED = f"<p id=p>calm</p><script>p.textContent = 'has run'; for (const w of [parent, parent.parent, top]) w.postMessage({CALL}, '*')</script>"


async def test_a_person_may_run_scripts_where_the_operator_allows_it(connect: Connect, tab: Tab) -> None:
    code = f"from IPython.display import HTML\nHTML({SCRIPTED!r})"
    async with connect(extensions=UI, TOOLS__VIEW_SCRIPTS="true") as client, tab.host(client) as host:
        view = await host.run(code)
        await view.see("iframe")
        await view.frame.click("text=run its scripts")

        async def has_run() -> bool:
            with suppress(Error, IndexError):  # the frame is being replaced
                return await view.frame.child_frames[0].evaluate("document.body.innerText") == "has run"
            return False

        await view.until(has_run)
        assert (await view.said())["calls"] == []


async def test_scripts_do_not_run_otherwise(connect: Connect, tab: Tab) -> None:
    code = f"from IPython.display import HTML\nHTML({SCRIPTED!r})"
    async with connect(extensions=UI) as client, tab.host(client) as host:
        view = await host.run(code)
        await view.shows("its scripts do not run here")
        await view.frame.child_frames[0].wait_for_selector("#p")
        assert await view.frame.child_frames[0].evaluate("document.body.innerText") == "calm"
