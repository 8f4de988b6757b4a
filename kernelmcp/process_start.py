"""How processes of our own start: safely and at low cost."""

import gc
import os
import sys
from typing import cast

# Libraries that others import when they are there, and that take seconds of CPU for what we never ask: jsonschema's
# checks of the formats `iri` and `iri-reference` are 38 parsers, built by an import. jupyter_server's extra brings it.
_UNNEEDED = ("rfc3987_syntax",)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours. With -P nothing is imported from the working directory: that may be a
    folder that guests write, or a stranger's."""
    return [sys.executable, "-P", "-m", module, *arguments]


_umask: int | None = None


def keep_files_own() -> None:
    """Whatever the umask of whoever starts us: files and folders that are made from now on are ours to write, and
    nobody else's."""
    global _umask
    _umask = os.umask(0o077)
    os.umask((_umask | 0o022) & 0o077)


def users_umask() -> int:
    """The umask for files in the user's own folders: that of whoever started us, but never one that lets everybody
    write a file, or that keeps its owner from it."""
    global _umask
    if _umask is None:  # inside another program
        _umask = os.umask(0o077)
        os.umask(_umask)
    return (_umask | 0o002) & 0o077


def fill_descriptors() -> None:
    """What is opened later must not get the number of a stream that whoever starts us has closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    if cast("object", sys.stderr) is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as long as the process


def skip_slow_imports() -> None:
    """Make those libraries look as if they were not installed."""
    modules = cast("dict[str, object]", sys.modules)
    for name in _UNNEEDED:
        modules.setdefault(name, None)


def pause_garbage_collector() -> None:
    """Until `resume_garbage_collector`. Imports make 150,000 objects, nearly all of which stay: to look at them again
    and again takes 15 % of a server's start."""
    gc.disable()


def resume_garbage_collector() -> None:
    """What is there stays until the end, and is never looked at again. Only 1,000 objects of it are garbage."""
    gc.freeze()
    gc.enable()
