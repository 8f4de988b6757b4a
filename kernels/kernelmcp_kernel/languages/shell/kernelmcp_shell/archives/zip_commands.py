"""`zip` and `unzip`, with Python's zipfile: bashkit's own use a format that no other program reads or writes."""

from __future__ import annotations

import fnmatch
import io
import posixpath
from typing import TYPE_CHECKING

from kernelmcp_shell.archives.trees import tree, written
from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.files import FOLDER

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator

    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_FAILED, _NOTHING_FOUND, _NOT_A_ZIP = 1, 11, 9
_BAD_USE, _BAD_ARGUMENTS = 10, 16
_FIRST_YEAR = 1980
_CHUNK = 1 << 20


def make_zip_commands(files: Files) -> dict[str, Command]:
    return {
        "zip": _failing(lambda call: _Zip(files, call).run()),
        "unzip": _failing(lambda call: _Unzip(files, call).run()),
    }


def _failing(command: Command) -> Command:
    def run(call: Call) -> Result:
        import zipfile
        import zlib

        try:
            return command(call)
        except CommandFailed as error:
            return Result("", f"{call.name}: {error}\n", error.exit_code)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            return Result("", f"{call.name}: not a zip archive, or a damaged one: {error}\n", _NOT_A_ZIP)
        except (NotImplementedError, RuntimeError) as error:  # a method that is not there, a password
            return Result("", f"{call.name}: {error}\n", _FAILED)
        except OSError as error:
            return Result("", f"{call.name}: {error.strerror or error}\n", _FAILED)

    return run


class _Options:
    """Letters before the names; -x and -i with patterns after the names, -d with a folder for unzip."""

    def __init__(self, call: Call, letters: str, valued: str, lists: str) -> None:
        self.flags = ""
        self.values: dict[str, str] = {}
        self.lists: dict[str, list[str]] = {letter: [] for letter in lists}
        self.names: list[str] = []
        words = iter(call.argv)
        collecting = ""
        for word in words:
            if not word.startswith("-") or word == "-":
                (self.lists[collecting] if collecting else self.names).append(word)
                continue
            collecting = ""
            for letter in word[1:]:
                if letter in lists:
                    collecting = letter
                elif letter in valued:
                    self.values[letter] = next(words, "")
                elif letter in letters:
                    self.flags += letter
                else:
                    raise CommandFailed(_BAD_USE, f"-{letter} is not supported here: python has zipfile")


class _Zip:
    def __init__(self, files: Files, call: Call) -> None:
        self._files, self._call = files, call
        self._options = _Options(call, "rqjuvoymFDX0123456789", "", "xi")
        self._said = ""

    def run(self) -> Result:
        import zipfile

        archive, *names = self._options.names or [""]
        if not names:
            raise CommandFailed(_BAD_USE, "name an archive, and files for it: zip [-r] ARCHIVE.zip NAME...")
        target = posixpath.normpath(self._call.path(archive))
        if not self._files.exists(target) and "." not in posixpath.basename(archive):
            archive, target = f"{archive}.zip", f"{target}.zip"
        if archive == "-":
            raise CommandFailed(_BAD_USE, "the archive cannot be written to stdout: name a file")
        added: dict[str, str] = {}
        for path, name in self._to_add(names, target):
            if added.setdefault(name, path) != path:
                raise CommandFailed(
                    _BAD_ARGUMENTS, f"two files would be {name} in the archive: {added[name]} and {path}"
                )
        if not added:
            return Result("", f"\nzip error: Nothing to do! ({archive})\n", 12)
        old = io.BytesIO(self._files.read(target) if self._files.exists(target) else b"")
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as into:
            replaced = self._keep_others(old, set(added), into)
            for name, path in added.items():
                self._add(into, path, name, "updating" if name in replaced else "adding")
        self._files.write(target, made.getvalue())
        if "m" in self._options.flags:
            for path in {path for name, path in added.items() if not name.endswith("/")}:
                self._files.remove(path, recursive=False)
        return Result("" if "q" in self._options.flags else self._said)

    def _to_add(self, names: list[str], archive: str) -> Iterator[tuple[str, str]]:
        for name in names:
            path = posixpath.normpath(self._call.path(name))
            if not self._files.exists(path):
                self._said += f"\tzip warning: name not matched: {name}\n"
                continue
            recursive = "r" in self._options.flags
            for found, inner, is_folder in tree(self._files, path, recursive=recursive):
                inside = posixpath.normpath(posixpath.join(name, inner)).lstrip("/")
                while inside.startswith("../"):
                    inside = inside[3:]
                inside = posixpath.basename(inside) if "j" in self._options.flags else inside
                if found == archive or inside in ("", ".", "..") or not self._is_wanted(inside):
                    continue
                if not is_folder:
                    yield found, inside
                elif not set("jD") & set(self._options.flags):
                    yield found, f"{inside}/"

    def _is_wanted(self, name: str) -> bool:
        excluded, included = self._options.lists["x"], self._options.lists["i"]
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in excluded):
            return False
        return not included or any(fnmatch.fnmatchcase(name, pattern) for pattern in included)

    def _keep_others(self, old: io.BytesIO, added: set[str], into: zipfile.ZipFile) -> set[str]:
        import zipfile

        if not old.getbuffer().nbytes:
            return set()
        with zipfile.ZipFile(old) as before:
            for info in before.infolist():
                if info.filename not in added:
                    into.writestr(info, before.read(info))
            return added & set(before.namelist())

    def _add(self, into: zipfile.ZipFile, path: str, name: str, verb: str) -> None:
        import time
        import zipfile

        facts = self._files.stat(path)
        when = time.localtime(facts.modified)[:6]
        info = zipfile.ZipInfo(name, when if when[0] >= _FIRST_YEAR else (_FIRST_YEAR, 1, 1, 0, 0, 0))
        info.create_system = 3  # Unix, so that the mode is used
        content = b"" if name.endswith("/") else self._files.read(path)
        info.external_attr = ((0o040000 if name.endswith("/") else 0o100000) | facts.mode) << 16
        info.compress_type = zipfile.ZIP_STORED if "0" in self._options.flags or not content else zipfile.ZIP_DEFLATED
        level = next((int(flag) for flag in reversed(self._options.flags) if flag.isdigit() and flag != "0"), None)
        into.writestr(info, content, compresslevel=level)
        saved = round(100 * (1 - info.compress_size / len(content))) if content else 0
        how = "stored" if info.compress_type == zipfile.ZIP_STORED else "deflated"
        self._said += f"  {verb}: {name} ({how} {max(saved, 0)}%)\n"


class _Unzip:
    def __init__(self, files: Files, call: Call) -> None:
        self._files, self._call = files, call
        self._options = _Options(call, "lvqontjpaZ1", "d", "x")
        self._said = ""
        self._errors = ""

    def run(self) -> Result:
        import zipfile

        if not self._options.names:
            raise CommandFailed(_BAD_USE, "name an archive: unzip [-l] ARCHIVE.zip [-d FOLDER]")
        archive, *patterns = self._options.names
        path = self._call.path(archive)
        if not self._files.exists(path) and self._files.exists(f"{path}.zip"):
            archive, path = f"{archive}.zip", f"{path}.zip"
        if not self._files.exists(path):
            raise CommandFailed(_NOT_A_ZIP, f"cannot find {archive}")
        with zipfile.ZipFile(io.BytesIO(self._files.read(path))) as opened:
            chosen = [info for info in opened.infolist() if self._is_wanted(info.filename, patterns)]
            if patterns and not chosen:
                return Result("", f"caution: filename not matched:  {' '.join(patterns)}\n", _NOTHING_FOUND)
            flags = set(self._options.flags)
            if flags & set("lvZ1"):
                return Result(self._listing(archive, chosen))
            if "p" in flags:
                return self._print(opened, chosen)
            if "q" not in flags:
                self._said += f"Archive:  {archive}\n"
            for info in chosen:
                self._test(opened, info) if "t" in flags else self._extract(opened, info)
        return Result(self._said, self._errors, _FAILED if self._errors else 0)

    def _is_wanted(self, name: str, patterns: list[str]) -> bool:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._options.lists["x"]):
            return False
        return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    def _listing(self, archive: str, chosen: list[zipfile.ZipInfo]) -> str:
        if set("1Z") & set(self._options.flags):
            return "".join(f"{info.filename}\n" for info in chosen)
        lines = [f"Archive:  {archive}", "  Length      Date    Time    Name", "---------  ---------- -----   ----"]
        for info in chosen:
            year, month, day, hour, minute, _ = info.date_time
            lines.append(f"{info.file_size:>9}  {year:04}-{month:02}-{day:02} {hour:02}:{minute:02}   {info.filename}")
        count = f"{len(chosen)} file{'' if len(chosen) == 1 else 's'}"
        total = sum(info.file_size for info in chosen)
        lines += ["---------                     -------", f"{total:>9}                     {count}"]
        return "\n".join(lines) + "\n"

    def _print(self, opened: zipfile.ZipFile, chosen: list[zipfile.ZipInfo]) -> Result:
        try:
            return Result("".join(opened.read(info).decode() for info in chosen if not info.is_dir()))
        except UnicodeDecodeError:
            raise CommandFailed(_FAILED, "what -p prints must be UTF-8 text: extract it to a file") from None

    def _test(self, opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        with opened.open(info) as content:
            while content.read(_CHUNK):
                pass
        self._say(f"    testing: {info.filename}   OK\n")

    def _extract(self, opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        parts = [part for part in info.filename.split("/") if part not in ("", ".", "..")]
        if "j" in self._options.flags:
            parts = [] if info.is_dir() else parts[-1:]
        if not parts:
            return
        shown = posixpath.join(self._options.values.get("d", ""), *parts)
        target = posixpath.normpath(self._call.path(shown))
        if info.is_dir():
            self._files.make_folder(target, parents=True)
            self._say(f"   creating: {shown}/\n")
            return
        if self._files.exists(target) and not set("on") & set(self._options.flags):
            self._errors += f"unzip: {shown} is there already: -o overwrites, -n keeps what is there\n"
            return
        if self._files.exists(target) and ("n" in self._options.flags or self._files.stat(target).kind == FOLDER):
            return
        with opened.open(info) as content:
            written(self._files, target, content)
        mode = info.external_attr >> 16 & 0o777
        if info.create_system == 3 and mode & 0o100:
            self._files.change_mode(target, mode)
        verb = "extracting" if info.compress_type == 0 else "inflating"
        self._say(f"{verb:>11}: {shown}\n")

    def _say(self, text: str) -> None:
        if "q" not in self._options.flags:
            self._said += text
