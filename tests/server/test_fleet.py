"""Several servers with one home: any of them answers for any session, and a session has one kernel at a time."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from ..starting import DEADLINE
from .http_support import HttpServer, error_code, run, serving
from .support import wait_until

MODERN = "2026-07-28"
SLOTS = ("s1", "s2")


class Servers:
    """Servers with these slots and one home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self.by_slot: dict[str, HttpServer] = {}

    def start(self, slot: str, **settings: str) -> HttpServer:
        server = self._stack.enter_context(serving(self.folder, SERVER__SLOT=slot, **settings))
        self.by_slot[slot] = server
        return server

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    found = Servers(tmp_path)
    yield found
    found.close()


@pytest.fixture
def both(servers: Servers) -> tuple[HttpServer, HttpServer]:
    return servers.start("s1"), servers.start("s2")


async def listed(client: Client) -> Client:
    """A client that knows the tools, and so the headers of their arguments."""
    await client.list_tools()
    return client


def test_ids_begin_with_the_slot(both: tuple[HttpServer, HttpServer]) -> None:
    async def scenario() -> None:
        for server, slot in zip(both, SLOTS, strict=True):
            async with server.client(mode=MODERN) as client:
                first = await run(await listed(client), "1")
                assert first["session_id"].startswith(f"{slot}.")
                assert first["execution_id"].startswith(f"{slot}-")
                found = await client.call_tool("get_execution", {"execution_id": first["execution_id"]})
                assert found.structured_content["status"] == "ok"
                made = await client.call_tool("create_session", {})
                assert made.structured_content["session_id"].startswith(f"{slot}.")

    anyio.run(scenario)


@pytest.mark.parametrize("mode", ["legacy", MODERN])
def test_a_session_moves_with_its_calls(both: tuple[HttpServer, HttpServer], mode: str) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=mode) as one, both[1].client(mode=mode) as two:
            await listed(one), await listed(two)
            first = await run(one, "x = 1\nopen('f.txt', 'w').write('kept')", session_id="moving")
            for number in range(2, 6):
                client = (one, two)[number % 2]
                found = await run(client, "x += 1\nprint(x, open('f.txt').read())", session_id="moving")
                assert found["stdout"] == f"{number} kept\n", found
            past = await two.call_tool("get_execution", {"execution_id": first["execution_id"]})
            assert past.structured_content["status"] == "ok"
            notebook = await two.read_resource("kernelmcp://sessions/moving/notebook")
            assert len(json.loads(notebook.contents[0].text)["cells"]) == 5
            listing = (await one.call_tool("get_sessions", {})).structured_content["sessions"]
            assert [session["session_id"] for session in listing] == ["moving"]

    anyio.run(scenario)


def test_addresses_bring_their_session_too(both: tuple[HttpServer, HttpServer]) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one, both[1].client(mode=MODERN) as two:
            await listed(one), await listed(two)
            await run(one, "x = 1\nopen('f.txt', 'w').write('kept')", session_id="moving")
            read = await two.call_tool("read_file", {"path": "kernelmcp://sessions/moving/files/f.txt"})
            assert read.structured_content["content"] == "kept"
            await run(one, "x += 1", session_id="moving")
            cells = {"from_notebook": "kernelmcp://sessions/moving/notebook", "session_id": "again"}
            made = (await two.call_tool("create_session", cells)).structured_content
            assert (made["replay"]["ended"], made["replay"]["status"]) == (2, "ok"), made
            await run(one, "x += 1", session_id="moving")
            resource = await two.read_resource("kernelmcp://sessions/%6Doving/files/f.txt")
            assert resource.contents[0].text == "kept"
            await run(one, "x += 1", session_id="moving")
            forked = (await two.call_tool("create_session", {"from_session": "moving"})).structured_content
            assert (await run(two, "x", session_id=forked["session_id"]))["result"] == "4"

    anyio.run(scenario)


def test_a_session_is_deleted_at_another_server(both: tuple[HttpServer, HttpServer], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one, both[1].client(mode=MODERN) as two:
            await listed(one), await listed(two)
            await run(one, "x = 1", session_id="short")
            await two.call_tool("destroy_session", {"session_id": "short"})
            assert list((tmp_path / "home" / "sessions").iterdir()) == []
            found = await run(one, "'x' in globals()", session_id="short")
            assert (found["session_created"], found["result"]) == (True, "False")

    anyio.run(scenario)


def test_variables_that_cannot_be_saved_keep_a_session_where_it_is(servers: Servers) -> None:
    both = [servers.start(slot, SESSIONS__HIBERNATE="false") for slot in SLOTS]

    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one, both[1].client(mode=MODERN) as two:
            await listed(one), await listed(two)
            await run(one, "x = 1", session_id="stays")
            assert await error_code(two, "execute_code", code="x", session_id="stays") == "RESOURCE_LIMIT_EXCEEDED"
            assert (await run(one, "x", session_id="stays"))["result"] == "1"
            await one.call_tool("stop_session", {"session_id": "stays"})
            assert (await run(two, "1", session_id="stays"))["state_lost"]

    anyio.run(scenario)


def test_a_wish_counts_once(both: tuple[HttpServer, HttpServer], tmp_path: Path) -> None:
    """Of a server that has died since, or anything else in that folder."""

    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one:
            await run(await listed(one), "x = 1", session_id="wanted")
            directory = next((tmp_path / "home" / "sessions").glob("*wanted"))
            wishes = [
                tmp_path / "home" / "servers" / "s1.wanted" / name for name in (directory.name, "no such", "n" * 200)
            ]
            for wish in wishes:
                wish.touch()
            assert await anyio.to_thread.run_sync(lambda: wait_until(lambda: not any(map(Path.exists, wishes))))
            assert (await run(one, "x", session_id="wanted"))["result"] == "1"

    anyio.run(scenario)


def test_a_busy_session_stays_where_it_runs(both: tuple[HttpServer, HttpServer], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one, both[1].client(mode=MODERN) as two:
            await listed(one), await listed(two)
            await run(one, "x = 1", session_id="busy")
            async with anyio.create_task_group() as tasks:

                async def long() -> None:
                    code = "import os, time\nprint('so far')\nwhile not os.path.exists('go'): time.sleep(0.05)\nx += 1"
                    assert (await run(one, code, session_id="busy"))["status"] == "ok"

                tasks.start_soon(long)
                assert await anyio.to_thread.run_sync(lambda: wait_until(lambda: ids_in(tmp_path, "so far")))
                running = ids_in(tmp_path, "so far")[0]
                assert await error_code(two, "execute_code", code="x", session_id="busy") == "RESOURCE_LIMIT_EXCEEDED"
                arguments = {"execution_id": running, "wait_seconds": 0}
                seen = (await two.call_tool("get_execution", arguments)).structured_content
                assert (seen["status"], seen["stdout"]) == ("running", "so far\n"), seen
                assert await error_code(two, "cancel_execution", execution_id=running) == "RESOURCE_LIMIT_EXCEEDED"
                await one.call_tool("write_file", {"path": "go", "content": "", "session_id": "busy"})
            assert (await run(two, "x", session_id="busy"))["result"] == "2"

    anyio.run(scenario)


def ids_in(folder: Path, text: str) -> list[str]:
    """The cells in the log of session `busy` that have printed this."""
    logs = (folder / "home" / "sessions").glob("*busy/notebook.jsonl")
    events = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [event["c"] for event in events if event.get("e") == "output" and text in str(event["ops"])]


async def state_of(client: Client, session_id: str) -> str:
    found = (await client.call_tool("get_sessions", {"session_id": session_id})).structured_content
    return found["sessions"][0]["state"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_sessions_of_a_server_that_ended_answer_elsewhere(
    both: tuple[HttpServer, HttpServer], number: signal.Signals
) -> None:
    async def scenario() -> dict[str, Any]:
        async with both[0].client(mode=MODERN) as one:
            await run(await listed(one), "x = 1\nopen('f.txt', 'w').write('kept')", session_id="left")
        both[0].stop(number)
        async with both[1].client(mode=MODERN) as two:
            return await run(await listed(two), "print(open('f.txt').read(), 'x' in globals())", session_id="left")

    found = anyio.run(scenario)
    assert found["stdout"] == f"kept {number is signal.SIGTERM}\n"
    assert found["state_lost"] is (number is signal.SIGKILL), found


def test_a_paused_server_writes_nothing_that_its_successor_sees(
    both: tuple[HttpServer, HttpServer], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with both[0].client(mode=MODERN) as one, both[1].client(mode=MODERN) as two:
            await listed(one), await listed(two)
            await run(one, "x = 'first'\nopen('f.txt', 'w').write('first')", session_id="paused")
            code = "import time\nfor n in range(10_000): open('f.txt', 'w').write(f'late {n}'); time.sleep(0.01)"
            async with anyio.create_task_group() as tasks:

                async def late() -> None:
                    await one.call_tool("execute_code", {"code": code, "session_id": "paused"})

                tasks.start_soon(late)
                log = next((tmp_path / "home" / "sessions").glob("*paused/notebook.jsonl"))
                assert await anyio.to_thread.run_sync(
                    lambda: wait_until(lambda: '"began"' in log.read_text().partition("import time")[2])
                )
                both[0].process.send_signal(signal.SIGSTOP)
                found = await run(two, "y = 'second'\nprint(open('f.txt').read())", session_id="paused")
                assert found["state_lost"], found
                seen = found["stdout"]
                both[0].process.send_signal(signal.SIGCONT)
                assert await anyio.to_thread.run_sync(
                    lambda: wait_until(lambda: both[0].logged("another server has taken over a session"))
                )
                tasks.cancel_scope.cancel()
            found = await run(two, "print(y, open('f.txt').read())", session_id="paused")
            assert found["stdout"] == f"second {seen}"
            # The paused one is a server like the others again: the session moves back to it when it is called there.
            assert (await run(one, "print(y)", session_id="paused"))["stdout"] == "second\n"
            notebook = await one.read_resource("kernelmcp://sessions/paused/notebook")
            sources = [cell["source"] for cell in json.loads(notebook.contents[0].text)["cells"]]
            assert [source.splitlines()[0] for source in map("".join, sources)] == [
                "x = 'first'", "import time", "y = 'second'", "print(y, open('f.txt').read())", "print(y)",
            ]  # fmt: skip

    anyio.run(scenario)


def test_two_servers_with_one_slot(servers: Servers) -> None:
    servers.start("s1", TRANSPORT_HTTP__DRAIN_SECONDS="0")
    with pytest.raises(AssertionError, match="another server with the slot 's1' uses this home"):
        servers.start("s1", TRANSPORT_HTTP__DRAIN_SECONDS="0")


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": name, "arguments": arguments, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def post(server: HttpServer, code: str, session_id: str | None = None, **headers: str) -> dict[str, Any]:
    """Run a cell."""
    arguments = {"code": code} | ({"session_id": session_id} if session_id else {})
    return send(server, "execute_code", arguments, headers)


def tool(server: HttpServer, called: str, request_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    """Call another tool."""
    return send(server, called, arguments, {"X_Request_ID": request_id} if request_id else {})


def send(server: HttpServer, name: str, arguments: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """A call of a client that knows nothing of the tools."""
    answer = server.post(
        call(name, arguments),
        **{"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": name},
        **{name.replace("_", "-"): value for name, value in headers.items()},
    )
    if answer.headers["content-type"].startswith("text/event-stream"):
        return json.loads([line for line in answer.text.splitlines() if line.startswith("data: {")][-1][6:])
    return answer.json()


def content(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["result"]["structuredContent"]


def test_a_header_may_be_missing_and_must_not_differ(both: tuple[HttpServer, HttpServer]) -> None:
    assert content(post(both[0], "x = 1", "named"))["session_id"] == "named"
    assert content(post(both[0], "x", "named", Mcp_Param_Session="named"))["result"] == "1"
    assert post(both[0], "x", "named", Mcp_Param_Session="other")["error"]["message"].startswith("Mcp-Param-Session")
    assert post(both[0], "x", Mcp_Param_Session="other")["error"]["message"].startswith("Mcp-Param-Session")
    for wrong in ("", 5, True):
        refused = content(send(both[0], "execute_code", {"code": "x", "session_id": wrong}, {}))
        assert refused["error"]["error_code"] == "INVALID_ARGUMENT"
    assert "Mcp-Param-Session" in post(both[0], "x", "\ud800")["error"]["message"]  # no header can say that


def has_begun(server: HttpServer, session_id: str) -> bool:
    async def scenario() -> bool:
        async with server.client() as client:
            return await state_of(client, session_id) == "busy"

    return anyio.run(scenario)


def sent_in_vain(work: Callable[[], object]) -> threading.Thread:
    """A request whose server ends before it answers."""

    def send() -> None:
        with pytest.raises((httpx2.HTTPError, IndexError)):
            work()

    thread = threading.Thread(target=send)
    thread.start()
    return thread


class TestRepeatedRequests:
    """A load balancer repeats a request with the id that it has given to it."""

    ID = "0f5f6c52-2f0e-4c0a-9f3e-6e2d0a1c7b54"

    def test_the_server_that_runs_it(self, both: tuple[HttpServer, HttpServer]) -> None:
        post(both[0], "n = 0", "again")
        first = content(post(both[0], "n += 1\nn", "again", X_Request_ID=self.ID))
        second = content(post(both[0], "n += 1\nn", "again", X_Request_ID=self.ID))
        assert (first["result"], second["result"]) == ("1", "1")
        assert first["execution_id"] == second["execution_id"]
        assert content(post(both[0], "n += 1\nn", "again", X_Request_ID=self.ID[::-1]))["result"] == "2"

    def test_another_code_is_another_call(self, both: tuple[HttpServer, HttpServer]) -> None:
        post(both[0], "n = 0", "again", X_Request_ID=self.ID)
        assert content(post(both[0], "n", "again", X_Request_ID=self.ID))["result"] == "0"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_another_server(self, both: tuple[HttpServer, HttpServer], number: signal.Signals) -> None:
        first = content(post(both[0], "open('f', 'a').write('ran ')\n1", "again", X_Request_ID=self.ID))
        both[0].stop(number)
        second = content(post(both[1], "open('f', 'a').write('ran ')\n1", "again", X_Request_ID=self.ID))
        assert (second["execution_id"], second["result"]) == (first["execution_id"], "1")
        assert content(post(both[1], "open('f').read()", "again"))["result"] == "'ran '"

    def test_a_cell_that_ended_with_its_server(self, both: tuple[HttpServer, HttpServer]) -> None:
        code = "open('f', 'a').write('ran ')\nwhile True: pass"
        post(both[0], "1", "again")
        sent = sent_in_vain(lambda: post(both[0], code, "again", X_Request_ID=self.ID))
        assert wait_until(lambda: has_begun(both[0], "again"))
        both[0].stop(signal.SIGKILL)
        sent.join(DEADLINE)
        found = content(post(both[1], code, "again", X_Request_ID=self.ID))
        assert (found["status"], found["state_lost"]) == ("interrupted", True)
        assert content(post(both[1], "open('f').read()", "again"))["result"] == "'ran '"

    def test_a_cell_that_waited_when_its_server_ended_runs_at_the_next(
        self, both: tuple[HttpServer, HttpServer], tmp_path: Path
    ) -> None:
        code = "open('f', 'a').write('ran ')"
        post(both[0], "1", "again")
        sent = [sent_in_vain(lambda: post(both[0], "while True: pass", "again"))]
        assert wait_until(lambda: has_begun(both[0], "again"))
        sent.append(sent_in_vain(lambda: post(both[0], code, "again", X_Request_ID=self.ID)))
        [log] = tmp_path.rglob("notebook.jsonl")
        assert wait_until(lambda: self.ID.encode() in log.read_bytes())
        both[0].stop(signal.SIGKILL)
        for each in sent:
            each.join(DEADLINE)
        found = [content(post(both[1], code, "again", X_Request_ID=self.ID)) for _ in range(2)]
        assert [each["status"] for each in found] == ["ok", "ok"]
        assert found[0]["execution_id"] == found[1]["execution_id"]
        assert content(post(both[1], "open('f').read()", "again"))["result"] == "'ran '"

    def test_a_paused_server_leaves_to_the_other_what_waited_in_it(self, servers: Servers, tmp_path: Path) -> None:
        (shared := tmp_path / "shared").mkdir()
        volume = {"VOLUMES__DATA": json.dumps({"path": str(shared), "mode": "rw"})}
        paused, other = (servers.start(slot, **volume) for slot in SLOTS)
        until = "import os\nwhile not os.path.exists('/volumes/data/go'): pass\nopen('/volumes/data/gone', 'w').close()"
        code = "open('/volumes/data/ran', 'a').write('ran ')"
        post(paused, "1", "again")
        sent = [threading.Thread(target=post, args=(paused, until, "again"))]
        sent[0].start()
        assert wait_until(lambda: has_begun(paused, "again"))
        sent.append(threading.Thread(target=post, args=(paused, code, "again"), kwargs={"X_Request_ID": self.ID}))
        sent[1].start()
        [log] = tmp_path.rglob("notebook.jsonl")
        assert wait_until(lambda: self.ID.encode() in log.read_bytes())
        paused.process.send_signal(signal.SIGSTOP)
        assert content(post(other, code, "again", X_Request_ID=self.ID))["status"] == "ok"
        (shared / "go").touch()  # its kernel is not paused, and ends the cell
        assert wait_until((shared / "gone").exists)
        paused.process.send_signal(signal.SIGCONT)
        assert wait_until(lambda: paused.logged("another server has taken over a session"))
        assert content(post(paused, "open('/volumes/data/ran').read()", "again"))["result"] == "'ran '"
        for each in sent:  # it refuses them
            each.join(DEADLINE)

    def test_a_session_that_had_no_name(self, both: tuple[HttpServer, HttpServer]) -> None:
        first = content(post(both[0], "x = 1", X_Request_ID=self.ID))
        both[0].stop()
        second = content(post(both[1], "x = 1", X_Request_ID=self.ID))
        assert second["session_id"] == first["session_id"]
        assert second["execution_id"] == first["execution_id"]
        assert first["session_id"].startswith("s1.")

    def test_other_tools(self, both: tuple[HttpServer, HttpServer]) -> None:
        """What must not be done twice: the second server gives the answer of the first."""
        for number in range(3):
            post(both[0], f"n = {number}", "again")
            tool(both[0], "checkpoint_session", session_id="again", name=f"c{number}")
        arguments = {"session_id": "again", "name": "c1"}
        first = content(tool(both[0], "restore_session", request_id=self.ID, **arguments))
        post(both[0], "n = 'later'", "again")
        both[0].stop()
        assert content(tool(both[1], "restore_session", request_id=self.ID, **arguments)) == first
        assert content(post(both[1], "n", "again"))["result"] == "'later'"
        assert content(tool(both[1], "restore_session", request_id=self.ID[::-1], **arguments))["checkpoint"] == "c1"
        assert content(post(both[1], "n", "again"))["result"] == "1"

    def test_a_notebook_that_was_run_for_a_new_session(self, both: tuple[HttpServer, HttpServer]) -> None:
        post(both[0], "open('/workspace/f', 'a').write('ran ')", "source")
        notebook = {"from_notebook": "kernelmcp://sessions/source/notebook"}
        first = content(tool(both[0], "create_session", request_id=self.ID, **notebook))
        both[0].stop()
        second = content(tool(both[1], "create_session", request_id=self.ID, **notebook))
        assert second == first
        assert content(post(both[1], "open('f').read()", first["session_id"]))["result"] == "'ran '"

    def test_a_call_that_nobody_has_answered(self, both: tuple[HttpServer, HttpServer], tmp_path: Path) -> None:
        post(both[0], "n = 1", "again")
        tool(both[0], "stop_session", request_id=self.ID, session_id="again")
        answer = next((tmp_path / "home" / "requests").iterdir())
        answer.write_bytes(b"")
        refused = content(tool(both[1], "stop_session", request_id=self.ID, session_id="again"))
        assert refused["error"]["error_code"] == "RESOURCE_LIMIT_EXCEEDED"
        assert "its server has ended, or still works on it" in refused["error"]["message"]

    def test_a_single_server_believes_no_id(self, tmp_path: Path) -> None:
        with serving(tmp_path) as server:
            post(server, "n = 0", "alone")
            found = [content(post(server, "n += 1\nn", "alone", X_Request_ID=self.ID))["result"] for _ in range(2)]
        assert found == ["1", "2"]


def test_arguments_have_headers_over_http_only(tmp_path: Path) -> None:
    async def scenario(server: HttpServer) -> None:
        async with server.client(mode=MODERN) as client:
            for tool in (await client.list_tools()).tools:
                for argument, header in (("session_id", "Session"), ("execution_id", "Execution")):
                    if (shown := tool.input_schema["properties"].get(argument)) is not None:
                        assert (shown["type"], shown["x-mcp-header"]) == ("string", header), tool.name

    with serving(tmp_path) as server:
        anyio.run(scenario, server)
