"""An execution as a CallToolResult: structured content, one text block that reads well alone, pictures, links.

Above: tools. Below: executions, outputs, images. Must not know sessions.
"""

import base64
import json
import mimetypes
import os
from typing import Any
from urllib.parse import quote

import anyio.to_thread
from mcp_types import CallToolResult, ContentBlock, ImageContent, ResourceLink, TextContent

from kernelmcp import images
from kernelmcp.errors import ServerError
from kernelmcp.executions import EXIT_CODES, GONE, Execution
from kernelmcp.guestdata import clean, joined
from kernelmcp.models import ChangedFile, ExecutionResult, OutputInfo, Truncation
from kernelmcp.outputs import Display
from kernelmcp.spool import Spool

# Claude Desktop refuses results over 1 MB.
MAX_RESULT_BYTES = 900_000
MAX_IMAGES = 20
MAX_LISTED_OUTPUTS = 100
MAX_LINKS = 20
# Paths and addresses of the files that a cell changed, in the structure and once more as links.
MAX_CHANGED_CHARS = 50_000
# The least that a stream gets of the budget, characters: its first and last lines.
MIN_SHARE_CHARS = 100
RESOURCE_LINKS_SINCE = "2025-06-18"


def uri(execution: Execution, part: str) -> str:
    return f"kernelmcp://executions/{execution.id}/{part}"


async def to_result(execution: Execution, budget_chars: int, protocol_version: str | None) -> CallToolResult:
    """What the client gets."""
    outputs = execution.outputs
    traceback = execution.error.traceback if execution.error else ""
    shares = _share(
        budget_chars,
        [outputs.stdout.total_chars, outputs.stderr.total_chars, outputs.result_chars, len(traceback)],
    )
    truncated: dict[str, Truncation] = {}
    stdout = _cut_spool(outputs.stdout, shares[0], uri(execution, "stdout"), "stdout", truncated)
    stderr = _cut_spool(outputs.stderr, shares[1], uri(execution, "stderr"), "stderr", truncated)
    result = outputs.result and _cut_text(
        outputs.result, outputs.result_chars, shares[2], uri(execution, "result"), "result", truncated
    )
    traceback = _cut_text(traceback, len(traceback), shares[3], uri(execution, "error"), "error", truncated)
    error = execution.error
    rich = list(outputs.rich_displays())
    infos = [_info(execution, number, display) for number, display in rich[:MAX_LISTED_OUTPUTS]]
    changed = _changed(execution)
    structured: ExecutionResult = {
        "session_id": execution.session_id,
        "session_created": execution.session_created,
        "execution_id": execution.id,
        "execution_count": outputs.execution_count,
        "status": execution.status,
        "success": execution.status == "ok",
        "exit_code": EXIT_CODES[execution.status],
        "stdout": stdout,
        "stderr": stderr,
        "result": result,
        "error": error and {"name": error.name, "value": error.value[:budget_chars], "traceback": traceback},
        "outputs": infos,
        "outputs_dropped": outputs.dropped_displays,
        "files_changed": changed,
        "truncated": truncated or None,
        "state_lost": execution.state_lost,
        "execution_time_ms": round(execution.execution_time_ms, 2),
        "queued_ms": round(execution.queued_ms, 2),
    }
    if execution.event is not None:
        structured["return_value"] = execution.return_value
    text = _text(execution, structured, rich, budget_chars)
    content: list[ContentBlock] = [TextContent(text=text)]
    if rich:
        # Each text is in the result twice, as a block and in the structure.
        room = MAX_RESULT_BYTES - 2 * len(text.encode()) - 200 * len(infos) - 2_000
        content += await _images(rich, room)
    if (infos or truncated or changed) and (protocol_version is None or protocol_version >= RESOURCE_LINKS_SINCE):
        content += _links(infos, truncated) + file_links(changed)
    is_error = not structured["success"] and execution.status != "running"
    return CallToolResult(content=content, structured_content=dict(structured), is_error=is_error)


def error_result(error: ServerError) -> CallToolResult:
    """A tool error: the text says what was wrong and what to do."""
    return CallToolResult(
        content=[TextContent(text=error.to_text())], structured_content={"error": error.to_dict()}, is_error=True
    )


def _share(budget: int, sizes: list[int]) -> list[int]:
    """Divide the budget: who needs less than an equal share leaves the rest to the others."""
    shares = [0] * len(sizes)
    open_ends = sorted(range(len(sizes)), key=sizes.__getitem__)
    for position, index in enumerate(open_ends):
        share = min(sizes[index], max(MIN_SHARE_CHARS, budget // (len(open_ends) - position)))
        shares[index] = share
        budget = max(0, budget - share)
    return shares


def _cut_spool(spool: Spool, budget: int, link: str, name: str, truncated: dict[str, Truncation]) -> str:
    if spool.chars > budget:
        head, tail = spool.head(budget // 2), spool.tail(budget // 2)
    else:
        head, tail = spool.read(), ""
        if not spool.dropped_chars:
            return head
    return _join(head, tail, spool.chars, spool.total_chars, link, name, truncated)


def _cut_text(text: str, total: int, budget: int, link: str, name: str, truncated: dict[str, Truncation]) -> str:
    """`text` is what was kept of `total` characters."""
    if total <= budget:
        return text
    head, tail = (text[: budget // 2], text[-(budget // 2) :]) if len(text) > budget else (text, "")
    return _join(head, tail, len(text), total, link, name, truncated)


def _join(head: str, tail: str, kept: int, total: int, link: str, name: str, truncated: dict[str, Truncation]) -> str:
    """Head and tail on line boundaries (unless a line is most of it), and between them what is missing."""
    if tail and (end := head.rfind("\n") + 1) > len(head) // 2:
        head = head[:end]
    if 0 < (start := tail.find("\n") + 1) < len(tail) // 2:
        tail = tail[start:]
    shown = len(head) + len(tail)
    truncated[name] = {"shown_chars": shown, "total_chars": total, "uri": link}
    gap = "" if not head or head.endswith("\n") else "\n"
    rest = f"all of it: {link}" if kept == total else f"the server kept {kept:,} of them: {link}"
    return f"{head}{gap}[... {total - shown:,} of {total:,} characters left out; {rest} ...]\n{tail}"


def _info(execution: Execution, number: int, display: Display) -> OutputInfo:
    return {"mime_types": list(display.data), "uri": uri(execution, f"outputs/{number}")}


def _text(execution: Execution, structured: ExecutionResult, rich: list[tuple[int, Display]], budget: int) -> str:
    parts = [structured["stdout"].rstrip("\n")]
    if stderr := structured["stderr"].rstrip("\n"):
        parts.append(f"[stderr]\n{stderr}")
    parts += _displayed_text(execution, rich, budget // 4)
    if structured["result"] is not None:
        parts.append(structured["result"])
    if execution.event is not None and structured["success"]:
        parts.append("return_value: " + _cut_value(execution.return_value, budget // 2))
    if structured["outputs_dropped"]:
        parts.append(f"[{structured['outputs_dropped']:,} more displayed objects were not kept]")
    if error := structured["error"]:
        parts.append(error["traceback"].rstrip("\n") or f"{error['name']}: {error['value']}")
    parts += _notes(execution)
    if not any(parts) and rich:
        parts.append(f"[displayed: {', '.join(_best_type(list(display.data)) for _, display in rich[:MAX_LINKS])}]")
    return "\n".join(part for part in parts if part) or "(no output)"


def _cut_value(value: Any, budget: int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= budget:
        return text
    return f"{text[:budget]} [... {len(text):,} characters; all of them are in the field return_value ...]"


def _displayed_text(execution: Execution, rich: list[tuple[int, Display]], budget: int) -> list[str]:
    """The text form of what was displayed and is no picture, such as tables."""
    parts: list[str] = []
    for number, display in rich:
        text: Any = display.data.get("text/markdown") or display.data.get("text/plain")
        if display.kind == "execute_result" or display.data.keys() & images.IMAGE_TYPES.keys() or not text:
            continue
        if budget < MIN_SHARE_CHARS:
            parts.append("[more was displayed than fits here: see the field outputs]")
            break
        whole = joined(text)
        text = _cut_text(whole, len(whole), budget, uri(execution, f"outputs/{number}"), "", {})
        budget -= len(text)
        parts.append(text)
    return parts


def _notes(execution: Execution) -> list[str]:
    notes: list[str] = []
    if execution.has_minted_session:
        notes.append(
            f"[This ran in a new session. Give session_id={execution.session_id!r} to go on in it: over this "
            "connection, every call without one gets a session of its own.]"
        )
    if execution.status == "running":
        waits = "is waiting for its turn" if execution.started is None else "is still running"
        notes.append(
            f"[The execution {waits}. Call get_execution with execution_id={execution.id!r} to wait for it, or "
            "cancel_execution to stop it.]"
        )
    elif execution.interruption and not execution.state_lost and execution.started is not None:
        why = "was cancelled"
        if execution.interruption == "timeout":
            why = "ran into its limit of CPU time" if execution.limit else "ran into its time limit"
        notes.append(f"[The cell {why} and was interrupted. All variables are kept.]")
    asked, got = execution.asked_timeout_seconds, execution.timeout_seconds
    if asked is not None and asked > got:
        notes.append(f"[The server allows no more than {got:g} s for a cell, so the timeout of {asked:g} s was cut.]")
    if execution.error and execution.error.name == "MemoryError" and not execution.state_lost:
        notes.append(
            "[The session's memory did not suffice. All variables are kept: delete large ones, or make a session of a "
            "larger flavor with create_session.]"
        )
    if execution.state_lost and execution.status in ("ok", "error"):
        notes.append(f"[The kernel was restarted before this cell. {GONE}]")
    elif execution.state_lost and execution.error and GONE not in execution.error.value:
        notes.append(f"[{GONE}]")
    return notes


async def _images(rich: list[tuple[int, Display]], room: int) -> list[ContentBlock]:
    found: list[tuple[str, bytes]] = []
    for _, display in rich:
        for mime in images.IMAGE_TYPES:
            encoded = display.data.get(mime)
            data = images.decode(encoded) if isinstance(encoded, str) else None
            if data:
                found.append((mime, data))
                break
    found = found[:MAX_IMAGES]
    blocks: list[ContentBlock] = []
    for position, (mime, data) in enumerate(found):
        share = room // (len(found) - position)
        if not images.fits(data, share):
            smaller = await anyio.to_thread.run_sync(images.shrink, data, share)
            if smaller is None:
                continue
            mime, data = smaller
        encoded = base64.b64encode(data).decode()
        room -= len(encoded)
        blocks.append(ImageContent(data=encoded, mime_type=mime))
    return blocks


def _links(infos: list[OutputInfo], truncated: dict[str, Truncation]) -> list[ContentBlock]:
    links: list[ContentBlock] = [
        ResourceLink(name=f"all of {name}", uri=cut["uri"], mime_type="text/plain") for name, cut in truncated.items()
    ]
    links += (
        ResourceLink(
            name=f"output {info['uri'].rpartition('/')[2]}", uri=info["uri"], mime_type=_best_type(info["mime_types"])
        )
        for info in infos[:MAX_LINKS]
    )
    return links


def _changed(execution: Execution) -> list[ChangedFile]:
    """As many as a result has room for: a path may have 4,000 bytes, and its URI thrice as many."""
    found: list[ChangedFile] = []
    room = MAX_CHANGED_CHARS
    for file in execution.files_changed:
        uri = file_uri(execution.session_id, file.path)
        room -= len(file.path) + len(uri)
        if room < 0:
            break
        found.append({"path": clean(file.path), "size": file.size, "uri": uri})
    return found


def file_uri(session_id: str, path: str) -> str:
    """The resource of a file; a name in it that is no UTF-8 is told byte for byte, as a URI can."""
    return f"kernelmcp://sessions/{session_id}/files/{quote(os.fsencode(path), safe='/')}"


def file_links(changed: list[ChangedFile]) -> list[ContentBlock]:
    return [
        ResourceLink(
            name=file["path"],
            uri=file["uri"],
            mime_type=mimetypes.guess_type(file["path"])[0],
            size=file["size"],
        )
        for file in changed[:MAX_LINKS]
    ]


def _best_type(mime_types: list[str]) -> str:
    return next((kind for kind in (*images.IMAGE_TYPES, "text/html", *mime_types) if kind in mime_types), "text/plain")
