"""Calls of tools from a guest to a client that offers them: what comes back, and how each of them ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from .conftest import running_kernel
from .driver import DEADLINE, Kernel, wait_until
from .offerer import SILENT, Message, Offerer, Tool, failed, offering, structured, text

CALL = "from kernelmcp_guest.servers.pending_calls import call, call_async\nimport asyncio\n"

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def echo(arguments: Message) -> Message:
    return structured(arguments)


def raw(arguments: Message) -> bytes:
    return json.dumps(structured(arguments), indent=1).encode()


def given(arguments: Message) -> Message:
    """The result that the caller wants."""
    return arguments["result"]


def fail(arguments: Message) -> Message:
    return failed(arguments["kind"], arguments["message"])


def silent(arguments: Message) -> object:
    return SILENT


TOOLS: dict[str, Tool] = {"crm.echo": echo, "crm.raw": raw, "crm.given": given, "crm.fail": fail, "crm.silent": silent}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("offer")
    (found / "index.json").write_text("{}")
    return found


@pytest.fixture
def offerer(kernel: Kernel, folder: Path) -> Iterator[Offerer]:
    with offering(kernel, folder, dict(TOOLS)) as running:
        yield running


def given_result(result: Message) -> str:
    return f"{CALL}call('crm', 'given', {{'result': {result!r}}})"


# -- what comes back


def test_a_call_gives_the_structured_content(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(CALL + "call('crm', 'echo', {'a': [1, None, 'ü\\ud83d\\ude80'], '__proto__': {}})")
    assert ran.result == "{'a': [1, None, 'ü🚀'], '__proto__': {}}", ran.error


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}])
def test_an_empty_structured_content_is_a_value(kernel: Kernel, offerer: Offerer, value: object) -> None:
    result = {"content": [{"type": "text", "text": "not this"}], "structuredContent": value}
    ran = kernel.run(f"{CALL}repr(call('crm', 'given', {{'result': {result!r}}}))")
    assert ran.result == repr(repr(value)), ran.error


def test_text_is_text_and_json_when_asked(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(
        f"t = {given_result(text('{}'))[len(CALL) :]}\nt, t.json(), isinstance(t, str)".replace(
            "t = ", CALL + "t = ", 1
        )
    )
    assert ran.result == "('{}', {}, True)", ran.error


def test_several_parts_are_a_list_and_none_is_an_empty_one(kernel: Kernel, offerer: Offerer) -> None:
    link = {"type": "resource_link", "uri": "x://y", "name": "y"}
    resource = {"type": "resource", "resource": {"uri": "x://z", "text": "z"}}
    result = {"content": [*text("a")["content"], link, resource]}
    assert kernel.run(given_result(result)).result == f"['a', {link!r}, 'z']"
    assert kernel.run(given_result({"content": []})).result == "[]"


def test_a_picture_is_bytes_that_show(kernel: Kernel, offerer: Offerer) -> None:
    result = {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
    ran = kernel.run(given_result(result))
    [shown] = [m["content"]["data"] for m in ran.outputs if m["msg_type"] == "execute_result"]
    assert shown["image/png"].replace("\n", "") == PIXEL
    blob = {"type": "resource", "resource": {"uri": "x://y", "blob": PIXEL, "mimeType": "application/x"}}
    code = given_result({"content": [blob]}).replace("call('crm'", "b = call('crm'")
    ran = kernel.run(f"{code}\nb.uri, b.mime_type, b[1:4], open(b.save('/tmp/pixel'), 'rb').read() == b")
    assert ran.result == "('x://y', 'application/x', b'PNG', True)", ran.error


def test_a_large_result_is_passed_on_as_it_is(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(CALL + "call('crm', 'raw', {'a': 'ü\\n' * 10})")
    assert ran.result == repr({"a": "ü\n" * 10}), ran.error
    ran = kernel.run(CALL + "len(call('crm', 'raw', {'a': 'x' * 7_000_000})['a'])")
    assert ran.result == "7000000", ran.error


def test_many_calls_at_once_wait_for_their_turn(kernel: Kernel, offerer: Offerer) -> None:
    code = "found = await asyncio.gather(*[call_async('crm', 'echo', {'a': n}) for n in range(1000)])\n"
    ran = kernel.run(CALL + code + "found == [{'a': n} for n in range(1000)]")
    assert ran.result == "True", ran.error
    assert len(offerer.calls) == 1000
    assert max(len(request["content"]["calls"]) for request in offerer.requests) <= 24


def test_plain_calls_inside_coroutines(kernel: Kernel, offerer: Offerer) -> None:
    code = """
async def one(n):
    return call('crm', 'echo', {'a': n})['a'], (await call_async('crm', 'echo', {'a': n}))['a']
"""
    ran = kernel.run(CALL + code + "await asyncio.gather(*[one(n) for n in range(20)]) == [(n, n) for n in range(20)]")
    assert ran.result == "True", ran.error


def test_what_a_call_gives_is_a_coroutine_for_asyncio(kernel: Kernel, offerer: Offerer) -> None:
    code = """
async def all_ways():
    async with asyncio.TaskGroup() as group:
        one = group.create_task(call_async('crm', 'echo', {'a': 1}))
    two = await asyncio.wait_for(call_async('crm', 'echo', {'a': 2}), 60)
    return one.result(), two
asyncio.run(all_ways()), asyncio.run(call_async('crm', 'echo', {'a': 3}))
"""
    assert kernel.run(CALL + code).result == "(({'a': 1}, {'a': 2}), {'a': 3})"


def test_a_call_that_is_not_awaited_says_so(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(CALL + "call_async('crm', 'echo', {'a': 1})['a']")
    assert ran.error == "TypeError: crm.echo has only begun: await it"


# -- errors


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("ToolError", "Exception"),
        ("ToolDenied", "PermissionError"),
        ("ToolTimeout", "TimeoutError"),
        ("ServerUnavailable", "ConnectionError"),
        ("LimitExceeded", "Exception"),
    ],
)
def test_an_error_is_of_its_class_and_can_be_caught(kernel: Kernel, offerer: Offerer, kind: str, base: str) -> None:
    code = f"""
from kernelmcp_guest.servers.results import ToolError
try:
    call('crm', 'fail', {{'kind': {kind!r}, 'message': 'try less'}})
except {base} as error:
    print(type(error).__name__, error, isinstance(error, ToolError))
"""
    assert kernel.run(CALL + code).text() == f"{kind} try less True\n"


def test_an_error_shows_the_lines_of_the_cell_only(kernel: Kernel, offerer: Offerer) -> None:
    for way in ("call(*x)", "await call_async(*x)", "await asyncio.gather(call_async(*x))"):
        ran = kernel.run(f"{CALL}x = 'crm', 'fail', {{'kind': 'ToolDenied', 'message': 'no'}}\n{way}")
        assert ran.error == "ToolDenied: no"
        shown = "\n".join(ran.reply["content"]["traceback"])
        assert "kernelmcp_guest" not in shown
        assert "asyncio/" not in shown


def test_a_result_that_is_an_error_is_raised_with_its_text(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(given_result({**text("no such", "deal"), "isError": True}))
    assert ran.error == "ToolError: crm.given: no such\ndeal"


def test_arguments_that_are_no_json_are_refused_before_a_call(kernel: Kernel, offerer: Offerer) -> None:
    for value in ("{1}", "float('nan')"):
        ran = kernel.run(f"{CALL}call('crm', 'echo', {{'a': {value}}})")
        assert ran.error.startswith("TypeError: crm.echo: the arguments cannot be sent as JSON"), ran.error
    assert offerer.calls == []


def test_arguments_may_be_scalars_and_arrays_of_numpy_and_dates(kernel: Kernel, offerer: Offerer) -> None:
    # Stands for np.int64 and np.ndarray, which have the same method.
    code = """
import datetime
class Array:
    def __init__(self, value): self.value = value
    def tolist(self): return self.value
day = datetime.date(2026, 1, 2)
call('crm', 'echo', {'n': Array(2), 'rows': [Array([1, Array(3)])], 'day': day})
"""
    assert kernel.run(CALL + code).result == "{'n': 2, 'rows': [[1, 3]], 'day': '2026-01-02'}"
    for value in ("Array", "Array(float('nan'))", "datetime.date"):
        assert "cannot be sent as JSON" in kernel.run(f"call('crm', 'echo', {{'a': {value}}})").error


def test_one_error_among_many_leaves_the_others(kernel: Kernel, offerer: Offerer) -> None:
    code = """
calls = [call_async('crm', 'echo', {'a': 1}), call_async('crm', 'fail', {'kind': 'ToolError', 'message': 'x'})]
print(*await asyncio.gather(*calls, return_exceptions=True))
"""
    assert kernel.run(CALL + code).text() == "{'a': 1} x\n"


# -- offers


def test_without_an_offer_a_call_is_refused(kernel: Kernel) -> None:
    ran = kernel.run(CALL + "call('crm', 'echo', {})")
    assert ran.error == "ServerUnavailable: no MCP servers are offered to this kernel"


def test_a_server_that_is_not_offered_is_refused_in_the_kernel(kernel: Kernel, offerer: Offerer) -> None:
    ran = kernel.run(CALL + "call('other', 'echo', {})")
    assert ran.error == "ToolError: there is no MCP server 'other'; there are: crm"
    assert offerer.calls == []


def test_an_offer_that_is_withdrawn_ends_its_calls(kernel: Kernel, offerer: Offerer) -> None:
    request = kernel.send(CALL + "print('begin', flush=True)\ncall('crm', 'silent', {})")
    kernel.output(request)
    assert wait_until(lambda: bool(offerer.calls))
    offerer.offer(servers=[])
    assert kernel.finish(request).error == "ServerUnavailable: the MCP servers are no longer offered"
    assert offerer.cancelled == [call["id"] for call in offerer.calls]


def test_who_offers_last_is_asked(kernel: Kernel, offerer: Offerer, folder: Path) -> None:
    request = kernel.send(
        CALL + "print('begin', flush=True)\nfirst = call('crm', 'silent', {})\nfirst, call('hr', 'echo', {})"
    )
    kernel.output(request)
    assert wait_until(lambda: bool(offerer.calls))
    with offering(kernel, folder, {"hr.echo": echo}) as other:
        [call] = offerer.calls
        other.reply({"id": call["id"], "result": structured("forged")})  # it was asked of the one before
        offerer.reply({"id": call["id"], "result": structured("late")})
        assert kernel.finish(request).result == "('late', {})"
        assert len(other.calls) == 1


def test_a_client_that_has_left_is_noticed(kernel: Kernel, folder: Path) -> None:
    gone = Offerer(kernel.client, dict(TOOLS))
    assert gone.offer(folder) == {"status": "ok"}
    gone.close()
    ran = kernel.run(
        "import time\n"
        + CALL
        + "from kernelmcp_guest.servers.results import ServerUnavailable\n"
        + "try:\n    call('crm', 'echo', {})\nexcept ServerUnavailable as error:\n    print(error)"
    )
    assert ran.text() == "the client that offered the MCP servers has left this kernel\n"
    assert kernel.run(CALL + "call('crm', 'echo', {})").error.endswith("no MCP servers are offered to this kernel")
    with offering(kernel, folder, {}, servers=["crm"]):
        pass  # the files go with the offer that is withdrawn


def test_the_files_of_an_offer_are_seen_and_replaced(kernel: Kernel, tmp_path: Path) -> None:
    look = "import os\nsorted(os.path.join(a, f) for a, _, b in os.walk('/servers') for f in b)"
    assert kernel.run(look).result == "[]"
    one, two = tmp_path / "one", tmp_path / "two"
    for version, names in ((one, ("crm/a.py", "crm/b.py", "index.json")), (two, ("crm/b.py", "hr/c.py", "index.json"))):
        for name in names:
            (version / name).parent.mkdir(parents=True, exist_ok=True)
            (version / name).write_text(f"{version.name} {name}")
    with offering(kernel, one, dict(TOOLS)) as offerer:
        read = "open('/servers/crm/b.py').read()"
        assert kernel.run(look).result == "['/servers/crm/a.py', '/servers/crm/b.py', '/servers/index.json']"
        assert kernel.run(read).result == "'one crm/b.py'"
        assert offerer.offer(two) == {"status": "ok"}
        assert kernel.run(read).result == "'two crm/b.py'"
        assert kernel.run(look).result == "['/servers/crm/b.py', '/servers/hr/c.py', '/servers/index.json']"
    assert kernel.run(look).result == "[]"
    assert (two / "hr" / "c.py").read_text() == "two hr/c.py"


# -- ends


@pytest.mark.parametrize(
    "code",
    [
        "call('crm', 'silent', {})",
        "await call_async('crm', 'silent', {})",
        "await asyncio.gather(*[call_async('crm', 'silent', {}) for _ in range(10)])",
        "async def one(): return call('crm', 'silent', {})\nawait asyncio.gather(*[one() for _ in range(10)])",
    ],
    ids=["plain", "await", "gather", "plain in gather"],
)
def test_an_interrupt_ends_calls_and_keeps_the_state(kernel: Kernel, offerer: Offerer, code: str) -> None:
    request = kernel.send(f"{CALL}state = 1\n{code}")
    assert wait_until(lambda: len(offerer.calls) == (10 if "gather" in code else 1))
    kernel.interrupt()
    assert kernel.finish(request).error == "KeyboardInterrupt: "
    assert wait_until(lambda: sorted(offerer.cancelled) == sorted(call["id"] for call in offerer.calls))
    assert kernel.run("state, call('crm', 'echo', {})").result == "(1, {})"


def test_a_call_that_nobody_waits_for_any_more_is_cancelled(kernel: Kernel, offerer: Offerer) -> None:
    code = """
first = call_async('crm', 'silent', {})
await call_async('crm', 'echo', {})  # so that the first one is under way
try:
    await asyncio.wait_for(first, 0.2)
except TimeoutError:
    print('late')
call('crm', 'echo', {})
"""
    ran = kernel.run(CALL + code)
    assert (ran.text(), ran.result) == ("late\n", "{}")
    assert wait_until(lambda: offerer.cancelled == [offerer.calls[0]["id"]])


def test_a_cell_that_ends_ends_its_calls(kernel: Kernel, offerer: Offerer) -> None:
    code = """
async def later():
    try:
        await call_async('crm', 'silent', {})
    except Exception as error:
        print(type(error).__name__, error)
    try:
        await call_async('crm', 'echo', {})
    except Exception as error:
        print(type(error).__name__, error)
task = asyncio.create_task(later())
await asyncio.sleep(0.2)
"""
    request = kernel.send(CALL + code)
    ran = kernel.finish(request)
    assert ran.status == "ok", ran.error
    assert wait_until(lambda: offerer.cancelled == [call["id"] for call in offerer.calls] != [])
    ended = "the cell that made this call has ended: the host answers only while a cell runs"
    first = [kernel.output(request)["content"]["text"] for _ in range(1)]
    while "".join(first).count("\n") < 2:
        first.append(kernel.output(request)["content"]["text"])
    assert "".join(first) == (f"ServerUnavailable crm.silent: {ended}\nServerUnavailable crm.echo: {ended}\n")
    assert len(offerer.calls) == 1, "the second was refused without being sent"
    assert kernel.run("await task\ncall('crm', 'echo', {})").result == "{}"


def test_a_cell_of_another_client_calls_too(kernel: Kernel, offerer: Offerer) -> None:
    other = BlockingKernelClient(connection_file=kernel.manager.connection_file)
    other.load_connection_file()
    other.start_channels()
    try:
        other.wait_for_ready(timeout=DEADLINE)
        message = other.execute(CALL + "found = call('crm', 'echo', {'a': 1})")
        while (reply := other.get_shell_msg(timeout=DEADLINE))["parent_header"]["msg_id"] != message:
            pass
        assert reply["content"]["status"] == "ok"
        assert offerer.requests[-1]["parent_header"]["msg_id"] == message
        assert kernel.run("found").result == "{'a': 1}"
    finally:
        other.stop_channels()


def test_the_death_of_a_guest_cancels_its_calls_and_the_next_one_has_the_offer(folder: Path) -> None:
    with running_kernel() as kernel, offering(kernel, folder, dict(TOOLS)) as offerer:
        request = kernel.send(CALL + "call('crm', 'silent', {})")
        assert wait_until(lambda: bool(offerer.calls))
        for guest in kernel.guests():
            guest.kill()
        ran = kernel.finish(request)
        assert ran.status == "error"
        assert ran.state_lost
        assert wait_until(lambda: offerer.cancelled == [offerer.calls[0]["id"]])
        ran = kernel.run(CALL + "call('crm', 'echo', {'a': 1}), __import__('os').listdir('/servers')")
        assert ran.result == "({'a': 1}, ['index.json'])", ran.error
