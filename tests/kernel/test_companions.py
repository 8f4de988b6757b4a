"""What a package needs for a part of what it does: it comes with it, or when it is needed, and with every setup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from kernelmcp_kernel.jupyter.iopub import PACKAGES_TYPE
from kernelmcp_kernel.packages.distribution import listed
from kernelmcp_kernel.settings import PackageSettings

from .conftest import run_prepare, running_kernel
from .driver import Kernel, Ran
from .wheels import DEAD_INDEX, make_wheel, serve_index

# As the real ones: imported where it is needed, asked for by another module, tried when it is imported.
NANOPS = """
def get_corr_func(method):
    from scipy.stats import kendalltau
    return kendalltau
"""
OPTIONAL = """
import importlib
def import_optional_dependency(name, errors="raise"):
    try:
        return importlib.import_module(name)
    except ImportError:
        if errors == "raise":
            raise
"""
FRAME = """
from pandas.compat._optional import import_optional_dependency
def style():
    return import_optional_dependency("jinja2", errors="ignore")
"""
OTHER = FRAME.replace("jinja2", "scipy")
STATISTICS = """
try:
    from scipy.stats import gaussian_kde
    _no_scipy = False
except ImportError:
    from .kde import gaussian_kde
    _no_scipy = True

def density():
    return gaussian_kde()
"""
MATRIX = """
try:
    from scipy.cluster import hierarchy
    _no_scipy = False
except ImportError:
    _no_scipy = True

def cluster():
    if _no_scipy:
        raise RuntimeError("no scipy")
    return hierarchy.linkage
"""
PANDAS = {
    "__init__.py": "",
    "compat/__init__.py": "",
    "compat/_optional.py": OPTIONAL,
    "core/__init__.py": "",
    "core/frame.py": FRAME,
    "core/nanops.py": NANOPS,
    "core/other.py": OTHER,
}
SEABORN = {
    "__init__.py": "",
    "_statistics.py": STATISTICS,
    "kde.py": "def gaussian_kde():\n    return 'jagged'\n",
    "matrix.py": MATRIX,
}
SCIPY = {
    "__init__.py": "",
    "cluster/__init__.py": "from scipy.cluster import hierarchy",
    "cluster/hierarchy.py": "linkage = 'linkage'",
    "stats.py": "kendalltau = 'kendall'\ndef gaussian_kde():\n    return 'smooth'\n",
}
# A zone that is two hours ahead, always: one type (its offset, no daylight saving time, its name), no transitions.
ZONE = "TZif" + "\0" * 16 + "\0" * 16 + "\0\0\0\1" + "\0\0\0\4" + "\0\0\x1c\x20" + "\0\0" + "TST\0"
TZDATA = {f"{folder}__init__.py": "" for folder in ("", "zoneinfo/", "zoneinfo/Europe/")} | {
    "zoneinfo/Europe/Test": ZONE
}


def distribution(folder: Path, *absent: str) -> dict[str, str]:
    """The settings of a kernel whose distribution has these packages, without the files of the absent ones."""
    entries: dict[str, object] = {}
    contents = {"pandas": PANDAS, "seaborn": SEABORN, "scipy": SCIPY, "jinja2": {"__init__.py": ""}, "tzdata": TZDATA}
    for name, files in contents.items():
        wheel = make_wheel(folder, name, "2.0", files={f"{name}/{file}": text for file, text in files.items()})
        entries[name] = {
            "name": name,
            "file_name": wheel.name,
            "depends": [],
            "imports": [name],
            "sha256": sha256(wheel.read_bytes()).hexdigest(),
        }
        if name in absent:
            wheel.unlink()
    (folder / "pyodide-lock.json").write_text(json.dumps({"packages": entries}))
    packages = {"pyodide_url": str(folder), "index_url": DEAD_INDEX}
    return {"KERNELMCP_HOME": str(folder / "home"), "KERNELMCP_PACKAGES": json.dumps(packages)}


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    with running_kernel(**distribution(tmp_path)) as running:
        yield running


def installed(ran: Ran) -> list[str]:
    assert ran.status == "ok", ran.error
    bundles = [message["content"]["data"] for message in ran.outputs if "data" in message["content"]]
    found = [data[PACKAGES_TYPE]["installed"] for data in bundles if PACKAGES_TYPE in data]
    return sorted(package["name"] for packages in found for package in packages)


def test_small_ones_come_with_the_package_and_large_ones_when_they_are_needed(kernel: Kernel) -> None:
    assert installed(kernel.run("import pandas.core.frame, pandas.core.other")) == ["jinja2", "pandas"]
    assert installed(kernel.run("assert pandas.core.other.style() is None")) == [], "what it merely tries"
    ran = kernel.run("from pandas.core.nanops import get_corr_func; get_corr_func('kendall')")
    assert (ran.result, installed(ran)) == ("'kendall'", ["scipy"])


def test_the_densities_of_seaborn_are_those_of_scipy(kernel: Kernel) -> None:
    assert installed(kernel.run("from seaborn import _statistics, matrix")) == ["seaborn"]
    ran = kernel.run("_statistics.density(), matrix.cluster(), bool(_statistics._no_scipy)")
    assert (ran.result, installed(ran)) == ("('smooth', 'linkage', False)", ["scipy"])
    assert kernel.run("_statistics.density()").result == "'smooth'"


def test_a_time_zone_is_there_when_it_is_asked_for(kernel: Kernel) -> None:
    assert installed(kernel.run("from zoneinfo import ZoneInfo; from datetime import datetime")) == []
    ran = kernel.run("str(datetime(2024, 7, 1, tzinfo=ZoneInfo('Europe/Test')).utcoffset())")
    assert (ran.result, installed(ran)) == ("'2:00:00'", ["tzdata"])
    assert kernel.run("ZoneInfo('Europe/Nowhere')").error.startswith("ZoneInfoNotFoundError: ")


def test_a_companion_that_cannot_be_had_is_missed_only_where_it_is_needed(tmp_path: Path) -> None:
    with running_kernel(**distribution(tmp_path, "jinja2", "scipy")) as kernel:
        assert installed(kernel.run("import pandas")) == ["pandas"]
        ran = kernel.run("from seaborn import _statistics; _statistics.density()")
        assert (ran.result, installed(ran)) == ("'jagged'", ["seaborn"])
        assert ran.text("stderr").startswith("seaborn is without scipy, which could not be installed")
        assert kernel.run("from pandas.core.nanops import get_corr_func; get_corr_func(1)").error == (
            "ModuleNotFoundError: No module named 'scipy'"
        )


def test_what_the_distribution_does_not_have_comes_from_an_index(tmp_path: Path) -> None:
    environment = distribution(tmp_path, "jinja2")
    lock = json.loads((tmp_path / "pyodide-lock.json").read_text())
    del lock["packages"]["jinja2"]
    (tmp_path / "pyodide-lock.json").write_text(json.dumps(lock))
    version = next(each.version for each in listed(PackageSettings()) if each.name == "jinja2")
    with serve_index(tmp_path / "index") as index:
        index.add("jinja2", version)
        packages = {"pyodide_url": str(tmp_path), "index_url": index.url}
        with running_kernel(**environment | {"KERNELMCP_PACKAGES": json.dumps(packages)}) as kernel:
            assert installed(kernel.run("import pandas.core.frame")) == ["pandas"]
            ran = kernel.run("pandas.core.frame.style().version")
            assert (ran.result, installed(ran)) == (repr(version), ["jinja2"])


def test_a_well_known_module_comes_from_an_index_and_no_other_does(tmp_path: Path) -> None:
    environment = distribution(tmp_path)
    with serve_index(tmp_path / "index") as index:
        index.add("tabulate")
        make_wheel(index.folder("python-docx"), "python_docx", files={"docx.py": "where = 'python-docx'\n"})
        for stranger in ("docx", "unheard_of"):
            index.add(stranger)
        packages = {"pyodide_url": str(tmp_path), "index_url": index.url}
        with running_kernel(**environment | {"KERNELMCP_PACKAGES": json.dumps(packages)}) as kernel:
            assert installed(kernel.run("import tabulate, docx; assert docx.where")) == ["python-docx", "tabulate"]
            assert kernel.run("import unheard_of").error == "ModuleNotFoundError: No module named 'unheard_of'"
            assert [path for path in index.requests if "unheard" in path] == []


@pytest.mark.parametrize(
    ("absent", "prepared"),
    [((), ["jinja2", "pandas", "scipy", "tzdata"]), (("scipy",), ["jinja2", "pandas", "tzdata"])],
)
def test_a_setup_has_all_of_them_that_can_be_had(tmp_path: Path, absent: tuple[str, ...], prepared: list[str]) -> None:
    environment = distribution(tmp_path, *absent)
    done = run_prepare("pandas", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    setup = json.loads((tmp_path / "home" / "setup.json").read_text())
    assert (setup["requirements"], sorted(wheel["name"] for wheel in setup["wheels"])) == (["pandas"], prepared)
    assert ("scipy, which some functions of other packages need, is unavailable" in done.stdout) == bool(absent)
    with running_kernel(**environment) as kernel:
        ran = kernel.run("import pandas.core.nanops; pandas.core.nanops.get_corr_func('kendall')")
        assert (ran.status, ran.result) == (("error", None) if absent else ("ok", "'kendall'"))
