"""Applies tokens to results of servers whose personal data guests must not see, and restores values in calls to servers
that may have them. Must not know policy or sessions."""

import json
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import anyio.to_thread

from kernelmcp.code_mode import refusals
from kernelmcp.code_mode.personal_data import Tokens, TooManyTokens
from kernelmcp.config.upstream_settings import PersonalKind, UpstreamSettings
from kernelmcp.output.sanitize import as_dict
from kernelmcp.upstreams.catalogue import ToolCallResult, UpstreamError

BYTES_PER_MB = 1024 * 1024
# Larger JSON is parsed and written in a thread: other tasks must not wait.
LARGE_BYTES = 100_000
# Larger results are not searched, and are therefore not passed on.
MAX_TOKENIZED_MB = 4

T = TypeVar("T")


def hidden_kinds(settings: UpstreamSettings, tokens: Tokens) -> Collection[PersonalKind]:
    """The kinds of data to hide in a server's results. A server that gets values could return them: its results are
    searched for all kinds that have tokens."""
    return {*settings.tokenize, *(tokens.kinds if settings.reveal else ())}


async def with_tokens(
    result: ToolCallResult, tokens: Tokens, kinds: Collection[PersonalKind], server: str, tool: str
) -> ToolCallResult:
    """Hide personal data in a result; a large one is returned as text. Raises `UpstreamError`."""
    if result.size > MAX_TOKENIZED_MB * BYTES_PER_MB:
        raise refusals.large_to_tokenize(server, tool, result.size, MAX_TOKENIZED_MB)

    def replace() -> ToolCallResult:
        value = json.loads(result.raw) if result.raw is not None else result.value
        hidden = tokens.hide_in_result(as_dict(value), kinds)
        if result.size <= LARGE_BYTES:
            return ToolCallResult(hidden, None, result.is_error, result.size)
        return ToolCallResult(None, json.dumps(hidden).encode(), result.is_error, result.size)

    try:
        return await off_loop(result.size, replace)
    except TooManyTokens:
        raise refusals.too_many_tokens(server) from None
    except (ValueError, RecursionError):
        raise UpstreamError("ToolError", f"{server}.{tool}: its result could not be read") from None


async def with_values(
    arguments: dict[str, Any], size: int, max_mb: int, tokens: Tokens, server: str, tool: str
) -> dict[str, Any]:
    """Replace tokens in the arguments by values. Raises `UpstreamError`."""

    def replace() -> dict[str, Any]:
        if (grown := size + tokens.growth(arguments)) > max_mb * BYTES_PER_MB:
            raise refusals.large_arguments(server, tool, grown, max_mb)
        return tokens.reveal(arguments)

    try:
        return await off_loop(size, replace)
    except (ValueError, RecursionError):
        raise UpstreamError(
            "ToolError", f"{server}.{tool}: the arguments are nested too deeply to insert values; nest them less"
        ) from None


def hidden(message: str, tokens: Tokens, kinds: Collection[PersonalKind], server: str) -> str:
    """Hide personal data in the error message of a failed call. Raises `UpstreamError`."""
    try:
        return tokens.hide(message, kinds)
    except TooManyTokens:
        raise refusals.too_many_tokens(server) from None


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Run in a thread if it takes long; else here, which takes less."""
    return work() if size <= LARGE_BYTES else await anyio.to_thread.run_sync(work)
