"""A reserve for when memory runs out: without it, reporting the error would fail too, and end the guest.

It is part of the boot image, where its pages are zero: it takes none of the machine's memory until it is used. If a
cell uses up the reserve as well, not even `del` works in the guest, and it ends.
"""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stack_data.core import Source

# An IPython traceback takes up to 2 MiB; the cell that deletes the large object needs some memory too.
RESERVE_BYTES = 4 * 1024 * 1024

# The reserve is in pieces, which fit in holes: what an error leaves behind lies where the reserve was, and in one piece
# the next reserve would have to be elsewhere, in the middle of what is free once the large object is deleted.
_PIECE_BYTES = 64 * 1024
_PIECES = RESERVE_BYTES // _PIECE_BYTES

# After a MemoryError, so many are tried, and those with the lowest addresses kept: below everything that is free.
_TRIED_PIECES = 16 * _PIECES

# While memory is full, the lowest ones are free for what the next cells leave behind.
_LANDING_PIECES = 4

# Below this, not even the smallest cell runs.
_LEAST_BYTES = 1024 * 1024

# With this much in one piece, memory is whole again after a MemoryError.
_ROOM_BYTES = 32 * 1024 * 1024

# If looking through all objects takes longer, not every cell may wait for it: the next MemoryError asks for it again.
_LONGEST_SECONDS = 2.0

# CPython's error for a size above 2**31 - 1. On a 64-bit machine the same code raises MemoryError.
_TOO_LARGE = "cannot fit 'int' into an index-sized integer"

_NONE: dict[Any, Any] = {}
_forget_names: Callable[[], None] = vars(sys)["_clear_internal_caches"]

_reserve: list[bytes] = []
# Holds something from a MemoryError until there is room again. A reserve is no sign of room: what did not fit may be
# much larger, and what takes the memory is still there.
_ran_out: set[str] = set()


def hold() -> None:
    """Allocate the reserve, or as much of it as there is memory for."""
    wanted = _PIECES
    if _ran_out:
        began = time.monotonic()
        _reserve.clear()
        # Python keeps names that were looked up, and some freed objects for reuse. Each of them may lie in the middle
        # of the memory that is free.
        _forget_names()
        gc.collect()
        if _is_free(_ROOM_BYTES):
            wanted = _TRIED_PIECES
            _ran_out.clear()
        elif time.monotonic() - began > _LONGEST_SECONDS:
            _ran_out.clear()
    with suppress(MemoryError):  # the little that is left must suffice
        while len(_reserve) < wanted:
            _reserve.append(bytes(_PIECE_BYTES))
    _reserve.sort(key=id)
    del _reserve[_PIECES:]
    if _ran_out:
        del _reserve[:_LANDING_PIECES]


def release() -> None:
    """Free the reserve for code that needs memory now. Allocates nothing."""
    _reserve.clear()


def usable() -> bool:
    """Return whether there is enough memory for another cell."""
    return len(_reserve) * _PIECE_BYTES >= _LEAST_BYTES or _is_free(_LEAST_BYTES)


def _is_free(size: int) -> bool:
    """Return whether so many bytes can be allocated in one piece."""
    try:
        return bool(bytearray(size))
    except MemoryError:
        return False


def forget(error: BaseException) -> None:
    """Free the objects in the frames of a MemoryError, usually the one that was too large, the frames, and what their
    traceback was made from: it was allocated in the last holes, and would lie in the middle of what is free later."""
    if isinstance(error, MemoryError):
        for cache in ("__executing_cache", "__source_cache_with_lines"):
            vars(Source).get(cache, _NONE).clear()
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = sys.last_traceback = None
        _ran_out.add("since there was room")


def as_memory_error(error: BaseException | None) -> MemoryError | None:
    """Convert an error that means "too large" to a MemoryError, even if a 32-bit Python raises another. Else None."""
    if not isinstance(error, OverflowError) or str(error) != _TOO_LARGE:
        return None
    return MemoryError(f"larger than any object of this Python can be, which is 32-bit: {sys.maxsize:,} bytes or items")
