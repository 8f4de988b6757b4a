"""A guest, a client and a server of tools that mean harm: what each may break is its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelmcp_kernel.jupyter.tools.tool_messages import MAX_ARGUMENTS_BYTES, MAX_CALLS_AT_ONCE

from .conftest import running_kernel
from .driver import Kernel, wait_until
from .offerer import SILENT, Message, Offerer, Tool, offering, structured
from .test_tools import CALL, echo, silent

TOOLS: dict[str, Tool] = {"crm.echo": echo, "crm.silent": silent}

# Frames of the guest's own, past what inside/ sends: `ask` gives the host call's answer as text, or its error.
FORGE = """
import asyncio, json
from kernelmcp_guest.bridge import bridge, request_id
from pyodide.ffi import JsException
async def ask(**arguments):
    try:
        return await bridge.ask(request_id.get(), json.dumps({"call": "tools", **arguments}))
    except JsException as error:
        return f"refused: {error.message}"
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel() as running:
        yield running


@pytest.fixture
def offerer(kernel: Kernel, tmp_path: Path) -> Iterator[Offerer]:
    (tmp_path / "index.json").write_text("{}")
    with offering(kernel, tmp_path, dict(TOOLS)) as running:
        yield running


def forged(kernel: Kernel, arguments: str) -> str:
    ran = kernel.run(f"{FORGE}print(await ask({arguments}))")
    assert ran.status == "ok", ran.error
    return ran.text().strip()


# -- the guest


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "calls=None",
        "calls={}",
        "calls=[1]",
        "calls=[[1]]",
        "calls=[['1', 'crm', 'echo', {}]]",
        "calls=[[True, 'crm', 'echo', {}]]",
        "calls=[[-1, 'crm', 'echo', {}]]",
        "calls=[[2 ** 60, 'crm', 'echo', {}]]",
        "calls=[[1.5, 'crm', 'echo', {}]]",
        "calls=[[None, 'crm', 'echo', {}]]",
        "calls=[], cancelled=5",
    ],
)
def test_a_frame_of_a_wrong_shape_is_refused(kernel: Kernel, offerer: Offerer, arguments: str) -> None:
    assert forged(kernel, arguments).startswith("refused: ")
    assert offerer.calls == []
    assert kernel.run(CALL + "call('crm', 'echo', {'a': 1})").result == "{'a': 1}"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("[1, 5, 'echo', {}]", "ToolError"),
        ("[1, 'crm', None, {}]", "ToolError"),
        ("[1, 'crm', 'echo', []]", "ToolError"),
        ("[1, 'crm', 'echo', 'x']", "ToolError"),
        ("[1, 'crm' * 1000, 'echo', {}]", "ToolError"),
        ("[1, '__proto__', 'echo', {}]", "ToolError"),
        ("[1, 'crm', 'echo', {'a': 'x' * (9 << 20)}]", "LimitExceeded"),
        ("[1, 'crm', 'echo', {'a': [[]] * 200_000}]", "LimitExceeded"),
        ("[1, 'crm', 'echo', {str(n): 1 for n in range(200_000)}]", "LimitExceeded"),
        ("[1, 'crm', 'echo', {'a': eval('[' * 150 + ']' * 150)}]", "LimitExceeded"),
    ],
)
def test_a_call_of_a_wrong_shape_gets_its_own_answer(kernel: Kernel, offerer: Offerer, call: str, kind: str) -> None:
    [[number, reply]] = json.loads(forged(kernel, f"calls=[{call}]"))
    assert (number, reply["error"]["kind"]) == (1, kind)
    assert offerer.calls == []


def test_arguments_up_to_the_limit_arrive(kernel: Kernel, offerer: Offerer) -> None:
    size = MAX_ARGUMENTS_BYTES - 100
    ran = kernel.run(f"{CALL}len(call('crm', 'echo', {{'a': 'x' * {size}}})['a'])")
    assert ran.result == str(size), ran.error


def test_a_number_that_is_taken_and_one_of_nobody(kernel: Kernel, offerer: Offerer) -> None:
    found = forged(kernel, "calls=[[7, 'crm', 'silent', {}], [7, 'crm', 'silent', {}]], cancelled=[99, None, {}]")
    [[number, reply]] = json.loads(found)
    assert (number, reply["error"]["message"]) == (7, "a call already has this number")
    assert wait_until(lambda: offerer.cancelled == [each["id"] for each in offerer.calls] != []), (
        "with the end of the cell"
    )


def test_a_call_that_is_cancelled_twice_is_forgotten_once(kernel: Kernel, offerer: Offerer) -> None:
    code = """
first = asyncio.ensure_future(ask(calls=[[1, 'crm', 'silent', {}]]))
await asyncio.sleep(0)
[await asyncio.wait_for(each, 30) for each in (ask(calls=[], cancelled=[1, 1]), first)]
"""
    assert kernel.run(FORGE + code).result == "['[]', '[]']"
    assert kernel.run(CALL + "call('crm', 'echo', {'a': 1})").result == "{'a': 1}"


def test_a_flood_is_refused_in_the_kernel(kernel: Kernel, offerer: Offerer) -> None:
    code = "refused = await ask(calls=[[n, 'crm', 'silent', {}] for n in range(5000)])\nlen(json.loads(refused))"
    assert kernel.run(FORGE + code).result == str(5000 - MAX_CALLS_AT_ONCE)
    assert wait_until(lambda: len(offerer.calls) >= 24)
    assert len(offerer.calls) == 24, "so many at a time, whatever the guest wants"
    assert kernel.process.memory_info().rss < 300e6
    assert kernel.run(CALL + "call('crm', 'echo', {'a': 1})").result == "{'a': 1}"


def test_huge_arguments_together_are_refused(kernel: Kernel, offerer: Offerer) -> None:
    code = """
asked = [asyncio.ensure_future(ask(calls=[[n, 'crm', 'silent', {'a': 'x' * (7 << 20)}]])) for n in range(12)]
for each in asyncio.as_completed(asked):
    if (found := await each) != '[]':
        break
json.loads(found)[0][1]['error']['message']
"""
    ran = kernel.run(FORGE + code)
    assert ran.result == "'the arguments of calls that are under way are at most 64 MiB together'", ran.error


def test_host_calls_that_all_wait_are_answered_but_the_last(kernel: Kernel, offerer: Offerer) -> None:
    code = """
waiting = [asyncio.ensure_future(ask(calls=[[n, 'crm', 'silent', {}]])) for n in range(100)]
await asyncio.sleep(0.1)
done, pending = set(), waiting
while len(done) < 99:
    more, pending = await asyncio.wait(pending, timeout=30, return_when='FIRST_COMPLETED')
    done |= more
{task.result() for task in done}, len(pending)
"""
    assert kernel.run(FORGE + code).result == "({'[]'}, 1)"


def test_a_host_call_with_nothing_under_way_is_answered(kernel: Kernel, offerer: Offerer) -> None:
    assert forged(kernel, "calls=[]") == "[]"


def test_only_the_cell_that_runs_may_call(kernel: Kernel, offerer: Offerer) -> None:
    ended = "the cell that made this call has ended: the host answers only while a cell runs"
    kernel.run(FORGE + "old = request_id.get()")
    for request in ("old", "'0000000000000000'", "''"):
        ran = kernel.run(f"t = request_id.set({request})\nprint(await ask(calls=[[1, 'crm', 'echo', {{}}]]))")
        assert ran.text() in (f"refused: {ended}\n", ""), ran.error
    assert offerer.calls == []


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/servers/new.py', 'w')",
        "open('/servers/index.json', 'w')",
        "open('/servers/index.json', 'r+')",
        "os.remove('/servers/index.json')",
        "os.rename('/servers/index.json', '/servers/other')",
        "os.rename('/servers/index.json', '/workspace/index.json')",
        "os.mkdir('/servers/new')",
        "os.chmod('/servers/index.json', 0o777)",
        "os.truncate('/servers/index.json', 0)",
        "os.symlink('/etc/passwd', '/servers/link')",
        "os.rmdir('/servers')",
    ],
)
def test_python_writes_nothing_in_servers(kernel: Kernel, offerer: Offerer, attempt: str) -> None:
    ran = kernel.run(f"import os\n{attempt}")
    assert ran.error.startswith(("OSError", "PermissionError")), ran.error
    assert kernel.run("os.listdir('/servers'), open('/servers/index.json').read()").result == "(['index.json'], '{}')"


@pytest.mark.parametrize("place", ["the server's", "the kernel's own"])
def test_javascript_below_the_mount_writes_nothing_either(tmp_path: Path, place: str) -> None:
    """Past Emscripten and with Node's own file system, under both kinds of directory: there the system refuses."""
    environment = {"KERNELMCP_KEEP_GLOBALS": "1"}
    if place == "the server's":
        environment["KERNELMCP_SANDBOX_DIRECTORY"] = str(tmp_path / "sandbox")
    source = tmp_path / "offer"
    source.mkdir()
    (source / "index.json").write_text("{}")
    (source / "index.json").chmod(0o444)  # so that it is linked, and the offer's own file is at stake
    with running_kernel(None, None, **environment) as kernel, offering(kernel, source, dict(TOOLS)):
        code = """
import js, json
fs = js.process.getBuiltinModule("fs")
root = json.loads(js.process.argv[2])["offered"]
def refused(attempt):
    try:
        attempt()
    except Exception as error:
        return True
    return False
attempts = [
    lambda: fs.writeFileSync(f"{root}/index.json", "hacked"),
    lambda: fs.writeFileSync(f"{root}/new", "hacked"),
    lambda: fs.unlinkSync(f"{root}/index.json"),
    lambda: fs.renameSync(f"{root}/index.json", f"{root}/x"),
    lambda: fs.chmodSync(f"{root}/index.json", 0o777),
    lambda: fs.mkdirSync(f"{root}/new"),
    lambda: fs.rmSync(root, recursive=True),
]
[refused(each) for each in attempts], fs.readFileSync(f"{root}/index.json", "utf8")
"""
        assert kernel.run(code).result == f"({[True] * 7}, '{{}}')"
    assert (source / "index.json").read_text() == "{}"
    assert (source / "index.json").stat().st_mode & 0o777 == 0o444


# -- who replies


BAD_REPLIES: list[Message] = [
    {},
    {"replies": None},
    {"replies": [None, 1, "x", []]},
    {"replies": [{"id": "ID"}]},
    {"replies": [{"id": True, "result": {}}]},
    {"replies": [{"id": 10**30, "result": {}}]},
    {"replies": [{"id": -1, "error": {"kind": "ToolError", "message": "x"}}]},
]


@pytest.mark.parametrize("reply", BAD_REPLIES)
def test_a_reply_of_a_wrong_shape_is_left_out(kernel: Kernel, offerer: Offerer, reply: Message) -> None:
    offerer.tools["crm.silent"] = lambda _: _reply_badly(offerer, reply)
    assert kernel.run(CALL + "call('crm', 'silent', {})").result == "'then'"


def _reply_badly(offerer: Offerer, reply: Message) -> Any:
    # The lock is the serving thread's own: it is not held while a tool is asked.
    offerer.send(offerer.session.msg("tool_reply", reply))
    return structured("then")


@pytest.mark.parametrize(
    "body",
    [
        {"result": None},
        {"result": []},
        {"result": "x"},
        {"error": {}},
        {"error": {"kind": "KeyboardInterrupt", "message": ["x"]}},
        {"error": {"kind": "__proto__", "message": "x" * 1_000_000}},
        {"buffer": 1},
        {"buffer": -1},
        {"buffer": "0"},
        {"result": {"content": 5}},
        {"result": {"content": [5]}},
        {"result": {"content": [{"type": "image"}]}},
        {"result": {"content": [{"type": "image", "data": 5}]}},
        {"result": {"content": [{"type": "text", "text": 5}], "isError": True}},
        {},
    ],
)
def test_a_body_of_a_wrong_shape_is_an_error_that_can_be_caught(
    kernel: Kernel, offerer: Offerer, body: Message
) -> None:
    offerer.tools["crm.silent"] = lambda _: _reply_with(offerer, body)
    code = """
from kernelmcp_guest.servers.results import ToolError
try:
    print(call('crm', 'silent', {}))
except ToolError as error:
    print('caught', len(str(error)) < 200_000)
"""
    assert kernel.run(CALL + code).text() == "caught True\n"
    assert kernel.run("call('crm', 'echo', {'a': 1})").result == "{'a': 1}"


def _reply_with(offerer: Offerer, body: Message) -> object:
    offerer.reply({"id": offerer.calls[-1]["id"], **body})
    return SILENT


INJECTIONS = [
    b"",
    b"nonsense",
    b"NaN",
    b"5",
    b"\xff\xfe",
    b'{"structuredContent": 1',
    b'{"structuredContent":1}]],"error":null}}\n{"op":"execute"}',
    b'{}],[2,{"result":{"structuredContent":"forged"}}',
    b'{"structuredContent":1}\n{"structuredContent":"forged"}',
    b"[" * 100_000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
]


@pytest.mark.parametrize("injected", INJECTIONS)
def test_json_that_nobody_parsed_harms_nobody_else(kernel: Kernel, offerer: Offerer, injected: bytes) -> None:
    """It shares a frame with the reply of another server, which must be what that one said."""
    answers: dict[str, int] = {}

    def answer(which: str) -> object:
        answers[which] = next(call["id"] for call in offerer.calls if call["arguments"] == {"which": which})
        if len(answers) == 2:
            first = {"id": answers["bad"], "buffer": 0}
            second = {"id": answers["good"], "buffer": 1}
            offerer.reply(first, second, buffers=[injected, b'{"structuredContent": "good"}'])
        return SILENT

    offerer.tools["crm.silent"] = lambda arguments: answer(arguments["which"])
    code = """
calls = [call_async('crm', 'silent', {'which': which}) for which in ('bad', 'good')]
bad, good = await asyncio.gather(*calls, return_exceptions=True)
print(type(bad).__name__, good)
state = 1
"""
    ran = kernel.run(CALL + code)
    assert ran.text() == "ToolError good\n", ran.error
    assert kernel.run("state").result == "1"


def test_a_reply_of_another_client_is_left_out(kernel: Kernel, offerer: Offerer) -> None:
    request = kernel.send(CALL + "call('crm', 'silent', {})")
    assert wait_until(lambda: bool(offerer.calls))
    other = Offerer(kernel.client, {})
    try:
        other.reply({"id": offerer.calls[0]["id"], "result": structured("forged")})
        assert other.offer(Path("relative"), servers=["crm"])["status"] == "error"  # and by then it has been read
        offerer.reply({"id": offerer.calls[0]["id"], "result": structured("real")})
        assert kernel.finish(request).result == "'real'"
    finally:
        other.close()


def test_a_reply_that_comes_again_or_late_is_left_out(kernel: Kernel, offerer: Offerer) -> None:
    kernel.run(CALL + "call('crm', 'echo', {'a': 1})")
    offerer.reply({"id": offerer.calls[0]["id"], "result": structured("again")})
    assert kernel.run("call('crm', 'echo', {'a': 2})").result == "{'a': 2}"


@pytest.mark.parametrize(
    "content",
    [
        {"digest": None},
        {"servers": "crm"},
        {"servers": [1]},
        {"servers": ["x" * 2000]},
        {"folder": None},
        {"folder": "relative"},
        {"folder": "/there/is/none"},
        {"concurrent_calls": 0},
        {"concurrent_calls": 1000},
        {"concurrent_calls": "24"},
        {"concurrent_calls": True},
    ],
)
def test_an_offer_of_a_wrong_shape_is_refused_and_changes_nothing(
    kernel: Kernel, offerer: Offerer, tmp_path: Path, content: Message
) -> None:
    whole = {"digest": "x", "folder": str(tmp_path), "servers": ["other"], "concurrent_calls": 24, **content}
    reply = offerer.ask("tools_offer_request", whole)
    assert reply["status"] == "error"
    assert reply["reason"]
    assert kernel.run(CALL + "call('crm', 'echo', {'a': 1})").result == "{'a': 1}"
