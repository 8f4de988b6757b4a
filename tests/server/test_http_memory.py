"""What clients send and do not read is bounded for each, so that it costs the others neither memory nor time."""

import base64
import concurrent.futures
import json
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from .http_support import INITIALIZE, JSON_HEADERS, HttpServer, bearer, serving
from .support import DEADLINE, wait_until
from .test_http_limits import MB, MODERN, modern, status_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of another process")
ONE, OTHER = "one-0123456789", "other-0123456789"
MAX_PEAK_BYTES = 300 * MB
SIZE = 8 * MB


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    tokens = {"AUTH__TOKENS__ONE": ONE, "AUTH__TOKENS__OTHER": OTHER}
    with serving(
        tmp_path, TRANSPORT_HTTP__REQUEST_TIMEOUT_SECONDS="100000", **tokens
    ) as found:  # it is not what is tested
        yield found


def peak_bytes(server: HttpServer) -> int:
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    return int(kilobytes) * 1024


def request(body: bytes, **more: str) -> bytes:
    headers = JSON_HEADERS | bearer(ONE) | {"MCP-Protocol-Version": MODERN, "Content-Length": str(len(body))} | more
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(["POST /mcp HTTP/1.1", "Host: localhost", *lines, "", ""]).encode() + body


def neighbour_is_served(server: HttpServer) -> bool:
    listed = server.post(modern("tools/list"), OTHER, **{"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"})
    read = read_request("kernelmcp://sessions")
    sessions = server.post(json.loads(read), OTHER, **read_headers("kernelmcp://sessions"))
    return (server.get("/health").status_code, listed.status_code, sessions.status_code) == (200, 200, 200)


def read_request(uri: str) -> bytes:
    return json.dumps(modern("resources/read", uri=uri)).encode()


def read_headers(uri: str) -> dict[str, str]:
    return {"MCP-Protocol-Version": MODERN, "Mcp-Method": "resources/read", "Mcp-Name": uri}


class Stream:
    """A client on the older transport that reads when it is told to."""

    def __init__(self, server: HttpServer, token: str) -> None:
        self._server = server
        self._token = token
        self._connection = socket.socket()
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._connection.settimeout(DEADLINE)
        self._connection.connect(("127.0.0.1", server.port))
        headers = "".join(f"{name}: {value}\r\n" for name, value in bearer(token).items())
        self._connection.sendall(f"GET /sse HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        self._seen = b""
        self.address = self.read_until(rb"data: (/messages/\S+)")
        self.post(INITIALIZE)
        self.read_until(rb"(serverInfo)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def post(self, message: dict[str, Any]) -> None:
        answer = self._server.http.post(self._server.base + self.address, json=message, headers=bearer(self._token))
        assert answer.status_code == 202, answer.text

    def read_until(self, pattern: bytes) -> str:
        while (found := re.search(pattern, self._seen)) is None:
            piece = self._connection.recv(2**20)
            assert piece, "the server has closed the stream"
            self._seen = self._seen[-1000:] + piece
        return found[1].decode()


@pytest.mark.parametrize("letter", ["\x01", '"', "ü"])
def test_answers_that_nobody_reads(server: HttpServer, letter: str) -> None:
    content = base64.b64encode((letter * SIZE).encode()[:SIZE]).decode()
    arguments = {"session_id": "s", "path": "f", "content": content, "encoding": "base64"}
    call = modern("tools/call", name="write_file", arguments=arguments)
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "write_file"}
    assert f"Wrote {SIZE:,} bytes" in server.post(call, ONE, **headers).text
    before = peak_bytes(server)
    uri = "kernelmcp://sessions/s/files/f"
    with ExitStack() as opened:
        for _ in range(40):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request(read_request(uri), **read_headers(uri)))
        assert neighbour_is_served(server)
        assert wait_until(lambda: server.get("/metrics", OTHER).text.count("kernelmcp_http_requests_active 40.0") == 1)
        assert neighbour_is_served(server)
    print(f"peak {before / MB:.0f} -> {peak_bytes(server) / MB:.0f} MB")
    assert peak_bytes(server) < MAX_PEAK_BYTES


def test_requests_that_do_not_end(server: HttpServer) -> None:
    large = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"text":"' + b"x" * (15 * MB)
    with ExitStack() as opened:
        answers: list[int] = []
        for number in range(8):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE))
            with suppress(OSError):  # it has answered already, and reads no more
                connection.sendall(request(large, **{"Content-Length": str(len(large) + 10)}))
            if number >= 2:
                answers.append(status_of(connection.recv(1000)))
            assert neighbour_is_served(server)
        assert answers == [429] * 6
    print(f"peak {peak_bytes(server) / MB:.0f} MB")
    assert peak_bytes(server) < MAX_PEAK_BYTES


def test_requests_of_the_largest_size(server: HttpServer) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"[]," * (5 * MB) + b"[]]}}"
    assert server.post(body, ONE).status_code == 413
    text = json.dumps(modern("tools/call", name="execute_code", arguments={"code": "x" * (15 * MB), "session_id": "s"}))
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "execute_code"}
    assert server.post(text.encode(), ONE, **headers).status_code in (200, 400)
    print(f"peak {peak_bytes(server) / MB:.0f} MB")
    assert peak_bytes(server) < MAX_PEAK_BYTES


def legacy(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def test_answers_that_nobody_reads_on_the_older_transport(server: HttpServer) -> None:
    content = base64.b64encode(b"\x01" * SIZE).decode()
    arguments = {"session_id": "s", "path": "f", "content": content, "encoding": "base64"}
    reads = [legacy(number, "resources/read", uri="kernelmcp://sessions/s/files/f") for number in range(10, 50)]
    with concurrent.futures.ThreadPoolExecutor(len(reads)) as threads, ExitStack() as opened:
        streams = [opened.enter_context(Stream(server, ONE)) for _ in range(4)]
        streams[0].post(legacy(2, "tools/call", name="write_file", arguments=arguments))
        streams[0].read_until(b"(Wrote)")
        before = peak_bytes(server)
        for read in reads:
            threads.submit(streams[read["id"] % 4].post, read)
        assert wait_until(lambda: "requests_active 40.0" in server.get("/metrics", OTHER).text)
        assert neighbour_is_served(server)
        print(f"peak {before / MB:.0f} -> {peak_bytes(server) / MB:.0f} MB")
        assert peak_bytes(server) < MAX_PEAK_BYTES
    assert wait_until(lambda: "requests_active 0.0" in server.get("/metrics", OTHER).text)
    with Stream(server, ONE) as stream:  # what was taken has been given back
        for read in reads[:6]:
            stream.post(legacy(read["id"], "resources/read", uri="kernelmcp://sessions"))
            stream.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": read["id"]}})
        stream.post(legacy(99, "resources/read", uri="kernelmcp://sessions"))
        stream.read_until(rb'("id":99)')


def write_large_file(server: HttpServer) -> str:
    """Its URI."""
    content = base64.b64encode(b"\x01" * SIZE).decode()
    arguments = {"session_id": "s", "path": "f", "content": content, "encoding": "base64"}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "write_file"}
    assert (
        f"Wrote {SIZE:,} bytes"
        in server.post(modern("tools/call", name="write_file", arguments=arguments), ONE, **headers).text
    )
    return "kernelmcp://sessions/s/files/f"


def test_answers_whose_clients_leave_in_the_middle_are_not_kept(server: HttpServer) -> None:
    """Each on a connection of its own, which stays open."""
    uri = write_large_file(server)
    with ExitStack() as opened:
        readers: list[socket.socket] = []
        for _ in range(40):
            found = server.post(INITIALIZE, ONE).headers["mcp-session-id"]
            reader = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), DEADLINE))
            body = json.dumps(legacy(7, "resources/read", uri=uri)).encode()
            reader.sendall(request(body, **{"Mcp-Session-Id": found, "MCP-Protocol-Version": "2025-06-18"}))
            readers.append(reader)
        assert wait_until(lambda: "requests_active 40.0" in server.get("/metrics", OTHER).text)
        for reader in readers:
            assert reader.recv(60).startswith(b"HTTP/1.1 200")
            reader.close()
    assert wait_until(lambda: "requests_active 0.0" in server.get("/metrics", OTHER).text)
    assert neighbour_is_served(server)
    print(f"peak {peak_bytes(server) / MB:.0f} MB")
    assert peak_bytes(server) < MAX_PEAK_BYTES


def test_answers_that_have_left_are_not_kept_on_the_older_transport(server: HttpServer) -> None:
    uri = write_large_file(server)
    with concurrent.futures.ThreadPoolExecutor(1) as thread, ExitStack() as opened:
        for number in range(24):
            stream = opened.enter_context(Stream(server, ONE))
            posted = thread.submit(stream.post, legacy(7 + number, "resources/read", uri=uri))
            stream.read_until(rb'("mimeType":"application/octet-stream")')
            posted.result(DEADLINE)
        assert neighbour_is_served(server)
        print(f"peak {peak_bytes(server) / MB:.0f} MB")
        assert peak_bytes(server) < MAX_PEAK_BYTES
