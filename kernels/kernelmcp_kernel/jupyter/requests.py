"""Requests other than cells: completion, inspection, history, comms. If the guest fails, the answer is empty."""

# ipykernel declares its traits (session, streams) without types that a checker understands.
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import asyncio
import fnmatch
from base64 import b64encode
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from ipykernel.kernelbase import Kernel

from kernelmcp_kernel.guests.by_language import Guests
from kernelmcp_kernel.guests.cell_requests import Cell
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES
from kernelmcp_kernel.guests.guest import new_request_id
from kernelmcp_kernel.guests.host_calls import HostCallError
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.jupyter.execute_messages import header_of
from kernelmcp_kernel.jupyter.iopub import REPORT, OutputForwarder
from kernelmcp_kernel.jupyter.program_messages import checked_variables
from kernelmcp_kernel.languages import divide

Content = dict[str, Any]
Result = TypeVar("Result")

_COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")

# In base64, with some room for the rest of the message, they are as large as a frame may be.
_MAX_COMM_BUFFER_BYTES = MAX_FRAME_BYTES // 4 * 3 - 2**16

# Cells in the history; a frontend requests about 1000 of them when it opens.
_MAX_CELLS = 2000
# Characters of all these cells together.
_MAX_CHARS = 8 * 2**20
# This kernel keeps no history of earlier sessions.
_SESSION = 0

# How long a shell cell waits for Python's variables: a task that a cell left there may compute without a pause. Shorter
# than the grace of an interrupt, so that none of the shell ends Python's guest (guest.py).
_VARIABLES_SECONDS = 2.0


class History:
    """Cells in the order they ran: session, line (execution count), source. Not in the guest, so that it survives the
    guest's end."""

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int, str]] = deque()
        self._chars = 0

    def add(self, line: int, source: str) -> None:
        self.entries.append((_SESSION, line, source))
        self._chars += len(source)
        while len(self.entries) > _MAX_CELLS or self._chars > _MAX_CHARS:
            self._chars -= len(self.entries.popleft()[2])


class AnsweringKernel(Kernel):
    """Answers a frontend's requests, except those to run cells."""

    _guests: Guests
    _forwarder: OutputForwarder
    _loop: asyncio.AbstractEventLoop
    _cell: Cell | None = None
    """The cell that runs."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for message in _COMM_MESSAGES:
            self.shell_handlers[message] = self.comm_message
        for message in ("create_subshell_request", "delete_subshell_request", "list_subshell_request"):
            self.control_handlers[message] = self.refuse_subshell
        self._history = History()

    async def do_complete(self, code: str, cursor_pos: int | None) -> Content:
        """complete_request."""
        position = len(code) if cursor_pos is None else cursor_pos
        nothing: Content = {"matches": [], "cursor_start": position, "cursor_end": position, "metadata": {}}
        return await self._ask_about(code, "complete", {"cursor_pos": position}, nothing)

    async def do_inspect(
        self, code: str, cursor_pos: int | None, detail_level: int = 0, omit_sections: tuple[str, ...] = ()
    ) -> Content:
        """inspect_request."""
        position = len(code) if cursor_pos is None else cursor_pos
        nothing: Content = {"found": False, "data": {}, "metadata": {}}
        content = {"cursor_pos": position, "detail_level": detail_level}
        return await self._ask_about(code, "inspect", content, nothing)

    async def do_is_complete(self, code: str) -> Content:
        """is_complete_request."""
        return await self._ask_about(code, "is_complete", {}, {"status": "unknown"})

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
        found = list(self._history.entries)
        if hist_access_type == "tail":
            found = found[-(n or 10) :] if (n or 10) > 0 else []
        elif hist_access_type == "range":
            found = [each for each in found if each[1] >= (start or 0) and (stop is None or each[1] < stop)]
        else:
            found = [each for each in found if fnmatch.fnmatchcase(each[2], pattern or "*")]
            if unique:
                found = list({source: (session, line, source) for session, line, source in found}.values())
            found = found[-n:] if n else found
        return {"status": "ok", "history": [(s, line, (code, None) if output else code) for s, line, code in found]}

    async def shell_main(self, subshell_id: str | None, msg: list[Any]) -> None:
        """Handle a message of the shell channel; a comm message at once, even while another request is handled.

        ipykernel's sets the parent of that request again after the comm message. By then the guest, which may have been
        starting, can be at another request, and the idle status would have the wrong parent.
        """
        session: Any = self.session
        header = self._header_of(msg)
        is_comm, is_for_subshell = header.get("msg_type") in _COMM_MESSAGES, header.get("subshell_id") is not None
        if not (is_for_subshell or (is_comm and self._main_asyncio_lock.locked())):
            await super().shell_main(subshell_id, msg)
            return
        ident, frames = session.feed_identities(msg, copy=False)
        cell = Cell(session.deserialize(frames, copy=False), ident)
        if not is_comm:
            self._publish_status("busy", "shell", cell.parent)
            await self.refuse_subshell(self.shell_stream, ident, cell.parent)
            self._publish_idle_beside(cell)
        elif await self._pass_to_comm(cell):
            self.comm_handled(cell)

    def _header_of(self, msg: list[Any]) -> Content:
        """The header of a message whose signature is not checked; empty if it has none."""
        session: Any = self.session
        try:
            _, frames = session.feed_identities(msg, copy=False)
            return dict(session.unpack(frames[1].bytes))
        except (ValueError, LookupError, TypeError):
            return {}

    async def comm_message(self, stream: Any, ident: Any, parent: Content) -> None:
        """comm_open, comm_msg and comm_close from the frontend."""
        await self._pass_to_comm(Cell(parent, ident))

    async def _pass_to_comm(self, cell: Cell) -> bool:
        """Pass a comm message to the guest, even while a cell waits (perhaps for this message). Returns whether it has
        been handled: otherwise the guest will tell."""
        parent = cell.parent
        if (size := sum(each.nbytes for each in parent["buffers"])) > _MAX_COMM_BUFFER_BYTES:
            self._say_of_comm(
                cell, f"this message of {-(-size >> 20)} MB is larger than the 47 MB that a widget may send"
            )
            self._forwarder.finish(cell)
            return True
        content = {
            "msg_type": parent["header"]["msg_type"],
            "content": parent["content"],
            "metadata": parent["metadata"],
            "buffers": [b64encode(each).decode() for each in parent["buffers"]],
            "parent": header_of(parent),
        }
        cell.parent = {**parent, "content": {}, "buffers": []}  # it is kept, perhaps for long
        request_id = new_request_id()
        if (given_up := self._forwarder.open_comm(request_id, cell)) is not None:
            self.comm_handled(given_up)
        try:
            if await self._on_loop(self._notify("comm_message", content, request_id)):
                return False
            await self._on_loop(self._guests.main.request("comm_message", content, request_id))
        except GuestDied as error:
            self.log.warning("comm_message failed: %s", error)
        except ValueError as error:  # larger than a frame, for example
            self._say_of_comm(cell, f"a message of a widget was not passed on: {error}")
        self._forwarder.finish(cell)
        return True

    async def _notify(self, op: str, content: Content, request_id: str) -> bool:
        return self._guests.main.notify(op, content, request_id)

    def comm_handled(self, cell: Cell) -> None:
        """A comm message was handled beside another request. Until its idle status, a widget sends no other one."""
        self._forwarder.finish(cell)
        self._publish_idle_beside(cell)

    def _publish_idle_beside(self, cell: Cell) -> None:
        self._publish_status("idle", "shell", cell.parent)
        if self._cell is not None:  # clients show the newest status
            self._publish_status("busy", "shell", self._cell.parent)

    def _say_of_comm(self, cell: Cell, text: str) -> None:
        self._forwarder.publish("stream", {"name": "stderr", "text": f"{REPORT} {text}\n"}, {}, cell.parent)

    async def comm_info_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """comm_info_request."""
        target = parent["content"].get("target_name") or None
        reply = await self._ask("comm_info", {"target_name": target}, {"comms": {}})
        self.session.send(stream, "comm_info_reply", {"status": "ok", **reply}, parent, ident=ident)

    async def refuse_subshell(self, stream: Any, ident: Any, parent: Content) -> None:
        """A guest has one thread, so it has no subshells; kernel_info does not offer them."""
        reply = parent["header"]["msg_type"].replace("_request", "_reply")
        text = "this kernel has no subshells: its code runs in one thread"
        content = {"status": "error", "ename": "NotImplementedError", "evalue": text, "traceback": [text]}
        self.session.send(stream, reply, content, parent, ident=ident)

    async def _ask_about(self, code: str, op: str, content: Content, otherwise: Content) -> Content:
        """Send a request about a cell to the guest of its language, if that guest runs; `offset`, where the cell's text
        begins, is omitted if 0."""
        part = divide(str(code))  # a client may send anything
        if not part.offset:
            return await self._ask(op, {"code": code, **content}, otherwise)
        if (supervisor := self._guests.running(part.language)) is None:
            return {"status": "ok", **otherwise}
        located = {"code": code, **content, "offset": part.offset}
        return await self._ask(op, located, otherwise, supervisor=supervisor)

    async def _ask(
        self,
        op: str,
        content: Content,
        otherwise: Content,
        supervisor: GuestSupervisor | None = None,
    ) -> Content:
        """Make a request other than a cell, by default to the main language's guest. If the guest fails, returns
        `otherwise`."""
        asked = supervisor or self._guests.main
        try:
            reply = await self._on_loop(asked.request(op, content, new_request_id()))
        except (GuestDied, ValueError) as error:
            self.log.warning("%s failed: %s", op, error)
            return {"status": "ok", **otherwise}
        return reply if reply.get("status") != "error" else {"status": "ok", **otherwise}

    async def _python_variables(self) -> Content | None:
        """The environment variables that Python's code has changed. None: it has run nothing, or gives no answer."""
        guest = self._guests.main.guest
        if not guest.used or guest.death is not None:
            return None
        try:
            async with asyncio.timeout(_VARIABLES_SECONDS):
                found = await self._ask("environment", {}, {})
            return checked_variables(found) if "environment" in found else None
        except (TimeoutError, HostCallError):  # a guest's answer may say anything
            return None

    async def _on_loop(self, request: Coroutine[Any, Any, Result]) -> Result:
        """Run on the main loop, even if the request came in on the control thread."""
        if asyncio.get_running_loop() is self._loop:
            return await request
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, self._loop))
