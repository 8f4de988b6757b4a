"""A home with many sessions of earlier servers, as they would have left it: records, files, and a notebook."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from kernelmcp.sessions.storage.record import Record


def store_sessions(home: Path, count: int) -> list[str]:
    """The names of the new sessions, the one that was used last first."""
    used = datetime.now(UTC) - timedelta(hours=1)
    names = [f"stored{number:05}" for number in range(count)]
    for number, name in enumerate(names):
        sandbox = f"0123abcd-{number:08x}"
        directory, workspace = home / "sessions" / name, home / "sandboxes" / sandbox / "workspace"
        directory.mkdir(parents=True)
        workspace.mkdir(parents=True)
        (workspace / "f").write_text(name)
        (directory / "notebook.jsonl").write_text("")
        (directory / "lock").touch()
        at = (used - timedelta(minutes=number)).isoformat()
        times = {"created_at": at, "last_used_at": at}
        Record(session_id=name, principal="local", sandboxes=[sandbox], execution_count=1, **times).write(directory)
    return names
