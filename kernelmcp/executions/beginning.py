"""What an execution begins with of the variables of earlier ones."""

from dataclasses import dataclass, field

# Named among what did not come back: the variables are as an interrupted cell left them.
CUT_CELL = "the rest of the cell that ran when the server ended"


@dataclass(frozen=True)
class Beginning:
    """What has become of the variables of earlier executions, if no result has said that."""

    lost: bool = False
    is_said: bool = False
    """The note of a continued session already says that."""
    is_older: bool = False
    """Something has run since: what it has left is there."""
    restored_at: str | None = None
    """They came back, as they were then."""
    missing: list[str] = field(default_factory=list[str])
    """What did not come back with them; or why they are lost."""
