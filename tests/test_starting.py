"""A fork of the fork server is what was asked for: as a new interpreter would be."""

import json
import os
import select
import signal
import subprocess
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
from mcp import Client

from . import starting
from .processes import command_line
from .starting import DEADLINE, over_stdio, run_kernelmcp, server_command, start_server


@pytest.fixture(params=["forked", "cold"])
def env(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(starting, "cold", request.param == "cold")
    return {**os.environ, "KERNELMCP_HOME": str(tmp_path / "home"), "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0"}


def test_arguments_output_and_status_are_those_of_the_command(env: dict[str, str]) -> None:
    done = run_kernelmcp("--version", env=env)
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "kernelmcp", "")
    done = run_kernelmcp("serve", "--nonsense", env=env)
    assert (done.returncode, done.stdout, "--nonsense" in done.stderr) == (2, "", True)


def test_environment_and_working_directory_are_its_own(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mcp.toml").write_text("[server]\nname = 'x'\n[nonsense]\n")
    done = run_kernelmcp("serve", "--config", "mcp.toml", env=env, cwd=tmp_path)
    assert (done.returncode, "nonsense: there is no such setting" in done.stderr) == (2, True)
    done = run_kernelmcp("serve", env=env | {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "many"})
    assert (done.returncode, "KERNELMCP_SESSIONS__WARM_POOL_SIZE" in done.stderr) == (2, True)


def test_it_is_a_child_of_this_process_with_its_own_command_line(env: dict[str, str]) -> None:
    with start_server("serve", "--log-level", "error", env=env) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        found = psutil.Process(process.pid)
        assert found.ppid() == os.getpid()
        assert [word for word in command_line(found)[1:] if word] == [
            "-m",
            "kernelmcp",
            "serve",
            "--log-level",
            "error",
        ]
        process.send_signal(signal.SIGKILL)
        assert process.wait(DEADLINE) == -signal.SIGKILL


def test_a_server_that_another_program_starts_is_the_command_and_ends_with_it(env: dict[str, str]) -> None:
    command = [*server_command(), "serve"]
    done = subprocess.run([*command, "--nonsense"], env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, "--nonsense" in done.stderr) == (2, "", True)
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.kill()
        assert select.select([process.stdout], [], [], DEADLINE)[0]
        assert process.stdout.read() == b"", "nobody is left who could write"


def test_a_fork_offers_what_a_start_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and schemas that the fork server has built are those that the server would have built."""

    async def offered(*, cold: bool) -> list[object]:
        monkeypatch.setattr(starting, "cold", cold)
        env = {**os.environ, "KERNELMCP_HOME": str(tmp_path / f"{cold}"), "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0"}
        async with Client(over_stdio(env=env), mode="legacy") as client:
            answers = [
                await client.list_tools(),
                await client.list_resources(),
                await client.list_resource_templates(),
                await client.list_prompts(),
                *[await client.call_tool(name, {"cod": 1}) for name in ("execute_code", "read_file", "get_sessions")],
            ]
            return [answer.model_dump(by_alias=True) for answer in answers]

    assert anyio.run(partial(offered, cold=False)) == anyio.run(partial(offered, cold=True))


def test_what_the_interpreter_reads_when_it_starts_is_not_forked(env: dict[str, str]) -> None:
    with start_server("--version", env=env | {"PYTHONHASHSEED": "1"}, stdin=subprocess.DEVNULL) as process:
        assert not isinstance(process, starting.Forked)
        assert process.wait(DEADLINE) == 0


def test_what_cannot_be_forked_says_why(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no fork: FileNotFoundError"):
        start_server(env=os.environ, cwd=tmp_path / "missing")
