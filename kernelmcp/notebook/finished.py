"""Restores an execution that is no longer in memory from the disk: from its cell's line in the journal, or from the
draft of one that ran when its server was killed.

A journal's content is bounded, and says where it was truncated. Blocking. Must not know sessions.
"""

import json
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelmcp.config.models import Policy
from kernelmcp.executions.execution import EXIT_CODES, GONE, Execution
from kernelmcp.executions.handler_call import HandlerCall
from kernelmcp.files.workspace import Entry
from kernelmcp.notebook.cells import MAX_CELL_BYTES
from kernelmcp.output.outputs import GuestError, Outputs
from kernelmcp.output.sanitize import as_dict, as_list, joined

# The form of `mint_id`'s ids.
_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")
MAX_DRAFT_BYTES = 4 * MAX_CELL_BYTES
NOT_KEPT = "[this output was too large to be kept with the transcript]"


def is_id(text: str) -> bool:
    """True if it can be an execution id: it becomes a file name."""
    return _ID.fullmatch(text) is not None


def from_journal(file: Path, execution_id: str, session_id: str, principal: str, policy: Policy) -> Execution | None:
    """The execution with a cell in the journal; None if it is not there. Raises `OSError`."""
    wanted = json.dumps(execution_id).encode()
    for line in _lines(file):
        if wanted in line and (found := from_line(line, execution_id, session_id, principal, policy)) is not None:
            return found
    return None


def from_line(line: bytes, execution_id: str, session_id: str, principal: str, policy: Policy) -> Execution | None:
    """The execution in a line of the journal, if it has this id: a guest can print any id."""
    cell = _parsed(line)
    facts = as_dict(as_dict(cell.get("metadata")).get("kernelmcp"))
    if facts.get("execution_id") != execution_id:
        return None
    outputs = Outputs(policy)
    count = cell.get("execution_count")
    outputs.execution_count = count if isinstance(count, int) else None
    _feed(outputs, cell.get("outputs"), facts)
    found = Execution(session_id, principal, joined(cell.get("source", "")), 0, outputs, id=execution_id)
    _take_facts(found, facts)
    return found


def from_draft(file: Path, session_id: str, principal: str, policy: Policy) -> Execution | None:
    """An execution that ran or waited when its server was killed. None if there is none. Raises `OSError`."""
    if not file.is_file() or file.stat().st_size > MAX_DRAFT_BYTES:
        return None
    header, *news = [_parsed(line) for line in _lines(file)] or [{}]
    if header.get("execution_id") != file.stem:
        return None
    outputs = Outputs(policy)
    for entry in news:
        if isinstance(kind := entry.get("kind"), str):
            outputs.feed(kind, as_dict(entry.get("content")))
    found = Execution(session_id, principal, str(header.get("code", "")), 0, outputs, id=file.stem)
    began = any(entry.get("began") for entry in news)
    words = f"The server ended while the cell ran. {GONE}" if began else "The server ended before the cell began."
    _end(found, "interrupted", began)
    found.error = GuestError("ServerStopped", words, "")
    found.created_at = _time(header.get("created_at"))
    elapsed = file.stat().st_mtime - found.created_at.timestamp()
    _set_times(found, 1000 * max(0.0, elapsed) if began else None, 0.0)
    return found


def missing_from(journal: Path, drafts: list[Path], session_id: str, principal: str, policy: Policy) -> list[Execution]:
    """The executions of drafts that are not in the journal. Raises `OSError`."""
    found = [from_draft(draft, session_id, principal, policy) for draft in drafts]
    return [
        one for one in found if one is not None and not from_journal(journal, one.id, session_id, principal, policy)
    ]


def _lines(file: Path) -> Iterator[bytes]:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return
        with file.open("rb") as stream:
            yield from stream
    except FileNotFoundError:
        return


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        return as_dict(json.loads(line))
    except (ValueError, RecursionError):  # the last line may be incomplete
        return {}


def _feed(outputs: Outputs, found: Any, facts: dict[str, Any]) -> None:
    """Restore the outputs, without our notes about what was left out. Displays keep their numbers, because the client
    has them in URIs."""
    places, notes = iter(as_list(facts.get("displays"))), as_list(facts.get("notes"))
    replaced = 0
    for output in (as_dict(each) for index, each in enumerate(as_list(found)) if index not in notes):
        kind = output.get("output_type")
        if kind == "stream":
            outputs.feed("stream", output | {"text": joined(output.get("text", ""))})
        elif kind in ("display_data", "execute_result"):
            place = next(places, None)
            while isinstance(place, int) and len(outputs.displays) < min(place, outputs.policy.max_outputs):
                outputs.feed("display_data", {"data": {"text/plain": NOT_KEPT}})
                replaced += 1
            outputs.feed(kind, output)
        elif kind == "error":
            outputs.feed("error", output)
    dropped = facts.get("dropped")
    outputs.dropped_displays = max(0, dropped - replaced) if isinstance(dropped, int) else 0
    for spool, total in zip((outputs.stdout, outputs.stderr), as_list(facts.get("chars")), strict=False):
        if isinstance(total, int):
            spool.dropped_chars = max(spool.dropped_chars, total - spool.chars)


def _take_facts(found: Execution, facts: dict[str, Any]) -> None:
    status = facts.get("status")
    _end(found, status if status in EXIT_CODES and status != "running" else "interrupted", bool(facts.get("lost")))
    found.error = found.outputs.error
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
