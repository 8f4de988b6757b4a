"""The names of all tools, for modules that need them before mcp is imported: settings are checked before anything
starts.

A test compares them with the server's list.
"""

import difflib

TOOL_NAMES = (
    "execute_code",
    "execute_command",
    "get_execution",
    "cancel_execution",
    "create_session",
    "get_sessions",
    "checkpoint_session",
    "restore_session",
    "stop_session",
    "destroy_session",
    "reset_workspace",
    "list_runtimes",
    "install_package",
    "read_file",
    "write_file",
    "get_workspace_info",
    "get_volume_path",
)
# "exec" must match execute_code.
SIMILARITY = 0.4


def check_tool_name(name: str) -> str:
    """Return the name if it is a tool's. Raises ValueError."""
    if name in TOOL_NAMES:
        return name
    close = difflib.get_close_matches(name, TOOL_NAMES, n=1, cutoff=SIMILARITY)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(TOOL_NAMES)}"
    raise ValueError(f"there is no tool {name!r} ({hint})")
