"""HTTP requests by the kernel process: `fetch`, and through it `http.client`, `urllib.request` and their users.

Users of JavaScript's `fetch` (pyodide.http.pyfetch) need nothing here: host/fetch.mjs also turns that into a host call.
urllib3, and so requests, would lose cookies and reasons by it, and uses `fetch` of this module. `pyodide.http.open_url`
and `pyodide.http.pyxhr` get the browser's `XMLHttpRequest`.
"""

# ruff: noqa: N802, N815  (names of XMLHttpRequest are JavaScript's)

# http.client is patched at places that its type stubs do not declare.
# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false

import base64
import http.client
import io
import json
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from pyodide.ffi import JsException

from kernelmcp_guest import blocking

# In the kernel process's text about a time limit (network/fetch_calls.py).
_TIMED_OUT = " took longer than "

_send_output: Any = vars(http.client.HTTPConnection)["_send_output"]


def fetch(
    method: str,
    url: str,
    headers: list[tuple[str, str]],
    body: bytes = b"",
    *,
    follow: bool = True,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Make a request and wait for the response: status, reason, headers, body (bytes), url, redirected.

    Raises OSError if the kernel process refuses or the request fails, KeyboardInterrupt if interrupted.
    """
    encoded = base64.b64encode(body).decode("ascii") if body else None
    answer = blocking.host_call(
        "fetch", method=method, url=url, headers=headers, body=encoded, follow=follow, timeout=timeout
    )
    return {**answer, "body": base64.b64decode(answer["body"])}


class _HostSocket:
    """http.client's socket: collects a request and provides the response for reading."""

    def __init__(self, scheme: str, connection: http.client.HTTPConnection) -> None:
        host = f"[{connection.host}]" if ":" in connection.host else connection.host
        self._origin = f"{scheme}://{host}:{connection.port}"
        self._timeout = connection.timeout
        self._sent = bytearray()

    def sendall(self, data: Any) -> None:
        self._sent += data

    def ask(self) -> None:
        """Make the request, which is now complete."""
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
        if self._sent:  # a body that came in pieces after the headers
            self.ask()
        return self._answer

    def setsockopt(self, *args: object) -> None:
        """Does nothing: there is no socket with options."""

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def close(self) -> None:
        """Does nothing: a response is complete when it arrives."""


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


def _send_whole(connection: http.client.HTTPConnection, message_body: Any = None, encode_chunked: bool = False) -> None:
    _send_output(connection, message_body, encode_chunked=False)  # the kernel process frames the body
    if message_body is not None or connection._method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        connection.sock.ask()


def install() -> None:
    """Patch http.client (for the boot image)."""
    http.client.HTTPConnection.connect = _connect
    http.client.HTTPSConnection.connect = _connect_tls
    http.client.HTTPConnection._send_output = _send_whole


def send_for_urllib3(module: Any) -> None:
    """`urllib3.contrib.emscripten.fetch`: its requests keep the reason and each cookie of their answers."""
    made_of = import_module("urllib3._collections").HTTPHeaderDict
    timed_out = import_module("urllib3.exceptions").ReadTimeoutError

    def send(request: Any, streaming: bool) -> Any:
        headers = [(name, value) for name, value in request.headers.items() if name not in module.HEADERS_TO_IGNORE]
        try:
            body = _whole(request.body)
            answer = fetch(request.method, request.url, headers, body, follow=False, timeout=request.timeout or None)
        except OSError as error:
            if _TIMED_OUT in str(error):
                late = timed_out(None, request.url, "")
                late.args = (str(error),)  # else it names the pool, which is unknown here
                raise late from None
            raise module._RequestError(str(error), request=request, response=None) from None
        content = io.BytesIO(answer["body"]) if streaming else answer["body"]
        made = module.EmscriptenResponse(answer["status"], made_of(answer["headers"]), content, request)
        made.reason = answer["reason"]
        return made

    module.send_jspi_request = send


def _whole(body: Any) -> bytes:
    body = body.read() if hasattr(body, "read") else body
    if isinstance(body, str):
        return body.encode()
    pieces: Any = [body or b""] if isinstance(body, bytes | bytearray | memoryview | None) else body
    return b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)


def tell_urllib3_reasons(module: Any) -> None:
    """`urllib3.contrib.emscripten.response`: requests finds cookies in an attribute that its class has elsewhere."""
    begin = module.EmscriptenHttpResponseWrapper.__init__

    def init(response: Any, internal_response: Any, *args: Any, **options: Any) -> None:
        begin(response, internal_response, *args, **options)
        response.reason = getattr(internal_response, "reason", None)
        response._original_response = SimpleNamespace(msg=response.headers)

    module.EmscriptenHttpResponseWrapper.__init__ = init


class XMLHttpRequest:
    """The part of the browser's class that pyodide.http uses; synchronous only."""

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

    def overrideMimeType(self, mime: str) -> None:
        """Does nothing: bodies are UTF-8 here, or bytes."""

    def setRequestHeader(self, name: str, value: str) -> None:
        self._headers.append((name, value))

    def send(self, body: str | bytes | None = None) -> None:
        raw = body.encode() if isinstance(body, str) else bytes(body or b"")
        answer = fetch(self._method, self._url, self._headers, raw, timeout=self.timeout / 1000 or None)
        self.status, self.statusText, self.responseURL = answer["status"], answer["reason"], answer["url"]
        self._answered = answer["headers"]
        self.responseText = answer["body"].decode("utf-8", "replace")
        kinds = {"arraybuffer": lambda: answer["body"], "json": lambda: json.loads(answer["body"])}
        self.response = kinds.get(self.responseType, lambda: self.responseText)()

    def getAllResponseHeaders(self) -> str:
        return "".join(f"{name}: {value}\r\n" for name, value in self._answered)

    def getResponseHeader(self, name: str) -> str | None:
        found = [value for key, value in self._answered if key == name.lower()]
        return ", ".join(found) or None


def provide_xhr(module: Any) -> None:
    """Give a module of Pyodide's the names that it expects in browsers. They cannot be set before: they hold JavaScript
    objects, which the boot image must not contain."""
    vars(module).update(XMLHttpRequest=XMLHttpRequest, JsException=JsException)
