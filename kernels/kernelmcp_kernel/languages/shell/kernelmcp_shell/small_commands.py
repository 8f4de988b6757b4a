"""Commands whose bashkit versions do not work on this file system, or cannot be interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import Result

if TYPE_CHECKING:
    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_NO_SSH = "only curl and wget connect to hosts outside the sandbox"
_USE_INSTEAD = {
    "http": "use curl",
    **dict.fromkeys(("ssh", "scp", "sftp"), _NO_SSH),
    **dict.fromkeys(("nano", "vi"), "no editor is interactive here: use echo, printf or cat to write files"),
    **dict.fromkeys(("xz", "unxz", "xzcat"), "use tar -J, or lzma of python"),
    **dict.fromkeys(("zstd", "unzstd", "7z", "7za", "rar", "unrar", "compress"), "use zip, gzip, bzip2 or tar -J"),
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAPS_IN_A_SECOND = 10
_LONGEST_SECONDS = 1e12


def make_small_commands(files: Files) -> dict[str, Command]:
    def touch(call: Call) -> Result:
        flags = {letter for word in call.argv if word.startswith("-") for letter in word[1:]}
        if flags - set("acm"):
            return Result("", "touch: only -a, -c and -m are supported here: a time can only be now\n", 1)
        names = [word for word in call.argv if not word.startswith("-")]
        errors = "" if names else "touch: missing file operand\n"
        for name in names:
            try:
                files.touch(call.path(name), create="c" not in flags)
            except OSError as error:
                errors += f"touch: cannot touch '{name}': {error.strerror}\n"
        return Result("", errors, 1 if errors else 0)

    absent = dict.fromkeys(_USE_INSTEAD, _absent)
    return {"touch": touch, "kernelmcp-naps": _naps, **absent}


def _absent(call: Call) -> Result:
    """bashkit's `http` prints its request as if it were the response; its `ssh` needs another build; it lacks the
    rest."""
    return Result("", f"{call.name}: command not found: {_USE_INSTEAD[call.name]}\n", 127)


def _naps(call: Call) -> Result:
    """For `sleep`: the number of naps, and the remaining seconds."""
    try:
        total = sum(_seconds(word) for word in call.argv)
    except ValueError:
        return Result("", f"sleep: invalid time interval '{' '.join(call.argv)}'\n", 1)
    if not call.argv:
        return Result("", "sleep: missing operand\n", 1)
    naps = int(total * _NAPS_IN_A_SECOND)
    return Result(f"{naps} {max(0.0, total - naps / _NAPS_IN_A_SECOND):.4f}\n")


def _seconds(word: str) -> float:
    unit = _UNITS.get(word[-1:])
    seconds = float(word[:-1]) * unit if unit else float(word)
    if not seconds >= 0:
        raise ValueError(word)
    return min(seconds, _LONGEST_SECONDS)
