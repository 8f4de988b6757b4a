"""Comm messages that arrive while another request is handled: what the kernel's clients are told of both."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from itertools import groupby
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
import zmq
from jupyter_client.session import DELIM, Session

from kernelmcp_kernel.guests.by_language import Guests
from kernelmcp_kernel.guests.cell_requests import Cell
from kernelmcp_kernel.guests.frames import MAX_FRAME_BYTES, encode_frame
from kernelmcp_kernel.jupyter.channels.backlog import Backlog
from kernelmcp_kernel.jupyter.channels.kernel_session import KernelSession
from kernelmcp_kernel.jupyter.iopub import REPORT, OutputForwarder
from kernelmcp_kernel.jupyter.requests import AnsweringKernel

pytestmark = pytest.mark.anyio
KEY = b"key"


class Sent:
    """A socket that keeps what is sent on it: type, parent, content."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, dict[str, Any]]] = []

    def send_multipart(self, parts: list[bytes], copy: bool = True) -> None:
        at = parts.index(DELIM)
        header, parent, _, content = (json.loads(part) for part in parts[at + 2 : at + 6])
        self.messages.append((header["msg_type"], parent["msg_id"], content))

    def statuses(self, parent: str) -> list[str]:
        return [content["execution_state"] for kind, of, content in self.messages if (kind, of) == ("status", parent)]

    def without_repeats(self, parent: str) -> list[str]:
        return [status for status, _ in groupby(self.statuses(parent))]


class Guest:
    """A guest's supervisor: takes one request at a time, each until the test ends it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.is_there = asyncio.Event()
        self.ends: dict[str, asyncio.Event] = {}
        self.busy = False
        self.notified: list[dict[str, Any]] = []

    async def request(self, op: str, content: dict[str, Any], *_: object) -> dict[str, Any]:
        async with self.lock:
            await self.is_there.wait()
            encode_frame(content)
            self.busy = True
            if op == "execute":
                await self.ends.setdefault(content["code"], asyncio.Event()).wait()
            self.busy = False
            return {"status": "ok"}

    def notify(self, op: str, content: dict[str, Any], request_id: str) -> bool:
        if self.busy:
            encode_frame(content)
            self.notified.append({**content, "id": request_id})
        return self.busy

    def end(self, code: str) -> None:
        self.ends.setdefault(code, asyncio.Event()).set()


class Kernel(AnsweringKernel):
    """Runs each cell in the guest."""

    shell_stream: Any = None

    async def do_execute(self, code: str, *_: object, **__: object) -> dict[str, Any]:
        self._cell = Cell(self.get_parent("shell"))
        try:
            return await self._guests.main.request("execute", {"code": code}, "")
        finally:
            self._cell = None


class Driven:
    """A kernel, its guest, and a client's session."""

    def __init__(self) -> None:
        self.guest, self.iopub, self.shell = Guest(), Sent(), Sent()
        self.kernel = Kernel(session=KernelSession(key=KEY), log=logging.getLogger(__name__))
        made = cast(Any, self.kernel)
        made.iopub_socket, made.shell_stream = self.iopub, self.shell
        made._guests = cast(Guests, SimpleNamespace(main=self.guest))
        self.told: list[tuple[str, str]] = []
        made._forwarder = OutputForwarder(
            self._hear,
            cast(Backlog, SimpleNamespace(is_stalled=False)),
        )
        made._loop = asyncio.get_running_loop()
        self._client = Session(key=KEY)
        self._context = copy_context()  # one for all requests, as ShellStream has it
        self._handling: list[asyncio.Task[None]] = []

    async def send(self, kind: str, name: str, content: dict[str, Any], *buffers: bytes, **header: Any) -> None:
        """Send a message with this id, and let the kernel do what it can do then."""
        message = self._client.msg(kind, content)
        message["header"] |= {"msg_id": name, "subshell_id": None, **header}
        parts = [zmq.Frame(part) for part in [*self._client.serialize(message, ident=b"client"), *buffers]]
        handled: Coroutine[Any, Any, None] = self.kernel.shell_main(None, parts)
        self._handling.append(asyncio.get_running_loop().create_task(handled, context=self._context))
        await anyio.wait_all_tasks_blocked()

    async def cell(self, name: str) -> None:
        await self.send("execute_request", name, {"code": name})

    async def comm(self, name: str, *buffers: bytes, **data: str) -> None:
        await self.send("comm_msg", name, {"comm_id": "c", "data": data}, *buffers)

    def _hear(
        self, message: str, content: dict[str, Any], metadata: dict[str, Any], parent: dict[str, Any], *buffers: bytes
    ) -> None:
        self.told.append((parent["header"]["msg_id"], content["text"]))

    def handled(self, name: str) -> None:
        """The guest tells that it has handled a message."""
        (request_id,) = [each["id"] for each in self.guest.notified if each["parent"]["msg_id"] == name]
        if (cell := self.kernel._forwarder.open_comm_of(request_id)) is not None:
            self.kernel.comm_handled(cell)

    async def do(self, action: Callable[[], object]) -> None:
        action()
        await anyio.wait_all_tasks_blocked()

    async def finish(self) -> None:
        await asyncio.gather(*self._handling)


@pytest.mark.parametrize("order", ["comm cell1 cell2", "cell1 comm cell2", "cell1 cell2 comm"])
async def test_each_cell_has_its_idle_when_a_comm_message_came_while_the_guest_started(order: str) -> None:
    driven = Driven()
    for name in order.split():
        await (driven.comm(name) if name == "comm" else driven.cell(name))
    await driven.do(driven.guest.is_there.set)
    await driven.do(lambda: driven.guest.end("cell1"))
    await driven.do(lambda: driven.guest.end("cell2"))
    await driven.finish()
    for name in ("cell1", "cell2"):
        assert driven.iopub.without_repeats(name) == ["busy", "idle"]


async def test_each_cell_has_its_idle_when_a_comm_message_is_handled_longer_than_a_cell() -> None:
    """The first cell is a shell's, for example: it needs another guest, and the message its own turn in this one."""
    driven = Driven()
    await driven.cell("cell1")
    await driven.comm("comm1")
    await driven.comm("comm2")
    await driven.cell("cell2")
    await driven.do(driven.guest.is_there.set)
    await driven.do(lambda: driven.guest.end("cell1"))
    await driven.comm("comm3")
    assert [each["parent"]["msg_id"] for each in driven.guest.notified] == ["comm3"]
    await driven.do(lambda: driven.guest.end("cell2"))
    await driven.finish()
    for name in ("cell1", "cell2"):
        assert driven.iopub.without_repeats(name) == ["busy", "idle"]


async def test_a_widget_hears_that_its_message_was_handled_beside_a_cell_and_the_cell_stays_busy() -> None:
    driven = Driven()
    await driven.cell("cell")
    await driven.comm("while it starts")
    await driven.do(driven.guest.is_there.set)
    await driven.comm("too large", text="x" * MAX_FRAME_BYTES)
    assert driven.iopub.statuses("too large") == ["idle"], "it never comes to the guest"
    assert [name for name, text in driven.told if "was not passed on" in text] == ["too large"]
    await driven.comm("noticed")
    assert driven.iopub.statuses("noticed") == [], "the guest tells when it has been handled"
    assert driven.iopub.statuses("cell") == ["busy", "busy"]
    await driven.do(lambda: driven.guest.end("cell"))
    await driven.finish()
    assert driven.iopub.statuses("while it starts") == ["idle"]
    assert driven.iopub.statuses("cell") == ["busy", "busy", "idle"]
    await driven.comm("alone")
    assert driven.iopub.statuses("alone") == ["busy", "idle"]


async def test_a_message_that_is_too_large_for_a_frame_is_told_also_when_nothing_runs() -> None:
    driven = Driven()
    driven.guest.is_there.set()
    await driven.comm("too large", text="x" * MAX_FRAME_BYTES)
    assert [name for name, text in driven.told if "was not passed on" in text] == ["too large"]
    assert driven.iopub.statuses("too large") == ["busy", "idle"]


async def test_a_request_to_a_subshell_is_refused_at_once_and_has_its_idle() -> None:
    driven = Driven()
    await driven.cell("cell")
    await driven.send("execute_request", "aside", {"code": "aside"}, subshell_id="another")
    assert driven.iopub.statuses("aside") == ["busy", "idle"]
    assert driven.iopub.statuses("cell") == ["busy", "busy"], "clients show the newest status"
    ((kind, _, content),) = driven.shell.messages
    assert (kind, content["status"], content["ename"]) == ("execute_reply", "error", "NotImplementedError")
    await driven.do(driven.guest.is_there.set)
    await driven.do(lambda: driven.guest.end("cell"))
    await driven.finish()
    assert driven.iopub.statuses("cell") == ["busy", "busy", "idle"]


async def beside_a_cell() -> Driven:
    driven = Driven()
    await driven.cell("cell")
    await driven.do(driven.guest.is_there.set)
    return driven


async def end(driven: Driven) -> None:
    await driven.do(lambda: driven.guest.end("cell"))
    await driven.finish()


async def test_an_upload_that_is_too_large_is_refused_before_it_is_encoded_and_its_user_is_told() -> None:
    driven = await beside_a_cell()
    await driven.comm("upload", bytes(MAX_FRAME_BYTES // 4 * 3 + 1))
    assert driven.guest.notified == []
    assert driven.told == [
        ("upload", f"{REPORT} this message of 49 MB is larger than the 47 MB that a widget may send\n")
    ]
    assert driven.iopub.statuses("upload") == ["idle"]
    await end(driven)


async def test_what_a_widget_has_sent_is_not_kept_for_its_late_output() -> None:
    driven = await beside_a_cell()
    await driven.comm("upload", b"x" * 10, text="y")
    (sent,) = driven.guest.notified
    assert (sent["buffers"], sent["content"]["data"]) == (["eHh4eHh4eHh4eA=="], {"text": "y"})
    kept = driven.kernel._forwarder.open_comm_of(sent["id"])
    assert kept is not None
    assert (kept.parent["content"], kept.parent["buffers"]) == ({}, [])
    await end(driven)


async def test_every_message_beside_a_cell_has_its_idle_also_the_one_given_up_because_too_many_wait() -> None:
    driven = await beside_a_cell()
    names = [f"comm{number}" for number in range(1001)]
    for name in names:
        await driven.comm(name)
    assert [name for name in names if driven.iopub.statuses(name)] == ["comm0"]
    for name in names:
        driven.handled(name)
    assert all(driven.iopub.statuses(name) == ["idle"] for name in names)
    await end(driven)


async def test_of_messages_that_were_handled_the_newest_are_kept_for_their_late_output() -> None:
    driven = await beside_a_cell()
    await driven.comm("waits")
    for number in range(100):
        await driven.comm(f"comm{number}")
        driven.handled(f"comm{number}")
    assert len(driven.kernel._forwarder._comms) == 64
    driven.handled("waits")
    assert driven.iopub.statuses("waits") == ["idle"]
    await end(driven)
