"""What the watchdog sees of a process that hides."""

import asyncio
import errno
import os
import subprocess
import sys

import pytest

from kernelmcp_kernel.guests.memory_watchdog import MemoryWatchdog

from ..starting import DEADLINE

HIDES = """
import ctypes, os, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # ends this thread alone
"""


HAS_THREADS = """
import sys, threading
for _ in range(5):
    threading.Thread(target=sys.stdin.read, daemon=True).start()
sys.stdin.read()
"""


async def reason(pid: int, max_threads: int = sys.maxsize, max_mb: int = 1000) -> str:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    watchdog = MemoryWatchdog(pid, max_mb, told.set_result, max_threads)
    try:
        return await asyncio.wait_for(told, DEADLINE)
    finally:
        watchdog.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="on Linux a process may outlive its main thread")
def test_a_process_that_runs_on_without_its_main_thread_is_ended() -> None:
    """The system says that it has no memory and no open files, whatever it holds."""
    with subprocess.Popen([sys.executable, "-c", HIDES], stdin=subprocess.PIPE) as process:
        try:
            assert "its main thread had ended" in asyncio.run(reason(process.pid))
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are not counted")
def test_a_process_with_more_threads_than_allowed_is_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", HAS_THREADS], stdin=subprocess.PIPE) as process:
        try:
            assert "it had 6 threads, and the limit is 5" in asyncio.run(reason(process.pid, max_threads=5))
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no files are kept open")
@pytest.mark.parametrize(("limits", "told"), [({"max_mb": 0}, "for memory"), ({"max_threads": 0}, "threads")])
def test_a_limit_holds_though_there_were_no_descriptors_for_it_at_first(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], told: str
) -> None:
    opened, refused = os.open, {"statm", "task"}

    def open_later(path: str, flags: int) -> int:
        if (name := os.path.basename(path)) in refused:
            refused.remove(name)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, flags)

    monkeypatch.setattr(os, "open", open_later)
    assert told in asyncio.run(reason(os.getpid(), **limits))
