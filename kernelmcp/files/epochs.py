"""Where the files of a session are, if servers that share a home may take sessions from each other.

They are in the session's own directory until a server takes the session over from one that has its lock but shows no
life. That server only seems to be dead: it may be paused, and go on writing. So its successor leaves those files to it,
and goes on with a copy in `epochs/1`, the next one in `epochs/2`; only the newest is ever read.

An epoch is made under a name that nobody reads, and published by one rename, which only one server can do. Until then
the server that has the session, or opens it in the usual way, can `revoke` it, by another rename. Blocking.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from kernelmcp.files.safe_open import delete_for_good, delete_tree

EPOCHS = "epochs"
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
# An epoch that is being made, and one that was revoked.
_DRAFT, _REVOKED = ".next-", ".old-"
# In a draft from its beginning: who copies into one that was revoked makes another directory of that name.
_MARK = ".draft"

IsFree = Callable[[Path], AbstractContextManager[bool]]
"""Whether no server has the session at a place; none gets it meanwhile."""


def place_of(directory: Path) -> Path:
    """The directory that has the files of the session in this directory. Raises OSError."""
    newest = _newest(directory)
    return directory / EPOCHS / str(newest) if newest else directory


def session_directory(place: Path) -> Path:
    """The directory of the session whose files are at this place: its name is the session's."""
    return place.parent.parent if place.parent.name == EPOCHS else place


def draft_epoch(directory: Path) -> Path:
    """An empty directory for the next epoch. Raises OSError."""
    (directory / EPOCHS).mkdir(mode=0o700, exist_ok=True)
    draft = directory / EPOCHS / f"{_DRAFT}{_newest(directory) + 1}-{secrets.token_hex(4)}"
    draft.mkdir(mode=0o700)
    (draft / _MARK).touch(mode=0o600)
    return draft


def publish(draft: Path) -> bool:
    """Make it the newest epoch. False if another server was faster, or has revoked it: then it is deleted."""
    number = draft.name.removeprefix(_DRAFT).partition("-")[0]
    try:
        (draft / _MARK).unlink()
        os.rename(draft, draft.with_name(number))  # not over a directory that has entries
    except OSError:
        delete_tree(draft)
        return False
    return True


def revoke(directory: Path) -> bool:
    """End the attempts of other servers to take the session over. True if anything is left for `sweep`. Raises
    OSError."""
    names = _listed(directory)
    for name in names:
        if name.startswith(_DRAFT):
            with suppress(FileNotFoundError):  # it was published, or given up
                os.rename(directory / EPOCHS / name, directory / EPOCHS / f"{_REVOKED}{secrets.token_hex(8)}")
    return any(name.startswith((_DRAFT, _REVOKED)) for name in names)


def sweep(directory: Path) -> None:
    """Delete what was revoked."""
    for name in _listed(directory):
        if name.startswith(_REVOKED):
            delete_tree(directory / EPOCHS / name)


def copy_place(place: Path, draft: Path, grows: str, omitted: frozenset[str]) -> None:
    """Copy a session's files into a draft. They are shared as far as the file system can, for they are only ever
    replaced as a whole; all but the one that `grows`, of which the draft gets the complete lines. Raises OSError."""

    failed: list[OSError] = []

    def copy(source: str, target: str) -> None:
        try:
            copy_file(source, target)
        except OSError as exc:
            failed.append(exc)
            raise

    def copy_file(source: str, target: str) -> None:
        if source == str(place / grows):
            data = Path(source).read_bytes()
            Path(target).write_bytes(data[: data.rfind(b"\n") + 1])
            return
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(source, target, follow_symlinks=False)

    def ignore(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if folder == str(place) and (name in omitted or name.startswith("."))]

    try:
        shutil.copytree(place, draft, symlinks=True, copy_function=copy, ignore=ignore, dirs_exist_ok=True)
    except shutil.Error as exc:  # which has no strerror
        if failed:
            raise failed[0] from exc
        raise


def is_superseded(place: Path) -> bool:
    """True if a newer epoch has been published. Raises OSError."""
    return _newest(session_directory(place)) > _number(place)


def delete_place(place: Path, last: tuple[str, ...], is_free: IsFree) -> None:
    """Delete a session's files, the `last` ones after all others and in this order, and its directory unless another
    server has taken the session over. The very last one is its lock. Raises OSError.

    A server from which it was taken over may still have the lock of an older place, and go on writing there by the
    names that it knows: its lock stays, and a new session of this name begins in a new epoch."""
    directory, lock = session_directory(place), last[-1]
    _delete_but(place, last)
    revoke(directory)
    sweep(directory)
    is_fenced = False
    for older in _older(place):
        with is_free(older) as free:
            _delete_but(older, () if free else (lock,))
            if not free:
                is_fenced = True
            elif older != directory:
                older.rmdir()
    for name in last[:-1]:
        delete_for_good(place / name)
    if is_fenced:
        with suppress(FileExistsError):  # another server has taken the session over
            place.with_name(str(_number(place) + 1)).mkdir(mode=0o700)
    delete_for_good(place / lock)
    _delete_but(place, ())  # a write that was under way
    if place != directory:
        place.rmdir()
    if is_superseded(place):
        return
    for folder in (directory / EPOCHS, directory):
        with suppress(FileNotFoundError):
            folder.rmdir()


def delete_older(place: Path, is_free: IsFree) -> None:
    """Delete what is in the epochs before this one that no server has any more. Raises OSError."""
    for older in _older(place):
        with is_free(older) as free:
            if free:
                _delete_but(older, ())


def _delete_but(place: Path, kept: tuple[str, ...]) -> None:
    for entry in list(place.iterdir()):
        if entry.name != EPOCHS and entry.name not in kept:
            delete_for_good(entry)


def _older(place: Path) -> list[Path]:
    """The places of the epochs before this one."""
    directory, own = session_directory(place), _number(place)
    names = [name for name in _listed(directory) if _NUMBER.fullmatch(name) and int(name) < own]
    return [directory / EPOCHS / name for name in names] + ([directory] if own else [])


def _number(place: Path) -> int:
    return int(place.name) if session_directory(place) != place else 0


def _newest(directory: Path) -> int:
    return max((int(name) for name in _listed(directory) if _NUMBER.fullmatch(name)), default=0)


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory / EPOCHS)
    except (FileNotFoundError, NotADirectoryError):
        return []
