"""Tokens in what comes from servers whose personal data guests do not see, and values in calls to those that may have
them. Must not know policy or sessions."""

import json
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import anyio.to_thread

from kernelmcp.code_mode import refusals
from kernelmcp.code_mode.personal_data import Tokens, TooManyTokens
from kernelmcp.config.upstreams import PersonalKind, UpstreamSettings
from kernelmcp.output.sanitize import as_dict
from kernelmcp.upstreams.catalogue import CallResult, UpstreamError

BYTES_PER_MB = 1024 * 1024
# Above, JSON is read and written in a thread: nobody else must wait.
LARGE_BYTES = 100_000
# What is larger is not looked through, and so not let through.
MAX_TOKENIZED_MB = 4

T = TypeVar("T")


def hidden_kinds(settings: UpstreamSettings, tokens: Tokens) -> Collection[PersonalKind]:
    """What the guest does not see of what a server says. One that gets values could say them again: of it, everything
    of the kinds that are tokens."""
    return {*settings.tokenize, *(tokens.kinds if settings.reveal else ())}


async def with_tokens(
    result: CallResult, tokens: Tokens, kinds: Collection[PersonalKind], server: str, tool: str
) -> CallResult:
    """Raises `UpstreamError`."""
    if result.size > MAX_TOKENIZED_MB * BYTES_PER_MB:
        raise refusals.large_result(server, tool, result.size, MAX_TOKENIZED_MB)

    def replace() -> dict[str, Any]:
        value = json.loads(result.raw) if result.raw is not None else result.value
        return tokens.hide_in_result(as_dict(value), kinds)

    try:
        value = await off_loop(result.size, replace)
    except TooManyTokens:
        raise refusals.too_many_tokens(server) from None
    except (ValueError, RecursionError):
        raise UpstreamError("ToolError", f"{server}.{tool}: its result could not be read") from None
    return CallResult(value, None, result.is_error, result.size)


async def with_values(arguments: dict[str, Any], size: int, tokens: Tokens, server: str, tool: str) -> dict[str, Any]:
    """Arguments with values in the place of tokens. Raises `UpstreamError`."""
    try:
        return await off_loop(size, lambda: tokens.reveal(arguments))
    except (ValueError, RecursionError):
        raise UpstreamError(
            "ToolError", f"{server}.{tool}: the arguments are nested too deep to put values in; nest them less"
        ) from None


def hidden(message: str, tokens: Tokens, kinds: Collection[PersonalKind], server: str) -> str:
    """What a server says of a call that failed. Raises `UpstreamError`."""
    try:
        return tokens.hide(message, kinds)
    except TooManyTokens:
        raise refusals.too_many_tokens(server) from None


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """In a thread where it takes long; else here, which takes less."""
    return work() if size <= LARGE_BYTES else await anyio.to_thread.run_sync(work)
