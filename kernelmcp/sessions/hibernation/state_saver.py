"""Saves the states of one live kernel, one after the other. Most are only what has changed since a whole one, their
base, which lies beside each as a hard link: so any of them can be deleted without a look at the others."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmcp.kernel.process import Kernel
from kernelmcp.sessions.hibernation.state_files import SavedState, StateNotSaved, base_of, save_state
from kernelmcp.sessions.storage.record import Record

# Beyond this share of its base, or this many states later, changes are no longer worth it: the next state is a base.
MOST_OF_A_BASE = 0.6
MOST_CHANGES = 8
# Changes that are smaller are always worth it: a base takes more time, because the whole heap is compared.
FEW_BYTES = 2**19
# Files are kept beside the state (`Kernel.save_state`).
WITH_FILES = {"with_files": True}


@dataclass(frozen=True)
class _Base:
    files: tuple[Path, ...]
    """Hard links to it: each state has one beside it, and any of them may be deleted."""
    number: int
    size: int
    id: str
    """The guest's."""


class StateSaver:
    """Saves the states of the kernel of one session."""

    def __init__(self, home: Path, record: Record) -> None:
        self._home = home
        self._record = record
        self._base: _Base | None = None

    def forget(self) -> None:
        """There is another kernel, which knows of no base."""
        self._base = None

    async def save(self, kernel: Kernel, file: Path, max_bytes: int) -> SavedState:
        """Save the variables of an idle kernel to a new file. Raises `StateNotSaved`, OSError."""
        base = self._base
        there = next((each for each in base.files if each.exists()), None) if base is not None else None
        if base is not None and there is not None:
            try:
                return await self._save_changes(kernel, file, max_bytes, base, there)
            except StateNotSaved:
                self._base = None  # its guest may have died: the next one knows of no base, either
        found, given = await save_state(
            kernel, self._home, file, self._record, max_bytes, {**WITH_FILES, "is_base": True}
        )
        self._base = _Base((file,), found.number, found.size, given) if given is not None else None
        return SavedState(file, self._record, found.number)

    async def _save_changes(
        self, kernel: Kernel, file: Path, max_bytes: int, base: _Base, base_file: Path
    ) -> SavedState:
        how = {**WITH_FILES, "since": base.id}
        found, _ = await save_state(kernel, self._home, file, self._record, max_bytes, how, base.number)
        os.link(base_file, base_of(file))
        most = max(FEW_BYTES, base.size * MOST_OF_A_BASE)
        is_near = found.size < most and found.number < base.number + MOST_CHANGES
        self._base = replace(base, files=(base_of(file), *base.files)) if is_near else None
        return SavedState(file, self._record, found.number, base.number)
