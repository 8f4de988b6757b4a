"""The state of a JavaScript session: saved by one guest, loaded by another, refused where either is impossible."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.languages.javascript.language import JavaScript
from kernelmcp_kernel.runtime.guest_process import Launch

from .state_guest import StateGuest, header_of, starting, with_header

Start = Callable[[], StateGuest]

SETUP = r"""
let number = 5, big = 2n ** 80n, text = 'a\0\ud800', bytes = new Uint8Array([1, 2, 3]), nothing = null;
const map = new Map([['k', { deep: [1, 2] }]]), set = new Set([1]), when = new Date(0), key = Symbol.for('key');
const weak = new WeakMap([[map, 'found']]), done = Promise.resolve(7), pattern = /a(b+)/y;
function makeCounter() { let count = 0; return () => ++count; }
const counter = makeCounter(); counter(); counter();
class Point { #x; constructor(x) { this.#x = x; } get double() { return 2 * this.#x; } }
const point = new Point(4);
function* numbers() { for (let n = 0; ; n++) yield n; }
const iterator = numbers(); iterator.next(); iterator.next();
async function later() { return 'later'; }
let pending, settle; pending = new Promise((resolve) => { settle = resolve; });
globalThis.shared = [1]; Array.prototype.last = function () { return this[this.length - 1]; };
const util = require('util'), { createHash } = require('crypto'), buffer = Buffer.from('abc');
const started = performance.now();
const ended = Array.from({ length: 20 }, () => setTimeout(() => {}, 1)); ended.forEach(clearTimeout);
process.env.MINE = 'yes';
"""

SURVIVES = {
    "values": (
        "[number, big, nothing, text.length, text.charCodeAt(2)]",
        "[ 5, 1208925819614629174706176n, null, 3, 55296 ]",
    ),
    "collections": (
        "[map.get('k').deep[1], set.has(1), weak.get(map), bytes[2], when.getTime()]",
        "[ 2, true, 'found', 3, 0 ]",
    ),
    "closure": ("counter()", "3"),
    "private field": ("point.double", "8"),
    "generator": ("iterator.next().value", "2"),
    "async function": ("await later()", "'later'"),
    "promise": ("await done", "7"),
    "promise that waits": ("settle('came'); await pending", "'came'"),
    "symbol": ("key === Symbol.for('key')", "true"),
    "pattern": ("pattern.exec('abb')[1]", "'bb'"),
    "globals": ("[shared.length, [1, 9].last()]", "[ 1, 9 ]"),
    "modules": ("[util.inspect([1]), createHash('md5').update('a').digest('hex').length]", "[ '[ 1 ]', 32 ]"),
    "buffer": ("buffer.toString('hex')", "'616263'"),
    "clock": ("performance.now() >= started", "true"),
    "environment": ("process.env.MINE", "'yes'"),
    "working directory": ("process.cwd()", "'/workspace/sub'"),
    "files": ("require('fs').readFileSync('note.txt', 'utf8')", "'kept'"),
    "new timers": ("await new Promise((resolve) => setTimeout(() => resolve('came'), 1))", "'came'"),
    "numbers of old timers": (
        "await new Promise((resolve) => { setTimeout(() => resolve('came'), 1); ended.forEach(clearTimeout); })",
        "'came'",
    ),
    "new modules": ("(await import('path')).join('a', 'b')", "'a/b'"),
    "new memory": ("new Uint8Array(20_000_000).length", "20000000"),
    "errors": ("(() => { try { null.x } catch (error) { return error.constructor.name } })()", "'TypeError'"),
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with starting(tmp_path_factory, JavaScript) as start:
        yield start


@pytest.fixture(scope="module")
def continued(start: Start) -> StateGuest:
    """A session that was saved and loaded, and that twice."""
    first, second, third = start(), start(), start()
    first.run(SETUP)
    first.run(
        "const fs = require('fs'); fs.mkdirSync('sub'); process.chdir('sub'); fs.writeFileSync('note.txt', 'kept')"
    )
    for old, new in ((first, second), (second, third)):
        answer, state = old.save()
        assert answer["ok"], answer
        new.follow(old)
        assert new.load(state)["ok"]
    return third


@pytest.mark.parametrize("what", SURVIVES)
def test_a_session_continues_in_another_guest(continued: StateGuest, what: str) -> None:
    code, expected = SURVIVES[what]
    assert continued.run(code) == expected


def test_a_cell_of_a_continued_session_is_interrupted_and_goes_on(continued: StateGuest) -> None:
    continued.begin("for (;;);")
    continued.interrupt()
    assert "KeyboardInterrupt" in continued.finish()
    assert continued.run("number") == "5"


def test_random_numbers_continue_and_a_fork_has_its_own(start: Start) -> None:
    origin, same, fork = start(), start(), start()
    origin.run("Math.random()")
    state = origin.save()[1]
    assert same.load(state)["ok"]
    assert fork.load(state, reseed=True)["ok"]
    numbers = [guest.run("Math.random()") for guest in (origin, same, fork)]
    assert numbers[0] == numbers[1] != numbers[2]


@pytest.mark.parametrize(
    ("code", "undo"),
    [
        ("const timer = setTimeout(() => {}, 1e6)", "clearTimeout(timer)"),
        ("const again = setInterval(() => {}, 1e6)", "clearInterval(again)"),
    ],
    ids=["timer", "interval"],
)
def test_what_is_under_way_is_refused_by_name(start: Start, code: str, undo: str) -> None:
    guest = start()
    guest.run(code)
    assert guest.save() == ({"ok": False, "reasons": ["a timer or a request is under way"]}, b"")
    guest.run(undo)
    assert guest.save()[0]["ok"]


def of_100_mb(launch: Launch) -> Launch:
    flag = "--wasm-max-mem-pages="
    return replace(launch, program=[f"{flag}1600" if each.startswith(flag) else each for each in launch.program])


def test_a_full_memory_is_loaded_whole(tmp_path: Path) -> None:
    with (
        closing(StateGuest(tmp_path / "a", of_100_mb, JavaScript)) as guest,
        closing(StateGuest(tmp_path / "b", of_100_mb, JavaScript)) as other,
    ):
        guest.run("const parts = []; for (;;) parts.push(new Uint8Array(1_000_000).fill(parts.length % 256))")
        length = int(guest.run("parts.length"))
        assert 50 < length < 100
        answer, state = guest.save()
        assert answer["ok"], answer
        assert other.load(state)["ok"]
        assert other.run("parts.length") == str(length)
        assert other.run("parts.every((part, at) => part[0] === at % 256 && part[999_999] === part[0])") == "true"


def test_a_small_session_takes_little(start: Start) -> None:
    guest = start()
    guest.run("let x = 1")
    assert guest.save()[0]["bytes"] < 500_000


@pytest.fixture(scope="module")
def saved(start: Start) -> bytes:
    guest = start()
    guest.run("let kept = 1; let noise = new Uint8Array(100_000); crypto.getRandomValues(noise.subarray(0, 60_000))")
    return guest.save()[1]


def changed(**fields: Any) -> Callable[[bytes], bytes]:
    return lambda data: with_header(data, lambda header: header.update(fields))


DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "cut short"),
    "cut": (lambda data: data[: len(data) // 2], "cut short"),
    "a bit": (lambda data: data[:-5000] + bytes([data[-5000] ^ 1]) + data[-4999:], "damaged|checksum"),
    "no header": (lambda data: data[:20] + b"x" + data[21:], "header is damaged"),
    "other address": (changed(pins={"ctx": 8}), "elsewhere"),
    "no addresses": (changed(pins=None), "elsewhere"),
    "memory of 8 GB": (changed(memory_bytes=8 << 30), "needs 8192 MB"),
    "endless memory": (changed(memory_bytes=2**53 - 1), "of memory"),
    "more used than there is": (changed(used_bytes=1 << 40), "header is damaged"),
    "less than nothing": (changed(used_bytes=-4), "header is damaged"),
    "text for a number": (changed(room="1"), "header is damaged"),
    "no folder": (changed(working_directory=None), "header is damaged"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_state_ends_the_guest_and_says_why(start: Start, saved: bytes, what: str) -> None:
    damage, reason = DAMAGED[what]
    guest = start()
    answer = guest.load(damage(saved), end=True)
    assert answer["ok"] is False
    assert re.search(reason, "; ".join(answer["reasons"]))
    assert guest.exit_status() == "70"


@pytest.mark.parametrize("folder", ["/etc", "../..", "/volumes/none", "a\0b", ""])
def test_a_folder_that_is_none_of_the_session_is_not_entered(start: Start, saved: bytes, folder: str) -> None:
    guest = start()
    assert guest.load(changed(working_directory=folder)(saved))["ok"]
    assert guest.run("process.cwd()").startswith("'/workspace")


def test_two_guests_are_equal_where_a_state_needs_it(start: Start) -> None:
    first, second = (header_of(guest.save()[1]) for guest in (start(), start()))
    assert first["pins"] == second["pins"]


def test_garbage_in_place_of_addresses_harms_only_that_session(start: Start, saved: bytes) -> None:
    guest = start()
    assert guest.load(changed(reserve=3, room=2**31)(saved))["ok"]
    guest.begin("kept")
    with suppress(EOFError):  # it has ended, as a guest that breaks its own memory may
        guest.finish()
