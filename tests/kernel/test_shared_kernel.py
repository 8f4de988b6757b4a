"""A kernel that a file's tests share: what each finds, and what one that breaks it costs the others."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import running_kernel
from .driver import DEADLINE, Broken, Kernel

ROOT = Path(__file__).parents[2]
# A file of three tests, of which the second breaks the kernel: it sleeps, which costs the machine nothing.
THREE_TESTS = """
from tests.kernel import driver
from tests.kernel.conftest import kernel, shared_kernels_answer
patient = driver.Kernel.check.__defaults__
def test_before(kernel):
    assert kernel.run("1").result == "1"
def test_that_breaks_it(kernel):
    driver.Kernel.check.__defaults__ = (1.0,)
    kernel.send("import time; time.sleep(1000)")
def test_after(kernel):
    driver.Kernel.check.__defaults__ = patient
    assert kernel.run("2").result == "2"
"""


@pytest.fixture
def prepared() -> Iterator[Kernel]:
    with running_kernel() as running:
        running.prepare("prepared = 41")
        yield running


def test_one_that_breaks_it_fails_and_the_next_one_has_a_new_kernel(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(THREE_TESTS)
    (tmp_path / "pytest.ini").touch()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(tmp_path / "pytest.ini"),
        "-rA",
        str(tmp_path / "test_three.py"),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * DEADLINE)
    outcomes = [re.sub(r" \S*::| - .*", " ", line).strip() for line in ran.stdout.splitlines() if "::" in line]
    assert outcomes == [
        "PASSED test_before",
        "PASSED test_that_breaks_it",
        "PASSED test_after",
        "ERROR test_that_breaks_it",
    ]
    assert "This test has broken the kernel of its file, which was replaced: it has not answered" in ran.stdout


def test_a_cell_that_still_runs_is_noticed_and_the_new_kernel_is_prepared_alike(prepared: Kernel) -> None:
    before = prepared.process
    prepared.send("import time; time.sleep(1000)")
    with pytest.raises(Broken, match="has not answered for 1 s"):
        prepared.check(1)
    prepared.replace()
    assert prepared.process != before
    assert prepared.run("prepared + 1").result == "42"
    prepared.check()


def test_a_kernel_that_has_ended_is_noticed(prepared: Kernel) -> None:
    os.kill(prepared.process.pid, signal.SIGKILL)
    with pytest.raises(Broken, match="has ended"):
        prepared.check()


def test_a_wrong_answer_is_noticed(prepared: Kernel) -> None:
    prepared.run("import os; del os.chdir")
    with pytest.raises(Broken, match="AttributeError"):
        prepared.check()


def test_a_guest_that_is_new_is_waited_for(prepared: Kernel) -> None:
    prepared.run("import os; os._exit(1)")
    prepared.check(0)
    assert prepared.run("1").result == "1"


def test_the_question_leaves_no_output_and_no_history(kernel: Kernel) -> None:
    count = kernel.run("'seen'").reply["content"]["execution_count"]
    kernel.check()
    ran = kernel.run("_")
    assert (ran.result, ran.reply["content"]["execution_count"]) == ("'seen'", count + 1)


def test_one_that_goes_into_another_folder(kernel: Kernel) -> None:
    assert kernel.run("import os; os.chdir('/tmp'); os.getcwd()").result == "'/tmp'"


def test_leaves_the_next_one_in_the_workspace(kernel: Kernel) -> None:
    assert kernel.run("import os; os.getcwd()").result == "'/workspace'"
