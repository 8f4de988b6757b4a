"""What the start of a server does without."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelmcp.files.home import SHARED_FORMAT

# Calls `serve` as the command line does, with a server that ends when it is ready.
READY = """
import gc, sys
from kernelmcp import cli, server
def serve(settings):
    print(gc.isenabled(), "IPython" in sys.modules)
    ready = server.Server(settings, server.resume_garbage_collector)
    ready._on_ready()
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
    return 0
server.serve_stdio = serve
sys.exit(cli.main([]))
"""


def test_the_garbage_collector_rests_until_the_server_is_ready(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "False", "True", "True"]


def test_the_version_and_the_help_load_no_settings() -> None:
    code = (
        "import sys\nfrom kernelmcp import cli\ntry: cli.main([sys.argv[1]])\nfinally: print('pydantic' in sys.modules)"
    )
    for option in ("--version", "--help"):
        done = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, timeout=180)
        assert (done.returncode, done.stdout.split()[-1]) == (0, "False"), done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_closed_stream_is_told_at_once(tmp_path: Path, closed: str) -> None:
    command = f"exec {sys.executable} -P -m kernelmcp {closed}"
    env = {**os.environ, "KERNELMCP_HOME": str(tmp_path / "home")}
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=180, env=env)
    assert done.returncode == 2
    assert "stdin or stdout is closed" in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("stdin", ["</dev/null", "<empty", "pipe", "socket"])
def test_where_no_client_is_nothing_is_started(server_env: dict[str, str], tmp_path: Path, stdin: str) -> None:
    """What a kernel needs is imported after it was started, and so is MCP."""
    (tmp_path / "empty").touch()
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    given = {"pipe": reading, "socket": theirs.fileno()}
    with ours, theirs:
        os.close(writing)
        ours.shutdown(socket.SHUT_WR)
        command = f"exec {sys.executable} -P -X importtime -m kernelmcp {stdin if stdin not in given else ''}"
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=tmp_path, env=server_env, stdin=given.get(stdin, reading),
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        os.close(reading)
    assert (done.returncode, done.stdout) == (0, "")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kernelmcp.stdio.serve" in imported
    assert not imported & {"kernelmcp.mcp_server.assemble", "mcp"}


ODD_HOMES: dict[str, tuple[Callable[[Path], str | bytes | Path], str]] = {
    "bytes that are not UTF-8": (lambda folder: os.fsencode(folder) + b"/b\xff", "is a path that is not UTF-8"),
    "a file": (lambda _: __file__, "cannot be read: Not a directory"),
    "nobody's": (lambda _: "/proc/self/kernelmcp", "cannot be made: "),
}


def serve(env: dict[str, str], home: str | bytes | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """To the end of its stdin, at once."""
    command = [sys.executable, "-P", "-m", "kernelmcp"]
    env = env | {"KERNELMCP_HOME": os.fsdecode(home)}
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, env=env, cwd=folder
    )


@pytest.mark.parametrize("odd", ODD_HOMES)
def test_a_home_that_cannot_be_is_told_in_a_sentence(server_env: dict[str, str], tmp_path: Path, odd: str) -> None:
    home, said = ODD_HOMES[odd]
    done = serve(server_env, home(tmp_path), tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


def test_a_home_may_be_a_link_and_odd_surroundings_are_put_right(server_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    done = serve(server_env, tmp_path / "linked", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "real" / "sessions").is_dir()
    # A relative runtime directory counts as none, and a umask that takes our own files from us is not kept.
    del server_env["KERNELMCP_SERVER__RUNTIME"]
    done = serve(server_env | {"XDG_RUNTIME_DIR": "relative"}, tmp_path / "other", tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "relative").exists()
    script = "import os, kernelmcp.process_start as p; os.umask(0o777); p.keep_files_own(); print(oct(os.umask(0)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180)
    assert done.stdout.strip() == "0o77"


# The command line on a file system whose locks hold nothing.
NO_LOCKS = (
    "import fcntl, sys; fcntl.flock = lambda *_: None; from kernelmcp import cli; sys.exit(cli.main(sys.argv[1:]))"
)


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_a_home_whose_locks_hold_nothing_is_refused(server_env: dict[str, str], command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", NO_LOCKS, command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, env=server_env,
    )  # fmt: skip
    assert done.returncode == (2 if command == "serve" else 1), done.stderr
    assert "locks do not work in" in done.stdout + done.stderr
    if command == "serve":
        assert len(done.stderr.splitlines()) <= 2


def test_a_home_of_a_later_version_is_refused_and_left_alone(server_env: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert serve(server_env, home, tmp_path).returncode == 0
    version = int((home / "version").read_text())
    (home / "version").write_text(f"{SHARED_FORMAT + 1}\n")
    (home / "sandboxes").rmdir()
    done = serve(server_env, home, tmp_path)
    assert done.returncode == 2
    assert "was used by a later version of kernelmcp" in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2
    assert sorted(entry.name for entry in home.iterdir()) == ["sessions", "version"]
    (home / "version").write_text("rubbish")
    assert serve(server_env, home, tmp_path).returncode == 0
    assert (home / "version").read_text() == f"{version}\n"
