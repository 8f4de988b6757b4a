"""A program of host/ that has done its work is gone, whatever Node would wait for."""

import io
import signal
import subprocess

import pytest

from kernelmcp_kernel.runtime.identity import node_binary
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
    assert status_of(done.returncode, io.BytesIO(done.stderr)) == (4, "noise why" if confined else "noise ")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (-signal.SIGKILL, b"killed for its memory"),
        (-signal.SIGKILL, b"a mark\0and no number"),
        (-signal.SIGKILL, b"a mark\0" + b"0" * 4),
        (3, b"it ended by itself\0000"),
        (-signal.SIGABRT, b"\0000"),
    ],
)
def test_another_end_is_what_it_is(status: int, said: bytes) -> None:
    assert status_of(status, io.BytesIO(said)) == (status, said.decode())


def test_whoever_has_said_much_is_understood() -> None:
    status, words = status_of(-signal.SIGKILL, io.BytesIO(b"warning: \0" * 100_000 + b"the end\0005"))
    assert status == 5
    assert words.endswith("the end")
    assert len(words) < 100_000
