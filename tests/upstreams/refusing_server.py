"""An MCP server that lets nobody in and names an address of its own to ask. `/asked` says what it was asked."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ASKED: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/asked":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(ASKED).encode())
        else:
            self._refuse()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._refuse()

    def _refuse(self) -> None:
        ASKED.append(f"{self.command} {self.path}")
        address = f"http://127.0.0.1:{self.server.server_address[1]}/metadata"
        self.send_response(401)
        self.send_header("WWW-Authenticate", f'Bearer resource_metadata="{address}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as its base has it
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
