"""Lines of JSON-RPC over two file descriptors, for mcp's dispatcher.

Pipes and sockets are read in the event loop, without a thread in between: a call costs less, and no thread hangs in
read() at the end. An unreadable message is answered, not dropped, so that no client waits for ever. If a client does
not read, its messages are not read either: the pending output is bounded.
"""

import asyncio
import json
import os
import re
import select
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from kernelmcp.mcp_server.views.pages import is_page
from kernelmcp.output.sanitize import as_dict
from kernelmcp.stdio.message_bounds import excess

# A 5 MB cell must pass, with room; a longer line is discarded and answered with an error.
MAX_LINE_BYTES = 64 * 1024 * 1024
# While this much waits for a client that does not read, its next message is not read either.
MAX_PENDING_BYTES = 1024 * 1024
MAX_PENDING_MESSAGES = 16
# Answers without a size limit are produced a few at a time. They never wait for another message of the client.
LARGE_REQUESTS = ("resources/read",)
MAX_LARGE_REQUESTS = 2
# A large request that is unanswered by then may be slow, or may never be answered.
LARGE_REQUEST_SECONDS = 5.0
# How often to check whether a client that does not read has gone.
GONE_POLL_SECONDS = 0.5
CHUNK_BYTES = 256 * 1024

_END_BYTES = 200
_ID = re.compile(rb'"id": ?(\d{1,15}|"[\w-]{1,100}")')

log = structlog.get_logger(__name__)


class Wire(ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]):
    """Both of mcp's streams."""

    def __init__(self, reader: "_Reader", writer: "_Writer") -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._scanned = 0
        self._skipping = False
        self._large: set[str | int] = set()
        self._answered = anyio.Event()

    async def receive(self) -> SessionMessage | Exception:
        while True:
            await self._until_room()
            line = await self._next_line()
            if not line.strip():
                continue
            if (refusal := excess(line)) is not None:
                log.warning("refused a message", reason=refusal)
                request_id = _id_at_an_end(line)
                await self._writer.write(partial(_error, request_id, INVALID_REQUEST, refusal))
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError as exc:
                await self._refuse(line, exc)
                continue
            self._note(message)
            return SessionMessage(message)

    async def _until_room(self) -> None:
        """Wait until the client has read enough of the answers. Raises `EndOfStream` if it never will."""
        await anyio.lowlevel.checkpoint()  # let the answering tasks run, however many messages are buffered
        end = anyio.current_time() + LARGE_REQUEST_SECONDS
        while self._large_ones_wait(end) or not self._writer.has_room():
            with anyio.move_on_after(GONE_POLL_SECONDS):
                if self._large_ones_wait(end):
                    self._answered = anyio.Event()
                    await self._answered.wait()
                else:
                    await self._writer.progress()
            if self._reader.has_gone():
                raise anyio.EndOfStream

    def _large_ones_wait(self, end: float) -> bool:
        return len(self._large) >= MAX_LARGE_REQUESTS and anyio.current_time() < end

    def _note(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest) and message.method in LARGE_REQUESTS:
            if not is_page((message.params or {}).get("uri")):
                self._large.add(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._settle((message.params or {}).get("requestId"))  # it will not be answered

    def _settle(self, request_id: Any) -> None:
        if isinstance(request_id, str | int) and request_id in self._large:
            self._large.discard(request_id)
            self._answered.set()

    async def send(self, item: SessionMessage) -> None:
        try:
            # Encoded only when its turn has come: pending messages are not held twice.
            await self._writer.write(lambda: _encoded(item))
        finally:
            if isinstance(item.message, JSONRPCResponse | JSONRPCError):
                self._settle(item.message.id)

    async def aclose(self) -> None:
        """Does nothing: the wire outlives mcp's streams; `open_wire` closes it."""

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
                    await self._writer.write(lambda: _error(None, INVALID_REQUEST, "the message is too long"))
                self._skipping = True
                self._buffer.clear()
                self._scanned = 0
            chunk = await self._reader.read()
            if not chunk:
                raise anyio.EndOfStream
            self._buffer += chunk

    async def _refuse(self, line: bytes, error: ValueError) -> None:
        code, request_id = PARSE_ERROR, None
        with suppress(ValueError, RecursionError):
            request_id, code = as_dict(json.loads(line)).get("id"), INVALID_REQUEST
        known = request_id if isinstance(request_id, str | int) else None
        # Without what pydantic quotes of the message: it may be code.
        kinds = (
            {each["type"] for each in error.errors(include_input=False)}
            if isinstance(error, ValidationError)
            else set[str]()
        )
        log.warning("refused a message", reason=", ".join(sorted(kinds)) or type(error).__name__)
        await self._writer.write(lambda: _error(known, code, "the message is not valid JSON-RPC in UTF-8"))


def _id_at_an_end(line: bytes) -> str | int | None:
    """The id of an unparsed message, in the places where clients write it: at the start or the end."""
    found = _ID.search(line[:_END_BYTES]) or _ID.search(line[-_END_BYTES:])
    return None if found is None else cast("str | int", json.loads(found[1]))


def _encoded(item: SessionMessage) -> bytes:
    """The encoded message; empty if it cannot be encoded and nobody waits for it."""
    try:
        return jsonrpc_message_adapter.dump_json(item.message, by_alias=True, exclude_unset=True)
    except ValueError:
        log.exception("a message could not be encoded")
        if not isinstance(item.message, JSONRPCResponse):
            return b""
        return _error(item.message.id, INTERNAL_ERROR, "the result could not be encoded")


def _error(request_id: str | int | None, code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}).encode()


class _Reader:
    """Chunks from a file descriptor; b"" at its end."""

    def __init__(self, fd: int, stream: asyncio.StreamReader | None) -> None:
        self._fd = fd
        self._stream = stream
        self._ended = False

    async def read(self) -> bytes:
        if self._ended:
            return b""  # a terminal would wait for a second Ctrl-D
        if self._stream is not None:
            try:
                return await self._stream.read(CHUNK_BYTES)
            except (BrokenPipeError, ConnectionResetError):  # a client's socket that was closed with an answer unread
                return b""
        chunk = await anyio.to_thread.run_sync(os.read, self._fd, CHUNK_BYTES, abandon_on_cancel=True)
        self._ended = not chunk
        return chunk

    def has_gone(self) -> bool:
        """True if the other end is closed, seen without reading. False for terminals."""
        if self._stream is None:
            return False
        poll = select.poll()
        poll.register(self._fd, getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))


class _Writer:
    """Whole messages to a file descriptor, in order, with the peer's backpressure."""

    def __init__(self, fd: int, stream: asyncio.StreamWriter | None) -> None:
        self._fd = fd
        self._stream = stream
        self._lock = anyio.Lock()
        self._waiting = 0
        self._moved = anyio.Event()

    async def write(self, encode: Callable[[], bytes]) -> None:
        """Write a line after the previous ones have been sent; it is encoded only then, so that it is pending in one
        form."""
        self._waiting += 1
        try:
            async with self._lock:
                if self._stream is not None:
                    await self._stream.drain()
                    if data := encode():
                        self._stream.writelines((data, b"\n"))
                elif data := encode():
                    await anyio.to_thread.run_sync(_write_all, self._fd, data + b"\n")
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise anyio.BrokenResourceError from exc
        finally:
            self._waiting -= 1
            self._moved.set()

    def has_room(self) -> bool:
        pending = self._stream.transport.get_write_buffer_size() if self._stream is not None else 0
        return self._waiting < MAX_PENDING_MESSAGES and pending <= MAX_PENDING_BYTES

    async def progress(self) -> None:
        """Wait until a message has been sent."""
        if self._waiting or self._stream is None:
            self._moved = anyio.Event()
            await self._moved.wait()
        else:
            with suppress(BrokenPipeError, ConnectionResetError):
                await self._stream.drain()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _is_private(fd: int) -> bool:
    """Non-blocking mode belongs to the open file: a pipe's end is ours alone, a terminal is shared."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@asynccontextmanager
async def open_wire(wire_in: int, wire_out: int) -> AsyncIterator[Wire]:
    loop = asyncio.get_running_loop()
    reader = writer = None
    if stat.S_ISSOCK(os.fstat(wire_out).st_mode):
        # A pipe's transport takes what a client sends, or that it only stops sending, for its end.
        duplex, writer = await asyncio.open_connection(sock=socket.socket(fileno=wire_out), limit=CHUNK_BYTES)
        if os.path.samestat(os.fstat(wire_in), os.fstat(wire_out)):  # of inetd, systemd or socat
            reader = duplex
    elif _is_private(wire_out):
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(wire_out, "wb", 0)
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
    if reader is None and _is_private(wire_in):
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(wire_in, "rb", 0))
    try:
        yield Wire(_Reader(wire_in, reader), _Writer(wire_out, writer))
    finally:
        if writer is not None:
            writer.close()
