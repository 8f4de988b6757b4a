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
from kernelmcp.output.sanitize import clean
from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.connect import MAX_REASON_CHARS, Way, connected, in_words
from kernelmcp.upstreams.logins.local_page import Fields, LocalPage, fields_of
from kernelmcp.upstreams.logins.login_file import LoginFile
from kernelmcp.upstreams.logins.oauth import Logins, NewLogin

# Time for the person to log in, once the address was shown; and for the servers before and after that.
LOGIN_SECONDS, ANSWER_SECONDS = 600.0, 120.0
DONE = "<p>You are logged in. This page can be closed."
NOT_DONE = "<p>You are not logged in: the login was refused."

Show = Callable[[str], Awaitable[None]]
"""Shows a person an address. What it raises ends the login."""
Take = Callable[[str], bool]
"""Takes the address at which a browser of another machine ended; False if it is not the right one."""


class LoginFailed(Exception):
    """The text is a clause for a person; it may contain an upstream's words."""


async def log_in(
    name: str,
    server: UpstreamSettings,
    way: Way,
    logins: Logins,
    show: Show,
    take_from: Callable[[Take], None] = lambda take: None,
) -> int:
    """Log in, and return the number of the server's tools. `take_from` is called after `show`. Raises `LoginFailed`,
    and what `show` raises."""
    answers, waiting = anyio.create_memory_object_stream[AuthorizationCodeResult](1)
    token = anyio.lowlevel.current_token()
    refusal: list[Exception] = []

    def answer(result: AuthorizationCodeResult) -> None:
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError):  # a second one is dropped
            answers.send_nowait(result)

    def received(fields: Fields) -> str | None:
        if (result := _result_of(fields)) is None:
            return None
        anyio.from_thread.run_sync(answer, result, token=token)
        return DONE if result.code else NOT_DONE

    async def shown(address: str) -> None:
        limit.deadline = float("inf")  # `show` has its own
        try:
            await show(address)
        except Exception as exc:  # the connection would report it as its own
            refusal.append(exc)
            raise
        limit.deadline = anyio.current_time() + LOGIN_SECONDS
        take_from(lambda ended: received(_fields_in(ended)) is not None)

    async def returned() -> AuthorizationCodeResult:
        result = await waiting.receive()
        limit.deadline = anyio.current_time() + ANSWER_SECONDS
        return result

    def authorize(_: str, rules: AddressRules, __: object) -> httpx2.Auth:
        kept = LoginFile(logins.file(name), rules.url, anew=True)
        return NewLogin(rules, kept, page.address, shown, returned)

    with answers, waiting, LocalPage(received) as page:
        way = replace(way, authorize=authorize)
        try:
            with anyio.fail_after(ANSWER_SECONDS) as limit:
                async with connected(name, server, way, lambda: None, was_legacy=False) as (_, conversation):
                    return len((await conversation.list()).tools)
        except Exception as exc:
            if refusal:
                raise refusal[0] from exc
            found = cause(exc)
            why = clean(str(found)) if isinstance(found, OAuthFlowError) else in_words(exc, server)
            raise LoginFailed(why[:MAX_REASON_CHARS]) from exc


def _fields_in(address: str) -> Fields:
    """No fields, if it is not an address."""
    try:
        return fields_of(urlsplit(address).query)
    except ValueError:
        return {}


def _result_of(fields: Fields) -> AuthorizationCodeResult | None:
    if "state" not in fields or not ({"code", "error"} & fields.keys()):
        return None
    return AuthorizationCodeResult(code=fields.get("code", ""), state=fields["state"], iss=fields.get("iss"))
