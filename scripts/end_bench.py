"""How long a server takes to end, with a cell that spins and a warm kernel: it, and all that it has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

INITIALIZE = {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"},
}  # fmt: skip
GIVE_UP_SECONDS = 60.0
# What the contract says: the server's own end, and that of what a killed one leaves.
END_BAR_MS, KILLED_BAR_MS = 3000.0, 5000.0


def measure_ends(folder: Path) -> list[tuple[str, float, float]]:
    """What was measured, milliseconds, and the bar."""
    found: list[tuple[str, float, float]] = []
    for what, number, bar in (
        ("stdin closed", None, END_BAR_MS),
        ("SIGTERM", signal.SIGTERM, END_BAR_MS),
        ("SIGINT", signal.SIGINT, END_BAR_MS),
        ("SIGKILL", signal.SIGKILL, KILLED_BAR_MS),
    ):
        found.append((f"end of a server and of all it started: {what}", _measure(folder / what, number), bar))
    return found


def _measure(home: Path, number: signal.Signals | None) -> float:
    env = {**os.environ, "KERNELMCP_HOME": str(home), "KERNELMCP_LOGGING__LEVEL": "error"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "kernelmcp"], env=env, **pipes) as server:
        assert server.stdin
        assert server.stdout
        _send(server, "initialize", INITIALIZE, 1)
        _send(server, "tools/call", {"name": "execute_code", "arguments": {"code": "1"}}, 2)
        while json.loads(server.stdout.readline()).get("id") != 2:
            pass
        _send(server, "tools/call", {"name": "execute_code", "arguments": {"code": "while True: pass"}}, 3)
        time.sleep(3)  # a warm kernel arrives, and the cell spins
        everything = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        begin = time.monotonic()
        if number is None:
            server.stdin.close()
        else:
            server.send_signal(number)
        while any(map(_lives, everything)):
            server.poll()
            if time.monotonic() - begin > GIVE_UP_SECONDS:
                raise RuntimeError("processes were left behind")
            time.sleep(0.01)
        return (time.monotonic() - begin) * 1000


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _send(server: subprocess.Popen[bytes], method: str, params: dict[str, Any], number: int) -> None:
    assert server.stdin
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    server.stdin.write(json.dumps(message).encode() + b"\n")
    server.stdin.flush()
