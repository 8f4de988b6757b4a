"""Opens a conversation with an upstream from its settings, over any transport, and explains failures."""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx2
from mcp import MCPError
from pydantic import ValidationError

from kernelmcp.config.upstream_settings import UpstreamSettings
from kernelmcp.errors import cause
from kernelmcp.output.sanitize import clean, without_colour
from kernelmcp.upstreams.addresses import AddressRules
from kernelmcp.upstreams.conversation import Conversation, open_conversation
from kernelmcp.upstreams.http import open_http, open_sse
from kernelmcp.upstreams.large_results import LargeResults
from kernelmcp.upstreams.link import Link, is_closed
from kernelmcp.upstreams.process_reaper import ProcessReaper
from kernelmcp.upstreams.stdio import open_stdio
from kernelmcp.upstreams.target import target_of, without_secrets

MAX_REASON_CHARS = 300
Authorize = Callable[[str, AddressRules, Mapping[str, str]], httpx2.Auth | None]
"""Maps a server's name, address rules and headers to the authentication of its requests."""


@dataclass(frozen=True)
class Way:
    """Parameters that all connections share."""

    reaper: ProcessReaper
    authorize: Authorize
    max_mb: Callable[[], int]
    on_link: Callable[[Link], None] = lambda _: None
    """Called with each connection as soon as it exists."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The values of `${NAME}`."""


@asynccontextmanager
async def connected(
    name: str, settings: UpstreamSettings, way: Way, changed: Callable[[], None], *, was_legacy: bool
) -> AsyncIterator[tuple[Link, Conversation]]:
    """Open a link and a conversation. Raises any error of theirs; `in_words` explains it."""
    target = target_of(settings, way.environ)
    rules = AddressRules(target.url, allow_private=settings.private_addresses is True)
    large = LargeResults(way.max_mb)

    if settings.transport == "stdio":
        opened = open_stdio(target.command, target.args, target.env, target.cwd, large, way.reaper)
    else:
        open_web = open_http if settings.transport == "http" else open_sse
        opened = open_web(rules, target.headers, way.authorize(name, rules, target.headers), large)
    async with opened as its_link:
        link = replace(its_link, last_words=lambda: without_secrets(its_link.last_words(), settings, way.environ))
        way.on_link(link)
        try:
            async with open_conversation(name, link, large, changed, was_legacy=was_legacy) as conversation:
                yield link, conversation
        except Exception as exc:
            lost = cause(exc)
            if isinstance(lost, MCPError) and is_closed(lost) and (reason := await link.reason()):
                raise Ended(reason) from exc
            raise


class Ended(Exception):
    """The connection ended; its text is a clause for a person."""


def in_words(
    exc: BaseException,
    settings: UpstreamSettings,
    environ: Mapping[str, str] = os.environ,
    tokens: Iterable[str] = (),
) -> str:
    """Explain an error in a clause for a person, without addresses and values, also those of a login (`tokens`). The
    text may come from an upstream."""
    exc = cause(exc)
    match exc:
        case Ended() | ValueError() if not isinstance(exc, ValidationError | UnicodeError):
            said = str(exc)
        case TimeoutError():
            said = "it did not answer in time"
        case FileNotFoundError() | PermissionError() | NotADirectoryError():
            said = f"{exc.filename} cannot be started: {exc.strerror}"
        case MCPError():
            said = str(exc)
        case httpx2.HTTPStatusError():
            said = f"it answered with HTTP {exc.response.status_code}"
        case httpx2.ConnectError():
            said = f"it cannot be reached: {exc}"
        case ValidationError() | RuntimeError():
            said = "it does not speak a version of MCP that is supported"
        case _:
            said = f"the connection failed: {type(exc).__name__}"
    said = without_secrets(without_colour(clean(said)), settings, environ, tokens)[:MAX_REASON_CHARS]
    return "".join(char if char.isprintable() else " " for char in said)
