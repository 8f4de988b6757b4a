"""Nothing that the server or its kernels import, run or read as configuration may lie where a guest can write."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..processes import command_line
from ..starting import run_kernelmcp
from .support import Connect

pytestmark = pytest.mark.cold
DEADLINE = 60

UP_AND_WRITE = """
import os, pyodide_js
options = pyodide_js.FS.lookupPath('/workspace').node.mount.opts
options.root = os.path.dirname(options.root)
try:
    open('/workspace/packaging.py', 'w').write('x')
    print('it could')
except OSError as error:
    print('refused')
"""


def sandboxes_with(file: str, sandboxes: Path) -> list[Path]:
    return [workspace.parent for workspace in sandboxes.glob("*/workspace") if (workspace / file).exists()]


def kernels_of(server: psutil.Process) -> list[psutil.Process]:
    return [child for child in server.children(recursive=True) if "kernelmcp_kernel" in command_line(child)]


@pytest.mark.anyio
async def test_the_folder_above_a_workspace_is_shut_also_after_files_moved_into_a_warm_kernel(
    connect: Connect, server_env: dict[str, str], kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("only our kernel keeps a guest from anything")
    sandboxes = Path(server_env["KERNELMCP_HOME"], "sandboxes")
    async with connect() as client:

        async def run(code: str) -> str:
            result = await client.call_tool("execute_code", {"code": code, "session_id": "s"})
            return "".join(str(getattr(block, "text", "")) for block in result.content)

        assert "kept" in await run("print(open('a.txt', 'w').write('kept') and 'kept')")
        assert "refused" in await run(UP_AND_WRITE)
        for _ in range(2):
            await client.call_tool("reset_workspace", {"session_id": "s", "scope": "variables"})
            assert "kept" in await run("print(open('a.txt').read())")
            assert "17" in await run("import os; os.makedirs('d/e'); open('d/e/f', 'w').write('x'); print(17)")
            await run("import shutil; shutil.rmtree('d')")
            assert "refused" in await run(UP_AND_WRITE)
        (bound,) = sandboxes_with("a.txt", sandboxes)
        assert sorted(os.listdir(bound)) == ["tmp", "workspace"]
        assert not bound.stat().st_mode & 0o222


@pytest.mark.anyio
async def test_a_kernel_runs_where_no_guest_writes_and_imports_nothing_from_there(
    connect: Connect, server_env: dict[str, str], kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        pytest.skip("only our kernel keeps a guest from anything")
    async with connect(SESSIONS__WARM_POOL_SIZE="1") as client:
        await client.call_tool("execute_code", {"code": "1"})
        kernels = kernels_of(psutil.Process())
        assert kernels
        for kernel in kernels:
            assert kernel.cwd() == "/"
            assert "-P" in kernel.cmdline()


def serve(folder: Path, env: dict[str, str], **settings: str) -> subprocess.CompletedProcess[str]:
    """A server that ends with its input, started in this folder."""
    return run_kernelmcp(cwd=folder, env=env | settings)


def test_a_server_imports_nothing_from_its_working_directory(tmp_path: Path, server_env: dict[str, str]) -> None:
    for name in ("anyio", "structlog", "pydantic", "mcp", "zmq"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    done = serve(tmp_path, server_env)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "variable",
    ["", "PYTHONPATH", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME", "HOME", "JUPYTER_PATH", "TMPDIR", "KERNELMCP_CONFIG_FILE"],
)
def test_a_writable_volume_with_what_trusted_code_reads_is_refused(
    tmp_path: Path, server_env: dict[str, str], variable: str
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    value: Any = {"PIP_CONFIG_FILE": volume / "pip.conf", "KERNELMCP_CONFIG_FILE": volume / "mcp.toml"}.get(
        variable, volume
    )
    (volume / "mcp.toml").write_text("")
    config = tmp_path / "config.toml"
    text = f'[volumes]\nshared = {{ path = "{volume}", mode = "rw" }}\n'
    (volume / "mcp.toml" if variable == "KERNELMCP_CONFIG_FILE" else config).write_text(text)
    started_in = tmp_path if variable else volume
    done = serve(
        started_in,
        {**os.environ, **server_env, "KERNELMCP_CONFIG_FILE": str(config)},
        **({variable: str(value)} if variable else {}),
    )
    assert done.returncode != 0
    assert "volumes.shared" in done.stderr


PLANTED = (
    "anyio", "asyncio", "encodings", "httpx2", "jupyter_client", "kernelmcp", "kernelmcp_kernel", "mcp", "mcp_types",
    "pip", "psutil", "pydantic", "sitecustomize", "starlette", "structlog", "traitlets", "usercustomize", "watchfiles",
    "zmq",
)  # fmt: skip


@pytest.mark.parametrize("shared", [False, True], ids=["a stranger's", "a volume"])
@pytest.mark.parametrize(
    "command",
    [
        ["replay", "report.ipynb"],
        ["demo"],
        ["doctor"],
        ["audit"],
        ["install", "claude-desktop", "--dry-run"],
        ["skills", "list"],
        ["upstreams", "list"],
        ["serve"],
    ],
    ids=lambda command: command[0],
)
def test_no_command_reads_what_lies_in_its_working_directory(
    tmp_path: Path, server_env: dict[str, str], command: list[str], shared: bool
) -> None:
    """A folder that guests write, or a repository that somebody else has made."""
    folder, ran = tmp_path / "shared", tmp_path / "ran"
    planted = [folder / name / "__init__.py" for name in PLANTED]
    for file in planted:
        file.parent.mkdir(parents=True)
        file.write_text(f"open({str(ran)!r}, 'a').write({file.parent.name!r} + ' ')\n")
        os.utime(file, (0, file.stat().st_mtime))  # the first that reads it changes the time
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "source": "print(6)"}
    (folder / "report.ipynb").write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": [cell]}))
    script = str(Path(sys.executable).with_name("kernelmcp"))  # `python -m` itself looks into the folder first
    with (tmp_path / "err").open("w+") as err:
        process = subprocess.Popen(
            [script, *command],
            cwd=folder,
            env=server_env
            | ({"KERNELMCP_VOLUMES__SHARED": json.dumps({"path": str(folder), "mode": "rw"})} if shared else {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        if command == ["serve"]:  # without a client it would not start anything
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            process.stdin.flush()
            assert process.stdout.readline()
        process.communicate()
        err.seek(0)
        said = err.read()
    assert (process.returncode, "Traceback" in said) == (0, False), said
    assert not ran.exists(), ran.read_text()
    assert [file.parent.name for file in planted if file.stat().st_atime] == []
    planted[0].read_bytes()
    assert planted[0].stat().st_atime or os.statvfs(folder).f_flag & os.ST_NOATIME, (
        "this file system keeps no such times"
    )
