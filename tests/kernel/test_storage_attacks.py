"""Ways to store more than the quota that a count of names and sizes does not see. The guest here is a program of
native code, which is not confined."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelmcp_kernel.guests.storage import Excess, Stopped, StorageWatch, count
from kernelmcp_kernel.settings import Quota
from tests.descriptors import open_below

from ..starting import DEADLINE
from .driver import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors of a process are seen in /proc")

MB = 1 << 20
QUOTA = Quota(64 * MB, 10_000)

FILL = "open({path!r}, 'wb').write(bytes(1 << 20))"
DELETED = """
import os
held = []
for n in range(100):
    held.append(os.open(f"f{n}", os.O_CREAT | os.O_RDWR))
    os.write(held[-1], bytes(1 << 20))
    os.unlink(f"f{n}")
"""
MAPPED = """
import ctypes, os
fd = os.open("f", os.O_CREAT | os.O_RDWR)
os.write(fd, bytes(1 << 20))
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mmap(None, 4096, 3, 1, fd, 0)
os.close(fd)
os.unlink("f")
"""
PREALLOCATED = """
import ctypes, os
fd = os.open("f", os.O_CREAT | os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
fallocate = libc.fallocate
fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
if fallocate(fd, 1, 0, 100 << 20) != 0:  # FALLOC_FL_KEEP_SIZE
    raise OSError(ctypes.get_errno(), "fallocate")
"""
# Files are always in one of two folders, and in the one that is not being read.
MOVING = """
import os, itertools
for name in "az":
    for n in range(400):
        os.makedirs(f"{name}/{n}")
for n in range(100):
    open(f"a/0/{n}", "wb").write(bytes(1 << 20))
print("ready", flush=True)
for here, there in itertools.cycle([("a/0", "z/399"), ("z/399", "a/0")]):
    for n in range(100):
        os.rename(f"{here}/{n}", f"{there}/{n}")
"""


@contextmanager
def guest(folder: Path, program: str) -> Iterator[int]:
    """The process that has run this program in the folder."""
    command = [sys.executable, "-I", "-c", f"{program}\nprint('ready', flush=True)\ninput()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def stopped_count(folder: Path, pid: int) -> Quota:
    with Stopped([pid]) as pids:
        return count(folder, QUOTA, pids)


def state(pid: int) -> str:
    """As in proc(5); T: it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("program", [DELETED, MAPPED, PREALLOCATED], ids=["deleted", "mapped", "preallocated"])
def test_what_a_count_of_sizes_does_not_see_is_counted(tmp_path: Path, program: str) -> None:
    with guest(tmp_path, program) as pid, pytest.raises(Excess):
        stopped_count(tmp_path, pid)


def test_files_that_move_while_they_are_counted_are_counted(tmp_path: Path) -> None:
    with guest(tmp_path, MOVING) as pid:
        for _ in range(50):
            with pytest.raises(Excess):
                stopped_count(tmp_path, pid)
        assert state(pid) != "T", "it runs again"


def test_a_guest_writes_nothing_between_the_count_and_its_end(tmp_path: Path) -> None:
    with guest(tmp_path, "open('f', 'wb').truncate(1 << 30)") as pid:

        async def count_once() -> list[str]:
            ended = asyncio.get_running_loop().create_future()

            def on_excess(_: str) -> None:
                ended.set_result([state(pid)])

            watch = StorageWatch(tmp_path, QUOTA, lambda: True, on_excess, lambda: [pid])
            watch.poke()
            try:
                return await asyncio.wait_for(ended, DEADLINE)
            finally:
                watch.close()

        assert asyncio.run(count_once()) == ["T"]
        assert wait_until(lambda: state(pid) != "T")


def test_a_deleted_file_counts_once_whoever_has_it_open(tmp_path: Path) -> None:
    program = DELETED.replace("100", "10") + "held += [os.dup(fd) for fd in held]"
    with guest(tmp_path, program) as pid:
        stored = stopped_count(tmp_path, pid)
    assert 10 * MB - 50_000 <= stored.max_bytes <= 10 * MB
    assert stored.max_files == 10


def test_a_process_that_has_ended_is_no_obstacle(tmp_path: Path) -> None:
    with guest(tmp_path, FILL.format(path="f")) as pid:
        with Stopped([pid]) as pids:
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert count(tmp_path, QUOTA, pids) == Quota(MB, 1)
        with Stopped([pid]) as pids:
            assert count(tmp_path, QUOTA, pids) == Quota(MB, 1)


def test_a_deep_tree_costs_no_more_than_a_flat_one(tmp_path: Path) -> None:
    """A comb: at each level a way down and a folder beside it. It took a thousand opens for each of them."""
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        for name in "de":
            os.mkdir(name, dir_fd=fd)
        fd, above = os.open("d", os.O_RDONLY, dir_fd=fd), fd
        os.close(above)
    os.close(fd)
    opened = 0
    real = os.open

    def counting(*arguments: object, **named: object) -> int:
        nonlocal opened
        opened += 1
        return real(*arguments, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", counting)
        counted = count(tmp_path, QUOTA)
    left = open_below(tmp_path)
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)  # too deep for what cleans up behind the tests
    assert (counted, left) == (Quota(0, 3000), [])
    assert opened <= 2 * 3000 + 10
