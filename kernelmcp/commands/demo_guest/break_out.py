"""Four ways to what is not the guest's: a file of the host, its disk, its programs, and a port where it listens."""

import importlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET_FILE, PORT = Path("{secret_file}"), int("{port}")


def attempt(what: str, go: Callable[[], object]) -> None:
    try:
        found = go()
    except Exception as exc:
        said = (getattr(exc, "strerror", None) or str(exc)).splitlines() or [""]
        print(f"refused  {what:<20}  {type(exc).__name__ if '[object' in said[0] else said[0][:200]}")
    else:
        print(f"GOT OUT  {what:<20}  {found!r}"[:200])


def mount_the_disk() -> str:
    pyodide: Any = importlib.import_module("pyodide_js")
    pyodide.mountNodeFS("/host", str(SECRET_FILE.parent))
    return Path("/host", SECRET_FILE.name).read_text()


attempt("read a file of yours", SECRET_FILE.read_text)
attempt("mount your disk", mount_the_disk)
attempt("start a program", lambda: os.execv("/bin/sh", ["sh", "-c", f"cat {SECRET_FILE}"]))
attempt("open a connection", lambda: socket.create_connection(("127.0.0.1", PORT), 3))
