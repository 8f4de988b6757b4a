"""Detects whether Python code has noticed a signal handler's KeyboardInterrupt, or C code has discarded it.

A file that its destructor closes silently clears any exception raised meanwhile. So a raised interrupt is watched: if
no Python frame has seen it, it is raised in the next one that runs. One that ended in a `__del__` is raised in the
frame from which that was called. sys.monitoring does all this, and costs nothing while no interrupt is under way.
"""

# pyright: reportPrivateUsage=false

import sys
from types import CodeType, FrameType
from typing import Any, NoReturn

from kernelmcp_guest.bridge import bridge

# A tool id without a predefined meaning (https://docs.python.org/3/library/sys.monitoring.html).
_TOOL = 4
_monitoring: Any = vars(sys)["monitoring"]  # the type checker reads this as Python 3.11, which has none


class _Interrupt:
    """The interrupt that is under way."""

    unseen = False
    armed = False
    frame: FrameType | None = None
    limit: int | None = None
    """The recursion limit before the first interrupt of the cell. It is restored when the cell ends."""


under_way = _Interrupt()


def raise_watched() -> NoReturn:
    """Raise KeyboardInterrupt out of a signal handler, and watch whether it arrives."""
    _begin()
    _monitoring.register_callback(_TOOL, _monitoring.events.RAISE, _on_raise)
    _monitoring.set_events(_TOOL, _monitoring.events.RAISE)
    raise KeyboardInterrupt


def raise_in(frame: FrameType | None) -> None:
    """Raise a swallowed interrupt in this frame when it continues, or where `raise_again` finds it first."""
    if frame is None or _is_ours(frame.f_code):
        return
    _begin()
    under_way.frame = frame
    for event in (_monitoring.events.LINE, _monitoring.events.JUMP):
        _monitoring.register_callback(_TOOL, event, _raise_in_frame)
    _monitoring.set_local_events(_TOOL, frame.f_code, _monitoring.events.LINE | _monitoring.events.JUMP)


def _begin() -> None:
    if _monitoring.get_tool(_TOOL) is None:
        _monitoring.use_tool_id(_TOOL, "kernelmcp")
    _drop_frame()
    under_way.unseen, under_way.armed = True, False


def raise_again() -> None:
    """If no Python code has seen the interrupt yet, raise it in the next Python frame that runs.

    If none has run since the last call, raise it here.
    """
    if not under_way.unseen:
        return
    if under_way.armed:
        raise_watched()
    under_way.armed = True
    events = _monitoring.events
    for event in (events.LINE, events.JUMP, events.PY_START):
        _monitoring.register_callback(_TOOL, event, _raise_here)
    _monitoring.set_events(_TOOL, events.LINE | events.JUMP | events.PY_START)


def take() -> bool:
    """Return whether there is an interrupt that no Python code has seen. The caller must raise it."""
    unseen = under_way.unseen
    if unseen:
        _settle()
    return unseen


def forget() -> None:
    """The cell has ended: stop watching, and restore the recursion limit."""
    if under_way.unseen:
        _settle()
    if under_way.limit is not None:
        sys.setrecursionlimit(under_way.limit)
        under_way.limit = None


def _drop_frame() -> None:
    if under_way.frame is not None:
        _monitoring.set_local_events(_TOOL, under_way.frame.f_code, 0)
        under_way.frame = None


def _settle() -> None:
    _drop_frame()
    under_way.unseen = under_way.armed = False
    _monitoring.set_events(_TOOL, 0)
    _monitoring.free_tool_id(_TOOL)


def _is_ours(code: CodeType) -> bool:
    return "kernelmcp_guest" in code.co_filename


def _on_raise(code: CodeType, offset: int, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt) and not _is_ours(code):
        _settle()


def _raise_here(code: CodeType, *_: Any) -> None:
    if not _is_ours(code):
        _settle()
        raise KeyboardInterrupt


def _raise_in_frame(code: CodeType, *_: Any) -> None:
    if sys._getframe().f_back is under_way.frame:
        _settle()
        bridge.interrupt_again(False)
        raise KeyboardInterrupt
