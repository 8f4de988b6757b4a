"""What ran or waited when the server before this one ended: from its drafts into the transcript. Blocking."""

from pathlib import Path

from kernelmcp.config.models import Policy
from kernelmcp.notebook.drafts import delete
from kernelmcp.notebook.finished import missing_from
from kernelmcp.notebook.transcript import Transcript


def open_with_drafts(
    transcript: Transcript, drafts: list[Path], session_id: str, principal: str, policy: Policy
) -> int:
    """Read the journal. How many cells of drafts were not in it: they are now, and the drafts are gone. Raises
    `OSError`."""
    transcript.open()
    if not drafts:
        if transcript.changed:
            transcript.save()  # cells that ended before it was open
        return 0
    found = missing_from(transcript.journal_file, drafts, session_id, principal, policy)
    for execution in found:
        transcript.append(execution)
    transcript.save()
    delete(*drafts)
    return len(found)
