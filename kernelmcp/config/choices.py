"""What the command line needs of the settings before it imports them, which takes 100 ms: `--help` and `--version` do
without."""

from typing import Any

CLIENTS = ("claude_desktop", "claude_code", "cursor", "vscode")
"""Programs whose lists of MCP servers can be read."""


def level_name(text: Any) -> Any:
    """Normalize a level in other systems' notation: INFO, or WARN."""
    lower = text.lower() if isinstance(text, str) else text
    return "warning" if lower == "warn" else lower
