"""An append-only file of lines: written lines stay, and a damaged one does not affect the others.

Blocking.
"""

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from kernelmcp.atomic import replace

log = structlog.get_logger(__name__)


class Journal:
    """The lines of one file. `size` is its length in bytes up to the last complete line; the rest is cut off.

    An existing file is first begun and then checked; lines can be appended in between."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.size = 0

    def begin(self, max_bytes: int) -> bool:
        """Find the end of the file, which takes no time. A file larger than `max_bytes` is put aside. False if the file
        ends within a line: then nothing may be appended before `check`."""
        self.size = 0
        try:
            found = self.file.lstat()
        except FileNotFoundError:
            return True
        if not stat.S_ISREG(found.st_mode):
            log.error("a journal is not a regular file, it is put aside", file=str(self.file))
            put_aside(self.file)
            return True
        if found.st_size > max_bytes:
            log.error("a journal is far too large, it is put aside", file=str(self.file))
            put_aside(self.file)
            return True
        self.size = found.st_size
        if not self.size:
            return True
        with self.file.open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            return stream.read() == b"\n"

    def check(self, is_good: Callable[[bytes], bool]) -> set[int]:
        """The numbers of the damaged lines. Lines that are appended meanwhile are not checked."""
        return {n for n, line in enumerate(self._raw()) if not line.endswith(b"\n") or not is_good(line)}

    def repair(self, damaged: set[int]) -> None:
        """Move these lines to `<name>.damaged.jsonl`. Raises `OSError`."""
        log.error("a journal has damaged lines, they are put aside", file=str(self.file), lines=len(damaged))
        replace(
            aside_of(self.file), lambda out: out.writelines(one for n, one in enumerate(self._raw()) if n in damaged)
        )
        self.rewrite(one.rstrip(b"\n") for n, one in enumerate(self._raw()) if n not in damaged)

    def _raw(self, end: int | None = None) -> Iterator[bytes]:
        """The lines up to `end`, or to the current end of the file."""
        if end := self.size if end is None else end:
            with self.file.open("rb") as stream:
                for line in stream:
                    yield line
                    if (end := end - len(line)) <= 0:
                        return

    def lines(self, end: int | None = None) -> Iterator[bytes]:
        """The lines up to `end`, in bytes (default: all), without their newlines."""
        for line in self._raw(end):
            yield line.rstrip(b"\n")

    def append(self, lines: Iterable[bytes]) -> int:
        """Append all of the lines or none; returns their start position. Raises `OSError`."""
        fd = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as stream:
            # The file may have been deleted; or the disk was full, and a partial line is left at its end.
            self.size = min(self.size, os.fstat(fd).st_size)
            start = self.size
            stream.truncate(start)
            stream.seek(start)
            try:
                stream.writelines(line + b"\n" for line in lines)
                stream.flush()
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, self.size)
                raise
            self.size = stream.tell()
            return start

    def rewrite(self, lines: Iterable[bytes]) -> None:
        """Replace the file as a whole. Raises `OSError`."""
        replace(self.file, lambda out: out.writelines(line + b"\n" for line in lines))
        self.size = self.file.stat().st_size


def aside_of(file: Path) -> Path:
    return file.with_suffix(f".damaged{file.suffix}")


def put_aside(file: Path) -> None:
    """Rename an unusable file, so that a person can still inspect it. Raises `OSError`."""
    aside = aside_of(file)
    if aside.is_dir() or not file.is_file():
        # A file cannot replace a directory, nor vice versa.
        aside = aside.with_name(f"{aside.stem}.{secrets.token_hex(4)}{aside.suffix}")
    file.replace(aside)
