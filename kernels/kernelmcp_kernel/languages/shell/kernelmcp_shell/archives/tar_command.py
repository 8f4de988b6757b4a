"""`tar` on archive files, with Python's tarfile: bashkit's own supports neither long names nor xz, and drops them.

Archives from or to a pipe are left to bashkit: bytes pass only between its own commands.
"""

from __future__ import annotations

import fnmatch
import io
import posixpath
from typing import TYPE_CHECKING

from kernelmcp_shell.archives.trees import tree, written
from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.files import FOLDER

if TYPE_CHECKING:
    import tarfile
    from typing import Any

    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

FOR_BASHKIT = 125
"""The exit status for command lines that bashkit should handle (shell.py's prelude)."""
_FAILED = 2
_COMPRESSIONS = {"z": "gz", "j": "bz2", "J": "xz"}
_SUFFIXES = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".tbz": "bz2", ".tbz2": "bz2", ".xz": "xz", ".txz": "xz"}
_LONG = {
    "--create": "c", "--extract": "x", "--get": "x", "--list": "t", "--verbose": "v", "--gzip": "z", "--bzip2": "j",
    "--xz": "J", "--auto-compress": "a", "--keep-old-files": "k",
}  # fmt: skip
_ZSTD = b"\x28\xb5\x2f\xfd"


def make_tar(files: Files) -> Command:
    def run(call: Call) -> Result:
        import lzma
        import tarfile
        import zlib

        try:
            return _Tar(files, call).run()
        except CommandFailed as error:
            return Result("", f"tar: {error}\n" if str(error) else "", error.exit_code)
        except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
            return Result("", f"tar: not a tar archive, or a damaged one: {error}\n", _FAILED)
        except OSError as error:
            return Result("", f"tar: {error.strerror or error}\n", _FAILED)

    return run


class _Tar:
    def __init__(self, files: Files, call: Call) -> None:
        self._files, self._call = files, call
        self._flags = self._archive = ""
        self._folder, self._strip = call.cwd, 0
        self._excluded: list[str] = []
        self._names: list[tuple[str, str]] = []
        """Each name with its folder."""
        self._said = self._errors = ""
        self._read_words(list(call.argv))

    def _read_words(self, words: list[str]) -> None:
        if words and not words[0].startswith("-"):
            words[0] = f"-{words[0]}"
        while words:
            word = words.pop(0)
            name, has_value, value = word.partition("=")
            if word.startswith("--") and name in ("--file", "--directory", "--exclude", "--strip-components"):
                self._valued(name[2], value if has_value else (words.pop(0) if words else ""))
            elif word in _LONG:
                self._flags += _LONG[word]
            elif word.startswith("-") and word != "-":
                self._read_letters(word, words)
            else:
                self._names.append((self._folder, word))

    def _read_letters(self, word: str, words: list[str]) -> None:
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "fC":
                # Old style, as in `tar cfv a.tar`: the value is the next word.
                self._valued("f" if letter == "f" else "d", words.pop(0) if words else "")
            elif letter in "cxtvzjJapmkh":
                self._flags += letter
            else:
                raise CommandFailed(FOR_BASHKIT, "")

    def _valued(self, kind: str, value: str) -> None:
        if kind == "f":
            self._archive = value
        elif kind == "d":
            self._folder = posixpath.normpath(posixpath.join(self._folder, value))
            if not self._files.exists(self._folder):
                raise CommandFailed(_FAILED, f"{value}: Cannot open: No such file or directory")
            if self._files.stat(self._folder).kind != FOLDER:
                raise CommandFailed(_FAILED, f"{value}: Cannot open: Not a directory")
        elif kind == "e":
            self._excluded.append(value)
        else:
            self._strip = int(value) if value.isdigit() else 0

    def run(self) -> Result:
        verbs = [letter for letter in self._flags if letter in "cxt"]
        if len(verbs) != 1 or self._archive in ("", "-"):
            raise CommandFailed(FOR_BASHKIT, "")
        path = posixpath.normpath(self._call.path(self._archive))
        if verbs == ["c"]:
            self._create(path)
        else:
            self._read(path, extract=verbs == ["x"])
        return Result(_printable(self._said), _printable(self._errors), _FAILED if self._errors else 0)

    def _create(self, path: str) -> None:
        import tarfile

        if not self._names:
            raise CommandFailed(_FAILED, "Cowardly refusing to create an empty archive")
        kind = next((_COMPRESSIONS[flag] for flag in self._flags if flag in _COMPRESSIONS), "")
        if not kind and "a" in self._flags:
            kind = _SUFFIXES.get(posixpath.splitext(path)[1], "")
        made = io.BytesIO()
        mode: Any = f"w:{kind}"
        archive = tarfile.open(fileobj=made, mode=mode, format=tarfile.GNU_FORMAT)  # noqa: SIM115
        with archive:
            for folder, name in self._names:
                self._add(archive, folder, name, path)
        self._files.write(path, made.getvalue())

    def _add(self, archive: tarfile.TarFile, folder: str, name: str, own: str) -> None:
        import tarfile

        top = posixpath.normpath(name if name.startswith("/") else posixpath.join(folder, name))
        if not self._files.exists(top):
            self._errors += f"tar: {name}: Cannot stat: No such file or directory\n"
            return
        for path, inner, is_folder in tree(self._files, top):
            inside = posixpath.join(name.rstrip("/") or "/", inner).lstrip("/") if inner else name.strip("/") or "."
            if path == own or self._is_excluded(inside):
                continue
            facts = self._files.stat(path)
            info = tarfile.TarInfo(inside)
            info.mode, info.mtime = facts.mode, int(facts.modified)
            info.uid = info.gid = 1000
            self._say(f"{inside}/" if is_folder else inside)
            if is_folder:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                content = self._files.read(path)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))

    def _is_excluded(self, name: str) -> bool:
        parts = name.split("/")
        pieces = {"/".join(parts[at:end]) for at in range(len(parts)) for end in range(at + 1, len(parts) + 1)}
        return any(fnmatch.fnmatchcase(piece, pattern) for piece in pieces for pattern in self._excluded)

    def _read(self, path: str, *, extract: bool) -> None:
        import tarfile

        if not self._files.exists(path):
            raise CommandFailed(_FAILED, f"{self._archive}: Cannot open: No such file or directory")
        data = self._files.read(path)
        if data.startswith(_ZSTD):
            raise CommandFailed(_FAILED, f"{self._archive} is compressed with zstd, which is not supported here")
        wanted = [name.rstrip("/") for _, name in self._names]
        found: set[str] = set()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                own = [name for name in wanted if member.name == name or member.name.startswith(f"{name}/")]
                if (wanted and not own) or self._is_excluded(member.name):
                    continue
                found.update(own)
                if not extract:
                    self._list(member)
                    continue
                try:
                    self._extract(archive, member)
                except OSError as error:
                    self._errors += f"tar: {member.name}: {error.strerror or error}\n"
                except KeyError:
                    self._errors += f"tar: {member.name}: {member.linkname}, to which it is a hard link, is not there\n"
        for name in wanted:
            if name not in found:
                self._errors += f"tar: {name}: Not found in archive\n"

    def _list(self, member: tarfile.TarInfo) -> None:
        import time

        name = f"{member.name}/" if member.isdir() else member.name
        if "v" not in self._flags:
            self._said += f"{name}\n"
            return
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(member.mtime))
        kind = "d" if member.isdir() else "l" if member.issym() else "-"
        mode = "".join(sign if member.mode >> 8 - at & 1 else "-" for at, sign in enumerate("rwxrwxrwx"))
        owner = f"{member.uname or member.uid}/{member.gname or member.gid}"
        link = f" -> {member.linkname}" if member.issym() else ""
        self._said += f"{kind}{mode} {owner} {member.size:>{max(1, 18 - len(owner))}} {when} {name}{link}\n"

    def _extract(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")][self._strip :]
        if not parts or ".." in parts:
            if ".." in parts:
                self._errors += f"tar: {member.name}: Member name contains '..': skipped\n"
            return
        target = posixpath.join(self._folder, *parts)
        self._say(f"{member.name}/" if member.isdir() else member.name)
        if member.isdir():
            self._files.make_folder(target, parents=True)
        elif member.isreg() or member.islnk():
            if "k" in self._flags and self._files.exists(target):
                self._errors += f"tar: {member.name}: Cannot open: File exists\n"
                return
            content = archive.extractfile(member)
            written(self._files, target, content if content is not None else io.BytesIO())
            if member.mode & 0o100:
                self._files.change_mode(target, member.mode & 0o777)
        else:
            self._errors += f"tar: {member.name}: links and devices cannot be made here: skipped\n"

    def _say(self, name: str) -> None:
        if "v" in self._flags:
            self._said += f"{name}\n"


def _printable(text: str) -> str:
    """Names in an archive may have any bytes."""
    return text.encode(errors="replace").decode()
