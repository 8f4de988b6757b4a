"""`cp` and `mv`: bashkit's ignore most options, and rename a file to the folder that is missing."""

from __future__ import annotations

import errno
import posixpath
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.commands.options import read_options
from kernelmcp_shell.files import FOLDER, LINK, Facts

if TYPE_CHECKING:
    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_LETTERS = "bniufTt:v"
_WORDS = {
    "backup": "b", "no-clobber": "n", "interactive": "i", "update": "u", "force": "f", "no-target-directory": "T",
    "target-directory=": "t", "verbose": "v",
}  # fmt: skip
# What -p, -a and -d keep is kept as far as it can be: modes, not times.
_COPY_WORDS = {
    **_WORDS, "recursive": "r", "archive": "a", "preserve": "p", "dereference": "L",
    "no-dereference": "P", "parents": "parents",
}  # fmt: skip
_PRESERVE = re.compile(r"--preserve=(?:(?:mode|ownership|timestamps|links|context|xattr|all)(?:,(?!$)|$))+")
_OUTPUT = ("/dev/stdout", "/dev/fd/1")
_DESCRIPTOR = re.compile(r"/dev/(?:stdin|fd/\d+)")


def make_copy_commands(files: Files) -> dict[str, Command]:
    def copy(call: Call) -> Result:
        return _run(files, call, f"{_LETTERS}rRapdLP", _COPY_WORDS)

    def move(call: Call) -> Result:
        return _run(files, call, _LETTERS, _WORDS)

    return {"cp": copy, "mv": move}


def _run(files: Files, call: Call, letters: str, words: dict[str, str]) -> Result:
    try:
        argv = ["--preserve" if _PRESERVE.fullmatch(word) else word for word in call.argv]
        options, names = read_options(call.name, argv, letters, words)
        transfer = _Transfer(files, call, options)
        pairs = transfer.pairs(names)
    except CommandFailed as failed:
        return Result("", f"{failed}\n", failed.exit_code)
    for source, target in pairs:
        transfer.transfer(source, target)
    return Result(transfer.said, transfer.errors, int(transfer.failed))


class _Transfer:
    """One call. `errors` has the questions of `-i`, too."""

    def __init__(self, files: Files, call: Call, options: dict[str, str]) -> None:
        self._files = files
        self._call = call
        self._options = options
        self._moves = call.name == "mv"
        self._verb = "move" if self._moves else "copy"
        self._recursive = not options.keys().isdisjoint("rRa")
        self._follows = not self._moves and (not self._recursive or "L" in options)
        deciding = "nif" if self._moves else "ni"  # the last one counts
        self._if_there = next((letter for letter in reversed(options) if letter in deciding), "f")
        self._answers = iter((call.stdin or "").splitlines())
        self._made: set[str] = set()
        self.said = self.errors = ""
        self.failed = False

    def pairs(self, names: list[str]) -> list[tuple[str, str]]:
        """Each source with its target, as they are named. Raises CommandFailed."""
        command, options = self._call.name, self._options
        if not names:
            raise CommandFailed(1, f"{command}: missing file operand")
        if "t" in options:
            names = [*names, options["t"]]
        if len(names) == 1:
            raise CommandFailed(1, f"{command}: missing destination file operand after '{names[0]}'")
        *sources, last = names
        if "T" in options and len(names) > 2:
            raise CommandFailed(1, f"{command}: extra operand '{names[2]}'")
        facts = self._facts(last)
        if "T" not in options and facts is not None and facts.kind == FOLDER:
            return [(source, posixpath.join(last, self._below(source))) for source in sources]
        if len(sources) > 1 or "t" in options or "parents" in options:
            raise CommandFailed(1, f"{command}: target '{last}' is not a directory")
        return [(sources[0], last)]

    def _below(self, source: str) -> str:
        """The path of a source in a folder. `.` and `..` stand for their content."""
        if "parents" in self._options:
            return posixpath.normpath(f"/{source}").lstrip("/")
        last = posixpath.basename(source.rstrip("/"))
        return "." if last == ".." else last

    def transfer(self, source: str, target: str) -> None:
        top = self._path(target)
        pending = [(source, target)]
        while pending:
            source, target = pending.pop()
            try:
                pending += self._transfer(source, target, top)
            except CommandFailed as failed:
                self._fail(str(failed))
            except OSError as error:
                self._fail(f"cannot {self._verb} '{source}' to '{target}': {error.strerror or error}")

    def _transfer(self, source: str, target: str, top: str) -> list[tuple[str, str]]:
        """Return what is inside, if it is a folder to copy. Raises OSError and CommandFailed."""
        path, to = self._path(source), self._path(target)
        is_stream = not self._moves and _DESCRIPTOR.fullmatch(path) is not None
        facts = None if is_stream else self._facts(source, follow=self._follows)
        if facts is None and not is_stream:
            raise CommandFailed(1, f"cannot stat '{source}': {self._why_not(source)}")
        is_folder = facts is not None and facts.kind == FOLDER
        there = self._facts(target)
        self._check(source, target, is_folder=is_folder, there=there)
        if is_folder and (to.startswith(f"{path}/") if self._moves else path == top):
            raise CommandFailed(1, f"cannot {self._verb} a directory, '{source}', into itself, '{target}'")
        if "parents" in self._options:
            self._files.make_folder(posixpath.dirname(to), parents=True)
        if is_folder and not self._moves:
            if there is None:
                self._files.make_folder(to, parents=False)
                self._say(source, target)
            inside = self._files.list(path)
            return [(posixpath.join(source, name), posixpath.join(target, name)) for name, _ in reversed(inside)]
        if there is None or self._may_replace(source, target, facts, there):
            self._act(source, target, facts)
            self._made.add(to)
            self._say(source, target)
        return []

    def _check(self, source: str, target: str, *, is_folder: bool, there: Facts | None) -> None:
        """Raises OSError and CommandFailed."""
        if is_folder and not self._moves and not self._recursive:
            raise CommandFailed(1, f"-r not specified; omitting directory '{source}'")
        if self._moves and posixpath.basename(source.rstrip("/")) in (".", ".."):
            raise OSError(errno.EBUSY, "Device or resource busy")
        if not target:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if target.endswith("/") and not is_folder and there is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory")
        if there is not None and self._path(source) == self._path(target):
            raise CommandFailed(1, f"'{source}' and '{target}' are the same file")
        if there is not None and is_folder != (there.kind == FOLDER):
            kinds = ("non-directory", "directory") if is_folder else ("directory", "non-directory")
            raise CommandFailed(1, f"cannot overwrite {kinds[0]} '{target}' with {kinds[1]}")

    def _act(self, source: str, target: str, facts: Facts | None) -> None:
        """Move or copy one thing. Raises OSError and CommandFailed."""
        path, to = self._path(source), self._path(target)
        if self._moves:
            self._move(source, target, facts)
        elif to in _OUTPUT:
            self._print(self._call.descriptor(path) if facts is None else self._files.read(path))
        elif facts is None:
            self._files.write(to, self._call.descriptor(path))
        elif facts.kind == LINK:
            self._files.link(self._files.read_link(path), to)
        else:
            self._files.copy(path, to, with_mode=not self._options.keys().isdisjoint("pa"))

    def _print(self, content: bytes) -> None:
        """Raises CommandFailed."""
        try:
            self.said += content.decode()
        except UnicodeDecodeError:
            raise CommandFailed(1, "what is not UTF-8 text cannot be copied to /dev/stdout here: use cat") from None

    def _move(self, source: str, target: str, facts: Facts | None) -> None:
        path, to = self._path(source), self._path(target)
        try:
            self._files.rename(path, to)
        except OSError as error:
            if error.errno != errno.EXDEV or facts is None or facts.kind != FOLDER:
                raise
            if self._files.exists(to) and self._files.list(to):
                raise OSError(errno.ENOTEMPTY, "Directory not empty") from None
            copying = _Transfer(self._files, self._call._replace(name="cp"), {"r": ""})
            copying.transfer(source, target)
            if copying.failed:
                raise CommandFailed(1, copying.errors.removeprefix("cp: ").rstrip()) from None
            self._files.remove(path, recursive=True)

    def _may_replace(self, source: str, target: str, facts: Facts | None, there: Facts) -> bool:
        """Raises OSError and CommandFailed."""
        to = self._path(target)
        if to in self._made:
            raise CommandFailed(1, f"will not overwrite just-created '{target}' with '{source}'")
        if self._if_there == "n" or ("u" in self._options and facts is not None and facts.modified <= there.modified):
            return False
        if self._if_there == "i":
            self.errors += f"{self._call.name}: overwrite '{target}'? "
            if (answer := next(self._answers, None)) is None:
                raise CommandFailed(1, "nobody can answer: give the answers as input, or use -f or -n")
            if answer[:1] not in ("y", "Y"):
                return False
        if "b" in self._options:
            if self._path(source) == f"{to}~":
                done = "moved" if self._moves else "copied"
                raise CommandFailed(1, f"backing up '{target}' might destroy source;  '{source}' not {done}")
            self._files.rename(to, f"{to}~")
        return True

    def _path(self, name: str) -> str:
        return self._call.normal_path(name)

    def _facts(self, name: str, *, follow: bool = True) -> Facts | None:
        """None if there is no such file, or a name with a slash at its end that is no folder's."""
        with suppress(OSError):
            found = self._files.stat(self._path(name), follow=follow or name.endswith("/"))
            return found if name and (found.kind == FOLDER or not name.endswith("/")) else None
        return None

    def _why_not(self, name: str) -> str:
        is_file = name.endswith("/") and self._files.exists(self._path(name))
        return "Not a directory" if is_file else "No such file or directory"

    def _say(self, source: str, target: str) -> None:
        if "v" in self._options:
            self.said += f"{'renamed ' * self._moves}'{source}' -> '{target}'\n"

    def _fail(self, text: str) -> None:
        self.failed = True
        self.errors += f"{self._call.name}: {text}\n"
