"""Features that a sandboxed guest lacks: using one raises an exception with the reason, and never crashes the guest."""

# Parts of the standard library are replaced at places that their type stubs do not declare.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

import hashlib
import os
import re
import socket
import sys
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn, cast

# IPython's tracebacks omit functions with `__tracebackhide__`.
NO_PROCESSES = "the sandbox cannot start processes"
NO_SHELL = (
    f"{NO_PROCESSES}, and there is no shell here (!cmd, %ls, %%bash): use Python instead (os, pathlib and shutil for "
    "files, %pip install for packages)"
)
SHELL_INSTEAD = "subprocess.run and !cmd run commands in the session's shell, if it has one"
NO_INTERPRETER = "the sandbox has no such program: cells are Python, or begin with %%bash or %%javascript"
NO_SOCKETS = "the sandbox has no sockets: for HTTP use urllib.request, requests or pyodide.http.pyfetch"

# Alternatives to modules that this Python is built without.
_NO_SCREEN = "there is no screen: draw with matplotlib or pillow"
_NO_TERMINAL = "there is no terminal"
ONE_PROCESS = "there is one process and one thread: use a loop, or asyncio.gather to wait for several things at once"
_ONE_USER = "there is one user, and there are no others"
_ADVICE = {
    "_interpreters": ONE_PROCESS,
    "_multiprocessing": ONE_PROCESS,
    "_posixshmem": ONE_PROCESS,
    "_tkinter": _NO_SCREEN,
    "curses": _NO_TERMINAL,
    "dbm": "keep data in files, as JSON or with pickle, or in sqlite3",
    "ensurepip": "use %pip install NAME",
    "grp": _ONE_USER,
    "idlelib": _NO_SCREEN,
    "pwd": _ONE_USER,
    "readline": _NO_TERMINAL,
    "resource": "the limits of the sandbox are fixed",
    "tkinter": _NO_SCREEN,
    "turtle": _NO_SCREEN,
    "turtledemo": _NO_SCREEN,
    "venv": "use a session of its own, and %pip install NAME",
}


# The most common reason to start a process: pip, by its name, as a Python module, or uv's.
_PIP_INSTALL = re.compile(r"(?:^|[\s/])pip[\d.]*\s+(install\s[^|;&>]*[^|;&>\s])")


def no_processes(*args: Any, **kwargs: Any) -> NoReturn:
    __tracebackhide__ = True
    command: Any = args[0] if args else kwargs.get("args", "")
    words = cast("list[Any]", command) if isinstance(command, (list, tuple)) else [command]
    if found := _PIP_INSTALL.search(" ".join(map(str, words))):
        raise OSError(f"{NO_PROCESSES}: to install packages, write %pip {found[1]} in a cell")
    raise OSError(f"{NO_PROCESSES}: use Python instead")


def _no_new_process(*args: Any, **kwargs: Any) -> NoReturn:
    __tracebackhide__ = True
    raise OSError(f"{NO_PROCESSES}: {SHELL_INSTEAD}")


def _no_sockets(*args: Any, **kwargs: Any) -> NoReturn:
    __tracebackhide__ = True
    raise OSError(NO_SOCKETS)


def _no_hash(name: str) -> NoReturn:
    """hashlib's module-level `__getattr__`, so that `hasattr` still returns False."""
    reason = ": this Python is built without OpenSSL" if name in ("pbkdf2_hmac", "scrypt") else ""
    raise AttributeError(f"module 'hashlib' has no attribute {name!r}{reason}", name=name, obj=hashlib)


class _Absent:
    """The last finder for modules: explains why a part of the standard library is missing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        __tracebackhide__ = True
        is_import = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"  # otherwise it is only a check
        if name not in sys.stdlib_module_names or not is_import:
            return None
        advice = f": {_ADVICE[name]}" if name in _ADVICE else ""
        text = f"No module named {name!r}: Python for WebAssembly is built without it{advice}"
        raise ModuleNotFoundError(text, name=name)


def install() -> None:
    """Replace calls that crash on the WebAssembly platform, or fail there with an unhelpful errno."""
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve"):
        setattr(os, name, _no_new_process)
    socket.socket.__init__ = _no_sockets
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo", "socketpair"):
        setattr(socket, name, _no_sockets)
    os.geteuid, os.getegid = os.getuid, os.getgid  # which this Python has, unlike the others
    hashlib.__getattr__ = _no_hash
    sys.meta_path.append(_Absent())
    sys.executable = sys._base_executable = "python3"  # the name used in commands; Emscripten sets the build script
    sys.orig_argv[:] = [""]
