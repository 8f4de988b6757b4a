"""What a session is, on disk: `session.json` in its directory, and a copy, so that one damaged file loses nothing.

Above: registry, binding. Below: home. Must not know kernels or MCP.
"""

from datetime import UTC, datetime
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kernelmcp.config import Flavor
from kernelmcp.errors import SessionDamaged
from kernelmcp.home import BERTH_NAME, RECORD_FILES, read_small, write_private
from kernelmcp.packages import Package

log = structlog.get_logger(__name__)


def now() -> str:
    return datetime.now(UTC).isoformat()


class Record(BaseModel):
    """Everything of a session that outlives its server, but for the files and the transcript."""

    model_config = ConfigDict(extra="ignore")

    session_id: str
    principal: str
    language: str = "python"
    flavor: Flavor = "medium"
    created_at: str
    last_used_at: str
    execution_count: int = 0
    berths: list[str] = []
    """Names of the berths that may hold the files; two while they move."""
    has_run: bool = Field(default_factory=lambda data: data.get("execution_count", 0) > 0)
    """It may have variables: code was sent to a kernel of it, and they were not cleared since."""
    packages: list[Package] = []
    """What was installed, in this order."""

    @field_validator("created_at", "last_used_at")
    @classmethod
    def _check_time(cls, text: str) -> str:
        if datetime.fromisoformat(text).tzinfo is None:
            raise ValueError("a time without its zone")
        return text

    @field_validator("berths")
    @classmethod
    def _check_berths(cls, names: list[str]) -> list[str]:
        if not all(map(BERTH_NAME.fullmatch, names)):
            raise ValueError("what is no name of a berth")  # a path there would be deleted one day
        return names

    def write(self, directory: Path) -> None:
        text = self.model_dump_json()
        for name in RECORD_FILES:
            write_private(directory / name, text)


def read_record(directory: Path) -> Record | None:
    """The record of a session's directory. None when there is no session; raises `SessionDamaged`."""
    texts = [_read(directory / name) for name in RECORD_FILES]
    for name, text in zip(RECORD_FILES, texts, strict=True):
        try:
            if text is not None:
                return Record.model_validate_json(text)
        except ValidationError:
            log.error("a session's record is damaged", file=str(directory / name))
    if any(text is not None for text in texts):
        raise SessionDamaged(
            f"the record of session {directory.name!r} is damaged, and so is its copy",
            f"Its files are kept. Move {directory.name} out of the sessions folder, or use another session_id.",
            session_id=directory.name,
        )
    return None


def _read(file: Path) -> bytes | None:
    """None when there is no such file; empty when it cannot be read."""
    try:
        return read_small(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return b""
