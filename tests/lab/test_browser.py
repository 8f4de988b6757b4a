"""JupyterLab as a person sees it: a browser, two servers with a session each, and one Lab for all tests of the module.

The tests follow one another in one tab, as a person's afternoon does; each begins with what it needs.
"""

import asyncio
import json
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from playwright.async_api import Error, async_playwright
from playwright.async_api import TimeoutError as TooLate

from ..server.http_support import serving
from ..starting import over_stdio
from .support import DEADLINE_SECONDS, Running, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian's package is called chromium)"),
]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MS = 1000 * DEADLINE_SECONDS
# What one sees, kept for whoever wants to look: not committed.
PICTURES = Path(__file__).parents[2] / ".cache" / "lab"
CELLS = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell"
NAME_OF_KERNEL = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Toolbar-kernelName"
ASKED = ".kernelmcp-question dialog"
READY = "button:enabled:text-is('Answer')"
OUTPUTS = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """Two MCP clients with a server and a session each, one over stdio and one over HTTP; a Lab, and a tab with the
    notebook of the first session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "KERNELMCP_HOME": str(folder / "home"),
            "KERNELMCP_SERVER__RUNTIME": f"/tmp/kml-{os.getpid()}",
            "KERNELMCP_TOOLS__STRUCTURED_CONTENT": "always",
        }
        self.runtime = Path(self.environment["KERNELMCP_SERVER__RUNTIME"])
        self.clients: dict[str, Client] = {}
        self.lab: Running
        self.labs = ExitStack()
        self.page: Any = None
        self.away = 0
        """A port on which somebody listens for what leaves Lab."""
        self.asked: list[bytes] = []
        self.net_log = folder / "net.json"
        self.notebooks = folder / "home" / "lab" / "notebooks"

    async def looked_up(self) -> set[str]:
        """Names that end in .invalid and that the browser has asked for by now, by its own log."""
        control = f"{secrets.token_hex(4)}.invalid"
        page = await self.page.context.browser.new_page()
        with suppress(Error):
            await page.goto(f"http://{control}/")
        await page.close()
        found: set[str] = set()

        def is_logged() -> bool:
            found.update(re.findall(r"[\w.-]+\.invalid", self.net_log.read_text(errors="replace")))
            return control in found

        await self.until(is_logged)
        return found - {control}

    async def open(self, stack: AsyncExitStack) -> None:
        stdio = over_stdio(env=self.environment)
        http = stack.enter_context(serving(self.folder, SERVER__RUNTIME=str(self.runtime)))
        for name, server in (("alpha", stdio), ("beta", streamable_http_client(http.mcp))):
            self.clients[name] = await stack.enter_async_context(Client(server))
            await self.call(name, "create_session")
            await self.execute(name, f"x = 41\nprint('hello from', {name!r})")
        stack.callback(self.labs.close)
        listener = await asyncio.start_server(self._listen, "127.0.0.1")
        stack.callback(listener.close)
        self.away = listener.sockets[0].getsockname()[1]
        await self.start_lab()
        browser = await (await stack.enter_async_context(async_playwright())).chromium.launch(
            executable_path=CHROMIUM, args=[*FLAGS, f"--log-net-log={self.net_log}"]
        )
        stack.push_async_callback(browser.close)
        self.page = await browser.new_page(viewport={"width": 1400, "height": 900})
        self.page.set_default_timeout(MS)
        # What Lab says on a busy machine.
        for words, button in (
            ("The document is taking some time to load", "Continue waiting"),
            ("A connection to the Jupyter server could not be established", "Close"),
        ):
            dialog = self.page.locator(".jp-Dialog", has_text=words)
            await self.page.add_locator_handler(dialog, partial(self._dismiss, button))
        await self.page.goto(f"{self.lab.root}/lab/tree/alpha.ipynb?token={self.lab.token}")
        await self.page.wait_for_selector(CELLS)
        await self.page.wait_for_selector(".jp-Toolbar-kernelName:has-text('kernelmcp session')")

    async def _dismiss(self, button: str, dialog: Any) -> None:
        await dialog.get_by_role("button", name=button).click()

    async def is_idle(self) -> None:
        """The kernel of the notebook in front."""
        await self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) [data-status=idle]")

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readline())
        writer.close()

    async def start_lab(self) -> None:
        port = int(self.lab.root.rpartition(":")[2]) if hasattr(self, "lab") else 0
        self.lab = await asyncio.to_thread(self.labs.enter_context, running(self.environment, self.folder, port))
        await self.until(lambda: len(self.sessions()) == len(self.clients))

    def sessions(self) -> dict[str, Any]:
        return {one["path"]: one["kernel"] for one in json.loads(self.lab.get("/api/sessions")[1])}

    def described(self, name: str) -> dict[str, Any]:
        found = [json.loads(file.read_text()) for file in self.runtime.glob("*/sessions/*.json")]
        return next(one for one in found if one["session_id"] == name)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - another process has no event for it
                await asyncio.sleep(0.05)

    # -- the model ------------------------------------------------------------------------------------------------

    async def call(self, name: str, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.clients[name].call_tool(tool, {"session_id": name, **arguments})
        assert result.structured_content is not None, result.content
        assert "error_code" not in (result.structured_content.get("error") or {}), result.content
        return result.structured_content

    async def execute(self, name: str, code: str) -> dict[str, Any]:
        return await self.call(name, "execute_code", code=code)

    # -- the person -----------------------------------------------------------------------------------------------

    async def shows(self, text: str) -> None:
        await self.page.wait_for_selector(f"{OUTPUTS}:has-text({json.dumps(text)})")

    async def front(self, name: str) -> None:
        await self.page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text=f"{name}.ipynb").click()
        current = "#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current"
        await self.page.wait_for_selector(f"{current}:has-text('{name}.ipynb')")

    async def open_notebook(self, name: str) -> None:
        """From the file browser, which may draw its list anew between the two clicks."""
        item = self.page.locator(".jp-DirListing-item", has_text=f"{name}.ipynb")
        tab = self.page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text=f"{name}.ipynb")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await tab.count():
                await item.dblclick()
                with suppress(TooLate):
                    await tab.wait_for(state="attached", timeout=5000)

    async def close(self, name: str) -> None:
        tab = self.page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text=f"{name}.ipynb")
        await tab.and_(self.page.locator(":not(.jp-mod-dirty)")).locator(".lm-TabBar-tabCloseIcon").click()
        await tab.wait_for(state="detached")

    async def says(self, words: str, name: str = "alpha") -> None:
        """In the notebook itself: Lab does not draw a note that is out of sight."""
        await self.saved(lambda sources: any(words in source for source in sources), name)

    async def press_twice(self, key: str, until: Awaitable[Any]) -> None:
        """In command mode. Lab takes two of one key for its command only when the second comes within a second, and the
        notebook must have the focus, which what is drawn meanwhile can take."""
        done = asyncio.ensure_future(until)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not done.done():
                with suppress(TooLate):  # it has come, and covers the cells
                    await self.page.locator(CELLS).last.click(position={"x": 20, "y": 8}, timeout=5000)
                for each in ("Escape", key, key):
                    await self.page.keyboard.press(each)
                await asyncio.wait({done}, timeout=5)
        await done

    async def new_cell(self, code: str) -> None:
        """Typed below the last cell. A dialog that opens meanwhile takes keys away: then it is typed once more."""
        typed = self.page.locator(f"{CELLS} .cm-focused .cm-content")
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                await self.page.locator(CELLS).last.click(position={"x": 20, "y": 8})
                for key in ("Escape", "b", "Enter"):
                    await self.page.keyboard.press(key)
                await self.page.keyboard.insert_text(code)
                if code.strip().splitlines()[0] in "".join(await typed.all_inner_texts()):
                    return

    async def run_cell(self, code: str) -> None:
        await self.new_cell(code)
        await self.page.keyboard.press("Control+Enter")

    async def sources(self, name: str) -> list[str]:
        """Of all cells, also of those out of sight; none where there is no file."""
        status, body, _ = await asyncio.to_thread(self.lab.get, f"/api/contents/{name}.ipynb")
        assert status in (200, 404), body
        return ["".join(cell["source"]) for cell in json.loads(body)["content"]["cells"]] if status == 200 else []

    async def saved(self, condition: Callable[[list[str]], bool], name: str = "alpha") -> list[str]:
        """The sources in the file, which is saved a second after a change."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition(sources := await self.sources(name)):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
        return sources


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("lab"))
    async with AsyncExitStack() as stack:
        await desk.open(stack)
        yield desk
        await desk.page.screenshot(path=PICTURES / "end.png")
    shutil.rmtree(desk.runtime, ignore_errors=True)


async def test_the_sessions_of_two_servers_are_there_with_what_was_executed_before(desk: Desk) -> None:
    assert {path: kernel["name"] for path, kernel in desk.sessions().items()} == {
        "alpha.ipynb": "kernelmcp",
        "beta.ipynb": "kernelmcp",
    }
    for name in ("alpha", "beta"):
        assert desk.sessions()[f"{name}.ipynb"]["id"] == desk.described(name)["kernel_id"]
        await desk.page.wait_for_selector(f".jp-DirListing-item:has-text('{name}.ipynb')")
    await desk.shows("hello from alpha")
    assert (await desk.saved(lambda sources: len(sources) > 1)).count("x = 41\nprint('hello from', 'alpha')") == 1


async def test_the_notebook_grows_while_the_model_executes_and_keeps_what_a_person_types(desk: Desk) -> None:
    await desk.new_cell("print('mine', x)")
    wait = "import time, os, itertools\nfor n in itertools.count():\n    print('tick', n)\n    time.sleep(.05)"
    wait += "\n    if os.path.exists('go'): break"
    running = asyncio.create_task(desk.execute("alpha", wait))
    await desk.shows("tick 3")
    await desk.page.wait_for_selector(".jp-InputPrompt:has-text('[*]')")
    assert desk.sessions()["alpha.ipynb"]["execution_state"] == "busy"
    assert not running.done()
    await desk.call("alpha", "write_file", path="go", content="")
    assert (await running)["success"]
    await desk.page.wait_for_selector(".jp-InputPrompt:has-text('[*]')", state="detached")
    sources = [source for source in await desk.saved(lambda sources: wait in sources) if source]
    assert sources[-2:] == [wait, "print('mine', x)"]
    await desk.page.keyboard.press("Control+Enter")
    await desk.shows("mine 41")
    assert await desk.page.locator(".jp-Dialog").count() == 0
    await desk.page.screenshot(path=PICTURES / "grown.png")


async def test_a_person_and_the_model_have_one_kernel(desk: Desk) -> None:
    await desk.execute("alpha", "shared = 'set over MCP'")
    await desk.run_cell("print(shared.upper())\nback = 'set in Lab'")
    await desk.shows("SET OVER MCP")
    assert (await desk.execute("alpha", "print(back)"))["stdout"] == "set in Lab\n"
    # Once: the server has the person's cell in its log, and the browser has written it.
    assert (
        len([one for one in await desk.saved(lambda found: found[-1] == "print(back)") if "shared.upper" in one]) == 1
    )


async def test_a_person_goes_back_to_a_cell_of_the_model(desk: Desk) -> None:
    """By the button in the cell's toolbar, which the cells of other notebooks do not have."""
    await desk.execute("alpha", "kept = 'as it was'; print('go back here')")
    await desk.call("alpha", "checkpoint_session")
    await desk.execute("alpha", "kept = 'changed'; print('and not here')")
    await desk.shows("and not here")
    await desk.page.locator(CELLS, has_text="go back here").locator(".jp-OutputArea").click()
    await desk.page.locator(f"{CELLS} .jp-cell-toolbar [data-command='kernelmcp:go-back']").click()
    asked = desk.page.locator(".jp-Dialog", has_text="Go back to cell [")
    await asked.wait_for()
    await desk.page.screenshot(path=PICTURES / "go-back.png")
    assert (await desk.execute("alpha", "kept"))["result"] == "'changed'"
    await asked.get_by_role("button", name="Go back").click()
    await desk.shows("Variables and files are as they were at checkpoint cell-")
    await desk.says("This session went back to checkpoint cell-")
    await desk.saved(lambda found: any(re.fullmatch(r"%restore [\w-]{20,}", each) for each in found))
    assert await desk.page.locator(".jp-Dialog").count() == 0
    assert (await desk.execute("alpha", "kept"))["result"] == "'as it was'"
    await desk.run_cell("print('still here:', kept)")
    await desk.shows("still here: as it was")
    await desk.saved(lambda found: "print('still here:', kept)" in found)


async def test_a_person_edits_a_copy_of_the_models_cell(desk: Desk) -> None:
    await desk.execute("alpha", "original = 6\nprint('made', original)")
    cell = desk.page.locator(CELLS, has_text="made 6")
    await cell.first.click(position={"x": 20, "y": 8})
    for key in ("Escape", "c", "v"):
        await desk.page.keyboard.press(key)
    await cell.nth(1).wait_for()
    await cell.nth(1).locator(".cm-content[contenteditable=true]").click()
    await desk.page.keyboard.press("Control+a")
    await desk.page.keyboard.insert_text("print('copied', original + 1)")
    await desk.page.keyboard.press("Control+Enter")
    await desk.shows("copied 7")
    sources = await desk.saved(lambda sources: "print('copied', original + 1)" in sources)
    assert "original = 6\nprint('made', original)" in sources


async def test_a_path_in_an_output_leads_nowhere_and_is_no_error(desk: Desk) -> None:
    kernel = desk.sessions()["alpha.ipynb"]["id"]
    status, body, _ = desk.lab.get(f"/api/resolvePath?path=/etc/hosts&kernel={kernel}")  # as Lab asks for each
    assert (status, json.loads(body)) == (200, {"resolved": []})


async def test_a_notebook_whose_file_somebody_deletes_is_written_again(desk: Desk) -> None:
    before = [source for source in await desk.sources("alpha") if source]
    (desk.folder / "home" / "lab" / "notebooks" / "alpha.ipynb").unlink()
    await desk.execute("alpha", "print('deleted')")
    assert [one for one in await desk.saved(lambda found: "print('deleted')" in found) if one][:-1] == before


async def test_a_person_interrupts_the_models_cell(desk: Desk) -> None:
    running = asyncio.create_task(desk.execute("alpha", "print('endless')\nwhile True: pass"))
    await desk.shows("endless")
    await desk.press_twice("i", running)
    assert (await running)["status"] == "interrupted"
    await desk.shows("KeyboardInterrupt")


async def test_a_person_is_asked_what_the_models_cell_asks(desk: Desk) -> None:
    dialog = desk.page.locator(ASKED)
    asking = (
        "import getpass\nname = input('<b>Name</b>? ')\nname, getpass.getpass('Secret: '), name == input('Again? ')"
    )
    # As if a person had pressed Enter just as it appears: it is not answered before it has been readable for a second.
    await desk.page.evaluate("""() => new MutationObserver((_, watcher) => {
        const form = document.querySelector('.kernelmcp-question')?.shadowRoot.querySelector('form');
        if (!form?.textContent.includes('Secret:')) return;
        watcher.disconnect();
        form.requestSubmit();
        window.wasEarly = true;
    }).observe(document.documentElement, { childList: true })""")
    running = asyncio.create_task(desk.execute("alpha", asking))
    await dialog.filter(has_text="Code of session alpha asks").filter(has_text="<b>Name</b>?").wait_for()
    await desk.page.screenshot(path=PICTURES / "asked.png")
    await dialog.locator("input").fill("Ada")
    await dialog.get_by_role("button", name="Answer", exact=True).click()
    await dialog.filter(has_text="Secret:").wait_for()
    assert await dialog.locator("input").get_attribute("type") == "password"
    await desk.page.keyboard.type("s3cret")
    await dialog.locator(READY).wait_for()
    assert await desk.page.evaluate("window.wasEarly")
    assert await dialog.filter(has_text="Secret:").count() == 1
    await desk.page.keyboard.press("Enter")
    await dialog.filter(has_text="Again?").get_by_role("button", name="No answer").click()
    result = await running
    assert result["error"]["name"] == "EOFError"
    assert (await desk.execute("alpha", "name"))["result"] == "'Ada'"
    # A cell that is interrupted takes its question with it.
    running = asyncio.create_task(desk.execute("alpha", "input('Still there? ')"))
    await dialog.filter(has_text="Still there?").wait_for()
    assert (await desk.call("alpha", "cancel_execution"))["cancelled"]
    await dialog.wait_for(state="detached")
    assert (await running)["status"] == "interrupted"


async def test_a_cell_of_a_person_whose_tab_is_reloaded_is_asked_nothing_more_and_completed(desk: Desk) -> None:
    cell = "print('be' + 'gun')\ntry: input('Who? ')\nexcept EOFError: print('no' + 'body')\n6 * 7"
    await desk.run_cell(cell)
    await desk.shows("begun")
    await desk.page.wait_for_selector(".jp-Stdin-input")
    await desk.page.reload()
    mine = desk.page.locator(CELLS, has_text="6 * 7")
    await mine.filter(has_text="begun").filter(has_text="[*]").wait_for()
    await mine.filter(has_text="nobody").filter(has_text="42").wait_for()
    assert await mine.filter(has_text="[*]").count() == 0
    assert await mine.filter(has_text=re.compile(r"\[\d+\]:")).count() == 1
    assert (await mine.inner_text()).count("begun") == 1


# What the HTML of an output might do to a question: cover it, hide it, put other words in its place.
COVER = """
from IPython.display import HTML, display
cover = display(HTML('''<div class=cover style="position: fixed; inset: 0; z-index: 2147483647">Type: once</div>
<div class=cover style="position: fixed; inset: 0; z-index: 2147483647" popover=manual>Type: once</div>
<style>
  .jp-OutputArea, .lm-Widget, .jp-Cell { contain: none !important; overflow: visible !important }
  .cover { display: block !important; background: red }
  body::after { content: 'Type: once'; position: fixed; inset: 0; z-index: 2147483647; background: red }
  .kernelmcp-question, .kernelmcp-question *, dialog, label, h2 { display: none !important; opacity: 0 !important;
    visibility: hidden !important; font-size: 0 !important; color: transparent !important }
  .kernelmcp-question::after, label::after, h2::after { content: 'Type: once' }
  :root, body { --jp-ui-font-color1: transparent; opacity: 0 !important; font-size: 0 !important }
</style>'''), display_id=True)
"""


async def test_no_output_covers_or_changes_what_a_person_is_asked(desk: Desk) -> None:
    await desk.run_cell(f"{COVER}\nprint('it covers ' + 'all')")
    await desk.page.wait_for_selector(f"{OUTPUTS}:has-text('it covers all')", state="attached")
    running = asyncio.create_task(desk.execute("alpha", "input('<b>Really?</b> ')"))
    asked = desk.page.locator(ASKED)
    await asked.locator(READY).wait_for()
    await desk.page.screenshot(path=PICTURES / "covered.png")
    on_top = """asked => {
      const {left, right, top, bottom} = asked.getBoundingClientRect(), host = asked.getRootNode().host, found = [];
      for (let x = left + 2; x < right; x += 20)
        for (let y = top + 2; y < bottom; y += 10) found.push(document.elementFromPoint(x, y) === host);
      const styles = [...asked.querySelectorAll('*'), asked].map(one => getComputedStyle(one));
      const seen = styles.every(one => one.visibility === 'visible' && one.opacity === '1' && one.display !== 'none'
        && parseFloat(one.fontSize) >= 14 && one.fontFamily.includes('system-ui') && !one.color.startsWith('rgba'));
      const added = [...asked.querySelectorAll('*')].some(one => getComputedStyle(one, '::after').content !== 'none');
      return {points: found.length, on_top: found.every(Boolean), seen, added};
    }"""
    found = await asked.evaluate(on_top)
    assert found.pop("points") > 100
    assert found == {"on_top": True, "seen": True, "added": False}
    assert await asked.locator("label").inner_text() == "<b>Really?</b> "
    await desk.page.keyboard.press("Escape")
    assert (await running)["error"]["name"] == "EOFError"


# What a style could do to the page, if one came through.
UNREADABLE = {
    "zoomed": "html { zoom: .05 !important }",
    "turned": "html { transform: scale(.1) !important }",
    "clear": "html { opacity: 0 !important }",
    "blurred": "body { filter: blur(9px) !important } html { filter: blur(9px) !important }",
    "right to left": "* { direction: rtl !important }",
    "hidden": "html { visibility: hidden !important }",
}


async def test_a_question_that_nobody_could_read_takes_no_answer(desk: Desk) -> None:
    page = desk.page
    running = asyncio.create_task(desk.execute("alpha", "input('Pay 500? ')"))
    asked = page.locator(ASKED)
    answer = asked.get_by_role("button", name="Answer", exact=True)
    await asked.locator(READY).wait_for()
    await asked.locator("input").fill("yes")
    for name, style in UNREADABLE.items():
        # As a constructed style sheet at its strongest, and without what the dialog does against it.
        add = """css => {
          for (const each of [document.documentElement, document.body]) each.removeAttribute('style');
          const sheet = new CSSStyleSheet(); sheet.replaceSync(css); document.adoptedStyleSheets = [sheet];
        }"""
        await page.evaluate(add, style)
        await page.keyboard.press("Enter")
        await answer.dispatch_event("click")
        assert await asked.count() == 1, name
        assert await answer.is_disabled(), name
        await page.evaluate("document.adoptedStyleSheets = []")
    cover = """() => { const one = document.createElement('div'); one.popover = 'manual'; one.id = 'cover';
      one.style.cssText = 'inset: 0; width: 100vw; height: 100vh'; document.body.append(one); one.showPopover() }"""
    await page.evaluate(cover)
    await page.keyboard.press("Enter")
    assert await asked.count() == 1
    await page.evaluate("document.getElementById('cover').remove()")
    await asked.locator(READY).wait_for()
    await answer.click()
    assert (await running)["result"] == "'yes'"


async def test_whether_a_tool_may_be_called_is_said_by_a_click_only(desk: Desk) -> None:
    choices = ["once", "this tool for this execution", "this tool for this session", "no"]
    generated = "0123456789abcdef" * 3
    asked = {"execution_id": "e/1", "session_id": generated, "prompt": "Call crm?", "password": False}
    asked["choices"] = choices
    answers: list[Any] = []

    async def answered(route: Any) -> None:
        if route.request.method == "POST":
            answers.append(json.loads(route.request.post_data)["text"])
            await route.fulfill(status=204)
        else:
            await route.fulfill(json={"version": "x", "questions": [] if answers else [asked]})

    running = await asking(desk, "input('Ends the request that waits. ')")
    await desk.page.route("**/kernelmcp/questions*", answered)
    try:
        assert (await desk.call("alpha", "cancel_execution"))["cancelled"]
        await running
        dialog = desk.page.locator(ASKED).filter(has_text="Call crm?")
        await dialog.get_by_text("Code of session …cdef asks", exact=True).wait_for()
        once = dialog.get_by_role("button", name="once", exact=True)
        await dialog.locator("button:enabled:text-is('once')").wait_for()
        assert await dialog.locator("input").count() == 0
        await once.focus()
        await desk.page.keyboard.press("Enter")
        await desk.page.keyboard.press("Space")
        assert answers == []
        await once.click()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not answers:  # noqa: ASYNC110  # the browser sends it when it likes
                await asyncio.sleep(0.05)
        await dialog.wait_for(state="detached")
        assert answers == ["once"]
    finally:
        await desk.page.unroute("**/kernelmcp/questions*")


async def asking(desk: Desk, code: str) -> asyncio.Task[Any]:
    """A cell that asks, once the tab shows its question. A test that has answered the tab's requests itself was a
    closed tab for Lab: until it hears of the tab again, a cell has nobody to ask."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            running = asyncio.create_task(desk.execute("alpha", code))
            shown = asyncio.create_task(desk.page.locator(ASKED).locator(READY).wait_for())
            await asyncio.wait([running, shown], return_when=asyncio.FIRST_COMPLETED)
            if shown.done():
                await shown
                return running
            shown.cancel()
            assert (await running)["error"]["name"] in ("StdinNotImplementedError", "EOFError")


async def test_while_a_question_is_open_no_style_shrinks_the_page(desk: Desk) -> None:
    shrink = "const sheet = new CSSStyleSheet(); sheet.replaceSync('html { zoom: .05; direction: rtl }');"
    await desk.page.evaluate(f"() => {{ {shrink} document.adoptedStyleSheets = [sheet] }}")
    asked = desk.page.locator(ASKED)
    try:
        running = await asking(desk, "input('Size? ')")
        assert (await asked.bounding_box())["width"] >= 320
    finally:
        await desk.page.evaluate("document.adoptedStyleSheets = []")
    await desk.page.keyboard.press("Escape")
    assert (await running)["error"]["name"] == "EOFError"
    assert await desk.page.evaluate("document.documentElement.style.zoom") == ""


EVIL = r"""
class Evil:
    def __init__(self, name, **data): self.data = {**data, 'text/plain': 'shown ' + name}
    def _repr_mimebundle_(self, **_): return self.data

def markup(name):
    mark = lambda how: f"(window.top || window).EVIL_{name}_{how}=1"
    away = f"http://127.0.0.1:{PORT}/{name}"
    return (f"<b>shown {name}</b><script>{mark('script')}</script><img src=x onerror='{mark('error')}'>"
        f"<svg onload='{mark('onload')}'><script>{mark('svg')}</script></svg>"
        f"<details open ontoggle='{mark('toggle')}'></details>"
        f"<iframe srcdoc=\"<script>{mark('srcdoc')}</script>\"></iframe>"
        f"<iframe src=\"javascript:{mark('frame')}\"></iframe><object data=\"data:text/html,x\"></object>"
        f"<iframe src=\"data:text/html,<script>{mark('data')}</script>\"></iframe>"
        f"<a class=evil href='javascript:{mark('link')}'>evil link</a>"
        f"<form action='javascript:{mark('form')}'><button class=evil>evil button</button></form>"
        f"<img src='{away}/img'><div style='background:url({away}/css)'>.</div><style>@import '{away}/import';</style>"
        f"<link rel=stylesheet href='{away}/link'><link rel=prefetch href='{away}/prefetch'><base href='{away}/base'>"
        f"<meta http-equiv=refresh content='0;url={away}/refresh'>"
        f"<iframe srcdoc=\"&lt;meta http-equiv=refresh content='0;url={away}/srcdoc'&gt;\"></iframe>"
        f"<iframe srcdoc=\"&lt;meta http-equiv=refresh content='0;url=http://{name}.lookup.invalid/'&gt;\"></iframe>"
        f"<img src='/logout'><embed src='{away}/embed'><portal src='{away}/portal'></portal>"
        f"<button class=evil data-commandlinker-command='notebook:insert-cell-below'>add</button>"
        f"<b class='evil jp-Dialog' data-commandlinker-command='apputils:run-all-enabled' data-commandlinker-args='"
        + '{"commands":["notebook:insert-cell-below","docmanager:new-untitled"],"args":[{},{"type":"file","ext":"js"}]}'
        + f"'>run</b><style>html {{ zoom: .05 }}</style>"
        f"<details class=evil><summary class=evil>more</summary>more</details><label class=evil for=q>label</label>")

vega = {'$schema': 'https://vega.github.io/schema/vega/v5.json',
    'data': [{'name': 'a', 'url': f'http://127.0.0.1:{PORT}/vega'}]}
evils = {
    'html': Evil('html', **{'text/html': markup('html')}),
    'list': Evil('list', **{'text/html': [one + '>' for one in markup('list').split('>')]}),
    'markdown': Evil('markdown', **{'text/markdown': markup('markdown')
        + '\n\n[evil](javascript:window.EVIL_markdown=1)'}),
    'svg': Evil('svg', **{'image/svg+xml': "<svg xmlns='http://www.w3.org/2000/svg' onload='window.EVIL_svg=1'>"
        "<script>window.EVIL_svgscript=1</script><foreignObject>" + markup('svg') + "</foreignObject></svg>"}),
    'latex': Evil('latex', **{'text/latex': r'$\href{javascript:window.EVIL_latex=1}{evil}$'}),
    'javascript': Evil('javascript', **{'application/javascript': 'window.EVIL_javascript=1'}),
    'vega': Evil('vega', **{'application/vnd.vega.v5+json': vega, 'application/vnd.vegalite.v5+json': vega}),
}

def page():  # as `name?` does
    data = {'text/plain': 'shown pager', 'text/html': markup('pager')}
    get_ipython().payload_manager.write_payload({'source': 'page', 'start': 0, 'data': data})
"""


async def test_nothing_that_the_model_made_runs_in_lab_or_leaves_it(desk: Desk) -> None:
    await desk.execute("alpha", f"PORT = {desk.away}\n{EVIL}")
    shown = "from IPython.display import display\nfor one in evils.values(): display(one)\nprint('all', 'shown')"
    await desk.execute("alpha", shown)
    await desk.run_cell(f"{shown}\npage()")
    await desk.shows("shown pager")
    await desk.page.wait_for_selector(f"{OUTPUTS}:has-text('all shown') >> nth=1")
    assert await desk.page.locator(OUTPUTS, has_text="shown html").count() >= 2
    before = await desk.page.locator(CELLS).count()
    # All but a link that says where it leads: Lab makes links of addresses in a text.
    clicked = """document.querySelectorAll('.jp-OutputArea-output *').forEach(
      one => one.click && !one.closest('a[href^=http]') && one.click())"""
    await desk.page.evaluate(clicked)
    # What runs at all has run by then: the page has taken another turn with the server, and drawn.
    await desk.execute("alpha", "print('after', 'evil')")
    await desk.shows("after evil")
    await desk.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 500)))")
    assert await desk.page.evaluate("Object.keys(window).filter(name => name.startsWith('EVIL'))") == []
    assert desk.asked == []
    assert await desk.looked_up() == set()
    assert desk.page.url.endswith("/lab/tree/alpha.ipynb")
    assert await desk.page.locator(CELLS).count() == before + 1, (
        "the model's own cell, and none that a command has made"
    )
    gone = "iframe, object, embed, form, button, style, link, meta, base, [class*=evil], [data-commandlinker-command]"
    assert await desk.page.locator(OUTPUTS).locator(gone).count() == 0
    assert (await desk.page.evaluate("fetch('/api/status').then(answer => answer.status)")) == 200, "signed in still"
    assert [file.name for file in desk.notebooks.iterdir() if file.suffix != ".ipynb" and file.is_file()] == []


async def test_a_widget_of_the_model_is_moved_by_a_person(desk: Desk) -> None:
    await desk.call("alpha", "install_package", package_name="ipywidgets")
    evil = "<script>window.EVIL_widget=1</script><img src=x onerror='window.EVIL_widgeterror=1'>shown widget"
    made = "import ipywidgets\nslider = ipywidgets.IntSlider(value=3)"
    await desk.execute("alpha", f"{made}\nipywidgets.VBox([slider, ipywidgets.HTML({evil!r})])")
    readout = desk.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .widget-readout").last
    await readout.click()
    await desk.page.keyboard.press("Control+a")
    await desk.page.keyboard.insert_text("42")
    await desk.page.keyboard.press("Enter")

    async def value() -> str:
        return (await desk.execute("alpha", "slider.value"))["result"]

    async with asyncio.timeout(DEADLINE_SECONDS):
        while await value() != "42":  # the browser sends it when it likes
            pass
    await desk.execute("alpha", "slider.value = 77")
    await readout.filter(has_text="77").wait_for()
    await desk.page.locator(CELLS).last.click(position={"x": 20, "y": 8})  # out of the widget
    assert await desk.page.evaluate("Object.keys(window).filter(name => name.startsWith('EVIL'))") == []


async def test_a_person_restarts_the_kernel_and_the_notebook_says_so(desk: Desk) -> None:
    restart = desk.page.locator(".jp-Dialog .jp-mod-accept")
    await desk.press_twice("0", restart.wait_for())
    await restart.click()
    await desk.says("was restarted from JupyterLab")
    await desk.is_idle()
    assert (await desk.execute("alpha", "'x' in globals()"))["result"] == "False"
    await desk.run_cell("print('runs', 'again')")
    await desk.shows("runs again")
    assert await desk.page.locator(".jp-Dialog").count() == 0


async def test_the_notebook_of_another_session_opens_beside_it(desk: Desk) -> None:
    await desk.open_notebook("beta")
    await desk.shows("hello from beta")
    await desk.is_idle()
    await desk.run_cell("print('beta has', x)")
    await desk.shows("beta has 41")
    await desk.front("alpha")


async def test_the_record_keeps_its_name_its_place_and_its_kernel(desk: Desk) -> None:
    send = desk.lab.send
    for method, body in (("DELETE", None), ("PATCH", {"path": "other.ipynb"})):
        status, said = await asyncio.to_thread(send, method, "/api/contents/beta.ipynb", body)
        assert (status, "record of an open kernelmcp session" in said) == (403, True)
    [beta] = [one for one in json.loads(desk.lab.get("/api/sessions")[1]) if one["path"] == "beta.ipynb"]
    alpha = desk.described("alpha")["kernel_id"]
    for kernel in ({"id": alpha}, {"name": "kernelmcp"}):
        status, said = await asyncio.to_thread(send, "PATCH", f"/api/sessions/{beta['id']}", {"kernel": kernel})
        assert (status, "stays with its kernel" in said) == (403, True)
    # Another notebook may use a session's kernel, and letting go of it does not end that.
    asked = {"path": "mine.ipynb", "name": "mine", "type": "notebook", "kernel": {"id": alpha}}
    assert (await asyncio.to_thread(send, "POST", "/api/sessions", asked))[0] == 201
    [mine] = [one for one in json.loads(desk.lab.get("/api/sessions")[1]) if one["path"] == "mine.ipynb"]
    assert (await asyncio.to_thread(send, "DELETE", f"/api/sessions/{mine['id']}"))[0] == 204
    assert "alpha.ipynb" in desk.sessions()
    # Nor does a notebook with another kernel take a record's place.
    status, said = await asyncio.to_thread(send, "PATCH", f"/api/sessions/{beta['id']}", {"path": "alpha.ipynb"})
    assert (status, "stays with its kernel" in said) == (403, True)
    assert desk.sessions()["alpha.ipynb"]["id"] == alpha


async def test_a_session_that_was_stopped_starts_with_a_cell_in_its_open_tab(desk: Desk) -> None:
    [beta] = [one for one in json.loads(desk.lab.get("/api/sessions")[1]) if one["path"] == "beta.ipynb"]
    assert (await asyncio.to_thread(desk.lab.send, "DELETE", f"/api/sessions/{beta['id']}"))[0] == 204
    assert set(desk.sessions()) == {"alpha.ipynb"}
    assert desk.described("beta")["state"] == "stopped"
    await desk.front("beta")
    await desk.says("was stopped from JupyterLab", "beta")
    await desk.page.wait_for_selector(f"{NAME_OF_KERNEL}:has-text('No Kernel')")
    await desk.run_cell("print('woken', 'up')")
    await desk.shows("woken up")
    assert await desk.page.locator(".jp-Dialog").count() == 0
    assert desk.sessions()["beta.ipynb"]["id"] == beta["kernel"]["id"]
    assert (await desk.execute("beta", "x = 41\nprint(x)"))["stdout"] == "41\n"


async def test_the_notebook_of_a_stopped_session_starts_it_when_it_is_opened(desk: Desk) -> None:
    await desk.close("beta")
    await desk.call("beta", "stop_session")
    await desk.until(lambda: set(desk.sessions()) == {"alpha.ipynb"})
    await desk.open_notebook("beta")
    await desk.until(lambda: set(desk.sessions()) == {"alpha.ipynb", "beta.ipynb"})
    await desk.is_idle()
    await desk.run_cell("print('opened', 'again')")
    await desk.shows("opened again")
    assert await desk.page.locator(".jp-Dialog").count() == 0
    assert (await desk.execute("beta", "x = 41\nprint(x)"))["stdout"] == "41\n"
    await desk.front("alpha")


async def test_a_new_session_appears_and_one_that_is_destroyed_vanishes(desk: Desk) -> None:
    client = desk.clients["gamma-2"] = desk.clients["beta"]
    await desk.call("gamma-2", "create_session")
    await desk.execute("gamma-2", "print('gamma')")
    await desk.until(lambda: "gamma-2.ipynb" in desk.sessions())
    assert (await client.call_tool("destroy_session", {"session_id": "gamma-2"})).structured_content
    del desk.clients["gamma-2"]
    await desk.until(lambda: set(desk.sessions()) == {"alpha.ipynb", "beta.ipynb"})


async def test_a_killed_lab_comes_back_in_the_same_tab_and_doubles_nothing(desk: Desk) -> None:
    await desk.front("alpha")
    await desk.execute("alpha", "print('before the kill')")
    await desk.shows("before the kill")
    before = await desk.saved(lambda sources: "print('before the kill')" in sources)
    desk.lab.process.kill()
    desk.lab.process.wait()
    await desk.execute("alpha", "print('while', 'closed')")
    await desk.start_lab()
    after = await desk.saved(lambda sources: "print('while', 'closed')" in sources)
    written = [source for source in after if source]
    assert written == [*(source for source in before if source), "print('while', 'closed')"]
    await desk.shows("while closed")
    await desk.run_cell("print('the same', 'tab')")
    await desk.shows("the same tab")


async def test_a_killed_kernel_is_said_and_the_others_go_on(desk: Desk) -> None:
    await desk.page.goto(f"{desk.lab.root}/lab/tree/alpha.ipynb?token={desk.lab.token}")
    await desk.shows("while closed")
    connection = desk.described("alpha")["connection_file"]
    running = asyncio.create_task(desk.execute("alpha", "print('last', 'words')\nwhile True: pass"))
    await desk.shows("last words")
    [kernel] = [one for one in psutil.process_iter(["cmdline"]) if connection in (one.info["cmdline"] or [])]
    kernel.kill()
    assert (await running)["success"] is False
    await desk.says("The kernel of this session ended at")
    assert (await desk.execute("beta", "print(x)"))["stdout"] == "41\n"
    assert (await desk.execute("alpha", "print('a new', 'kernel')"))["success"]
    await desk.shows("a new kernel")


async def test_a_killed_server_is_said_and_the_other_goes_on(desk: Desk) -> None:
    psutil.Process(desk.described("alpha")["server"]["pid"]).kill()
    await desk.says("The kernelmcp server of this session ended at")
    await desk.until(lambda: set(desk.sessions()) == {"beta.ipynb"})
    assert (await desk.execute("beta", "print(x)"))["stdout"] == "41\n"
    await desk.page.screenshot(path=PICTURES / "ended.png")
