"""Lines of JSON-RPC over two file descriptors, as mcp's dispatcher wants them.

Pipes and sockets are read in the event loop, without a thread between: a call costs less, and no thread hangs in
read() at the end. A message that cannot be read is answered, not dropped, so that no client waits for ever.
Above: stdio. Below: mcp's message types.
"""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

import anyio
import anyio.to_thread
import structlog
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCResponse, jsonrpc_message_adapter

# A 5 MB cell must pass, with room; beyond this the line is thrown away and answered with an error.
MAX_LINE_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024

log = structlog.get_logger(__name__)


class Wire:
    """Both of mcp's stream protocols: receive and iterate, send, aclose."""

    def __init__(self, reader: "_Reader", writer: "_Writer") -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._scanned = 0
        self._lines: list[bytes] = []
        self._skipping = False

    async def receive(self) -> SessionMessage | Exception:
        while True:
            line = await self._next_line()
            if not line.strip():
                continue
            try:
                return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValueError as exc:
                await self._refuse(line, str(exc))

    def __aiter__(self) -> "Wire":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def send(self, item: SessionMessage, /) -> None:
        try:
            data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except ValueError:
            log.exception("a message could not be encoded")
            if not isinstance(item.message, JSONRPCResponse):
                return
            data = _error(item.message.id, -32603, "the result could not be encoded")
        await self._writer.write(data + b"\n")

    async def aclose(self) -> None:
        """The wire outlives mcp's streams; `open_wire` closes it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _next_line(self) -> bytes:
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._scanned = 0
                if not self._skipping:
                    return line
                self._skipping = False
                continue
            self._scanned = len(self._buffer)
            if self._scanned > MAX_LINE_BYTES:
                if not self._skipping:
                    await self._writer.write(_error(None, INVALID_REQUEST, "the message is too long") + b"\n")
                self._skipping = True
                self._buffer.clear()
                self._scanned = 0
            chunk = await self._reader.read()
            if not chunk:
                raise anyio.EndOfStream
            self._buffer += chunk

    async def _refuse(self, line: bytes, reason: str) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message, code = None, PARSE_ERROR
        else:
            code = INVALID_REQUEST
        request_id: Any = cast("dict[str, Any]", message).get("id") if isinstance(message, dict) else None
        if not isinstance(request_id, str | int):
            request_id = None
        log.warning("refused a message", reason=reason[:200])
        await self._writer.write(_error(request_id, code, "the message is not valid JSON-RPC in UTF-8") + b"\n")


def _error(request_id: str | int | None, code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}).encode()


class _Reader:
    """Chunks from a file descriptor; b"" at its end."""

    def __init__(self, fd: int, stream: asyncio.StreamReader | None) -> None:
        self._fd = fd
        self._stream = stream

    async def read(self) -> bytes:
        if self._stream is not None:
            return await self._stream.read(CHUNK_BYTES)
        return await anyio.to_thread.run_sync(os.read, self._fd, CHUNK_BYTES, abandon_on_cancel=True)


class _Writer:
    """Whole messages to a file descriptor, in order, with the peer's backpressure."""

    def __init__(self, fd: int, stream: asyncio.StreamWriter | None) -> None:
        self._fd = fd
        self._stream = stream
        self._lock = anyio.Lock()

    async def write(self, data: bytes) -> None:
        try:
            if self._stream is not None:
                self._stream.write(data)
                await self._stream.drain()
                return
            async with self._lock:
                await anyio.to_thread.run_sync(_write_all, self._fd, data)
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise anyio.BrokenResourceError from exc


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _is_private(fd: int) -> bool:
    """Non-blocking mode belongs to the open file: a pipe's end is ours alone, a terminal is everybody's."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@asynccontextmanager
async def open_wire(wire_in: int, wire_out: int) -> AsyncIterator[Wire]:
    loop = asyncio.get_running_loop()
    reader = writer = None
    if _is_private(wire_in):
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(wire_in, "rb", 0))
    if _is_private(wire_out):
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(wire_out, "wb", 0)
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        yield Wire(_Reader(wire_in, reader), _Writer(wire_out, writer))
    finally:
        if writer is not None:
            writer.close()
