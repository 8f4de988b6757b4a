"""Tries to break out of a session's own kernel, as a hostile cell would.

A refused attempt proves nothing if no code ran, so a control that must work is run too. The guest's answers are checked
from outside if possible: did the connection arrive, does the file exist. Must not know how a report is printed.
"""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from kernelmcp.commands.doctor_process import guest_pid
from kernelmcp.commands.doctor_verdicts import Attempt, Layer, judge
from kernelmcp.config.models import LayerName
from kernelmcp.errors import KernelDied
from kernelmcp.kernel.pool import PooledKernel
from kernelmcp.kernel.process import Kernel

ATTEMPTS_FILE = Path(__file__).parent / "doctor_guest" / "attempts.py"
CANARY_VARIABLE = "KERNELMCP_DOCTOR_CANARY"
# For one attempt; a loaded machine may need a second or two to replace a guest that the attempt ended.
ATTEMPT_SECONDS = 30.0
# Our kernel's reply if it had no guest to run the cell in.
NOT_STARTED = "the sandbox could not start"
# A guest that an earlier attempt ends late takes the next cell with it; one that ends twice does not start.
CONTROLS = 2
# A connection that a cell has started may arrive after the cell's end.
ARRIVAL_SECONDS = 1.0

# Attempts and their descriptions for a person, in the order in which they run.
ATTEMPTS = {
    "python_file": "read a file of the host from Python",
    "javascript_file": "read a file of the host from JavaScript",
    "nodefs_mount": "mount the host's / and read a file there",
    "link": "follow a link out of the workspace",
    "python_write": "write outside of the workspace from Python",
    "javascript_write": "write outside of the workspace from JavaScript",
    "python_process": "start a process from Python",
    "javascript_process": "start a process from JavaScript",
    "environment": "read an environment variable of the host",
    "descriptors": "find an open descriptor of the host",
    "python_socket": "connect to a port of the host from Python",
    "javascript_socket": "connect to a port of the host from JavaScript",
    "signal": "send a signal to a process of the host",
}


@dataclass
class Findings:
    """Answers of the kernel and results of the attempts. `failure`: the reason why some or all could not be tried."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    layers: list[Layer] = field(default_factory=list[Layer])
    failure: str | None = None


class _NoGuest(Exception):
    """No guest runs code, so a missing effect proves nothing."""


@contextmanager
def canary() -> Iterator[str]:
    """A secret in our environment, set before the kernel starts; and the kernel's JavaScript configured for doctor."""
    token = secrets.token_hex(16)
    # Its JavaScript keeps `process`, which a session's does not: the attempts must reach the layers behind it.
    ours = {CANARY_VARIABLE: token, "KERNELMCP_KEEP_GLOBALS": "1"}
    os.environ |= ours
    try:
        yield token
    finally:
        for name in ours:
            del os.environ[name]


async def examine(found: PooledKernel, outside: Path, token: str) -> Findings:
    """Run every attempt in a kernel that was started with the canary in its environment.

    `outside` is a directory of the host that no guest should reach.
    """
    arrived = asyncio.Event()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if token.encode() in await reader.read(len(token)):
            arrived.set()
        writer.close()

    async with await asyncio.start_server(on_connection, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        session = _Session(
            found.kernel, found.sandbox.workspace, _targets(found.sandbox.workspace, outside, port, token)
        )
        findings, control = Findings(), _untried("not tried")
        try:
            findings.facts = await session.alive()
            control = await session.run("control")
        except _NoGuest as exc:
            findings.failure = str(exc)
        for name, title in ATTEMPTS.items():
            arrived.clear()
            answer = await _tried(session, name, findings)
            if name.endswith("_socket") and answer["breached"] is not None:
                answer = await _looked_at_arrival(answer, arrived)
            if name.endswith("_write"):
                answer = _looked_at_file(answer, outside / "written")
            breached = answer["breached"]
            findings.attempts.append(Attempt(name, title, None if breached is None else not breached, answer["detail"]))
    if findings.failure is None:
        findings.layers = judge(findings.facts, control, findings.attempts, guest_pid(found.kernel.pid))
    else:
        # The operating system's data on an idle process proves nothing either.
        findings.layers = [Layer(name, False, False, "could not be tried") for name in get_args(LayerName)]
    return findings


def _targets(workspace: Path, outside: Path, port: int, token: str) -> dict[str, Any]:
    for file in (workspace / "allowed.txt", outside / "secret.txt"):
        file.write_text(token, "utf-8")
    (workspace / "link.txt").symlink_to(outside / "secret.txt")
    return {
        "token": token,
        "port": port,
        "process": os.getpid(),
        "allowed_file": str(workspace / "allowed.txt"),
        "secret_files": [str(outside / "secret.txt"), "/etc/passwd"],
        "outside_file": str(outside / "written"),
        "link": str(workspace / "link.txt"),
        "program": [sys.executable, "-I", "-S", "-c", f"import sys; print({token!r}, sys.platform)"],
    }


async def _tried(session: "_Session", name: str, findings: Findings) -> dict[str, Any]:
    if findings.failure is None:
        try:
            await session.alive()
            return await session.run(name)
        except _NoGuest as exc:
            findings.failure = str(exc)
    return _untried(findings.failure)


async def _looked_at_arrival(answer: dict[str, Any], arrived: asyncio.Event) -> dict[str, Any]:
    try:
        await asyncio.wait_for(arrived.wait(), ARRIVAL_SECONDS)
    except TimeoutError:
        return answer | {"breached": False}
    return {"breached": True, "detail": "the connection arrived"}


def _looked_at_file(answer: dict[str, Any], file: Path) -> dict[str, Any]:
    if file.exists():
        file.unlink()
        return {"breached": True, "detail": "the file is on the host"}
    return answer


class _Session:
    """Runs attempts in one kernel, one by one."""

    def __init__(self, kernel: Kernel, workspace: Path, targets: dict[str, Any]) -> None:
        self._kernel = kernel
        self._workspace = workspace
        self._targets = targets
        self._code = ATTEMPTS_FILE.read_text("utf-8")

    async def alive(self) -> dict[str, Any]:
        """Return the facts, from the guest that runs the next attempt. Only after this does its death count as a
        refusal.

        Raises `_NoGuest`."""
        answer: dict[str, Any] = {}
        for _ in range(CONTROLS):
            answer = await self.run("facts")
            if "platform" in answer:
                return answer
        raise _NoGuest(f"nothing runs in the guest: {answer['detail']}")

    async def run(self, attempt: str) -> dict[str, Any]:
        (self._workspace / "doctor.json").write_text(json.dumps(self._targets | {"attempt": attempt}), "utf-8")
        printed: list[str] = []

        def on_output(kind: str, content: dict[str, Any]) -> None:
            if kind == "stream" and content.get("name") == "stdout":
                printed.append(str(content.get("text", "")))

        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                reply = await self._kernel.execute(self._code, on_output, silent=False)
        except TimeoutError:
            return _untried(f"no answer within {ATTEMPT_SECONDS:g} s")
        except KernelDied as exc:
            return _untried(exc.message)
        return _answer("".join(printed), reply["content"])


def _answer(printed: str, reply: dict[str, Any]) -> dict[str, Any]:
    for line in reversed(printed.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return {"breached": None, "detail": ""} | answer
    if reply.get("ename") == "GuestDied":
        text = str(reply.get("evalue", ""))
        if NOT_STARTED in text:
            return _untried(text[:240])
        # A layer refused it in a way that the guest's runtime does not survive: it did not get out.
        return {"breached": False, "detail": f"the guest ended: {text[:120]}"}
    return _untried(f"{reply.get('ename', 'no answer')}: {str(reply.get('evalue', ''))[:120]}")


def _untried(detail: str) -> dict[str, Any]:
    return {"breached": None, "detail": detail}
