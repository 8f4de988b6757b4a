"""Kernels that an engine runs elsewhere: a kernelspec names its provisioner (docs/jupyter.md)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from .support import Connect, wait_until
from .test_session_life import call

pytestmark = pytest.mark.anyio

# The client of an engine, as a package of others would have it. Its `pid` is another machine's, or no process's at all.
PROVISIONER = """
import asyncio, json, os
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

class Elsewhere(KernelProvisionerBase):
    has = False
    pid = 1

    async def ask(self, what, **more):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["ENGINE_PORT"]))
        writer.write(json.dumps({"what": what, "kernel": self.kernel_id, **more}).encode() + b"\\n")
        answer = json.loads(await reader.readline())
        writer.close()
        return answer["answer"]

    @property
    def has_process(self):
        return self.has

    async def pre_launch(self, **kwargs):
        return await super().pre_launch(cmd=[], **kwargs)

    async def launch_kernel(self, cmd, **kwargs):
        found = await self.ask("start")
        self.has = True
        return {**found, "key": found["key"].encode()}

    async def poll(self):
        return await self.ask("poll")

    async def wait(self):
        while (status := await self.poll()) is None:
            await asyncio.sleep(0.1)
        return status

    async def send_signal(self, signum):
        await self.ask("signal", signum=signum)

    async def kill(self, restart=False):
        await self.ask("signal", signum=9)

    async def terminate(self, restart=False):
        await self.ask("signal", signum=15)

    async def cleanup(self, restart=False):
        pass
"""
# Another machine would have its address here.
LAUNCH = """
import sys
from ipykernel.kernelapp import launch_new_instance
launch_new_instance(["-f", sys.argv[1], "--ip=127.0.0.1"])
"""


@dataclass
class Engine:
    """Starts kernels for whoever asks."""

    folder: Path
    kernels: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])
    asked: list[str] = field(default_factory=list[str])

    def answer(self, what: str, kernel: str, signum: int = 0) -> Any:
        self.asked.append(what)
        if what == "start":
            file = self.folder / f"{kernel}.json"
            command = [sys.executable, "-c", LAUNCH, str(file)]
            self.kernels[kernel] = subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            assert wait_until(lambda: file.exists() and file.read_text().endswith("}"))
            return json.loads(file.read_text())
        if what == "signal":
            return self.kernels[kernel].send_signal(signum)
        return self.kernels[kernel].poll()

    @property
    def live(self) -> list[int]:
        return [process.pid for process in self.kernels.values() if process.poll() is None]


@pytest.fixture
def engine(tmp_path: Path, server_env: dict[str, str]) -> Iterator[Engine]:
    engine = Engine(tmp_path / "engine")
    engine.folder.mkdir()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            answer = engine.answer(**json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps({"answer": answer}).encode() + b"\n")

    site, share = tmp_path / "site", tmp_path / "share"
    (site / "elsewhere-1.0.dist-info").mkdir(parents=True)
    (site / "elsewhere-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    entry = "[jupyter_client.kernel_provisioners]\nelsewhere = elsewhere:Elsewhere\n"
    (site / "elsewhere-1.0.dist-info" / "entry_points.txt").write_text(entry)
    (site / "elsewhere.py").write_text(PROVISIONER)
    (share / "kernels" / "elsewhere").mkdir(parents=True)
    metadata = {"kernel_provisioner": {"provisioner_name": "elsewhere"}}
    spec = {"argv": [], "display_name": "Elsewhere", "language": "python", "metadata": metadata}
    (share / "kernels" / "elsewhere" / "kernel.json").write_text(json.dumps(spec))
    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server_env |= {
            "PYTHONPATH": str(site),
            "JUPYTER_PATH": str(share),
            "ENGINE_PORT": str(server.server_address[1]),
            "KERNELMCP_KERNELS__KERNELSPEC": "elsewhere",
        }
        yield engine
        server.shutdown()
    for process in engine.kernels.values():
        process.kill()
        process.wait()


async def test_a_session_of_a_kernel_that_runs_elsewhere(connect: Connect, engine: Engine) -> None:
    async with connect() as client:
        ran = await call(client, "execute_code", code="import os; x = 20 + 1; print('hello'); os.getpid()")
        [kernel] = engine.live
        assert (ran["status"], ran["stdout"], ran["result"]) == ("ok", "hello\n", str(kernel))
        assert (await call(client, "execute_code", code="x * 2"))["result"] == "42"
        failed = await call(client, "execute_code", code="1 / 0")
        assert (failed["status"], failed["error"]["name"]) == ("error", "ZeroDivisionError")
        await call(client, "stop_session", session_id=ran["session_id"])
        assert wait_until(lambda: not engine.live)
        assert "signal" in engine.asked


async def test_its_end_is_noticed_and_said(connect: Connect, engine: Engine) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="x = 1", session_id="s")
        [kernel] = engine.live
        died = await call(client, "execute_code", code="import os; os._exit(3)", session_id="s")
        assert (died["status"], died["state_lost"]) == ("dead", True)
        assert kernel not in engine.live
        after = await call(client, "execute_code", code="'x' in globals()", session_id="s")
        assert after["result"] == "False"
        assert len(engine.live) == 1


async def test_a_cell_is_interrupted_and_variables_stay(connect: Connect, engine: Engine) -> None:
    async with connect() as client:
        await call(client, "execute_code", code="x = 1", session_id="s")
        code = "import time\ntime.sleep(600)"
        stopped = await call(client, "execute_code", code=code, session_id="s", timeout=1)
        assert stopped["status"] in ("timeout", "interrupted")
        assert (await call(client, "execute_code", code="x", session_id="s"))["result"] == "1"


async def test_a_server_that_ends_ends_its_kernels_elsewhere(connect: Connect, engine: Engine) -> None:
    async with connect() as client:
        for name in ("a", "b"):
            await call(client, "execute_code", code="x = 1", session_id=name)
        assert len(engine.live) == 2
    assert wait_until(lambda: not engine.live)
