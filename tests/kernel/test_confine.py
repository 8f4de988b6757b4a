"""What a guest process is left with, seen from outside, and what its JavaScript can reach."""

import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

from .conftest import running_kernel
from .driver import Kernel, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the operating system's layers are Linux's")

# Each reaches through Python into the JavaScript of the guest's own process, and must raise.
ESCAPES = {
    "read a file": "node('fs').readFileSync('/etc/passwd')",
    "write a file": "node('fs').writeFileSync(OUTSIDE, 'x')",
    "start a process": "node('child_process').execSync('id')",
    "start a thread": "node('worker_threads').Worker.new('1', to_js({'eval': True}))",
    "load native code": "js.process.dlopen(to_js({'exports': {}}), '/lib/x86_64-linux-gnu/libc.so.6')",
    "signal its parent": "js.process.kill(js.process.ppid, 'SIGTERM')",
    "make a link": "node('fs').symlinkSync('/etc/passwd', WORKSPACE + '/link')",
    "inspect itself": "node('inspector').open(0)",
    "evaluate text": "run_js('1 + 1')",
}
PROLOGUE = """
import js
from pyodide.code import run_js
from pyodide.ffi import to_js
node = js.process.getBuiltinModule
"""


def status(process: psutil.Process) -> dict[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def check_confined(guest: psutil.Process) -> None:
    assert Path(f"/proc/{guest.pid}/environ").read_bytes() == b""
    found = status(guest)
    assert (found["NoNewPrivs"], found["Seccomp"], found["Umask"]) == ("1", "2", "0077")
    assert os.getsid(guest.pid) == guest.pid
    kinds = {os.readlink(fd).split(":")[0] for fd in Path(f"/proc/{guest.pid}/fd").iterdir()}
    assert kinds <= {"pipe", "anon_inode", "/dev/null"}, kinds


def test_a_guest_has_no_environment_no_descriptors_and_no_privileges() -> None:
    with running_kernel(SECRET_CANARY="s3cret") as kernel:
        kernel.run("1")
        first = kernel.guests()[0]
        check_confined(first)
        first.kill()
        assert wait_until(lambda: kernel.guests() not in ([], [first]))
        kernel.run("1")
        check_confined(kernel.guests()[0])  # it was started in another way: beside threads


@pytest.mark.parametrize("code", ESCAPES.values(), ids=ESCAPES.keys())
def test_guest_javascript_reaches_nothing_of_the_host(
    own_kernel: Kernel, berth: Path, tmp_path: Path, code: str
) -> None:
    outside, workspace = tmp_path / "escaped", berth / "workspace"
    prologue = f"{PROLOGUE}OUTSIDE, WORKSPACE = {str(outside)!r}, {str(workspace)!r}"
    control = own_kernel.run(f"{prologue}\nnode('fs').writeFileSync(WORKSPACE + '/own', 'x')")
    assert control.status == "ok", "the way in which it is tried must work"
    assert (workspace / "own").exists()
    ran = own_kernel.run(code)
    assert ran.status == "error"
    assert not outside.exists()
    assert not (workspace / "link").is_symlink()


def test_no_connection_arrives_from_guest_javascript(kernel: Kernel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(1)
        port = listener.getsockname()[1]
        ran = kernel.run(f"import js\nawait js.fetch('http://127.0.0.1:{port}/')")
        assert ran.status == "error"
        with pytest.raises(TimeoutError):
            listener.accept()
