"""The record of a session on disk: `session.json` in its directory, and a copy in case one of them is damaged.

Must not know kernels or MCP.
"""

import errno
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import structlog
from pydantic import BaseModel, ConfigDict, Field, field_validator

from kernelmcp.atomic import MAX_SMALL_BYTES, read_small, replace_text
from kernelmcp.config.models import Flavor
from kernelmcp.errors import SessionDamaged, StorageFailed
from kernelmcp.files.epochs import place_of, session_directory
from kernelmcp.files.home import RECORD_FILES, SANDBOX_NAME
from kernelmcp.sessions.caller import Origin
from kernelmcp.sessions.installed_packages import Package

# The folder of a session's checkpoints.
CHECKPOINTS = "checkpoints"
# Errors that do not mean that the file is damaged.
_NOT_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)

log = structlog.get_logger(__name__)


def now() -> str:
    return datetime.now(UTC).isoformat()


# Language of a kernel's cells that name none. Kernelspecs that are not ours have one, whichever it is.
MAIN_LANGUAGE = "python"


class Checkpoint(BaseModel):
    """A checkpoint of a session: its files, and its variables if it had any."""

    model_config = ConfigDict(extra="allow")

    name: str
    folder: str = Field(pattern=r"^[0-9a-f]{16}$")
    """The name of its folder. A path here would be deleted one day."""
    number: int | None
    """The number of its state. None: it has no variables."""
    base_number: int | None = None
    """If the state is the changes of another one: that one's number."""
    created_at: str
    execution_count: int
    """The kernel's: of the last cell that had run."""
    size_bytes: int
    """What it adds to the earlier ones."""
    total_bytes: int = 0
    """With what it shares."""
    left_out: int = 0
    """Files that could not be copied."""
    missing: list[str] = []
    """What is not in it of the variables: names for a person."""
    is_automatic: bool = False
    execution: str = ""
    """The id of the last cell that had run. Counts come again, in another kernel and after going back; ids do not."""
    after: str | None = None
    """The folder of the one that the session came from when this one was made."""


class Record(BaseModel):
    """The data of a session that outlives its server, besides its files and its transcript."""

    model_config = ConfigDict(extra="allow")  # fields of a later version are kept

    session_id: str
    principal: str
    language: str = MAIN_LANGUAGE
    """Default language of the session's cells."""
    flavor: Flavor = "medium"
    created_at: str
    last_used_at: str
    execution_count: int = 0
    sandboxes: list[str] = []
    """Names of the sandbox directories that may hold the files; two during a move."""
    has_run: bool = Field(default_factory=lambda data: data.get("execution_count", 0) > 0)
    """It may have variables: code was sent to its kernel, and the variables have not been reset since."""
    state_number: int = 0
    """The number of the newest state of its variables that was saved (sessions/hibernation/)."""
    state_base: int | None = None
    """If it is the changes of another state: that one's number."""
    state_is_elsewhere: bool = False
    """It is a checkpoint's: the session may go on from there another time, with other random numbers."""
    last_number: int = Field(default_factory=lambda data: data.get("state_number", 0))
    """The highest number of its states, checkpoints included."""
    has_state: bool = False
    """That state is on disk, and nothing has run since."""
    why_lost: list[str] = []
    """Why the variables could not be saved, for the execution that reports their loss."""
    untold_loss: bool = False
    """Variables were lost before something else ran, and no result has said so yet."""
    untold: list[str] = []
    """Why; or else what did not come back with the others, which no result has said yet."""
    checkpoints: list[Checkpoint] = []
    """The oldest first."""
    came_from: str | None = None
    """The folder of the checkpoint that the session made or went back to last."""
    last_execution: str = ""
    """The id of the last cell that has run in this state."""
    is_unchanged: bool = False
    """Nothing has run since, and no file was written. Counts only if the variables are not lost."""
    packages: list[Package] = []
    """The installed packages, in the order of their installation."""
    in_image: list[Package] = Field(default=[], exclude=True)
    """Packages in the boot image of the live guest. Not saved: another guest may have another image."""
    loss_is_said: bool = Field(default=False, exclude=True)
    """The first result of this server reports that the variables are lost, whichever call it answers."""
    tools_called: dict[str, int] = {}
    """Calls of other servers' tools, by server.tool: only the most called."""
    tokens_saved: int = 0
    default_of: Origin | None = None
    """Set if it is the default session of a client on stdio; the next server process of that client continues it."""

    @field_validator("created_at", "last_used_at")
    @classmethod
    def _check_time(cls, text: str) -> str:
        if datetime.fromisoformat(text).tzinfo is None:
            raise ValueError("a time without a time zone")
        return text

    @field_validator("sandboxes")
    @classmethod
    def _check_sandboxes(cls, names: list[str]) -> list[str]:
        if not all(map(SANDBOX_NAME.fullmatch, names)):
            raise ValueError("not a name of a sandbox directory")  # a path here would be deleted one day
        return names

    @property
    def line(self) -> list[Checkpoint]:
        """The checkpoints that the session has come through, the newest first. It went back from the others, to before
        them. A record of an older version does not know: all."""
        if self.came_from is None:
            return self.checkpoints[::-1]
        others = {each.folder: each for each in self.checkpoints}
        found, folder = list[Checkpoint](), self.came_from
        while folder is not None and (each := others.pop(folder, None)) is not None:
            found.append(each)
            folder = each.after
        return found

    @property
    def newest_with_variables(self) -> tuple[str, str] | None:
        """Name and time of the newest checkpoint of its line that has variables."""
        found = (each for each in self.line if each.number is not None)
        return next(((each.name, each.created_at) for each in found), None)

    def write(self, directory: Path) -> None:
        """Write the record. Raises OSError, also if nobody could read it: then what is read is still the one before."""
        values = self.model_dump(mode="json")
        text = json.dumps({**values, "checksum": _checksum(values)})
        if len(text) > MAX_SMALL_BYTES:
            raise OSError(errno.EFBIG, "the session's record is too large")
        for name in reversed(RECORD_FILES):  # the one that is read first comes last
            replace_text(directory / name, text)


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _parse(text: bytes) -> Record:
    """Parse a record. Raises ValueError. A record of an older version has no checksum."""
    values: Any = json.loads(text)
    if isinstance(values, dict) and "checksum" in values:
        checksum = cast("dict[str, Any]", values).pop("checksum")
        if checksum != _checksum(cast("dict[str, Any]", values)):
            raise ValueError("the checksum is wrong")
    return Record.model_validate(values)


def read_record(directory: Path) -> Record | None:
    """The record of a session's directory. None if there is no session.

    Raises `SessionDamaged`, and `StorageFailed` if it cannot be read at the moment.
    """
    damaged = False
    try:
        place = place_of(directory)
    except OSError as exc:
        raise _not_now(directory, exc) from exc
    for name in RECORD_FILES:
        try:
            if (text := _read(place / name)) is not None:
                return _parse(text)
        except (ValueError, RecursionError):  # pydantic's errors are ValueErrors
            damaged = True
            log.error("a session's record is damaged", file=str(place / name))
    if damaged:
        raise SessionDamaged(
            f"the record of session {_name_of(directory)!r} is damaged, and so is its copy",
            "Use another session_id. Its files are kept; the server's operator can move it out of the sessions folder.",
            session_id=_name_of(directory),
        )
    return None


def _name_of(directory: Path) -> str:
    return session_directory(directory).name.rpartition("~")[2]  # without the mark of its principal


def _not_now(directory: Path, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"the record of session {_name_of(directory)!r} cannot be read now: {error.strerror}",
        "Try again in a moment. The operator should check its limits (ulimit -n) and its disk.",
        session_id=_name_of(directory),
    )


def _read(file: Path) -> bytes | None:
    """None if there is no such file; empty if it cannot be read. Raises `StorageFailed`."""
    try:
        return read_small(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        if exc.errno in _NOT_NOW:
            raise _not_now(session_directory(file.parent), exc) from exc
        return b""
