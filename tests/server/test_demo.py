"""`kernelmcp demo`, and what it and doctor say when something is not as it should be."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from kernelmcp.commands import demo
from kernelmcp.commands.demo_cells import steps

from ..processes import command_line
from ..starting import run_kernelmcp
from .support import DEADLINE


def run(command: str, env: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kernelmcp(command, *arguments, env=env, cwd=folder)


def is_a_sentence(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode != 0 and "Traceback" not in done.stderr and done.stderr.startswith("kernelmcp: ")


def test_the_demo_shows_what_it_is_for_and_goes_on_without_an_index(
    server_env: dict[str, str], tmp_path: Path, kernelspec: str
) -> None:
    env = server_env | {"KERNELMCP_PACKAGES__INDEX_URL": "http://127.0.0.1:9/simple"}
    done = run("demo", env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    own = kernelspec == "kernelmcp"
    assert f"{8 if own else 7} of 10 steps did what they should, {2 if own else 3} skipped" in done.stdout
    assert "kernelmcp install claude-desktop --folder" in done.stdout.partition("skipped. Wrote demo.ipynb")[2]
    assert "(12, 5027)" in done.stdout.partition("10. ")[2], "the variables outlive an endless loop"
    assert "[info" not in done.stderr
    notebook = nbformat.read(tmp_path / "demo.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert "image/png" in json.dumps(notebook.cells[1].outputs)
    assert f"{(tmp_path / 'demo.png').stat().st_size:,} bytes: demo.png" in done.stdout
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.size == (480, 250)
    if own:
        assert "skipped: PACKAGE_INSTALL_FAILED: tabulate: the package index 127.0.0.1:9 does not answer" in done.stdout
        tried = done.stdout.partition("7. ")[2].partition("8. ")[0]
        assert len(re.findall("^    refused  ", tried, re.MULTILINE)) == 4
        assert "GOT OUT" not in tried.partition("attempt(")[2]


def test_a_break_out_that_works_fails_the_demo(tmp_path: Path) -> None:
    """The cell itself, in a Python without a sandbox: its attempts are real ones."""
    with demo._targets() as targets:
        [cell] = [step for step in steps(targets.file, targets.port) if "SECRET_FILE" in str(step.arguments)]
        # The third would replace this very process, and then nothing would be printed of the fourth.
        code = cell.arguments["code"].replace('attempt("start a program"', '("start a program"')
        assert not targets.reached("refused  read a file of yours")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE)
        assert re.search(f"GOT OUT  read a file of yours +'{targets.secret}'", done.stdout)
        assert targets.reached("refused"), "somebody has connected"
        assert not targets.reached("refused"), "and that was all"
        assert targets.reached(targets.secret)
        assert targets.reached(done.stdout.replace(targets.secret, ""))


@pytest.mark.parametrize("command", ["demo", "doctor"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"KERNELMCP_HOME": "/proc/nope"},
        {"KERNELMCP_HOME": "/dev/null/x"},
        {"KERNELMCP_POLICY_REQUIRED_LAYERS": "landlock"},
        {"KERNELMCP_VOLUMES__DEFAULT_VOLUME": "/nowhere"},
    ],
    ids=["unwritable", "below a file", "misspelt", "no folder"],
)
def test_what_is_wrong_is_a_sentence_with_a_remedy(
    server_env: dict[str, str], tmp_path: Path, command: str, wrong: dict[str, str]
) -> None:
    done = run(command, server_env | wrong, tmp_path)
    said = done.stdout + done.stderr
    assert (done.returncode != 0, "Traceback" in said) == (True, False), said
    assert next(iter(wrong)).removeprefix("KERNELMCP_").removeprefix("VOLUMES__").lower() in said.lower()
    assert "pip install" not in said
    if command == "demo":
        assert done.stderr.startswith("kernelmcp: ")
        assert len(done.stderr.splitlines()) <= 4


def test_the_server_itself_says_it_in_a_sentence_too(server_env: dict[str, str], tmp_path: Path) -> None:
    assert is_a_sentence(run("serve", server_env | {"KERNELMCP_HOME": "/proc/nope"}, tmp_path))


@pytest.mark.parametrize("output", ["missing/demo.ipynb", "/proc/demo.ipynb", "."])
def test_a_notebook_that_cannot_be_written_is_said_before_anything_starts(
    server_env: dict[str, str], tmp_path: Path, output: str
) -> None:
    done = run("demo", server_env, tmp_path, "--output", output)
    assert (done.returncode, done.stdout, is_a_sentence(done)) == (2, "", True)
    assert "--output" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["demo", "doctor"])
def test_control_c_is_no_traceback(server_env: dict[str, str], tmp_path: Path, command: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "kernelmcp", command],
        env=server_env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # As at a terminal. What an earlier test of this worker, or who started it, ignores would be ignored here too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout
    try:
        if command == "demo":
            assert any("1. " in line for line in process.stdout)
        else:
            assert wait_for_child(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.wait(DEADLINE)
    assert (process.returncode, "Traceback" in said, "kernelmcp: interrupted" in said) == (130, False, True), said


def wait_for_child(pid: int) -> bool:
    """Until it has started its kernel, so that it is at work."""
    import psutil

    from .support import wait_until

    return wait_until(
        lambda: any("kernelmcp_kernel" in " ".join(command_line(one)) for one in psutil.Process(pid).children())
    )
