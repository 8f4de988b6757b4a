"""An MCP server over HTTP that does one thing wrong: `python hostile_http_server.py HOW`; its port is the first line of
stdout. Sockets and threads, without a library: one would keep it from what it does.

Its tool `echo` gives back its argument `value`, as far as the wrong leaves it to. What has no end is sent as
fast as it is read.
"""

import json
import re
import socket
import sys
import threading
import time
from typing import Any

# What does harm although nobody calls it, and what does in the answer of a call.
UNASKED = (
    "interim-answers",
    "empty-events",
    "comments",
    "answers-to-nobody",
    "events-in-small-pieces",
    "streams-that-end",
    "large-lists-that-change",
)
IN_CALLS = ("body-in-small-pieces", "interim-answers-to-a-call", "silence")
SECRET = "of-an-address"
AT_ONCE = 16 * 1024
EVENTS = {"Content-Type": "text/event-stream"}
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")


def more_tools(how: str) -> list[dict[str, Any]]:
    """Others at each list: one that is as large as a list may be, of what takes long to read."""
    if how != "large-lists-that-change":
        return []
    properties = {f"p{number}": {"type": "string"} for number in range(40_000)}
    return [{"name": "large", "description": str(time.time()), "inputSchema": {"properties": properties}}]


class Connection:
    def __init__(self, connected: socket.socket, how: str) -> None:
        self._socket = connected
        self._how = how
        self._rest = b""

    def serve(self) -> None:
        try:
            while (request := self._request()) is not None:
                method, body = request
                if method == "POST":
                    self._post(json.loads(body))
                elif method == "GET":
                    self._get()
                else:
                    self._delete()
        except OSError:
            pass
        finally:
            self._socket.close()

    def _request(self) -> tuple[str, bytes] | None:
        while b"\r\n\r\n" not in self._rest:
            if not (data := self._socket.recv(65536)):
                return None
            self._rest += data
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        found = LENGTH.search(head)
        length = int(found[1]) if found else 0
        while len(self._rest) < length:
            if not (data := self._socket.recv(65536)):
                return None
            self._rest += data
        body, self._rest = self._rest[:length], self._rest[length:]
        return head.split(b" ", 1)[0].decode(), body

    def _head(self, status: str = "200 OK", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())

    def _whole(self, status: str, body: bytes, **headers: str) -> None:
        self._head(status, Content_Length=str(len(body)), Content_Type="application/json", **headers)
        self._socket.sendall(body)

    def _chunks(self) -> None:
        self._head(Transfer_Encoding="chunked", Content_Type="application/json")

    def _forever(self, data: bytes) -> None:
        data *= max(1, AT_ONCE // len(data))
        while True:
            self._socket.sendall(data)

    def _get(self) -> None:
        match self._how:
            case "interim-answers":
                self._forever(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
            case "empty-events":
                self._head(**EVENTS)
                self._forever(b"data: {}\n\n")
            case "comments":
                self._head(**EVENTS)
                self._forever(b":\n")
            case "answers-to-nobody":
                self._head(**EVENTS)
                self._forever(b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n')
            case "events-in-small-pieces":
                self._head(Transfer_Encoding="chunked", **EVENTS)
                self._forever(b"1\r\n:\r\n")
            case "large-lists-that-change":
                self._head(**EVENTS)
                self._forever(b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n')
            case "streams-that-end":
                self._head(Connection="close", **EVENTS)
                self._socket.sendall(b"retry: 0\n\n")
                self._socket.shutdown(socket.SHUT_RDWR)
            case _:
                self._whole("405 Method Not Allowed", b"")

    def _delete(self) -> None:
        if self._how == "gone-and-silent":
            time.sleep(3600)
        self._whole("200 OK", b"")

    def _post(self, message: dict[str, Any]) -> None:
        number, method = message.get("id"), message.get("method")
        if number is None:
            self._whole("202 Accepted", b"")
            return
        said: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
        if method == "initialize":
            about: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            said["result"] = {**about, "serverInfo": {"name": self._how, "version": "1"}}
            self._whole("200 OK", json.dumps(said).encode(), Mcp_Session_Id="s")
            return
        if method == "tools/list":
            said["result"] = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}, *more_tools(self._how)]}
        elif method == "tools/call":
            value = message["params"]["arguments"]["value"]
            if value != "good":
                self._wrong()
            said["result"] = {"content": [{"type": "text", "text": json.dumps(value)}]}
        else:
            said["error"] = {"code": -32601, "message": "Method not found"}
        self._whole("200 OK", json.dumps(said).encode())

    def _wrong(self) -> None:
        match self._how:
            case "body-in-small-pieces":
                self._chunks()
                self._forever(b"1\r\n \r\n")
            case "interim-answers-to-a-call":
                self._forever(b"HTTP/1.1 102 Processing\r\n\r\n")
            case "silence":
                time.sleep(3600)
            case "sends-elsewhere":
                self._whole("302 Found", b"", Location=f"http://user:{SECRET}@127.0.0.1:1/else")
            case "gone-and-silent":
                self._whole("404 Not Found", b"")
            case _:
                pass


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        connected, _ = listening.accept()
        threading.Thread(target=Connection(connected, sys.argv[1]).serve, daemon=True).start()


if __name__ == "__main__":
    main()
