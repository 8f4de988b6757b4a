"""A real server on a port of its own, and real clients to it."""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from ..starting import DEADLINE, start_server
from .support import wait_until

JSON_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip
# Else a client reads all certificates of the machine first, which takes 30 ms.
NO_TLS = False


class HttpServer:
    """The process, where it listens, and what it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.http = httpx2.Client(timeout=DEADLINE, verify=NO_TLS)
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert wait_until(lambda: self.logged("listening") or process.poll() is not None)
        assert process.poll() is None, self.lines
        self.mcp = self.logged("listening")[0]["url"]
        self.base = self.mcp.removesuffix("/mcp")
        self.port = int(self.base.rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"event": "text", "text": line})

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == event]

    def text(self) -> str:
        """Everything in the log, once the server has ended."""
        self._reader.join(DEADLINE)
        return "\n".join(map(str, self.lines))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)

    def post(self, body: Any, token: str | None = None, **headers: str) -> httpx2.Response:
        """One POST to /mcp, as a client that knows nothing of MCP would send it."""
        sent = JSON_HEADERS | bearer(token) | headers
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(self.mcp, content=content, headers=sent)

    def get(self, path: str, token: str | None = None, **headers: str) -> httpx2.Response:
        return self.http.get(self.base + path, headers=bearer(token) | headers)

    @asynccontextmanager
    async def client(self, token: str | None = None, mode: str = "legacy", **options: Any) -> AsyncIterator[Client]:
        headers = bearer(token)
        with anyio.fail_after(DEADLINE):
            if mode == "sse":
                async with Client(sse_client(self.base + "/sse", headers=headers), mode="legacy", **options) as client:
                    yield client
                return
            async with (
                httpx2.AsyncClient(headers=headers, timeout=DEADLINE, verify=NO_TLS) as http,
                Client(streamable_http_client(self.mcp, http_client=http), mode=mode, **options) as client,
            ):
                yield client

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


@contextmanager
def serving(folder: Path, *arguments: str, port: int = 0, **settings: str) -> Iterator[HttpServer]:
    """`serving(tmp, TRANSPORT_HTTP__AUTH_TOKEN="...")`"""
    env: Mapping[str, str] = {
        **os.environ,
        "KERNELMCP_HOME": str(folder / "home"),
        "KERNELMCP_TOOLS__STRUCTURED_CONTENT": "always",
        "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0",
        "KERNELMCP_SESSIONS__MEMORY_SHARE": "1",
        "KERNELMCP_SESSIONS__AUTOMATIC_CHECKPOINTS": "0",
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
        "KERNELMCP_KERNELS__KERNELSPEC": os.environ.get("TEST_KERNELSPEC", "kernelmcp"),
        "KERNELMCP_LOGGING__FORMAT": "json",
    }
    process = start_server(
        *("serve", "--transport", "http", "--port", str(port), *arguments),
        env={**env, **{f"KERNELMCP_{name}": value for name, value in settings.items()}},
        stdin=subprocess.DEVNULL,
        stdout=None,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield HttpServer(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE)


async def run(client: Client, code: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool("execute_code", {"code": code, **arguments})
    assert result.structured_content is not None
    assert "execution_id" in result.structured_content, result
    return result.structured_content


async def error_code(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content is not None
    return result.structured_content["error"]["error_code"]
