"""What cells that own their guest cost the host of a real server: looked at from outside, after each of them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from mcp import Client

from kernelmcp_kernel.runtime.places import PACKAGE

from ..kernel.test_kernel_memory import ATTACKS as FRAMES
from ..kernel.test_kernel_memory import FORGE, MANY_BYTES
from ..processes import child_pids, children_of, command_line, forget_peak, is_alive, peak_mb
from ..server.conftest import connect, connecting, environment_of, kernelspec, server_env  # noqa: F401  # fixtures
from ..server.support import Connect, wait_until
from .world import DISK_SLACK_MB, disk_bytes

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the operating system's layers are Linux's"),
]

QUOTA_MB = 64
# A page cache takes 3 MB in a millisecond: what a guest writes while a loaded machine runs something else.
BURST_MB = 128
MAX_TRUSTED_MB = 400
# One of each language, and two more shells.
MAX_GUESTS = 5

# Node's own file system, past the guest's count.
FILES = """
import js, json
from pyodide.ffi import to_js
fs = js.process.getBuiltinModule("fs")
root = json.loads(js.process.argv[2])["workspace"]
piece = to_js(bytes(1 << 20))
def fill(path, size_mb=1):
    fd = fs.openSync(path, "w")
    for _ in range(size_mb): fs.writeSync(fd, piece)
    return fd
"""
DISK = {
    "many files": "for n in range(3000): fs.closeSync(fill(f'{root}/{n}'))",
    "files that are deleted while they are open": """
for n in range(200):
    fd = fill(f"{root}/f")
    fs.unlinkSync(f"{root}/f")
    for _ in range(15): fs.writeSync(fd, piece)
""",
    "files that move to where the count has been": """
for name in "az":
    fs.mkdirSync(f"{root}/{name}")
    for n in range(400): fs.mkdirSync(f"{root}/{name}/{n}")
here, there, n = "a/0", "z/399", 0
while n < 3000:
    for _ in range(20):
        fs.closeSync(fill(f"{root}/{here}/{n}"))
        n += 1
    for name in fs.readdirSync(f"{root}/{here}"):
        fs.renameSync(f"{root}/{here}/{name}", f"{root}/{there}/{name}")
    here, there = there, here
""",
    "a deep tree": """
path = root
for n in range(400):
    path += "/d"
    fs.mkdirSync(path)
    for m in range(6): fs.mkdirSync(f"{path[:-1]}s{m}")
for n in range(3000): fs.closeSync(fill(f"{root}/{n}"))
""",
}
MEMORY = {
    "texts": "print('x' * 200_000_000)",
    "results": "['x' * 1000] * 60_000",
    "displays": "for _ in range(12): display({'text/plain': 'x' * 23_000_000}, raw=True)",
    "an error": "raise ValueError('x' * 40_000_000)",
}
CASES = {name: FORGE + code for name, code in FRAMES.items()} | MEMORY


@dataclass
class Host:
    """A server with one session, and its processes."""

    client: Client
    home: Path
    server: psutil.Process
    kernel: psutil.Process

    def begin(self) -> None:
        for process in (self.server, self.kernel):
            forget_peak(process.pid)

    def evidence(self) -> list[str]:
        """What is beyond its bounds."""
        found = [
            f"{name}: {peak_mb(process.pid):.0f} MB"
            for name, process in (("server", self.server), ("kernel process", self.kernel))
            if peak_mb(process.pid) > MAX_TRUSTED_MB
        ]
        guests = self.kernel.children()
        disk = disk_bytes(self.home / "sandboxes", [guest.pid for guest in guests]) >> 20
        found += [f"disk: {disk} MB"] if disk > QUOTA_MB + DISK_SLACK_MB + BURST_MB else []
        connections = [one for each in (self.server, self.kernel, *guests) for one in each.net_connections("inet")]
        found += [f"connections: {connections}"] if connections else []
        others = [each.pid for guest in guests for each in guest.children(recursive=True)]
        found += [f"processes: {others}"] if others or len(guests) > MAX_GUESTS else []
        return found


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, kernelspec: str) -> AsyncIterator[Host]:  # noqa: F811
    """One for all cells that leave no files: what any of them leaves behind counts in the next ones as well."""
    home = tmp_path_factory.mktemp("shared") / "home"
    async with attacked(connecting(environment_of(home, kernelspec)), home) as host:
        yield host


@asynccontextmanager
async def attacked(connect: Connect, home: Path) -> AsyncIterator[Host]:  # noqa: F811
    kernels = home.parent / "jupyter" / "kernels" / "kernelmcp"
    shutil.copytree(PACKAGE / "kernelspec", kernels)
    spec = json.loads((kernels / "kernel.json").read_text())
    (kernels / "kernel.json").write_text(json.dumps({**spec, "env": {"KERNELMCP_KEEP_GLOBALS": "1"}}))
    settings = {"POLICY__WORKSPACE_MAX_MB": str(QUOTA_MB)}
    others = set(child_pids(os.getpid()))
    async with connect(environment={"JUPYTER_PATH": str(kernels.parents[1])}, **settings) as client:
        await client.call_tool("execute_code", {"code": "1", "session_id": "s"})
        started = [psutil.Process(pid) for pid in child_pids(os.getpid()) if pid not in others]
        [server] = [each for each in started if command_line(each)[1:3] == ["-m", "kernelmcp"]]
        [kernel] = children_of(server)
        yield Host(client, home, server, kernel)
        left = [server, *server.children(recursive=True)]
    assert wait_until(lambda: not any(each.is_running() and each.status() != "zombie" for each in left))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in MANY_BYTES)) for name in CASES]
)
async def test_no_cell_takes_more_of_the_host_than_it_may(shared: Host, name: str) -> None:
    assert await is_well(shared), "the cell before has left it so"
    await attack(shared, CASES[name])
    assert await is_well(shared)


@pytest.mark.parametrize("name", DISK)
async def test_no_cell_takes_more_of_the_disk_than_it_may(connect: Connect, tmp_path: Path, name: str) -> None:  # noqa: F811
    async with attacked(connect, tmp_path / "home") as host:
        await attack(host, FILES + DISK[name])


async def attack(host: Host, code: str) -> None:
    host.begin()
    result = await host.client.call_tool("execute_code", {"code": code, "session_id": "s"})
    print(f"server {peak_mb(host.server.pid):.0f} MB, kernel process {peak_mb(host.kernel.pid):.0f} MB")
    print(f"disk {disk_bytes(host.home / 'sandboxes', []) >> 20} MB; {result.content[0].text[:300]}")
    assert host.evidence() == []


async def is_well(host: Host) -> bool:
    """It has its kernel process, and runs cells."""
    result = await host.client.call_tool("execute_code", {"code": "6 * 7", "session_id": "s"})
    return "42" in result.content[0].text and children_of(host.server) == [host.kernel]


async def test_a_kernel_process_that_is_too_large_is_ended_and_the_result_says_so(
    connect: Connect,  # noqa: F811
    tmp_path: Path,
) -> None:
    """No guest gets it so far. Another client does, with a message of 600 MB."""
    async with attacked(connect, tmp_path / "home") as host:
        [file] = [word for word in host.kernel.cmdline() if word.endswith(".json")]
        other = BlockingKernelClient(connection_file=file)
        other.load_connection_file()
        other.start_channels()
        try:
            message = other.session.msg("comm_msg", {"comm_id": "x", "data": {}})
            socket: Any = other.shell_channel.socket
            other.session.send(socket, message, buffers=[bytes(60_000_000) for _ in range(10)])
            result = await host.client.call_tool("execute_code", {"code": "input()", "session_id": "s"})
            assert wait_until(lambda: not is_alive(host.kernel))
        finally:
            other.stop_channels()
        said = result.content[0].text
        if "too much memory" not in said:  # that cell was over before
            said = (await host.client.call_tool("execute_code", {"code": "1", "session_id": "s"})).content[0].text
        assert "All variables" in said
        assert "too much memory" in said
