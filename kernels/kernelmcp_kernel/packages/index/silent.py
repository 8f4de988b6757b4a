"""Hosts that gave no answer, for some minutes: KERNELMCP_HOME/packages/silent.json, shared by all kernels of a user.

Without it, each run of pip would wait for them again. They are still asked, but with a short timeout: a host that
answers again is noticed at once. This data can be deleted at any time. Blocking.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from kernelmcp_kernel.packages.store import check_own

REMEMBERED_SECONDS = 300.0
_MAX_HOSTS = 20
_MAX_BYTES = 16_384
_HOST = re.compile(r"[a-z0-9.:\[\]_-]{1,255}")


class SilentHosts:
    """The file of one package cache."""

    def __init__(self, root: Path) -> None:
        self._file = root / "silent.json"

    def read(self) -> dict[str, float]:
        """The time when each host last failed to answer (Unix time)."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            with self._file.open("rb") as stream:
                check_own(os.fstat(stream.fileno()))
                found: dict[str, float] = json.loads(stream.read(_MAX_BYTES))
            now = time.time()
            return {host: float(at) for host, at in found.items() if 0 <= now - float(at) < REMEMBERED_SECONDS}
        return {}

    def note(self, silent: Iterable[str], answered: Iterable[str]) -> None:
        """Add the silent hosts, remove those that answered. Does nothing if the cache cannot be written."""
        had, answered, now = self.read(), set(answered), time.time()
        found = {**had, **{host: now for host in silent if _HOST.fullmatch(host)}}
        found = {host: at for host, at in found.items() if host not in answered}
        if found == had:
            return
        newest = sorted(found, key=lambda host: -found[host])[:_MAX_HOSTS]
        with contextlib.suppress(OSError):
            fd, draft = tempfile.mkstemp(dir=self._file.parent / "tmp")
            try:
                with os.fdopen(fd, "w", encoding="utf-8") as stream:
                    json.dump({host: found[host] for host in newest}, stream)
                os.replace(draft, self._file)
            except OSError:
                os.unlink(draft)
                raise
