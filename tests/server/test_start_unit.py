"""What the start of a server does without."""

import gc
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from kernelmcp.kernel.kernelspecs import Kernelspecs


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


def test_a_server_in_another_program_leaves_its_garbage_collector_alone() -> None:
    import kernelmcp.server

    assert gc.isenabled()
    assert kernelmcp.server.create_server()._on_ready is None
