"""A page of this machine, at an address that nobody can guess, for one browser: where a login returns to, or a form."""

import http.server
import secrets
import socketserver
import threading
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, urlsplit

MAX_FORM_BYTES = 64 * 1024
# How long the end of the program waits for a page that is being sent.
SENT_SECONDS = 10.0
# The address is as good as a password until the page is closed.
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'",
}
BEGINNING = '<!doctype html><meta charset="utf-8"><title>kernelmcp</title>'

Fields = Mapping[str, str]


class LocalPage:
    """`answer` gets the fields of a query or a form, and returns the page's text; None if they are not the expected
    ones. It is called in other threads, one at a time. `form` is shown first, and only what it sends is an answer."""

    def __init__(self, answer: Callable[[Fields], str | None], form: str | None = None) -> None:
        path = f"/{secrets.token_urlsafe(16)}"
        answering = self._answering = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 60

            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                if asked.path != path:
                    return self._send(None)
                return self._send(form) if form else self._answer(asked.query)

            def do_POST(self) -> None:
                size = self.headers.get("Content-Length", "")
                if form is None or self.path != path or not size.isdecimal() or int(size) > MAX_FORM_BYTES:
                    return self._send(None)
                return self._answer(self.rfile.read(int(size)).decode("utf-8", "replace"))

            def _answer(self, fields: str) -> None:
                with answering:
                    self._send(answer(fields_of(fields)))

            def _send(self, text: str | None) -> None:
                self.send_response(404 if text is None else 200)
                for name, value in HEADERS.items():
                    self.send_header(name, value)
                self.end_headers()
                if text is not None:
                    self.wfile.write((BEGINNING + text).encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as its base has it
                """Log nothing: the lines would contain secrets."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def __enter__(self) -> "LocalPage":
        threading.Thread(target=self._server.serve_forever, args=[0.1], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # In a thread, because this one may be the event loop's. The program's end waits for it: what the answer has
        # set off may be over before the browser has its page.
        threading.Thread(target=self._close).start()

    def _close(self) -> None:
        if self._answering.acquire(timeout=SENT_SECONDS):
            self._answering.release()
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's, which looks for the machine's name: that may take seconds.
    daemon_threads = True


def fields_of(text: str) -> dict[str, str]:
    """The first value of each field. No fields, if there are too many."""
    try:
        found = parse_qs(text, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return {}
    return {key: values[0] for key, values in found.items()}
