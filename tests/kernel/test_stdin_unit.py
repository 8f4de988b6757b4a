"""The stdin socket: a question to a frontend."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq
from jupyter_client.session import Session

from kernelmcp_kernel.jupyter.channels import stdin

pytestmark = pytest.mark.anyio


async def test_a_frontend_that_has_gone_answers_a_question_as_the_end_of_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdin, "_CONNECT_SECONDS", 0.0)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(f"ipc://{tmp_path}/stdin")
        assert await stdin.read_line(Session(key=b"key"), socket, {"prompt": "?"}, {}, [b"gone"]) == "\x04"
