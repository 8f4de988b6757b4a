"""What a kernel publishes is read under caps: nothing of a guest's fills the memory, nothing odd ends the reading."""

import asyncio
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.session import Session

from kernelmcp.lab.record import iopub as iopub_module
from kernelmcp.lab.record.iopub import MAX_EXECUTION_BYTES, Event, Iopub

KEY = b"secret"
DEADLINE_SECONDS = 60


def request(msg_id: str, client: str = "server", kind: str = "execute_request") -> dict[str, Any]:
    return {"msg_id": msg_id, "session": client, "msg_type": kind, "username": "", "version": "5.3"}


def read(folder: Path, *messages: tuple[str, Any, dict[str, Any]] | list[bytes], last: str = "last") -> list[Event]:
    """The events of these messages, up to the end of the execution `last`."""

    async def run() -> list[Event]:
        context = zmq.asyncio.Context()
        url = f"ipc://{folder}/iopub"
        kernel = context.socket(zmq.XPUB)
        kernel.linger = 0
        kernel.bind(url)
        reader = Iopub(context, url, KEY, "hmac-sha256", lambda client: client != "browser")
        reading = asyncio.create_task(reader.read())
        wire = Session(key=KEY)
        found: list[Event] = []
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await kernel.recv()  # the subscription
                for message in [*messages, ("status", {"execution_state": "idle"}, request(last))]:
                    if isinstance(message, tuple):
                        kind, content, parent = message
                        message = wire.serialize(wire.msg(kind, content, parent={"header": parent}))
                    await kernel.send_multipart(message)
                while not any(event.kind == "end" and event.execution_id == last for event in found):
                    await reader.wait()
                    found += reader.take()
        finally:
            reading.cancel()
            reader.close()
            context.destroy(linger=0)
        return found

    return asyncio.run(run())


def test_messages_of_recorded_executions_come_in_their_order(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        ("status", {"execution_state": "busy"}, request("last")),
        ("execute_input", {"code": "x", "execution_count": 1}, request("last")),
        ("stream", {"name": "stdout", "text": "a"}, request("last")),
        ("stream", {"name": "stdout", "text": "of a browser"}, request("b", "browser")),
        ("status", {"execution_state": "idle"}, request("b", "browser")),
        ("status", {"execution_state": "idle"}, request("k", "server", "kernel_info_request")),
        ("unknown", {}, request("last")),
    )
    assert [(event.kind, event.execution_id) for event in found] == [
        ("execute_input", "last"),
        ("stream", "last"),
        ("end", "last"),
    ]


def test_what_is_not_signed_or_not_the_protocol_is_as_if_it_had_not_come(tmp_path: Path) -> None:
    wire = Session(key=b"another key")
    forged = wire.serialize(wire.msg("stream", {"text": "forged"}, parent={"header": request("last")}))
    found = read(
        tmp_path,
        forged,
        [b"garbage"],
        [b"<IDS|MSG>", b"", b"{", b"{", b"{", b"{"],
        ("stream", b"[1, 2]", request("last")),
        ("status", {"execution_state": ["idle"]}, request("last")),
        ("stream", {"text": "x"}, {"msg_id": 7, "msg_type": "execute_request"}),
        ("stream", {"text": "x"}, {}),
    )
    assert [event.content for event in found if event.kind == "stream"] == [{}]
    assert found[-1].kind == "end"


def test_more_than_an_execution_may_show_is_dropped_unread(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(iopub_module, "MAX_EXECUTION_BYTES", 100_000)
    flood = ("stream", {"name": "stdout", "text": "x" * 10_000}, request("last"))
    small = ("stream", {"name": "stdout", "text": "y"}, request("other"))
    found = read(tmp_path, *[flood] * 500, small)
    assert sum(len(str(event.content)) for event in found) <= 100_000
    assert [event.kind for event in found].count("left_out") < 500
    assert found[-2].content["text"] == "y"
    assert MAX_EXECUTION_BYTES >= 4 * 1024 * 1024


def test_a_flood_of_empty_messages_is_bounded_too(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(iopub_module, "MAX_EXECUTION_BYTES", 20_000)
    found = read(tmp_path, *[("clear_output", {}, request("last"))] * 2000)
    assert [event.kind for event in found].count("clear_output") <= 100
    assert found[-1].kind == "end"


def test_a_message_that_would_fill_the_memory_when_read_is_left_out(tmp_path: Path) -> None:
    bomb = {"data": {"application/json": [[]] * 200_000}}
    found = read(tmp_path, ("display_data", bomb, request("last")))
    assert [event.kind for event in found] == ["left_out", "end"]
