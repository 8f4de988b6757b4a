"""What cells ask reaches the tabs of Lab, and servers are told that somebody is there only while somebody is."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelmcp.lab import open_questions as module
from kernelmcp.lab.open_questions import Questions

pytestmark = pytest.mark.anyio
DEADLINE_SECONDS = 60
ASKED = {"execution_id": "e", "session_id": "s", "prompt": "Name? ", "password": False, "choices": []}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Server:
    """Of the control socket, what Lab uses for questions. One question is open."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.left = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._answer, self.socket)
        try:
            yield
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = json.loads(await reader.readline())
        self.requests.put_nowait(request)
        reply = {"questions": [ASKED]} if request["method"] == "watch" else {"ok": True}
        writer.write(json.dumps(reply).encode() + b"\n")
        await reader.read()
        writer.close()
        if request["method"] == "watch":
            self.left.set()


async def test_a_server_is_watched_while_a_tab_asks_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAB_SECONDS", 0.0)
    server, questions = Server(tmp_path / "control.sock"), Questions()
    async with asyncio.timeout(DEADLINE_SECONDS), server.listening():
        questions.follow({server.socket})
        known = (await questions.news(""))["version"]
        questions.follow({server.socket})
        assert not questions._watching
        tab = asyncio.create_task(questions.news(known))
        await asyncio.sleep(0)  # it waits
        questions.follow({server.socket})
        assert (await tab)["questions"] == [ASKED]
        assert await server.requests.get() == {"method": "watch"}
        await questions.answer("e", "Ada")
        assert await server.requests.get() == {"method": "answer", "execution_id": "e", "text": "Ada"}
        questions.follow({server.socket})  # as the watch does; the tab was closed
        await server.left.wait()
        assert questions.all == []
        with pytest.raises(module.Refused):
            await questions.answer("e", "late")


async def test_a_tab_that_asks_again_at_once_is_the_same_tab(tmp_path: Path) -> None:
    server, questions = Server(tmp_path / "control.sock"), Questions()
    async with asyncio.timeout(DEADLINE_SECONDS), server.listening():
        await questions.news("")
        questions.follow({server.socket})
        assert await server.requests.get() == {"method": "watch"}
        questions.follow({server.socket})
        assert questions._watching
        questions.close()
