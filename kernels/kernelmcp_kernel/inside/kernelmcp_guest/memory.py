"""A reserve for when memory runs out: without it, reporting the error would fail too, and end the guest.

It is part of the boot image, where its pages are zero: it takes none of the machine's memory until it is used. If a
cell uses up the reserve as well, not even `del` works in the guest, and it ends.
"""

import gc
import sys
import traceback

# An IPython traceback takes up to 2 MiB; the cell that deletes the large object needs some memory too.
RESERVE_BYTES = 4 * 1024 * 1024

# Below this, not even the smallest cell runs.
_LEAST_BYTES = 1024 * 1024

# CPython's error for a size above 2**31 - 1. On a 64-bit machine the same code raises MemoryError.
_TOO_LARGE = "cannot fit 'int' into an index-sized integer"

_reserve: list[bytearray] = []
# Holds something from a MemoryError until there is a reserve again.
_ran_out: set[str] = set()


def hold() -> None:
    """Allocate the reserve, if there is enough memory."""
    if _reserve:
        return
    if _ran_out:
        gc.collect()  # Python keeps some freed objects for reuse: each may lie in the middle of the memory that is free
    try:
        _reserve.append(bytearray(RESERVE_BYTES))
    except MemoryError:
        return  # the little that is left must suffice
    _ran_out.clear()


def release() -> None:
    """Free the reserve for code that needs memory now. Allocates nothing."""
    _reserve.clear()


def usable() -> bool:
    """Return whether there is enough memory for another cell."""
    if _reserve:
        return True
    try:
        return bool(bytearray(_LEAST_BYTES))
    except MemoryError:
        return False


def forget(error: BaseException) -> None:
    """Free the objects in the frames of a MemoryError, usually the one that was too large, and the frames."""
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = sys.last_traceback = None
        _ran_out.add("since the last reserve")


def as_memory_error(error: BaseException | None) -> MemoryError | None:
    """Convert an error that means "too large" to a MemoryError, even if a 32-bit Python raises another. Else None."""
    if not isinstance(error, OverflowError) or str(error) != _TOO_LARGE:
        return None
    return MemoryError(f"larger than any object of this Python can be, which is 32-bit: {sys.maxsize:,} bytes or items")
