"""Asks the server whether a script may run, where its settings have rules for commands. It decides, and asks the user;
without a server that answers, nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed
from kernelmcp_shell.tool_calls.mcp import ToolCalls

if TYPE_CHECKING:
    from kernelmcp_shell.builtin_interface import Ask

# The name by which the server knows such a call; no other server can have it.
_SERVER, _TOOL = "(shell)", "command"


class Permission:
    def __init__(self, ask: Ask) -> None:
        self._calls = ToolCalls(ask)

    def refusal(self, commands: list[list[str | None]], is_all: bool) -> str:
        """The reason why a script with these commands may not run, or an empty text. `is_all`: it can run no others."""
        try:
            self._calls.make(_SERVER, _TOOL, {"commands": commands, "all": is_all})
        except CommandFailed as error:
            return f"nothing of this script was run. {str(error).partition(': ')[2] or error}"
        return ""
