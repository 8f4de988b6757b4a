"""A web site on loopback: what a test's requests meet, kind and hostile, and a record of what has arrived."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@dataclass
class Arrived:
    """One request as the site saw it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


@dataclass
class Site:
    """A running site."""

    port: int
    arrived: list[Arrived] = field(default_factory=list[Arrived])
    ended: threading.Event = field(default_factory=threading.Event)
    """A client has gone away in the middle of an answer."""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    site: Site

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.site.arrived.append(Arrived(self.command, self.path, self.headers.items(), body))
        parts = urlsplit(self.path)
        getattr(self, f"page_{parts.path.strip('/')}", self.page_echo)(parse_qs(parts.query))

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = handle_request  # noqa: N815

    def answer(self, body: bytes, status: int = 200, reason: str | None = None, **headers: str) -> None:
        self.send_response(status, reason)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def page_echo(self, query: dict[str, list[str]]) -> None:
        seen = self.site.arrived[-1]
        shown = {"method": seen.method, "path": seen.path, "headers": seen.headers, "body": seen.body.decode("latin-1")}
        self.answer(json.dumps(shown).encode(), Content_Type="application/json")

    def page_redirect(self, query: dict[str, list[str]]) -> None:
        self.answer(b"", int(query.get("status", ["302"])[0]), Location=query["to"][0])

    def page_login(self, query: dict[str, list[str]]) -> None:
        """Two cookies, and elsewhere."""
        self.send_response(302)
        for cookie in ("one=1; Path=/", "two=2; Path=/; Expires=Thu, 01 Jan 2099 00:00:00 GMT"):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Location", "/echo")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def page_reflect(self, query: dict[str, list[str]]) -> None:
        """The secret, in all the places where a server could show it again."""
        secret = self.headers["x-secret"]
        encoded = base64.b64encode(secret.encode()).decode()
        reason = f"OK {secret}" if not secret.isascii() else f"OK {secret} {secret[:4]}\x80{secret[4:]}"
        self.answer(f"{secret} {encoded}".encode(), 200, reason, X_Echo=secret, Link=f"<https://x/?k={secret}>")

    def page_gzip(self, query: dict[str, list[str]]) -> None:
        self.answer(_gzip(b"unpacked", 1), Content_Encoding="gzip")

    def page_half(self, query: dict[str, list[str]]) -> None:
        self.answer(_gzip(b"unpacked", 1)[:-6], Content_Encoding="gzip")

    def page_bomb(self, query: dict[str, list[str]]) -> None:
        self.answer(_gzip(b"\0" * 1_000_000, 200), Content_Encoding="gzip")

    def page_nonsense(self, query: dict[str, list[str]]) -> None:
        self.answer(b"no gzip", Content_Encoding="gzip")

    def page_endless(self, query: dict[str, list[str]]) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._write_for_ever(CHUNK)

    def page_headers(self, query: dict[str, list[str]]) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        self._write_for_ever(b"X-More: of the same\r\n" * 100)

    def page_informational(self, query: dict[str, list[str]]) -> None:
        self._write_for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 10)

    def page_silent(self, query: dict[str, list[str]]) -> None:
        self.rfile.read(1)  # until the client has gone
        self.site.ended.set()
        self.close_connection = True

    def page_smuggle(self, query: dict[str, list[str]]) -> None:
        """Two lengths, and a second answer behind the first."""
        first = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\n"
        self.wfile.write(first + b"okHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    def _write_for_ever(self, data: bytes) -> None:
        try:
            while True:
                self.wfile.write(data)
        except OSError:
            self.site.ended.set()
        self.close_connection = True


def _gzip(block: bytes, times: int) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return b"".join([*(packer.compress(block) for _ in range(times)), packer.flush()])


@contextmanager
def running_site(tls: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> Iterator[Site]:
    """A site on a port of its own, until the block ends."""
    handler = type("Handler", (_Handler,), {})
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = type("Server", (ThreadingHTTPServer,), {"address_family": family})((address, 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    site = handler.site = Site(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
