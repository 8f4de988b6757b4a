"""`realpath`: bashkit's knows `--relative-to` only of a folder above."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.commands.options import read_options

if TYPE_CHECKING:
    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_WORDS = {
    "canonicalize-existing": "e", "canonicalize-missing": "m", "no-symlinks": "s", "strip": "s", "quiet": "q",
    "zero": "z", "relative-to=": "to",
}  # fmt: skip


def make_realpath(files: Files) -> dict[str, Command]:
    def realpath(call: Call) -> Result:
        try:
            options, names = read_options("realpath", call.argv, "emsqzLP", _WORDS)
        except CommandFailed as error:
            return Result("", f"{error}\n", error.exit_code)
        if not names:
            return Result("", "realpath: missing operand\n", 1)
        said = errors = ""
        has_failed = False
        for name in names:
            path = call.normal_path(name)
            needed = None if "m" in options else path if "e" in options else posixpath.dirname(path)
            if not name or (needed is not None and not files.exists(needed)):
                has_failed = True
                errors += "" if "q" in options else f"realpath: {name}: No such file or directory\n"
                continue
            if "to" in options:
                path = posixpath.relpath(path, call.normal_path(options["to"]))
            said += path + ("\0" if "z" in options else "\n")
        return Result(said, errors, int(has_failed))

    return {"realpath": realpath}
