"""The server's directories on disk: persistent ones (home) and those of one server process (runtime).

    home/sessions/<session>/     session.json, notebook.ipynb, notebook.jsonl, lock; outputs/
    home/trash/<session>/        the same for a long-unused session (sessions/storage/old_sessions.py)
    home/skills/<principal>/     skills that a person has promoted (upstreams/skills.py)
    home/connections/            MCP connections that another server may continue (http/agreed_connections.py)
    home/secret                  the secret of the servers that share the home (home_secret.py)
    home/version                 the format of the home: a program that knows only earlier ones does not touch it
    home/sandboxes/<random>/     workspace/ and tmp/ of one kernel (docs/design.md 4); beside it <random>-offered/
    home/requests/               calls that a balancer may repeat (mcp_server/tools/repeated_calls.py)
    home/servers/                of servers that share the home (sessions/fleet/)
    runtime/<random>/            sockets and connection files of one server process, lock

Everything is 0700; who has what, locks tell (locks.py).
Must not know kernels or MCP.
"""

import errno
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from kernelmcp.atomic import read_small, replace_text
from kernelmcp.errors import ConfigurationError, ServerError, StorageFailed
from kernelmcp.files.epochs import place_of
from kernelmcp.files.home_secret import SECRET_BYTES, home_secret
from kernelmcp.files.locks import LOCK_FILE, Lock, lock_session
from kernelmcp.files.safe_open import delete_for_good, delete_tree, empty_tree
from kernelmcp.files.tree_copy import FILES, Copied, copy_tree, save_checkpoint
from kernelmcp.files.workspace import Quota

# A Unix socket's path has at most 108 bytes with the final NUL, on macOS 104; ours end in "/<kernel>-5".
MAX_RUNTIME_PATH_BYTES = 90
LOCK_SETTLE_SECONDS = 2.0
# The format of a home. Increase it if an earlier version would lose or misread data.
FORMAT = 2  # since then a running cell has lines in its session's log
SHARED_FORMAT = 3  # of servers with a slot: a session may be in an epoch (epochs.py)
FORMAT_FILE = "version"
# The names that `open_home` and `new_sandbox` generate.
RUNTIME_NAME = re.compile(r"[0-9a-f]{8}")
SANDBOX_NAME = re.compile(r"[0-9a-z]+-[0-9a-z]+")
# A session's record and its copy.
RECORD_FILES = ("session.json", "session.copy.json")
# The directory of connections that another server may continue.
CONNECTIONS = "connections"


class SandboxDirectory:
    """The parent of the two directories that a kernel's guest may write: workspace and tmp.

    The kernel removes its owner's write permission while a guest may live, because the guest runs as that user; methods
    that change it here restore that permission for a moment (`_unsealed`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.workspace = path / "workspace"

    @property
    def offered(self) -> Path:
        # Beside it: files of offered MCP servers, which the kernel process creates and its guests read.
        return self.path.with_name(f"{self.path.name}-offered")

    def make(self) -> None:
        for directory in (self.path, self.workspace, self.path / "tmp"):
            directory.mkdir(mode=0o700)  # one by one: the mode applies to the last directory only

    @property
    def is_whole(self) -> bool:
        """True if the workspace is a directory that this process can reach."""
        return os.path.isdir(self.workspace) and not os.path.islink(self.workspace)

    def take_workspace_of(self, other: "SandboxDirectory") -> None:
        """Move the files of another one here: one rename over an empty directory, atomic within a file system."""
        with other._unsealed(), self._unsealed():
            os.rename(other.workspace, self.workspace)

    def take_tmp_of(self, other: "SandboxDirectory") -> None:
        """The same for the guest's temporary files."""
        with other._unsealed(), self._unsealed():
            os.rename(other.path / "tmp", self.path / "tmp")

    def copy_from(self, workspace: Path, tmp: Path, quota: Quota) -> None:
        """Replace the files, of which there are none yet, by copies. Raises `ResourceLimitExceeded`, OSError."""
        owner = self.workspace.stat().st_uid
        with self._unsealed():
            for source, target in ((workspace, self.workspace), (tmp, self.path / "tmp")):
                draft = target.with_name(f".{target.name}")
                copied = copy_tree(source, draft, quota, owner=owner)
                try:
                    # A guest that starts meanwhile may access what is below a directory only if it is there then.
                    os.rename(draft, target)
                except OSError:
                    delete_tree(draft)
                    raise
                quota = quota.without(copied.total_bytes, copied.entries)

    def save_checkpoint(self, folder: Path, quota: Quota, earlier: Path | None) -> Copied:
        """Copy the files to an existing folder; unchanged ones are shared with an `earlier` one. Raises as `copy_from`
        does."""
        copied = Copied()
        for source in (self.workspace, self.path / "tmp"):
            base = earlier / source.name if earlier is not None else None
            copied += save_checkpoint(source, folder / source.name, quota, base=base)
            quota = quota.without(copied.total_bytes, copied.entries)
        return copied

    def copy_from_checkpoint(self, folder: Path, quota: Quota) -> None:
        """As `copy_from`, from what `save_checkpoint` has copied."""
        self.copy_from(folder / "workspace" / FILES, folder / "tmp" / FILES, quota)

    def empty_workspace(self) -> None:
        """Delete everything in workspace and tmp; recreate what is missing or damaged. Raises OSError if
        something cannot be deleted."""
        if not self.is_whole:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._unsealed():
                delete_tree(self.workspace)
                self.workspace.mkdir(mode=0o700)
        empty_tree(self.workspace)
        if not (self.path / "tmp").is_dir():
            with self._unsealed():
                (self.path / "tmp").mkdir(mode=0o700)
        empty_tree(self.path / "tmp")  # it counts against the quota, and nothing else empties it
        empty_tree(self.workspace)  # a running guest may have moved files there

    def delete(self) -> None:
        """Delete as much as possible; raises no error."""
        with suppress(OSError):
            self.path.chmod(0o700)
        delete_tree(self.path)
        delete_tree(self.offered)

    def delete_for_good(self) -> None:
        """Delete everything. Raises OSError if something cannot be deleted."""
        with suppress(FileNotFoundError):
            self.path.chmod(0o700)
        delete_for_good(self.path)
        delete_for_good(self.offered)

    @contextmanager
    def _unsealed(self) -> Iterator[None]:
        mode = stat.S_IMODE(self.path.stat().st_mode)
        self.path.chmod(mode | 0o200)
        try:
            yield
        finally:
            self.path.chmod(mode)


class Home:
    """The directories of one server process."""

    def __init__(
        self, root: Path, runtime: Path, guest_uid: int | None = None, shared_secret: bytes | None = None
    ) -> None:
        self._guest_uid = guest_uid
        self.root = root
        self.secret = shared_secret or secrets.token_bytes(SECRET_BYTES)
        """Of all servers that share this home, or of this process if it is the only one."""
        self.runtime = runtime
        self.sessions = root / "sessions"
        self.trash = root / "trash"
        self.sandboxes = root / "sandboxes"
        self.skills = root / "skills"
        self.servers = root / "servers"
        self.owner_lock = self.sandboxes / f".{runtime.name}.lock"
        """Beside the sandbox directories: servers with other runtime roots may share this home."""

    def delete_runtime(self) -> None:
        """Delete the files that only this process needs, at its end, as far as that is possible."""
        shutil.rmtree(self.runtime, ignore_errors=True)
        with suppress(OSError):
            self.owner_lock.unlink()

    def check(self) -> None:
        """Raises `StorageFailed` if the home was moved, deleted or cut off while this server runs."""
        try:
            if stat.S_ISDIR(self.sandboxes.stat().st_mode):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as exc:  # a network's disk that is away, a ticket that has expired
            raise StorageFailed(
                f"the server's home directory cannot be used now: {exc.strerror}",
                "Try again later; the operator should check its disk and its permissions.",
                path=str(self.root),
            ) from exc
        raise StorageFailed(
            "the server's home directory no longer exists",
            "The operator must restore it, or restart the server, which creates a new one.",
            path=str(self.root),
        )

    def new_sandbox(self) -> SandboxDirectory:
        """Create an empty sandbox directory. Raises OSError."""
        # The name contains that of this server's runtime directory, so that a sweep can find the owner.
        sandbox = SandboxDirectory(self.sandboxes / f"{self.runtime.name}-{secrets.token_hex(4)}")
        sandbox.make()
        if self._guest_uid is not None:
            os.chown(sandbox.workspace, self._guest_uid, self._guest_uid)  # the kernel process does the rest
        return sandbox

    def sandbox(self, name: str) -> SandboxDirectory:
        """The sandbox directory with this name. Raises ValueError for anything else: `..` would be a path."""
        if not SANDBOX_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a sandbox directory")
        return SandboxDirectory(self.sandboxes / name)

    def sweep_sandboxes(self) -> None:
        """Delete the sandbox directories of ended servers, except those that a session's record names. Reads every
        record. Raises OSError."""
        # Listed first: no new record can name the directory of an ended server.
        left = [one for one in self.sandboxes.iterdir() if one.is_dir() and self._is_left(one)]
        recorded, damaged = _recorded_sandboxes(self) if left else (set[str](), False)
        for directory in left:
            if directory.name in recorded:
                continue
            if damaged and any((directory / "workspace").glob("*")):
                continue  # a damaged record may have named it
            SandboxDirectory(directory).delete()
        for lock_file in self.sandboxes.glob(".*.lock"):
            if _is_dead(lock_file):
                lock_file.unlink(missing_ok=True)

    def _is_left(self, sandbox: Path) -> bool:
        """True if the server that created it has ended."""
        owner_lock = self.sandboxes / f".{sandbox.name.partition('-')[0]}.lock"
        return not owner_lock.exists() or _is_dead(owner_lock)

    def trashed(self) -> list[Path]:
        """The sessions in the trash. Raises OSError."""
        return list(self.trash.iterdir()) if self.trash.is_dir() else []

    def restore(self, name: str) -> bool:
        """Restore a session from the trash. False if it is not there, or cannot be restored."""
        try:
            lock = lock_session(place_of(self.trash / name), name, make=False)
        except (ServerError, OSError):
            return False
        try:
            os.rename(self.trash / name, self.sessions / name)
        except OSError:
            return False
        finally:
            lock.close()
        return True


def runtime_root_of(configured: Path | None) -> Path:
    """The parent of the runtime directories of this user's servers."""
    if configured is not None:
        return configured
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/"):  # the specification says that a relative one is invalid
        return Path(base) / "kernelmcp"
    return Path(tempfile.gettempdir()) / f"kernelmcp-{os.getuid()}"


def private_directory(path: Path, mode: int = 0o700) -> None:
    """Create it, or ensure that only we have access. Raises `ConfigurationError`."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{os.fsencode(path)!r} is a path that is not UTF-8", "Set server.home (KERNELMCP_HOME) to another one."
        ) from None
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # the mode of created parents follows the umask
    except OSError as exc:
        raise ConfigurationError(
            f"{path} cannot be made: {exc.strerror}",
            "Set server.home (KERNELMCP_HOME) or server.runtime to another directory.",
        ) from exc
    found = path.lstat()
    if not path.is_dir() or path.is_symlink() or found.st_uid != os.getuid():
        raise ConfigurationError(
            f"{path} does not belong to this user",
            "Set server.home (KERNELMCP_HOME) or server.runtime to one that is.",
        )
    try:
        path.chmod(mode)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as exc:
        raise ConfigurationError(
            f"{path} cannot be written: {exc.strerror}", "Set server.home (KERNELMCP_HOME) to a writable directory."
        ) from exc


@contextmanager
def open_home(
    root: Path, runtime_root: Path | None = None, *, guest_uid: int | None = None, is_shared: bool = False
) -> Iterator[Home]:
    """Create the directories, take the process's lock, and delete the runtime directories of ended servers.

    `guest_uid`: if we are root, guests are another user, who must be able to traverse to a sandbox directory, and may
    list nothing on the way. `is_shared`: other servers use the home too, and continue each other's connections.
    """
    if os.geteuid() != 0:
        guest_uid = None
    runtime_root = runtime_root_of(runtime_root)
    _check_format(root)
    for directory in (root, root / "sandboxes"):
        private_directory(directory, 0o700 if guest_uid is None else 0o711)
    for directory in (root / "sessions", runtime_root, *([root / CONNECTIONS] if is_shared else [])):
        private_directory(directory)
    _note_format(root, SHARED_FORMAT if is_shared else FORMAT)
    shared_secret = home_secret(root) if is_shared else None
    runtime = runtime_root / secrets.token_hex(4)
    if len(os.fsencode(runtime)) > MAX_RUNTIME_PATH_BYTES:
        raise ConfigurationError(
            f"{runtime_root} is too long a path for sockets",
            "Set server.runtime to a shorter path (KERNELMCP_SERVER__RUNTIME).",
        )
    runtime.mkdir(mode=0o700)
    home = Home(root, runtime, guest_uid, shared_secret)
    with ExitStack() as stack:
        stack.callback(home.delete_runtime)
        for file in (runtime / LOCK_FILE, home.owner_lock):
            stack.enter_context(_held(file))
        _sweep_runtime(runtime_root, runtime)
        yield home


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """Hold a lock, and ensure that nobody else can take it. Raises `ConfigurationError`."""
    with closing(Lock(file)) as lock:
        with closing(Lock(file)) as other:
            try:
                holds = lock.try_acquire() and not other.try_acquire()
            except OSError:
                holds = False
        if not holds:
            raise ConfigurationError(
                f"locks do not work in {file.parent}: two servers would take each other's sessions",
                "Set server.home (KERNELMCP_HOME) and server.runtime to directories on a local disk.",
            )
        yield


def _check_format(root: Path) -> None:
    """Raises `ConfigurationError` if a later version has used this home."""
    try:
        found = int(read_small(root / FORMAT_FILE))
    except (OSError, ValueError):
        return  # missing or damaged, which says nothing about the rest of the home
    if found > SHARED_FORMAT:
        raise ConfigurationError(
            f"{root} was used by a later version of kernelmcp, and this version would lose data that it does not know",
            "Upgrade kernelmcp, or set server.home (KERNELMCP_HOME) to another directory.",
        )


def _note_format(root: Path, number: int) -> None:
    try:
        if int(read_small(root / FORMAT_FILE)) >= number:
            return
    except (OSError, ValueError):
        pass
    with suppress(OSError):  # a home on a full disk is still usable
        replace_text(root / FORMAT_FILE, f"{number}\n")


def _is_dead(lock_file: Path) -> bool:
    try:
        # A server that is just starting has created its lock file but may not hold it yet. The clock may have been
        # ahead.
        if abs(time.time() - lock_file.stat().st_mtime) < LOCK_SETTLE_SECONDS:
            return False
        lock = Lock(lock_file)
    except OSError:
        return False
    try:
        return lock.try_acquire()
    finally:
        lock.close()


def _sweep_runtime(root: Path, own: Path) -> None:
    for directory in root.iterdir():
        if directory == own or not RUNTIME_NAME.fullmatch(directory.name):
            continue  # somebody else's, where the folder is not ours alone
        if (directory / LOCK_FILE).exists() and _is_dead(directory / LOCK_FILE):
            shutil.rmtree(directory, ignore_errors=True)


def _recorded_sandboxes(home: Home) -> tuple[set[str], bool]:
    """The sandbox directories that the records of all sessions name, and whether any record is damaged."""
    # The trash is listed before and after: a session that moves meanwhile appears in one of the lists.
    names = [one.name for one in (*home.trashed(), *home.sessions.iterdir(), *home.trashed())]
    recorded: set[str] = set()
    damaged = False
    for name in dict.fromkeys(names):
        # It may also move between two checks.
        found = [_named_in(place / name) for place in (home.sessions, home.trash, home.sessions)]
        recorded.update(*(one or () for one in found))
        damaged = damaged or None in found
    return recorded, damaged


def _named_in(session: Path) -> set[str] | None:
    """The sandbox directories that a session's record and its copy name. None if both are damaged."""
    found: set[str] | None = None
    damaged = False
    for name in RECORD_FILES:
        try:
            record: Any = json.loads(read_small(place_of(session) / name))
            names: Any = record["sandboxes"]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            damaged = True
            continue
        if isinstance(names, list):
            found = (found or set[str]()) | set(map(str, cast("list[Any]", names)))
        else:
            damaged = True
    return None if found is None and damaged else found or set()
