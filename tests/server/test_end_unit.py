"""The end of a server's process, whatever its disk and its parent do."""

import asyncio
import errno
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from kernelmcp import server as module
from kernelmcp.config.models import Config, Values
from kernelmcp.config.settings import Settings
from kernelmcp.files.home import Home, open_home
from kernelmcp.server import Server

from .support import DEADLINE


def test_a_disk_that_hangs_holds_up_no_end() -> None:
    server, back, deleted = Server(Settings()), threading.Event(), threading.Event()

    def delete_runtime() -> None:
        back.wait(DEADLINE)
        deleted.set()

    server._home = cast("Home", SimpleNamespace(delete_runtime=delete_runtime))
    assert server.cut_short() == 0
    assert not deleted.is_set()
    back.set()
    assert deleted.wait(DEADLINE)


def test_a_disk_that_refuses_fails_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "read-only")

    with monkeypatch.context() as patched, open_home(tmp_path / "home", tmp_path / "run"):
        patched.setattr(Path, "unlink", refuse)


def test_what_fails_at_the_end_does_not_prevent_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, statuses = threading.Event(), list[int]()

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    def fail() -> int:
        raise RuntimeError("can't start new thread")

    server = Server(Settings())
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(server, "cut_short", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    module._exit_after(0, server)
    assert ended.wait(DEADLINE)
    assert statuses == [1]


@pytest.fixture
def hang_up_ignored() -> Iterator[None]:
    """As nohup leaves it, and `&` of a shell without job control."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.usefixtures("hang_up_ignored")
def test_a_signal_that_is_ignored_from_the_beginning_stays_so(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: dict[signal.Signals, Any] = {}

    async def wait(_: Server, *__: Any) -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            handled[number] = signal.getsignal(number)

    monkeypatch.setattr(Server, f"start_{transport}", wait)
    monkeypatch.setattr(Server, "wait", wait)
    asyncio.run(getattr(module, f"_serve_{transport}")(Settings()))
    assert handled[signal.SIGHUP] is handled[signal.SIGINT] is signal.SIG_IGN
    assert callable(handled[signal.SIGTERM])


def test_sigterm_during_the_start_cancels_it_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def open_slowly(_: Server) -> AsyncIterator[None]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(DEADLINE)
            seen.append("the start went on")
            yield
        finally:
            seen.append("cleaned up")

    monkeypatch.setattr(Server, "_open", open_slowly)
    monkeypatch.setattr(module, "_exit_after", lambda *_: None)
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("not handled"))
    try:
        settings = Settings(Values(config=Config.model_validate({"transport_http": {"port": 0}})))
        assert asyncio.run(module._serve_http(settings)) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["cleaned up"]
