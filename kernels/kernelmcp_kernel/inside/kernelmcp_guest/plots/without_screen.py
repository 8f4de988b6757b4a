"""matplotlib features that need a screen and a mouse: `%matplotlib qt`, `plt.ginput`."""

import importlib.util
import sys
from typing import Any, NoReturn

_NO_CLICKS = "nobody can click or press a key in a figure here, which is a picture: write the coordinates into the code"
# Backends that draw files and images, by their names for %matplotlib.
_WITHOUT_SCREEN = ("agg", "cairo", "inline", "pdf", "pgf", "ps", "svg", "template")
_OF_PAGES = ("ipympl", "nbagg", "notebook", "widget")
_IPYMPL = ("ipympl", "widget")


def usable_gui(gui: str | None) -> str | None:
    """The backend that `%matplotlib` uses for this request; prints a line if it is a different one."""
    name = (gui or "auto").lower()
    has_ipympl = name in _IPYMPL and importlib.util.find_spec("ipympl") is not None
    if name == "auto":
        return "inline"
    if name in _WITHOUT_SCREEN or has_ipympl or name.startswith("module://"):
        return gui
    sys.stderr.write(
        f"%matplotlib {gui} needs {'a page' if name in _OF_PAGES else 'a screen'} where somebody can click, and there "
        "is none: figures are shown as pictures, as with %matplotlib inline\n"
    )
    return "inline"


def refuse_clicks(blocking_input: Any) -> None:
    """Patch matplotlib._blocking_input: plt.ginput, plt.waitforbuttonpress, clabel(manual=True)."""

    def blocking_input_loop(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(_NO_CLICKS)

    blocking_input.blocking_input_loop = blocking_input_loop
