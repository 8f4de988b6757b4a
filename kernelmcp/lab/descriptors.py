"""The existing sessions, as the servers of this home describe them in their runtime directories (docs/lab.md).

The files are ours, but a disk may be damaged and another version may have written them: unknown content is omitted,
never an error. A server whose lock can be taken is dead, and its sessions are gone with it. Blocking. Must not know
Jupyter.
"""

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any, Literal

from kernelmcp.atomic import read_small
from kernelmcp.output.sanitize import as_dict

FORMAT = 1
MAX_DESCRIPTOR_BYTES = 64 * 1024
# For all servers together: reading this many takes some 50 ms.
MAX_SESSIONS = 10_000
MAX_ID_CHARS = 1000
CONTROL = "control.sock"
FOLDER = "sessions"
_KERNEL_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One session, as its server describes it."""

    kernel_id: str
    session_id: str
    created_at: str
    """ISO 8601, in UTC; empty if the file has none."""
    language: str
    directory: Path
    """The directory of its log."""
    control: Path
    """The socket that its server listens on."""
    connection_file: Path | None
    """The file of its current kernel process; None if it has none."""
    went_back_to: str = ""
    """The checkpoint that this process began with, if the session went back to it; otherwise empty."""

    @property
    def is_live(self) -> bool:
        return self.connection_file is not None


_OtherVersion = Literal["of another version"]
_OTHER_VERSION: _OtherVersion = "of another version"
_Stamp = tuple[int, int, int]


class Descriptors:
    """Reads the files repeatedly; an unchanged file is not read twice."""

    def __init__(self, runtime_root: Path, sessions: Path) -> None:
        self.left_out: list[str] = []
        """Sessions omitted by the last `read`, as sentences for a person."""
        self._root = runtime_root
        self._sessions = sessions.resolve()
        self._known: dict[Path, tuple[_Stamp, Descriptor | _OtherVersion | None]] = {}

    def read(self) -> dict[str, Descriptor]:
        """All sessions by kernel id. If two servers describe one session, the one that has a kernel for it counts."""
        found: dict[str, Descriptor] = {}
        seen: dict[Path, tuple[_Stamp, Descriptor | _OtherVersion | None]] = {}
        files = list(self._files())
        # The newest ones: files of live sessions were just written, and the number of stopped sessions is unlimited.
        for file, stamp in nlargest(MAX_SESSIONS, files, key=lambda one: one[1][1]):
            known = self._known.get(file)
            seen[file] = known if known is not None and known[0] == stamp else (stamp, self._read(file))
            one = seen[file][1]
            if isinstance(one, Descriptor) and (one.kernel_id not in found or not found[one.kernel_id].is_live):
                found[one.kernel_id] = one
        self._known = seen
        self.left_out = list(_left_out(len(files), sum(one == _OTHER_VERSION for _, one in seen.values())))
        return found

    def _files(self) -> Iterator[tuple[Path, tuple[int, int, int]]]:
        for server in _entries(self._root):
            entries = _entries(Path(server.path, FOLDER)) if _is_ours(server) else []
            # Only in this case: a starting server creates the folder after it has taken its lock.
            if not entries or not is_alive(Path(server.path)):
                continue
            for entry in entries:
                if entry.name.endswith(".json") and not entry.name.startswith("."):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    yield Path(entry.path), (status.st_ino, status.st_mtime_ns, status.st_size)

    def _read(self, file: Path) -> Descriptor | _OtherVersion | None:
        try:
            return self._parsed(as_dict(json.loads(read_small(file, MAX_DESCRIPTOR_BYTES))), file)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _parsed(self, found: dict[str, Any], file: Path) -> Descriptor | _OtherVersion | None:
        if found["format"] != FORMAT:
            return _OTHER_VERSION
        server = file.parents[1]
        kernel_id, session_id = found["kernel_id"], found["session_id"]
        connection = str(found["connection_file"] or "")
        directory = Path(found["directory"])
        if not _KERNEL_ID.fullmatch(kernel_id) or len(session_id) > MAX_ID_CHARS:
            return None
        if not directory.resolve().is_relative_to(self._sessions):
            return None  # a server of another home
        if connection and not Path(connection).resolve().is_relative_to(server.resolve()):
            return None
        is_live = found["state"] == "live" and connection != ""
        return Descriptor(
            kernel_id,
            str(session_id),
            str(found.get("created_at", ""))[:100],
            str(found.get("language", "python"))[:100],
            directory,
            server / CONTROL,
            Path(connection) if is_live else None,
            str(found.get("went_back_to") or "")[:MAX_ID_CHARS],
        )


def _left_out(files: int, other_version: int) -> Iterator[str]:
    if files > MAX_SESSIONS:
        yield f"Not shown: {files - MAX_SESSIONS:,} sessions; Lab shows the {MAX_SESSIONS:,} that changed last."
    if other_version:
        yield (
            f"Not shown: sessions of a server of another version of kernelmcp ({other_version:,}). Start that server "
            "again with this version."
        )


def is_alive(server: Path) -> bool:
    """True if the server of this runtime directory lives, that is, holds its lock."""
    try:
        fd = os.open(server / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, and only for a moment: two programs that check at once do not mistake each other for the server.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_ours(entry: "os.DirEntry[str]") -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
