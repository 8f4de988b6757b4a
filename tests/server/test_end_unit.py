"""The end of a server's process, whatever its disk and its parent do."""

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelmcp import server as module
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
