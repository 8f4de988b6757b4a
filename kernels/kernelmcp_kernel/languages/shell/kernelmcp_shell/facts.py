"""`nproc`, `free`, `df`, `uname` and `file`: they describe the session, as its Python does."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from kernelmcp_shell.builtin_interface import Result
from kernelmcp_shell.files import FOLDER

if TYPE_CHECKING:
    from typing import Any

    from kernelmcp_shell.builtin_interface import Call, Command
    from kernelmcp_shell.files import Files
    from kernelmcp_shell.quota import Quota

_MIB = 1 << 20
_UNITS = {"b": 1, "k": 1 << 10, "m": _MIB, "g": 1 << 30}
_HEAD_BYTES = 4096
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "PNG image data"),
    (b"\xff\xd8\xff", "JPEG image data"),
    (b"GIF8", "GIF image data"),
    (b"%PDF-", "PDF document"),
    (b"\x1f\x8b", "gzip compressed data"),
    (b"BZh", "bzip2 compressed data"),
    (b"\xfd7zXZ\0", "XZ compressed data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard compressed data"),
    (b"7z\xbc\xaf\x27\x1c", "7-zip archive data"),
    (b"Rar!\x1a\x07", "RAR archive data"),
    (b"SQLite format 3\0", "SQLite 3.x database"),
    (b"PAR1", "Apache Parquet"),
    (b"\x89HDF\r\n\x1a\n", "Hierarchical Data Format (version 5) data"),
    (b"\x93NUMPY", "NumPy data file"),
    (b"\0asm", "WebAssembly (wasm) binary module"),
    (b"\x7fELF", "ELF"),
)
_OFFICE = (
    (b"word/", "Microsoft Word 2007+"),
    (b"xl/", "Microsoft Excel 2007+"),
    (b"ppt/", "Microsoft PowerPoint 2007+"),
)


def make_facts(system: dict[str, Any], files: Files, quota: Quota) -> dict[str, Command]:
    """`system`: memory_mb, and sysname, nodename, release, version and machine as in Python's os.uname()."""

    def nproc(call: Call) -> Result:
        return Result("1\n")  # same as os.cpu_count()

    def free(call: Call) -> Result:
        letter = next(
            (word[1] for word in call.argv if word[:1] == "-" and word[1:2] in ("b", "k", "m", "g", "h")), "k"
        )
        total = int(system["memory_mb"]) * _MIB
        shown = _human(total) if letter == "h" else str(total // _UNITS[letter])
        return Result(f"{'':<7}{'total':>15}\n{'Mem:':<7}{shown:>15}\n")

    def df(call: Call) -> Result:
        total, used = quota.limits["max_bytes"], quota.used()
        human = any(word.startswith("-") and "h" in word for word in call.argv)
        size, taken, left = (
            _human(number) if human else str(number // 1024) for number in (total, used, max(0, total - used))
        )
        head = (
            f"{'Filesystem':<12}{'Size' if human else '1K-blocks':>12}{'Used':>12}{'Available':>12} Use% Mounted on\n"
        )
        return Result(
            f"{head}{'workspace':<12}{size:>12}{taken:>12}{left:>12} {100 * used // max(1, total):>3}% /workspace\n"
        )

    def uname(call: Call) -> Result:
        names = {"s": "sysname", "n": "nodename", "r": "release", "v": "version", "m": "machine"}
        asked = {letter for word in call.argv if word.startswith("-") for letter in word[1:]} or {"s"}
        if unknown := asked - set(names) - set("apio"):
            return Result("", f"uname: invalid option -- '{min(unknown)}'\n", 1)
        return Result(" ".join(str(system[name]) for each, name in names.items() if asked & {each, "a"}) + "\n")

    def file(call: Call) -> Result:
        brief = "-b" in call.argv
        names = [word for word in call.argv if not word.startswith("-")]
        lines = [
            _kind(files, call.path(name)) if brief else f"{name}: {_kind(files, call.path(name))}" for name in names
        ]
        return Result(
            "".join(f"{line}\n" for line in lines), "" if names else "Usage: file [-b] FILE...\n", int(not names)
        )

    return {"nproc": nproc, "free": free, "df": df, "uname": uname, "file": file}


def _human(number: int) -> str:
    size = float(number)
    for unit in ("B", "K", "M", "G"):
        if size < 1024 or unit == "G":
            break
        size /= 1024
    return f"{size:.0f}{unit}" if size >= 10 or size == int(size) else f"{size:.1f}{unit}"


def _kind(files: Files, path: str) -> str:
    path = posixpath.normpath(path)
    try:
        if files.stat(path).kind == FOLDER:
            return "directory"
        data = files.read(path)
    except OSError as error:
        return f"cannot open ({error.strerror})"
    if not data:
        return "empty"
    if data.startswith(b"PK\x03\x04"):
        office = (name for mark, name in _OFFICE if mark in data)
        return next(office, "Zip archive data") if b"[Content_Types].xml" in data else "Zip archive data"
    if data[257:262] == b"ustar":
        return "POSIX tar archive"
    if found := next((name for mark, name in _MAGIC if data.startswith(mark)), None):
        return found
    return _text(data[:_HEAD_BYTES], whole=len(data) <= _HEAD_BYTES)


def _text(head: bytes, *, whole: bool) -> str:
    if b"\0" in head:
        return "data"
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if whole or error.reason != "unexpected end of data":
            return "data"
        text = head[: error.start].decode()
    kind = "ASCII text" if text.isascii() else "UTF-8 Unicode text"
    if text.startswith("#!"):
        return f"{text[2:].split(chr(10))[0].strip()} script, {kind} executable"
    return "JSON data" if text[:1] in "{[" and whole and _is_json(text) else kind


def _is_json(text: str) -> bool:
    import json

    try:
        json.loads(text)
    except ValueError:
        return False
    return True
