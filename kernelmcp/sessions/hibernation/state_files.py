"""Files that have the state of a kernel's variables: saved by a kernel, sealed for a session (envelope.py), copied.

A session's newest state brings its variables back (saved_variables.py); others are its checkpoints (checkpoints.py), or
begin a fork of it.
"""

import errno
import json
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from kernelmcp.errors import KernelDied
from kernelmcp.kernel.process import Kernel
from kernelmcp.output.sanitize import as_dict, as_list, clean
from kernelmcp.sessions.hibernation.envelope import Envelope, OtherLanguage, StateRefused, key_of, seal, unseal
from kernelmcp.sessions.storage.record import Record, now

STATE_FILE = "state"
# A state of a gigabyte on a busy machine. Whoever waits for less gives up earlier.
MOVE_SECONDS = 60.0
# Names from a guest: of what does not come back, or stands in the way.
MAX_NAMES = 20
MAX_NAME_CHARS = 200
# Of a list of them, as JSON: the record of a session, which is small, has one for each checkpoint.
MAX_NAMES_BYTES = 6000
_NO_BRACKETS = str.maketrans("[]", "()")


class StateNotSaved(Exception):
    """The variables of a session cannot be saved now, for these reasons; the session goes on."""

    def __init__(self, reasons: list[str], *, is_full: bool = False, is_busy: bool = False) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.is_full = is_full
        """The disk is full."""
        self.is_busy = is_busy
        """The kernel process has waited in vain for the end of what its guest does. Not a guest's own reason."""


class StateChanged(StateNotSaved):
    """Something has run while they were saved, and has ended."""


class StateNotLoaded(Exception):
    """A state cannot be put into a kernel, for these reasons."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))


@dataclass(frozen=True)
class SavedState:
    """A state on disk, and what the record of its session says of it."""

    file: Path
    owner: Record
    number: int | None
    """None: there is no state, because the session had no variables."""
    base_number: int | None = None
    """If it is the changes of another one, which is beside it: that one's number."""
    is_elsewhere: bool = False
    """Its session goes on, or goes on from there another time: the random generators get other seeds."""
    unsealed: Envelope | None = None
    """Its envelope, which is not in the file, because this server has just saved it to load it at once."""

    def check(self, key: bytes) -> Envelope:
        """Its envelope, after a check that it is the one that the record means. Raises StateRefused, OSError."""
        return self.unsealed or self._check(self.file, self.number, key)

    def parts(self, found: Envelope, key: bytes) -> list[tuple[Path, int]]:
        """The files to load, and how many bytes are Python's. Raises as `check` does."""
        if self.base_number is None:
            return [(self.file, found.python_bytes)]
        base = base_of(self.file)
        return [(self.file, found.python_bytes), (base, self._check(base, self.base_number, key).python_bytes)]

    def size(self, found: Envelope, key: bytes) -> int:
        """Bytes of its files. Raises as `check` does."""
        return found.size + (self._check(base_of(self.file), self.base_number, key).size if self.base_number else 0)

    def link(self, file: Path) -> None:
        """Have it in another file as well. Raises OSError: then there is nothing."""
        if self.base_number is not None:
            os.link(base_of(self.file), base_of(file))
        try:
            os.link(self.file, file)
        except OSError:
            base_of(file).unlink(missing_ok=True)
            raise

    def _check(self, file: Path, number: int | None, key: bytes) -> Envelope:
        found = unseal(file, key)
        if (found.session, found.principal) != (self.owner.session_id, self.owner.principal):
            raise StateRefused("belongs to another session")
        if found.number != number:
            raise StateRefused("is not the one that the session's record names")
        return found


def base_of(file: Path) -> Path:
    """Where the base of a state lies."""
    return file.with_name(f"{file.name}.base")


async def save_state(
    kernel: Kernel,
    home: Path,
    file: Path,
    record: Record,
    max_bytes: int,
    how: dict[str, Any],
    base_number: int | None = None,
) -> tuple[Envelope, str | None]:
    """Save the variables of an idle kernel to a new file, as the next state of a session; `how`: as `Kernel.save_state`
    has it, with `base_number` if only the changes of that state. Returns the id, too, if it can be a base. Raises
    `StateNotSaved`."""
    draft = draft_of(file)
    try:
        found, given = await save_unsealed(kernel, draft, record, max_bytes, how)
        found = msgspec.structs.replace(found, base_number=base_number)
        await anyio.to_thread.run_sync(_keep, draft, file, found, home)
    except OSError as exc:
        raise _not_saved(exc) from exc
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    record.last_number = found.number
    return found, given


async def save_unsealed(
    kernel: Kernel, file: Path, record: Record, max_bytes: int, how: dict[str, Any]
) -> tuple[Envelope, str | None]:
    """Save them to be loaded at once: the envelope is not in the file, which the caller deletes, also if this raises.
    Otherwise as `save_state`."""
    try:
        with anyio.fail_after(MOVE_SECONDS):
            reply = as_dict((await kernel.save_state(file, max_bytes, how)).get("content"))
        if reply.get("status") != "ok":
            is_full, is_busy = (reply.get(name) is True for name in ("is_full", "is_busy"))
            raise StateNotSaved(names_of(reply.get("reasons")), is_full=is_full, is_busy=is_busy)
        given = reply.get("id")
        return _envelope_of(reply, record), given if isinstance(given, str) else None
    except TimeoutError:
        raise StateNotSaved(["saving took too long"]) from None
    except (KernelDied, KeyError, TypeError, ValueError, msgspec.ValidationError) as exc:
        raise _not_saved(exc) from exc


def draft_of(file: Path) -> Path:
    """A new name for a file that is not complete or not kept; the next server deletes what a killed one leaves."""
    return file.with_name(f".{file.name}.{secrets.token_hex(4)}")


def _envelope_of(reply: dict[str, Any], record: Record) -> Envelope:
    unsaved = [f"variables of {each}" for each in names_of(reply.get("unsaved"))]
    gone = [f"a JavaScript object ({name})" for name in names_of(reply.get("gone"))]
    return Envelope(
        session=record.session_id,
        principal=record.principal,
        number=record.last_number + 1,
        saved_at=now(),
        flavor=record.flavor,
        size=reply["bytes"],
        image=reply["image"],
        mounts=reply["mounts"],
        execution_count=reply["execution_count"],
        others=msgspec.convert(reply["others"], list[OtherLanguage]),
        dead=few([*unsaved, *gone]),
    )


def _keep(draft: Path, file: Path, found: Envelope, home: Path) -> None:
    seal(draft, found, key_of(home))
    draft.replace(file)


def _not_saved(exc: Exception) -> StateNotSaved:
    is_full = isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)
    return StateNotSaved([str((isinstance(exc, OSError) and exc.strerror) or exc)], is_full=is_full)


def names_of(found: object) -> list[str]:
    """Names that a guest may have chosen: few, short, each once, in one line, and without the brackets of a note."""
    texts = (each.translate(_NO_BRACKETS) for each in as_list(found) if isinstance(each, str))
    names: Iterable[str] = (clean(text)[:MAX_NAME_CHARS] for text in texts)
    return few(name if name.isprintable() else repr(name) for name in names)[:MAX_NAMES]


def few(names: Iterable[str]) -> list[str]:
    """Each of these names once, as long as there is room for it."""
    kept, room = list[str](), MAX_NAMES_BYTES
    for name in dict.fromkeys(names):
        room -= len(json.dumps(name))
        if room < 0:
            break
        kept.append(name)
    return kept
