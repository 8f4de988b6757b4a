"""Results of servers whose personal data guests see as tokens, read as a whole. Must not know policy or sessions."""

import json
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import anyio.to_thread

from kernelmcp.code_mode import refusals
from kernelmcp.code_mode.personal_data import Tokens, TooManyTokens
from kernelmcp.config.upstreams import PersonalKind
from kernelmcp.output.sanitize import as_dict
from kernelmcp.upstreams.catalogue import CallResult, UpstreamError

BYTES_PER_MB = 1024 * 1024
# Above, JSON is read and written in a thread: nobody else must wait.
LARGE_BYTES = 100_000
# What is larger is not looked through, and so not let through.
MAX_TOKENIZED_MB = 4

T = TypeVar("T")


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


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """In a thread where it takes long; else here, which takes less."""
    return work() if size <= LARGE_BYTES else await anyio.to_thread.run_sync(work)
