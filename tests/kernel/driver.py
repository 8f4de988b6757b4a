"""What the tests of the kernel share besides fixtures."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from ..processes import children, is_alive

# Generous: a loaded CI machine takes seconds where an idle one takes milliseconds, and there are slow ones.
DEADLINE = 120
# For what a file of tests begins with: large packages, and what reads them first.
PREPARED_SECONDS = 180
# For a kernel that has nothing else to do, and a guest that has started.
ANSWER_SECONDS = 15

# A cell after which the event loop is between two steps of a task nearly all the time, until `del loop.call_soon`.
SLOW_STEPS = """
import asyncio, time
loop = asyncio.get_event_loop()
call_soon = loop.call_soon
def call_soon_slowly(*arguments, **options):
    end = time.monotonic() + 0.03
    while time.monotonic() < end: pass
    return call_soon(*arguments, **options)
loop.call_soon = call_soon_slowly
"""

Message = dict[str, Any]


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@dataclass
class Ran:
    """What came of one cell."""

    reply: Message
    outputs: list[Message] = field(default_factory=list[Message])

    @property
    def status(self) -> str:
        return self.reply["content"]["status"]

    @property
    def error(self) -> str:
        return f"{self.reply['content'].get('ename')}: {self.reply['content'].get('evalue')}"

    @property
    def state_lost(self) -> bool:
        return self.reply["metadata"].get("kernelmcp", {}).get("state_lost", False)

    @property
    def result(self) -> str | None:
        found = [m["content"]["data"]["text/plain"] for m in self.outputs if m["msg_type"] == "execute_result"]
        return found[0] if found else None

    def text(self, name: str = "stdout") -> str:
        streams = [m["content"] for m in self.outputs if m["msg_type"] == "stream"]
        return "".join(content["text"] for content in streams if content["name"] == name)

    def kinds(self) -> list[str]:
        """The types of the outputs, in order, streams by their name."""
        return [m["content"]["name"] if m["msg_type"] == "stream" else m["msg_type"] for m in self.outputs]


class Broken(Exception):
    """A test has left a kernel that does not answer. The text says how."""


class Kernel:
    """A running kernel and a client to it. When it is broken, `replace` starts another one in its place."""

    def __init__(self, start: Callable[[], AbstractContextManager[tuple[KernelManager, BlockingKernelClient]]]) -> None:
        self._start = start
        self._prepared: list[str] = []
        self._open()

    def _open(self) -> None:
        self._running = ExitStack()
        self.manager, self.client = self._running.enter_context(self._start())
        self.process = psutil.Process(self.manager.provisioner.pid)
        self._known_guests = self.guests()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._running.close()

    def replace(self) -> None:
        """Start another kernel in its place, prepared in the same way."""
        self.close()
        self._open()
        for code in self._prepared:
            self._prepare(code)

    def prepare(self, code: str) -> Ran:
        """Run what all tests of a file need; a kernel that replaces this one runs it, too."""
        self._prepared.append(code)
        return self._prepare(code)

    def _prepare(self, code: str) -> Ran:
        return self.finish(self.send(code), seconds=PREPARED_SECONDS)

    def check(self, seconds: float = ANSWER_SECONDS) -> None:
        """Ask for 1, and go back to the workspace, where the next test begins. Leaves no output and no history. Raises
        `Broken`."""
        request = self.send("__import__('os').chdir('/workspace')", silent=True, user_expressions={"one": "1"})
        if (reply := self._reply_until(request, seconds)) is None and self.guests() != self._known_guests:
            # The test's guest has ended, and the next one starts: on a loaded machine that takes long.
            reply = self._reply_until(request, DEADLINE)
        if reply is None and not is_alive(self.process):
            raise Broken("the kernel process has ended")
        if reply is None:
            raise Broken(f"it has not answered for {seconds:g} s: a cell, or a task that one left, still runs")
        content = reply["content"]
        if (answer := content.get("user_expressions", {}).get("one", {}).get("data", {}).get("text/plain")) != "1":
            raise Broken(f"it answered {answer or content} when it was asked for 1")
        self._known_guests = self.guests()

    def _reply_until(self, request: str, seconds: float) -> Message | None:
        """The reply to a request. None when it does not come in time, or the kernel process has ended."""
        end = time.monotonic() + seconds
        while is_alive(self.process):
            try:
                message = self.client.get_shell_msg(timeout=min(max(end - time.monotonic(), 0.1), 1))
            except queue.Empty:
                if time.monotonic() > end:
                    break
            else:
                if message["parent_header"].get("msg_id") == request:
                    return message
        return None

    def guests(self) -> list[psutil.Process]:
        return [child for child in children(self.process.pid) if is_alive(child)]

    def send(self, code: str, **options: Any) -> str:
        return self.client.execute(code, **options)

    def run(self, code: str, **options: Any) -> Ran:
        return self.finish(self.send(code, **options))

    def finish(self, request: str, outputs: list[Message] | None = None, seconds: float = DEADLINE) -> Ran:
        """Wait for the reply and the last output of a request, for each output no longer than `seconds`."""
        found = [] if outputs is None else outputs
        while True:
            message = self.client.get_iopub_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status":
                if message["content"]["execution_state"] == "idle":
                    return Ran(self.reply(request), found)
            elif message["msg_type"] != "execute_input":
                found.append(message)

    def reply(self, request: str) -> Message:
        while True:
            message = self.client.get_shell_msg(timeout=DEADLINE)
            if message["parent_header"].get("msg_id") == request:
                return message

    def output(self, request: str) -> Message:
        """The next output of a request that is running."""
        while True:
            message = self.client.get_iopub_msg(timeout=DEADLINE)
            hidden = message["msg_type"] in ("status", "execute_input")
            if message["parent_header"].get("msg_id") == request and not hidden:
                return message

    def interrupt(self) -> None:
        """Interrupt, and wait until the kernel has: its channel is not the requests', so their order is not given."""
        message = self.client.session.msg("interrupt_request", {})
        self.client.control_channel.send(message)
        while self.client.get_control_msg(timeout=DEADLINE)["parent_header"].get("msg_id") != message["msg_id"]:
            pass

    def wait_until_busy(self, request: str) -> None:
        """Until the kernel has begun with a request."""
        while True:
            message = self.client.get_iopub_msg(timeout=DEADLINE)
            if message["parent_header"].get("msg_id") == request and message["msg_type"] == "status":
                return

    def interrupt_once_it_prints(self, code: str, *, ready: Callable[[], bool] = lambda: True, **options: Any) -> Ran:
        """Run a cell that prints when it has come to the point; interrupt it there, once it is `ready`."""
        request = self.send(code, **options)
        outputs = [self.output(request)]
        while outputs[-1]["msg_type"] != "stream":
            outputs.append(self.output(request))
        assert wait_until(ready)
        self.manager.interrupt_kernel()
        return self.finish(request, outputs)
