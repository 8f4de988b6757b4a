"""A guest that owns its process can write what it likes to its pipe. Here the guest is a program that does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import Frame
from kernelmcp_kernel.guests.guest import Guest, new_request_id
from kernelmcp_kernel.runtime.guest_process import Spawned

from .conftest import running_kernel
from .driver import DEADLINE, Kernel

HOSTILE = Path(__file__).parent / "hostile"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """Its JavaScript keeps what a hostile guest would find its way to."""
    with running_kernel(KERNELMCP_KEEP_GLOBALS="1") as running:
        yield running


def with_hostile_guest(program: str, use: Callable[[Guest, list[Frame]], Any], max_resident_mb: int = 0) -> Any:
    """Run `use` with a Guest whose process is a program of tests/kernel/hostile."""

    async def run() -> Any:
        requests_theirs, requests = os.pipe()
        frames, frames_theirs = os.pipe()
        interrupts_theirs, interrupts = os.pipe()
        errors, errors_theirs = os.pipe()
        process = subprocess.Popen(  # noqa: ASYNC220  # the loop has nothing else to do yet
            [sys.executable, HOSTILE / f"{program}.py", str(requests_theirs), str(frames_theirs)],
            pass_fds=(requests_theirs, frames_theirs),
            stderr=errors_theirs,
        )
        for fd in (requests_theirs, frames_theirs, interrupts_theirs, errors_theirs):
            os.close(fd)
        found: list[Frame] = []
        spawned = Spawned(process.pid, requests, frames, interrupts, errors, max_resident_mb)
        guest = Guest(spawned, lambda _, frame: found.append(frame))
        try:
            async with asyncio.timeout(DEADLINE):
                return await use(guest, found)
        finally:
            guest.kill("the test is over")
            process.returncode = 0  # Guest has waited for it

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("lies_about_length", "a frame of"),
        ("sends_no_json", "a frame that does not begin with its type"),
        ("sends_half_a_frame", "exited with status"),
        ("closes_its_pipe", "closed its output pipe"),
    ],
)
def test_a_guest_that_breaks_the_protocol_is_ended_and_the_request_is_answered(program: str, reason: str) -> None:
    async def use(guest: Guest, found: list[Frame]) -> None:
        with pytest.raises(GuestDied, match=reason):
            await guest.request("execute", {}, new_request_id())

    with_hostile_guest(program, use)


def test_replies_to_other_requests_are_ignored() -> None:
    async def use(guest: Guest, found: list[Frame]) -> dict[str, Any]:
        return await guest.request("execute", {}, new_request_id())

    assert with_hostile_guest("replies_ahead", use) == {"status": "ok", "real": True}


def test_a_guest_that_never_reads_blocks_nobody() -> None:
    async def use(guest: Guest, found: list[Frame]) -> str | None:
        request = asyncio.ensure_future(guest.request("execute", {"code": "x" * 5_000_000}, new_request_id()))
        await guest.ready()
        await asyncio.sleep(0)  # the loop still turns while megabytes wait for the pipe
        guest.kill("it does not read")
        with pytest.raises(GuestDied):
            await request
        return guest.death

    assert with_hostile_guest("never_reads", use) == "it does not read"


def test_a_guest_with_too_much_memory_is_ended_and_the_reply_says_so() -> None:
    async def use(guest: Guest, found: list[Frame]) -> None:
        with pytest.raises(GuestDied, match=r"killed for memory: it had \d+ MB, and the limit is 200"):
            await guest.request("execute", {}, new_request_id())

    with_hostile_guest("maps_shared_memory", use, max_resident_mb=200)


FLOOD = """
import js, json, struct
from pyodide.ffi import to_js
from kernelmcp_guest.bridge import request_id
def frames(kind, count, **content):
    body = json.dumps({"type": kind, "id": request_id.get(), "content": content}).encode()
    return (struct.pack("<I", len(body)) + body) * count
def write(data): js.process.getBuiltinModule("fs").writeSync(4, to_js(data))
"""


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(20): write(frames('call', 1000, number=1, arguments={'call': 'x'}))",
        "for _ in range(10): write(frames('stream', 5000, name='stdout', text='x'))",
        "for _ in range(10): write(frames('display_data', 5000, data={'text/plain': 'x'}, metadata={}))",
        "for _ in range(10): write(frames('nonsense', 5000, a=1))",
        "write(frames('interrupted', 1000))",
    ],
    ids=["host calls", "text", "displays", "unknown frames", "acknowledgements"],
)
def test_a_flood_of_frames_leaves_the_kernel_small_and_usable(kernel: Kernel, code: str) -> None:
    kernel.run(FLOOD + code)
    assert kernel.process.memory_info().rss < 300e6
    assert kernel.run("1 + 1").result == "2"


def test_a_frame_that_lies_about_its_length_ends_the_guest_and_not_the_kernel(kernel: Kernel) -> None:
    ran = kernel.run(FLOOD + "write(b'\\xff\\xff\\xff\\xff')\nwhile True: pass")
    assert "it broke the protocol" in ran.error
    assert kernel.run("1 + 1").result == "2"
