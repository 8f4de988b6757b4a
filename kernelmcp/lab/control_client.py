"""Asks a session's server for actions that only it may perform: start, restart or stop its kernel."""

import asyncio
import json
from pathlib import Path
from typing import Literal

from kernelmcp.output.sanitize import as_dict

Method = Literal["start", "restart", "stop"]
# A starting kernel may have to wait for its boot image to be built.
TIMEOUT_SECONDS = 120.0
MAX_ANSWER_BYTES = 64 * 1024
MAX_SENTENCE_CHARS = 1000
GONE = "The kernelmcp server of this session does not answer: it has ended, and the next one opens the session again."


class Refused(Exception):
    """The server did not perform it. The text is a sentence for the person who asked."""


async def ask(socket: Path, method: Method, kernel_id: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Request an action. Raises `Refused`."""
    await _request(socket, {"method": method, "kernel_id": kernel_id}, timeout_seconds, f"{method} the session")


async def _request(socket: Path, request: dict[str, object], timeout_seconds: float, what: str) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            reply = await _exchange(socket, json.dumps(request, ensure_ascii=False))
    except TimeoutError as exc:
        raise Refused(f"The kernelmcp server did not {what} in {timeout_seconds:.0f} s.") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise Refused(GONE) from exc
    if reply.get("ok") is not True:
        said = reply.get("error")
        raise Refused(said[:MAX_SENTENCE_CHARS] if isinstance(said, str) and said else GONE)


async def answer(socket: Path, execution_id: str, text: str | None) -> None:
    """Answer a cell's question; None is Ctrl-D. Raises `Refused`."""
    await _request(socket, {"method": "answer", "execution_id": execution_id, "text": text}, TIMEOUT_SECONDS, "answer")


async def _exchange(socket: Path, request: str) -> dict[str, object]:
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=MAX_ANSWER_BYTES)
    try:
        writer.write(request.encode(errors="replace") + b"\n")
        await writer.drain()
        return as_dict(json.loads(await reader.readline()))
    finally:
        writer.close()
