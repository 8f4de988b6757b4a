"""What a sandboxed guest does not have, and how it says so: an exception with the reason, never a dead guest."""

import os
import subprocess
from typing import Any, NoReturn

from kernelmcp_guest.bridge import bridge

NO_PROCESSES = "the sandbox cannot start processes"


def _no_processes(*args: Any, **kwargs: Any) -> NoReturn:
    raise OSError(f"{NO_PROCESSES}: use Python instead")


class _NoPopen(subprocess.Popen[Any]):  # a class still, for the code that subclasses it
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _no_processes()

    def __del__(self) -> None:
        pass


def _exit(status: int = 0, /) -> NoReturn:
    bridge.exit(status)


def install() -> None:
    """Replace the calls that the WebAssembly platform answers with a crash, or with an errno that explains nothing."""
    for name in ("system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve"):
        setattr(os, name, _no_processes)
    os._exit = _exit
    subprocess.Popen = _NoPopen
