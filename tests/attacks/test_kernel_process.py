"""A cell attacks what is trusted above it, the kernel process and its pip: as root, as root whose guests are another
user, and as a user."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.guest_process import closed_to
from tests.kernel.wheels import DEAD_INDEX

from .world import World, surroundings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the operating system's layers are Linux's")

PROGRAM = (Path(__file__).parent / "programs" / "kernel_process.py").read_text()
SECONDS = 60.0
NOBODY = 65534
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 38, 24
MODES = ("root", "guest_uid", "user")


@dataclass
class Attacker:
    """A cell, and what it knows."""

    client: AsyncKernelClient
    world: World
    targets: dict[str, Any]
    guest: int = 0

    async def run(self, code: str) -> str:
        heard: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            heard.append(json.dumps(message["content"], default=str))

        reply = await self.client.execute_interactive(code, timeout=SECONDS, output_hook=hear, allow_stdin=False)
        return "".join([*heard, json.dumps(reply["content"], default=str)])

    async def attempt(self, name: str) -> list[str]:
        """What the attack has done to the outside."""
        answer = await self.run(
            f"import json; print(await attempt({name!r}, json.loads({json.dumps(self.targets)!r})))"
        )
        found = await self.world.evidence(answer, self.guest)
        left = [child.pid for child in psutil.Process(self.world.trusted).children() if child.pid != self.guest]
        found += [f"it left processes: {left}"] if left else []
        self.world.reset()
        return found


def attacks() -> list[str]:
    names: dict[str, Any] = {"__name__": "attacks"}
    exec(compile(PROGRAM, "kernel_process.py", "exec"), names)
    return list(names["ATTACKS"])


def check_mode(mode: str) -> None:
    if mode != "user" and os.geteuid() != 0:
        pytest.skip("this is not root")
    if mode == "guest_uid":
        places = (node_binary(), plain_image().path, Path("/tmp"))
        if closed := next((up for path in places if (up := closed_to(NOBODY, path))), None):
            pytest.skip(f"{closed} is closed to others")


def become_a_user() -> None:
    """Root without a root's rights: files are its own, and their modes count, as they do for any user. (Another user
    may not reach the interpreter that runs the tests.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


@contextmanager
def passable_folder() -> Iterator[Path]:
    """With a short path, and open to the guests that are another user."""
    folder = Path(tempfile.mkdtemp(prefix="kma-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def attacker(mode: str, **extra: str) -> AsyncIterator[Attacker]:
    """A kernel as a careless person starts it: in a folder that its guest may write, with it as HOME and PYTHONPATH."""
    with passable_folder() as folder:
        async with surroundings(folder) as world:
            shared, home = folder / "shared", folder / "home"
            for made in (shared, home):
                made.mkdir(mode=0o700)
            as_user = {"preexec_fn": become_a_user} if mode == "user" and os.geteuid() == 0 else {}
            if mode == "guest_uid":
                home.chmod(0o711)
                os.chown(shared, NOBODY, NOBODY)
                extra |= {"KERNELMCP_GUEST_UID": str(NOBODY)}
            packages = {"index_url": None, "pyodide_url": str(home), "install_timeout_seconds": 20}
            environment = {
                **os.environ,
                "HOME": str(shared),
                "TMPDIR": str(home),
                "PYTHONPATH": f"{shared}:",
                "PIP_INDEX_URL": DEAD_INDEX,
                "KERNELMCP_HOME": str(home),
                "KERNELMCP_SANDBOX_DIRECTORY": str(world.sandbox.path),
                "KERNELMCP_VOLUMES": json.dumps([{"name": "shared", "path": str(shared), "mode": "rw"}]),
                "KERNELMCP_PACKAGES": json.dumps(packages),
                "KERNELMCP_KEEP_GLOBALS": "1",
                **extra,
            }
            manager = AsyncKernelManager(kernel_name="kernelmcp", transport="ipc", ip=str(folder / "k"))
            manager.connection_file = str(folder / "k.json")
            await manager.start_kernel(env=environment, cwd=str(shared), **as_user)
            client: AsyncKernelClient = manager.client()
            client.start_channels()
            try:
                await client.wait_for_ready(timeout=SECONDS)
                process = psutil.Process(manager.provisioner.pid)
                world.trusted = process.pid
                payload = f"open({str(world.outside / 'ran')!r}, 'w').write('x')\n"
                found = Attacker(client, world, world.targets() | {"payload": payload, "parent": process.pid})
                world.reset()  # the kernel has emptied the folder of offered files
                await found.run(PROGRAM)
                found.guest = process.children()[0].pid
                yield found
            finally:
                client.stop_channels()
                await manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("mode", MODES)
def test_no_cell_gets_its_code_or_its_text_into_the_kernel_process_or_pip(mode: str) -> None:
    check_mode(mode)

    async def run() -> dict[str, list[str]]:
        async with attacker(mode) as cell:
            await cell.run(f"await attempt('control', {cell.targets!r})")
            assert (cell.world.sandbox.workspace / "control").read_text() == "works"
            return {name: found for name in attacks() if (found := await cell.attempt(name))}

    assert asyncio.run(run()) == {}
