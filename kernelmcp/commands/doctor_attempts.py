"""Tries to break out of a session's own kernel, as a hostile cell would, and decides which isolation layers hold.

A refused attempt proves nothing if no code ran, so a control that must work is run too. The guest's answers are checked
from outside if possible: did the connection arrive, does the file exist, what does the operating system say about the
process. Must not know how a report is printed.
"""

import asyncio
import ctypes
import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import psutil

from kernelmcp.commands import doctor_guest
from kernelmcp.commands.doctor_guest import Answer, Targets, breach, refused, untried
from kernelmcp.config.models import LayerName
from kernelmcp.errors import KernelDied
from kernelmcp.kernel.pool import PooledKernel
from kernelmcp.kernel.process import Kernel

CANARY_VARIABLE = "KERNELMCP_DOCTOR_CANARY"
# For one attempt; a loaded machine may need a second or two to replace a guest that the attempt ended.
ATTEMPT_SECONDS = 30.0
# Our kernel's reply if it had no guest to run the cell in.
NOT_STARTED = "the sandbox could not start"
# A guest that an earlier attempt ends late takes the next cell with it; one that ends twice does not start.
CONTROLS = 2
# A connection that a cell has started may arrive after the cell's end.
ARRIVAL_SECONDS = 1.0
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_CREATE_RULESET_VERSION = 1

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


@dataclass(frozen=True)
class Attempt:
    """`contained` is None if it could not be tried."""

    name: str
    title: str
    contained: bool | None
    detail: str


@dataclass(frozen=True)
class Layer:
    """`active`: it is in place. `proven`: an attempt failed that only this layer, or this layer first, could refuse."""

    name: str
    active: bool
    proven: bool
    detail: str


@dataclass
class Findings:
    """Answers of the kernel and results of the attempts. `failure`: the reason why some or all could not be tried."""

    facts: Answer = field(default_factory=Answer)
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
        findings, control = Findings(), untried("not tried")
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
        findings.layers = _judge(findings.facts, control, findings.attempts, _guest_pid(found.kernel.pid))
    else:
        # The operating system's data on an idle process proves nothing either.
        findings.layers = [Layer(name, False, False, "could not be tried") for name in get_args(LayerName)]
    return findings


def _targets(workspace: Path, outside: Path, port: int, token: str) -> Targets:
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


async def _tried(session: "_Session", name: str, findings: Findings) -> Answer:
    if findings.failure is None:
        try:
            await session.alive()
            return await session.run(name)
        except _NoGuest as exc:
            findings.failure = str(exc)
    return untried(findings.failure)


async def _looked_at_arrival(answer: Answer, arrived: asyncio.Event) -> Answer:
    try:
        await asyncio.wait_for(arrived.wait(), ARRIVAL_SECONDS)
    except TimeoutError:
        return answer | {"breached": False}
    return breach("the connection arrived")


def _looked_at_file(answer: Answer, file: Path) -> Answer:
    if file.exists():
        file.unlink()
        return breach("the file is on the host")
    return answer


class _Session:
    """Runs attempts in one kernel, one by one."""

    def __init__(self, kernel: Kernel, workspace: Path, targets: Targets) -> None:
        self._kernel = kernel
        self._workspace = workspace
        self._targets = targets
        self._code = Path(doctor_guest.__file__).read_text("utf-8")

    async def alive(self) -> Answer:
        """Return the facts, from the guest that runs the next attempt. Only after this does its death count as a
        refusal.

        Raises `_NoGuest`."""
        answer: Answer = {}
        for _ in range(CONTROLS):
            answer = await self.run("facts")
            if "platform" in answer:
                return answer
        raise _NoGuest(f"nothing runs in the guest: {answer['detail']}")

    async def run(self, attempt: str) -> Answer:
        (self._workspace / "doctor.json").write_text(json.dumps(self._targets | {"attempt": attempt}), "utf-8")
        printed: list[str] = []

        def on_output(kind: str, content: dict[str, Any]) -> None:
            if kind == "stream" and content.get("name") == "stdout":
                printed.append(str(content.get("text", "")))

        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                reply = await self._kernel.execute(self._code, on_output, silent=False)
        except TimeoutError:
            return untried(f"no answer within {ATTEMPT_SECONDS:g} s")
        except KernelDied as exc:
            return untried(exc.message)
        return _answer("".join(printed), reply["content"])


def _answer(printed: str, reply: dict[str, Any]) -> Answer:
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
            return untried(text[:240])
        # A layer refused it in a way that the guest's runtime does not survive: it did not get out.
        return refused(f"the guest ended: {text[:120]}")
    return untried(f"{reply.get('ename', 'no answer')}: {str(reply.get('evalue', ''))[:120]}")


# -- which layers hold ----------------------------------------------------------------------------------------------


def _judge(facts: Answer, control: Answer, attempts: list[Attempt], guest_pid: int) -> list[Layer]:
    """The layers, from the findings inside and the operating system's data on the process."""
    outcome = {attempt.name: attempt.contained for attempt in attempts}
    status = _process_status(guest_pid)
    return [
        _wasm(facts, outcome),
        _node_permission(facts, control, outcome),
        _no_new_privs(status),
        _empty_environment(outcome, guest_pid),
        _closed_descriptors(outcome),
        _landlock(attempts),
        _seccomp(status, outcome),
        _seatbelt(outcome),
        _cgroup(guest_pid),
    ]


def _held(outcome: dict[str, bool | None], *names: str) -> bool:
    return all(outcome.get(name) is True for name in names)


def _wasm(facts: Answer, outcome: dict[str, bool | None]) -> Layer:
    active = facts.get("platform") == "emscripten"
    proven = active and _held(outcome, "python_file", "python_write", "python_process", "python_socket")
    detail = f"Python runs on {facts.get('platform', 'an unknown platform')}"
    if active:
        reach = "reaches no file, process or socket of the host" if proven else "still reaches the host"
        detail = f"Python runs in WebAssembly ({facts.get('machine')}) and {reach}"
    return Layer("wasm", active, proven, detail)


def _node_permission(facts: Answer, control: Answer, outcome: dict[str, bool | None]) -> Layer:
    active = facts.get("permission") is True
    refused = _held(outcome, "javascript_file", "nodefs_mount", "javascript_write", "javascript_process")
    proven = active and refused and control["breached"] is True
    if not active:
        return Layer("node-permission", False, False, "Node's permission model is not on")
    detail = "JavaScript reads and writes its workspace, no other file, and starts no process"
    if not proven:
        detail = f"on, but the attempts below say otherwise (control: {control['detail']})"
    return Layer("node-permission", True, proven, detail)


def _no_new_privs(status: dict[str, str]) -> Layer:
    value = status.get("NoNewPrivs")
    if value is None:
        return Layer("no_new_privs", False, False, "this platform does not have it")
    return Layer("no_new_privs", value == "1", value == "1", f"the kernel's record of the process: NoNewPrivs {value}")


def _empty_environment(outcome: dict[str, bool | None], guest_pid: int) -> Layer:
    count = _foreign_variables(guest_pid)
    refused = outcome.get("environment") is True
    active = refused and count in (0, None)
    seen = "the process has no variables of ours" if count == 0 else f"the process has {count} variables of ours"
    if outcome.get("environment") is None:
        return Layer("empty-environment", False, False, "could not be tried")
    detail = "the canary is not visible" if refused else "a variable of the host is visible"
    return Layer("empty-environment", active, refused, detail if count is None else f"{detail}; {seen}")


def _closed_descriptors(outcome: dict[str, bool | None]) -> Layer:
    if outcome.get("descriptors") is None:
        return Layer("closed-descriptors", False, False, "could not be tried")
    held = outcome.get("descriptors") is True
    detail = (
        "pipes, events, the boot image and /dev/null only" if held else "the process holds files or sockets of the host"
    )
    return Layer("closed-descriptors", held, held, detail)


def _landlock(attempts: list[Attempt]) -> Layer:
    abi = landlock_abi()
    offered = f"this machine offers ABI {abi}" if abi else "this machine does not offer it"
    # Node's own error is ERR_ACCESS_DENIED, and we own the file: so EACCES comes from Landlock.
    if abi and any(one.name == "link" and one.contained and "EACCES" in one.detail for one in attempts):
        return Layer("landlock", True, True, "the operating system refuses to follow a link out of the workspace")
    return Layer("landlock", False, False, f"not active ({offered})")


def _seccomp(status: dict[str, str], outcome: dict[str, bool | None]) -> Layer:
    own = _process_status(os.getpid())
    # A container's filter applies to every process: ours must be an additional one.
    filters, ours = int(status.get("Seccomp_filters", 0)), int(own.get("Seccomp_filters", 0))
    active = status.get("Seccomp") == "2" and filters > ours
    if active:
        refused = _held(outcome, "javascript_socket", "signal")
        return Layer(
            "seccomp",
            True,
            refused,
            "no sockets, no signals" if refused else "a filter that lets the attempts through",
        )
    found = (
        f"the kernel's record of the process: Seccomp {status.get('Seccomp', '?')}" if status else "not on this system"
    )
    return Layer("seccomp", False, False, f"not active ({found})")


def _seatbelt(outcome: dict[str, bool | None]) -> Layer:
    if sys.platform != "darwin":
        return Layer("seatbelt", False, False, "macOS only")
    refused = _held(outcome, "link", "javascript_socket", "signal")
    return Layer("seatbelt", refused, refused, "macOS refuses" if refused else "macOS lets the attempts through")


def _cgroup(guest_pid: int) -> Layer:
    """The layer of the process's control group, which must have been created for it."""
    try:
        groups = Path(f"/proc/{guest_pid}/cgroup").read_text("utf-8")
    except OSError:
        groups = ""
    if f"kernelmcp-guest-{guest_pid}" not in groups:
        return Layer(
            "cgroup", False, False, "no control groups are delegated to us (systemd: Delegate=, DelegateSubgroup=)"
        )
    return Layer("cgroup", True, True, "the process is in a control group of its own, with limits of memory and tasks")


# -- the operating system's data ------------------------------------------------------------------------------------


def _guest_pid(kernel_pid: int) -> int:
    """The process that runs the code: the kernel's Node, or the kernel itself if it has none."""
    try:
        children = psutil.Process(kernel_pid).children(recursive=True)
        return next((child.pid for child in children if Path(child.exe()).stem == "node"), kernel_pid)
    except psutil.Error:
        return kernel_pid


def _process_status(pid: int) -> dict[str, str]:
    """/proc/PID/status; empty if there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _foreign_variables(pid: int) -> int | None:
    """Number of variables at the start of the process, besides the malloc variable that each guest has; None if that
    cannot be determined."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return sum(bool(each) and not each.startswith(b"MALLOC_TRIM_THRESHOLD_=") for each in variables)


def landlock_abi() -> int:
    """The Landlock version that the machine offers; 0 if none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION)))
