"""What a guest process is left with, seen from outside. What it can reach is attacked in tests/attacks."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kernelmcp.process_start import users_umask
from kernelmcp_kernel import languages
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.guest import new_request_id
from kernelmcp_kernel.guests.supervisor import GuestSupervisor
from kernelmcp_kernel.languages.python.image import plain_image
from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.directory import SandboxDirectory
from kernelmcp_kernel.runtime.guest_process import closed_to
from kernelmcp_kernel.runtime.places import RUNTIME
from kernelmcp_kernel.sandbox import landlock, probe
from kernelmcp_kernel.sandbox.confined_process import layers

from ..processes import command_line
from .conftest import running_kernel
from .driver import DEADLINE, wait_until

PROGRAMS = Path(__file__).parent / "confined"
TERMINAL_QUERIES = {0x5401, 0x5413, 0x541B, 0x5421, 0x5451}  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the operating system's layers are Linux's")


def status(process: psutil.Process) -> dict[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def check_confined(guest: psutil.Process) -> None:
    assert Path(f"/proc/{guest.pid}/environ").read_bytes() == b"MALLOC_TRIM_THRESHOLD_=131072\0"
    assert Path(f"/proc/{guest.pid}/oom_score_adj").read_text() == "1000\n", "it goes first when memory is short"
    found = status(guest)
    assert (found["NoNewPrivs"], found["Seccomp"], found["Umask"]) == ("1", "2", f"{users_umask():04o}")
    assert os.getsid(guest.pid) == guest.pid
    kinds = {os.readlink(fd).split(":")[0] for fd in Path(f"/proc/{guest.pid}/fd").iterdir()}
    image = str(RUNTIME / "boot.img")  # it opens that itself, to find what its session has changed
    assert kinds <= {"pipe", "anon_inode", "/dev/null", image}, kinds


def test_a_guest_has_no_environment_no_descriptors_and_no_privileges() -> None:
    with running_kernel(SECRET_CANARY="s3cret") as kernel:
        kernel.run("1")
        first = kernel.guests()[0]
        check_confined(first)
        first.kill()
        assert wait_until(lambda: kernel.guests() not in ([], [first]))
        kernel.run("1")
        check_confined(kernel.guests()[0])  # it was started in another way: beside threads


def confined(program: str, folder: Path, version: int) -> str:
    """What a program of the folder `confined` prints, given a directory of its own and a file beside it."""
    own, file = folder / "own", folder / "file"
    own.mkdir()
    file.write_text("kept")
    command = [sys.executable, str(PROGRAMS / program), str(own), str(file), str(version)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert file.read_text() == "kept"
    return done.stdout


@pytest.mark.parametrize("version", range(1, landlock.available() + 1))
def test_each_version_of_landlock_keeps_the_workspace_and_refuses_the_rest(tmp_path: Path, version: int) -> None:
    assert confined("landlock_alone.py", tmp_path, version).split() == ["x", "refused"]


@pytest.mark.parametrize("version", range(landlock.available() + 1))
def test_where_landlock_is_old_the_system_call_filter_refuses_what_it_does_not_see(
    tmp_path: Path, version: int
) -> None:
    """Truncation is Landlock's from version 3, ioctl from 5, and only for descriptors that are opened later."""
    found = json.loads(confined("both_filters.py", tmp_path, version))
    assert (found["readable"], found["own"]) == ("", 0)
    assert found["emptied"].pop("truncate") == "ENOSYS"
    assert set(found["emptied"].values()) == {"EACCES"}
    assert set(found["requests"]) == TERMINAL_QUERIES
    assert found["locks"] == []


@contextmanager
def passable_folder() -> Iterator[str]:
    """As a server makes its home when guests are another user."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        yield folder


def test_a_guest_of_root_becomes_the_user_that_is_configured() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for path in (node_binary(), plain_image().path, Path(tempfile.gettempdir())):
        if closed := closed_to(65534, path):
            pytest.skip(f"{closed} is closed to others")
    with passable_folder() as home, running_kernel(KERNELMCP_GUEST_UID="65534", KERNELMCP_HOME=home) as kernel:
        ran = kernel.run("open('mine', 'w').write('x')")
        assert ran.status == "ok"
        found = status(kernel.guests()[0])
        assert found["Uid"].split() == found["Gid"].split() == ["65534"] * 4
        assert int(found["CapEff"], 16) == 0


def test_after_its_end_a_kernel_starts_no_guest_for_what_is_queued(tmp_path: Path) -> None:
    async def run() -> list[psutil.Process]:
        supervisor = GuestSupervisor(
            languages.main_language(),
            SandboxDirectory(tmp_path / "sandbox"),
            lambda *_: None,
            logging.getLogger("test"),
        )
        await supervisor.guest.ready()
        queued = asyncio.ensure_future(supervisor.request("execute", {"code": "1"}, new_request_id()))
        supervisor.close()
        with pytest.raises(GuestDied):
            await queued
        with pytest.raises(GuestDied, match="shutting down"):
            await supervisor.request("execute", {"code": "1"}, new_request_id())
        supervisor.guest.kill("the test is over")
        return [child for child in psutil.Process().children() if "start_guest.cjs" in " ".join(command_line(child))]

    assert asyncio.run(run()) == []


def test_a_kernel_refuses_to_start_without_a_layer_that_is_required() -> None:
    environment = {**os.environ, "KERNELMCP_REQUIRED_LAYERS": "no_new_privs,seatbelt"}
    command = [sys.executable, "-m", "kernelmcp_kernel", "-f", "/nowhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (1, "required_layers: this machine does not have seatbelt\n")


def test_the_probe_finds_what_the_machine_has() -> None:
    has = [name for name, there in layers().items() if there]
    assert probe.missing([*has, "wasm", "no_new_privs"]) == []
    assert probe.missing(["nonsense"]) == ["nonsense"]


@pytest.mark.skipif(not landlock.available(), reason="there is no Landlock here")
def test_landlock_allows_nothing_where_a_link_has_come(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (link := tmp_path / "link").symlink_to(tmp_path / "secret")
    code = (
        "import sys; from kernelmcp_kernel.sandbox import landlock as l; l.restrict({p: l.WRITE for p in sys.argv[1:]}"
    )
    for path, more, said in ((link, ", unlinked=sys.argv[1:]", "leads elsewhere"), (link.resolve(), "", "")):
        done = subprocess.run(
            [sys.executable, "-c", f"{code}{more})", str(path)], capture_output=True, text=True, timeout=DEADLINE
        )
        assert said in done.stderr
        assert done.returncode == bool(said)


WITHOUT_CLOSE_RANGE = """
import os, resource, sys
from kernelmcp_kernel.sandbox import enter
os.dup2(1, 700)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sys.platform = "darwin"
enter._close_from(3)
sys.platform = "linux"
print(sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")))
"""


def test_descriptors_above_a_lowered_limit_are_closed_where_linuxs_call_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_CLOSE_RANGE], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['0', '1', '2']\n", done.stderr
