"""An upstream as a process, with JSON-RPC on its stdin and stdout.

A transport of our own: mcp's joins chunks to a line without a limit, in quadratic time, in the shared event loop. The
process and its children end with the connection, and with this server however that ends (`ProcessReaper`).
"""

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from kernelmcp.config.client_files import NESTED_VARIABLE
from kernelmcp.output.sanitize import as_dict, clean
from kernelmcp.upstreams.large_results import LargeResults, Lines, TooLong
from kernelmcp.upstreams.link import Link, ReadThrottle, cost_of
from kernelmcp.upstreams.process_reaper import ProcessReaper

# Limit for data that waits for an upstream that does not read; beyond it, the connection counts as broken.
MAX_PENDING_BYTES = 64 * 1024 * 1024
STDERR_BYTES = 8 * 1024
# Beyond this, stderr is read slowly: output that nobody reads must cost nothing.
STDERR_BYTES_PER_SECOND = 1024 * 1024
# From closing stdin to SIGTERM, and from there to SIGKILL. A server on stdio has two seconds for its whole shutdown.
GRACE_SECONDS = 0.5
# Minimum interval between reports of changed tools, in seconds: a server that changes many tools reports each one.
CHANGES_SECONDS = 1.0
# Cost of a discarded line relative to one that must be handled; a long one counts once per this many bytes.
THROWN_AWAY, THROWN_AWAY_BYTES = 0.05, 256
# From the exit of the process to the end of its output: a child may hold its stdout open.
LAST_OUTPUT_SECONDS = 0.5
INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
# Other notifications are not used here.
CHANGED = "notifications/tools/list_changed"
WANTED = frozenset({CHANGED, "notifications/subscriptions/acknowledged", "notifications/cancelled"})


@asynccontextmanager
async def open_stdio(
    command: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    large: LargeResults,
    reaper: ProcessReaper,
) -> AsyncIterator[Link]:
    """Start the process. Raises OSError if it cannot be started, ValueError for arguments that no process can have."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    transport, process = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Process(large),
        command,
        *arguments,
        env={**inherited, NESTED_VARIABLE: "1", **environment},
        cwd=folder,
        start_new_session=True,
    )
    group = transport.get_pid()
    try:
        reaper.add(group)
        yield Link(process, process, process.ended, process.reason, process.stderr)
    finally:
        with anyio.CancelScope(shield=True):
            await process.end(group)
            reaper.remove(group)
            transport.close()


class _Process(asyncio.SubprocessProtocol, ObjectReceiveStream[SessionMessage], ObjectSendStream[SessionMessage]):
    """The pipes of a process, as both of mcp's streams."""

    def __init__(self, large: LargeResults) -> None:
        self.ended = asyncio.Event()
        self._large = large
        self._lines = Lines(large)
        self._ready: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._exited = asyncio.Event()
        self._throttle = ReadThrottle()
        self._changed: JSONRPCMessage | None = None
        """A pending report of changed tools."""
        self._changed_at = -float("inf")
        self._stderr = bytearray()
        self._fault = ""

    # -- asyncio callbacks --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self._keep_stderr(data)
            return
        try:
            self._ready.extend(self._lines.feed(data))
        except TooLong:
            self._finish("it sent a line without an end")
            self._pipe(1).close()  # nothing more is read
            return
        if self._ready:
            self._pipe(1).pause_reading()  # until these are consumed
            self._arrived.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._finish("" if exc is None else str(exc))
        self._writable.set()  # a waiting writer then finds the pipe closed

    def process_exited(self) -> None:
        self._exited.set()
        # Its last output is still on its way; but a child may hold the pipe open for ever.
        asyncio.get_running_loop().call_later(LAST_OUTPUT_SECONDS, self._finish, "")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _pipe(self, fd: int) -> Any:
        """asyncio's types do not say which of them read."""
        return self._transport.get_pipe_transport(fd)

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr += data
        del self._stderr[:-STDERR_BYTES]
        if len(data) > STDERR_BYTES:
            self._pipe(2).pause_reading()
            asyncio.get_running_loop().call_later(len(data) / STDERR_BYTES_PER_SECOND, self._pipe(2).resume_reading)

    def _finish(self, fault: str) -> None:
        self._fault = self._fault or fault
        self.ended.set()
        self._arrived.set()

    # -- calls from mcp's dispatcher ----------------------------------------------------------------------------

    async def receive(self) -> SessionMessage:
        """Return the next message. Raises `EndOfStream`."""
        while True:
            while self._ready:
                line = self._ready.popleft()
                message = _parsed(line)
                if isinstance(message, JSONRPCResponse | JSONRPCError) and self._large.is_expected(message.id):
                    return SessionMessage(message)
                if is_change := isinstance(message, JSONRPCNotification) and message.method == CHANGED:
                    self._changed = message
                is_handled = message is not None and not is_change
                cost = cost_of(line) if is_handled else THROWN_AWAY * max(1.0, len(line) / THROWN_AWAY_BYTES)
                cost += self._large.take_unread()
                if wait := self._throttle.delay(cost):
                    await asyncio.sleep(wait)
                if message is not None and is_handled:
                    return SessionMessage(message)
            if self.ended.is_set():
                raise anyio.EndOfStream
            wait = self._changed_at + CHANGES_SECONDS - time.monotonic()
            if (change := self._changed) is not None and wait <= 0:
                self._changed, self._changed_at = None, time.monotonic()
                return SessionMessage(change)
            self._arrived.clear()
            self._pipe(1).resume_reading()
            with anyio.move_on_after(None if change is None else wait):
                await self._arrived.wait()

    async def send(self, item: SessionMessage) -> None:
        """Send a message. Raises `BrokenResourceError`. A request waits for an upstream that does not read; a
        cancellation does not."""
        stdin = self._pipe(0)
        if stdin is None or stdin.is_closing() or stdin.get_write_buffer_size() > MAX_PENDING_BYTES:
            raise anyio.BrokenResourceError
        stdin.write(_encoded(item.message))
        if isinstance(item.message, JSONRPCRequest):
            await self._writable.wait()

    async def aclose(self) -> None:
        """Does nothing: the pipes outlive mcp's dispatcher; `open_stdio` closes them."""

    # -- its end ------------------------------------------------------------------------------------------------

    async def end(self, group: int) -> None:
        """Close stdin, wait, SIGTERM, wait, SIGKILL: for the whole group, because children may outlive the process."""
        self._pipe(0).close()
        for number in (None, signal.SIGTERM):
            if number is not None:
                _signal(group, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), GRACE_SECONDS)
                break
        _signal(group, signal.SIGKILL)
        self._finish("")

    async def reason(self) -> str:
        """Why it has ended, and the end of its stderr. Empty if it still runs and has written nothing."""
        with suppress(TimeoutError):  # the end of its output is noticed first
            await asyncio.wait_for(self._exited.wait(), LAST_OUTPUT_SECONDS)
        status = self._transport.get_returncode()
        how = "" if status is None else f"it ended with status {status}" if status >= 0 else "it was ended by a signal"
        said = [line.strip() for line in self.stderr().splitlines() if line.strip()]
        return ": ".join(part for part in (self._fault or how, *said[-1:]) if part)

    def stderr(self) -> str:
        return clean(self._stderr.decode("utf-8", "replace"))


def _parsed(line: bytes) -> JSONRPCMessage | None:
    """Parse a message that a call waits for or that needs an answer. None for everything else: printed lines,
    notifications.

    Responses are not validated: their results are passed on unchanged."""
    try:
        message = as_dict(json.loads(line))
    except (ValueError, RecursionError):
        return None
    number, result, method = message.get("id"), message.get("result"), message.get("method")
    if method is None and isinstance(result, dict) and isinstance(number, int | str):
        return JSONRPCResponse.model_construct(jsonrpc="2.0", id=number, result=cast("dict[str, Any]", result))
    if method is not None and "id" not in message and method not in WANTED:
        return None
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValueError:
        return None


def _encoded(message: JSONRPCMessage) -> bytes:
    if isinstance(message, JSONRPCRequest | JSONRPCNotification):
        # A field order of ours, without a serializer that checks the type of each value.
        found: dict[str, Any] = {"jsonrpc": "2.0", "method": message.method}
        if isinstance(message, JSONRPCRequest):
            found["id"] = message.id
        if message.params is not None:
            found["params"] = message.params
        return json.dumps(found, separators=(",", ":")).encode() + b"\n"
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
