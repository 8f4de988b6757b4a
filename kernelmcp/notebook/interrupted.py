"""Moves executions that ran or waited when the previous server ended from drafts to the transcript. Blocking."""

from pathlib import Path

from kernelmcp.config.models import Policy
from kernelmcp.notebook.drafts import delete
from kernelmcp.notebook.finished import missing_from
from kernelmcp.notebook.transcript import Transcript


def open_with_drafts(
    transcript: Transcript, drafts: list[Path], session_id: str, principal: str, policy: Policy
) -> int:
    """Read the journal and add the cells of drafts that it lacks; returns their number. The drafts are deleted. Raises
    `OSError`."""
    transcript.open()
    if not drafts:
        if transcript.changed:
            transcript.save()  # cells that ended before it was opened
        return 0
    found = missing_from(transcript.journal_file, drafts, session_id, principal, policy)
    for execution in found:
        transcript.append(execution)
    transcript.save()
    delete(*drafts)
    return len(found)
