"""What an execution begins with of the variables of earlier ones."""

from dataclasses import dataclass, field

# Named among what did not come back: the variables are as an interrupted cell left them.
CUT_CELL = "the rest of the cell that ran when the server ended"
# The reason of the kernel process for states, and so checkpoints, of before an upgrade.
ANOTHER_BUILD = "it was saved by another build of kernelmcp"


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


def cells_again(reasons: list[str], session_id: str) -> str | None:
    """What to do where no checkpoint helps, because the variables are lost for one of these reasons."""
    if not any(reason.endswith(ANOTHER_BUILD) for reason in reasons):
        return None
    notebook = f"kernelmcp://sessions/{session_id}/notebook"
    return f"create_session(from_notebook={notebook!r}) makes a session in which its cells run again."
