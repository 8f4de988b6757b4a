"""Replaces magics that cannot work in a sandbox: by our own version, or by an error with an alternative."""

# IPython declares much of the API used here without types that a checker understands.
# pyright: reportUnknownVariableType=false

import pdb
from typing import Any, NoReturn

from IPython.core import debugger
from IPython.core.error import UsageError
from IPython.core.magics._table import default_script_magics

from kernelmcp_guest.absent import NO_INTERPRETER
from kernelmcp_guest.packages import pip_commands
from kernelmcp_guest.programs import lines

# On systems other than Linux, IPython's own are for BSD's ls.
_ALIASES = {"ls": "ls -F", "ll": "ls -F -l", "lf": "ls -F -l | grep ^-", "ldir": "ls -F -l | grep /$"}

_NO_EDITOR = "there is no editor in the sandbox: write the file with %%writefile, and run it with %run"
_ALONE = "%checkpoint or %restore must be the cell's only line, and without an indent"
_NO_STORE = "variables are kept as long as the session, and in no database: write what is to last to a file"


def _refuse(text: str) -> Any:
    def magic(line: str, cell: str | None = None) -> NoReturn:
        raise UsageError(text)

    magic.__doc__ = f"Not available: {text}."
    return magic


def _installer(shell: Any, name: str, doc: str | None) -> Any:
    def magic(line: str) -> None:
        lines.run(shell, f"{name} {line}")

    magic.__doc__ = doc
    return magic


def install(shell: Any) -> None:
    """Register the replacements with the shell."""
    register = shell.magics_manager.register_function
    register(_installer(shell, "pip", pip_commands.pip.__doc__), "line", "pip")  # IPython's own starts a process
    register(_installer(shell, "uv", pip_commands.uv.__doc__), "line", "uv")
    for name in ("script", *default_script_magics()):
        register(lines.shell_magic if name in ("bash", "sh") else _refuse(NO_INTERPRETER), "cell", name)
    shell.alias_manager.user_aliases = list(_ALIASES.items())  # a reset of the shell keeps these
    shell.alias_manager.init_aliases()
    for name in ("edit", "ed"):
        register(_refuse(_NO_EDITOR), "line", name)
    register(_refuse(_NO_STORE), "line", "store")
    for name in ("checkpoint", "restore"):  # the kernel process answers cells that are only this
        register(_refuse(_ALONE), "line", name)
    # As in ipykernel: the prompt of this one ends with an interrupt, the standard library's asks again.
    debugger.Pdb = pdb.Pdb = debugger.InterruptiblePdb
    pdb.set_trace = debugger.set_trace
    history = shell.history_manager

    def get_tail(n: int = 10, raw: bool = True, output: bool = False, include_latest: bool = False) -> list[Any]:
        """For %rerun, which searches the database of other shells: the newest inputs, except the running one."""
        lines: list[str] = history.input_hist_raw if raw else history.input_hist_parsed
        found = list(enumerate(lines))[1 : None if include_latest else -1]
        return [(0, number, (line, None) if output else line) for number, line in found[-n:]]

    history.get_tail = get_tail
