"""`rm`: bashkit's takes an empty name for the working directory, and removes it."""

from __future__ import annotations

import errno
import posixpath
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.commands.options import read_options
from kernelmcp_shell.files import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_WORDS = {"recursive": "r", "force": "f", "verbose": "v", "dir": "d", "one-file-system": "x", "preserve-root": "x"}


def make_rm(files: Files) -> Command:
    def rm(call: Call) -> Result:
        try:
            options, names = read_options("rm", call.argv, "rRfivd", _WORDS)
        except CommandFailed as failed:
            return Result("", f"{failed}\n", failed.exit_code)
        if not names and "f" not in options:
            return Result("", "rm: missing operand\n", 1)
        removal = _Removal(files, call, options)
        for name in names:
            try:
                removal.remove(name)
            except OSError as error:
                removal.errors += f"rm: cannot remove '{name}': {error.strerror}\n"
                removal.failed = True
            except CommandFailed as failed:
                removal.errors += f"rm: {failed}\n"
                removal.failed = True
        return Result(removal.said, removal.errors, int(removal.failed))

    return rm


class _Removal:
    """`failed`: not all of `errors` are; they have the questions of `-i`, too."""

    def __init__(self, files: Files, call: Call, options: dict[str, str]) -> None:
        self._files = files
        self._call = call
        self._recursive = bool(options.keys() & {"r", "R"})
        self._options = options
        self._force = "f" in options and "i" not in list(options)[list(options).index("f") :]
        self._asks = "i" in options and not self._force
        self._answers = iter((call.stdin or "").splitlines())
        self.said = self.errors = ""
        self.failed = False

    def remove(self, name: str) -> None:
        """Raises OSError, or CommandFailed."""
        last = posixpath.basename(name.rstrip("/"))
        path = self._call.normal_path(name)
        if last in (".", "..") and self._recursive:
            raise CommandFailed(1, f"refusing to remove '.' or '..' directory: skipping '{name}'")
        if path.strip("/") == "" and self._recursive:
            raise CommandFailed(1, "it is dangerous to operate recursively on '/'")
        try:
            if not name:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory")
            is_folder = self._files.stat(path, follow=name.endswith("/")).kind == FOLDER
            if not is_folder and name.endswith("/"):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        except (FileNotFoundError, NotADirectoryError):
            if self._force:
                return
            raise
        if is_folder and not self._recursive and "d" not in self._options:
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        if self._asks and not self._is_granted(name, is_folder):
            return
        removed = list(self._names(name, path, is_folder)) if "v" in self._options else []
        self._files.remove(path, recursive=self._recursive)
        self.said += "".join(f"removed {'directory ' * each_is_folder}'{each}'\n" for each, each_is_folder in removed)

    def _is_granted(self, name: str, is_folder: bool) -> bool:
        if is_folder and self._recursive:
            raise CommandFailed(1, f"cannot remove '{name}': -i asks about files only here, not about directories")
        self.errors += f"rm: remove {'directory' if is_folder else 'regular file'} '{name}'? "
        answer = next(self._answers, None)
        if answer is None:
            raise CommandFailed(1, "nobody can answer: give the answers as input, or use -f")
        return answer[:1] in ("y", "Y")

    def _names(self, name: str, path: str, is_folder: bool) -> Iterator[tuple[str, bool]]:
        """A file or folder and what is in it, in the order of their removal."""
        found = [(name, path, is_folder)]
        for outer, outer_path, has_more in found:
            if has_more and self._recursive:
                found += [
                    (posixpath.join(outer, each), posixpath.join(outer_path, each), facts.kind == FOLDER)
                    for each, facts in self._files.list(outer_path)
                ]
        return ((each, each_is_folder) for each, _, each_is_folder in reversed(found))
