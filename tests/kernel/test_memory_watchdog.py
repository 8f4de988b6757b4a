"""What the watchdog sees of a process that hides."""

import asyncio
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


@pytest.mark.skipif(sys.platform != "linux", reason="on Linux a process may outlive its main thread")
def test_a_process_that_runs_on_without_its_main_thread_is_ended() -> None:
    """The system says that it has no memory and no open files, whatever it holds."""

    async def reason() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        watchdog = MemoryWatchdog(process.pid, 1000, told.set_result)
        try:
            return await asyncio.wait_for(told, DEADLINE)
        finally:
            watchdog.stop()

    with subprocess.Popen([sys.executable, "-c", HIDES], stdin=subprocess.PIPE) as process:
        try:
            assert "its main thread had ended" in asyncio.run(reason())
            assert process.poll() is None
        finally:
            process.kill()
