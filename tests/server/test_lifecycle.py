"""How a server ends, and what it does with a wire that carries rubbish."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernelmcp.cells.lookup import unfinished

from ..processes import descendants
from ..starting import start_server
from .support import DEADLINE, wait_until

INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "execute_code", "arguments": {"code": "1 + 1"}}}  # fmt: skip
SPINS = "print('x' * 2_000_000)\nwhile True: pass"
SPIN = {"jsonrpc": "2.0", "id": 3, "method": "tools/call",
        "params": {"name": "execute_code", "arguments": {"code": SPINS}}}  # fmt: skip


pytestmark = pytest.mark.cold


@pytest.fixture
def server_env(server_env: dict[str, str]) -> dict[str, str]:
    """As users have it: the end of a server is that of a warm kernel, too."""
    return server_env | {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "1"}


def send(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin
    process.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def receive(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout
    return json.loads(process.stdout.readline())


def started(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A server with one session that spins, and a warm kernel."""
    send(process, INITIALIZE)
    receive(process)
    send(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    send(process, CALL)
    assert receive(process)["result"]["structuredContent"]["result"] == "2"
    send(process, SPIN)
    wait_until(lambda: len(descendants(process.pid)) >= 2)
    return descendants(process.pid)


@pytest.mark.parametrize("how", ["stdin closed", signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_and_leaves_no_process(
    server_process: subprocess.Popen[bytes], how: object, server_env: dict[str, str]
) -> None:
    kernels = started(server_process)
    root = Path(server_env["KERNELMCP_SERVER__RUNTIME"])
    # Servers of other tests may be on their way to their ends.
    [own] = [each for each in root.iterdir() if any(str(each) in " ".join(kernel.cmdline()) for kernel in kernels)]
    if isinstance(how, signal.Signals):
        server_process.send_signal(how)
    else:
        server_process.stdin.close()
    status = server_process.wait(DEADLINE)
    assert status == 0, "also when a busy machine has it cut short"
    assert wait_until(lambda: not any(k.is_running() and k.status() != "zombie" for k in kernels))
    assert not own.exists()


BUSY = """
import time
from kernelmcp.config.settings import Settings
from kernelmcp.server import serve_stdio
from kernelmcp.stdio import serve

async def busy(*arguments):
    print("busy", file=__import__("sys").stderr, flush=True)
    time.sleep(3600)

serve.serve_wire = busy
serve_stdio(Settings())
"""


def test_a_server_whose_event_loop_is_held_up_ends_when_stdin_is_closed(server_env: dict[str, str]) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", BUSY], env=server_env, **pipes) as process:
        assert process.stderr
        assert process.stderr.readline() == b"busy\n"
        assert process.poll() is None
        assert process.stdin
        process.stdin.close()
        process.wait(DEADLINE)


def test_no_process_is_left_when_the_server_is_killed(server_process: subprocess.Popen[bytes]) -> None:
    kernels = started(server_process)
    server_process.kill()
    server_process.wait()
    assert wait_until(lambda: not any(k.is_running() and k.status() != "zombie" for k in kernels))


def test_the_next_server_sweeps_what_a_killed_one_left(
    server_process: subprocess.Popen[bytes], server_env: dict[str, str]
) -> None:
    started(server_process)
    sandboxes = Path(server_env["KERNELMCP_HOME"]) / "sandboxes"
    # The session's and the warm kernel's.
    assert wait_until(lambda: len([path for path in sandboxes.iterdir() if path.is_dir()]) == 2)
    kernels = descendants(server_process.pid)
    server_process.kill()
    server_process.wait()
    wait_until(lambda: not any(k.is_running() and k.status() != "zombie" for k in kernels))
    runtime = Path(server_env["KERNELMCP_SERVER__RUNTIME"])
    for lock in [*sandboxes.glob(".*.lock"), *runtime.glob("*/lock")]:
        os.utime(lock, (0, 0))
    # The session's sandbox directory is recorded and stays; the warm kernel's goes, soon after the start.
    second = start_server(env=server_env | {"KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0"})
    assert wait_until(lambda: len([path for path in sandboxes.iterdir() if path.is_dir()]) == 1)
    second.communicate(b"")
    assert second.returncode == 0
    assert list(runtime.iterdir()) == []


def test_rubbish_on_the_wire_is_answered_and_does_not_end_the_server(server_process: subprocess.Popen[bytes]) -> None:
    send(server_process, INITIALIZE)
    receive(server_process)
    send(server_process, b"this is not json\n")
    assert receive(server_process)["error"]["code"] == -32700
    send(server_process, b'{"jsonrpc": "2.0", "id": 7, "method": 5}\n')
    assert receive(server_process)["id"] == 7
    send(server_process, b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"\\ud800"}}\n')
    assert receive(server_process)["id"] == 8
    send(server_process, b'{"jsonrpc":"2.0","id":9,"method":"ping","x":"\xff\xfe"}\n')
    assert receive(server_process)["id"] in (9, None)
    send(server_process, {"jsonrpc": "2.0", "id": 10, "method": "ping"})
    assert receive(server_process)["id"] == 10


def test_directories_are_private(server_process: subprocess.Popen[bytes], server_env: dict[str, str]) -> None:
    started(server_process)
    home = Path(server_env["KERNELMCP_HOME"])
    directories = [home, home / "sessions", home / "sandboxes", Path(server_env["KERNELMCP_SERVER__RUNTIME"])]
    directories += [path for path in (*home.glob("sandboxes/*"), *home.glob("sessions/*")) if path.is_dir()]
    # What holds a live guest's folders is shut for writing.
    assert {path.stat().st_mode & 0o777 for path in directories} == {0o700, 0o500}
    logs = list(home.glob("sessions/*/notebook.jsonl"))
    assert wait_until(lambda: any(unfinished(log.read_bytes())[0] for log in logs)), "the cell that spins"
    assert wait_until(lambda: any(home.glob("sessions/*/outputs/*"))), "its text, which is too long for memory"
    kept = {(path.is_dir(), path.stat().st_mode & 0o777) for path in home.glob("sessions/*/**/*")}
    assert kept == {(True, 0o700), (False, 0o600)}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the umask of a process")
def test_nobody_else_writes_what_it_makes_whatever_the_umask(server_env: dict[str, str]) -> None:
    before = os.umask(0)
    try:
        process = start_server(env=server_env)
    finally:
        os.umask(before)
    try:
        started(process)
        processes = [process.pid, *(kernel.pid for kernel in descendants(process.pid))]
        masks = {re.search(r"Umask:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1] for pid in processes}
        assert masks == {"0022", "0002"}, "ours, and that of guests, whose files in volumes are the user's"
        files = [path.lstat() for path in Path(server_env["KERNELMCP_HOME"]).rglob("*") if not path.is_symlink()]
        assert [oct(found.st_mode) for found in files if found.st_mode & 0o022] == []
    finally:
        process.kill()
        process.wait(DEADLINE)


def test_a_umask_that_takes_our_own_files_from_us_keeps_no_cell_from_running(server_env: dict[str, str]) -> None:
    before = os.umask(0o777)
    try:
        process = start_server(env=server_env)
    finally:
        os.umask(before)
    try:
        send(process, INITIALIZE)
        receive(process)
        arguments = {"code": "open('f', 'w').write('kept'); open('f').read()"}
        execute = {"name": "execute_code", "arguments": arguments}
        send(process, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": execute})
        while (answer := receive(process)).get("id") != 2:
            pass
        assert answer["result"]["structuredContent"]["result"] == "'kept'"
    finally:
        process.kill()
        process.wait(DEADLINE)


@pytest.mark.parametrize(
    ("limit", "value", "said", "advice"),
    [
        ("NOFILE", 100, "this process may open 100 files, but a server needs 128", "ulimit -n 1024"),
        ("AS", 300 * 2**20, "this process may use 300 MB of address space", "ulimit -v unlimited"),
    ],
)
def test_limits_under_which_no_cell_runs_are_refused_at_the_start(
    server_env: dict[str, str], limit: str, value: int, said: str, advice: str
) -> None:
    def lower() -> None:
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (value, value))

    command = [sys.executable, "-P", "-m", "kernelmcp"]
    done = subprocess.run(
        command,
        env=server_env,
        preexec_fn=lower,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert advice in done.stderr
    assert "Traceback" not in done.stderr
