"""Starts our own processes safely and at low cost."""

import gc
import os
import sys
from typing import cast

# Optional libraries of others that take seconds of CPU for features we never use: jsonschema's checks of the formats
# `iri` and `iri-reference` are 38 parsers, built by an import. jupyter_server's extra installs it.
_UNNEEDED = ("rfc3987_syntax",)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours. With -P nothing is imported from the working directory, which may be
    untrusted or a folder that guests write."""
    return [sys.executable, "-P", "-m", module, *arguments]


# The home that Debian gives users without one. It does not exist, and only root could make it.
NO_HOME = "/nonexistent"


def name_a_home() -> None:
    """Give a user whom the system does not know, and for whom HOME is not set, a home that is not there: otherwise
    every library that looks for its files in a home raises RuntimeError."""
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = NO_HOME


_umask: int | None = None


def keep_files_own() -> None:
    """Make new files and folders writable for us and nobody else, whatever umask our parent process had."""
    global _umask
    _umask = os.umask(0o077)
    os.umask((_umask | 0o022) & 0o077)


def users_umask() -> int:
    """The umask for files in the user's own folders: our parent process's, but never one that lets everybody write a
    file, or that keeps its owner from it."""
    global _umask
    if _umask is None:  # inside another program
        _umask = os.umask(0o077)
        os.umask(_umask)
    return (_umask | 0o002) & 0o077


def fill_descriptors() -> None:
    """Occupy the standard descriptors that our parent process closed, so that files opened later do not get them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    if cast("object", sys.stderr) is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # as long as the process


def skip_slow_imports() -> None:
    """Make those libraries look as if they were not installed."""
    modules = cast("dict[str, object]", sys.modules)
    for name in _UNNEEDED:
        modules.setdefault(name, None)


def pause_garbage_collector() -> None:
    """Pause it until `resume_garbage_collector`. Imports create 150,000 objects, nearly all of which stay: scanning
    them repeatedly takes 15 % of a server's start."""
    gc.disable()


def resume_garbage_collector() -> None:
    """Resume it. Existing objects stay until the end, and are never scanned again. Only 1,000 of them are garbage."""
    gc.freeze()
    gc.enable()
