"""The Python side of the guest: an IPython shell that communicates in frames.

Runs inside Pyodide and is part of the boot image, so that all import-time code runs when the image is built. It must
not hold JavaScript objects before that: a heap that contains one cannot be saved.

The code that the user runs may rewrite everything here. It is a convenience, never a boundary.
"""

from kernelmcp_guest.interrupts import end_background, interrupt
from kernelmcp_guest.lifecycle import attach, begin_in, build, set_environment
from kernelmcp_guest.memory import usable
from kernelmcp_guest.operations import handle, notify
from kernelmcp_guest.packages import add_packages
from kernelmcp_guest.packages.missing_imports import note_companions

__all__ = [
    "add_packages",
    "attach",
    "begin_in",
    "build",
    "end_background",
    "handle",
    "interrupt",
    "note_companions",
    "notify",
    "set_environment",
    "usable",
]
