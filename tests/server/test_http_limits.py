"""What hostile and hasty clients meet: a status, a line in the log, and nothing else."""

import concurrent.futures
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest

from kernelmcp.http.http_listener import SPARE_CONNECTIONS

from .http_support import INITIALIZE, JSON_HEADERS, HttpServer, bearer, error_code, run, serving
from .support import DEADLINE, wait_until

TOKEN = "a-token-0123456789"
WATCHER = "watcher-0123456789"  # looks again and again, and so has a rate limit of its own
MB = 1024 * 1024
MODERN = "2026-07-28"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with serving(
        tmp_path_factory.mktemp("limits"),
        TRANSPORT_HTTP__AUTH_TOKEN=TOKEN,
        AUTH__TOKENS__HASTY="hasty-0123456789",
        AUTH__TOKENS__WATCHER=WATCHER,
        AUTH__TOKENS__OLDER="older-0123456789",
        TRANSPORT_HTTP__RATE_LIMIT_REQUESTS="200",
        TRANSPORT_HTTP__RATE_LIMIT_WINDOW_SECONDS="600",
        TRANSPORT_HTTP__MAX_REQUEST_SIZE_MB="1",
        TRANSPORT_HTTP__HEAD_TIMEOUT_SECONDS="3",
        TRANSPORT_HTTP__MAX_CONCURRENT_REQUESTS="2",
    ) as found:
        yield found


def exchange(server: HttpServer, data: bytes) -> bytes:
    """Send bytes and read until the server closes."""
    with server.connect() as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has answered and closed already
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:
            pass  # closed before all was read; what was answered is there
        return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def head(*lines: str) -> bytes:
    return "\r\n".join(["POST /mcp HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


AUTHORIZED = (f"Authorization: Bearer {TOKEN}", *(f"{name}: {value}" for name, value in JSON_HEADERS.items()))


def modern(method: str, **params: Any) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
        (b"this is no HTTP\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Filler: 1\r\n" * 1_000_000 + b"\r\n", 400),
        (b"GET /" + b"a" * MB + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ],
    ids=["TLS", "no HTTP", "no host", "negative length", "two lengths", "bad chunk", "a million headers", "long path"],
)
def test_what_is_no_request_gets_a_4xx(server: HttpServer, data: bytes, status: int) -> None:
    assert status_of(exchange(server, data)) == status
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe\x00", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"jsonrpc": "2.0", "id": 1}', 400),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', 400),
        (b"[" * 100_000, 413),
        (b"[" * 200 + b"]" * 200, 413),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"[]," * 300_000 + b"[]]}}", 413),
        (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', 400),
        (b" " * (MB + 1), 413),
    ],
)
@pytest.mark.parametrize("version", [None, MODERN])
def test_bodies_that_are_no_message(server: HttpServer, body: bytes, status: int, version: str | None) -> None:
    headers = {"MCP-Protocol-Version": version} if version else {}
    assert server.post(body, TOKEN, **headers).status_code == status


@pytest.mark.parametrize("version", ["2023-01-01", "2099-12-31", "x", "../..", "9" * 1000])
def test_versions_of_other_times_are_told_which_are_served(server: HttpServer, version: str) -> None:
    answer = server.post(modern("tools/list"), TOKEN, **{"MCP-Protocol-Version": version})
    assert answer.status_code == 400
    assert MODERN in str(answer.json()) or "mismatch" in str(answer.json()).lower() or "header" in answer.text.lower()
    initialize = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": version}}
    opened = server.post(initialize, TOKEN)
    assert (opened.status_code, "2025-11-25" in opened.text) == (200, True)


def test_a_body_of_100_mb_is_refused_and_costs_no_memory(server: HttpServer) -> None:
    before = psutil.Process(server.process.pid).memory_info().rss
    declared = exchange(server, head(*AUTHORIZED, f"Content-Length: {100 * MB}") + bytes(100 * MB))
    assert status_of(declared) == 413
    chunk = b"10000\r\n" + bytes(65536) + b"\r\n"
    streamed = exchange(server, head(*AUTHORIZED, "Transfer-Encoding: chunked") + chunk * 1600)
    assert status_of(streamed) == 413
    nobodys = exchange(server, head("Transfer-Encoding: chunked") + chunk * 1600)
    assert status_of(nobodys) == 401
    assert psutil.Process(server.process.pid).memory_info().rss - before < 50 * MB
    # A client that waits for the answer gets to see it.
    answer = server.post(bytes(20 * MB), TOKEN)
    assert answer.status_code == 413


def test_half_a_request_and_a_slow_one_are_cut_off(server: HttpServer) -> None:
    with server.connect() as silent, server.connect() as half, server.connect() as body:
        half.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        # A body that nobody wants, and that never ends.
        body.sendall(head("Content-Length: 1000") + b"x")
        for connection in (silent, half):
            assert connection.recv(1000) == b""
        assert status_of(body.recv(1000)) == 401
        assert server.get("/health").status_code == 200
    assert wait_until(lambda: len(server.logged("cut off a client that sends too slowly")) >= 2)


def gone(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_half_sent_requests_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    settings = {"MAX_STREAMS": "400", "HEAD_TIMEOUT_SECONDS": "600"}
    with ExitStack() as opened:
        server = opened.enter_context(
            serving(tmp_path, **{f"TRANSPORT_HTTP__{name}": value for name, value in settings.items()})
        )
        half = [opened.enter_context(server.connect()) for _ in range(SPARE_CONNECTIONS + 50)]
        half[-1].sendall(b"GET /health HTTP/1.1\r\n")
        assert gone(half[0]), "the oldest"
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE, ("127.0.0.2", 0)) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(other.recv(1000)) == 200
        half[-1].sendall(b"Host: localhost\r\n\r\n")
        assert status_of(half[-1].recv(1000)) == 200, "the newest go on"


def test_connections_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as opened:
        settings = {"TRANSPORT_HTTP__MAX_CONCURRENT_REQUESTS": "2", "TRANSPORT_HTTP__MAX_STREAMS": "2"}
        server = opened.enter_context(serving(tmp_path, **settings))
        answers: list[bytes] = []
        for _ in range(SPARE_CONNECTIONS + 10):
            connection = opened.enter_context(server.connect())
            connection.sendall(request)
            answers.append(connection.recv(1000))
        assert [status_of(one) for one in answers] == [200] * 130 + [503] * (len(answers) - 130)
        assert b"Retry-After: 1\r\n" in answers[-1]
        with socket.create_connection(("127.0.0.1", server.port), DEADLINE, ("127.0.0.2", 0)) as other:
            other.sendall(request)
            assert status_of(other.recv(1000)) == 200


def test_two_ways_to_tell_where_a_request_ends_are_refused(server: HttpServer) -> None:
    """A proxy may go by the other one, and take what follows for another client's request."""
    lines = ("Content-Length: 4", "Transfer-Encoding: chunked")
    answer = exchange(server, head(*AUTHORIZED, *lines) + b"0\r\n\r\n" + head("Content-Length: 0"))
    assert status_of(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1, "the connection ends"
    assert b"connection: close" in answer.lower()


@pytest.mark.anyio
async def test_the_calls_streams_and_connections_of_one_leave_room_for_others(tmp_path: Path) -> None:
    names = ("ONE", "TWO")
    settings = {f"AUTH__TOKENS__{name}": f"{name.lower()}-0123456789" for name in names}
    limits = {"MAX_CONCURRENT_REQUESTS": "8", "MAX_STREAMS": "8", "AUTH_TOKEN": TOKEN}
    settings |= {f"TRANSPORT_HTTP__{name}": value for name, value in limits.items()}
    with serving(tmp_path, **settings) as server:

        def opened(token: str) -> httpx2.Response:
            return server.post(INITIALIZE, token)

        ones = [opened("one-0123456789") for _ in range(6)]
        assert [answer.status_code for answer in ones] == [200] * 4 + [429] * 2
        assert ones[-1].headers["retry-after"] == "1"
        assert [opened("two-0123456789").status_code for _ in range(3)] == [200, 200, 429]
        assert opened(TOKEN).status_code == 200

        def stream(token: str) -> int:
            with server.http.stream("GET", server.base + "/sse", headers=bearer(token)) as answer:
                if answer.status_code == 200:
                    ended.wait(DEADLINE)
                return answer.status_code

        ended = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            try:
                streams = [threads.submit(stream, "one-0123456789") for _ in range(6)]
                refused = [next(concurrent.futures.as_completed(streams)).result() for _ in range(1)]
                assert refused == [429]
                assert server.get("/metrics", "two-0123456789").status_code == 200
                assert wait_until(lambda: "kernelmcp_http_streams 4.0" in server.get("/metrics", TOKEN).text)
                other = threads.submit(stream, "two-0123456789")
                assert wait_until(lambda: "kernelmcp_http_streams 5.0" in server.get("/metrics", TOKEN).text)
            finally:
                ended.set()
        assert sorted(one.result() for one in [*streams, other]) == [200] * 5 + [429] * 2


def test_without_tokens_the_mcp_connections_of_one_address_leave_room_for_others(tmp_path: Path) -> None:
    settings = {"MAX_STREAMS": "8", "TRUSTED_PROXIES": "127.0.0.1"}
    with serving(tmp_path, **{f"TRANSPORT_HTTP__{name}": value for name, value in settings.items()}) as server:

        def opened(address: str) -> httpx2.Response:
            return server.post(INITIALIZE, **{"X-Forwarded-For": address})

        ones = [opened("203.0.113.1") for _ in range(6)]
        assert [answer.status_code for answer in ones] == [200] * 4 + [429] * 2
        assert [opened("203.0.113.2").status_code for _ in range(3)] == [200, 200, 429]
        # Whoever ends one, it is the first address that has room again.
        ended = {"Mcp-Session-Id": ones[0].headers["mcp-session-id"], "X-Forwarded-For": "203.0.113.2"}
        assert server.http.delete(server.mcp, headers=ended).status_code == 200
        assert server.http.delete(server.mcp, headers=ended).status_code == 404
        assert server.post(b"{", **{"X-Forwarded-For": "203.0.113.1"}).status_code == 400, "opens nothing"
        assert [opened("203.0.113.1").status_code for _ in range(2)] == [429, 429], "three, and three are left"
        ended["Mcp-Session-Id"] = ones[1].headers["mcp-session-id"]
        assert server.http.delete(server.mcp, headers=ended).status_code == 200
        assert [opened("203.0.113.1").status_code for _ in range(2)] == [200, 429]


@pytest.mark.anyio
async def test_too_many_requests_get_429_and_when_to_come_back(server: HttpServer) -> None:
    def ask(_: int) -> Any:
        return server.post(modern("tools/list"), "hasty-0123456789", **{"MCP-Protocol-Version": MODERN})

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        answers = await anyio.to_thread.run_sync(lambda: list(threads.map(ask, range(210))))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 10
    assert 1 <= int(refused[0].headers["retry-after"]) <= 600
    error = refused[0].json()["error"]["data"]["error"]
    assert (error["error_code"], error["context"]["retry_after_seconds"]) == (
        "RATE_LIMITED",
        int(refused[0].headers["retry-after"]),
    )
    # Others are not concerned.
    assert server.get("/", TOKEN).status_code == 200


@pytest.mark.anyio
async def test_on_sse_the_tool_says_that_there_are_too_many_requests(server: HttpServer) -> None:
    async with server.client("older-0123456789", "sse") as client:
        for _ in range(200):
            await client.send_ping()
        assert await error_code(client, "list_runtimes") == "RATE_LIMITED"


@pytest.mark.anyio
async def test_more_at_once_than_the_server_takes_get_503(server: HttpServer) -> None:
    def active(number: int) -> bool:
        # GETs have room of their own.
        return f"kernelmcp_http_requests_active {number}.0" in server.get("/metrics", WATCHER).text

    async with server.client(TOKEN) as client:
        session = (await run(client, "import time"))["session_id"]
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(client.call_tool, "execute_code", {"code": "time.sleep(1000)", "session_id": session})
            assert await anyio.to_thread.run_sync(wait_until, lambda: active(2))
            refused = server.post(INITIALIZE, TOKEN)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert (await anyio.to_thread.run_sync(server.get, "/health")).status_code == 200
            # Cancelling is possible all the same, and makes room.
            tasks.cancel_scope.cancel()
        assert await anyio.to_thread.run_sync(wait_until, lambda: active(0))
        assert (await run(client, "'kept' if time else ''", session_id=session))["result"] == "'kept'"


def test_the_server_has_survived_all_that(server: HttpServer) -> None:
    assert server.stop() == 0
    text = server.text()
    assert "Traceback" not in text, text
    assert TOKEN not in text
