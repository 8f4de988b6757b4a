"""The checkpoints of a session: its variables and files as they were, to go back to or to begin a fork from.

Each has a folder with the state, the workspace, the temporary files and the list of installed packages (there, because
the record is read as a whole). The record lists them; a folder that it does not list is the remains of a server that
was killed.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from kernelmcp.atomic import read_small
from kernelmcp.errors import InvalidArgument, ResourceLimitExceeded
from kernelmcp.sessions.hibernation.state_files import StateNotLoaded
from kernelmcp.sessions.installed_packages import Package
from kernelmcp.sessions.storage.record import CHECKPOINTS, Checkpoint, Record

# Names in a text, and characters of a name that there is not.
MAX_LISTED = 10
MAX_SHOWN_CHARS = 100
PACKAGES_FILE = "packages.json"
_PACKAGES = TypeAdapter(list[Package])


class Checkpoints:
    """The checkpoints of one session. Methods block, and are called one at a time."""

    def __init__(self, directory: Path, record: Record, most: int, most_automatic: int, max_bytes: int) -> None:
        self._directory = directory / CHECKPOINTS
        self._record = record
        self._most, self._most_automatic = most, most_automatic
        self._max_bytes = max_bytes

    def find(self, name: str | None, *, is_unchanged: bool = False, argument: str = "name") -> Checkpoint:
        """The checkpoint with this name, or the first one after the cell with this id. Without a name, of those that
        the session has come through: the newest one that somebody asked for and that has variables, or else the newest;
        from that one it goes on to the one before, if it `is_unchanged` since. Raises `InvalidArgument`."""
        all_of_them, line = self._record.checkpoints, self._record.line
        if name is not None:
            found = [each for each in all_of_them if each.name == name]
            found += [each for each in all_of_them if name and each.execution == name]
        else:
            has_variables = any(each.number is not None for each in line)
            asked_for = [each for each in line if not each.is_automatic and (each.number or not has_variables)]
            found = asked_for or line[1 if is_unchanged else 0 :]
        if found:
            return found[0]
        names = listed([each.name for each in all_of_them])
        what, advice = "no checkpoint", "Make one with checkpoint_session."
        if all_of_them and name is None:
            is_only = len(all_of_them) == 1
            advice = f"It has {names}" + (", which is as it is now" if is_only else ": pass the name of one")
            advice += ". reset_workspace makes the session as it was before its first cell."
            what = "no checkpoint from before its last cell"
        elif all_of_them:
            what, advice = f"no checkpoint {name!r:.{MAX_SHOWN_CHARS}}", f"It has {names}."
        raise InvalidArgument(f"session {self._record.session_id!r} has {what}", advice, argument=argument)

    def folder(self, checkpoint: Checkpoint) -> Path:
        return self._directory / checkpoint.folder

    @property
    def newest_folder(self) -> Path | None:
        return self.folder(self._record.checkpoints[-1]) if self._record.checkpoints else None

    def new_folder(self) -> Path:
        """A folder for another one. Raises OSError."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        folder = self._directory / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        return folder

    def keep_packages(self, folder: Path) -> None:
        """Note in a folder which packages are installed. Raises OSError."""
        (folder / PACKAGES_FILE).write_bytes(_PACKAGES.dump_json(self._record.packages))

    def packages(self, checkpoint: Checkpoint) -> list[Package]:
        """Those that were installed then. Raises `StateNotLoaded`."""
        try:
            return _PACKAGES.validate_json(read_small(self.folder(checkpoint) / PACKAGES_FILE))
        except (OSError, ValueError) as exc:
            raise StateNotLoaded(["the list of its packages cannot be read"]) from exc

    def add(self, checkpoint: Checkpoint, save_record: Callable[[], None], *, is_named: bool) -> list[Path]:
        """List a checkpoint whose folder is complete, in place of the oldest if there are too many, and of one with its
        name if it `is_named` so or nothing has changed since. Returns the folders of those, which the caller
        deletes. Raises `ResourceLimitExceeded` if it is too large, and OSError from `save_record`: then it is not
        listed, and its own folder is the caller's to delete."""
        if checkpoint.total_bytes > self._max_bytes:
            raise ResourceLimitExceeded(
                f"the checkpoint takes {checkpoint.total_bytes / 2**20:,.0f} MB, and a session's checkpoints may take "
                f"{self._max_bytes / 2**20:,.0f} MB",
                "Delete large variables and files that you no longer need, then try again.",
            )
        record = self._record
        before = record.checkpoints, record.came_from, record.is_unchanged
        checkpoint.after = record.came_from
        kept = [*(each.model_copy() for each in record.checkpoints), checkpoint]
        for each in kept[:-1]:
            if each.name == checkpoint.name:
                is_same = each.is_automatic and each.folder == record.came_from and record.is_unchanged
                if is_named or is_same:
                    _remove(each, kept)
                else:
                    _rename(checkpoint)  # that name has been told as one to go back to
        line = {checkpoint.folder, *(each.folder for each in record.line)}

        def by_need() -> list[Checkpoint]:
            """Automatic ones before those that were asked for, and first those that it went back from."""
            return sorted(kept, key=lambda each: (not each.is_automatic, each.is_automatic and each.folder in line))

        same_kind = [each for each in by_need() if each.is_automatic == checkpoint.is_automatic]
        for each in same_kind[: -self._most_automatic if checkpoint.is_automatic else -self._most]:
            _remove(each, kept)
        while len(kept) > 1 and sum(each.size_bytes for each in kept) > self._max_bytes:
            oldest = next(each for each in by_need() if each is not checkpoint)
            if checkpoint.is_automatic and not oldest.is_automatic:
                raise ResourceLimitExceeded(
                    "an automatic checkpoint has no room beside those that were asked for",
                    "Delete large variables and files that you no longer need.",
                )
            _remove(oldest, kept)
        record.checkpoints, record.came_from, record.is_unchanged = kept, checkpoint.folder, True
        try:
            save_record()
        except OSError:
            record.checkpoints, record.came_from, record.is_unchanged = before
            raise
        listed = {each.folder for each in kept}
        return [self.folder(each) for each in before[0] if each.folder not in listed]

    @property
    def remains(self) -> list[Path]:
        """The folders that the record does not list."""
        listed = {each.folder for each in self._record.checkpoints}
        with suppress(OSError):
            return [folder for folder in self._directory.iterdir() if folder.name not in listed]
        return []


def listed(names: list[str]) -> str:
    """The last of them, and how many more there are."""
    more = len(names) - MAX_LISTED
    shown = ", ".join(names[-MAX_LISTED:])
    return f"{shown} and {more} earlier (get_sessions(session_id=...) has all)" if more > 0 else shown


def gone_back_from(record: Record, checkpoint: Checkpoint) -> list[Checkpoint]:
    """The list of a session's checkpoints once it goes back to one of them. Automatic ones that it has not come through
    then have longer names: cells with their numbers come again."""
    kept = [each.model_copy() for each in record.checkpoints]
    line = {each.folder for each in record.model_copy(update={"came_from": checkpoint.folder}).line}
    for each in kept:
        if each.name == f"cell-{each.execution_count}" and each.is_automatic and each.folder not in line:
            _rename(each)
    return kept


def _rename(checkpoint: Checkpoint) -> None:
    checkpoint.name = f"{checkpoint.name}-{checkpoint.folder[:4]}"


def _remove(checkpoint: Checkpoint, kept: list[Checkpoint]) -> None:
    """What it shares with the next one is that one's from now on."""
    place = kept.index(checkpoint)
    del kept[place]
    for each in kept:
        if each.after == checkpoint.folder:
            each.after = checkpoint.after
    if place < len(kept):
        following = kept[place]
        following.size_bytes = min(following.total_bytes, following.size_bytes + checkpoint.size_bytes)
