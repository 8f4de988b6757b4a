"""Seatbelt: macOS's sandbox, the counterpart of Landlock and seccomp on Linux.

The profile is a pure function, so that it is tested anywhere; its effect on macOS is untested for lack of hardware (see
docs/threat-model.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False  # see enter.py
if TYPE_CHECKING:
    from collections.abc import Iterable

# Names and attributes are visible, as under Landlock; node needs those of each directory above its files. Apple's own
# profiles import from system.sb what dyld and libSystem read at every program's start.
_ALWAYS = """\
(version 1)
(deny default)
(import "system.sb")
(allow file-read-metadata)
(allow sysctl-read)
(allow signal (target self))
(deny process-fork)
(deny file-link)"""


# System services resolve names and verify certificates.
_NETWORK = "(allow network-outbound)\n(allow system-socket)\n(allow mach-lookup)"


def available() -> bool:
    """Return whether this is macOS."""
    return sys.platform == "darwin"


def profile(
    readable: Iterable[str], writable: Iterable[str], executable: Iterable[str], *, network: bool = False
) -> str:
    """The profile in Seatbelt's language: denies everything except reading, writing and executing below the given
    paths, and outgoing connections if `network` is True.

    Raises ValueError for a relative path: it would silently match nothing.
    """
    lines = [_ALWAYS, _NETWORK if network else "(deny network*)"]
    lines += [f"(allow file-read* (subpath {_quoted(path)}))" for path in (*readable, *executable, *writable)]
    lines += [f"(allow process-exec (literal {_quoted(path)}))" for path in executable]
    for path in writable:
        lines.append(f"(allow file-write* (subpath {_quoted(path)}))")
        # After the permission, because the last matching rule wins: no links, sockets, pipes or devices.
        lines.append(
            f"(deny file-write-create (require-all (subpath {_quoted(path)})"
            " (require-not (vnode-type REGULAR-FILE)) (require-not (vnode-type DIRECTORY))))"
        )
    return "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    """A path as a string in the profile. Seatbelt compares real paths: /var is /private/var there."""
    if not os.path.isabs(path):
        raise ValueError(f"{path!r} is not an absolute path")
    text = os.path.realpath(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def restrict(
    readable: Iterable[str], writable: Iterable[str], executable: Iterable[str], *, network: bool = False
) -> None:
    """Put this process under the profile, permanently. Raises OSError."""
    library = ctypes.CDLL("/usr/lib/libSystem.dylib", use_errno=True)
    error = ctypes.c_char_p()
    text = profile(readable, writable, executable, network=network).encode()
    if library.sandbox_init(text, ctypes.c_uint64(0), ctypes.byref(error)) != 0:
        raise OSError(ctypes.get_errno(), f"sandbox_init: {(error.value or b'').decode('utf-8', 'replace')}")
