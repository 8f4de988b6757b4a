"""What is told about a session: get_sessions and the resources of sessions. Looking starts nothing and takes nothing.

Above: tools, resources. Below: registry, usage.
"""

from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from kernelmcp import models
from kernelmcp.records import Record
from kernelmcp.registry import Caller, Registry
from kernelmcp.sessions import Session, State
from kernelmcp.usage import directory_bytes, tree_memory_mb


async def describe(registry: Registry, caller: Caller, session_id: str | None = None) -> list[models.SessionInfo]:
    """The caller's sessions, those of earlier servers too; or one. Raises `SessionNotFound` when there is none such."""
    opened = [_Glance.of(session) for session in registry.all(caller)]
    found = await anyio.to_thread.run_sync(_describe_all, opened, registry, caller)
    if session_id is None:
        return found
    one = [info for info in found if info["session_id"] == session_id]
    # When there is none, `get` says what is wrong with the name, or with the session.
    return one or [await anyio.to_thread.run_sync(_describe, _Glance.of(registry.get(caller, session_id)))]


@dataclass(frozen=True)
class _Glance:
    """A session at one moment, for a thread that looks closer."""

    record: Record
    state: State
    kernel_pid: int | None
    workspace: Path | None

    @classmethod
    def of(cls, session: Session) -> "_Glance":
        return cls(session.record.model_copy(), session.state, session.kernel_pid, session.workspace)


def _describe(session: _Glance) -> models.SessionInfo:
    """Blocking: it looks at the file system and at /proc."""
    info = _describe_record(session.record)
    info["state"] = session.state
    info["memory_mb"] = tree_memory_mb(session.kernel_pid)
    info["workspace_bytes"] = directory_bytes(session.workspace)
    return info


def _describe_all(opened: list[_Glance], registry: Registry, caller: Caller) -> list[models.SessionInfo]:
    found = [_describe(session) for session in opened]
    names = {session.record.session_id for session in opened}
    for record in registry.stored(caller):
        if record.session_id in names:
            continue
        info = _describe_record(record)
        info["workspace_bytes"] = sum(map(directory_bytes, registry.workspaces(record)))
        found.append(info)
    return found


def _describe_record(record: Record) -> models.SessionInfo:
    return {
        "session_id": record.session_id,
        "state": "stopped",
        "language": record.language,
        "flavor": record.flavor,
        "created_at": record.created_at,
        "last_used_at": record.last_used_at,
        "execution_count": record.execution_count,
        "memory_mb": 0.0,
        "workspace_bytes": 0,
    }
