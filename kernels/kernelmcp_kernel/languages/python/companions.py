"""Companions: packages that another package needs for some of its features and does not declare as dependencies.

Small ones are installed with the package, if Pyodide's distribution has them. The others are installed when a module of
the package imports them: a guest gets `needed_by` at its start, and treats such an import like one in a cell.
`kernelmcp setup` prepares all of them. They are well-known names: an index may have those that the distribution lacks,
and a few others that cells import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Companions:
    """The companions of one package, whose name is the key in the table."""

    small: tuple[str, ...] = ()
    """Packages that are installed with it."""
    large: tuple[str, ...] = ()
    """Packages that are installed when they are needed. Their modules have the same names."""
    needed_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Module name prefixes -> packages that these modules import only when needed."""


_COMPANIONS: dict[str, Companions] = {
    # %matplotlib and %pylab
    "ipython": Companions(needed_by={"IPython.core.pylabtools": ("matplotlib",)}),
    "networkx": Companions(
        large=("numpy", "scipy"),
        needed_by={
            "networkx.algorithms": ("numpy", "scipy"),
            "networkx.convert_matrix": ("numpy", "pandas", "scipy"),
            "networkx.drawing": ("matplotlib", "numpy", "scipy"),
            "networkx.generators": ("numpy",),
            "networkx.generators.expanders": ("numpy", "scipy"),
            "networkx.generators.spectral_graph_forge": ("numpy", "scipy"),
            "networkx.linalg": ("numpy", "scipy"),
            "networkx.utils.misc": ("numpy",),
        },
    ),
    "pandas": Companions(
        small=("jinja2",),
        large=("scipy",),
        needed_by={
            "pandas.core.frame": ("jinja2",),
            "pandas.core.nanops": ("scipy",),
            "pandas.io.excel": ("odf", "openpyxl", "python_calamine", "pyxlsb", "xlrd"),
            "pandas.io.excel._xlsxwriter": ("xlsxwriter",),  # without it, openpyxl writes
            "pandas.plotting._matplotlib": ("matplotlib", "scipy"),
        },
    ),
    # Without the system's time zones, zoneinfo reads those of this package.
    "python": Companions(large=("tzdata",), needed_by={"zoneinfo": ("tzdata",)}),
    "plotly": Companions(large=("numpy", "pandas"), needed_by={"plotly.express": ("numpy", "pandas")}),
    "scikit-learn": Companions(
        large=("matplotlib", "pandas"),
        needed_by={"sklearn.utils._optional_dependencies": ("matplotlib", "pandas")},
    ),
    # Its density plots install it themselves (inside/kernelmcp_guest/packages/shims.py).
    "seaborn": Companions(large=("scipy",)),
}


# Modules that cells import often, whose packages the distribution lacks and an index has in plain Python. Any other
# name may be a stranger's there.
_ON_INDEX = {
    "docx": "python-docx",
    "faker": "faker",
    "openpyxl": "openpyxl",
    "plotly": "plotly",
    "pptx": "python-pptx",
    "pypdf": "pypdf",
    "reportlab": "reportlab",
    "seaborn": "seaborn",
    "tabulate": "tabulate",
    "xlrd": "xlrd",
    "xlsxwriter": "xlsxwriter",
}


def small(names: Iterable[str]) -> list[str]:
    """Names of packages that are installed with these; names in the form of `canonicalize_name`."""
    return list(dict.fromkeys(each for found in _listed(names) for each in found.small))


def every(names: Iterable[str]) -> list[str]:
    """Names of all companions of these packages."""
    return list(dict.fromkeys(each for found in _listed(names) for each in (*found.small, *found.large)))


def _listed(names: Iterable[str]) -> list[Companions]:
    return [_COMPANIONS[name] for name in names if name in _COMPANIONS]


def on_index(module: str) -> str | None:
    """The package of a module that an import may install from an index: a companion, or a well-known one. None for
    others."""
    return module if module in every(_COMPANIONS) else _ON_INDEX.get(module)


def needed_by() -> dict[str, tuple[str, ...]]:
    """Module name prefixes, and the packages that a guest should install for an import in them."""
    return {module: needs for found in _COMPANIONS.values() for module, needs in found.needed_by.items()}
