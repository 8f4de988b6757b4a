"""A file system for bashkit, implemented by functions: its stable C interface, version 1 ("bashkit.FileSystem.v1").

bashkit's own `FileSystem.real` is unsuitable: it has no quota, does not report changes, copies a whole file to append a
line, waits for the disk at every write, and leaves its temporary files where others see them.
"""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING

from kernelmcp_shell.files import Facts, Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NAME = b"bashkit.FileSystem.v1"
_VERSION = 1

# BashkitFsAbiErrorKind; 0 means any other error, whose text is shown.
_KINDS = {
    errno.ENOENT: 1,
    errno.EEXIST: 2,
    errno.EACCES: 3,
    errno.EPERM: 3,
    errno.EISDIR: 5,
    errno.ENOTDIR: 6,
    errno.ENOTEMPTY: 7,
}


class _Text(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _Bytes(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class _Error(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint32), ("message", _Bytes)]


class _Metadata(ctypes.Structure):
    _fields_ = [
        ("file_type", ctypes.c_uint8),
        ("_reserved", ctypes.c_uint8 * 7),
        ("size", ctypes.c_uint64),
        ("mode", ctypes.c_uint32),
        ("modified_secs", ctypes.c_int64),
        ("modified_nanos", ctypes.c_uint32),
        ("created_secs", ctypes.c_int64),
        ("created_nanos", ctypes.c_uint32),
    ]


class _Entry(ctypes.Structure):
    _fields_ = [("name", _Bytes), ("metadata", _Metadata)]


class _Entries(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def _function(*arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, *arguments, ctypes.POINTER(_Error))


_HOLD = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_FREE_BYTES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Bytes)
_FREE_ENTRIES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Entries)
_ON_PATH = _function(_Text)
_ON_TWO = _function(_Text, _Text)
_FLAGGED = _function(_Text, ctypes.c_bool)

_FUNCTIONS: dict[str, Any] = {
    "read_file": _function(_Text, ctypes.POINTER(_Bytes)),
    "write_file": _ON_TWO,
    "append_file": _ON_TWO,
    "mkdir": _FLAGGED,
    "remove": _FLAGGED,
    "stat": _function(_Text, ctypes.POINTER(_Metadata)),
    "read_dir": _function(_Text, ctypes.POINTER(_Entries)),
    "exists": _function(_Text, ctypes.POINTER(ctypes.c_bool)),
    "rename": _ON_TWO,
    "copy": _ON_TWO,
    "symlink": _ON_TWO,
    "read_link": _function(_Text, ctypes.POINTER(_Bytes)),
    "chmod": _function(_Text, ctypes.c_uint32),
}


class _Table(ctypes.Structure):
    _fields_ = [
        *_FUNCTIONS.items(),
        ("free_bytes", _FREE_BYTES),
        ("free_dir_entries", _FREE_ENTRIES),
    ]


class _Handle(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("_reserved", ctypes.c_uint32),
        ("instance", ctypes.c_void_p),
        ("retain", _HOLD),
        ("release", _HOLD),
        ("vtable", ctypes.POINTER(_Table)),
    ]


class FileSystemAbi:
    """Provides `files` to bashkit. Must live as long as the process: bashkit calls into it."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lent: dict[int, list[Any]] = {}  # memory that bashkit reads until it frees it, by address
        functions = {name: kind(self._guarded(getattr(self, f"_{name}"))) for name, kind in _FUNCTIONS.items()}
        self._table = _Table(
            **functions, free_bytes=_FREE_BYTES(self._free), free_dir_entries=_FREE_ENTRIES(self._free)
        )
        hold = _HOLD(_hold)
        self._handle = _Handle(_VERSION, 0, ctypes.addressof(self._table), hold, hold, ctypes.pointer(self._table))

    def capsule(self) -> object:
        """The argument of bashkit's `FileSystem.from_capsule`."""
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._handle), _NAME, None)

    def _guarded(self, act: Callable[..., None]) -> Callable[..., int]:
        def call(_instance: int, *arguments: Any) -> int:
            try:
                act(*arguments[:-1])
            except OSError as error:
                self._fail(arguments[-1], _KINDS.get(error.errno or 0, 0), error.strerror or str(error))
            except Exception as error:  # noqa: BLE001  # nothing may get out into C
                self._fail(arguments[-1], 0, f"{type(error).__name__}: {error}")
            else:
                return 0
            return 1

        return call

    def _fail(self, out: Any, kind: int, message: str) -> None:
        out[0].kind = kind
        self._lend(out[0].message, message.encode("utf-8", "replace"))

    def _lend(self, out: Any, data: bytes) -> None:
        out.ptr, out.len = None, len(data)
        if data:
            out.ptr = address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
            self._lent.setdefault(address, []).append(data)

    def _free(self, _instance: int, given: Any) -> None:
        if (lent := self._lent.get(given.ptr or 0)) is not None:
            lent.pop()
            if not lent:
                del self._lent[given.ptr]

    def _read_file(self, path: Any, out: Any) -> None:
        self._lend(out[0], self._files.read(_text(path)))

    def _write_file(self, path: Any, content: Any) -> None:
        self._files.write(_text(path), ctypes.string_at(content.ptr, content.len))

    def _append_file(self, path: Any, content: Any) -> None:
        self._files.write(_text(path), ctypes.string_at(content.ptr, content.len), append=True)

    def _mkdir(self, path: Any, recursive: bool) -> None:
        self._files.make_folder(_text(path), parents=recursive)

    def _remove(self, path: Any, recursive: bool) -> None:
        self._files.remove(_text(path), recursive=recursive)

    def _stat(self, path: Any, out: Any) -> None:
        _describe(out[0], self._files.stat(_text(path)))

    def _read_dir(self, path: Any, out: Any) -> None:
        found = self._files.list(_text(path))
        entries = (_Entry * len(found))()
        names = [name.encode() for name, _ in found]
        for entry, name, (_, facts) in zip(entries, names, found, strict=True):
            entry.name.ptr = ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p).value
            entry.name.len = len(name)
            _describe(entry.metadata, facts)
        out[0].ptr, out[0].len = None, len(found)
        if found:
            out[0].ptr = ctypes.addressof(entries)
            self._lent.setdefault(out[0].ptr, []).append((entries, names))

    def _exists(self, path: Any, out: Any) -> None:
        out[0] = self._files.exists(_text(path))

    def _rename(self, source: Any, target: Any) -> None:
        self._files.rename(_text(source), _text(target))

    def _copy(self, source: Any, target: Any) -> None:
        self._files.copy(_text(source), _text(target))

    def _symlink(self, target: Any, link: Any) -> None:
        self._files.link(_text(target), _text(link))

    def _read_link(self, path: Any, out: Any) -> None:
        self._lend(out[0], self._files.read_link(_text(path)).encode("utf-8", "replace"))

    def _chmod(self, path: Any, mode: int) -> None:
        self._files.change_mode(_text(path), mode)


def _hold(_instance: int) -> None:
    """A no-op: the object lives as long as the process."""


def _text(given: Any) -> str:
    return ctypes.string_at(given.ptr, given.len).decode() if given.len else ""


def _describe(out: Any, facts: Facts) -> None:
    seconds = int(facts.modified // 1)
    nanoseconds = int((facts.modified - seconds) * 1e9)
    out.file_type, out.size, out.mode = facts.kind, facts.size, facts.mode
    out.modified_secs, out.modified_nanos = seconds, nanoseconds
    out.created_secs, out.created_nanos = seconds, nanoseconds
