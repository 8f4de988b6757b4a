"""`kernelmcp setup`: what it says and leaves, and that sessions of a running server have what it prepared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.wheels import serve_index

from .support import Connect

pytestmark = pytest.mark.anyio


def setup(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelmcp", "setup", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


async def test_sessions_of_a_running_server_have_what_was_prepared(
    connect: Connect, server_env: dict[str, str], tmp_path: Path, kernelspec: str
) -> None:
    if kernelspec != "kernelmcp":
        return
    home = tmp_path / "setup-home"
    with serve_index(tmp_path / "index") as index:
        index.add("pure", requires=("helper",))
        index.add("helper")
        settings = {"SERVER__HOME": str(home), "PACKAGES__INDEX_URL": index.url, "PACKAGES__PYODIDE_URL": str(tmp_path)}
        async with connect(**settings) as client:

            async def run(code: str, **arguments: str) -> str:
                result = await client.call_tool("execute_code", {"code": code, **arguments})
                return "\n".join(block.text for block in result.content if block.type == "text")

            assert "ModuleNotFoundError" in await run("import helper")
            environment = server_env | {f"KERNELMCP_{name}": value for name, value in settings.items()}
            done = setup(environment, "pure", "absent")
            assert done.returncode == 1
            assert "[1/2] pure" in done.stdout
            assert "2 packages are prepared" in done.stdout
            assert "the same command goes on" in done.stdout
            assert done.stderr.startswith("kernelmcp: absent: ")
            assert "Traceback" not in done.stderr
            assert setup(environment, "pure").returncode == 0
            asked = len(index.requests)
            assert "Successfully installed helper-1.0" in await run("import helper; helper.version")
            assert "'1.0'" in await run("import pure; pure.version", session_id="another")
            assert index.requests[asked:] == []
            archive = tmp_path / "set.zip"
            assert setup(environment, "--export", str(archive)).returncode == 0
            offline = setup(environment | {"KERNELMCP_SERVER__HOME": str(tmp_path / "far")}, "--offline", str(archive))
            assert (offline.returncode, "2 packages are prepared" in offline.stdout) == (0, True)
            assert setup(environment, "--remove").stdout == "Taken out.\n"
            assert setup(environment, "--remove").stdout == "There was nothing to take out.\n"
            assert "ModuleNotFoundError" in await run("import helper", session_id="third")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--offline", "missing.zip"], 1, "missing.zip"),
        (["--offline", "x.zip", "numpy"], 2, "Leave the names out"),
        (["../evil"], 1, "paths and version control addresses are not taken"),
        (["--", "--index-url=http://x"], 1, "--index-url"),
    ],
)
def test_what_it_cannot_do_it_says_in_a_sentence(
    server_env: dict[str, str], tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    done = setup(server_env | {"KERNELMCP_HOME": str(tmp_path / "home")}, *arguments)
    assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (status, True, False), done
