"""The processes that attack: real guests, JavaScript that owns its process, and native code that does.

Each is started as a guest is, by the kernel's own `runtime` and `confine`, with some layers left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kernelmcp_kernel import languages
from kernelmcp_kernel.guests.cell_requests import Cell, Request
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import Frame
from kernelmcp_kernel.guests.guest import Guest, new_request_id
from kernelmcp_kernel.guests.host_calls import HostCalls
from kernelmcp_kernel.languages.interface import Language
from kernelmcp_kernel.languages.javascript.bundle import entry
from kernelmcp_kernel.languages.javascript.language import FOLDER
from kernelmcp_kernel.languages.python.language import EXIT_BAD_IMAGE
from kernelmcp_kernel.network import Network
from kernelmcp_kernel.packages import pip_policy
from kernelmcp_kernel.runtime.guest_process import guest_policy, spawn_guest
from kernelmcp_kernel.sandbox.confined_process import OS_LAYERS, Policy, spawn
from kernelmcp_kernel.sandbox.elf import linked_files
from kernelmcp_kernel.settings import NetworkSettings, PackageSettings

from .world import World

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 30.0

# What may be left out, and in the last column all of it. Of the system's layers, those that this one has.
ELSEWHERE = {"seatbelt"} if sys.platform == "linux" else {"landlock", "seccomp"}
LAYERS = ("permission", "globals", "environment", *(layer for layer in OS_LAYERS if layer not in ELSEWHERE))
# The flags of Node that make up its wall, as `runtime` has them.
HARDENING = (
    "--permission",
    "--allow-fs",
    "--disallow-code",
    "--disable-proto",
    "--no-addons",
    "--disable-sigusr1",
    "--no-experimental",
    "--freeze-flags",
)


def without(policy: Policy, off: frozenset[str]) -> Policy:
    """The same policy with some layers left out."""
    program = list(policy.program)
    if "permission" in off:
        program = [argument for argument in program if not argument.startswith(HARDENING)]
    if "globals" in off:
        program[-1] = json.dumps(json.loads(program[-1]) | {"keep_globals": True, "keep_imports": True})
    environment = dict(os.environ) if "environment" in off else policy.environment
    return replace(policy, program=program, environment=environment, without=sorted(off & set(OS_LAYERS)))


class GuestAttacker:
    """Python in Pyodide, as in a session."""

    name = "guest"

    def __init__(self, world: World, off: frozenset[str]) -> None:
        self._world, self._off = world, off
        self._said: list[str] = []
        self._calls = HostCalls({"fetch": Network(NetworkSettings()).fetch})
        self.pid = 0
        self._guest: Guest | None = None

    async def attempts(self) -> list[str]:
        # As a module of its own, so that the list is the one that runs.
        names: dict[str, object] = {"__name__": "attacks"}
        exec(compile((PROGRAMS / "guest.py").read_text(), "guest.py", "exec"), names)
        self._names = {function.__doc__: name for name, function in names["ATTACKS"].items()}  # type: ignore[attr-defined]
        return [str(title) for title in self._names]

    def _language(self) -> Language:
        return languages.main_language()

    def _program(self) -> str:
        return (PROGRAMS / "guest.py").read_text()

    def _cell(self, title: str) -> str:
        name = self._names.get(title, "control")
        return f"print(attempt({name!r}, json.loads({json.dumps(self._world.targets())!r})))"

    async def _ready(self) -> Guest:
        if self._guest is None or self._guest.death is not None:
            launch = self._language().launch(self._world.sandbox)
            spawned = spawn_guest(self._world.sandbox, launch, lambda policy: without(policy, self._off))
            self.pid = spawned.pid
            self._guest = Guest(spawned, self._on_frame)
            try:
                await self._execute(self._program())
            except GuestDied as error:
                if "status 65" not in str(error):
                    raise
                self._language().mend(EXIT_BAD_IMAGE)
                return await self._ready()
        return self._guest

    def _on_frame(self, guest: Guest, frame: Frame) -> None:
        self._said.append(json.dumps(frame.content))
        if frame.type == "call" and self._guest is not None:
            self._calls.start(self._guest, frame, Request(Cell({}), host_calls=frozenset({"fetch"})))

    async def _execute(self, code: str) -> str:
        assert self._guest is not None
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
        content |= {"allow_stdin": False, "execution_count": 1}
        reply = await self._guest.request("execute", content, new_request_id())
        return json.dumps(reply)

    async def attempt(self, title: str) -> str:
        self._said.clear()
        guest = await self._ready()
        try:
            async with asyncio.timeout(SECONDS):
                reply = await self._execute(self._cell(title))
        except GuestDied as error:
            reply = f"it died: {error}"
        except TimeoutError:
            guest.kill("no answer")
            reply = "it did not answer"
        return "".join([*self._said, reply])

    async def close(self) -> None:
        if self._guest is not None:
            self._guest.kill("the test is over")


class QuickJSAttacker(GuestAttacker):
    """JavaScript in QuickJS, as in a session."""

    name = "quickjs"

    async def attempts(self) -> list[str]:
        await self._ready()
        self._said.clear()
        await self._execute("console.log(JSON.stringify(Object.keys(ATTACKS).slice(1)))")
        return list(json.loads("".join(json.loads(frame).get("text", "") for frame in self._said)))

    def _language(self) -> Language:
        return languages.find("javascript")

    def _program(self) -> str:
        return (PROGRAMS / "quickjs.js").read_text()

    def _cell(self, title: str) -> str:
        return f"console.log(await attempt({json.dumps(title)}, {json.dumps(self._world.targets())}))"


class ProgramAttacker:
    """A program in the guest's place, without WebAssembly and Node's permission model around it."""

    ABSENT = frozenset({"permission", "globals"})

    def __init__(self, world: World, off: frozenset[str]) -> None:
        self._world, self._off = world, off
        self.pid = 0
        self._stack = contextlib.ExitStack()

    def _changed(self, policy: Policy) -> Policy:
        raise NotImplementedError

    def _language(self) -> Language:
        return languages.main_language()

    async def attempts(self) -> list[str]:
        return list(json.loads(await self._ask("list")))

    async def attempt(self, title: str) -> str:
        return await self._ask(title)

    async def _start(self) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        requests_theirs, self._requests = os.pipe()
        self._replies, replies_theirs = os.pipe()

        descriptors = [null, null, null, requests_theirs, replies_theirs, null]
        policy = guest_policy(self._world.sandbox, self._language().launch(self._world.sandbox), descriptors)
        self._world.sandbox.seal()  # as `runtime` does before a guest starts
        self.pid = spawn(without(self._changed(policy), self._off - self.ABSENT))
        for fd in (null, requests_theirs, replies_theirs):
            os.close(fd)
        for fd in (self._requests, self._replies):
            self._stack.callback(os.close, fd)
        self._stack.callback(self._end, self.pid)
        os.set_blocking(self._replies, False)

    @staticmethod
    def _end(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    async def _ask(self, line: str) -> str:
        if not self.pid:
            await self._start()
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def readable() -> None:
            data = os.read(self._replies, 65536)
            heard.put_nowait(data)
            if not data:
                loop.remove_reader(self._replies)

        loop.add_reader(self._replies, readable)
        answer = b""
        try:
            os.write(self._requests, line.encode() + b"\n")
            async with asyncio.timeout(SECONDS):
                while not answer.endswith(b"\n") and (data := await heard.get()):
                    answer += data
        except (TimeoutError, BrokenPipeError):
            answer += b" it did not answer"
        loop.remove_reader(self._replies)
        if not answer.endswith(b"\n"):
            await self._await_end()  # a program that it has become does its work before it is looked for
            await self.close()
        return answer.decode("utf-8", "replace")

    async def _await_end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:  # noqa: ASYNC110, ASYNC222
                    await asyncio.sleep(0.005)

    async def close(self) -> None:
        self.pid = 0
        self._stack.close()


class JavaScriptAttacker(ProgramAttacker):
    """JavaScript in plain Node."""

    name = "javascript"

    def _changed(self, policy: Policy) -> Policy:
        program = [policy.program[0], str(PROGRAMS / "javascript.mjs"), json.dumps(self._world.targets())]
        program.insert(1, f"--openssl-config={os.devnull}")
        program.insert(1, "--no-warnings")
        return replace(policy, program=program, readable=[*policy.readable, str(PROGRAMS)])


class QuickJSNodeAttacker(ProgramAttacker):
    """JavaScript in the Node that runs QuickJS, with its flags: what a hole in QuickJS would come to."""

    name = "quickjs node"
    ABSENT = frozenset({"globals"})

    def _language(self) -> Language:
        return languages.find("javascript")

    def _changed(self, policy: Policy) -> Policy:
        flags = policy.program[: policy.program.index(str(entry(FOLDER)))]
        script = [str(PROGRAMS / "javascript.mjs"), json.dumps(self._world.targets())]
        program = [*flags, f"--allow-fs-read={PROGRAMS}", *script]
        return replace(policy, program=program, readable=[*policy.readable, str(PROGRAMS)])


class NativeAttacker(ProgramAttacker):
    """Any system call."""

    name = "native"

    def _changed(self, policy: Policy) -> Policy:
        return self._as_python(policy)

    def _as_python(self, policy: Policy) -> Policy:
        python = Path(sys.executable).resolve()
        program = [str(python), "-I", "-S", "-B", str(PROGRAMS / "native.py"), json.dumps(self._world.targets())]
        paths = sysconfig.get_paths()
        libraries = [path for file in _extensions() for path in linked_files(file)]
        folders = [paths["stdlib"], str(PROGRAMS), str(python.parent)]
        loaders = [path for path in linked_files(python) if os.path.basename(path).startswith("ld-")]
        readable = [*policy.readable, *folders, *linked_files(python), *libraries]
        return replace(policy, program=program, readable=readable, executable=[str(python), *loaders])


class PipAttacker(NativeAttacker):
    """Any system call, by code that has taken over the pip that a kernel process runs."""

    name = "pip"
    # What pip is for. It sends nothing that a guest could not ask it to send.
    MAY = ("socket(AF_INET)", "socket(AF_INET6)", "connect and send")

    async def attempts(self) -> list[str]:
        return [title for title in await super().attempts() if title not in self.MAY]

    def _changed(self, policy: Policy) -> Policy:
        settings, folder = PackageSettings(), self._world.sandbox.workspace
        environment = pip_policy.environment(settings, folder)
        own = pip_policy.policy([], settings, environment, folder, [])
        return replace(self._as_python(own), descriptors=policy.descriptors)


class ShellAttacker(NativeAttacker):
    """Any system call, by code that has taken over bashkit: in the shell's own Python, with what that one may read."""

    name = "shell"

    def _language(self) -> Language:
        return languages.find("shell")

    def _changed(self, policy: Policy) -> Policy:
        *start, _, _ = policy.program
        program = [*start, str(PROGRAMS / "native.py"), json.dumps(self._world.targets())]
        return replace(policy, program=program, readable=[*policy.readable, str(PROGRAMS)])


def _extensions() -> list[Path]:
    folder = Path(sysconfig.get_path("stdlib")) / "lib-dynload"
    return [file for pattern in ("_ctypes*", "_socket*", "_struct*") for file in folder.glob(pattern)]


Attacker = GuestAttacker | ProgramAttacker
ATTACKERS: dict[str, Callable[[World, frozenset[str]], Attacker]] = {
    "guest": GuestAttacker,
    "javascript": JavaScriptAttacker,
    "quickjs": QuickJSAttacker,
    "quickjs node": QuickJSNodeAttacker,
    "native": NativeAttacker,
    "pip": PipAttacker,
}
# Native code under the policy of another language's guest: its row in the threat model is "native".
BESIDE: dict[str, Callable[[World, frozenset[str]], Attacker]] = {"shell": ShellAttacker}
