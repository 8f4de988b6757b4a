"""Converts an execution to a line of its session's log, and back. Must not know sessions."""

import time
from datetime import UTC, datetime
from typing import Any

from kernelmcp.cells import event, line
from kernelmcp.cells.cell import GuestError, Outputs
from kernelmcp.executions.execution import EXIT_CODES, GONE, STOPPED, Execution
from kernelmcp.executions.handler_call import HandlerCall
from kernelmcp.files.workspace import Entry
from kernelmcp.output.sanitize import as_list, clean


def to_line(execution: Execution) -> bytes:
    """The line of an ended execution."""
    return line.to_line(execution.id, execution.code, _facts(execution), execution.outputs)


def _facts(execution: Execution) -> dict[str, Any]:
    """The facts of a result besides the outputs, so that a later server can repeat it."""
    facts: dict[str, Any] = {
        **({"request": execution.request_id} if execution.request_id else {}),
        "status": execution.status,
        "created_at": execution.created_at.isoformat(timespec="milliseconds"),
        "ms": None if execution.started is None else round(execution.execution_time_ms, 2),
        "queued_ms": round(execution.queued_ms, 2),
    }
    if execution.error is not None and execution.error.name == STOPPED:
        facts["stopped"] = True
    if execution.client is not None:
        facts |= {"by": "person", "client": execution.client}
    if execution.state_lost:
        facts["lost"] = True
    if execution.cancelled_as_task:
        facts["cancelled_as_task"] = True
    if execution.call is not None and execution.status == "ok":
        value = execution.return_value
        is_small = line.size(value) <= line.MAX_METADATA_BYTES
        facts["return_value"] = value if is_small else line.VALUE_NOT_KEPT
    files = [[file.path, file.size] for file in execution.files_changed if clean(file.path) == file.path]
    while files and line.size(files) > line.MAX_METADATA_BYTES:
        files = files[: len(files) // 2]
    if files:
        facts["files"] = files
    return facts


def from_line(ended: bytes, execution_id: str, session_id: str, principal: str) -> Execution:
    """The execution of a line."""
    code, facts, outputs = line.from_line(ended)
    found = Execution(session_id, principal, code, 0, outputs, id=execution_id)
    status = facts.get("status")
    _end(found, status if status in EXIT_CODES and status != "running" else "interrupted", bool(facts.get("lost")))
    found.error = outputs.error
    found.cancelled_as_task = facts.get("cancelled_as_task") is True
    found.client = facts["client"] if isinstance(facts.get("client"), str) else None
    found.created_at = _time(facts.get("created_at"))
    _set_times(found, facts.get("ms"), facts.get("queued_ms"))
    if "return_value" in facts:
        found.call, found.return_value = HandlerCall({}), facts["return_value"]
    for entry in as_list(facts.get("files")):
        match entry:
            case [str() as path, int() as size]:
                found.files_changed.append(Entry(path, size, 0))
            case _:
                pass
    return found


def from_events(lines: list[bytes], execution_id: str, session_id: str, principal: str, last_at: float) -> Execution:
    """An execution that ran or waited when its server was killed. `last_at`: when its log was last written, in seconds
    since the epoch."""
    found, began = _of_events(lines, execution_id, session_id, principal)
    words = f"The server ended while the cell ran. {GONE}" if began else "The server ended before the cell began."
    _end(found, "interrupted", began)
    found.error = found.outputs.error = GuestError(STOPPED, words, "")
    elapsed = 1000 * max(0.0, last_at - found.created_at.timestamp())
    _set_times(found, *((elapsed, 0.0) if began else (None, elapsed)))
    return found


def cancelled(lines: list[bytes], execution_id: str, session_id: str, principal: str) -> Execution:
    """An execution that ended before it began."""
    found, _ = _of_events(lines, execution_id, session_id, principal)
    found.cancelled_as_task = event.parsed(lines[-1]).get("as_task") is True
    _end(found, "interrupted", lost=False)
    words = "The execution ended before it began: it was cancelled, or no kernel could start."
    found.error = found.outputs.error = GuestError("Cancelled", words, "")
    _set_times(found, None, 0.0)
    return found


def running(lines: list[bytes], execution_id: str, session_id: str, principal: str) -> Execution:
    """An execution that runs or waits in another server, as its log has it now."""
    found, began = _of_events(lines, execution_id, session_id, principal)
    found.is_elsewhere = True
    found.submitted = time.monotonic() - max(0.0, time.time() - found.created_at.timestamp())
    found.started = found.submitted if began else None
    return found


def _of_events(lines: list[bytes], execution_id: str, session_id: str, principal: str) -> tuple[Execution, bool]:
    """The execution, and whether it has begun."""
    outputs, began, client = Outputs(), False, None
    header: dict[str, Any] = {}
    for found in map(event.parsed, lines):
        match found.get("e"):
            case "submitted":
                header = found
            case "began":
                began = True
                client = str(found.get("client") or "") if found.get("by") == "person" else None
            case "output":
                for op in as_list(found.get("ops")):
                    outputs.apply(as_list(op))
            case _:
                pass
    found = Execution(session_id, principal, str(header.get("code", "")), 0, outputs, id=execution_id)
    found.client = client
    found.created_at = _time(header.get("at"))
    found.request_id = header["request"] if isinstance(header.get("request"), str) else None
    return found, began


def _end(found: Execution, status: Any, lost: bool) -> None:
    """Like `finish`, but without notifying listeners again."""
    found.status, found.state_lost, found.logged_to_client = status, lost, True
    found.done.set()


def _set_times(found: Execution, ms: Any, queued_ms: Any) -> None:
    """Set times on a separate clock that starts at the submission. `ms` is None if it did not begin."""
    found.submitted = 0.0
    began = queued_ms / 1000 if isinstance(queued_ms, int | float) else 0.0
    found.started = began if isinstance(ms, int | float) else None
    found.ended = began + (ms / 1000 if isinstance(ms, int | float) else 0.0)


def _time(text: Any) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (TypeError, ValueError):
        return datetime.now(UTC)
