"""MCP connections of older clients that another server of the same home continues: two real servers, raw requests."""

import json
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2

from .http_support import INITIALIZE, JSON_HEADERS, HttpServer, bearer, serving
from .support import DEADLINE, wait_until

ALICE, BOB = "alice-0123456789", "bob-0123456789"
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST_RESOURCES = {"jsonrpc": "2.0", "id": "list", "method": "resources/list"}
# A stream without news has a comment each 15 s.
MAX_LINES = 20
NOT_FOUND = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}


@contextmanager
def slot(folder: Path, name: str, **settings: str) -> Iterator[HttpServer]:
    """One of the servers of a home."""
    with serving(folder, SERVER__SLOT=name, SESSIONS__INLINE_WAIT_SECONDS="60", **settings) as server:
        yield server


class OldClient:
    """A client until 2025-11-25, which initializes once. Its requests reach any server."""

    def __init__(self, server: HttpServer, token: str | None = None) -> None:
        self.token = token
        opened = server.post(INITIALIZE, token)
        assert opened.status_code == 200, opened.text
        self.headers = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        self.number = 1
        assert self.post(server, INITIALIZED).status_code == 202

    def post(self, server: HttpServer, body: dict[str, Any]) -> httpx2.Response:
        return server.post(body, self.token, **self.headers)

    def call(self, server: HttpServer, tool: str, **arguments: Any) -> httpx2.Response:
        self.number += 1
        params = {"name": tool, "arguments": arguments}
        return self.post(server, {"jsonrpc": "2.0", "id": self.number, "method": "tools/call", "params": params})

    def run(self, server: HttpServer, code: str) -> dict[str, Any]:
        return content(self.call(server, "execute_code", code=code))

    def delete(self, server: HttpServer) -> int:
        return server.http.delete(server.mcp, headers=self.headers | bearer(self.token)).status_code


def content(response: httpx2.Response) -> dict[str, Any]:
    """The structured content of the one result in an answer."""
    assert response.status_code == 200, response.text
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return json.loads(data[-1])["result"]["structuredContent"]


def records(folder: Path) -> list[Path]:
    return sorted((folder / "home" / "connections").iterdir())


def is_not_found(response: httpx2.Response) -> bool:
    return (response.status_code, response.json()) == (404, NOT_FOUND)


def test_a_connection_and_its_variables_outlive_the_end_of_their_server(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2") as second:
        client = OldClient(first)
        before = client.run(first, "x = 1")
        assert first.stop() == 0
        after = client.run(second, "x + 1")
        assert (after["session_id"], after.get("result")) == (before["session_id"], "2"), after
        [record] = records(tmp_path)
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
        assert json.loads(record.read_text()) == INITIALIZE["params"]
        assert client.post(second, INITIALIZED).status_code == 202
        stream_headers = client.headers | {"Accept": "text/event-stream"}
        with second.http.stream("GET", second.mcp, headers=stream_headers) as stream:
            assert stream.status_code == 200
            assert client.post(second, LIST_RESOURCES).status_code == 200  # so it is told of changes
            content(client.call(second, "execute_code", code="1", session_id="other"))
            lines = islice(stream.iter_lines(), MAX_LINES)
            data = next(line for line in lines if line.startswith("data: {"))
            assert json.loads(data.removeprefix("data: "))["method"] == "notifications/resources/list_changed"
        assert second.stop() == 0


def test_a_connection_outlives_a_killed_server_and_is_told_what_was_lost(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2") as second:
        client = OldClient(first)
        before = client.run(first, "x = 1; open('kept.txt', 'w').write('kept')")
        first.stop(signal.SIGKILL)
        after = client.run(second, "(open('kept.txt').read(), 'x' in globals())")
        assert (after["session_id"], after.get("result")) == (before["session_id"], "('kept', False)"), after
        assert after["state_lost"], after


def test_a_connection_outlives_a_restart_of_its_own_server(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as server:
        client = OldClient(server)
        before = client.run(server, "x = 1")
        assert server.stop() == 0
    with slot(tmp_path, "s1") as server:
        assert client.run(server, "x")["session_id"] == before["session_id"]


def test_the_first_request_may_be_a_stream_or_a_notification(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2") as second:
        listening, telling = OldClient(first), OldClient(first)
        first.stop(signal.SIGKILL)
        with second.http.stream("GET", second.mcp, headers=listening.headers | {"Accept": "text/event-stream"}) as got:
            assert (got.status_code, got.headers["mcp-session-id"]) == (200, listening.headers["Mcp-Session-Id"])
        assert telling.post(second, INITIALIZED).status_code == 202


def test_only_its_own_principal_can_move_or_end_a_connection(tmp_path: Path) -> None:
    tokens = {"AUTH__TOKENS__ALICE": ALICE, "AUTH__TOKENS__BOB": BOB}
    with slot(tmp_path, "s1", **tokens) as first, slot(tmp_path, "s2", **tokens) as second:
        client = OldClient(first, ALICE)
        thief = OldClient(first, BOB)
        thief.headers = client.headers
        for server in (first, second):
            assert is_not_found(thief.call(server, "get_sessions"))
            assert thief.delete(server) == 404
        for server in (second, first):
            content(client.call(server, "get_sessions"))
            assert is_not_found(thief.call(server, "get_sessions"))
            assert thief.delete(server) == 404
            content(client.call(server, "get_sessions"))


def test_a_deleted_connection_is_gone_at_every_server(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2") as second, slot(tmp_path, "s3") as third:
        client, other = OldClient(first), OldClient(first)
        content(client.call(second, "get_sessions"))
        assert client.delete(second) == 200
        for server in (first, second, third):
            assert is_not_found(client.call(server, "get_sessions")), server.lines
        assert other.delete(third) == 200, "a server that has not seen the connection yet"
        for server in (first, second, third):
            assert other.delete(server) == 404
        assert records(tmp_path) == []


def test_unknown_ids_and_the_only_server_of_a_home_answer_as_ever(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as server:
        client = OldClient(server)
        client.headers["Mcp-Session-Id"] = "0" * 32
        assert is_not_found(client.call(server, "get_sessions"))
        assert client.delete(server) == 404
    with serving(tmp_path / "alone") as server:
        client = OldClient(server)
        content(client.call(server, "get_sessions"))
        assert server.stop() == 0
    with serving(tmp_path / "alone") as server:
        assert is_not_found(client.call(server, "get_sessions"))
        assert {one.name for one in (tmp_path / "alone" / "home").iterdir()}.isdisjoint({"connections", "secret"})


def test_first_requests_at_the_same_time_make_one_connection(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2") as second:
        client = OldClient(first)
        first.stop(signal.SIGKILL)
        together = threading.Barrier(8)

        def call(number: int) -> str:
            together.wait(DEADLINE)
            body = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {}}
            with httpx2.Client(timeout=DEADLINE) as http:
                answer = http.post(second.mcp, json=body, headers=JSON_HEADERS | client.headers)
            return f"{answer.status_code} {'execute_code' in answer.text}"

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(call, range(10, 18))) == {"200 True"}
        assert len(second.logged("adopted a connection")) == 1


def test_a_full_server_adopts_nothing_but_ends_connections(tmp_path: Path) -> None:
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2", TRANSPORT_HTTP__MAX_STREAMS="2") as second:
        moving, other = OldClient(first), OldClient(first)
        held = [OldClient(second), OldClient(second)]
        first.stop(signal.SIGKILL)
        stream_headers = moving.headers | {"Accept": "text/event-stream"}
        with second.http.stream("GET", second.mcp, headers=stream_headers) as refused:
            assert refused.status_code in (429, 503)
        assert other.delete(second) == 200
        assert held[0].delete(second) == 200
        content(moving.call(second, "get_sessions"))


def test_adopted_connections_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    limits = {"TRANSPORT_HTTP__MAX_STREAMS": "4", "TRANSPORT_HTTP__TRUSTED_PROXIES": "127.0.0.1"}
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2", **limits) as second:
        moving = [OldClient(first) for _ in range(4)]
        first.stop(signal.SIGKILL)

        def ask(client: OldClient, address: str) -> int:
            client.headers["X-Forwarded-For"] = address
            return client.post(second, LIST_RESOURCES).status_code

        assert [ask(client, "203.0.113.1") for client in moving[:3]] == [200, 200, 429]
        assert ask(moving[3], "203.0.113.2") == 200
        # Requests to one that is open take no place, from wherever they come.
        assert ask(moving[0], "203.0.113.2") == 200


def put_text(text: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(text)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def test_damaged_records_are_as_none(tmp_path: Path) -> None:
    damages: list[Callable[[Path], object]] = [
        put_text(""),
        put_text("[]"),
        put_text(json.dumps(INITIALIZE["params"] | {"clientInfo": None})),
        put_text(json.dumps(INITIALIZE["params"]) + " " * 2**20),
        make_directory,
        make_link,
    ]
    with slot(tmp_path, "s1") as first, slot(tmp_path, "s2") as second:
        clients: list[OldClient] = []
        for damage in damages:
            before = records(tmp_path)
            clients.append(OldClient(first))
            [new] = set(records(tmp_path)) - set(before)
            damage(new)
        first.stop(signal.SIGKILL)
        for number, client in enumerate(clients, 1):
            assert is_not_found(client.call(second, "get_sessions")), number
            assert wait_until(lambda: len(second.logged("the record of a connection is not usable")) == number)  # noqa: B023
