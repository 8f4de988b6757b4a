"""A Jupyter client that offers tools to a kernel and answers the calls, as a server does."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.session import Session

from .driver import DEADLINE, Kernel, wait_until

Message = dict[str, Any]
Tool = Callable[[dict[str, Any]], Any]
"""Takes the arguments; gives a result, an error as {"error": ...}, JSON as bytes, or SILENT."""

SILENT = object()

POLL_SECONDS = 0.02


def structured(value: Any) -> Message:
    return {"content": [], "structuredContent": value}


def text(*texts: str) -> Message:
    return {"content": [{"type": "text", "text": each} for each in texts]}


def failed(kind: str, message: str) -> Message:
    return {"error": {"kind": kind, "message": message}}


class Offerer:
    """Answers in a thread of its own. `tools`: by "server.tool"."""

    def __init__(self, client: BlockingKernelClient, tools: dict[str, Tool]) -> None:
        self.tools = tools
        self.requests: list[Message] = []
        self.cancelled: list[int] = []
        self.replies: list[Message] = []
        connection: Any = client.get_connection_info()
        own: Any = client.session
        self.session = Session(key=own.key, signature_scheme=own.signature_scheme)
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(f"ipc://{connection['ip']}-{connection['control_port']}")
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def calls(self) -> list[Message]:
        return [call for request in self.requests for call in request["content"]["calls"]]

    def offer(self, folder: Path | None = None, servers: list[str] | None = None, **content: Any) -> Message:
        """Offer, by default every server of `tools`; the reply's content."""
        names = sorted({name.partition(".")[0] for name in self.tools}) if servers is None else servers
        whole = {"digest": "x", "folder": str(folder), "servers": names, "concurrent_calls": 24, **content}
        return self.ask("tools_offer_request", whole)

    def ask(self, kind: str, content: Message) -> Message:
        message = self.session.msg(kind, content)
        self.send(message)

        def found() -> Message | None:
            return next((m for m in self.replies if m["parent_header"]["msg_id"] == message["msg_id"]), None)

        assert wait_until(lambda: found() is not None)
        reply = found()
        assert reply is not None
        return reply["content"]

    def send(self, message: Message, buffers: list[bytes] | None = None) -> None:
        with self._lock:
            self.session.send(self.socket, message, buffers=[*(buffers or [])])

    def reply(self, *replies: Message, buffers: list[bytes] | None = None) -> None:
        self.send(self.session.msg("tool_reply", {"replies": list(replies)}), buffers)

    def close(self) -> None:
        self._end.set()
        self._thread.join(DEADLINE)
        self.socket.close()
        self._context.term()

    def _serve(self) -> None:
        while not self._end.is_set():
            if (parts := self._receive()) is None:
                # Two threads use the socket, each under the lock. Its descriptor may be looked at without; it says
                # nothing of what the other thread's send has noticed.
                select.select([self.socket.fileno()], [], [], POLL_SECONDS)
                continue
            message = self.session.deserialize(self.session.feed_identities(parts)[1])
            if message["msg_type"] == "tool_request":
                self.requests.append(message)
                self._answer(message["content"]["calls"])
            elif message["msg_type"] == "tool_cancel":
                self.cancelled += message["content"]["ids"]
            else:
                self.replies.append(message)

    def _receive(self) -> list[bytes] | None:
        with self._lock, suppress(zmq.Again):
            return self.socket.recv_multipart(zmq.NOBLOCK)
        return None

    def _answer(self, calls: list[Message]) -> None:
        replies: list[Message] = []
        buffers: list[bytes] = []
        for call in calls:
            answer = self.tools[f"{call['server']}.{call['tool']}"](call["arguments"])
            if answer is SILENT:
                continue
            if isinstance(answer, bytes):
                replies.append({"id": call["id"], "buffer": len(buffers)})
                buffers.append(answer)
            elif "error" in answer:
                replies.append({"id": call["id"], **answer})
            else:
                replies.append({"id": call["id"], "result": answer})
        if replies:
            self.reply(*replies, buffers=buffers)


@contextmanager
def offering(kernel: Kernel, folder: Path, tools: dict[str, Tool], **content: Any) -> Iterator[Offerer]:
    """Offer tools, with the files in a folder, for as long as the block lasts."""
    offerer = Offerer(kernel.client, tools)
    try:
        assert offerer.offer(folder, **content) == {"status": "ok"}
        yield offerer
        offerer.offer(servers=[])
    finally:
        offerer.close()
