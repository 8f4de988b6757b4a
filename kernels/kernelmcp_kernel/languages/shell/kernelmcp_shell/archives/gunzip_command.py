"""`gunzip` and `gzip -d` of files, with Python's gzip: bashkit's own unpacks at most 10 MB, and nothing beyond 100:1.

All else is left to bashkit: bytes pass only between its own commands.
"""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, cast

from kernelmcp_shell.archives.tar_command import FOR_BASHKIT
from kernelmcp_shell.archives.trees import written
from kernelmcp_shell.builtin_interface import CommandFailed, Result
from kernelmcp_shell.files import FOLDER

if TYPE_CHECKING:
    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files

_LONG = {"--decompress": "d", "--uncompress": "d", "--keep": "k", "--force": "f"}
_SUFFIX = ".gz"


def make_gunzip(files: Files) -> Command:
    def run(call: Call) -> Result:
        words = [word for word in call.argv if word.startswith("-")]
        names = [word for word in call.argv if not word.startswith("-")]
        flags = {letter for word in words for letter in _LONG.get(word, word[1:] or "c")}
        if "d" not in flags or flags - set("dkf") or not names or not all(name.endswith(_SUFFIX) for name in names):
            return Result(exit_code=FOR_BASHKIT)
        errors = ""
        for name in names:
            try:
                _unpack(files, call.path(name), flags)
            except CommandFailed as error:
                errors += f"gzip: {name}: {error}\n"
        return Result("", errors, 1 if errors else 0)

    return run


def _unpack(files: Files, path: str, flags: set[str]) -> None:
    import gzip
    import zlib

    target = path.removesuffix(_SUFFIX)
    before = files.stat(target) if files.exists(target) else None
    if before is not None and ("f" not in flags or before.kind == FOLDER):
        raise CommandFailed(1, "already exists without .gz: -f replaces it")
    try:
        packed = files.read(path)
        if not packed:
            raise EOFError("unexpected end of file")
        try:
            written(files, target, cast("IO[bytes]", gzip.GzipFile(fileobj=io.BytesIO(packed))))
        except BaseException:
            if files.exists(target) and files.stat(target) != before:
                files.remove(target, recursive=False)
            raise
        if "k" not in flags:
            files.remove(path, recursive=False)
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise CommandFailed(1, f"not in gzip format, or damaged: {error}") from None
    except OSError as error:
        raise CommandFailed(1, error.strerror or str(error)) from None
