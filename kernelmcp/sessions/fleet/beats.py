"""Signs of life of the servers that share a home: each changes a file of its own every second, and looks at the others.

No clocks are compared, and the content means nothing but that it has changed: a server is dead if its file has stayed
the same for `DEAD_SECONDS` while this server was looking. Blocking.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

BEAT_SECONDS = 1.0
# What a server does counts for this long after its last beat; later it must beat again, and see what happened since.
SURE_SECONDS = 4.0
DEAD_SECONDS = 8.0
# Whoever has not looked for longer looks anew: a file system may show it from its memory what was there before.
LOOK_SECONDS = 3.0
MAX_BEAT_BYTES = 200
SUFFIX = ".beat"


class Beats:
    """The beats of one server, and what it has seen of the others'. `folder` has a file for each."""

    def __init__(self, folder: Path, slot: str, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._slot = slot
        self._instance = instance
        self._clock = clock
        self._count = 0
        self._seen: dict[str, tuple[bytes, float]] = {}
        """What each server's file had, and when that was seen first."""
        self._looked = clock()
        self._lock = threading.Lock()

    def beat(self) -> float:
        """Change this server's file; returns the time before. Raises OSError."""
        began = self._clock()
        self._count += 1
        fd = os.open(self._folder / f"{self._slot}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(fd, f"{self._instance} {self._count:020}\n".encode(), 0)
        finally:
            os.close(fd)
        return began

    def look(self) -> None:
        """Look at the files of the others."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked > LOOK_SECONDS:
            self._seen = {slot: (found, now) for slot, (found, _) in self._seen.items()}
        self._looked = now
        for slot in {*self._seen, *self.slots()}:
            found = self._read(slot)
            if slot not in self._seen or self._seen[slot][0] != found:
                self._seen[slot] = found, now

    def is_dead(self, slot: str) -> bool:
        """True if this server shows no life. One of which there is no file is looked at from now on."""
        with self._lock:
            now = self._clock()
            found, since = self._seen.setdefault(slot, (self._read(slot), now))
            return now - self._looked <= LOOK_SECONDS and now - since >= DEAD_SECONDS and self._read(slot) == found

    def slots(self) -> list[str]:
        """The servers that have used this home with a slot."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]

    def _read(self, slot: str) -> bytes:
        try:
            fd = os.open(self._folder / f"{slot}{SUFFIX}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            return os.read(fd, MAX_BEAT_BYTES)
        except OSError:
            return b""
        finally:
            os.close(fd)
