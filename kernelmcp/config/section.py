"""What the tables of settings are made of."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _expanded(path: Path) -> Path:
    """The path with ~ replaced. Raises ValueError."""
    try:
        return path.expanduser()
    except RuntimeError as exc:  # no such user
        raise ValueError(f"{path} has no home directory") from exc


def _expanded_text(text: str) -> str:
    return str(_expanded(Path(text))) if text.startswith("~") else text


UserPath = Annotated[Path, AfterValidator(_expanded)]
"""A path in which ~ is the home directory, also where no shell has read it."""
UserText = Annotated[str, AfterValidator(_expanded_text)]
"""A text that may be such a path."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
