"""A real server, as a subprocess on stdio, and a real MCP client to it."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.client.extension import ClientExtension
from mcp_types import Implementation

from ..kept import folder_of
from ..starting import DEADLINE, over_stdio, start_server
from .support import Connect

MNT_DETACH = 2  # of umount2
GUEST_UID = 65534


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """The process is not root here, because permissions do not apply to root."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() != 0:
            yield Path(folder)
            return
        os.chown(folder, GUEST_UID, GUEST_UID)
        os.seteuid(GUEST_UID)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


@pytest.fixture(scope="session")
def kernelspec() -> str:
    """The kernel behind the server. Only Jupyter's protocol joins them, so native Python (`python3`) does as well."""
    return os.environ.get("TEST_KERNELSPEC", "kernelmcp")


@pytest.fixture
def server_env(tmp_path: Path, kernelspec: str) -> dict[str, str]:
    return environment_of(tmp_path / "home", kernelspec)


def environment_of(home: Path, kernelspec: str) -> dict[str, str]:
    """Of a server that has this home."""
    return {
        **os.environ,
        "KERNELMCP_HOME": str(home),
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
        "KERNELMCP_KERNELS__KERNELSPEC": kernelspec,
        # test_results.py has what clients get without it.
        "KERNELMCP_TOOLS__STRUCTURED_CONTENT": "always",
        # A test about them says so.
        "KERNELMCP_SESSIONS__AUTOMATIC_CHECKPOINTS": "0",
        # A test about the pool says so.
        "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0",
        # Whatever else runs on this machine.
        "KERNELMCP_SESSIONS__MEMORY_SHARE": "1",
    }


def _link_builds(home: Path) -> None:
    """Of all homes of a machine, so that not each of them keeps its own: that is a thousand links. test_upgrade.py has
    homes without it."""
    shared = folder_of("builds")
    shared.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # there is one, or the home is what a test is about
        home.mkdir(parents=True, exist_ok=True)
        (home / "builds").symlink_to(shared)


@pytest.fixture
def connect(server_env: dict[str, str]) -> Connect:
    """`async with connect(mode="legacy", SESSIONS__INLINE_WAIT_SECONDS="1") as client`."""
    return connecting(server_env)


def connecting(server_env: dict[str, str]) -> Connect:
    """Starts servers with this environment."""

    @asynccontextmanager
    async def connect(
        mode: str = "legacy",
        environment: dict[str, str] | None = None,
        program: str | None = None,
        client_info: Implementation | None = None,
        extensions: Sequence[ClientExtension] | None = None,
        **settings: str,
    ) -> AsyncIterator[Client]:
        env = server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()} | (environment or {})
        _link_builds(Path(env["KERNELMCP_HOME"]))
        with anyio.fail_after(10 * DEADLINE):  # all that a test does with it
            transport = over_stdio(env=env, program=program)
            async with Client(transport, mode=mode, client_info=client_info, extensions=extensions) as client:
                yield client

    return connect


@pytest.fixture
def server_process(server_env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A bare server process, for what a client would never do."""
    process = start_server(env=server_env)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait(DEADLINE)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB, where this user may make one."""
    path = tmp_path / "disk"
    path.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mount") or libc.mount(b"none", bytes(path), b"tmpfs", 0, b"size=16m,mode=0700") != 0:
        pytest.skip("this user may not mount a file system")
    yield path
    libc.umount2(bytes(path), MNT_DETACH)
