"""Seatbelt: macOS's sandbox, as the layer that Landlock and seccomp are on Linux.

The profile is a pure function, so that it is tested anywhere; that macOS holds what it says is not tested by us, for
want of the hardware (docs/threat-model.md says so).
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False  # see enter.py
if TYPE_CHECKING:
    from collections.abc import Iterable

# Names and attributes may be seen, as under Landlock; node needs that of each directory above its files. What dyld and
# libSystem read at every program's start is what Apple's own profiles import from system.sb.
_ALWAYS = """\
(version 1)
(deny default)
(import "system.sb")
(allow file-read-metadata)
(allow sysctl-read)
(allow signal (target self))
(deny process-fork)
(deny file-link)"""


# Names are resolved, and certificates judged, by services of the system.
_NETWORK = "(allow network-outbound)\n(allow system-socket)\n(allow mach-lookup)"


def available() -> bool:
    """Is this macOS?"""
    return sys.platform == "darwin"


def profile(
    readable: Iterable[str], writable: Iterable[str], executable: Iterable[str], *, network: bool = False
) -> str:
    """The profile in Seatbelt's language: deny all but reading, writing and executing beneath the given paths, and
    connections to others when `network` is wanted.

    Raises ValueError for a path that is not absolute: it would match nothing, in silence.
    """
    lines = [_ALWAYS, _NETWORK if network else "(deny network*)"]
    lines += [f"(allow file-read* (subpath {_quoted(path)}))" for path in (*readable, *executable, *writable)]
    lines += [f"(allow process-exec (literal {_quoted(path)}))" for path in executable]
    for path in writable:
        lines.append(f"(allow file-write* (subpath {_quoted(path)}))")
        # After the permission, because the last rule that matches decides: no links, sockets, pipes or devices.
        lines.append(
            f"(deny file-write-create (require-all (subpath {_quoted(path)})"
            " (require-not (vnode-type REGULAR-FILE)) (require-not (vnode-type DIRECTORY))))"
        )
    return "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    """A path as a string of the profile. Seatbelt compares real paths: /var is /private/var there."""
    if not os.path.isabs(path):
        raise ValueError(f"{path!r} is not an absolute path")
    text = os.path.realpath(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def restrict(
    readable: Iterable[str], writable: Iterable[str], executable: Iterable[str], *, network: bool = False
) -> None:
    """Put this process, for good, under the profile. Raises OSError."""
    library = ctypes.CDLL("/usr/lib/libSystem.dylib", use_errno=True)
    error = ctypes.c_char_p()
    text = profile(readable, writable, executable, network=network).encode()
    if library.sandbox_init(text, ctypes.c_uint64(0), ctypes.byref(error)) != 0:
        raise OSError(ctypes.get_errno(), f"sandbox_init: {(error.value or b'').decode('utf-8', 'replace')}")
