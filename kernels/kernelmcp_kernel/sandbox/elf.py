"""The files that a program is linked against: its loader and its shared libraries, from the ELF headers (Linux).

Reads a few kilobytes and starts no process, so that it is fast enough for a kernel's start; on other systems, and for
files that are not ELF, it finds nothing.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3  # types of program headers
_NEEDED, _STRING_TABLE, _RPATH, _RUNPATH = 1, 5, 15, 29  # tags of the dynamic section
_MAX_NAME = 4096


class _Elf:
    """The dynamic section of one 64-bit little-endian file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        header = self._at(0, 64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        offset, size, count = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
        table = self._at(offset, size * count)
        # type, flags, offset, address, physical address, size in the file
        self._headers = [struct.unpack_from("<IIQQQQ", table, size * index) for index in range(count)]
        dynamic = next((self._at(h[2], h[5]) for h in self._headers if h[0] == _DYNAMIC), b"")
        self._entries = list(struct.iter_unpack("<qQ", dynamic[: len(dynamic) // 16 * 16]))

    def _at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

    def interpreter(self) -> str | None:
        found = next((self._at(h[2], h[5]) for h in self._headers if h[0] == _INTERPRETER), None)
        return found.rstrip(b"\0").decode() if found else None

    def strings(self, tag: int) -> list[str]:
        """The dynamic section's strings with this tag."""
        address = next((value for kind, value in self._entries if kind == _STRING_TABLE), 0)
        table = self._place_of(address)
        offsets = [value for kind, value in self._entries if kind == tag] if table else []
        return [self._at(table + offset, _MAX_NAME).split(b"\0", 1)[0].decode() for offset in offsets]

    def _place_of(self, address: int) -> int:
        """The file offset of the data that is loaded at this address; 0: none."""
        for kind, _, offset, start, _, size in self._headers:
            if kind == _LOAD and start <= address < start + size:
                return offset + address - start
        return 0


def linked_files(program: Path) -> list[str]:
    """Paths of the loader and of every shared library that is found, direct or indirect, without the program itself.
    Paths are those that the loader uses: they may be links."""
    found: dict[str, None] = {}
    pending = [str(program)]
    while pending:
        path = pending.pop()
        for name in _linked(path):
            if name not in found:
                found[name] = None
                pending.append(name)
    return list(found)


def _linked(path: str) -> Iterator[str]:
    try:
        with open(path, "rb", buffering=0) as file:
            elf = _Elf(file)
            interpreter = elf.interpreter()
            own = [folder for tag in (_RPATH, _RUNPATH) for text in elf.strings(tag) for folder in text.split(":")]
            names = elf.strings(_NEEDED)
    except (OSError, ValueError, struct.error):
        return
    if interpreter and os.path.exists(interpreter):
        yield interpreter
    folders = [folder.replace("$ORIGIN", os.path.dirname(path)) for folder in own]
    for name in names:
        yield from (p for f in (*folders, *_folders()) if f and os.path.exists(p := os.path.join(f, name)))


def _folders() -> list[str]:
    """The loader's search path: the standard folders, and those of Debian and of distributions with musl."""
    triplet = f"{platform.machine()}-linux-gnu"
    roots = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
    return [folder for root in roots for folder in (root, f"{root}/{triplet}")]
