"""The real server with upstreams: what its kernels do not get, what ends with it, and what it costs without any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ..processes import command_line, descendants
from ..server.conftest import *  # noqa: F403  # its fixtures
from ..server.support import Connect, server_of_test, wait_until
from ..starting import start_server
from .conftest import on_stdio

pytestmark = [pytest.mark.anyio, pytest.mark.cold]
SECRET = "correct-horse-battery-staple"


def upstream_processes(server: psutil.Process) -> list[psutil.Process]:
    return [one for one in server.children(recursive=True) if "crm_server.py" in " ".join(command_line(one))]


async def test_no_kernel_gets_a_variable_that_names_a_secret(connect: Connect, tmp_path: Path) -> None:
    config = tmp_path / "mcp.toml"
    # The upstream needs it to start: it has got it.
    more = "env = { MCP_SECRET = '${CRM_TOKEN}' }"
    config.write_text(on_stdio("crm", "crm_server.py", more=more))
    environment = {"CRM_TOKEN": SECRET, "PLAIN": "as it was"}
    async with connect(CONFIG_FILE=str(config), environment=environment) as client:
        code = "import os; [dict(os.environ), open('/proc/self/environ').read() if os.path.exists('/proc') else '']"
        result = await client.call_tool("execute_code", {"code": code})
        assert SECRET not in str(result)
        server = server_of_test()
        assert wait_until(lambda: bool(upstream_processes(server)))
        [upstream] = upstream_processes(server)
        assert upstream.environ()["MCP_SECRET"] == SECRET
        assert "PLAIN" not in upstream.environ()
        kernels = [one for one in server.children() if any(part.endswith(".json") for part in one.cmdline())]
        assert kernels
        for process in (one for kernel in kernels for one in (kernel, *descendants(kernel.pid))):
            assert SECRET not in str(process.environ())
        assert kernels[0].environ()["PLAIN"] == "as it was"


async def test_a_server_that_is_added_while_it_runs_is_started_and_one_that_is_taken_out_ends(
    connect: Connect, tmp_path: Path
) -> None:
    config = tmp_path / "settings" / "mcp.toml"
    config.parent.mkdir()
    config.write_text("")
    async with connect(CONFIG_FILE=str(config)) as client:
        await client.call_tool("execute_code", {"code": "1"})
        server = server_of_test()
        assert upstream_processes(server) == []
        config.write_text(on_stdio("crm", "crm_server.py"))
        assert wait_until(lambda: len(upstream_processes(server)) == 1)
        config.write_text("")
        assert wait_until(lambda: upstream_processes(server) == [])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_upstream_outlives_the_server_however_that_ends(
    server_env: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    config = tmp_path / "mcp.toml"
    # One that takes no notice of anything, and what it has started.
    config.write_text(
        on_stdio("bad", "hostile_server.py", "stays") + on_stdio("more", "hostile_server.py", "a-child-that-stays")
    )
    process = start_server("--config", str(config), env=server_env)

    def upstreams() -> list[psutil.Process]:
        return [
            one
            for one in psutil.Process(process.pid).children(recursive=True)
            if "hostile_server.py" in " ".join(one.cmdline()) or "time.sleep(3600)" in " ".join(one.cmdline())
        ]

    assert wait_until(lambda: len(upstreams()) == 3)
    found = upstreams()
    os.kill(process.pid, number)
    process.wait(60)
    assert wait_until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in found))


def test_a_server_without_upstreams_imports_nothing_for_them() -> None:
    code = (
        "import sys, kernelmcp.mcp_server.assemble, kernelmcp.kernel.pool\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('kernelmcp.upstreams', 'kernelmcp.config'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert "kernelmcp.config.upstream_settings" in loaded
    assert not {name for name in loaded if name.startswith("kernelmcp.upstreams.")}
    assert "kernelmcp.config.client_files" not in loaded
