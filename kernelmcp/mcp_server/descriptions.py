"""Descriptions of sessions, for get_sessions and the resources. Reading starts nothing and changes nothing."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio.to_thread

from kernelmcp.errors import InvalidArgument
from kernelmcp.mcp_server import schemas
from kernelmcp.sessions.caller import Caller
from kernelmcp.sessions.life import PublicState as State
from kernelmcp.sessions.registry import Registry
from kernelmcp.sessions.session import Session
from kernelmcp.sessions.storage.record import Record
from kernelmcp.sessions.usage import directory_bytes, tree_memory_mb

DEFAULT_PAGE = 50
MAX_PAGE = 500


async def describe(registry: Registry, caller: Caller, session_id: str) -> schemas.SessionInfo:
    """One of the caller's sessions, including those of an earlier server. Raises `SessionNotFound`."""
    async with registry.stored.searches.turn(caller.principal):
        stored = await anyio.to_thread.run_sync(registry.stored.record, caller, session_id)
        if stored is not None and registry.find_open(caller.principal, session_id) is None:
            return await anyio.to_thread.run_sync(_describe_stored, registry, stored)
        # If there is none, `get` raises an error about the name, or the session.
        return await anyio.to_thread.run_sync(_describe, _Moment.of(registry.get(caller, session_id)))


async def describe_all(
    registry: Registry, caller: Caller, limit: int = DEFAULT_PAGE, cursor: str | None = None
) -> schemas.SessionList:
    """A page of the caller's sessions, including those of earlier servers, most recently used first. Raises
    `InvalidArgument` for what is no cursor of a page."""
    before = _parsed(cursor) if cursor else None
    async with registry.stored.searches.turn(caller.principal):
        opened = [_Moment.of(session) for session in registry.all(caller)]
        return await anyio.to_thread.run_sync(_describe_page, opened, registry, caller, limit, before)


@dataclass(frozen=True)
class _Moment:
    """A snapshot of a session, for a thread that reads the details."""

    record: Record
    state: State
    kernel_pid: int | None
    workspace: Path | None
    first: str | None
    """The id of the execution that runs, or is next."""

    @classmethod
    def of(cls, session: Session) -> "_Moment":
        return cls(
            session.record.model_copy(),
            session.state,
            (session.kernel.pid or None) if session.kernel else None,
            session.files.workspace,
            session.queue.first.id if session.queue.first else None,
        )


def _describe(session: _Moment) -> schemas.SessionInfo:
    """Blocking: it reads the file system and /proc."""
    info = _describe_record(session.record)
    info["state"] = session.state
    info["memory_mb"] = tree_memory_mb(session.kernel_pid)
    info["workspace_bytes"] = directory_bytes(session.workspace)
    if session.first is not None:
        info["running"] = session.first
    return info


def _describe_page(
    opened: list[_Moment], registry: Registry, caller: Caller, limit: int, before: str | None
) -> schemas.SessionList:
    known = {session.record.session_id: session for session in opened}
    records = {record.session_id: record for record in registry.stored.records(caller)}
    records |= {name: session.record for name, session in known.items()}
    everything = sorted(records.values(), key=_place, reverse=True)
    rest = [record for record in everything if before is None or _place(record) < before]
    page = rest[:limit]
    return {
        "sessions": [
            _describe(known[record.session_id]) if record.session_id in known else _describe_stored(registry, record)
            for record in page
        ],
        "total": len(everything),
        "next_cursor": _place(page[-1]) if len(rest) > limit else None,
    }


def _place(record: Record) -> str:
    """The position of a session in the list: a cursor that stays valid if others are used, created or deleted."""
    return _at(record.last_used_at, record.session_id)


def _at(last_used_at: str, session_id: str) -> str:
    return f"{datetime.fromisoformat(last_used_at).astimezone(UTC).isoformat()}~{session_id}"


def _parsed(cursor: str) -> str:
    """Raises InvalidArgument for what is no position."""
    try:
        if _at(*cursor.split("~")) == cursor:
            return cursor
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgument(
        f"{cursor[:100]!r} is not a cursor of get_sessions",
        "Use next_cursor of the last page, or omit it.",
        argument="cursor",
    )


def _describe_stored(registry: Registry, record: Record) -> schemas.SessionInfo:
    info = _describe_record(record)
    info["workspace_bytes"] = sum(map(directory_bytes, registry.stored.workspaces(record)))
    return info


def _describe_record(record: Record) -> schemas.SessionInfo:
    info: schemas.SessionInfo = {
        "session_id": record.session_id,
        "state": "stopped",
        "language": record.language,
        "flavor": record.flavor,
        "created_at": record.created_at,
        "last_used_at": record.last_used_at,
        "execution_count": record.execution_count,
        "memory_mb": 0.0,
        "workspace_bytes": 0,
        "checkpoints": [
            {
                "name": each.name,
                "created_at": each.created_at,
                "execution_count": each.execution_count,
                "size_bytes": each.size_bytes,
            }
            for each in record.checkpoints
        ],
    }
    if record.tools_called:
        info["tools_called"], info["tokens_saved"] = record.tools_called, record.tokens_saved
    return info
