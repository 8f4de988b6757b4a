"""Companions: packages that another one needs for a part of what it does, and does not name as needed.

Small ones are installed together with the package, where Pyodide's distribution has them. The others come when a module
of the package imports them: a guest gets `needed_by` when it starts, and treats such an import as one of a cell.
`kernelmcp setup` prepares all of them. They are well-known names: an index may have what the distribution does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Companions:
    """Of one package, whose name it has in the table."""

    small: tuple[str, ...] = ()
    """Packages that come with it."""
    large: tuple[str, ...] = ()
    """Packages that come when they are needed. Their modules have the same names."""
    needed_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Beginnings of the names of modules -> what these import only where it is needed."""


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
    "plotly": Companions(large=("numpy", "pandas"), needed_by={"plotly.express": ("numpy", "pandas")}),
    "scikit-learn": Companions(
        large=("matplotlib", "pandas"),
        needed_by={"sklearn.utils._optional_dependencies": ("matplotlib", "pandas")},
    ),
    # Its densities ask for it themselves (inside/kernelmcp_guest/packages/shims.py).
    "seaborn": Companions(large=("scipy",)),
}


def small(names: Iterable[str]) -> list[str]:
    """Names of packages that come with these; names as `canonicalize_name` writes them."""
    return list(dict.fromkeys(each for found in _listed(names) for each in found.small))


def every(names: Iterable[str]) -> list[str]:
    """Names of all companions of these packages."""
    return list(dict.fromkeys(each for found in _listed(names) for each in (*found.small, *found.large)))


def _listed(names: Iterable[str]) -> list[Companions]:
    return [_COMPANIONS[name] for name in names if name in _COMPANIONS]


def is_companion(module: str) -> bool:
    """Whether a module is a companion's, of any package."""
    return module in every(_COMPANIONS)


def needed_by() -> dict[str, tuple[str, ...]]:
    """Beginnings of the names of modules, and what a guest is to install for an import in them."""
    return {module: needs for found in _COMPANIONS.values() for module, needs in found.needed_by.items()}
