"""What a hostile guest can make the kernel process hold: at most MAX_PEAK_MB, whatever its frames say."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import zmq

from kernelmcp.kernel import process
from kernelmcp_kernel.jupyter.sandbox_kernel import EXIT_OUT_OF_MEMORY

from ..processes import forget_peak, is_alive, peak_mb
from .conftest import running_kernel
from .driver import DEADLINE, Kernel, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")

MAX_PEAK_MB = 400

# ruff: noqa: E501  # cells in a table

# A guest that owns its process writes what it likes to its pipe. `text` is the JSON of the arguments or the content.
FORGE = """
import js, struct
from pyodide.ffi import to_js
from kernelmcp_guest.bridge import request_id
_fs = js.process.getBuiltinModule("fs")
def write(*pieces):
    for piece in pieces:
        _fs.writeSync(4, to_js(piece))
def frame(kind, pieces, count=1):
    head = b'{"type":"%s","id":"%s","content":' % (kind.encode(), request_id.get().encode())
    pieces = [head, *pieces, b"}"]
    for _ in range(count):
        write(struct.pack("<I", sum(map(len, pieces))), *pieces)
def call(kind, pieces, number=1):
    frame("call", [b'{"number":%d,"arguments":{"call":"%s",' % (number, kind.encode()), *pieces, b"}}"])
MB = b"x" * 1_000_000
lists = b",".join([b"[]"] * 333_000)
def many(size_mb): return [b"[", *[lists + b","] * (size_mb - 1), lists, b"]"]
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel(KERNELMCP_KEEP_GLOBALS="1") as running:
        running.prepare(FORGE)
        yield running


# Each is more than MAX_PEAK_MB, if it is held: as text, or as the values that it is parsed to.
ATTACKS = {
    "calls of install": "for n in range(5): call('install', [b'\"requirements\":', *many(30)], n + 1)",
    "calls that nobody offers": "for n in range(5): call('nonsense', [b'\"a\":', *many(30)], n + 1)",
    "calls that wait": "for n in range(5): call('input', [b'\"prompt\":', *many(30)], n + 1)",
    "calls of fetch": 'for n in range(24): call(\'fetch\', [b\'"url":"http://x/","body":"\', *[MB] * 20, b\'"\'], n + 1)',
    "calls of tools": "for n in range(5): call('tools', [b'\"calls\":[[1,\"a\",\"b\",', *many(30), b']]'], n + 1)",
    "programs that wait": 'for n in range(12): call(\'run_command\', [b\'"command":"cat","stdin":"\', *[MB] * 44, b\'"\'], n)',
    "an unknown type": "frame('nonsense', many(60))",
    "a display of values": "frame('display_data', [b'{\"metadata\":{},\"data\":{\"a/b\":', *many(44), b'}}'])",
    "displays of values": "for _ in range(9): frame('display_data', [b'{\"metadata\":{},\"data\":{\"a/b\":', *many(20), b'}}'])",
    "a display of wide text": 'frame(\'display_data\', [b\'{"metadata":{},"data":{"a/b":"\\xf0\\x9f\\x9a\\x80\', *[MB] * 23, b\'"}}\'])',
    "an error": 'frame(\'error\', [b\'{"ename":"","evalue":"","traceback":\', *many(40), b\'}\'])',
    "text": 'frame(\'stream\', [b\'{"name":"stdout","text":"\\xf0\\x9f\\x9a\\x80\', *[MB] * 60, b\'"}\'])',
    "files": "frame('files', [b'{\"changed\":', *many(60), b'}'])",
    "a reply": 'frame(\'reply\', [b\'{"status":"ok","user_expressions":{"a":\', *many(60), b\'}}\'])',
    "a reply of wide text": 'frame(\'reply\', [b\'{"status":"ok","a":"\\xf0\\x9f\\x9a\\x80\', *[MB] * 60, b\'"}\'])',
    "a reply of escapes": 'frame(\'reply\', [b\'{"status":"ok","a":"\\\\ud83d\\\\ude80\', *[MB] * 60, b\'"}\'])',
    "a reply of plain text": 'frame(\'reply\', [b\'{"status":"error","ename":"","traceback":[],"evalue":"\', *[MB] * 60, b\'"}\'])',
    "an acknowledgement": "frame('interrupted', [b'{\"a\":', *many(60), b'}'])",
    "a comm message": "frame('comm_open', [b'{\"comm\":', *many(20), b',\"metadata\":', *many(20), b'}'])",
    "a second type": 'frame(\'display_data\', [b\'{},"type":"reply","content":\', *many(20)])',
    "depth": "frame('reply', [b'[' * 1_000_000] * 60)",
}

# Over 10 s of CPU.
MANY_BYTES = ("calls of fetch", "programs that wait")


DISPLAYS = 12
SHOW = f"""
for _ in range({DISPLAYS}):
    frame('display_data', [b'{{"metadata":{{}},"data":{{"a/b":"', *[MB] * 20, b'"}}}}'])
print('sent')
"""


@contextmanager
def slow_client(kernel: Kernel) -> Iterator[zmq.Socket[bytes]]:
    """Another client of iopub, with room for one message."""
    connection: Any = kernel.client.get_connection_info()
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger, socket.rcvhwm = 0, 1
        socket.subscribe(b"")
        socket.connect(f"ipc://{connection['ip']}-{connection['iopub_port']}")
        while not socket.poll(20):
            kernel.run("1")
        yield socket


def test_output_that_a_client_does_not_read_waits_in_the_guest(kernel: Kernel) -> None:
    pid = kernel.process.pid
    forget_peak(pid)
    with slow_client(kernel) as slow:
        request = kernel.send(SHOW)
        outputs = [kernel.output(request)]
        with suppress(queue.Empty):
            while True:
                message = kernel.client.get_iopub_msg(timeout=2)
                outputs += [message] if message["msg_type"] in ("display_data", "stream") else []
        assert len(outputs) < DISPLAYS
        over = threading.Event()

        def read_on() -> None:
            while not over.is_set():
                if slow.poll(50):
                    slow.recv_multipart()

        reader = threading.Thread(target=read_on)
        reader.start()
        try:
            ran = kernel.finish(request, outputs)
        finally:
            over.set()
            reader.join()
    print(f"{peak_mb(pid):.0f} MB")
    assert peak_mb(pid) < MAX_PEAK_MB
    assert ran.kinds() == ["display_data"] * DISPLAYS + ["stdout"]


def test_an_interrupt_reaches_a_guest_that_waits_for_a_client() -> None:
    with running_kernel() as kernel, slow_client(kernel):
        request = kernel.send("kept = 1\nwhile True: print('x' * 10**6)")
        with suppress(queue.Empty):
            while True:
                kernel.client.get_iopub_msg(timeout=2)
        kernel.interrupt()
        ran = kernel.finish(request)
        assert ran.error.startswith("KeyboardInterrupt")
        assert "dropped: a client of this kernel reads too slowly" in ran.text("stderr")
        assert kernel.reply(kernel.send("kept"))["content"]["status"] == "ok"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in MANY_BYTES)) for name in ATTACKS]
)
def test_no_frame_makes_the_kernel_process_large(kernel: Kernel, name: str) -> None:
    pid = kernel.process.pid
    forget_peak(pid)
    kernel.run(ATTACKS[name], allow_stdin=False)
    print(f"{peak_mb(pid):.0f} MB")
    assert peak_mb(pid) < MAX_PEAK_MB
    assert kernel.process.pid == pid, "it is still the same process"
    if kernel.run("MB").status == "error":  # the guest was ended for it
        kernel.run(FORGE)
    assert kernel.run("1 + 1").result == "2"


def test_a_kernel_process_that_is_too_large_ends_and_its_status_says_why() -> None:
    """No guest gets it so far. A client does, with a message of 600 MB."""
    with running_kernel() as kernel:
        message = kernel.client.session.msg("comm_msg", {"comm_id": "x", "data": {}})
        socket: Any = kernel.client.shell_channel.socket
        kernel.client.session.send(socket, message, buffers=[bytes(60_000_000) for _ in range(10)])
        assert wait_until(lambda: not is_alive(kernel.process))
        assert kernel.manager.provisioner.process.wait(DEADLINE) == EXIT_OUT_OF_MEMORY == process.OUT_OF_MEMORY
    assert "too much memory" in process.how_it_ended(EXIT_OUT_OF_MEMORY, own=True)
