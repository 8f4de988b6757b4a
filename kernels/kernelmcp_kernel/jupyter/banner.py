"""The kernel's description of itself, for consoles and clients; the files that it sees come first."""

from __future__ import annotations

from kernelmcp_kernel.settings import KernelSettings

TITLE = "Python in a sandbox (kernelmcp)"
NOTEBOOK = {
    "private": (
        "Files are in a private folder, /workspace: a restart keeps them, a shutdown deletes them. The notebook's own "
        "folder is not visible: {how_to_see_more}."
    ),
    "read": "Cells begin in the notebook's own folder, {folder}, which they may only read. They may write /workspace.",
    "write": "Cells begin in the notebook's own folder, {folder}, and may write there.",
}


def banner(settings: KernelSettings) -> str:
    """The banner of kernel_info_reply."""
    if settings.folder is None:
        return TITLE
    text = NOTEBOOK[settings.folder].format(folder=settings.working_directory, how_to_see_more=settings.how_to_see_more)
    said = settings.folder_note in text
    return "\n".join([TITLE, text] if said else [TITLE, text, settings.folder_note])
