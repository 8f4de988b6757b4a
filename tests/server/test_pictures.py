"""What a guest's pictures cost: the server's memory, its time and its end do not depend on them."""

import asyncio
import base64
import io
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path

import anyio
import psutil
import pytest
from anyio import wait_all_tasks_blocked
from mcp import Client
from mcp_types import CallToolResult
from PIL import ExifTags, Image

from kernelmcp.pictures import decoder, headers
from kernelmcp.pictures.decoder import DEADLINE_SECONDS, Decoder

from ..processes import child_pids, children, command_line, forget_peak, is_alive, peak_mb
from . import bombs
from .support import DEADLINE, Connect, server_of_test, wait_until
from .test_lifecycle import INITIALIZE, receive, send

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
MAX_GROWTH_BYTES = 64 * 2**20
# It is 3.5 s for pictures and 3 s for the end; a busy machine takes longer for everything else.
ANSWER_SECONDS = 20.0


def decoders(of: psutil.Process) -> list[psutil.Process]:
    return [child for child in children(of.pid) if any(word.endswith("main.py") for word in command_line(child))]


@contextmanager
def growth(process: psutil.Process) -> Iterator[list[int]]:
    """By how much the process was larger at its largest than at the beginning: the list has one number afterwards."""
    found: list[int] = []
    if sys.platform == "linux":  # it keeps the peak
        forget_peak(process.pid)
        before_mb = peak_mb(process.pid)
        yield found
        found.append(int((peak_mb(process.pid) - before_mb) * 2**20))
        return
    before = process.memory_info().rss
    seen: list[int] = [before]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()
        found.append(max(seen) - before)


async def run(client: Client, code: str) -> CallToolResult:
    return await client.call_tool("execute_code", {"code": code, "session_id": "s"})


def sides(result: CallToolResult) -> list[tuple[int, int]]:
    blocks = [block for block in result.content if block.type == "image"]
    return [Image.open(io.BytesIO(base64.b64decode(block.data))).size for block in blocks]


# Made by the tests that use them: they take seconds, which every collection would pay.
PICTURES = {
    "jpeg": partial(bombs.flat_jpeg, 9000, 7000),
    "png": partial(bombs.flat_png, 7990),
    "scans": partial(bombs.progressive_jpeg, 7900, 6000),
    "pixels": partial(bombs.flat_png, 9000),
    "segments": lambda: b"\xff\xd8\xff\xe0\0\x02" * 500_000,
    "rubbish": lambda: b"\x89PNG\r\n\x1a\n" + b"\0" * 7_000_000,
}


@pytest.mark.parametrize(
    ("kind", "picture", "side"),
    [
        ("image/jpeg", "jpeg", 2048),
        ("image/png", "png", 2048),
        # Announced as something else.
        ("image/png", "jpeg", 2048),
        ("image/jpeg", "scans", None),
        ("image/png", "pixels", None),
        ("image/jpeg", "segments", None),
        ("image/png", "rubbish", None),
    ],
    ids=["jpeg", "png", "jpeg as png", "scans", "pixels", "segments", "rubbish"],
)
async def test_a_picture_of_any_shape_costs_the_server_neither_memory_nor_time(
    connect: Connect, kind: str, picture: str, side: int | None
) -> None:
    data = PICTURES[picture]()
    async with connect() as client:
        await run(client, bombs.show(bombs.flat_jpeg(20, 20), "image/jpeg"))
        await run(client, f"data = {base64.b64encode(data).decode()!r}")
        process = server_of_test()
        with growth(process) as grown:
            begun = time.monotonic()
            result = await run(client, f"display({{{kind!r}: data}}, raw=True)")
            seconds = time.monotonic() - begun
        print(f"{grown[0] / 2**20:.0f} MiB, {seconds:.1f} s")
        assert seconds < ANSWER_SECONDS
        assert grown[0] < MAX_GROWTH_BYTES
        found = sides(result)
        in_time = side and seconds < DEADLINE_SECONDS  # on a busy machine it may not be ready, and is a link then
        assert [max(size) <= side for size in found] == ([True] if in_time else [True] * len(found))
        [output] = result.structured_content["outputs"]
        assert output["uri"] in result.content[0].text, "it says where the picture is, as it was"
        assert (await run(client, "1 + 1")).structured_content["result"] == "2"
        assert decoders(process) == []


async def test_small_pictures_pay_for_no_process(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "1")
        started: set[int] = set()
        process = server_of_test()
        known = set(child_pids(process.pid))
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.001):
                started.update(child_pids(process.pid))

        watcher = threading.Thread(target=look)
        watcher.start()
        result = await run(client, bombs.show(bombs.flat_png(1000), "image/png") * 3)
        over.set()
        watcher.join()
        assert sides(result) == [(1000, 1000)] * 3
        assert started <= known


async def test_many_slow_pictures_share_one_deadline_and_few_processes(connect: Connect) -> None:
    slow = base64.b64encode(bombs.progressive_jpeg(7900, 6000)).decode()
    async with connect() as client:

        async def show(session_id: str) -> None:
            await client.call_tool("execute_code", {"code": f"data = {slow!r}", "session_id": session_id})
            begun = time.monotonic()
            code = "for _ in range(5): display({'image/jpeg': data}, raw=True)"
            result = await client.call_tool("execute_code", {"code": code, "session_id": session_id})
            assert time.monotonic() - begun < ANSWER_SECONDS
            assert "[5 pictures could not be put into this result: read_file of " in result.content[0].text

        most = 0
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, len(decoders(process)))
                    await anyio.sleep(0.02)

            await run(client, "1")
            process = server_of_test()
            tasks.start_soon(watch)
            async with anyio.create_task_group() as calls:
                for number in range(4):
                    calls.start_soon(show, f"s{number}")
            tasks.cancel_scope.cancel()
        assert 0 < most <= 2


@pytest.mark.parametrize("end", ["stdin", "SIGKILL"])
def test_the_server_ends_in_time_while_a_picture_is_unpacked_and_leaves_no_process(
    server_process: subprocess.Popen[bytes], end: str
) -> None:
    send(server_process, INITIALIZE)
    receive(server_process)
    send(server_process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    code = bombs.show(bombs.progressive_jpeg(7900, 6000), "image/jpeg")
    call = {"name": "execute_code", "arguments": {"code": code}}
    send(server_process, {"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": call})
    found: list[psutil.Process] = []
    process = psutil.Process(server_process.pid)
    assert wait_until(lambda: found.extend(decoders(process)) or bool(found))
    begun = time.monotonic()
    if end == "stdin":
        assert server_process.stdin is not None
        server_process.stdin.close()
    else:
        server_process.kill()
    server_process.wait(DEADLINE)
    seconds = time.monotonic() - begun
    print(f"{end}: {seconds:.2f} s")
    assert seconds < ANSWER_SECONDS
    assert wait_until(lambda: not any(map(is_alive, found)), ANSWER_SECONDS)


async def test_a_decoder_that_was_taken_over_and_floods_its_pipe_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = tmp_path / "flood.py"
    answer = struct.pack(decoder._ANSWER.format, *[1] * len(decoder._ANSWER.unpack(bytes(decoder._ANSWER.size))))
    flood.write_text(f"import os\nos.write(1, {answer!r})\nwhile True: os.write(1, bytes(65536))\n")
    monkeypatch.setattr(decoder, "_PROGRAM", flood)
    picture = headers.recognize(bombs.flat_png(2000))
    assert picture is not None
    for _ in range(decoder.MAX_PROCESSES + 1):  # the last one needs a place that one before has given back
        with anyio.fail_after(DEADLINE):
            async with decoder.Decoder("local") as one:
                assert await one.shrink(picture, 1000) is None
                # asyncio stops reading when nobody takes what it has read, and sees no end of the child then.
                while (child := one._process) and not vars(child.stdout)["_paused"]:  # noqa: ASYNC110
                    await anyio.sleep(0.01)


QUICK = f"""
import os, struct, time
if b"slow" in os.read(0, 1000):
    time.sleep(1000)
picture = {bombs.flat_png(20)!r}
os.write(1, struct.pack({decoder._ANSWER.format!r}, 1, len(picture)) + picture)
"""


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder in which everything takes no time, except what is slow."""
    program = tmp_path / "quick.py"
    program.write_text(QUICK)
    monkeypatch.setattr(decoder, "_PROGRAM", program)


@pytest.mark.usefixtures("quick")
async def test_the_pictures_of_one_principal_leave_a_place_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "DEADLINE_SECONDS", DEADLINE)

    async def draw(principal: str, document: str) -> headers.Picture | None:
        async with Decoder(principal) as used:
            return await used.render(document, 500_000)

    async with anyio.create_task_group() as tasks:
        for _ in range(decoder.MAX_PROCESSES):
            tasks.start_soon(draw, "token:a", "slow")
        await wait_all_tasks_blocked()
        places = Decoder("")._places
        assert (places.held("token:a"), places.left) == (2, 1)
        assert await draw("token:b", "quick") is not None
        tasks.cancel_scope.cancel()


@pytest.mark.usefixtures("quick")
async def test_a_picture_that_waits_for_a_place_loses_none_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_PROCESSES", 1)
    monkeypatch.setattr(decoder, "WAIT_SECONDS", DEADLINE)
    async with Decoder("local") as used, anyio.create_task_group() as tasks:
        async with used._places.turn("local"):
            tasks.start_soon(used.render, "quick", 500_000)
            await wait_all_tasks_blocked()
            free = asyncio.get_running_loop().time()
        while used._deadline is None:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        assert used._deadline >= free + DEADLINE_SECONDS


async def test_a_result_waits_for_a_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_PROCESSES", 1)
    monkeypatch.setattr(decoder, "WAIT_SECONDS", 0)
    waits: list[str] = []
    async with Decoder("local") as used:
        turn = used._places.turn

        def counted(principal: str) -> AbstractAsyncContextManager[None]:
            waits.append(principal)
            return turn(principal)

        async with turn("local"):
            monkeypatch.setattr(used._places, "turn", counted)
            assert [await used.render("<svg/>", 500_000) for _ in range(3)] == [None] * 3
    assert waits == ["local"]


async def test_an_output_is_linked_or_a_picture_but_not_both(connect: Connect) -> None:
    shown = bombs.show(bombs.flat_png(20), "image/png")
    async with connect() as client:
        result = await run(client, shown + "display({'text/html': '<b>x</b>'}, raw=True)\n" + shown)
    assert len(sides(result)) == 2
    links = [block.uri for block in result.content if block.type == "resource_link"]
    outputs = [output["uri"] for output in result.structured_content["outputs"]]
    assert [str(uri) for uri in links] == outputs[1:2]
    assert len(outputs) == 3


async def test_pictures_that_a_result_has_no_room_for_are_named(connect: Connect) -> None:
    shown = base64.b64encode(bombs.flat_png(20)).decode()
    async with connect() as client:
        result = await run(client, f"for _ in range(1_000): display({{'image/png': {shown!r}}}, raw=True)")
        text = result.content[0].text
        assert len(sides(result)) == 20
        execution = result.structured_content["execution_id"]
        address = f"kernelmcp://executions/{execution}/outputs/N"
        assert f'[1,000 pictures: 20 are here; the others: read_file("{address}"), N from 20 to 999]' in text
        last = await client.read_resource(f"kernelmcp://executions/{execution}/outputs/999")
        assert last.contents[0].mime_type == "image/png"


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
def test_whoever_takes_over_the_decoder_reaches_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    attacker = ROOT / "tests/attacks/programs/decoder.py"
    folder = ROOT / "kernelmcp/pictures/decoder_process"

    def attack(how: str, env: dict[str, str]) -> set[str]:
        command = [sys.executable, "-I", "-S", str(attacker), str(folder), str(secret), how]
        found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=env, check=True)
        return set(found.stdout.split())

    everything = {"read", "write", "list", "socket", "fork", "signal", "environment", "memory", "exec"}
    assert attack("open", {"KEY": "x", "TOKEN": "y"}) == everything | {"done"}, "the attempts are real"
    assert attack("confined", {}) == {"done"}
    assert attack("renderer", {}) == {"done"}


async def test_a_figure_in_points_is_drawn(connect: Connect) -> None:
    """As matplotlib writes it."""
    document = SVG.format('width="360pt" height="270pt" viewBox="0 0 360 270"', '<rect width="180" height="270"/>')
    async with connect() as client:
        result = await run(client, f"display({{'image/svg+xml': {document!r}}}, raw=True)")
    assert sides(result) == [(512, 384)]


SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {}>{}</svg>'
USES = "".join(f"<g id='a{n + 1}'>" + f"<use xlink:href='#a{n}'/>" * 10 + "</g>" for n in range(12))
ENTITIES = "".join(f"<!ENTITY e{n + 1} '" + f"&e{n};" * 10 + "'>" for n in range(9))
FILTERS = "<filter id='f'>" + "<feTurbulence numOctaves='100'/>" * 200 + "</filter>"


@pytest.mark.parametrize(
    "document",
    [
        "<svg",
        "<g>" * 100_000,
        SVG.format('width="1" height="1000000"', "<rect width='1' height='1'/>"),
        SVG.format('width="1e99" height="-1"', ""),
        SVG.format("", f'<g id="a0"><rect width="1" height="1"/></g>{USES}<use xlink:href="#a12"/>'),
        f'<!DOCTYPE l [<!ENTITY e0 "aaaaaaaaaa">{ENTITIES}]>' + SVG.format("", "<text>&e9;</text>"),
        SVG.format("", FILTERS + '<rect width="1500" height="1500" filter="url(#f)"/>'),
        SVG.format('width="9" height="9"', '<image href="/etc/passwd" width="9" height="9"/>'),
    ],
)
async def test_a_hostile_svg_costs_a_process_of_its_own_and_little_time(document: str) -> None:
    begun = time.monotonic()
    async with Decoder("local") as used:
        picture = await used.render(document, 500_000)
    assert picture is None or max(picture.width, picture.height) <= headers.MAX_SIDE_PIXELS
    assert time.monotonic() - begun < ANSWER_SECONDS
    assert decoders(psutil.Process()) == []


async def test_a_confined_decoder_can_read_which_way_up_a_photograph_is() -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    out = io.BytesIO()
    Image.new("L", (400, 300)).save(out, "JPEG", quality=100, exif=exif)
    async with Decoder("local") as used:
        found = await used.shrink(headers.Picture("image/jpeg", 400, 300, out.getvalue()), len(out.getvalue()) - 1)
    assert found is not None
    assert found.height > found.width


async def test_a_display_that_no_client_could_take_is_dropped_by_the_kernel_and_said(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "1")
        with growth(server_of_test()) as grown:
            result = await run(client, "for _ in range(3): display({'text/plain': 'x' * 40_000_000}, raw=True)")
        assert grown[0] < MAX_GROWTH_BYTES
        assert "3 more outputs of this cell were dropped" in result.content[0].text


@pytest.mark.parametrize(
    ("code", "dropped"),
    [
        ("display({'text/plain': 'x' * 24_000_000}, raw=True)", 1),
        ("display({'image/png': 'iVBORw0KGgo=' + 'x' * 24_000_000}, raw=True)", 1),
        ("for _ in range(6): display({'text/plain': 'x' * 9_000_000}, raw=True)", 4),
        ("display({'text/plain': 'é' * 4_000_000}, raw=True)", 0),
        ("display({'application/json': [[] for _ in range(1_000_000)]}, raw=True)", 1),
        ("display({'application/json': [{'': {}} for _ in range(49_000)]}, raw=True)", 0),
        ("display({'application/json': [1.5] * 700_000}, raw=True)", 0),
        ("display({'application/json': [1.5] * 2_000_000}, raw=True)", 1),
        ("display({'x' * 8_000_000: 'y'}, raw=True)", 1),
        ("print('x' * 60_000_000)", 0),
        ("raise ValueError('x' * 60_000_000)", 0),
    ],
    ids=["text", "picture", "six", "wide", "lists", "dicts", "numbers", "more numbers", "name", "stream", "error"],
)
async def test_a_result_of_any_shape_costs_the_server_no_memory(connect: Connect, code: str, dropped: int) -> None:
    async with connect() as client:
        await run(client, "display({'text/plain': 'x'}, raw=True)")
        with growth(server_of_test()) as grown:
            result = await run(client, code)
        print(f"{grown[0] / 2**20:.0f} MiB")
        assert grown[0] < MAX_GROWTH_BYTES
        by_the_kernel = "1 more output of this cell was dropped" in result.content[0].text
        assert result.structured_content["outputs_dropped"] + by_the_kernel == dropped
        assert (by_the_kernel or "not kept" in result.content[0].text) == bool(dropped)
        assert (await run(client, "1 + 1")).structured_content["result"] == "2"
