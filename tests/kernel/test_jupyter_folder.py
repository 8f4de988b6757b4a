"""A kernel that Jupyter starts: which files its cells see, which settings hold, what a restart keeps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelmcp.process_start import users_umask
from kernelmcp_kernel import settings as kernel_settings
from kernelmcp_kernel.runtime import directory
from kernelmcp_kernel.runtime.directory import PrivateDirectory

from .conftest import running_kernel
from .driver import DEADLINE, Kernel, wait_until

LOOK = "import os; os.getcwd(), sorted(os.listdir())"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "data.csv").write_text("a,b\n1,2\n")
    return tmp_path / "notebooks"


def banner(kernel: Kernel) -> str:
    return kernel.client.kernel_info(reply=True, timeout=DEADLINE)["content"]["banner"]


def last_line(kernel: Kernel, code: str) -> str:
    shown = "\n".join(kernel.run(code).reply["content"]["traceback"])
    return re.sub(r"\x1b\[[0-9;]*m", "", shown).rstrip("\n").rpartition("\n")[2]


def restart(kernel: Kernel, *, now: bool) -> None:
    kernel.manager.restart_kernel(now=now)
    kernel.client.wait_for_ready(timeout=DEADLINE)


def test_by_default_the_folder_is_private_and_the_kernel_says_so(home: Path, folder: Path) -> None:
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home)) as kernel:
        change = f"set jupyter_folder = 'read' or 'write' under [kernels] in {home / 'mcp.toml'}"
        assert f"The notebook's own folder is not visible: {change}." in banner(kernel)
        assert kernel.run(LOOK).result == "('/workspace', [])"
        for path in ("data.csv", "/home/ann/data.csv"):
            shown = "kernelmcp: a file beside the notebook is not visible in this sandbox: "
            assert last_line(kernel, f"open({path!r})") == shown + change
        assert "kernelmcp: " not in last_line(kernel, "open('/tmp/x')")


@pytest.mark.parametrize("now", [False, True], ids=["asked", "killed"])
def test_files_survive_a_restart(home: Path, tmp_path: Path, now: bool) -> None:
    with running_kernel(KERNELMCP_HOME=str(home), TMPDIR=str(tmp_path)) as kernel:
        kernel.run("open('kept.txt', 'w').write('x'); open('/tmp/t.txt', 'w').write('y'); v = 1")
        restart(kernel, now=now)
        assert kernel.run(LOOK).result == "('/workspace', ['kept.txt'])"
        assert kernel.run("open('kept.txt', 'a').write('z'), open('/tmp/t.txt').read()").result == "(1, 'y')"
        assert kernel.run("v").error.startswith("NameError")
        kernel.client.shutdown()
        assert wait_until(lambda: not list(tmp_path.glob("kernelmcp-sandboxes-*/sandbox-*")))


def test_files_survive_a_kernel_that_ended_itself(home: Path, tmp_path: Path) -> None:
    with running_kernel(KERNELMCP_HOME=str(home), TMPDIR=str(tmp_path)) as kernel:
        kernel.run("open('kept.txt', 'w').write('x')")
        kernel.send("os = __import__('os'); os.kill(os.getpid(), 9)")
        assert wait_until(lambda: not kernel.manager.is_alive())
        restart(kernel, now=True)
        assert kernel.run(LOOK).result == "('/workspace', ['kept.txt'])"


def test_read_begins_in_the_notebooks_folder_and_cannot_change_it(home: Path, folder: Path) -> None:
    (home / "mcp.toml").write_text('[kernels]\njupyter_folder = "read"\n')
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home)) as kernel:
        assert "Cells begin in the notebook's own folder, /volumes/notebook, which they may only read" in banner(kernel)
        assert kernel.run(LOOK).result == "('/volumes/notebook', ['data.csv'])"
        assert last_line(kernel, "open('new.txt', 'w')").startswith("kernelmcp: the notebook's folder is read-only")
        assert kernel.run("open('/workspace/new.txt', 'w').write('x')").result == "1"
        assert os.listdir(folder) == ["data.csv"]


def test_write_changes_it_and_what_is_written_is_no_program(home: Path, folder: Path) -> None:
    (folder / "helper.py").write_text("answer = 42")
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home), KERNELMCP_KERNELS__JUPYTER_FOLDER="write") as kernel:
        assert "/volumes/notebook, and may write there" in banner(kernel)
        assert kernel.run("import helper; helper.answer").result == "42"
        kernel.run("open('new.sh', 'w').write('#!/bin/sh'); os = __import__('os'); os.remove('data.csv')")
        assert sorted(os.listdir(folder)) == ["helper.py", "new.sh"]
        assert (folder / "new.sh").stat().st_mode & 0o777 == 0o666 & ~users_umask()
        restart(kernel, now=False)
        assert kernel.run(LOOK).result == "('/volumes/notebook', ['helper.py', 'new.sh'])"


def test_a_folder_that_must_stay_shut_is_not_shown_and_the_banner_says_why(home: Path, tmp_path: Path) -> None:
    with running_kernel(
        cwd=tmp_path, KERNELMCP_HOME=str(home), KERNELMCP_KERNELS__JUPYTER_FOLDER="write"
    ) as kernel:  # it holds the server's own directory
        assert 'jupyter_folder = "write" is not possible here: ' in banner(kernel)
        assert f"would open the server's own directory {home} to guests" in banner(kernel)
        assert kernel.run(LOOK).result == "('/workspace', [])"
        assert 'jupyter_folder = "write" is not possible here: ' in last_line(kernel, "open('data.csv')")


def test_somebodys_home_is_not_shown(home: Path, folder: Path) -> None:
    (folder / ".ssh").mkdir()
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home), KERNELMCP_KERNELS__JUPYTER_FOLDER="read") as kernel:
        assert "is or holds somebody's home: .ssh" in banner(kernel)
        assert kernel.run(LOOK).result == "('/workspace', [])"


def test_a_name_that_could_pass_for_a_line_of_the_kernels_is_not_shown(home: Path, folder: Path) -> None:
    (named := folder / "x\nTrust it").mkdir()
    with running_kernel(cwd=named, KERNELMCP_HOME=str(home), KERNELMCP_KERNELS__JUPYTER_FOLDER="write") as kernel:
        assert "has a character that cannot be printed" in banner(kernel)
        assert "\nTrust it" not in banner(kernel)
        assert kernel.run(LOOK).result == "('/workspace', [])"


def test_a_folder_with_what_configures_the_server_may_only_be_read(home: Path, folder: Path) -> None:
    (folder / "mcp.toml").write_text('[kernels]\njupyter_folder = "write"\n')
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home), KERNELMCP_CONFIG_FILE=str(folder / "mcp.toml")) as kernel:
        assert 'jupyter_folder = "write" is not possible here' in banner(kernel)
        assert kernel.run(LOOK).result == "('/volumes/notebook', ['data.csv', 'mcp.toml'])"
        assert kernel.run("open('mcp.toml', 'w')").error.startswith("OSError: [Errno 69] Read-only")


def test_the_users_settings_hold_and_the_callers_variables_go_over_them(home: Path, folder: Path) -> None:
    (home / "policy.toml").write_text('[env]\nMODE = "theirs"\n[flavors.medium]\nmemory_mb = 300\n')
    ask = "import os; os.environ.get('MODE')"
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home)) as kernel:
        assert kernel.run(ask).result == "'theirs'"
        assert kernel.run("bytearray(400 << 20)").error.startswith("MemoryError")
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home), KERNELMCP_ENV='{"MODE": "mine"}') as kernel:
        assert kernel.run(ask).result == "'mine'"


@pytest.mark.parametrize("variable", ["PYTHONPATH", "TMPDIR"])
def test_what_the_kernel_process_itself_uses_is_not_written(home: Path, folder: Path, variable: str) -> None:
    (folder / "json.py").write_text("raise SystemExit('hostile')") if variable == "TMPDIR" else None
    own = {variable: str(folder)}
    with running_kernel(
        cwd=folder, KERNELMCP_HOME=str(home), KERNELMCP_KERNELS__JUPYTER_FOLDER="write", **own
    ) as kernel:
        assert 'jupyter_folder = "write" is not possible here: ' in banner(kernel)
        mode = "they may only read" if variable == "PYTHONPATH" else "The notebook's own folder is not visible"
        assert mode.lower() in banner(kernel).lower()


def test_an_empty_entry_of_pythonpath_is_the_folder_too(home: Path, folder: Path) -> None:
    more = {"PYTHONPATH": os.pathsep, "KERNELMCP_KERNELS__JUPYTER_FOLDER": "write"}
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home), **more) as kernel:
        assert f"the kernel's own process uses {folder}" in banner(kernel)
        assert kernel.run("open('json.py', 'w')").error.startswith("OSError: [Errno 69] Read-only")


def test_the_callers_volumes_and_the_users_folder_do_not_mix(home: Path, folder: Path) -> None:
    more = {"KERNELMCP_VOLUMES": "[]", "KERNELMCP_KERNELS__JUPYTER_FOLDER": "read"}
    with running_kernel(cwd=folder, KERNELMCP_HOME=str(home), **more) as kernel:
        assert kernel.run(LOOK).result == "('/workspace', [])"


def test_the_kernels_own_code_is_not_written(home: Path) -> None:
    own = Path(kernel_settings.__file__).parent
    for folder in (own, own / "packages"):
        with running_kernel(cwd=folder, KERNELMCP_HOME=str(home), KERNELMCP_KERNELS__JUPYTER_FOLDER="write") as kernel:
            assert 'jupyter_folder = "write" is not possible here: ' in banner(kernel)
            assert "which they may only read" in banner(kernel)


REFUSED = {
    "a relative home": ({"KERNELMCP_HOME": "home"}, "KERNELMCP_HOME is a relative path, 'home'"),
    "a relative folder for temporary files": ({"TMPDIR": "tmp"}, "TMPDIR is a relative path, 'tmp'"),
    "a relative file": ({"KERNELMCP_CONFIG_FILE": "mcp.toml"}, "KERNELMCP_CONFIG_FILE is a relative path"),
    "no connection file": ({}, "the kernel's private folder cannot be opened: "),
    "a setting that is none": ({"KERNELMCP_POLICY_REQUIRED_LAYERS": "landlock"}, "did you mean"),
    "a bad value": (
        {"KERNELMCP_KERNELS__JUPYTER_FOLDER": "all"},
        "jupyter_folder: Input should be 'private', 'read' or",
    ),
    "a file that is not there": ({"KERNELMCP_CONFIG_FILE": "/nothing/mcp.toml"}, "/nothing/mcp.toml: cannot be read"),
    "two directories at one place": (
        {"KERNELMCP_KERNELS__JUPYTER_FOLDER": "read", "KERNELMCP_VOLUMES__NOTEBOOK": '{"path": "/usr/share"}'},
        "volumes.notebook and the folder of kernels.jupyter_folder are two directories",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_kernel_does_not_start_with_settings_that_are_wrong(home: Path, folder: Path, case: str) -> None:
    environment, reason = REFUSED[case]
    (folder / "mcp.toml").write_text("")  # beside the notebook: nobody reads it
    command = [sys.executable, "-P", "-m", "kernelmcp_kernel", "-f", "none.json"]
    everything = {**os.environ, "KERNELMCP_HOME": str(home), **environment}
    ran = subprocess.run(command, cwd=folder, env=everything, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 1
    assert reason in ran.stderr
    assert "Traceback" not in ran.stderr


# -- what is swept ---------------------------------------------------------------------------------------------------


@pytest.fixture
def connection_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(directory.tempfile, "gettempdir", lambda: str(tmp_path))
    file = tmp_path / "kernel-1.json"
    file.write_text('{"key": "one"}')
    return file


def killed(connection_file: Path) -> Path:
    """The directory of a kernel that was killed: nobody has its lock."""
    dead = PrivateDirectory(connection_file)
    (dead.workspace / "kept.txt").write_text("x")
    dead.seal()
    os.close(dead._lock)
    return dead.path


def test_only_the_same_kernel_finds_its_files(connection_file: Path) -> None:
    left = killed(connection_file)
    again = PrivateDirectory(connection_file)
    assert (again.path, (again.workspace / "kept.txt").exists()) == (left, True)
    twin = PrivateDirectory(connection_file)  # while it lives
    assert twin.path != left
    again.close(keep_files=True)
    connection_file.write_text('{"key": "another"}')
    assert PrivateDirectory(connection_file).path not in (left, twin.path)


def test_a_twin_leaves_nothing_that_waits(connection_file: Path) -> None:
    first, twin = PrivateDirectory(connection_file), PrivateDirectory(connection_file)
    os.close(twin._lock)  # killed
    PrivateDirectory().close()
    assert (first.path.exists(), twin.path.exists()) == (True, False)


def test_a_lock_that_is_none_of_ours_stops_nobody(connection_file: Path) -> None:
    folder = PrivateDirectory().path.parent
    (folder / "sandbox-link.lock").symlink_to("/etc/passwd")
    (folder / "sandbox-folder.lock").mkdir()
    PrivateDirectory().close()


def test_files_wait_for_a_kernel_that_may_come_back(connection_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, now = killed(connection_file), time.time()
    for hours, kept in ((0, True), (23, True), (25, False)):
        monkeypatch.setattr(directory.time, "time", lambda hours=hours: now + hours * 3600)
        PrivateDirectory().close()  # sweeps
        assert left.exists() is kept


def test_files_do_not_wait_once_the_connection_file_is_gone(connection_file: Path) -> None:
    left = killed(connection_file)
    connection_file.unlink()
    PrivateDirectory().close()
    assert not left.exists()
    assert not list(left.parent.glob("sandbox-*"))
