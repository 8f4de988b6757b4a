"""Has Python code noticed the KeyboardInterrupt that a signal handler raised, or has C code thrown it away?

A file that is closed by its destructor clears whatever was raised meanwhile, and says nothing. So a raised interrupt is
watched: when no Python frame has seen it, it is raised in the next one that runs. sys.monitoring does both, and costs
nothing while no interrupt is under way.
"""

import sys
from types import CodeType
from typing import Any, NoReturn

# One of those that have no meaning of their own (https://docs.python.org/3/library/sys.monitoring.html).
_TOOL = 4


class _Interrupt:
    """The one that is under way."""

    unseen = False
    armed = False


_interrupt = _Interrupt()


def raise_watched() -> NoReturn:
    """Raise KeyboardInterrupt out of a signal handler, and look whether it arrives."""
    monitoring = vars(sys)["monitoring"]
    _interrupt.unseen, _interrupt.armed = True, False
    if monitoring.get_tool(_TOOL) is None:
        monitoring.use_tool_id(_TOOL, "kernelmcp")
    monitoring.register_callback(_TOOL, monitoring.events.RAISE, _on_raise)
    monitoring.set_events(_TOOL, monitoring.events.RAISE)
    raise KeyboardInterrupt


def raise_again() -> None:
    """If no Python code has seen the interrupt by now, raise it in the next Python frame that runs.

    When none has run since the last call, raise it here."""
    if not _interrupt.unseen:
        return
    if _interrupt.armed:
        raise_watched()
    _interrupt.armed = True
    monitoring = vars(sys)["monitoring"]
    events = monitoring.events
    for event in (events.LINE, events.JUMP, events.PY_START):
        monitoring.register_callback(_TOOL, event, _raise_here)
    monitoring.set_events(_TOOL, events.LINE | events.JUMP | events.PY_START)


def take() -> bool:
    """Whether there is one that no Python code has seen. Whoever asks raises it."""
    unseen = _interrupt.unseen
    forget()
    return unseen


def forget() -> None:
    """The cell has ended."""
    if _interrupt.unseen:
        _settle()


def _settle() -> None:
    _interrupt.unseen = _interrupt.armed = False
    monitoring = vars(sys)["monitoring"]
    monitoring.set_events(_TOOL, 0)
    monitoring.free_tool_id(_TOOL)


def _is_ours(code: CodeType) -> bool:
    return "kernelmcp_guest" in code.co_filename


def _on_raise(code: CodeType, offset: int, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt) and not _is_ours(code):
        _settle()


def _raise_here(code: CodeType, *_: Any) -> None:
    if not _is_ours(code):
        _settle()
        raise KeyboardInterrupt
