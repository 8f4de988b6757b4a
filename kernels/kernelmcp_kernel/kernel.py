"""The Jupyter kernel: messages in, the guest's answers out. Subclasses ipykernel's Kernel, which owns busy, idle,
reply and the order of requests; handlers here take content and return content.

Above: `launcher` (or IPKernelApp). Below: `slot`, `relay`, `hostcalls`, `history`, `stdin`. It must not know pipes or
processes.
"""

# ipykernel declares its traits (session, streams) without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any, ClassVar, TypeVar, cast

from ipykernel.kernelbase import Kernel
from jupyter_client.session import Session

from kernelmcp_kernel.berth import Berth, open_berth
from kernelmcp_kernel.cpu import CpuLimit
from kernelmcp_kernel.frames import Frame
from kernelmcp_kernel.guest import GuestDied, new_request_id
from kernelmcp_kernel.history import History, Search
from kernelmcp_kernel.hostcalls import HostCallError, HostCalls
from kernelmcp_kernel.install import Installs
from kernelmcp_kernel.network import Network
from kernelmcp_kernel.relay import Cell, Relay, error_content
from kernelmcp_kernel.runtime import Spawned
from kernelmcp_kernel.settings import settings
from kernelmcp_kernel.slot import GuestSlot
from kernelmcp_kernel.stdin import read_line
from kernelmcp_kernel.storage import StorageWatch

Content = dict[str, Any]
Result = TypeVar("Result")

# Payloads of an execute_reply act on the frontend, so a guest may send only these.
_PAYLOADS = frozenset({"page", "set_next_input", "ask_exit"})

_COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")


class StorageFull(ValueError):
    """A guest has stored more than it may, in a way that only a hostile one finds."""


class SandboxKernel(Kernel):
    """CPython in a sandboxed guest process, behind the Jupyter protocol."""

    implementation = "kernelmcp"
    banner = "Python in a sandbox (kernelmcp)"
    language_info: ClassVar[Content] = {
        "name": "python",
        "version": "3.14.0",
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
    }
    _execute_sleep = 0.0  # ipykernel sleeps here so that output is flushed; ours is queued before the reply

    # What the launcher started before the imports; under IPKernelApp there is none.
    early_berth: ClassVar[Berth | None] = None
    early_guest: ClassVar[Spawned | None] = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for message in _COMM_MESSAGES:
            self.shell_handlers[message] = self.comm_message
        for message in ("create_subshell_request", "delete_subshell_request", "list_subshell_request"):
            self.control_handlers[message] = self.refuse_subshell
        self._history = History()
        self._relay = Relay(self._publish)
        self._berth = self.early_berth or open_berth()
        self._cell: Cell | None = None
        self._allow_stdin = False
        self._installs = Installs(self._relay, self._mount)
        self._calls = HostCalls(
            {
                "input": self._input,
                "install": self._installs.answer,
                "fetch": Network(settings().network).fetch,
            }
        )
        self._remarks: Content = {}  # for the metadata of the execute_reply
        self._closed = False

    @property
    def kernel_info(self) -> Content:
        # The inherited property imports debugpy: 90 ms and 8 MB.
        return {
            "protocol_version": "5.4",
            "implementation": self.implementation,
            "implementation_version": version("kernelmcp"),
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": [],
            "supported_features": [],
        }

    # -- life

    def start(self) -> None:
        """Called by the application once the sockets are there, before its event loop runs."""
        super().start()
        self.io_loop.add_callback(self._open)

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slot = GuestSlot(self._berth, self._on_frame, self.log, self.early_guest)
        self._storage = StorageWatch(
            self._berth.path, settings().quota, lambda: self._cell is not None, self._end_guest
        )

    async def do_shutdown(self, restart: bool) -> Content:
        """shutdown_request (control thread)."""
        self.close()
        return {"status": "ok", "restart": restart}

    async def _progressively_terminate_all_children(self) -> None:
        """ipykernel looks for children through psutil (30 ms); ours is the guest, which do_shutdown has ended."""

    def close(self) -> None:
        """End the guest and give up the berth. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_slot"):
            self._slot.close()
            self._loop.call_soon_threadsafe(self._storage.close)
        self._berth.close()

    async def interrupt_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """interrupt_request (control thread)."""
        self._slot.interrupt()
        self._loop.call_soon_threadsafe(self._calls.cancel)
        self.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """After an error: abort the requests that are queued now. With its shell thread, ipykernel does it well;
        without (which saves a hop for every message), it forgets them one turn of the event loop too early."""
        if self.shell_channel_thread is not None:
            super()._abort_queues(subshell_id)
            return
        self._aborting = True
        self.shell_stream.flush()  # takes in what has arrived; each message then waits for the lock, in order
        self._resuming = asyncio.ensure_future(self._stop_aborting())

    async def _stop_aborting(self) -> None:
        async with self._main_asyncio_lock:
            self._aborting = False

    async def refuse_subshell(self, stream: Any, ident: Any, parent: Content) -> None:
        """A guest has one thread, so it has no subshells; kernel_info does not offer them."""
        reply = parent["header"]["msg_type"].replace("_request", "_reply")
        text = "this kernel has no subshells: its code runs in one thread"
        content = {"status": "error", "ename": "NotImplementedError", "evalue": text, "traceback": [text]}
        self.session.send(stream, reply, content, parent, ident=ident)

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
        """execute_request: run a cell in the guest. A guest that ends meanwhile makes an error reply that says so."""
        count = self.execution_count
        store_history = store_history and not silent
        self._remarks = {}
        # Captured here: the callbacks that send a cell's output run in another context than its request.
        ident = self._get_shell_context_var(self._shell_parent_ident)
        cell = self._cell = Cell(self.get_parent("shell"), ident, silent)
        self._allow_stdin = allow_stdin
        request = {
            "code": code,
            "silent": bool(silent),
            "store_history": store_history,
            "user_expressions": user_expressions or {},
            "allow_stdin": allow_stdin,
            "execution_count": count,
        }
        request_id = new_request_id()
        self._relay.open(request_id, cell)
        limit = CpuLimit(_cpu_seconds(cell_meta))
        try:
            _check_request(request)
            if store_history:
                self._history.add(count, code)
            reply = _checked_reply(await self._on_loop(self._run(request, request_id, limit)))
            self._report_earlier_loss(cell)
        except (GuestDied, ValueError) as error:
            reply = self._failure(cell, error)
        except Exception:
            self.log.exception("an execution failed in the kernel process")
            reply = self._failure(cell, ValueError("the kernel could not run this cell; its log says why"))
        finally:
            self._report_limit(cell, limit)
            self._cell = None
            self._calls.cancel()
            self._relay.finish(cell)
        if cell.files:
            self._remarks["files"] = list(cell.files)
        if not store_history and not silent:
            self.execution_count -= 1  # ipykernel has counted it already
        return {**reply, "execution_count": count}

    async def _run(self, request: Content, request_id: str, limit: CpuLimit) -> Content:
        if (reason := await self._storage.refusal()) is not None:
            raise StorageFull(
                f"{reason}. Nothing runs until some are deleted from outside "
                "(reset_workspace with scope 'files' deletes them all)."
            )
        self._storage.poke()
        return await self._slot.request("execute", request, request_id, limit)

    def _end_guest(self, reason: str) -> None:
        if self._slot.guest.used:
            self._slot.guest.kill(reason)

    def _failure(self, cell: Cell, error: GuestDied | ValueError) -> Content:
        """A cell that got no reply from its guest."""
        if isinstance(error, GuestDied):
            self._note_loss(str(error))
            self._slot.told = True
            text = f"The sandbox process ended: {error}. Its variables are lost; files are kept."
        else:
            text = str(error)
        content: Content = {
            "ename": type(error).__name__,
            "evalue": text,
            "traceback": [f"{type(error).__name__}: {text}"],
        }
        if not cell.silent:
            self._publish("error", content, {}, cell.parent)
        return {"status": "error", **content, "user_expressions": {}, "payload": []}

    def _report_earlier_loss(self, cell: Cell) -> None:
        """The first cell in a fresh guest is marked; when nobody was told of the loss, it is said in words, too."""
        reason = self._slot.lost
        if reason is None:
            return
        self._slot.lost = None
        self._note_loss(reason)
        if self._slot.lost_unseen and not cell.silent:
            text = f"[kernelmcp] the sandbox process had ended ({reason}); earlier variables are lost\n"
            self._publish("stream", {"name": "stderr", "text": text}, {}, cell.parent)

    def _note_loss(self, reason: str) -> None:
        self._remarks |= {"state_lost": True, "reason": reason}

    def _report_limit(self, cell: Cell, limit: CpuLimit) -> None:
        if not limit.exceeded:
            return
        self._remarks["limit"] = "cpu_seconds"
        if not cell.silent:
            text = f"[kernelmcp] the cell {limit.text}\n"
            self._publish("stream", {"name": "stderr", "text": text}, {}, cell.parent)

    def finish_metadata(self, parent: Content, metadata: Content, reply_content: Content) -> Content:
        """The metadata of the execute_reply."""
        return {**metadata, "kernelmcp": self._remarks} if self._remarks else metadata

    async def do_complete(self, code: str, cursor_pos: int | None) -> Content:
        """complete_request."""
        position = len(code) if cursor_pos is None else cursor_pos
        nothing: Content = {"matches": [], "cursor_start": position, "cursor_end": position, "metadata": {}}
        return await self._ask("complete", {"code": code, "cursor_pos": position}, nothing)

    async def do_inspect(
        self, code: str, cursor_pos: int | None, detail_level: int = 0, omit_sections: tuple[str, ...] = ()
    ) -> Content:
        """inspect_request."""
        position = len(code) if cursor_pos is None else cursor_pos
        nothing: Content = {"found": False, "data": {}, "metadata": {}}
        return await self._ask("inspect", {"code": code, "cursor_pos": position, "detail_level": detail_level}, nothing)

    async def do_is_complete(self, code: str) -> Content:
        """is_complete_request."""
        return await self._ask("is_complete", {"code": code}, {"status": "unknown"})

    async def do_history(
        self,
        hist_access_type: str,
        output: bool,
        raw: bool,
        session: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,
    ) -> Content:
        """history_request. Outputs are not kept: with `output`, each input is paired with None."""
        if hist_access_type == "tail":
            found = self._history.tail(n or 10)
        elif hist_access_type == "range":
            found = self._history.range(start or 0, stop)
        else:
            found = self._history.search(Search(pattern or "*", n, unique))
        return {"status": "ok", "history": [(s, line, (code, None) if output else code) for s, line, code in found]}

    async def comm_message(self, stream: Any, ident: Any, parent: Content) -> None:
        """comm_open, comm_msg and comm_close from the frontend."""
        content = {
            "msg_type": parent["header"]["msg_type"],
            "content": parent["content"],
            "metadata": parent["metadata"],
        }
        await self._ask("comm_message", content, {})

    async def comm_info_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """comm_info_request."""
        target = parent["content"].get("target_name") or None
        reply = await self._ask("comm_info", {"target_name": target}, {"comms": {}})
        self.session.send(stream, "comm_info_reply", {"status": "ok", **reply}, parent, ident=ident)

    # -- the guest

    async def _ask(self, op: str, content: Content, otherwise: Content) -> Content:
        """A request that is not a cell: a guest that fails makes an empty answer."""
        try:
            reply = await self._on_loop(self._slot.request(op, content, new_request_id()))
        except (GuestDied, ValueError) as error:
            self.log.warning("%s failed: %s", op, error)
            return {"status": "ok", **otherwise}
        return reply if reply.get("status") != "error" else {"status": "ok", **otherwise}

    async def _on_loop(self, request: Coroutine[Any, Any, Result]) -> Result:
        """Run on the main loop, also when the request came in on the control thread."""
        if asyncio.get_running_loop() is self._loop:
            return await request
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, self._loop))

    def _on_frame(self, frame: Frame) -> None:
        """A frame from the guest that is not the reply to a request."""
        guest = self._slot.guest
        if frame.type != "call":
            self._relay.output(frame)
        elif frame.id == guest.current_id and guest.busy:
            self._calls.start(guest, frame.content, self._cell)

    async def _input(self, call: Content, cell: Cell) -> str:
        """input(): ask the frontend, until it answers or the cell has ended."""
        if not self._allow_stdin:
            raise HostCallError("this frontend does not support input requests")
        request = {"prompt": str(call.get("prompt", ""))[:10_000], "password": bool(call.get("password"))}
        return await read_line(cast(Session, self.session), self.stdin_socket, request, cell.parent, cell.ident)

    def _mount(self, packages: list[dict[str, str]]) -> None:
        self._slot.mount(packages)

    def _publish(self, message: str, content: Content, metadata: Content, parent: Content) -> None:
        self.session.send(
            self.iopub_socket, message, content, parent, ident=self._topic(message), metadata=metadata or None
        )


def _check_request(request: Content) -> None:
    """Raises ValueError for what no client of the protocol sends."""
    if not isinstance(request["code"], str):
        raise ValueError("the code of an execute_request must be text")
    if not isinstance(request["user_expressions"], dict):
        raise ValueError("the user_expressions of an execute_request must be an object")


def _cpu_seconds(metadata: Content | None) -> float | None:
    """The limit of one execution: the request's own (`{"kernelmcp": {"cpu_seconds": 10}}` in its metadata), else this
    kernel's."""
    ours: Any = (metadata or {}).get("kernelmcp")
    if not isinstance(ours, dict) or "cpu_seconds" not in ours:
        return settings().cpu_seconds
    seconds: Any = cast("Content", ours)["cpu_seconds"]
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _checked_reply(reply: Content) -> Content:
    """The guest's execute_reply, reduced to what a reply may hold."""
    sent: Any = reply.get("payload")
    payload: list[Any] = [
        item for item in cast("list[Any]", sent if isinstance(sent, list) else []) if isinstance(item, dict)
    ]
    payload = [item for item in payload if str(cast("Content", item).get("source")) in _PAYLOADS]
    expressions = reply.get("user_expressions")
    rest: Content = {"user_expressions": expressions if isinstance(expressions, dict) else {}, "payload": payload}
    if reply.get("status") == "ok":
        return {"status": "ok", **rest}
    error = error_content(reply) or {
        "ename": "GuestFault",
        "evalue": "the guest sent a malformed reply",
        "traceback": [],
    }
    return {"status": "error", **error, **rest}
