"""What the tests share besides fixtures."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import psutil
from mcp import Client

from ..processes import child_pids, children, command_line
from ..starting import DEADLINE

Connect = Callable[..., AbstractAsyncContextManager[Client]]


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def server_of_test() -> psutil.Process:
    """The server that this test has started. Earlier tests of the same worker may have left other children behind."""
    [found] = [one for one in children(os.getpid()) if command_line(one)[1:3] == ["-m", "kernelmcp"]]
    return found


def kernel_pids() -> list[int]:
    """The kernels of the servers that this test has started."""
    return [
        process.pid
        for server in child_pids(os.getpid())
        for process in children(server)
        if any(argument.endswith(".json") for argument in command_line(process))
    ]
