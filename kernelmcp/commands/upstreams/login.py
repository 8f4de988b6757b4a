"""`kernelmcp upstreams login NAME`: OAuth in a browser. The server has the tokens from then on, even if it is running.

The browser is redirected to a port of this machine. If it runs on another one, the user enters its final address.
"""

import http.server
import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult

from kernelmcp.commands.terminal import fail, plain
from kernelmcp.commands.upstreams.connecting import open_connecting, server_named
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import ConfigurationError, cause
from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.connect import MAX_REASON_CHARS, in_words
from kernelmcp.upstreams.logins.login_file import LoginFile
from kernelmcp.upstreams.logins.oauth import NewLogin

LOGIN_SECONDS = 600.0
DONE = b"<!doctype html><title>kernelmcp</title><p>You are logged in. This page can be closed."
NOT_DONE = b"<!doctype html><title>kernelmcp</title><p>You are not logged in: the login was refused."


def main(settings: Settings, name: str, *, open_browser: bool) -> int:
    """Returns status 1 if the login failed. Raises `ConfigurationError`."""
    server = server_named(settings, name)
    if server.url is None:
        raise ConfigurationError(f"{name} is started by a command", "Only a server with a url has a login.")
    if any(header.lower() == "authorization" for header in server.headers):
        raise ConfigurationError(f"{name} has an Authorization header", "Remove it to log in instead.")
    return anyio.run(_login, settings, name, server, open_browser)


async def _login(settings: Settings, name: str, server: UpstreamSettings, open_browser: bool) -> int:
    answers, waiting = anyio.create_memory_object_stream[AuthorizationCodeResult](1)
    answer = _from_threads(answers.send_nowait)
    with answers, waiting, _Redirected(answer) as redirected:
        shown = False

        async def show(address: str) -> None:
            nonlocal shown
            shown = True
            sys.stdout.write(f"Log in to {name} at this address:\n\n  {address}\n\n")
            if open_browser:
                await anyio.to_thread.run_sync(webbrowser.open, address)
            elif sys.stdin is not None and sys.stdin.isatty():
                sys.stdout.write("Is the browser on another machine? Paste the address that it ended at:\n")
                threading.Thread(target=_read_pasted, args=(answer,), daemon=True).start()
            sys.stdout.flush()

        def authorize(_: str, rules: AddressRules, __: object) -> httpx2.Auth:
            kept = LoginFile(connecting.logins.file(name), rules.url, anew=True)
            return NewLogin(rules, kept, redirected.address, show, waiting.receive)

        async with open_connecting(settings) as connecting:
            connecting.way = replace(connecting.way, authorize=authorize)
            try:
                with anyio.fail_after(LOGIN_SECONDS):
                    async with connecting.catalogue(name, server) as catalogue:
                        tools = len(catalogue.tools)
            except Exception as exc:  # noqa: BLE001  # whatever goes wrong ends the command with a sentence
                found = cause(exc)
                why = str(found) if isinstance(found, OAuthFlowError) else in_words(exc, server)
                return fail(f"{name}: the login failed: {plain(why)[:MAX_REASON_CHARS]}")
    said = f"Logged in to {name}" if shown else f"{name} requires no login"
    sys.stdout.write(f"{said}: {tools} tools.\n")
    return 0


class _Redirected:
    """The address to which the browser returns: a local port, and a path that nobody can guess."""

    def __init__(self, answer: Callable[[AuthorizationCodeResult], None]) -> None:
        path = f"/{secrets.token_urlsafe(12)}"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                result = _result_in(self.path) if urlsplit(self.path).path == path else None
                self.send_response(404 if result is None else 200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                if result is not None:
                    self.wfile.write(DONE if result.code else NOT_DONE)
                    answer(result)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as its base has it
                """Log nothing: the lines would contain the code."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}{path}"

    def __enter__(self) -> "_Redirected":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _from_threads(answer: Callable[[AuthorizationCodeResult], None]) -> Callable[[AuthorizationCodeResult], None]:
    """The same callback for other threads. A second answer is dropped."""
    token = anyio.lowlevel.current_token()

    def once(result: AuthorizationCodeResult) -> None:
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError):
            answer(result)

    return lambda result: anyio.from_thread.run_sync(once, result, token=token)


def _result_in(address: str) -> AuthorizationCodeResult | None:
    """The answer in the address to which the browser returned."""
    said = {key: values[0] for key, values in parse_qs(urlsplit(address).query).items()}
    if "state" not in said or not ({"code", "error"} & said.keys()):
        return None
    return AuthorizationCodeResult(code=said.get("code", ""), state=said["state"], iss=said.get("iss"))


def _read_pasted(answer: Callable[[AuthorizationCodeResult], None]) -> None:
    for line in sys.stdin:
        if (result := _result_in(line.strip())) is not None:
            answer(result)
            return
        sys.stdout.write("That is not the address: the right one contains code= and state=.\n")
