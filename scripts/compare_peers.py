"""The engines that scripts/compare measures: how each is installed, started and called, by its own documentation.

All but ipykernel are MCP servers on stdio, called by the same client. An entry says only what differs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty

from jupyter_client.manager import AsyncKernelManager
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.attacks.world import CANARY_VARIABLE
from tests.pyodide_packages import pyodide_folder

INTERRUPTS, INTERRUPT_SECONDS = 10, 10.0
START_SECONDS = 180


@dataclass
class Answer:
    """What a call came to: its text, and its pictures as MIME types."""

    text: str
    pictures: list[str] = field(default_factory=list[str])


Run = Callable[..., Awaitable[Answer]]
"""`await run(code, seconds=None)`; with `seconds`, the engine is told to stop after so long."""


@dataclass(frozen=True)
class Peer:
    """`requirements` go into an environment of its own, with this Python. `limits` is for the table of the page."""

    name: str
    requirements: tuple[str, ...]
    limits: str
    isolation: str
    command: tuple[str, ...] = ()
    tool: str = "execute_code"
    code: str = "code"
    timeout: tuple[str, int] = ("timeout", 1)
    """The argument with the time limit, and how many of its units are a second."""
    programs: tuple[str, ...] = ()
    """What must be on PATH. Without it the engine is not run."""
    missing: str = ""
    """How the page says so."""
    python: str = sys.executable
    lab: bool = False
    """It drives a JupyterLab that somebody has started."""


PEERS = (
    Peer(
        "kernelmcp",
        (),
        "compiled packages only where there is a wheel for WebAssembly; no threads, sockets or processes",
        "WebAssembly, Landlock, seccomp, Node's permissions",
        command=(sys.executable, "-P", "-m", "kernelmcp"),
    ),
    Peer("ipykernel", ("ipykernel>=7.4", "matplotlib"), "no isolation: code has all your rights", "none"),
    Peer(
        "pyeryx",
        ("pyeryx[serve]",),
        "pure Python and packages that are built for WASI; after a time limit its session answers no more calls",
        "WebAssembly (WASI)",
        command=("eryx", "serve"),
        python="3.12",
        tool="run_python",
        timeout=("timeout_ms", 1000),
    ),
    Peer(
        "ipybox",
        ("ipybox", "mcp<2", "matplotlib"),
        "isolated with `--sandbox` only, which needs bubblewrap and a program of npm; a picture is a file; "
        "a call ends with the kernel's reply, so that output behind it is lost now and then",
        "none by default",
        command=("ipybox",),
        tool="execute_ipython_cell",
    ),
    Peer(
        "jupyter-mcp-server",
        ("jupyter-mcp-server", "jupyter-collaboration", "ipykernel", "matplotlib"),
        "code has all your rights; a call waits for a second at least",
        "none with a local JupyterLab",
        command=("jupyter-mcp-server", "--jupyter-url", "{url}", "--jupyter-token", "{token}"),
        lab=True,
    ),
    Peer(
        "mcp-run-python",
        ("mcp-run-python",),
        "each call begins without the variables of the last",
        "WebAssembly, Deno's permissions",
        command=("mcp-run-python", "stdio"),
        tool="run_python_code",
        code="python_code",
        timeout=("", 1),
        programs=("deno",),
        missing="Deno, and the packages of JSR",
    ),
    Peer(
        "llm-sandbox",
        ("llm-sandbox[mcp-docker]",),
        "a new container for each call of its MCP server",
        "a container",
        command=("llm-sandbox-mcp",),
        programs=("docker",),
        missing="Docker",
    ),
)


class NotRunHere(Exception):
    """An engine needs what this machine does not have."""


class Environment:
    """Where one engine is installed."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.path = folder / peer.name
        self.bin = self.path / "bin"

    def variables(self, work: Path) -> dict[str, str]:
        # What an attack on the environment looks for, under a name that is no setting of kernelmcp.
        own = {"PATH": f"{self.bin}:{os.environ['PATH']}", "SECRET": os.environ.get(CANARY_VARIABLE, "")}
        if not self.peer.requirements:
            # matplotlib comes from a local folder of Pyodide's distribution, as the tests have it.
            own |= {"KERNELMCP_HOME": str(work / "home"), "KERNELMCP_SERVER__RUNTIME": str(work / "r")}
            own["KERNELMCP_PACKAGES__PYODIDE_URL"] = str(pyodide_folder())
        dropped = ("KERNELMCP_", "PYTHON", "VIRTUAL_ENV")
        return {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | own

    def make(self) -> None:
        """Once. A folder that is there stays as it is: delete it for newer versions."""
        if not self.peer.requirements or self.path.exists():
            return
        uv = [sys.executable, "-m", "uv"]
        install = [*uv, "pip", "install", "--quiet", "--compile-bytecode"]  # as pip does, and as kernelmcp's own has
        made = self.path.with_name(f"{self.peer.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        for command in (
            [*uv, "venv", "--quiet", "--relocatable", "--python", self.peer.python, str(made)],
            [*install, "--python", str(made / "bin" / "python"), *self.peer.requirements],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotRunHere(f"it was not installed: {done.stderr.strip().splitlines()[0]}")
        made.rename(self.path)

    def version(self) -> str:
        python = str(self.bin / "python") if self.peer.requirements else sys.executable
        code = f"import importlib.metadata as m; print(m.version({self.peer.name!r}))"
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def check(self) -> None:
        for program in self.peer.programs:
            if shutil.which(program) is None:
                raise NotRunHere(self.peer.missing)
        docker = ["docker", "info"]
        if docker[0] in self.peer.programs and subprocess.run(docker, capture_output=True, check=False).returncode:
            raise NotRunHere(self.peer.missing)

    @asynccontextmanager
    async def beside(self, work: Path) -> AsyncIterator[dict[str, str]]:
        """What its user has running before it starts: nothing, or JupyterLab. Yields what its command names of it."""
        if not self.peer.lab:
            yield {}
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url, token = f"http://127.0.0.1:{port}", "compare"
        options = [f"--port={port}", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={work}"]
        command = [str(self.bin / "jupyter-lab"), "--no-browser", "--allow-root", *options]
        lab = await asyncio.create_subprocess_exec(
            *command, cwd=work, env=self.variables(work), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await asyncio.to_thread(_answers, f"{url}/api?token={token}"):  # noqa: ASYNC110  # of another process
                    await asyncio.sleep(0.1)
            yield {"url": url, "token": token}
        finally:
            lab.terminate()
            await lab.wait()

    @asynccontextmanager
    async def started(self, work: Path, named: dict[str, str]) -> AsyncIterator[Run]:
        start = self._mcp if self.peer.command else self._native
        async with start(work, named) as run:
            yield run

    @asynccontextmanager
    async def _native(self, work: Path, named: dict[str, str]) -> AsyncIterator[Run]:
        manager = AsyncKernelManager()
        manager.kernel_spec.argv = [str(self.bin / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]  # type: ignore[union-attr]
        await manager.start_kernel(cwd=str(work), env=self.variables(work))
        client = manager.client()
        client.start_channels()
        try:
            # Not `wait_for_ready`, which ends with a fifth of a second of silence. Until the kernel knows of the
            # subscription to iopub, what it publishes is lost: a cell's output, and its idle, awaited for ever.
            subscribed = False
            while not subscribed:
                await client.kernel_info(reply=True, timeout=START_SECONDS)
                with suppress(Empty):
                    subscribed = bool(await client.get_iopub_msg(timeout=0.1))

            async def run(code: str, seconds: float | None = None) -> Answer:
                answer = Answer("")

                def hear(message: dict[str, dict[str, object]]) -> None:
                    content = message["content"]
                    data = content.get("data", {})
                    answer.text += str(content.get("text", "")) + "".join(map(str, content.get("traceback", [])))  # type: ignore[call-overload]
                    answer.pictures += [kind for kind in data if str(kind).startswith("image/")]  # type: ignore[attr-defined]

                try:
                    await client.execute_interactive(code, output_hook=hear, timeout=seconds)
                except TimeoutError:  # its user does the rest
                    for _ in range(INTERRUPTS):  # a native kernel may lose one
                        await manager.interrupt_kernel()
                        with suppress(TimeoutError):
                            await client.execute_interactive("pass", output_hook=hear, timeout=INTERRUPT_SECONDS)
                            break
                return answer

            yield run
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)

    @asynccontextmanager
    async def _mcp(self, work: Path, named: dict[str, str]) -> AsyncIterator[Run]:
        peer = self.peer
        command, *arguments = (part.format_map(named) for part in peer.command)
        server = StdioServerParameters(command=command, args=arguments, env=self.variables(work), cwd=str(work))
        async with Client(stdio_client(server, errlog=_SILENCE), mode="legacy") as client:
            if peer.lab:
                notebook = {"notebook_name": "n", "notebook_path": "n.ipynb", "mode": "create"}
                await client.call_tool("use_notebook", notebook)

            async def run(code: str, seconds: float | None = None) -> Answer:
                name, units = peer.timeout
                limit = {name: int(seconds * units)} if seconds and name else {}
                result = await client.call_tool(peer.tool, {peer.code: code, **limit})
                texts = [block.text for block in result.content if block.type == "text"]
                return Answer("\n".join(texts), [block.mime_type for block in result.content if block.type == "image"])

            yield run


_SILENCE = open(os.devnull, "w")  # noqa: SIM115  # of engines, for as long as this runs


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False
