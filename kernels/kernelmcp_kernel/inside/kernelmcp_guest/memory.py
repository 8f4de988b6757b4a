"""A reserve for when memory runs out: without it, reporting the error would fail too, and end the guest.

It is part of the boot image, where nearly all of it is zero: it takes little of the machine's memory until it is used.
If a cell uses up the reserve as well, not even `del` works in the guest, and it ends.
"""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from executing import executing
from stack_data.core import Source

# An IPython traceback takes up to 2 MiB; the cell that deletes the large object needs some memory too.
RESERVE_BYTES = 4 * 1024 * 1024

# The reserve is in pieces, which fit in holes: what an error leaves behind lies where the reserve was, and in one piece
# the next reserve would have to be elsewhere, in the middle of what is free once the large object is deleted.
_PIECE_BYTES = 64 * 1024
_PIECES = RESERVE_BYTES // _PIECE_BYTES

# While memory is full, the lowest ones are free for what the next cells leave behind.
_LANDING_PIECES = 4

# When there is room again, this many are allocated, and those with the lowest addresses kept.
_TRIED_PIECES = 4 * _PIECES

# Below this, not even the smallest cell runs.
_LEAST_PIECES = 1024 * 1024 // _PIECE_BYTES

# With this much in one piece, there is room again after a MemoryError.
_ROOM_BYTES = 16 * 1024 * 1024

# What garbage collection may take after a MemoryError, all times together: the memory may be in use for good.
_LONGEST_SECONDS = 2.0

# CPython's error for a size above 2**31 - 1. On a 64-bit machine the same code raises MemoryError.
_TOO_LARGE = "cannot fit 'int' into an index-sized integer"

_CACHES = [executing.Source.statements_at_line, executing.statement_containing_node]
_NONE: dict[Any, Any] = {}
_forget_names: Callable[[], None] = vars(sys)["_clear_internal_caches"]

_reserve: list[bytes] = []
# From a MemoryError until there is room again: the seconds that garbage collection took since. Otherwise empty. A whole
# reserve is no sign of room: what takes the memory may still be there.
_ran_out: list[float] = []


def hold() -> None:
    """Allocate the reserve, or as much of it as there is memory for. After a MemoryError, collect garbage first."""
    wanted = _PIECES
    if _ran_out:
        began = time.monotonic()
        # Python keeps names that were looked up, and some freed objects for reuse. Each of them may lie in the middle
        # of the memory that is free.
        _forget_names()
        gc.collect()
        _ran_out[0] += time.monotonic() - began
        _reserve.clear()
        if _is_free(_ROOM_BYTES):
            wanted = _TRIED_PIECES
            _ran_out.clear()
        elif _ran_out[0] > _LONGEST_SECONDS:
            _ran_out.clear()
    elif len(_reserve) == _PIECES:
        return
    _fill(wanted)
    with suppress(MemoryError):
        _reserve.sort(key=id)
    del _reserve[_PIECES:]
    if _ran_out and len(_reserve) >= _LEAST_PIECES + _LANDING_PIECES:
        del _reserve[:_LANDING_PIECES]


def _fill(pieces: int) -> None:
    with suppress(MemoryError):  # the little that is left must suffice
        while len(_reserve) < pieces:
            _reserve.append(bytes(_PIECE_BYTES))


def release() -> None:
    """Free the reserve for code that needs memory now. Allocates nothing."""
    _reserve.clear()


def usable() -> bool:
    """Return whether there is enough memory for another cell."""
    held = len(_reserve)
    _fill(_LEAST_PIECES)
    is_enough = len(_reserve) >= _LEAST_PIECES
    del _reserve[held:]
    return is_enough


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
        for name in ("__executing_cache", "__source_cache_with_lines"):
            vars(Source).get(name, _NONE).clear()
        for cached in _CACHES:
            cached.cache_clear()
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = sys.last_traceback = None
        _ran_out[:] = [0.0]


def as_memory_error(error: BaseException | None) -> MemoryError | None:
    """Convert an error that means "too large" to a MemoryError, even if a 32-bit Python raises another. Else None."""
    if not isinstance(error, OverflowError) or str(error) != _TOO_LARGE:
        return None
    return MemoryError(f"larger than any object of this Python can be, which is 32-bit: {sys.maxsize:,} bytes or items")
