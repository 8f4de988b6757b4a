"""The package cache: content-addressed, shared by all kernels of a user, with a size limit (`room`).

    KERNELMCP_HOME/packages/wheels/<sha256>/<file>.whl    as downloaded
    KERNELMCP_HOME/packages/unpacked/<sha256>/            mounted in guests, with a stamp of its contents
    KERNELMCP_HOME/packages/bytecode/<sha256>/            of prepared and of large packages, mounted beside them
    KERNELMCP_HOME/packages/resolutions/<key>.json        pip's choice for a request, with its time
    KERNELMCP_HOME/packages/asked/<key>.json              the requests that a package came with as a dependency
    KERNELMCP_HOME/packages/built/<sha256>.json           the result of a source build (`sources.build_cache`)
    KERNELMCP_HOME/packages/tmp/                          work in progress, locked while its process lives
    KERNELMCP_HOME/packages/leases/                       the packages that each process uses

Everything is created in tmp/ and renamed into place as a whole; if two kernels create the same, one wins, and both
continue. An entry that does not match its stamp is recreated from its wheel; a wheel that does not match its name is
downloaded again. A cache that cannot be written still serves its contents. Blocking: call from a worker thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from kernelmcp_kernel.packages.cache_cap import STAMP, Room, delete_abandoned, size_of_files, trim
from kernelmcp_kernel.packages.package_errors import PackageInvalid, exhausted, unwritable
from kernelmcp_kernel.packages.unpack import unpack

_READ_BYTES = 1 << 20
# The largest of widely used packages, with a manual as description, have 300 kB.
MAX_METADATA_BYTES = 4 << 20
# No process takes that long between creating a staging folder and locking it, or to write a draft.
_UNLOCKED_SECONDS = 60.0
# packaging checks the parts of a wheel's name that it compares, but not its tags: these may contain a path.
_WHEEL_NAME = re.compile(r"[\w.+!-]+", re.ASCII)
# Errors that do not concern the cache.
_EXHAUSTED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# packages.max_cache_mb if it is not set.
_MAX_BYTES = 4096 << 20
# A resolution takes a kilobyte, and a guest can request many different ones.
_MAX_RESOLUTIONS = 2000
# A session that sleeps has its packages again only as long as it is known what they came with.
_MAX_ASKED = 10_000
_MAX_REQUESTS = 100  # of one package
# The sources of a wheel.
SOURCES = ("pypi", "pyodide", "local", "built", "stand-in")


@dataclass(frozen=True)
class Wheel:
    """A resolved wheel. `source`: one of SOURCES."""

    name: str
    version: str
    sha256: str
    file: str
    source: str


class Store:
    """One cache folder."""

    def __init__(self, root: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.root = root
        self.room = Room(root, max_bytes)
        self.unpacked = root / "unpacked"
        self._wheels = root / "wheels"
        self._resolutions = root / "resolutions"
        self._asked = root / "asked"
        self._tmp = root / "tmp"
        self._checked: set[str] = set()

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """A temporary working folder. Raises PackageError, also for an OSError of its user."""
        with contextlib.ExitStack() as stack:
            try:
                self._tmp.mkdir(parents=True, exist_ok=True, mode=0o700)
                folder = Path(tempfile.mkdtemp(dir=self._tmp))
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX)
                self._sweep()
                yield folder
            except OSError as error:
                if error.errno in _EXHAUSTED:  # pip's process does not start
                    raise exhausted(str(error.strerror)) from error
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                raise unwritable("is full" if full else f"cannot be written ({error.strerror})") from error

    def _sweep(self) -> None:
        """Delete what killed kernels left behind: folders whose lock is free, and drafts of resolutions."""
        for left in self._tmp.iterdir():
            with contextlib.suppress(OSError):
                found = left.lstat()
                if time.time() - found.st_mtime <= _UNLOCKED_SECONDS:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    delete_abandoned(left)
                else:
                    left.unlink()

    # -- wheels

    def add_wheel(self, file: Path, source: str) -> Wheel:
        """Move a wheel file into the cache. Raises PackageInvalid, PackageCacheError."""
        name, version = wheel_identity(file.name)
        wheel = Wheel(name, version, sha256_of(file), file.name, source)
        place = self.wheel_file(wheel)
        self.room.use([wheel.sha256])
        if self.has_wheel(wheel):
            return wheel
        with self.staging() as staging:
            folder = staging / "wheel"
            folder.mkdir()
            os.replace(file, folder / place.name)
            with self.room.making((folder / place.name).stat().st_size):
                self.put(folder, place.parent, lambda: self.has_wheel(wheel))
        return wheel

    def wheel_file(self, wheel: Wheel) -> Path:
        return self._wheels / wheel.sha256 / wheel.file

    def has_wheel(self, wheel: Wheel) -> bool:
        try:
            return sha256_of(self.wheel_file(wheel)) == wheel.sha256
        except OSError:
            return False

    def wheel_files(self) -> list[tuple[str, Path]]:
        """Every cached wheel with its expected sha256."""
        return [(file.parent.name, file) for file in self._wheels.glob("*/*.whl")]

    # -- unpacked packages

    def find(self, wheel: Wheel) -> Path | None:
        """The unpacked package, if it exists and is complete. Each is checked once per process."""
        folder = self.unpacked / wheel.sha256
        if wheel.sha256 not in self._checked or not folder.is_dir():
            if not is_whole(folder):
                return None
            self._checked.add(wheel.sha256)
        return folder

    def unpack(self, wheel: Wheel, max_bytes: int) -> Path | None:
        """Unpack a package from its cached wheel; None if the wheel is missing or damaged.

        Raises PackageInvalid, PackageTooLarge, PackageCacheError.
        """
        if found := self.find(wheel):
            return found
        if not self.has_wheel(wheel):
            return None
        with self.staging() as staging:
            folder = staging / "package"
            folder.mkdir()
            unpack(self.wheel_file(wheel), folder, max_bytes)
            _check_identity(folder, wheel)
            size = size_of_files(folder)
            write_stamp(folder, bytes=size)
            with self.room.making(size):
                self.put(folder, self.unpacked / wheel.sha256, lambda: self.find(wheel) is not None)
        return self.find(wheel)

    def put(self, made: Path, place: Path, is_good: Callable[[], bool]) -> None:
        """Rename a folder into place. An existing one is kept if it is good: another kernel was faster."""
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            os.rename(made, place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not is_good():
                os.rename(place, made.with_name(f"{made.name}.replaced"))
                os.rename(made, place)

    # -- bytecode

    def bytecode(self, sha256: str) -> Path | None:
        """The folder with a package's bytecode, or None."""
        folder = self.root / "bytecode" / sha256
        return folder if folder.is_dir() else None

    def add_bytecode(self, sha256: str, made: Path) -> None:
        """Move a folder with bytecode into the cache. Raises PackageCacheError, OSError."""
        with self.room.making(size_of_files(made)):
            self.put(made, self.root / "bytecode" / sha256, lambda: True)

    # -- resolutions

    def resolution(self, key: str, ttl_seconds: float | None) -> list[Wheel] | None:
        """The saved resolution of a request, if it is readable and not older than this; otherwise None."""
        try:
            found = json.loads((self._resolutions / f"{key}.json").read_text("utf-8"))
            if ttl_seconds is not None and not 0 <= time.time() - found["time"] < ttl_seconds:
                return None
            return [Wheel(**wheel) for wheel in found["wheels"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self, key: str, wheels: list[Wheel]) -> None:
        """Save a resolution. Does nothing if the cache cannot be written."""
        text = json.dumps({"time": time.time(), "wheels": [asdict(wheel) for wheel in wheels]})
        with contextlib.suppress(OSError):
            self._resolutions.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self._resolutions / f"{key}.json", text, self._tmp)
            trim(self._resolutions, _MAX_RESOLUTIONS)

    def asked(self, key: str) -> list[str]:
        """The saved requests that a package came with: the names in each, separated by spaces."""
        file = self._asked / f"{key}.json"
        with contextlib.suppress(OSError):
            os.utime(file)
        try:
            return list(map(str, json.loads(file.read_text("utf-8"))["asked"]))
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def remember_asked(self, came_with: Mapping[str, Iterable[Iterable[str]]]) -> None:
        """Save the names in the requests that each package came with. Does nothing if the cache cannot be written."""
        with contextlib.suppress(OSError), _alone(self._asked):
            for key, requests in came_with.items():
                known = self.asked(key)
                found = list(dict.fromkeys([*known, *(" ".join(sorted(names)) for names in requests)]))
                if len(found) > len(known):
                    text = json.dumps({"asked": found[-_MAX_REQUESTS:]})
                    replace_file(self._asked / f"{key}.json", text, self._tmp)
            trim(self._asked, _MAX_ASKED)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While this is held, nobody else changes what the folder's files say. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def replace_file(file: Path, text: str, drafts: Path) -> None:
    """Replace a file atomically. `drafts`: the folder for the draft, on the same file system. Raises OSError."""
    fd, draft = tempfile.mkstemp(dir=drafts)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(draft, file)
    except OSError:
        os.unlink(draft)
        raise


def wheel_identity(file: str) -> tuple[str, str]:
    """The name and version in a wheel's file name. Raises PackageInvalid."""
    try:
        if not _WHEEL_NAME.fullmatch(file):
            raise InvalidWheelFilename(file)
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise PackageInvalid(f"{file[:100]!r} is not the name of a wheel") from error
    return str(name), str(version)


def sha256_of(file: Path) -> str:
    """The sha256 of a file, in hex. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def metadata_file(folder: Path) -> Path | None:
    """The METADATA of an unpacked package; None if there are none, or several."""
    found = [info / "METADATA" for info in folder.glob("*.dist-info") if (info / "METADATA").is_file()]
    return found[0] if len(found) == 1 else None


def _check_identity(folder: Path, wheel: Wheel) -> None:
    """Check that a wheel's contents match its file name: packages are allowed, denied and remembered by name."""
    file = metadata_file(folder)
    name = file.parent.name.removesuffix(".dist-info").rpartition("-")[0] if file else ""
    if file is None or canonicalize_name(name) != canonicalize_name(wheel.name):
        raise PackageInvalid(f"{wheel.file} does not hold the package that its name says; install another version")
    if file.stat().st_size > MAX_METADATA_BYTES:
        raise PackageInvalid(f"{wheel.file} has metadata of {file.stat().st_size:,} bytes; install another version")


def write_stamp(folder: Path, **facts: int) -> None:
    """Describe the contents of a folder in a file in it, for `is_whole`. Raises OSError."""
    (folder / STAMP).write_text(json.dumps({"listing": _listing(folder), **facts}), "utf-8")


def is_whole(folder: Path) -> bool:
    """Return whether a folder matches its stamp."""
    try:
        stamp: Any = json.loads((folder / STAMP).read_text("utf-8"))
        return stamp["listing"] == _listing(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _listing(folder: Path) -> str:
    """A digest of names and sizes: enough to detect a missing or truncated file, in milliseconds. Raises
    PermissionError for files that others may write: their bytes cannot be trusted."""
    lines: list[str] = []
    for parent, _, files in os.walk(folder):
        check_own(os.lstat(parent))
        for name in files:
            path = os.path.join(parent, name)
            found = os.lstat(path)
            check_own(found)
            if name != STAMP:
                lines.append(f"{os.path.relpath(path, folder)} {found.st_size}")
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def check_own(found: os.stat_result) -> None:
    writable = found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode)
    if writable or found.st_uid not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, "others may write it")
