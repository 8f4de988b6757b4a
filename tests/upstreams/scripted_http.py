"""An HTTP server in the test's own event loop, whose answers a function gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body)

    def answer(self, status: int, said: object = None, **headers: str) -> None:
        body = b"" if said is None else json.dumps(said).encode()
        self.begin(status, Content_Length=str(len(body)), Content_Type="application/json", **headers)
        self.writer.write(body)

    def begin(self, status: int, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())


Answers = Callable[[Request], Awaitable[None]]


def initialized(request: Request, session: str = "s") -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    result = {**about, "serverInfo": {"name": "scripted", "version": "1"}}
    request.answer(200, {"jsonrpc": "2.0", "id": request.message["id"], "result": result}, Mcp_Session_Id=session)


def error(request: Request, status: int, code: int, message: str) -> None:
    number = request.message.get("id") if status == 200 else None
    request.answer(status, {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}})


def tools(request: Request) -> None:
    listed = [{"name": "echo", "inputSchema": {}, "annotations": {"readOnlyHint": True}}]
    request.answer(200, {"jsonrpc": "2.0", "id": request.message["id"], "result": {"tools": listed}})


def said(request: Request, text: str) -> None:
    result = {"content": [{"type": "text", "text": text}]}
    request.answer(200, {"jsonrpc": "2.0", "id": request.message["id"], "result": result})


async def ordinary(request: Request) -> None:
    """What most servers answer; a call gets `ok`."""
    method = request.message.get("method") if request.method == "POST" else None
    if request.method == "GET":
        request.answer(405)
    elif request.method == "DELETE":
        request.answer(200)
    elif "id" not in request.message or method is None:
        request.answer(202)
    elif method == "initialize":
        initialized(request)
    elif method == "tools/list":
        tools(request)
    elif method == "tools/call":
        said(request, "ok")
    else:
        error(request, 200, -32601, "Method not found")


@asynccontextmanager
async def serving(answers: Answers) -> AsyncIterator[str]:
    """Serve, and give the address."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.split(":", 1) for line in lines[1:] if line)
                headers = {name.strip().lower(): value.strip() for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                await answers(Request(lines[0].split(" ", 1)[0], headers, body, writer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # cancelled: the test ends
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
