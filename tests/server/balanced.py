"""kernelmcp servers with one home behind HAProxy, configured by deploy/haproxy.cfg, and clients of each era of MCP that
count in their session: a lost variable, a cell that ran twice and a wrong session all show as a wrong number."""

import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.client.streamable_http import streamable_http_client

from ..packaging.test_deploy_haproxy import CONFIGURATION, HAPROXY
from ..starting import DEADLINE
from .http_support import NO_TLS, HttpServer, serving
from .support import wait_until

ERAS = ("legacy", "auto", "2026-07-28")
SLOTS = ("s1", "s2", "s3")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Balanced:
    """The servers and their balancer."""

    def __init__(self, folder: Path, stack: ExitStack, **settings: str) -> None:
        self._folder = folder
        self._stack = stack
        self._settings = settings
        self.ports = {slot: free_port() for slot in SLOTS}
        self.servers = {slot: self._start(slot) for slot in SLOTS}
        self.port = free_port()
        text = CONFIGURATION.read_text().replace("bind :8080", f"bind 127.0.0.1:{self.port}")
        for number, slot in enumerate(SLOTS, start=1):
            text = text.replace(f"10.0.0.{number}:8000", f"127.0.0.1:{self.ports[slot]}")
        (folder / "haproxy.cfg").write_text(text)
        self.may_call = anyio.Event()
        """Clients wait for it before each call."""
        self._log = folder / "haproxy.log"
        with self._log.open("w") as log:
            process = subprocess.Popen([str(HAPROXY), "-db", "-f", folder / "haproxy.cfg"], stderr=log)
        stack.callback(process.wait, DEADLINE)
        stack.callback(process.kill)
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        assert wait_until(self._answers)

    def _start(self, slot: str) -> HttpServer:
        served = serving(self._folder, port=self.ports[slot], SERVER__SLOT=slot, **self._settings)
        return self._stack.enter_context(served)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/ready", verify=NO_TLS).status_code == 200
        except httpx2.HTTPError:
            return False

    async def until_marked(self, slot: str, state: str, times: int = 1) -> None:
        """Wait until HAProxy has found so often that a server is UP, or DOWN."""
        text = f"Server kernelmcp/{slot} is {state}"
        with anyio.fail_after(DEADLINE):
            while self._log.read_text().count(text) < times:  # noqa: ASYNC110  # another program's file
                await anyio.sleep(0.05)

    def end(self, slot: str, number: signal.Signals = signal.SIGTERM) -> int:
        return self.servers[slot].stop(number)

    def start(self, slot: str) -> None:
        self.servers[slot] = self._start(slot)

    @asynccontextmanager
    async def client(self, mode: str, *extensions: ClientExtension, **options: Any) -> AsyncIterator[Client]:
        options |= {"mode": mode, "extensions": extensions}
        async with (
            httpx2.AsyncClient(timeout=DEADLINE, verify=NO_TLS) as http,
            Client(streamable_http_client(self.url, http_client=http), **options) as client,
        ):
            await client.list_tools()
            yield client


@contextmanager
def balanced(folder: Path, **settings: str) -> Iterator[Balanced]:
    with ExitStack() as stack:
        yield Balanced(folder, stack, **settings)


class Counter:
    """A client that counts in a session of its own."""

    def __init__(
        self, balancer: Balanced, mode: str, *, is_forgiving: bool = False, pause: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`is_forgiving`: it makes a new connection when a call fails. `pause`: seconds between two calls."""
        self._pause = pause
        self._is_forgiving = is_forgiving
        self._balancer = balancer
        self.mode = mode
        self.count = 0
        self.calls = 0
        self.longest = 0.0
        """Seconds, of a call."""
        self.is_calling = False
        self.has_lost = False
        """A result said that the variables are lost."""
        self.wrong: list[Any] = []
        self.failures: list[BaseException] = []
        self.servers: set[str] = set()
        self.session_id: str | None = None
        self.is_done = False

    async def run(self) -> None:
        """Count until `is_done`."""
        while not self.is_done:
            try:
                async with self._balancer.client(self.mode) as client:
                    await self._count(client)
            except Exception as exc:
                if not self._is_forgiving:
                    raise
                self.failures.append(exc)

    async def _count(self, client: Client) -> None:
        if self.session_id is None:
            self.session_id = await self._call(client, "n = 0\nn")
        elif self.failures:
            await self._look(client)
        while not self.is_done:
            await anyio.sleep(self._pause())
            await self._balancer.may_call.wait()
            self.count += 1
            await self._call(client, "n = globals().get('n', 0) + 1\nn")

    async def _look(self, client: Client) -> None:
        """After a failed call, whose cell may have run or not."""
        result = await client.call_tool("execute_code", self._named("globals().get('n', 0)"))
        found = result.structured_content or {}
        self.has_lost = self.has_lost or bool(found.get("state_lost"))
        seen = int(found.get("result") or -1)
        if not found.get("state_lost") and seen not in (self.count - 1, self.count):
            self.wrong.append((self.mode, self.count, found or result))
        self.count = seen

    def _named(self, code: str) -> dict[str, Any]:
        is_own = self.session_id is None or (self.mode == "legacy" and not self.failures)
        return {"code": code} if is_own else {"code": code, "session_id": self.session_id}

    async def _call(self, client: Client, code: str) -> str | None:
        began, self.is_calling = time.monotonic(), True
        result = await client.call_tool("execute_code", self._named(code))
        self.is_calling = False
        self.calls += 1
        self.longest = max(self.longest, time.monotonic() - began)
        found = result.structured_content or {}
        if self._is_forgiving and "another server has taken over" in str(found.get("error")):
            raise ConnectionError(found["error"])
        if found.get("state_lost"):
            self.has_lost = True
            self.count = int(found.get("result") or 0)
        ended_with_server = found.get("state_lost") and found.get("status") == "interrupted"
        if found.get("result") != str(self.count) and not ended_with_server:
            self.wrong.append((self.mode, self.count, found or result))
        self.servers.add(str(found.get("execution_id")).partition("-")[0])
        return found.get("session_id")
