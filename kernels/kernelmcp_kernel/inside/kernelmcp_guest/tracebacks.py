"""What is shown of an error: the lines of who wrote the cell, and the last one of a library.

Frames of the sandbox and of IPython are never shown. `%xmode Verbose` shows all others. The traceback itself stays as
it is, for the debugger and for programs.
"""

# IPython declares much of what is used here without types that a checker understands.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

import linecache
import os
import sys
import traceback
from types import CodeType, TracebackType
from typing import Any

import IPython
from IPython.core.tbtools import FrameInfo
from IPython.core.ultratb import AutoFormattedTB, SyntaxTB
from stack_data.core import RepeatedFrames
from stack_data.utils import collapse_repeated

from kernelmcp_guest.advice import advice

_HIDDEN = (f"{os.path.dirname(os.path.dirname(__file__))}/", f"{os.path.dirname(IPython.__file__)}/", "<frozen ")
# In every text about a host that may not be reached (network/ of the kernel process).
_REFUSED = "[network] allow_hosts"
# Of a line of code that a refused request shows.
_MAX_LINE_CHARS = 100
# Errors that are shown before the last one, and that are kept: IPython goes through them by recursion. A recursion that
# catches its errors has a thousand.
_MAX_CHAINED = 10
_MAX_KEPT = 100
# Of each end of a traceback: each frame is 30 ms.
_MAX_END_FRAMES = 5

Parts = tuple[type[BaseException], BaseException, TracebackType | None]


def is_hidden(file: str) -> bool:
    """Is it a file of the sandbox's, or of the shell's machinery?"""
    return file.startswith(_HIDDEN)


def is_users(file: str, module: object = "__main__") -> bool:
    """Is it a cell, or a file that is no library's? `module`: the name of the module that runs."""
    if file.startswith("<"):
        return module == "__main__"  # else libraries make code as well
    return (
        file.startswith("/") and not file.startswith("/lib/") and "/site-packages/" not in file and ".whl/" not in file
    )


def _users(entry: TracebackType) -> bool:
    frame = entry.tb_frame
    return is_users(frame.f_code.co_filename, frame.f_globals.get("__name__"))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a broken __str__
        return ""


def is_refused_request(error: BaseException | None) -> bool:
    """Was it a request to a host that may not be reached? Libraries raise their own errors, with our text in them."""
    return error is not None and _REFUSED in _text(error)


def shorten(error: BaseException | None) -> None:
    """Cut off what came long before it."""
    for _ in range(_MAX_KEPT):
        if error is None:
            return
        error = error.__context__ if error.__cause__ is None else error.__cause__
    if error is not None:
        error.__cause__ = error.__context__ = None


class GuestTB(AutoFormattedTB):
    """Formats the tracebacks of cells."""

    _chained = 0

    def structured_traceback(
        self,
        etype: Any = None,
        evalue: BaseException | None = None,
        etb: TracebackType | None = None,
        tb_offset: int | None = None,
        context: int = 5,
    ) -> list[str]:
        if etype is None:
            etype, evalue, etb = sys.exc_info()
        if is_refused_request(evalue) and self.mode in ("Context", "Plain"):
            lines = self._in_short(etype, evalue, etb)
        else:
            self._chained = 0
            lines = super().structured_traceback(etype, evalue, self._select(etb), tb_offset, context)
            if self._chained > _MAX_CHAINED:
                lines.insert(1, f"[... errors before these {_MAX_CHAINED + 1} are not shown]\n")
        self.tb = etb
        hint = advice(evalue)
        return [*lines, f"[kernelmcp] {hint}"] if hint else lines

    def get_parts_of_chained_exception(self, evalue: BaseException | None) -> Parts | None:
        """The exception before this one that says more: not a library's own way to this one."""
        seen: set[int] = set()
        known = _text(evalue) if evalue is not None else ""
        while (parts := super().get_parts_of_chained_exception(evalue)) is not None and id(parts[1]) not in seen:
            kind, error, etb = parts
            seen.add(id(error))
            entries = _entries(etb)
            is_cause = evalue is not None and evalue.__cause__ is error and _text(error) not in known
            if self.mode == "Verbose" or any(map(_users, entries)) or is_cause:
                self._chained += 1
                if self._chained > _MAX_CHAINED:
                    return None
                return kind, error, self._select(etb)
            evalue = error
        return None

    def get_records(self, etb: TracebackType, context: int, tb_offset: int) -> Any:
        """IPython's, with the lines where the error was raised: it looks where libraries' frames are by now.

        It looks for the module of every entry, which takes seconds in a deep recursion, and then leaves out most of
        them. Here they are left out first, in the same way."""
        records: list[Any] = []
        shown: list[TracebackType] = []
        collapsed = list(collapse_repeated(_entries(etb), collapser=RepeatedFrames, key=_place))
        if (over := len(collapsed) - 2 * _MAX_END_FRAMES) > 0:
            collapsed[_MAX_END_FRAMES:-_MAX_END_FRAMES] = [_LeftOut(over)]
        for each in collapsed:
            if isinstance(each, RepeatedFrames):
                records += self._records_of(shown, context)
                records.append(FrameInfo._from_stack_data_FrameInfo(each))
                shown = []
            else:
                shown.append(each)
        return records + self._records_of(shown, context)

    def _records_of(self, entries: list[TracebackType], context: int) -> list[Any]:
        if (chained := _chain(entries)) is None:
            return []
        records = super().get_records(chained, context, 0)
        lines = {id(entry.tb_frame): entry.tb_lineno for entry in entries}
        for record in records:
            if record._sd is None:
                record.lineno = lines.get(id(record.frame), record.lineno)
        return records

    def format_record(self, frame_info: Any) -> str:
        """A library's frame is its place and one line of code; so is one whose code is in no file."""
        frame = frame_info.frame
        if frame is None:  # "skipping similar frames"
            return super().format_record(frame_info)
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__")
        line = linecache.getline(file, frame_info.lineno or 0, frame.f_globals).strip()
        if (self.mode == "Verbose" or is_users(file, module)) and (line or frame_info._sd is not None):
            return super().format_record(frame_info)
        head = super().format_record(frame_info).partition("\n")[0]
        return f"{head}\n    {line}\n" if line else f"{head}\n"

    def _select(self, etb: TracebackType | None) -> TracebackType | None:
        """A copy of the traceback with the entries that are to be shown."""
        entries = _entries(etb)
        if self.mode != "Verbose":
            entries = [entry for entry in entries if entry is entries[-1] or _users(entry)]
        return _chain(entries)

    def _in_short(
        self, etype: type[BaseException], evalue: BaseException | None, etb: TracebackType | None
    ) -> list[str]:
        """The user's line, and what went wrong."""
        lines: list[str] = []
        for entry in [entry for entry in _entries(etb) if _users(entry)][-1:]:
            only = TracebackType(None, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
            (record,) = self.get_records(only, 1, 0)
            head = super().format_record(record).partition("\n")[0]
            line = linecache.getline(entry.tb_frame.f_code.co_filename, entry.tb_lineno).strip()
            lines.append(f"{head}\n    {line[:_MAX_LINE_CHARS]}")
        return [*lines, *self.format_exception(etype.__name__, evalue)]


class _LeftOut(RepeatedFrames):
    """The frames in the middle of a recursion that takes another way each time."""

    def __init__(self, count: int) -> None:
        super().__init__([], [])
        self._count = count

    @property
    def description(self) -> str:
        return f"{self._count:,} in between"


def _entries(etb: TracebackType | None) -> list[TracebackType]:
    found: list[TracebackType] = []
    while etb is not None:
        if not is_hidden(etb.tb_frame.f_code.co_filename):
            found.append(etb)
        etb = etb.tb_next
    return found


def _chain(entries: list[TracebackType]) -> TracebackType | None:
    first = None
    for entry in reversed(entries):
        first = TracebackType(first, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return first


def _place(entry: TracebackType) -> tuple[CodeType, int]:
    return entry.tb_frame.f_code, entry.tb_lineno


def behind_expression(etb: TracebackType | None) -> TracebackType | None:
    """The entries of what an evaluated expression has called; None where that is nothing."""
    while etb is not None and (is_hidden(file := etb.tb_frame.f_code.co_filename) or file == "<string>"):
        etb = etb.tb_next
    return etb


def format_group(error: BaseException) -> list[str]:
    """The lines of an ExceptionGroup, which IPython leaves to Python."""
    formatted = traceback.TracebackException.from_exception(error)
    _shorten(formatted, 0)
    return "".join(formatted.format()).rstrip("\n").split("\n")


def _shorten(formatted: traceback.TracebackException, depth: int) -> None:
    formatted.stack[:] = [frame for frame in formatted.stack if is_users(frame.filename)]
    for inner in [*(formatted.exceptions or []), formatted.__cause__, formatted.__context__]:
        if inner is not None and depth < sys.getrecursionlimit() // 10:
            _shorten(inner, depth + 1)


def is_left_to_python(error: BaseException | None) -> bool:
    """A group of errors, also as what came before; and errors that came before each other, at which IPython fails."""
    seen: set[int] = set()
    while error is not None:
        if isinstance(error, BaseExceptionGroup) or id(error) in seen:
            return True
        seen.add(id(error))
        error = error.__context__
    return False


class GuestSyntaxTB(SyntaxTB):
    """Formats syntax errors, whose traceback is a list of places."""

    def structured_traceback(self, etype: Any, evalue: Any, etb: Any = None, *args: Any, **kwargs: Any) -> list[str]:
        shown: Any = [place for place in etb if not is_hidden(place.filename)] if isinstance(etb, list) else etb
        return super().structured_traceback(etype, evalue, shown, *args, **kwargs)
