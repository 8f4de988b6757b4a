"""Asks the server whether a script may run, where its settings have rules for commands. It decides, and asks the user;
without a server that answers, nothing runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed

if TYPE_CHECKING:
    from kernelmcp_shell.tool_calls.mcp import ToolCalls

# The name by which the server knows such a call; no other server can have it.
_SERVER, _TOOL = "(shell)", "command"
_DENIED = "ToolDenied: "
# A longer script is not shown to anybody, and so not approved.
_SCRIPT_CHARS = 10_000


class Permission:
    def __init__(self, calls: ToolCalls) -> None:
        self._calls = calls

    def refusal(self, script: str, commands: list[list[str | None]], is_all: bool) -> str:
        """The reason why a script with these commands may not run, or an empty text. `is_all`: it can run no others."""
        shown = {} if is_all else {"script": script[:_SCRIPT_CHARS]}
        try:
            self._calls.make(_SERVER, _TOOL, {"commands": commands, "all": is_all, **shown})
        except CommandFailed as error:
            said = str(error)
            if said.startswith(_DENIED):
                return f"nothing of this script was run: {said.removeprefix(_DENIED)}"
            return f"nothing of this script was run: the server that decides about commands does not answer ({said})"
        return ""
