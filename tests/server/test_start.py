"""What the start of a server does without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Calls `serve` as the command line does, with a server that ends when it is ready.
READY = """
import gc, sys
from kernelmcp import cli, server
def serve(settings):
    print(gc.isenabled(), "IPython" in sys.modules)
    ready = server.Server(settings, server.resume_garbage_collector)
    ready._on_ready()
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
    return 0
server.serve_stdio = serve
sys.exit(cli.main([]))
"""


def test_the_garbage_collector_rests_until_the_server_is_ready(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "False", "True", "True"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_closed_stream_is_told_at_once(tmp_path: Path, closed: str) -> None:
    command = f"exec {sys.executable} -P -m kernelmcp {closed}"
    env = {**os.environ, "KERNELMCP_HOME": str(tmp_path / "home")}
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=180, env=env)
    assert done.returncode == 2
    assert "stdin or stdout is closed" in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2
