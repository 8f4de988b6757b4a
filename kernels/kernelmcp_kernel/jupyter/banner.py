"""What the kernel says of itself, in consoles and to who asks: first of all which files it sees."""

from __future__ import annotations

from kernelmcp_kernel.settings import KernelSettings, data_home

TITLE = "Python in a sandbox (kernelmcp)"
NOTEBOOK = {
    "private": (
        "Files are in a private folder, /workspace: a restart keeps them, a shutdown deletes them. The notebook's own "
        "folder is not visible; jupyter_folder under [kernels] in {file} shows it, to read or also to write."
    ),
    "read": "Cells begin in the notebook's own folder, {folder}, which they may only read. They may write /workspace.",
    "write": "Cells begin in the notebook's own folder, {folder}, and may write there.",
}


def banner(settings: KernelSettings) -> str:
    """The banner of kernel_info_reply."""
    if settings.folder is None:
        return TITLE
    note = NOTEBOOK[settings.folder].format(folder=settings.working_directory, file=data_home() / "mcp.toml")
    return "\n".join(filter(None, (TITLE, note, settings.folder_note)))
