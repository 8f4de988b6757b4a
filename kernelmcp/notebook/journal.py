"""Lines in a file, appended: what is written once stays, and a line that is damaged costs only itself.

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
    """The lines of one file. `size` is its length in bytes as we know it; a torn line behind it is cut off."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.size = 0

    def open(self, is_good: Callable[[bytes], bool], max_bytes: int) -> None:
        """Check what is there. Damaged lines go to `<name>.damaged.jsonl`; a file over `max_bytes` does as a whole."""
        try:
            found = self.file.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode):
            log.error("a journal is no file, it is put aside", file=str(self.file))
            put_aside(self.file)
            return
        self.size = found.st_size
        if self.size > max_bytes:
            log.error("a journal is far too large, it is put aside", file=str(self.file))
            put_aside(self.file)
            self.size = 0
        bad = [number for number, line in enumerate(self._raw()) if not line.endswith(b"\n") or not is_good(line)]
        if bad:
            log.error("a journal has damaged lines, they are put aside", file=str(self.file), lines=len(bad))
            damaged = set(bad)
            aside = aside_of(self.file)
            replace(aside, lambda out: out.writelines(one for n, one in enumerate(self._raw()) if n in damaged))
            self.rewrite(one.rstrip(b"\n") for n, one in enumerate(self._raw()) if n not in damaged)

    def _raw(self) -> Iterator[bytes]:
        if self.size:
            with self.file.open("rb") as stream:
                yield from stream

    def lines(self) -> Iterator[bytes]:
        """Without their newlines."""
        for line in self._raw():
            yield line.rstrip(b"\n")

    def append(self, lines: Iterable[bytes]) -> int:
        """All of them or none; returns where they begin. Raises `OSError`."""
        fd = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as stream:
            # Somebody may have deleted it; and a disk that was full may have left a torn line behind its end.
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
    """Out of the way, and not deleted: it may hold what a person wants. Raises `OSError`."""
    aside = aside_of(file)
    if aside.is_dir() or not file.is_file():
        # One can't take the other's place.
        aside = aside.with_name(f"{aside.stem}.{secrets.token_hex(4)}{aside.suffix}")
    file.replace(aside)
