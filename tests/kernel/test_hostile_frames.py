"""A guest that owns its process can write what it likes to its pipe. Here the guest is a program that does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from kernelmcp_kernel.guests import channel
from kernelmcp_kernel.guests.cpu import CpuLimit
from kernelmcp_kernel.guests.death import GuestDied
from kernelmcp_kernel.guests.frames import Frame
from kernelmcp_kernel.guests.guest import Guest, new_request_id
from kernelmcp_kernel.guests.state_pipes import FilePart
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
        state_out, state_out_theirs = os.pipe()
        state_in_theirs, state_in = os.pipe()
        theirs = (requests_theirs, frames_theirs, state_out_theirs, state_in_theirs)
        process = subprocess.Popen(  # noqa: ASYNC220  # the loop has nothing else to do yet
            [sys.executable, HOSTILE / f"{program}.py", *map(str, theirs)],
            pass_fds=theirs,
            stderr=errors_theirs,
        )
        for fd in (*theirs, interrupts_theirs, errors_theirs):
            os.close(fd)
        found: list[Frame] = []
        spawned = Spawned(
            *(process.pid, requests, frames, interrupts, errors, max_resident_mb),
            state_out=state_out,
            state_in=state_in,
        )
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


@pytest.mark.parametrize("last", ["a request", "an interrupt"])
def test_a_guest_that_lets_too_much_lie_unread_is_ended_and_the_reply_says_so(
    monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    async def use(guest: Guest, found: list[Frame]) -> None:
        await guest.ready()
        if last == "a request":
            monkeypatch.setattr(channel, "_MAX_UNREAD_BYTES", 0)
        asked = asyncio.ensure_future(guest.request("execute", {}, new_request_id(), CpuLimit(1000)))
        await asyncio.sleep(0)
        monkeypatch.setattr(channel, "_MAX_UNREAD_BYTES", 0)
        guest.interrupt()
        with pytest.raises(GuestDied, match="never reads the answers"):
            await asked

    with_hostile_guest("never_reads", use)


def test_a_guest_with_too_much_memory_is_ended_and_the_reply_says_so() -> None:
    async def use(guest: Guest, found: list[Frame]) -> None:
        with pytest.raises(GuestDied, match=r"killed for memory: it had \d+ MB, and the limit is 200"):
            await guest.request("execute", {}, new_request_id())

    with_hostile_guest("maps_shared_memory", use, max_resident_mb=200)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are not counted")
def test_a_guest_with_too_many_threads_is_ended_and_the_reply_says_so() -> None:
    async def use(guest: Guest, found: list[Frame]) -> None:
        with pytest.raises(GuestDied, match=r"killed because it had \d+ threads, and the limit is 64"):
            await guest.request("execute", {}, new_request_id())

    with_hostile_guest("starts_threads", use, max_resident_mb=2000)


# -- saved states


def moved(program: str, op: Literal["save_state", "load_state"]) -> tuple[dict[str, Any] | str, int]:
    """The guest's answer, or its death; and the bytes that came from its pipe."""

    async def use(guest: Guest, found: list[Frame]) -> tuple[dict[str, Any] | str, int]:
        await guest.ready()
        sizes: list[int] = []
        with tempfile.TemporaryFile() as file:
            file.write(bytes(3_000_000))
            file.flush()
            pipes = guest.state_pipes
            saving = pipes.receiving(lambda data: sizes.append(len(data)))
            with saving if op == "save_state" else pipes.sending([FilePart(file.fileno(), 0, 3_000_000)]):
                try:
                    answer = await guest.move_state(op, {})
                except GuestDied as death:
                    answer = str(death)
        return answer, sum(sizes)

    return with_hostile_guest(program, use)


def test_what_a_guest_wrote_before_it_was_asked_is_its_own_loss() -> None:
    answer, size = moved("writes_its_state_early", "save_state")
    assert (answer["ok"], size >= 60_000) == (True, True)


def test_a_guest_that_closes_its_state_pipes_keeps_nobody_busy() -> None:
    before = time.process_time()
    answer, size = moved("closes_its_state_pipes", "save_state")
    assert (answer, size) == ({"ok": True}, 0)
    assert time.process_time() - before < 1.5, "it answered two seconds later"
    assert moved("closes_its_state_pipes", "load_state")[0] == {"ok": True}


def test_a_guest_that_never_reads_its_state_blocks_nobody() -> None:
    async def use(guest: Guest, found: list[Frame]) -> str | None:
        await guest.ready()
        with tempfile.TemporaryFile() as file:
            file.truncate(5_000_000)
            with guest.state_pipes.sending([FilePart(file.fileno(), 0, 5_000_000)]):
                moving = asyncio.ensure_future(guest.move_state("load_state", {}))
                for _ in range(100):  # the loop still turns while megabytes wait for the pipe
                    await asyncio.sleep(0)
                guest.kill("it does not read")
                with pytest.raises(GuestDied):
                    await moving
        return guest.death

    assert with_hostile_guest("never_reads", use) == "it does not read"


def test_a_guest_that_goes_on_writing_its_state_after_its_answer_is_no_longer_read() -> None:
    answer, size = moved("writes_its_state_for_ever", "save_state")
    assert answer == {"ok": True}
    assert size < 64 << 20


def test_an_answer_that_nobody_asked_for_is_ignored() -> None:
    async def use(guest: Guest, found: list[Frame]) -> dict[str, Any]:
        return await guest.request("execute", {}, new_request_id())

    assert with_hostile_guest("answers_for_states", use)["status"] == "ok"


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
