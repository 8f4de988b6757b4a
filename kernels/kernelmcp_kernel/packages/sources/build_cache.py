"""Results of source builds: KERNELMCP_HOME/packages/built/<sha256 of a source>.json, shared by all kernels of a user.

Each is either a wheel, which is in the cache like any other, or the reason why there is none. This data can be deleted
at any time: missing results are built again. Blocking.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelmcp_kernel.packages.package_errors import PackageCacheError
from kernelmcp_kernel.packages.store import Store, Wheel

# Increase it if the same source would give a different wheel, or a different reason.
FORMAT = 1
_MAX_KEPT = 1000
# A failed build may succeed with newer tools.
_REFUSED_SECONDS = 24 * 3600
_MAX_BYTES = 4096


class BuildCache:
    """Results of source builds, by the sha256 of the source."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.root / "built"

    def read(self) -> tuple[dict[str, Wheel], dict[str, str]]:
        """The wheels that are in the cache, and the reasons for sources without one."""
        wheels: dict[str, Wheel] = {}
        refused: dict[str, str] = {}
        for file in self._files():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found = _read(file)
                if found["format"] != FORMAT:
                    continue
                if "refused" in found and 0 <= time.time() - found["time"] < _REFUSED_SECONDS:
                    refused[file.stem] = str(found["refused"])
                elif "wheel" in found and self._store.wheel_file(wheel := Wheel(**found["wheel"])).is_file():
                    wheels[file.stem] = wheel
        return wheels, refused

    def add_wheel(self, source: str, wheel: Wheel) -> None:
        self._write(source, {"wheel": asdict(wheel)})

    def add_refusal(self, source: str, why: str) -> None:
        self._write(source, {"refused": why})

    def _write(self, source: str, entry: dict[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, "time": time.time(), **entry})
        if len(text) > _MAX_BYTES:
            return
        with contextlib.suppress(OSError, PackageCacheError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._store.staging() as staging:
                (staging / "entry").write_text(text, "utf-8")
                os.replace(staging / "entry", self._folder / f"{source}.json")
            for file in self._files()[_MAX_KEPT:]:
                file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The result files, newest first."""
        try:
            found = [entry for entry in os.scandir(self._folder) if re.fullmatch(r"[0-9a-f]{64}\.json", entry.name)]
            return [Path(entry.path) for entry in sorted(found, key=lambda entry: -entry.stat().st_mtime)]
        except OSError:
            return []


def _read(file: Path) -> Any:
    with file.open("rb") as stream:
        return json.loads(stream.read(_MAX_BYTES + 1))
