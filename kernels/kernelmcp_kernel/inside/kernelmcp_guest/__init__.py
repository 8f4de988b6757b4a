"""The Python side of the guest: an IPython shell that communicates in frames.

Runs inside Pyodide and is part of the boot image, so that all import-time code runs when the image is built. It must
not hold JavaScript objects before that: a heap that contains one cannot be saved.

The code that the user runs may rewrite everything here. It is a convenience, never a boundary.
"""

from kernelmcp_guest.hibernation import reasons_against_saving
from kernelmcp_guest.interrupts import after_signal, end_background, interrupt
from kernelmcp_guest.lifecycle import attach, build, extend, reseed, set_environment
from kernelmcp_guest.memory import usable
from kernelmcp_guest.operations import handle, notify
from kernelmcp_guest.packages import add_packages

__all__ = [
    "add_packages",
    "after_signal",
    "attach",
    "build",
    "end_background",
    "extend",
    "handle",
    "interrupt",
    "notify",
    "reasons_against_saving",
    "reseed",
    "set_environment",
    "usable",
]
