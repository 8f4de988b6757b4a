"""Each parser of a stranger's bytes gets bytes that nobody thought of: whatever comes, it goes on, and stays small.

The corpus has what each of them reads; inputs are edits of that, and values that are costly to parse. They are the same
in each run. CONTRIBUTING.md says how to run it with more. `-rP` shows the peaks.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kernelmcp.upstreams.large_results import LargeResults, Lines, TooLong
from kernelmcp.upstreams.stdio import _parsed  # pyright: ignore[reportPrivateUsage]
from kernelmcp_kernel.guests.frames import FrameDecoder, FrameError, Room

from ..kernel.conftest import running_kernel
from ..starting import DEADLINE, start_server

CORPUS = Path(__file__).parent / "corpus"
# Of all four together.
IN_THE_SUITE = 2000
INPUTS = int(os.environ.get("FUZZ_INPUTS", IN_THE_SUITE))
pytestmark = [pytest.mark.slow] if INPUTS > IN_THE_SUITE else []
MAX_PARSER_BYTES = 64 << 20
MAX_PROCESS_BYTES = 400 << 20
NAMES = st.sampled_from(["type", "id", "content", "call", "calls", "number", "params", "arguments", "result", "name"])
COSTLY = st.sampled_from(
    [
        "[" * 90 + "]" * 90,
        "[" * 50_000 + "]" * 50_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "[" + "[]," * 100_000 + "1]",
        "{" + ",".join(f'"{n}":{{}}' for n in range(30_000)) + "}",
        "-1e999",
        "NaN",
        '"\\ud800"',
        '"' + "\\u0000" * 50_000 + '"',
        '"' + "\U0001f600" * 100_000 + '"',
        '{"id":1,"id":2,"type":"call","type":"reply"}',
    ]
).map(str.encode)
# Valid JSON, and not for Python's: such a frame ends its guest.
TOO_LONG_NUMBER = st.just(b"1" * 10_000)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES | st.text(max_size=10), inner, max_size=5),
    max_leaves=15,
)
ENCODED = VALUES.map(lambda value: json.dumps(value).encode())


def edited(name: str) -> st.SearchStrategy[bytes]:
    """A line of the corpus with up to three pieces of it replaced: by nothing, bytes, a value, or a costly one."""
    lines = [line.encode() for line in (CORPUS / f"{name}.jsonl").read_text().splitlines()]

    @st.composite
    def edit(draw: st.DrawFn) -> bytes:
        line = draw(st.sampled_from(lines))
        for _ in range(draw(st.integers(0, 3))):
            piece = draw(st.binary(max_size=8) | ENCODED | COSTLY | TOO_LONG_NUMBER | st.sampled_from(lines))
            # Where a value stands, or anywhere.
            places = [match.end() for match in re.finditer(rb"[:,\[]\s*", line)]
            start = draw(st.sampled_from(places or [0]) | st.integers(0, len(line)))
            line = line[:start] + piece + line[start + draw(st.integers(0, 12)) :]
        return line

    return edit() | ENCODED


def altered(name: str) -> st.SearchStrategy[bytes]:
    """An object of the corpus with other values, and members that it has not: still JSON, with its first member."""
    objects: list[dict[str, Any]] = [json.loads(line) for line in (CORPUS / f"{name}.jsonl").read_text().splitlines()]

    @st.composite
    def alter(draw: st.DrawFn) -> bytes:
        members = {key: json.dumps(value).encode() for key, value in draw(st.sampled_from(objects)).items()}
        for _ in range(draw(st.integers(1, 3))):
            members[
                draw(st.sampled_from(list(members)[1:] or ["x"]) | NAMES.filter(lambda one: one not in members))
            ] = draw(ENCODED | COSTLY)
        return b"{" + b", ".join(b'"%b": %b' % (key.encode(), value) for key, value in members.items()) + b"}"

    return alter()


def inputs_of(name: str, inputs: st.SearchStrategy[bytes] | None = None) -> list[bytes]:
    """A fourth of the inputs, of the corpus of this name."""
    found: list[bytes] = []

    @settings(
        max_examples=INPUTS // 4, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )  # fmt: skip
    @given(edited(name) if inputs is None else inputs)
    def collect(data: bytes) -> None:
        found.append(data)

    collect()
    return found


def peak_of(run: Callable[[], None]) -> int:
    """Bytes that it had allocated at most."""
    tracemalloc.start()
    try:
        run()
        return _printed(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def peak_memory(pid: int) -> int:
    """Resident memory of a process at its peak, bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return _printed(int(found[1]) * 1024)


def _printed(peak: int) -> int:
    print(f"{INPUTS // 4:,} inputs: at most {peak / 2**20:.1f} MiB")
    return peak


def test_frames_of_a_guest() -> None:
    inputs = inputs_of("frames")

    def decode() -> None:
        for number, body in enumerate(inputs):
            decoder = FrameDecoder(room=Room(64 << 20))
            data = struct.pack("<I", len(body)) + body
            cut = number * 7919 % len(data)
            with suppress(FrameError):
                for frame in [*decoder.feed(data[:cut]), *decoder.feed(data[cut:])]:
                    json.dumps(frame.content, allow_nan=False).encode()  # it can be sent on

    assert peak_of(decode) < MAX_PARSER_BYTES


def test_lines_of_an_upstream() -> None:
    inputs = inputs_of("upstream_lines")

    def read() -> None:
        large = LargeResults(lambda: 16)
        for body in inputs:
            lines = Lines(large)
            with large.expecting(7), suppress(TooLong):
                for line in lines.feed(body + b"\n"):
                    if (message := _parsed(line)) is not None:
                        message.model_dump_json()

    assert peak_of(read) < MAX_PARSER_BYTES


SEND = """
import js, json, struct
from pyodide.ffi import to_js
from kernelmcp_guest.bridge import request_id
write = js.process.getBuiltinModule("fs").writeSync
for number, arguments in enumerate(open("inputs", "rb").read().split(b"\\n")):
    head = '{"type": "call", "id": "%s", "content": {"number": %d, "arguments": ' % (request_id.get(), 10**6 + number)
    body = head.encode() + arguments + b"}}"
    write(4, to_js(struct.pack("<I", len(body)) + body))
"""


def test_host_calls_of_a_guest(tmp_path: Path) -> None:
    calls = inputs_of("host_calls", altered("host_calls"))
    (tmp_path / "workspace").mkdir()
    with running_kernel(KERNELMCP_KEEP_GLOBALS="1", KERNELMCP_SANDBOX_DIRECTORY=str(tmp_path)) as kernel:
        kernel.run("kept = 41")
        for start in range(0, len(calls), 500):
            (tmp_path / "workspace" / "inputs").write_bytes(b"\n".join(calls[start : start + 500]))
            ran = kernel.run(SEND)
            assert (ran.status, ran.state_lost) == ("ok", False), ran.error
        assert kernel.run("kept + 1").result == "42"
        assert peak_memory(kernel.process.pid) < MAX_PROCESS_BYTES


def test_requests_of_a_client(tmp_path: Path) -> None:
    initialize = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    last = {"jsonrpc": "2.0", "id": "the last one", "method": "tools/list"}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize}).encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        *(body.replace(b"\n", b" ") for body in inputs_of("mcp_requests")),
        json.dumps(last).encode(),
    ]
    env = {
        **os.environ,
        "KERNELMCP_HOME": str(tmp_path / "home"),
        "KERNELMCP_SERVER__RUNTIME": f"/tmp/kmt-{os.getpid()}",
        "KERNELMCP_SESSIONS__WARM_POOL_SIZE": "0",
    }
    process = start_server(env=env, stderr=subprocess.DEVNULL)
    try:
        answered = exchange(process, b"\n".join(lines) + b"\n")
        assert "tools" in answered["result"]
        assert peak_memory(process.pid) < MAX_PROCESS_BYTES
        assert psutil.Process(process.pid).num_threads() < 64
    finally:
        process.kill()
        process.wait(DEADLINE)


def exchange(process: subprocess.Popen[bytes], data: bytes) -> dict[str, Any]:
    """Send all of it, and read until the last request is answered."""
    stdin, stdout = process.stdin, process.stdout
    assert stdin
    assert stdout
    sending = threading.Thread(target=stdin.write, args=[data], daemon=True)
    sending.start()
    for line in stdout:
        message = json.loads(line)
        if message.get("id") == "the last one":
            sending.join(DEADLINE)
            return message
    raise AssertionError("the server has ended")
