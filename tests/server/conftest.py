"""A real server, as a subprocess on stdio, and a real MCP client to it."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp.client.stdio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import Implementation

from .support import DEADLINE, Connect

# A client kills a server that takes longer than two seconds to end, which a busy machine does: what such a server had
# not written yet is then missing from a test that is about something else.
mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT = DEADLINE


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def kernelspec() -> str:
    """The kernel behind the server. Only Jupyter's protocol joins them, so native Python (`python3`) does as well."""
    return os.environ.get("TEST_KERNELSPEC", "kernelmcp")


@pytest.fixture
def server_env(tmp_path: Path, kernelspec: str) -> dict[str, str]:
    return {
        **os.environ,
        "KERNELMCP_HOME": str(tmp_path / "home"),
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
        "KERNELMCP_KERNELS__KERNELSPEC": kernelspec,
        # test_results.py has what clients get without it.
        "KERNELMCP_TOOLS__STRUCTURED_CONTENT": "always",
    }


@pytest.fixture
def connect(server_env: dict[str, str]) -> Connect:
    """`async with connect(mode="legacy", SESSIONS__INLINE_WAIT_SECONDS="1") as client`."""

    @asynccontextmanager
    async def connect(
        mode: str = "legacy",
        environment: dict[str, str] | None = None,
        program: str | None = None,
        client_info: Implementation | None = None,
        **settings: str,
    ) -> AsyncIterator[Client]:
        env = server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()} | (environment or {})
        arguments = ["-m", "kernelmcp"] if program is None else ["-c", program]
        server = StdioServerParameters(command=sys.executable, args=arguments, env=env)
        with anyio.fail_after(10 * DEADLINE):  # all that a test does with it
            async with Client(server, mode=mode, client_info=client_info) as client:
                yield client

    return connect


@pytest.fixture
def server_process(server_env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A bare server process, for what a client would never do."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelmcp"], env=server_env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.wait(DEADLINE)
