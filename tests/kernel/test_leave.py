"""A program of host/ that has done its work is gone, whatever Node would wait for."""

import io
import subprocess

import pytest

from kernelmcp_kernel.runtime.build_identity import node_binary
from kernelmcp_kernel.runtime.node import status_of
from kernelmcp_kernel.runtime.places import HOST

SCRIPT = f"""
import {{ leave }} from "{HOST}/leave.mjs";
process.on("exit", () => {{ if (process.permission) for (;;); }});
process.stderr.write("noise ");
leave(4, "why");
"""


@pytest.mark.parametrize("confined", [True, False])
def test_it_does_not_wait_for_nodes_own_end(confined: bool) -> None:
    flags = ["--permission", f"--allow-fs-read={HOST}"] if confined else []
    command = [str(node_binary()), *flags, "--input-type=module", "-e", SCRIPT]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert status_of(done.returncode, io.BytesIO(done.stderr)) == (4, "noise why")
