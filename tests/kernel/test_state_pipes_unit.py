"""The bytes that a guest is sent of its state, whatever the system has to send them with."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelmcp_kernel.guests.state_pipes import FilePart, StatePipes

CONTENT = bytes(range(256)) * 12_000  # more than a pipe holds


def sent(parts: list[tuple[Path, int, int]]) -> bytes:
    """What a guest reads of these parts, each file, start and size."""

    async def run() -> bytes:
        (out, other_out), (other_in, into) = os.pipe(), os.pipe()
        spawned: Any = SimpleNamespace(state_out=out, state_in=into)
        pipes = StatePipes(spawned)
        found = bytearray()
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> None:
            while data := os.read(other_in, 100_000):
                found.extend(data)
            loop.call_soon_threadsafe(ended.set)

        files = [os.open(file, os.O_RDONLY) for file, _, _ in parts]
        reader = threading.Thread(target=read)
        reader.start()
        try:
            listed = zip(files, parts, strict=True)
            with pipes.sending([FilePart(file, start, size) for file, (_, start, size) in listed]):
                await ended.wait()
        finally:
            pipes.close()
            reader.join()
            for fd in (*files, other_out, other_in):
                os.close(fd)
        return bytes(found)

    return asyncio.run(run())


@pytest.fixture(params=["splice", "EINVAL", "EPERM", "ENOSYS", "a system without splice", "a Python without splice"])
def content(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, on a system of each kind."""

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(getattr(errno, request.param), "refused")

    if request.param.startswith("E"):
        monkeypatch.setattr(os, "splice", refuse, raising=False)
    elif request.param == "a system without splice":
        monkeypatch.setattr("sys.platform", "darwin")
    elif request.param == "a Python without splice":
        monkeypatch.delattr(os, "splice", raising=False)
    file = tmp_path / "state"
    file.write_bytes(CONTENT)
    return file


def test_parts_arrive_one_after_the_other(content: Path) -> None:
    expected = CONTENT[5:2_000_005] + CONTENT[7:]
    assert sent([(content, 5, 2_000_000), (content, 0, 0), (content, 7, len(CONTENT) - 7)]) == expected


def test_of_a_file_that_is_too_short_there_is_only_what_it_has(content: Path) -> None:
    assert sent([(content, 0, len(CONTENT) + 5), (content, 0, 10)]) == CONTENT


def test_of_nothing_there_is_only_the_end(content: Path) -> None:
    assert sent([]) == b""
