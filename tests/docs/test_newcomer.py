"""The README as a newcomer follows it: a fresh clone and environment, and each client's command in a fresh home."""

import ensurepip
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import TextContent

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS, RUN_SECONDS = 900, 300
FOLDER = "kernelmcp"


def run(command: str, folder: Path, env: dict[str, str], seconds: int = RUN_SECONDS) -> str:
    """A line of the README, in a shell."""
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


async def first_call(entry: dict[str, Any]) -> tuple[int, str]:
    """How many tools the client is shown, and what a cell reads from the shared folder."""
    found = entry["command"]
    command: list[str] = found if isinstance(found, list) else [found, *entry["args"]]
    # As clients do: the variables of the entry and a few of the user's own, and no shell of an environment.
    variables = entry.get("env") or entry.get("environment") or {}
    no_second_kernel = {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0"}
    server = StdioServerParameters(command=command[0], args=command[1:], env=variables | no_second_kernel)
    with anyio.fail_after(RUN_SECONDS):
        async with Client(stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            code = {"code": "print(open('/volumes/shared/sales.csv').read())"}
            text = (await client.call_tool("execute_code", code)).content[0]
            assert isinstance(text, TextContent)
            return len(tools), text.text


@pytest.mark.slow
def test_the_readmes_commands_lead_to_a_working_server_in_every_client(tmp_path: Path) -> None:
    clone, environment, home = tmp_path / "clone", tmp_path / "environment", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=RUN_SECONDS)
    venv.create(environment)
    # The pip that venv would bring, which takes longer to unpack and compile itself.
    uv = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--python", environment / "bin" / "python"]
    subprocess.run([*uv, f"pip=={ensurepip.version()}"], check=True, timeout=INSTALL_SECONDS)
    foreign = ("KERNELMCP_", "XDG_", "PYTHON", "VIRTUAL_ENV", "CLAUDE_", "CODEX_")
    machine = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # How the registries are reached is the machine's, and may be in its user's home.
    machine["PATH"] = f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    machine["PIP_NO_COMPILE"] = "1"
    env = machine | {"HOME": str(home), "KERNELMCP_HOME": str(tmp_path / "data")}
    readme = (clone / "README.md").read_text("utf-8")
    install, _, demo = next(iter(re.findall(r"^    (pip install \. && kernelmcp demo)$", readme, re.M))).partition(
        " && "
    )
    run(f"{install} --quiet", clone, machine, INSTALL_SECONDS)
    assert "Wrote demo.ipynb" in run(demo, clone, env)

    commands = re.findall(r"^\| .+? \| `(kernelmcp install \S+ .*?)` \|$", readme, re.M)
    assert len(commands) == 9
    for command in commands:
        run(command, clone, env)
    shared = home / FOLDER
    (shared / "sales.csv").write_text("month,sum\n1,42\n")
    files = [file for file in home.rglob("*") if file.suffix in (".json", ".toml")]
    assert len(files) == len(commands)
    tools = len(re.findall(r"^\| `\w+` \|", readme, re.M))
    for name in ("claude_desktop_config.json", "config.toml", "opencode.json"):  # one of each form; doctor starts all
        text = next(file for file in files if file.name == name).read_text("utf-8")
        [servers] = (tomllib.loads(text) if name.endswith(".toml") else json.loads(text)).values()
        count, shown = anyio.run(first_call, servers["kernelmcp"])
        assert (count, shown.startswith("month,sum\n1,42\n")) == (tools, True), name

    report = json.loads(run("kernelmcp doctor --json", clone, env))
    assert [said for said in report["clients"].values() if not said.startswith("works: ")] == []
    assert len(report["clients"]) == len(commands)
    for command in commands:
        run(f"{command} --uninstall", clone, env)
    assert [file for file in files if "kernelmcp" in file.read_text("utf-8")] == []
    run("pip uninstall --yes kernelmcp", clone, machine)
    assert not (environment / "bin" / "kernelmcp").exists()
    assert (shared / "sales.csv").exists()
