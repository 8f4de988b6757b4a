"""Landlock: restricts a process's access to files and TCP (Linux 5.13 and later, without privileges).

Features that an older kernel lacks are omitted, never assumed: `available` returns its version.
https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

# Rights, as bits of the uapi header linux/landlock.h.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG = 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

_ALL_OF_VERSION_1 = (1 << 13) - 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _READ_FILE | _READ_DIR
EXECUTE = READ | _EXECUTE
# No symlinks, sockets, pipes or devices: a trusted process that opens a workspace file must find a regular file.
WRITE = READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER

_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def available() -> int:
    """The kernel's Landlock version; 0 if it has none, or if it is disabled."""
    if sys.platform != "linux":
        return 0
    version = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return max(0, int(version))


def restrict(
    rights: dict[str, int], version: int | None = None, *, unlinked: Sequence[str] = (), network: bool = False
) -> None:
    """Restrict this process permanently to the given rights on paths (READ, EXECUTE, WRITE). Missing paths are skipped;
    paths in `unlinked` must not lead elsewhere by a link.

    Raises OSError. The process must have set no_new_privs. `version`: use no features of later ones. `network`: do not
    restrict TCP.

    Before version 2 files cannot move between directories; before 3 Landlock does not see truncation, so the seccomp
    filter does.
    """
    libc = _libc()
    version = available() if version is None else min(version, available())
    handled = _ALL_OF_VERSION_1
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    handled |= _IOCTL_DEV if version >= 5 else 0
    tcp = _BIND_AND_CONNECT_TCP if version >= 4 and not network else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("QQQ", handled, tcp, scoped)[:size]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    for path, right in rights.items():
        _allow(libc, ruleset, path, right & handled, is_unlinked=path in unlinked)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, right: int, *, is_unlinked: bool) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if is_unlinked and os.readlink(f"/proc/self/fd/{fd}") != path:
        raise OSError(errno.ELOOP, f"{path} leads elsewhere than when the kernel was started")
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        right &= _OF_FILES
    rule = struct.pack("=Qi", right, fd)  # a packed struct: 12 bytes
    if libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0) != 0:
        raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
    os.close(fd)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
