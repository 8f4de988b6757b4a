"""Control of sessions from outside MCP: a Unix socket in the runtime directory, for `kernelmcp lab`.

One JSON object per line in each direction: `{"method": "restart", "kernel_id": "..."}` is answered with `{"ok": true}`
or `{"error": "what and why"}`. After `{"method": "watch"}`, lines with the open questions follow until the connection
ends; `{"method": "answer", "execution_id": "...", "text": "..."}` answers the one with this `execution_id`, which also
has the question's number. Only the user who runs the server can reach the socket (the directory is private to them).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import structlog

from kernelmcp.errors import ServerError
from kernelmcp.executions.execution import Execution
from kernelmcp.files.home import Home
from kernelmcp.kernel.process import Kernel
from kernelmcp.output.sanitize import as_dict
from kernelmcp.sessions.asked_in_lab import AskedInLab
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.descriptors import Descriptors
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Observer, Session

SOCKET = "control.sock"
MAX_REQUEST_BYTES = 256 * 1024
POLL_SECONDS = 0.02
METHODS = ("start", "restart", "stop")

log = structlog.get_logger(__name__)


class Control(Observer):
    """The control socket of one server."""

    def __init__(self, registry: Registry, descriptors: Descriptors) -> None:
        self._registry = registry
        self._descriptors = descriptors
        self.asked = AskedInLab()
        self._connections: set[asyncio.Task[Any]] = set()

    def execution_submitted(self, execution: Execution) -> None:
        self.asked.offer(execution)

    @asynccontextmanager
    async def listening(self, home: Home) -> AsyncIterator[None]:
        """Answer while the context is open. If the socket cannot be created, JupyterLab only loses its buttons."""
        try:
            server = await asyncio.start_unix_server(self._answer, home.runtime / SOCKET, limit=MAX_REQUEST_BYTES)
        except OSError as exc:
            log.error("JupyterLab cannot start or stop sessions of this server", error=str(exc))
            yield
            return
        try:
            yield
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            if self._connections:
                await asyncio.wait(self._connections)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            # asyncio would print a traceback for a cancelled connection, and that is how one ends with the server.
            with suppress(ConnectionError, asyncio.CancelledError):
                while line := await _line(reader):
                    request = _parsed(line)
                    if request.get("method") == "watch":
                        await self._watch(reader, writer)
                        return
                    await _send(writer, await self._reply(request))
        finally:
            writer.close()

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the open questions after each change, until the peer disconnects."""
        changed = self.asked.watch()
        if changed is None:
            await _send(writer, {"error": "too many programs watch this server already"})
            return
        gone = asyncio.ensure_future(reader.read(1))
        gone.add_done_callback(lambda read: read.cancelled() or read.exception())  # retrieved: it is gone either way
        try:
            while not gone.done():
                if changed.is_set():
                    changed.clear()
                    await _send(writer, {"questions": self.asked.questions()})
                waits = asyncio.ensure_future(changed.wait())
                try:
                    await asyncio.wait([gone, waits], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waits.cancel()
        finally:
            gone.cancel()
            self.asked.unwatch(changed)

    async def _reply(self, request: dict[str, Any]) -> dict[str, Any]:
        method, kernel_id = request.get("method"), request.get("kernel_id")
        if method == "answer":
            text = request.get("text")
            is_asked = self.asked.answer(str(request.get("execution_id")), text if isinstance(text, str) else None)
            return {"ok": True} if is_asked else {"error": "the cell is no longer asking"}
        if method not in METHODS:
            return {"error": f"there is no method {str(method)[:100]!r}; there are {', '.join(METHODS)}, answer, watch"}
        session = self._descriptors.find(str(kernel_id))
        if session is None or session.life.is_ending:
            return {"error": "this server no longer has that session"}
        log.info("a person acts on a session", method=method, session=session.id)
        try:
            return await self._act(str(method), session)
        except ServerError as exc:
            return {"error": exc.to_text()}
        except Exception:
            log.exception("what a person asked for failed", method=method, session=session.id)
            return {"error": "the server could not do it; its log says why"}

    async def _act(self, method: str, session: Session) -> dict[str, Any]:
        """Raises `ServerError`."""
        if method != "start" and (execution := session.queue.first) is not None:
            execution.interrupted_by_person = True
        if method != "start":
            # Not `reset`: the model did not request it, and its next result reports the loss of its variables.
            await session.stop(save=method == "stop")
        if method != "stop":
            await self._registry.find_or_create(Caller(session.principal, lambda: None), session.id)
            return await _started(session)
        return {"ok": True}


async def _started(session: Session) -> dict[str, Any]:
    while session.state == "starting":  # noqa: ASYNC110  # its end is an event of several kinds; a kernel takes a second
        await asyncio.sleep(POLL_SECONDS)
    if session.kernel is None:
        return {"error": "the kernel could not be started; the server's log says why"}
    await _prepare(session, session.kernel)
    return {"ok": True}


async def _prepare(session: Session, kernel: Kernel) -> None:
    """Bring the session's tools and packages into a fresh kernel. The queue does so before a cell of the model, and
    never sees a person's."""
    await session.before_cell(kernel)
    if await session.queue.binding.restore_packages(kernel):
        session.queue.binding.packages_missing = True  # the model's next cell tries again, and says why


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; empty if it is too long or there is none."""
    try:
        return await reader.readline()
    except ValueError:
        return b""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        return as_dict(json.loads(line))
    except (ValueError, RecursionError):
        return {}


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()
