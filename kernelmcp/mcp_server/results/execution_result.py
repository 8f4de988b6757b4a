"""Converts an execution to a CallToolResult: structured content, one self-contained text block, pictures, links.

Must not know sessions.
"""

import json
from dataclasses import dataclass
from typing import Any

from mcp_types import CallToolResult, ContentBlock, TextContent

from kernelmcp.cells.cell import Display
from kernelmcp.errors import ServerError
from kernelmcp.executions.execution import Execution
from kernelmcp.mcp_server.results import installs, tool_call_fields
from kernelmcp.mcp_server.results.host_folders import HostFolders
from kernelmcp.mcp_server.results.links import (
    MAX_LINKS,
    best_type,
    changed_files,
    cut_links,
    file_links,
    output_infos,
    output_links,
    uri,
)
from kernelmcp.mcp_server.results.notes import notes
from kernelmcp.mcp_server.results.printed import is_seen, printed, unchanged_with_reports, with_reports
from kernelmcp.mcp_server.results.readable import is_empty, played, readable, says_all
from kernelmcp.mcp_server.results.truncation import MIN_SHARE_CHARS, cut_text, cut_value, share
from kernelmcp.mcp_server.results.view import Cursor, View
from kernelmcp.mcp_server.schemas import ExecutionResult, OutputInfo, Truncation
from kernelmcp.output.sanitize import counted, cut_middle, joined
from kernelmcp.pictures import headers
from kernelmcp.pictures.for_results import Pictures, pictures_of

# Claude Desktop rejects results over 1 MB.
MAX_RESULT_BYTES = 900_000
# The part for everything but pictures. With a smaller text budget each result fits: its other parts have their own
# limits.
MAX_TEXT_BYTES = 700_000
# Reserved for notes about pictures, and for the surrounding JSON.
RESERVE_BYTES = 10_000
MIN_BUDGET_CHARS = 200
# Displayed objects whose HTML is searched for text.
MAX_DOCUMENTS = 20
# Attempts to fit the text into its budget: the notes may change a little with the cuts.
ATTEMPTS = 3
# Limit for the JSON of all links in a result.
MAX_LINKS_CHARS = 500
# Pictures whose outcome a result reports.
MAX_NAMED_PICTURES = 20
RESOURCE_LINKS_SINCE = "2025-06-18"


async def to_result(
    execution: Execution,
    budget_chars: int,
    protocol_version: str | None,
    since: Cursor | None = None,
    host: HostFolders | None = None,
    about_missing: str | None = None,
) -> CallToolResult:
    """Return the result for the client, of at most about `MAX_RESULT_BYTES`, however large or strange the outputs are.

    `since`: only the outputs after that position. `host`: for a client on this machine. `about_missing`: a note about a
    file that was not found.
    """
    with_links = protocol_version is None or protocol_version >= RESOURCE_LINKS_SINCE
    view = View(execution, since or Cursor(), host, about_missing)
    draft = _draft(view, budget_chars)
    # The text around the cell's own takes part of the budget.
    room = budget_chars
    for _ in range(ATTEMPTS):
        if (over := len(draft.text) - budget_chars) <= 0 or room == MIN_BUDGET_CHARS:
            break
        room = max(MIN_BUDGET_CHARS, room - over)
        draft = _draft(view, room)
    # The budget counts characters: a control character takes six bytes of JSON, and a setting may have any value.
    while (size := draft.size()) > MAX_TEXT_BYTES and room > MIN_BUDGET_CHARS:
        room //= 2
        draft = _draft(view, room)
    pictures = await pictures_of(draft.rich, MAX_RESULT_BYTES - size - RESERVE_BYTES, execution.principal)
    text = _with_picture_notes(execution, draft, pictures)
    content: list[ContentBlock] = [TextContent(text=text), *pictures.blocks]
    if with_links:
        # An output shown as a picture or as text has no link: a client would treat it as a second output.
        named = pictures.left_out if len(pictures.left_out) > MAX_LINKS else []  # in the text, by one URI
        here = {*pictures.shown, *named, *(number for number, display in draft.rich if says_all(display.data))}
        shown = {uri(execution, f"outputs/{number}") for number in here}
        content += draft.links([info for info in draft.structured["outputs"] if info["uri"] not in shown])
    is_error = not draft.structured["success"] and execution.status != "running"
    return CallToolResult(content=content, structured_content=dict(draft.structured), is_error=is_error)


@dataclass
class _Draft:
    """A result without its pictures."""

    structured: ExecutionResult
    text: str
    rich: list[tuple[int, Display]]

    def links(self, outputs: list[OutputInfo]) -> list[ContentBlock]:
        """The first links; the text says where the others are."""
        changed = file_links(self.structured["files_changed"])
        found = [*cut_links(self.structured["truncated"] or {}), *output_links(outputs), *changed]
        room = MAX_LINKS_CHARS
        kept: list[ContentBlock] = []
        for link in found:
            room -= len(link.model_dump_json(by_alias=True, exclude_none=True))
            if room < 0:
                break
            kept.append(link)
        return kept

    def size(self) -> int:
        """Upper limit of the size in JSON bytes; estimated if there is only text, as in most results."""
        lists = self.rich or self.structured["files_changed"] or "return_value" in self.structured
        error = self.structured["error"]
        # Each text appears twice, and a control character takes six bytes.
        estimate = 12 * (len(self.text) + (len(error["value"]) if error else 0))
        if not lists and estimate < MAX_TEXT_BYTES:
            return estimate
        links = [link.model_dump(mode="json") for link in self.links(self.structured["outputs"])]
        in_meta = [self.structured["outputs"], self.structured["files_changed"]]  # repeated there for every client
        return len(json.dumps([self.structured, in_meta, self.text, links], ensure_ascii=False).encode())


def _draft(view: View, budget_chars: int) -> _Draft:
    execution, outputs = view.execution, view.execution.outputs
    traceback = execution.error.traceback if execution.error else ""
    shares = share(
        budget_chars,
        [view.chars("stdout"), view.chars("stderr"), outputs.result_chars, len(traceback)],
    )
    truncated: dict[str, Truncation] = {}
    stdout, shown_stdout = view.stream("stdout", shares[0], truncated)
    stderr, shown_stderr = view.stream("stderr", shares[1], truncated)
    result = outputs.result and cut_text(
        outputs.result, outputs.result_chars, shares[2], uri(execution, "result"), "result", truncated
    )
    traceback = cut_text(traceback, len(traceback), shares[3], uri(execution, "error"), "error", truncated)
    error = execution.error
    rich, background = view.displays(), view.background(budget_chars)
    structured: ExecutionResult = {
        "session_id": execution.session_id,
        "session_created": execution.session_created,
        "execution_id": execution.id,
        "execution_count": outputs.execution_count,
        "status": execution.status,
        "success": execution.status == "ok",
        "exit_code": execution.exit_code,
        "stdout": stdout,
        "stderr": unchanged_with_reports(stderr),
        "result": result,
        "error": error and {"name": error.name, "value": cut_middle(error.value, budget_chars), "traceback": traceback},
        "outputs": output_infos(execution, rich),
        "outputs_dropped": outputs.dropped_displays,
        "files_changed": changed_files(execution, view.host),
        "truncated": truncated or None,
        "state_lost": execution.state_lost,
        "restored": execution.restored_at,
        "background": background and unchanged_with_reports(background),
        "execution_time_ms": round(execution.execution_time_ms, 2),
        "queued_ms": round(execution.queued_ms, 2),
        **tool_call_fields.fields(execution, budget_chars),
    }
    if execution.call is not None:
        structured["return_value"] = execution.return_value
    if execution.status == "running":
        structured["cursor"] = str(view.end)
    elif installs.is_install(execution):
        found = installs.fields(installs.installation_of(execution))
        structured["installed"], structured["already_present"] = found["installed"], found["already_present"]
        if structured["error"] is not None and execution.status == "error":
            structured["error"]["error_code"] = installs.server_error(execution).error_code
    text = _text(view, structured, (shown_stdout, shown_stderr), rich, budget_chars)
    return _Draft(structured, text, rich)


def _with_picture_notes(execution: Execution, draft: _Draft, pictures: Pictures) -> str:
    """The text, with notes on displayed objects that are not in the result, and their URIs."""
    notes: list[str] = []
    for number, (width, height) in pictures.scaled.items():
        where = uri(execution, f"outputs/{number}")
        notes.append(f"[A picture of {width:,} x {height:,} pixels was made smaller; as it was: {where}]")
    if missing := pictures.left_out:
        count = len(missing) + len(pictures.shown)
        here = f": {len(pictures.shown):,} {'is' if len(pictures.shown) == 1 else 'are'} here; the others"
        if not pictures.shown:
            here = " could not be put into this result"
        if len(missing) <= MAX_LINKS:
            rest = "read_file of " + ", ".join(uri(execution, f"outputs/{number}") for number in missing)
        else:
            where = uri(execution, "outputs/N")
            rest = f'read_file("{where}"), N from {min(missing)} to {max(missing)}'
        notes.append(f"[{counted(count, 'picture')}{here}: {rest}]")
    if len(missing) <= MAX_LINKS and (count := len(draft.rich)) > len(draft.structured["outputs"]):
        where = uri(execution, "outputs/N")
        notes.append(
            f"[{count:,} objects were displayed, and the first {len(draft.structured['outputs'])} of them are listed. "
            f"Each can be read at {where}, with N from {draft.rich[0][0]} to {draft.rich[-1][0]}.]"
        )
    return "\n".join([draft.text, *notes])


def error_result(error: ServerError) -> CallToolResult:
    """A tool error: the text describes the problem and the next step."""
    return CallToolResult(
        content=[TextContent(text=error.to_text())], structured_content={"error": error.to_dict()}, is_error=True
    )


def _text(
    view: View, structured: ExecutionResult, streams: tuple[str, str], rich: list[tuple[int, Display]], budget: int
) -> str:
    execution = view.execution
    parts = [printed(streams[0].rstrip("\n"))]
    if stderr := streams[1].rstrip("\n"):
        parts.append(f"[stderr]\n{with_reports(stderr)}")
    parts += _displayed_text(execution, rich, budget // 4)
    if structured["result"] is not None and not (rich and is_empty(structured["result"])):
        parts.append(printed(structured["result"]))
    if execution.call is not None and structured["success"]:
        parts.append("return_value: " + printed(cut_value(execution.return_value, budget // 2)))
    if structured["outputs_dropped"]:
        lost = counted(structured["outputs_dropped"], "more displayed object was", "more displayed objects were")
        parts.append(f"[{lost} not kept]")
    if types := execution.outputs.dropped_types:
        lost = counted(types, "form of displayed objects was", "forms of displayed objects were")
        parts.append(f"[{lost} not kept: the name is not a MIME type, or there were too many]")
    if (error := structured["error"]) and "error_code" in error:
        parts.append(cut_middle(installs.server_error(execution).to_text(), budget))
    elif error:
        said = error["traceback"].rstrip("\n") or f"{error['name']}: {error['value']}"
        parts.append(printed(_unsaid(said, stderr)))
    if not any(parts) and rich:
        few = [each.data for _, each in rich[:MAX_NAMED_PICTURES]]
        kinds = [played(data) or best_type([kind for kind in data if kind != "text/plain"]) for data in few]
        parts.append(f"[displayed: {', '.join(kinds)}]")
    if background := view.background(budget):
        parts.append(background_note(background))
    parts += notes(view)
    text = "\n".join(part for part in parts if part)
    return text if is_seen(text) else f"{text}(no {'output' if view.since == Cursor() else 'newer output'})"


def _unsaid(error: str, stderr: str) -> str:
    """The error, or nothing if stderr ends with it, as for a magic that was used incorrectly."""
    return "" if f"\n{stderr}".endswith(f"\n{error}") else error


def background_note(text: str) -> str:
    return f"[From tasks of earlier cells: {with_reports(text)}]"


def _displayed_text(execution: Execution, rich: list[tuple[int, Display]], budget: int) -> list[str]:
    """The text form of displayed objects that are not pictures, such as tables."""
    parts: list[str] = []
    documents = 0
    for number, display in rich:
        documents += "text/html" in display.data
        text: Any = readable(display.data, look_at_html=documents <= MAX_DOCUMENTS)
        if display.data.keys() & set(headers.IMAGE_TYPES) or not text:
            continue
        if number == execution.outputs.result_number and text == display.data.get("text/plain"):
            continue  # it is already the result
        if budget < MIN_SHARE_CHARS:
            parts.append(f"[more was displayed than fits here: {uri(execution, f'outputs/{number}')} and following]")
            break
        whole = joined(text)
        text = cut_text(whole, len(whole), budget, uri(execution, f"outputs/{number}"), "", {}, whole=False)
        budget -= len(text)
        parts.append(printed(text))
    return parts
