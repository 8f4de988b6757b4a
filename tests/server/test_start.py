"""What the start of a server does without."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from kernelmcp.kernel.kernelspecs import Kernelspecs

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


@pytest.mark.parametrize("own", [None, "~/elsewhere"])
def test_kernelspecs_are_looked_for_where_jupyter_client_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    if own is None:
        monkeypatch.delenv("IPYTHONDIR", raising=False)
    else:
        monkeypatch.setenv("IPYTHONDIR", own)
    assert Kernelspecs().kernel_dirs == KernelSpecManager().kernel_dirs


def test_the_garbage_collector_rests_until_the_server_is_ready(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "False", "True", "True"]


def test_a_server_in_another_program_leaves_its_garbage_collector_alone() -> None:
    import kernelmcp.server

    assert gc.isenabled()
    assert kernelmcp.server.create_server()._on_ready is None
