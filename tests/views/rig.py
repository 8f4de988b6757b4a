"""A host in headless Chromium, which a test drives; its views read from a real server."""

from __future__ import annotations

import asyncio
import http.server
import json
import shutil
import socketserver
import threading
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp import Client
from mcp.client.extension import advertise
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Tool
from playwright.async_api import Browser, Frame, Page, ViewportSize, async_playwright

from kernelmcp_kernel.runtime.npm import npm_ci

from ..kept import kept
from ..starting import DEADLINE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOST = Path(__file__).parent / "host"
UI = [advertise("io.modelcontextprotocol/ui", {"mimeTypes": ["text/html;profile=mcp-app"]})]
DOCUMENT = "ui://kernelmcp/output"
VIEWPORT: ViewportSize = {"width": 800, "height": 1000}
INLINE = "script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
POLICIES = {
    # What the specification demands of a host if nothing is declared.
    "spec": f"default-src 'none'; {INLINE}; img-src 'self' data:; media-src 'self' data:; object-src 'none'; "
    "connect-src 'none'; frame-src 'self'",
    # VS Code's, from its source.
    "vscode": f"default-src 'none'; {INLINE}; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
    "media-src 'self' data:; frame-src 'none'; object-src 'none'; base-uri 'self'",
    # Claude's on the web, as reported.
    "claude": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self' data:; "
    "frame-src 'self' blob: data:",
}


def _fetch(folder: Path) -> None:
    npm_ci(folder, HOST)


@cache
def modules() -> Path:
    """The public AppBridge, and what it needs, from npm. Fetched once for a machine."""
    lock = (HOST / "package-lock.json").read_bytes()
    return kept(f"app-bridge-{zlib.crc32(lock):08x}", _fetch) / "node_modules"


class Pages(http.server.SimpleHTTPRequestHandler):
    """The host's files, and the sandbox with the policy that its address names."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, directory=str(HOST), **options)

    def log_message(self, *_: Any) -> None: ...

    def translate_path(self, path: str) -> str:
        name = urlsplit(path).path.partition("/modules/")[2]
        return str(modules() / name) if name else super().translate_path(path)

    def end_headers(self) -> None:
        parts = urlsplit(self.path)
        self.send_header("Cache-Control", "max-age=3600")  # a host loads a hundred modules
        if parts.path == "/sandbox.html":
            self.send_header("Content-Security-Policy", POLICIES[parse_qs(parts.query)["policy"][0]])
        super().end_headers()


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


@contextmanager
def served(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve on a port of this machine."""
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class View:
    """One view on the host's page."""

    def __init__(self, page: Page, number: int) -> None:
        self.page = page
        self.number = number

    @property
    def frame(self) -> Frame:
        """The view's own frame, in that of the sandbox."""
        return self.page.main_frame.child_frames[self.number].child_frames[0]

    async def give(self, result: CallToolResult | dict[str, Any]) -> None:
        found = result if isinstance(result, dict) else dumped(result)
        await self.page.evaluate("([number, result]) => giveResult(number, result)", [self.number, found])

    async def said(self) -> dict[str, Any]:
        """What the host has heard from the view."""
        return await self.page.evaluate("number => said(number)", self.number)

    async def text(self) -> str:
        return await self.frame.evaluate("document.body.innerText")

    async def see(self, selector: str, seconds: float = DEADLINE) -> Any:
        return await self.frame.wait_for_selector(selector, timeout=1000 * seconds)

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = DEADLINE) -> None:
        pause = 0.05
        async with asyncio.timeout(seconds):
            while not await condition():  # the browser has no event for it
                await asyncio.sleep(pause)
                pause = min(1.3 * pause, 0.5)  # to ask costs a busy browser more than what it waits for

    async def shows(self, text: str) -> None:
        """Wait until this text is seen."""

        async def is_there() -> bool:
            return text in await self.text()

        try:
            await self.until(is_there)
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in {await self.text()!r}") from None

    async def height(self) -> int:
        return (await self.said())["heights"][-1]

    async def marked(self, name: str) -> float:
        """Wait until the view has marked this, and return when it did, in milliseconds after the result."""

        async def is_marked() -> bool:
            return name in await self.marks()

        await self.until(is_marked)
        return (await self.marks())[name]

    async def marks(self) -> dict[str, float]:
        """Milliseconds after the result until pixels were there, and a chart."""
        found = await self.frame.evaluate(
            "performance.getEntriesByType('mark').map(each => [each.name, each.startTime + performance.timeOrigin])"
        )
        given = (await self.said())["resultAt"]
        return {name: at - given for name, at in found}


class Host:
    """The host's page, and a server that its views read from."""

    def __init__(self, page: Page, client: Client, policy: str) -> None:
        self.page = page
        self.client = client
        self.policy = policy
        self.tool: Tool
        self.html = ""

    async def prepare(self) -> None:
        [self.tool] = [tool for tool in (await self.client.list_tools()).tools if tool.name == "execute_code"]
        document = (await self.client.read_resource(DOCUMENT)).contents[0]
        self.html = document.text  # pyright: ignore[reportAttributeAccessIssue]

    async def open(self, code: str, **options: Any) -> View:
        """A view that has its input, and no result yet."""
        options = {"html": self.html, "tool": dumped(self.tool), "policy": self.policy, **options}
        number = await self.page.evaluate("options => openView(options)", options)
        await self.page.evaluate("([number, code]) => giveInput(number, {code})", [number, code])
        return View(self.page, number)

    async def run(self, code: str, **options: Any) -> View:
        """Run a cell, and show it."""
        result = await self.client.call_tool("execute_code", {"code": code})
        view = await self.open(code, **options)
        await view.give(result)
        return view


def dumped(model: Any) -> dict[str, Any]:
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--host-resolver-rules=MAP *.invalid 127.0.0.1"]
        )
        try:
            yield browser
        finally:
            await browser.close()


class Tab:
    """A page for one host after another: each has a new document, whose scripts the browser has compiled already."""

    def __init__(self, page: Page, port: int, sandbox: int) -> None:
        self._page = page
        self._port = port
        self._sandbox = sandbox
        self._client: Client

    async def read(self, uri: str) -> str:
        """For its views."""
        try:
            return (await self._client.read_resource(uri)).model_dump_json(by_alias=True, exclude_none=True)
        except MCPError as exc:
            return json.dumps({"error": str(exc)})

    @asynccontextmanager
    async def host(self, client: Client, policy: str = "spec") -> AsyncIterator[Host]:
        """A host with no view yet."""
        self._client = client
        assert not self._page.is_closed(), "a test before has lost the tab"
        await self._page.set_viewport_size(VIEWPORT)
        await self._page.goto(f"http://127.0.0.1:{self._port}/host.html")
        await self._page.evaluate("port => { window.sandboxPort = port }", self._sandbox)
        await self._page.wait_for_function("() => Boolean(window.openView)")
        host = Host(self._page, client, policy)
        await host.prepare()
        try:
            yield host
        finally:
            await self._page.goto("about:blank")  # no view reads from a client that has gone


@asynccontextmanager
async def open_tab(browser: Browser) -> AsyncIterator[Tab]:
    """In a context of its own."""
    with served(Pages) as port, served(Pages) as sandbox:
        context = await browser.new_context()
        page = await context.new_page()
        tab = Tab(page, port, sandbox)
        await page.expose_function("mcp", tab.read)
        try:
            yield tab
        finally:
            await context.close()


@asynccontextmanager
async def host_page(browser: Browser, client: Client, policy: str = "spec") -> AsyncIterator[Host]:
    """A host on a page of its own, with no view yet."""
    async with open_tab(browser) as tab, tab.host(client, policy) as host:
        yield host
