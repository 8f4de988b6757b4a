"""`kernelmcp upstreams login guarded`, and a person's browser, which goes where it is sent."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ..starting import start_server
from .conftest import DEADLINE


def communicate(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it still writes until it ends. One that does not is killed."""
    try:
        return process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def login(
    tmp_path: Path, *, start: Callable[..., subprocess.Popen[Any]] = start_server
) -> subprocess.CompletedProcess[str]:
    """`start` starts kernelmcp. Whatever name the address has that is shown, the browser finds it on this machine."""
    process = start(
        *("upstreams", "login", "guarded", "--no-browser", "--config", str(tmp_path / "mcp.toml")),
        env={**os.environ, "KERNELMCP_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    shown = ""
    while not (found := re.search(r"http://\S+", shown)) and (line := process.stdout.readline()):
        shown += line
    if found:
        parts = urlsplit(found[0])
        here = urlunsplit(parts._replace(netloc=f"127.0.0.1:{parts.port}"))
        with urllib.request.urlopen(here, timeout=DEADLINE) as page:
            assert b"You are logged in" in page.read()
    out, err = communicate(process)
    return subprocess.CompletedProcess(process.args, process.returncode, shown + out, err)
