"""A reserve for when memory is used up: without it, saying so fails for want of memory, and the guest ends.

It is part of the boot image, where its pages are zero: it takes no memory of the machine until it is used. A cell that
uses up the reserve, too, leaves a guest in which not even `del` works: that one ends.
"""

import sys
import traceback

# A traceback of IPython takes up to 2 MiB; the cell that deletes what is too large needs some as well.
RESERVE_BYTES = 4 * 1024 * 1024

# With less than this, not even the smallest cell runs.
_LEAST_BYTES = 1024 * 1024

# What CPython raises for a size over 2**31 - 1. On a 64-bit machine the same code raises MemoryError.
_TOO_LARGE = "cannot fit 'int' into an index-sized integer"

_reserve: list[bytearray] = []


def hold() -> None:
    """Allocate the reserve, if there is memory for it."""
    if not _reserve:
        try:
            _reserve.append(bytearray(RESERVE_BYTES))
        except MemoryError:
            return  # what little is left must do


def release() -> None:
    """Free the reserve for code that needs memory now. Allocates nothing."""
    _reserve.clear()


def usable() -> bool:
    """Is there enough memory for another cell?"""
    if _reserve:
        return True
    try:
        return bool(bytearray(_LEAST_BYTES))
    except MemoryError:
        return False


def forget(error: BaseException) -> None:
    """Free what the frames of a MemoryError hold: usually the object that was too large."""
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)


def as_memory_error(error: BaseException | None) -> MemoryError | None:
    """What a person means by "too large": a MemoryError, also where a 32-bit Python has another name for it."""
    if not isinstance(error, OverflowError) or str(error) != _TOO_LARGE:
        return None
    return MemoryError(f"larger than any object of this Python can be, which is 32-bit: {sys.maxsize:,} bytes or items")
