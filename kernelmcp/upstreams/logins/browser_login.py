"""A person's login to an upstream, with OAuth in a browser, which returns to a page of this machine."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

import anyio
import anyio.from_thread
import anyio.lowlevel
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult

from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import cause
from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.connect import Way, connected, in_words
from kernelmcp.upstreams.logins.local_page import Fields, LocalPage, fields_of
from kernelmcp.upstreams.logins.login_file import LoginFile
from kernelmcp.upstreams.logins.oauth import Logins, NewLogin

LOGIN_SECONDS = 600.0
DONE = "<p>You are logged in. This page can be closed."
NOT_DONE = "<p>You are not logged in: the login was refused."

Take = Callable[[str], bool]
"""Takes the address at which the browser ended, if that is on another machine; False if it is not the right one."""
Show = Callable[[str, Take], Awaitable[None]]
"""Shows a person the address to log in at. What it raises ends the login."""


class LoginFailed(Exception):
    """The text is a clause for a person; it may contain an upstream's words."""


async def log_in(name: str, server: UpstreamSettings, way: Way, logins: Logins, show: Show) -> int:
    """Log in, and return the number of the server's tools. Raises `LoginFailed`, and what `show` raises."""
    answers, waiting = anyio.create_memory_object_stream[AuthorizationCodeResult](1)
    token = anyio.lowlevel.current_token()
    refusal: list[Exception] = []

    def answer(result: AuthorizationCodeResult) -> None:
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError):  # a second one is dropped
            answers.send_nowait(result)

    def of_browser(fields: Fields) -> str | None:
        if (result := _result_of(fields)) is None:
            return None
        anyio.from_thread.run_sync(answer, result, token=token)
        return DONE if result.code else NOT_DONE

    def take(address: str) -> bool:
        return of_browser(fields_of(urlsplit(address).query)) is not None

    async def shown(address: str) -> None:
        try:
            await show(address, take)
        except Exception as exc:  # the connection would report it as its own
            refusal.append(exc)
            raise

    def authorize(_: str, rules: AddressRules, __: object) -> httpx2.Auth:
        kept = LoginFile(logins.file(name), rules.url, anew=True)
        return NewLogin(rules, kept, page.address, shown, waiting.receive)

    with answers, waiting, LocalPage(of_browser) as page:
        way = replace(way, authorize=authorize)
        try:
            with anyio.fail_after(LOGIN_SECONDS):
                async with connected(name, server, way, lambda: None, was_legacy=False) as (_, conversation):
                    return len((await conversation.list()).tools)
        except Exception as exc:
            if refusal:
                raise refusal[0] from exc
            found = cause(exc)
            raise LoginFailed(str(found) if isinstance(found, OAuthFlowError) else in_words(exc, server)) from exc


def _result_of(fields: Fields) -> AuthorizationCodeResult | None:
    if "state" not in fields or not ({"code", "error"} & fields.keys()):
        return None
    return AuthorizationCodeResult(code=fields.get("code", ""), state=fields["state"], iss=fields.get("iss"))
