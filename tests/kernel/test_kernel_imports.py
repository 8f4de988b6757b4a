"""What a kernel process imports: nothing that only a guest needs, and as a fork nothing at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from .driver import DEADLINE

BEGUN = "the imports are done"
# The connection file is its last argument, as a kernel has it.
AS_A_FORK = f"""
import sys
from kernelmcp_kernel import __main__ as program, fork_server
fork_server.import_everything()
print({BEGUN!r}, file=sys.stderr, flush=True)
program.main()
"""


def imported(folder: Path, *program: str) -> list[str]:
    """What Python says of its imports until a cell has run and the kernel has ended."""
    file, said = folder / "k.json", folder / "said"
    write_connection_file(str(file), transport="ipc", ip=str(folder / "k"), key=b"key")
    command = [sys.executable, "-P", "-X", "importtime", *program, "-f", str(file)]
    with said.open("wb") as errors, subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors) as process:
        client = BlockingKernelClient(connection_file=str(file))
        client.load_connection_file()
        client.start_channels(hb=False)  # a kernel that has not begun does not beat
        try:
            client.wait_for_ready(DEADLINE)
            assert client.execute_interactive("1 + 1", timeout=DEADLINE)["content"]["status"] == "ok"
            client.shutdown()
            process.wait(DEADLINE)
        finally:
            client.stop_channels()
            process.kill()
    return [line.rpartition("|")[2].strip() for line in said.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path_factory.mktemp("k")
    monkeypatch.setenv("KERNELMCP_HOME", str(found / "home"))
    return found


def test_a_kernel_process_does_not_import_ipython(folder: Path) -> None:
    names = imported(folder, "-m", "kernelmcp_kernel")
    assert "ipykernel.connect" in names
    assert [name for name in names if name.partition(".")[0] in ("IPython", "matplotlib", "pygments")] == []


def test_a_fork_has_everything_imported(folder: Path) -> None:
    names = imported(folder, "-c", AS_A_FORK)
    begun = names.index(BEGUN)
    assert "kernelmcp_kernel.jupyter.channels.iopub_socket" in names[:begun]
    assert "kernelmcp_kernel.languages.javascript.bundle" in names[:begun], "JavaScript's build is that of its server"
    assert names[begun + 1 :] == []
