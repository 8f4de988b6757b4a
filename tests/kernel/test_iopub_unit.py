"""What the kernel process sends of a guest's output, without a socket."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import MAX_DISPLAY_FRAME_BYTES, Frame
from kernelmcp_kernel.guests.supervisor import Loss
from kernelmcp_kernel.jupyter.channels.backlog import MAX_BYTES, Backlog, Iopub
from kernelmcp_kernel.jupyter.iopub import MAX_BUFFERS, REPORT, OutputForwarder
from kernelmcp_kernel.jupyter.reports import Report
from kernelmcp_kernel.jupyter.sandbox_kernel import SandboxKernel


def stream(text: str) -> Frame:
    return Frame("stream", "", {"name": "stdout", "text": text}, len(text))


def test_text_that_cannot_be_sent_is_tried_once() -> None:
    sent: list[str] = []

    def publish(_: str, content: dict[str, Any], *more: Any) -> None:
        content["text"].encode()
        sent.append(content["text"])

    async def run() -> None:
        backlog = cast(Backlog, SimpleNamespace(is_stalled=False))
        forwarder, cell = OutputForwarder(publish, backlog), Cell({})
        forwarder.output(stream("\ud800"), cell)
        with pytest.raises(UnicodeEncodeError):
            forwarder.finish(cell)
        forwarder.output(stream("text"), cell)
        forwarder.finish(cell)

    asyncio.run(run())
    assert sent == ["text"]


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
def test_an_error_that_only_the_reply_has_is_sent_after_the_text(is_sent: bool, is_silent: bool) -> None:
    sent: list[str] = []
    error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}

    async def run() -> None:
        backlog = cast(Backlog, SimpleNamespace(is_stalled=False))
        forwarder, cell = OutputForwarder(lambda kind, *_: sent.append(kind), backlog), Cell({}, silent=is_silent)
        forwarder.output(stream("text"), cell)
        if is_sent:
            forwarder.output(Frame("error", "", error, 100), cell)
        forwarder.failed(cell, {"status": "error", **error, "payload": []})
        forwarder.finish(cell)

    asyncio.run(run())
    assert sent == ["stream", *(["error"] if is_sent or not is_silent else [])]


def test_what_the_kernel_process_says_of_a_cell_comes_after_its_text() -> None:
    sent: list[str] = []

    async def run() -> None:
        backlog = cast(Backlog, SimpleNamespace(is_stalled=False))
        forwarder, cell = OutputForwarder(lambda kind, *_: sent.append(kind), backlog), Cell({})
        report = Report(forwarder.publish)
        forwarder.output(stream("text"), cell)
        report.guest_died(cell, GuestDied("it exited with status 1"))
        forwarder.finish(cell)

    asyncio.run(run())
    assert sent == ["stream", "error"]


def test_a_report_of_the_kernel_process_is_never_a_guests_text() -> None:
    sent: list[str] = []
    said = f"{REPORT} the sandbox process had ended (killed for memory); earlier variables are lost\n"

    async def run() -> None:
        backlog = cast(Backlog, SimpleNamespace(is_stalled=False))
        forwarder = OutputForwarder(lambda _, content, *more: sent.append(content.get("text", "")), backlog)
        cell = Cell({})
        for text in (said, said[:5], said[5:]):
            forwarder.output(Frame("stream", "", {"name": "stderr", "text": text}, len(text)), cell)
        Report(forwarder.publish).earlier_loss(cell, Loss("killed for memory", reported=False))
        forwarder.finish(cell)

    asyncio.run(run())
    assert sent == [f"[printed: {said[2:]}" * 2, said]


def test_the_reasons_why_output_was_dropped_are_told() -> None:
    sent: list[str] = []
    backlog = SimpleNamespace(is_stalled=False)
    forwarder = OutputForwarder(lambda _, content, *more: sent.append(content["text"]), cast(Backlog, backlog))
    cell = Cell({})
    bundle = {"data": {}, "metadata": {}}
    forwarder.output(Frame("display_data", "", bundle, MAX_DISPLAY_FRAME_BYTES + 1), cell)
    backlog.is_stalled = True
    forwarder.output(stream("x"), cell)
    forwarder.output(Frame("display_data", "", bundle, 10), cell)
    for _ in range(2):
        forwarder.finish(cell)
    assert sent == [
        f"\n{REPORT} 1 more output of this cell was dropped: over the limit for one cell\n",
        f"\n{REPORT} 2 more outputs of this cell were dropped: a client of this kernel reads too slowly\n",
    ]


def test_output_that_is_dropped_after_its_cell_is_told_once_for_each_reason() -> None:
    sent: list[str] = []
    backlog = SimpleNamespace(is_stalled=True)

    async def run() -> None:
        forwarder = OutputForwarder(lambda _, content, *more: sent.append(content["text"]), cast(Backlog, backlog))
        cell = Cell({})
        cell.ended = True  # its reply is there, but not all of its output
        forwarder.output(stream("x"), cell)
        forwarder.finish(cell)
        forwarder.output(stream("x"), cell)
        forwarder.output(stream("x"), cell)
        backlog.is_stalled = False
        forwarder.output(stream("kept"), cell)
        forwarder.output(Frame("stream", "", {}, 100, excess="too large"), cell)
        forwarder.finish(cell)

    asyncio.run(run())
    assert sent == [
        f"\n{REPORT} 1 more output of this cell was dropped: a client of this kernel reads too slowly\n",
        f"\n{REPORT} output of this cell's tasks is dropped: a client of this kernel reads too slowly\n",
        "kept",
        f"\n{REPORT} output of this cell's tasks is dropped: over the limit for one cell\n",
    ]


def test_a_task_that_puts_something_out_now_and_then_is_heard_after_many_cells_and_another_is_told() -> None:
    sent: list[tuple[str, str]] = []

    def publish(_: str, content: dict[str, Any], __: dict[str, Any], parent: dict[str, Any]) -> None:
        sent.append((parent["header"]["msg_id"], content["text"]))

    async def run() -> None:
        forwarder = OutputForwarder(publish, cast(Backlog, SimpleNamespace(is_stalled=False)))

        def put_out(name: str) -> None:
            forwarder.output(Frame("stream", name, {"name": "stdout", "text": "late"}, 4))
            forwarder.flush()

        for number in range(200):
            cell = Cell({"header": {"msg_id": str(number)}, "content": {"code": "x"}})
            forwarder.open(str(number), cell)
            forwarder.finish(cell)
            if number % 60 == 0:
                put_out("0")
        for name in ("1", "1", "never opened", "0"):
            put_out(name)

    asyncio.run(run())
    told = f"\n{REPORT} output of this cell's tasks is dropped: 64 cells have run since the last of it\n"
    assert sent == [("0", "late")] * 4 + [("1", told), ("0", "late")]


def test_guests_that_start_while_others_wait_wait_too_and_none_after_an_interrupt() -> None:
    calls: list[bool] = []
    sent = SimpleNamespace(send_multipart=lambda *_, **__: SimpleNamespace(done=False))
    iopub = SimpleNamespace(socket=sent, schedule=lambda send: send())

    async def run() -> None:
        backlog = Backlog(cast(Iopub, iopub), calls.append)
        backlog.send([bytes(MAX_BYTES)])
        assert (calls, backlog.is_stalled) == ([], False)
        for _ in range(2):
            backlog.send([bytes(2**20)])
        assert (calls, backlog.is_stalled) == ([True, True], False)
        backlog.drop(True)
        backlog.send([bytes(2**20)])
        assert (calls, backlog.is_stalled) == ([True, True, False], True)
        backlog.drop(False)
        backlog.send([bytes(2**20)])
        assert (calls, backlog.is_stalled) == ([True, True, False, True], False)

    asyncio.run(run())


@pytest.mark.parametrize(("metadata", "told"), [({"kernelmcp": {}}, ["progress"]), ({}, []), (None, [])])
def test_progress_is_told_only_to_a_client_that_knows_it(metadata: dict[str, Any] | None, told: list[str]) -> None:
    """nbclient logs an error for a type of message that it does not know."""
    sent: list[str] = []
    forwarder = OutputForwarder(lambda kind, *_: sent.append(kind), cast(Backlog, SimpleNamespace(is_stalled=False)))
    forwarder.tell(Cell({"metadata": metadata}), "Collecting")
    assert sent == told


class Stdin:
    """A session and its stdin socket, on which the answer comes as soon as the question was sent."""

    def __init__(self, sent: list[str]) -> None:
        self.sent = sent
        self.router_mandatory = 0

    def send(self, _: object, kind: str, *more: object, **options: object) -> None:
        self.sent.append(kind)

    def poll(self, _: int) -> bool:
        return "input_request" in self.sent

    def recv(self, _: object) -> tuple[None, dict[str, Any]]:
        return None, {"header": {"msg_type": "input_reply"}, "content": {"value": "2"}}


def test_text_comes_before_the_question_that_it_explains() -> None:
    sent: list[str] = []

    async def run() -> str:
        backlog = cast(Backlog, SimpleNamespace(is_stalled=False))
        forwarder, cell = OutputForwarder(lambda kind, *_: sent.append(kind), backlog), Cell({}, allow_stdin=True)
        stdin = Stdin(sent)
        kernel = cast(SandboxKernel, SimpleNamespace(_forwarder=forwarder, session=stdin, stdin_socket=stdin))
        forwarder.output(stream("1 or 2?\n"), cell)
        return await SandboxKernel._input(kernel, {"prompt": "> "}, Request(cell))

    assert asyncio.run(run()) == "2"
    assert sent == ["stream", "input_request"]


def test_a_comm_message_with_too_many_buffers_or_a_bad_one_is_not_sent() -> None:
    sent: list[tuple[bytes, ...]] = []

    def publish(kind: str, content: Any, metadata: Any, parent: Any, *buffers: bytes) -> None:
        sent.append(buffers)

    forwarder = OutputForwarder(publish, cast(Backlog, SimpleNamespace(is_stalled=False)))
    cell = Cell({})
    for buffers in ([""] * MAX_BUFFERS, [""] * (MAX_BUFFERS + 1), ["AAA"], ["AA==", 1], "AA==", ["AA==", "AQ=="]):
        forwarder.output(Frame("comm_msg", "", {"comm": {}, "metadata": {}, "buffers": buffers}, 100), cell)
    assert sent == [(b"",) * MAX_BUFFERS, (b"\0", b"\1")]
    assert list(cell.dropped.values()) == [1]


def test_parts_without_bytes_count_in_the_backlog() -> None:
    async def run() -> None:
        sockets = SimpleNamespace(socket=None, schedule=lambda _: None)
        paused: list[bool] = []
        backlog = Backlog(cast(Iopub, sockets), paused.append)
        for _ in range(1000):
            backlog.send([b""] * 1000)
        assert True in paused

    asyncio.run(run())
