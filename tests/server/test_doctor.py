"""`kernelmcp doctor`: its verdicts come from trying, so a kernel without a sandbox must fail every one of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..starting import run_kernelmcp

REQUIRED = ("wasm", "node-permission", "empty-environment", "closed-descriptors")
NEEDS_A_SANDBOX = (
    "python_file",
    "python_write",
    "python_process",
    "environment",
    "descriptors",
    "python_socket",
)


def doctor(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp("doctor", *arguments, env=env)


def report(env: dict[str, str], kernelspec: str) -> tuple[int, dict[str, Any]]:
    done = doctor(env | {"KERNELMCP_KERNELS__KERNELSPEC": kernelspec}, "--json")
    return done.returncode, json.loads(done.stdout)


def test_the_layers_of_the_sandboxed_kernel_are_proven_by_trying(server_env: dict[str, str]) -> None:
    status, found = report(server_env, "kernelmcp")
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert (status, found["problems"]) == (0, [])
    assert [name for name in REQUIRED if not (layers[name]["active"] and layers[name]["proven"])] == []
    tried = {attempt["name"]: attempt["contained"] for attempt in found["attempts"]}
    assert None not in tried.values()
    assert {name: tried[name] for name in NEEDS_A_SANDBOX} == dict.fromkeys(NEEDS_A_SANDBOX, True)
    assert found["boot_image"]["state"] == "in use"
    assert found["versions"]["guest pyodide"]


def test_the_attempts_get_through_in_a_kernel_without_a_sandbox(server_env: dict[str, str]) -> None:
    status, found = report(server_env, "python3")
    tried = {attempt["name"]: attempt["contained"] for attempt in found["attempts"]}
    assert {name: tried[name] for name in NEEDS_A_SANDBOX} == dict.fromkeys(NEEDS_A_SANDBOX, False)
    layers = {layer["name"]: layer["active"] for layer in found["layers"]}
    assert {name: layers[name] for name in REQUIRED} == dict.fromkeys(REQUIRED, False)
    assert status == 0  # nothing is required of a kernel that somebody chose


def test_a_guest_that_does_not_start_proves_nothing(server_env: dict[str, str], tmp_path: Path) -> None:
    """Our own kernel, with a volume that is not there."""
    volume = json.dumps([{"name": "gone", "path": str(tmp_path / "gone"), "mode": "ro"}])
    program = (
        f"import os, runpy; os.environ['KERNELMCP_VOLUMES'] = {volume!r};"
        "runpy.run_module('kernelmcp_kernel', run_name='__main__', alter_sys=True)"
    )
    spec = {"argv": [sys.executable, "-c", program, "-f", "{connection_file}"], "display_name": "", "language": ""}
    folder = tmp_path / "kernels" / "kernelmcp"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec | {"interrupt_mode": "message"}))
    status, found = report(server_env | {"JUPYTER_PATH": str(tmp_path)}, "kernelmcp")
    assert {attempt["contained"] for attempt in found["attempts"]} == {None}
    assert {layer["name"] for layer in found["layers"]} >= set(REQUIRED)
    assert {(layer["active"], layer["proven"]) for layer in found["layers"]} == {(False, False)}
    assert status == 1
    assert any("the sandbox could not start" in problem["what"] for problem in found["problems"])


def test_a_missing_kernelspec_fails_and_says_what_to_do(server_env: dict[str, str]) -> None:
    done = doctor(server_env | {"KERNELMCP_KERNELS__KERNELSPEC": "nothing"})
    assert done.returncode == 1
    assert "there is no Jupyter kernelspec named 'nothing'" in done.stdout
    assert "jupyter kernelspec list" in done.stdout


def test_the_table_says_what_is_not_contained(server_env: dict[str, str]) -> None:
    env = server_env | {"KERNELMCP_KERNELS__KERNELSPEC": "python3"}  # it has no sandbox, so much gets through
    found = json.loads(doctor(env, "--json").stdout)
    through = [attempt["title"] for attempt in found["attempts"] if attempt["contained"] is False]
    assert len(through) >= len(NEEDS_A_SANDBOX)
    [line] = [line for line in doctor(env).stdout.splitlines() if line.startswith("NOT CONTAINED: ")]
    assert line == f"NOT CONTAINED: {'; '.join(through)}."


@pytest.mark.cold
def test_a_server_refuses_to_start_without_a_layer_that_is_required(server_env: dict[str, str]) -> None:
    """None has all: Seatbelt is macOS's, seccomp Linux's."""
    env = server_env | {"KERNELMCP_POLICY__REQUIRED_LAYERS": '["wasm", "seccomp", "seatbelt"]'}
    done = run_kernelmcp(env=env)
    assert done.returncode == 1
    assert "required_layers: this machine does not have se" in done.stderr
    assert done.stdout == ""
