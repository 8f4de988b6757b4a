"""HTTP of the guest: `http.client` (so `urllib.request` and what builds on it) and `XMLHttpRequest` (so
`pyodide.http.open_url`) ask the kernel process.

What speaks JavaScript's `fetch` (pyodide.http.pyfetch, urllib3 and so requests) needs nothing here: host/fetch.mjs
makes that a host call, too. Above: `lifecycle`. Below: `blocking`.
"""

# http.client is patched in places that its type stubs do not know.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

import base64
import http.client
import io
import json
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from kernelmcp_guest import blocking

_send_output = http.client.HTTPConnection._send_output


def fetch(
    method: str,
    url: str,
    headers: list[tuple[str, str]],
    body: bytes = b"",
    *,
    follow: bool = True,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Make a request and wait for the answer: status, reason, headers, body (bytes), url, redirected.

    Raises OSError when the kernel process refuses or the request fails, KeyboardInterrupt when interrupted.
    """
    encoded = base64.b64encode(body).decode("ascii") if body else None
    answer = blocking.host_call(
        "fetch", method=method, url=url, headers=headers, body=encoded, follow=follow, timeout=timeout
    )
    return {**answer, "body": base64.b64decode(answer["body"])}


class _HostSocket:
    """What http.client takes for a socket: it collects a request and gives the answer to read."""

    def __init__(self, scheme: str, connection: http.client.HTTPConnection) -> None:
        host = f"[{connection.host}]" if ":" in connection.host else connection.host
        self._origin = f"{scheme}://{host}:{connection.port}"
        self._timeout = connection.timeout
        self._sent = bytearray()

    def sendall(self, data: Any) -> None:
        self._sent += data

    def ask(self) -> None:
        """The request is whole: make it."""
        head, _, body = bytes(self._sent).partition(b"\r\n\r\n")
        self._sent.clear()
        line, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (text.partition(":") for text in rest)]
        url = target if target.startswith(("http://", "https://")) else self._origin + target
        timeout = self._timeout if isinstance(self._timeout, int | float) else None
        answer = fetch(method, url, headers, body, follow=False, timeout=timeout)
        self._answer = io.BytesIO(_as_bytes(answer, method))

    def makefile(self, mode: str) -> io.BytesIO:
        if self._sent:  # a body that came after the headers, in pieces
            self.ask()
        return self._answer

    def setsockopt(self, *args: object) -> None:
        """There is no socket to set an option of."""

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def close(self) -> None:
        """There is nothing to close: an answer is whole when it arrives."""


def _as_bytes(answer: dict[str, Any], method: str) -> bytes:
    lines = [f"HTTP/1.1 {answer['status']} {answer['reason']}"]
    lines += [f"{name}: {value}" for name, value in answer["headers"]]
    if method != "HEAD":
        lines.append(f"content-length: {len(answer['body'])}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + answer["body"]


def _connect(connection: http.client.HTTPConnection) -> None:
    connection.sock = _HostSocket("http", connection)


def _connect_tls(connection: http.client.HTTPSConnection) -> None:
    connection.sock = _HostSocket("https", connection)


def _send_whole(
    connection: http.client.HTTPConnection, message_body: Any = None, encode_chunked: bool = False
) -> None:
    _send_output(connection, message_body, encode_chunked=False)  # the kernel process frames the body
    if message_body is not None or connection._method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        connection.sock.ask()


class XMLHttpRequest:
    """The part of the browser's class that pyodide.http uses, and synchronous only."""

    status, statusText, responseURL = 0, "", ""
    responseType, timeout, withCredentials = "", 0, False
    response: Any = None

    @classmethod
    def new(cls) -> "XMLHttpRequest":
        return cls()

    def open(
        self, method: str, url: str, is_async: bool = True, user: str | None = None, password: str | None = None
    ) -> None:
        if is_async:
            raise NotImplementedError("use fetch (pyodide.http.pyfetch) for requests that do not block")
        self._method, self._url, self._headers = method, url, list[tuple[str, str]]()
        if user is not None:
            pair = base64.b64encode(f"{user}:{password or ''}".encode()).decode("ascii")
            self._headers.append(("Authorization", f"Basic {pair}"))

    def overrideMimeType(self, mime: str) -> None:  # noqa: N802  # JavaScript's name
        """Bodies are UTF-8 here, or bytes."""

    def setRequestHeader(self, name: str, value: str) -> None:  # noqa: N802
        self._headers.append((name, value))

    def send(self, body: str | bytes | None = None) -> None:
        raw = body.encode() if isinstance(body, str) else bytes(body or b"")
        answer = fetch(self._method, self._url, self._headers, raw, timeout=self.timeout / 1000 or None)
        self.status, self.statusText, self.responseURL = answer["status"], answer["reason"], answer["url"]
        self._answered = answer["headers"]
        self.responseText = answer["body"].decode("utf-8", "replace")
        kinds = {"arraybuffer": lambda: answer["body"], "json": lambda: json.loads(answer["body"])}
        self.response = kinds.get(self.responseType, lambda: self.responseText)()

    def getAllResponseHeaders(self) -> str:  # noqa: N802
        return "".join(f"{name}: {value}\r\n" for name, value in self._answered)

    def getResponseHeader(self, name: str) -> str | None:  # noqa: N802
        found = [value for key, value in self._answered if key == name.lower()]
        return ", ".join(found) or None


class _PyodideHttp:
    """Gives Pyodide's modules the class that they look for in browsers. They cannot be imported before: they hold
    JavaScript objects, which the boot image must not."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in ("pyodide.http", "pyodide.http.pyxhr"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithRequests(spec.loader)
        return spec


class _WithRequests:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        vars(module)["XMLHttpRequest"] = XMLHttpRequest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def install() -> None:
    """Patch what is there, and what will be imported (for the boot image)."""
    http.client.HTTPConnection.connect = _connect
    http.client.HTTPSConnection.connect = _connect_tls
    http.client.HTTPConnection._send_output = _send_whole
    sys.meta_path.insert(0, _PyodideHttp())
