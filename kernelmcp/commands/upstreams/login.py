"""`kernelmcp upstreams login NAME`: OAuth in a browser. The server has the tokens from then on, even if it is running.

The browser is redirected to a port of this machine. If it runs on another one, the user enters its final address.
"""

import sys
import threading
import webbrowser

import anyio
import anyio.to_thread

from kernelmcp.commands.terminal import fail, plain
from kernelmcp.commands.upstreams.connecting import open_connecting, server_named
from kernelmcp.config.settings import Settings
from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import ConfigurationError
from kernelmcp.output.sanitize import counted
from kernelmcp.upstreams.logins.browser_login import LoginFailed, Take, log_in


def main(settings: Settings, name: str, *, open_browser: bool) -> int:
    """Returns status 1 if the login failed. Raises `ConfigurationError`."""
    server = server_named(settings, name)
    if server.url is None:
        raise ConfigurationError(f"{name} is started by a command", "Only a server with a url has a login.")
    if any(header.lower() == "authorization" for header in server.headers):
        raise ConfigurationError(f"{name} has an Authorization header", "Remove it to log in instead.")
    return anyio.run(_login, settings, name, server, open_browser)


async def _login(settings: Settings, name: str, server: UpstreamSettings, open_browser: bool) -> int:
    was_shown = False

    async def show(address: str) -> None:
        nonlocal was_shown
        was_shown = True
        sys.stdout.write(f"Log in to {name} at this address:\n\n  {address}\n\n")
        if open_browser:
            await anyio.to_thread.run_sync(webbrowser.open, address)
        sys.stdout.flush()

    def take_from(take: Take) -> None:
        if not open_browser and sys.stdin is not None and sys.stdin.isatty():
            sys.stdout.write("Is the browser on another machine? Paste the address that it ended at:\n")
            sys.stdout.flush()
            threading.Thread(target=_read_pasted, args=(take,), daemon=True).start()

    async with open_connecting(settings) as connecting:
        try:
            tools = await log_in(name, server, connecting.way, connecting.logins, show, take_from)
        except LoginFailed as exc:
            return fail(f"{name}: the login failed: {plain(str(exc))}")
    said = f"Logged in to {name}" if was_shown else f"{name} requires no login"
    sys.stdout.write(f"{said}: {counted(tools, 'tool')}.\n")
    return 0


def _read_pasted(take: Take) -> None:
    for line in sys.stdin:
        if take(line.strip()):
            return
        sys.stdout.write("That is not the address: the right one contains code= and state=.\n")
