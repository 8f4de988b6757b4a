"""The Jupyter kernel: receives messages and sends the guest's answers. Subclasses ipykernel's Kernel, which owns busy,
idle, reply and the order of requests; handlers here take content and return content.

It must not know pipes or processes. It is long because each message type of the protocol is a method of this class.
"""

# ipykernel declares its traits (session, streams) without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar, cast

import traitlets
from jupyter_client.session import Session

from kernelmcp_kernel.guests.by_language import Guests
from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.guests.cpu import CpuLimit
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import Frame
from kernelmcp_kernel.guests.guest import Guest, new_request_id
from kernelmcp_kernel.guests.host_calls import CELL_ENDED, IN_CALLBACK, INTERRUPTED, HostCallError, HostCalls
from kernelmcp_kernel.guests.memory_watchdog import MemoryWatchdog
from kernelmcp_kernel.guests.storage import StorageWatch
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.jupyter.channels.backlog import Backlog, Iopub
from kernelmcp_kernel.jupyter.channels.shell_stream import ShellStream
from kernelmcp_kernel.jupyter.channels.stdin import read_line
from kernelmcp_kernel.jupyter.execute_messages import (
    check_request,
    checked_reply,
    client_of,
    cpu_seconds,
    grace_seconds,
    header_of,
    hexadecimal,
    named_request,
    quota,
    wants_views,
)
from kernelmcp_kernel.jupyter.guest_programs import SHELL, Programs
from kernelmcp_kernel.jupyter.install import Installs
from kernelmcp_kernel.jupyter.iopub import COMM_TYPES, OutputForwarder
from kernelmcp_kernel.jupyter.past_requests import PastKernel, past_request
from kernelmcp_kernel.jupyter.reports import Report
from kernelmcp_kernel.languages import divide, find, language_info
from kernelmcp_kernel.languages.python.language import LANGUAGE
from kernelmcp_kernel.network import Network
from kernelmcp_kernel.runtime.directory import SandboxDirectory, open_directory
from kernelmcp_kernel.runtime.guest_process import Spawned
from kernelmcp_kernel.settings import Quota, settings

Content = dict[str, Any]

# Resident memory of this process, MiB: 40, and at most 350 for a guest's frames while they are handled.
MAX_RESIDENT_MB = 512
# The server recognizes it (kernel/process.py).
EXIT_OUT_OF_MEMORY = 71

# Signal names, because numbers differ between platforms. Their default action is to end the process.
_DEADLY = frozenset(
    {
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1"),
        *("SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGXCPU", "SIGXFSZ", "SIGVTALRM"),
        *("SIGPROF", "SIGIO", "SIGPOLL", "SIGPWR", "SIGSYS"),
    }
)
# A shell adds this to the number of the signal that ended a process.
_SIGNALLED = 128

_TITLE = "Python in a sandbox (kernelmcp)"
_FOLDERS = {
    "private": (
        "Files are in a private folder, /workspace: a restart keeps them, a shutdown deletes them. The notebook's own "
        "folder is not visible: {how_to_see_more}."
    ),
    "read": "Cells begin in the notebook's own folder, {folder}, which they may only read. They may write /workspace.",
    "write": "Cells begin in the notebook's own folder, {folder}, and may write there.",
}


class StorageFull(ValueError):
    """A guest has stored more than its quota, past its own check; only a hostile guest does that."""


class CellInterrupted(Exception):
    """A cell was interrupted before it began."""


async def _send(supervisor: GuestSupervisor, request: Request, content: Content) -> Content:
    """Send the request to the guest. Raises CellInterrupted if an earlier interrupt would not have reached it."""
    if request.cell.interrupted:
        raise CellInterrupted
    return await request.make(supervisor, "execute", content)


def _banner() -> str:
    """The kernel's description of itself, for consoles and clients; the files that it sees come first."""
    found = settings()
    if found.folder is None:
        return _TITLE
    text = _FOLDERS[found.folder].format(folder=found.working_directory, how_to_see_more=found.how_to_see_more)
    return "\n".join([_TITLE, text] if found.folder_note in text else [_TITLE, text, found.folder_note])


class SandboxKernel(PastKernel):
    """Languages in sandboxed guest processes, behind the Jupyter protocol."""

    implementation = "kernelmcp"
    language_info: ClassVar[Content] = language_info()
    exit_status = 0  # of this process
    profile_dir = traitlets.Any()  # IPython's: ipykernel names its class, and traitlets would import it for each kernel
    is_shutting_down = False  # a client asked for it
    _execute_sleep = 0.0  # ipykernel sleeps this long for output to be flushed; our output is queued before the reply
    # The directory that the launcher prepared before the imports; None under IPKernelApp.
    early_directory: ClassVar[SandboxDirectory | None] = None
    early_guest: ClassVar[Spawned | None] = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._backlog = Backlog(cast(Iopub, self.iopub_thread), lambda paused: self._guests.pause(paused))
        self._forwarder = OutputForwarder(self._publish, self._backlog)
        self._sandbox = self.early_directory or open_directory()
        self._installs = Installs(self._forwarder, lambda packages: self._guests.main.mount(packages))
        self._programs = Programs(lambda: self._guests)
        self._calls = HostCalls(
            {
                "input": self._input,
                "install": self._installs.answer,
                "fetch": Network(settings().network).fetch,
                "kill": self._kill,
                **self._programs.handlers,
            },
            {"tools": self._tools},
        )
        self._report = Report(self._forwarder.publish)
        self._closed = False
        self._aborted_clients = set[str | None]()
        """Those whose queued executions are aborted, because one of them has failed."""

    @property
    def kernel_info(self) -> Content:
        # The inherited property imports debugpy, which costs 90 ms and 8 MB.
        return {
            "protocol_version": "5.4",
            "implementation": self.implementation,
            "implementation_version": version("kernelmcp"),
            "language_info": self.language_info,
            "banner": _banner(),
            "help_links": [],
            "supported_features": [],
        }

    # -- lifecycle

    def start(self) -> None:
        """Called by the application once the sockets are there, before its event loop runs."""
        super().start()
        if isinstance(self.shell_stream, ShellStream):  # which makes the task that ipykernel's callback would make
            self.shell_stream.on_recv(partial(self.shell_main, None), copy=False)
        self.io_loop.add_callback(self._open)

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._guests = Guests(self._sandbox, self._on_frame, self.log, self.early_guest)
        self._memory = MemoryWatchdog(os.getpid(), MAX_RESIDENT_MB, self._end_for_memory)
        self._storage = StorageWatch(
            self._sandbox.path, settings().quota, lambda: self._cell is not None, self._guests.kill, self._guests.pids
        )

    async def do_shutdown(self, restart: bool) -> Content:
        """shutdown_request (control thread)."""
        self.is_shutting_down = True
        self.close(keep_files=restart)
        return {"status": "ok", "restart": restart}

    async def _progressively_terminate_all_children(self) -> None:
        """ipykernel searches for children with psutil (30 ms); ours is the guest, which do_shutdown has ended."""

    def close(self, *, keep_files: bool = False) -> None:
        """End the guest and release the sandbox directory. A second call does nothing.

        `keep_files`: keep the files of a private directory too, because this kernel is started again.
        """
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_guests"):
            self._guests.close()
            self._loop.call_soon_threadsafe(self._storage.close)
        self._sandbox.close(keep_files=keep_files)

    async def interrupt_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """interrupt_request (control thread)."""
        if hasattr(self, "_guests"):  # otherwise the kernel is just starting, and nothing runs
            metadata = parent.get("metadata")
            found = named_request(metadata), client_of(parent), grace_seconds(metadata)
            self._loop.call_soon_threadsafe(self._interrupt, *found)
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def _interrupt(self, named: str | None, client: str | None, grace: float | None) -> None:
        """Interrupt the running cell; if the request names an execution, only that one."""
        cell = self._cell
        running = cell or self._asking
        if named is not None and (running is None or running.parent["header"]["msg_id"] != named):
            return
        if cell is not None:
            cell.interrupted = True
            self._backlog.drop(True)
            if client != client_of(cell.parent):
                self._report.metadata["interrupted_by"] = "another client"
        self._guests.interrupt(grace)
        self._calls.cancel(INTERRUPTED)
        self._answered({"status": "error", "text": INTERRUPTED})

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """After an error: abort the requests that its client has queued now. Those of other clients run: a person's
        failing cell is nothing to the model. With its shell thread, ipykernel aborts all of them; without it (which
        saves a hop per message), it stops aborting one turn of the event loop too early."""
        if self.shell_channel_thread is not None:
            super()._abort_queues(subshell_id)
            return
        failed = client_of(self.get_parent("shell"))
        self._aborted_clients.add(failed)
        self.shell_stream.flush()  # receives pending messages; each then waits for the lock, in order
        self._resuming = asyncio.ensure_future(self._stop_aborting(failed))

    async def _stop_aborting(self, client: str | None) -> None:
        async with self._main_asyncio_lock:
            self._aborted_clients.discard(client)

    def should_handle(  # pyright: ignore[reportIncompatibleMethodOverride]  # its `return True` is all of its type
        self, stream: Any, msg: Content, idents: Any
    ) -> bool:
        """Called by ipykernel before each request."""
        aborts = msg["header"]["msg_type"] == "execute_request" and client_of(msg) in self._aborted_clients
        if aborts:
            self._send_abort_reply(stream, msg, idents)
        return not aborts

    def pre_handler_hook(self) -> None:
        """ipykernel lets SIGINT interrupt a handler here. It interrupts user code, and ours runs in the guest."""

    def post_handler_hook(self) -> None:
        """ipykernel restores here what `pre_handler_hook` has set."""

    # -- requests

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Content | None = None,
        cell_id: str | None = None,
    ) -> Content:
        """execute_request: run a cell in the guest. If the guest ends meanwhile, the reply is an error that says so."""
        await self._until_left()
        count = self.execution_count
        store_history = store_history and not silent
        report = self._report = Report(self._forwarder.publish)
        # Captured here: the callbacks that send a cell's output run in a different context from its request.
        ident = self._get_shell_context_var(self._shell_parent_ident)
        cell = self._cell = Cell(self.get_parent("shell"), ident, silent, allow_stdin)
        limit = CpuLimit(cpu_seconds(cell_meta))
        request = Request(cell, new_request_id(), limit=limit)
        content = {
            "code": code,
            "silent": bool(silent),
            "store_history": store_history,
            "user_expressions": user_expressions or {},
            "allow_stdin": allow_stdin,
            "execution_count": count,
            "parent": header_of(cell.parent),
            "control": header_of(self.get_parent("control")),
            "idents": {"shell": hexadecimal(ident), "control": hexadecimal(self._parent_ident["control"])},
        }
        self._forwarder.open(request.id, cell)
        try:
            check_request(content)
            if store_history:
                self._history.add(count, code)
            if not silent and (asked := past_request(code)):
                reply = await self._on_loop(self._ask_server(cell, asked))
            else:
                reply = await self._run(request, content, cell_meta)
        except CellInterrupted:
            reply = report.interrupted(cell)
        except GuestDied as error:
            reply = report.guest_died(cell, error)
        except ValueError as error:
            reply = report.failure(cell, error)
        except Exception:
            self.log.exception("an execution failed in the kernel process")
            reply = report.failure(cell, ValueError("the kernel could not run this cell; its log says why"))
        finally:
            await self._on_loop(self._programs.settle(cell))
            report.limit(cell, limit)
            self._cell = None
            self._calls.cancel(CELL_ENDED)
            self._forwarder.finish(cell)
            if cell.interrupted:
                self._backlog.drop(False)
        report.packages(LANGUAGE.packages)
        if cell.files:
            report.metadata["files"] = list(cell.files)
        if not store_history and not silent:
            self.execution_count -= 1  # ipykernel has counted it already
        return {**reply, "execution_count": count}

    async def _run(self, request: Request, content: Content, cell_meta: Content | None) -> Content:
        """Run the cell in the guest of its language. Raises CellInterrupted, GuestDied, ValueError."""
        part, report, cell = divide(content["code"]), self._report, request.cell
        if part.offset:
            content |= {"code": part.body, "arguments": part.arguments}
            report.metadata["language"] = part.language
        elif wants_views(cell_meta):
            content["views"] = True
        request.language, request.host_calls = part.language, find(part.language).host_calls
        supervisor = await self._on_loop(self._prepare(part.language, quota(cell_meta)))
        if part.language == SHELL:
            content["python"] = await self._python_variables()
        reply = checked_reply(await self._on_loop(_send(supervisor, request, content)))
        self._forwarder.failed(cell, reply)
        report.earlier_loss(cell, supervisor.take_loss())
        report.background(cell, supervisor.guest.background)
        return reply

    async def _prepare(self, language: str, allowed: Quota) -> GuestSupervisor:
        """The supervisor that runs the cell, once its files are within the quota. Raises StartFailed, StorageFull."""
        self._storage.allow(allowed)
        self._guests.set_quota(allowed)
        if (reason := await self._storage.refusal()) is not None:
            remedy = (
                "some are deleted from outside (reset_workspace with scope 'files' deletes them all)"
                if settings().folder is None
                else "the kernel is shut down, which deletes them, and started again"
            )
            raise StorageFull(f"{reason}. Nothing runs until {remedy}.")
        self._storage.poke()
        return await self._guests.of(language)

    def finish_metadata(self, parent: Content, metadata: Content, reply_content: Content) -> Content:
        """Called by ipykernel for the metadata of an execute_reply, also of a cell that did not run: the report is that
        of another one then."""
        if "execution_count" not in reply_content:
            return metadata
        return {**metadata, "kernelmcp": self._report.metadata} if self._report.metadata else metadata

    # -- the guest

    def _on_frame(self, guest: Guest, frame: Frame) -> None:
        """Handle a guest's frame that is not a reply: pass it to its cell, or as a comm message."""
        request = self._cell.request_of(guest, frame.id) if self._cell else None
        if frame.type == "call":
            is_callback = self._forwarder.open_comm_of(frame.id) is not None
            self._calls.start(guest, frame, request, IN_CALLBACK if is_callback else CELL_ENDED)
        elif frame.type == "comm_done":
            if (cell := self._forwarder.open_comm_of(frame.id)) is not None:
                self.comm_handled(cell)
        elif frame.type not in COMM_TYPES or guest is self._guests.main.guest:  # others have no comms
            self._forwarder.output(frame, request.cell if request else None)

    async def _input(self, call: Content, request: Request) -> str:
        """input(): ask the frontend, until it answers or the cell ends."""
        cell = request.cell
        if not cell.allow_stdin:
            raise HostCallError("this frontend does not support input requests")
        self._forwarder.flush()  # a text that says what is asked comes before the question
        asked = {"prompt": str(call.get("prompt", ""))[:10_000], "password": bool(call.get("password"))}
        return await read_line(cast(Session, self.session), self.stdin_socket, asked, cell.parent, cell.ident)

    async def _kill(self, call: Content, request: Request) -> None:
        """os.kill of itself: this process ends like any Jupyter kernel. The cell's output is sent; its request is never
        answered.

        It exits by itself, with the status that a shell reports for the signal. A real signal could write a core dump
        of this process, with its secrets, and could not be distinguished from one that the system or a person sent.
        """
        name = call.get("signal")
        if request.cell.ended:  # this call and the reply have come together
            raise HostCallError(CELL_ENDED)
        number = signal.Signals.__members__.get(name) if isinstance(name, str) and name in _DEADLY else None
        if number is None:
            raise HostCallError("the host knows no deadly signal of that name")
        self.exit_status = _SIGNALLED + number
        self._forwarder.finish(request.cell)
        self.close(keep_files=True)  # the parent process may start it again
        self.io_loop.stop()  # after this turn, so that the guest's end is no longer noticed
        await self._loop.create_future()

    def _end_for_memory(self, reason: str) -> None:
        """End this process, with a status that gives the reason. All input from guests is bounded; this is for cases
        that no bound covers."""
        self.log.error("the kernel process ends: %s", reason)
        self.exit_status = EXIT_OUT_OF_MEMORY
        self.close(keep_files=True)
        self.io_loop.stop()

    def _publish(self, message: str, content: Content, metadata: Content, parent: Content, *buffers: bytes) -> None:
        session = cast(Session, self.session)
        made = session.msg(message, content, parent=parent, metadata=metadata or None)
        self._backlog.send([*session.serialize(made, ident=self._topic(message)), *buffers])
