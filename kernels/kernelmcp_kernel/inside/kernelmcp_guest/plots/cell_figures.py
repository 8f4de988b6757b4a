"""matplotlib figures that a cell shows, or leaves open at its end: drawing them is part of the cell.

matplotlib_inline closes all of them if the drawing is interrupted. Here each is closed after it has been drawn, so that
the others are available to the next cell, and the reply gives their number.
"""

# The matplotlib API used here has no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import sys
import time
from typing import Any

_BACKEND = "matplotlib_inline.backend_inline"
# After this time, no more figures of an interrupted cell are drawn: its plots so far are of interest, but the server
# ends a guest that continues for long.
SECONDS_AFTER_INTERRUPT = 1.0
_MAX_NAMED = 8


class _Cell:
    """The figures of the running cell."""

    drawn = 0
    interrupted = False
    """Interrupted while drawing."""


_cell = _Cell()


def begin() -> None:
    """A cell begins."""
    _cell.drawn, _cell.interrupted = 0, False


def draw_one_by_one(backend: Any) -> None:
    """Patch matplotlib_inline.backend_inline, before matplotlib takes its functions."""
    stock = backend.show

    def show(close: bool | None = None, block: bool | None = None) -> None:
        """Draw all open figures and send them to the frontend."""
        backend.show._to_draw = []
        closes: bool = backend.InlineBackend.instance().close_figures if close is None else close
        _draw(backend, backend.Gcf.get_all_fig_managers(), closes)

    show._to_draw, show._draw_called = stock._to_draw, stock._draw_called  # pyright: ignore[reportFunctionMemberAccess]
    backend.show = show


def draw_what_is_seen(helpers: Any) -> None:
    """Patch matplotlib._pylab_helpers: after a cell, pyplot redraws changed open figures in their windows. There are
    none here, and it would draw figures whose drawing was just interrupted."""
    # As after `%matplotlib inline`. Otherwise plt.xkcd() around the first figure restores False and hides later ones.
    sys.modules["matplotlib"].rcParams["interactive"] = True
    stock = helpers.Gcf.draw_all.__func__

    def draw_all(cls: Any, force: bool = False) -> None:
        if force or any(each.canvas.required_interactive_framework for each in cls.get_all_fig_managers()):
            stock(cls, force)

    helpers.Gcf.draw_all = classmethod(draw_all)


def _draw(backend: Any, managers: list[Any], close: bool, deadline: float | None = None) -> None:
    """Draw figures. Raises KeyboardInterrupt; then undrawn figures stay open."""
    before = _cell.drawn
    try:
        for manager in managers:
            if deadline is not None and time.monotonic() > deadline:
                _cell.interrupted = True
                return
            figure = manager.canvas.figure
            backend.display(figure, metadata=backend._fetch_figure_metadata(figure))
            _cell.drawn += 1
            if close:
                backend.Gcf.destroy(manager)
    except KeyboardInterrupt:
        _cell.interrupted = True
        if close:
            for manager in managers[: _cell.drawn - before]:  # it may have come while the last of them was being closed
                backend.Gcf.destroy(manager)
        raise
    except BaseException:
        if close:
            backend.Gcf.destroy_all()
        raise


def finish(shell: Any) -> str:
    """Draw the figures that the cell leaves open, as Jupyter does. Returns a message if some were not drawn."""
    backend = sys.modules.get(_BACKEND)
    is_shown = backend is not None and backend.flush_figures in shell.events.callbacks["post_execute"]
    if backend is None or not is_shown or not backend.show._draw_called:
        return ""
    changed, backend.show._to_draw, backend.show._draw_called = backend.show._to_draw, [], False
    close = backend.InlineBackend.instance().close_figures
    managers = [each for each in backend.Gcf.get_all_fig_managers() if close or each.canvas.figure in changed]
    if not _cell.interrupted:
        deadline = time.monotonic() + SECONDS_AFTER_INTERRUPT if shell.interrupted else None
        before = _cell.drawn
        try:
            _draw(backend, managers, close, deadline)
        except KeyboardInterrupt:
            pass
        except Exception:  # noqa: BLE001  # a figure of the user's
            shell.showtraceback()
        managers = managers[_cell.drawn - before :]
    return _said(managers) if _cell.interrupted and managers else ""


def _said(managers: list[Any]) -> str:
    numbers = [str(manager.num) for manager in managers]
    named = ", ".join(numbers[:_MAX_NAMED]) + (", ..." if len(numbers) > _MAX_NAMED else "")
    total, first = _cell.drawn + len(managers), numbers[0]
    return (
        f"{_cell.drawn:,} of {total:,} figures {'was' if _cell.drawn == 1 else 'were'} drawn. "
        f"{len(managers):,} {'is' if len(managers) == 1 else 'are'} still open (number {named}): in the next cell "
        f"plt.show() draws what is open, plt.figure({first}).savefig('{first}.png') saves one, and plt.close('all') "
        "drops them"
    )
