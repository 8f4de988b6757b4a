"""deploy/haproxy.cfg, as HAProxy runs it in front of three small servers that say who they are."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ..server.support import wait_until

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "haproxy.cfg"
SLOTS = ["s1", "s2", "s3"]
SECONDS = 30

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Health checks and this file's own servers end connections."""


@dataclass
class FakeServer:
    """One server. `mode`: `ok`, `draining` (503), or `dies` (it ends the connection and answers nothing)."""

    slot: str
    mode: str = "ok"
    seen: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/ready":
                    self._answer(200)
                    return
                fake.seen.append(_lowered(self.headers))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(b"data: 1\n\n")
                assert fake.go_on.wait(SECONDS)
                self.wfile.write(b"data: 2\n\n")
                self.close_connection = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                fake.seen.append(_lowered(self.headers))
                if fake.mode == "dies":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                self._answer(503 if fake.mode == "draining" else 200)

            def _answer(self, status: int) -> None:
                body = fake.slot.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Mcp-Session-Id", f"of-{fake.slot}")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = QuietServer(("127.0.0.1", 0), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=[0.02], daemon=True).start()

    def stop(self) -> None:
        """Afterwards, connections are refused."""
        self._http.shutdown()
        self._http.server_close()


@dataclass
class Fleet:
    servers: dict[str, FakeServer]
    port: int

    def post(self, body: bytes = b"{}", **headers: str) -> tuple[int, str]:
        """The status, and the slot of the server that answered. `mcp_name` is the header Mcp-Name."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("POST", "/mcp", body, {key.replace("_", "-"): value for key, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def seen(self) -> list[tuple[str, dict[str, str]]]:
        return [(slot, headers) for slot, server in self.servers.items() for headers in server.seen]


@contextmanager
def running(text: str, servers: dict[str, FakeServer], folder: Path) -> Iterator[Fleet]:
    """HAProxy with this configuration. It inherits a socket that listens already, so that nobody has to wait for it."""
    assert HAPROXY is not None
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    file = folder / "haproxy.cfg"
    file.write_text(text.replace("bind :8080", f"bind fd@{listener.fileno()}"))
    environment = {"NAMESPACE": "test"}
    process = subprocess.Popen([HAPROXY, "-db", "-f", file], pass_fds=[listener.fileno()], env=environment)
    port = listener.getsockname()[1]
    listener.close()
    try:
        yield Fleet(servers, port)
    finally:
        process.kill()
        process.wait(SECONDS)
        for server in servers.values():
            server.go_on.set()
            server.stop()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    servers = {slot: FakeServer(slot) for slot in SLOTS}
    text = CONFIGURATION.read_text()
    for number, slot in enumerate(SLOTS, start=1):
        text = text.replace(f"server {slot} 10.0.0.{number}:8000", f"server {slot} 127.0.0.1:{servers[slot].port}")
    with running(text, servers, tmp_path) as found:
        yield found


class Names(socketserver.BaseRequestHandler):
    """A name server that knows the pods 0 and 2, as a cluster's does while there are no others."""

    def handle(self) -> None:
        query, reply_to = self.request
        labels: list[str] = []
        at = 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
            at += 1 + query[at]
        question = query[12 : at + 5]
        name, [kind] = ".".join(labels), struct.unpack("!H", query[at + 1 : at + 3])
        exists = name in {f"kernelmcp-{number}.kernelmcp-pods.test.svc.cluster.local" for number in (0, 2)}
        address = b"\xc0\x0c" + struct.pack("!HHIH4B", 1, 1, 5, 4, 127, 0, 0, 1) if exists and kind == 1 else b""
        flags = 0x8580 if exists else 0x8583  # an authoritative answer, or no such name
        head = query[:2] + struct.pack("!HHHHH", flags, 1, 1 if address else 0, 0, 0)
        reply_to.sendto(head + question + address, self.client_address)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Fleet]:
    """Two pods behind the balancer of deploy/kubernetes, which looks up their addresses."""
    servers = {slot: FakeServer(slot) for slot in ("kernelmcp-0", "kernelmcp-2")}
    text = (CONFIGURATION.parent / "kubernetes" / "haproxy.cfg").read_text()
    for slot, server in servers.items():
        text = re.sub(rf"(server {slot} .*):8000", rf"\1:{server.port}", text)
    with socketserver.UDPServer(("127.0.0.1", 0), Names) as names:
        threading.Thread(target=names.serve_forever, args=[0.02], daemon=True).start()
        text = text.replace("parse-resolv-conf", f"nameserver test 127.0.0.1:{names.server_address[1]}")
        with running(text, servers, tmp_path) as found:
            yield found
        names.shutdown()


def test_haproxy_takes_the_file() -> None:
    assert HAPROXY is not None
    done = subprocess.run([HAPROXY, "-c", "-f", CONFIGURATION], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("mcp_param_session", "{}.4f00"),
        ("mcp_param_execution", "{}-Ab_c-d"),
        ("mcp_name", "kernelmcp://sessions/{}.4f00/files/a/b.txt"),
        ("mcp_name", "kernelmcp://sessions/{}.4f00"),
        ("mcp_name", "kernelmcp://executions/{}-Ab_c-d/view?since=1"),
    ],
)
def test_a_call_reaches_the_server_that_its_id_names(fleet: Fleet, header: str, value: str) -> None:
    for slot in [*SLOTS, *reversed(SLOTS)]:
        assert fleet.post(**{header: value.format(slot)}) == (200, slot)


def test_an_older_client_stays_with_the_server_that_began_its_session(fleet: Fleet) -> None:
    begun = {fleet.post()[1] for _ in range(6)}
    assert begun == set(SLOTS)
    for slot in [*SLOTS, *SLOTS]:
        assert fleet.post(mcp_session_id=f"of-{slot}") == (200, slot)


def test_a_name_that_a_client_chose_always_reaches_the_same_server(fleet: Fleet) -> None:
    names = [f"analysis {number}" for number in range(30)]
    first = [fleet.post(mcp_param_session=name)[1] for name in names]
    assert [fleet.post(mcp_param_session=name)[1] for name in names] == first
    assert set(first) == set(SLOTS)
    assert fleet.post(mcp_name=f"kernelmcp://sessions/{names[0].split()[0]}/notebook")[0] == 200


def test_calls_of_a_stopped_server_go_elsewhere(fleet: Fleet) -> None:
    fleet.servers["s2"].stop()
    status, slot = fleet.post(mcp_param_session="s2.4f00")
    assert (status, slot in {"s1", "s3"}) == (200, True)


@pytest.mark.parametrize("mode", ["dies", "draining"])
def test_a_retried_call_keeps_its_request_id(fleet: Fleet, mode: str) -> None:
    fleet.servers["s2"].mode = mode
    status, slot = fleet.post(b"x" * 50_000, mcp_param_session="s2.4f00", x_request_id="of the client")
    assert (status, slot in {"s1", "s3"}) == (200, True)
    [(_, first), (_, second)] = fleet.seen()
    assert first["x-request-id"] == second["x-request-id"]
    assert re.fullmatch(r"[0-9a-f-]{36}", first["x-request-id"])


def test_two_calls_have_two_request_ids(fleet: Fleet) -> None:
    fleet.post(x_request_id="of the client")
    fleet.post(x_request_id="of the client")
    ids = [headers["x-request-id"] for _, headers in fleet.seen()]
    assert len(set(ids)) == 2
    assert "of the client" not in ids


def test_a_client_cannot_choose_its_address(fleet: Fleet) -> None:
    fleet.post(x_forwarded_for="10.9.9.9")
    [(_, headers)] = fleet.seen()
    assert headers["x-forwarded-for"] == "127.0.0.1"


def test_events_are_not_held_back(fleet: Fleet) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=SECONDS)
    connection.request("GET", "/mcp", headers={"Mcp-Session-Id": "of-s1"})
    answer = connection.getresponse()
    assert answer.readline() == b"data: 1\n"  # the server sends the second after this
    for server in fleet.servers.values():
        server.go_on.set()
    assert answer.read() == b"\ndata: 2\n\n"
    connection.close()


def test_the_balancer_of_the_pods_looks_them_up(pods: Fleet) -> None:
    for slot in pods.servers:
        assert wait_until(lambda slot=slot: pods.post(mcp_param_session=f"{slot}.4f00") == (200, slot))
    # A pod that went: its sessions are taken over by one that is there.
    status, slot = pods.post(mcp_param_session="kernelmcp-1.4f00")
    assert (status, slot in pods.servers) == (200, True)


def _lowered(headers: Any) -> dict[str, str]:
    """Names in lower case; the values of a repeated header joined, as HTTP has it."""
    return {name.lower(): ", ".join(headers.get_all(name)) for name in headers}
