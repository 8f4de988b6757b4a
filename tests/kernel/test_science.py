"""The packages that most code begins with, from the real distribution: imports that install, plots, tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepared_home import unpacked_home
from tests.pyodide_packages import pyodide_folder

from .conftest import running_kernel
from .driver import Kernel, Ran

PACKAGES = "application/vnd.kernelmcp.packages+json"


@pytest.fixture(scope="module")
def folder() -> Path:
    return pyodide_folder()


def packages(folder: Path | str, **more: Any) -> str:
    return json.dumps({"pyodide_url": str(folder), **more})


@pytest.fixture(scope="module")
def science(folder: Path) -> Iterator[Kernel]:
    settings = packages(folder)
    with unpacked_home() as home, running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=settings) as kernel:
        yield kernel


def shown(ran: Ran, mime: str) -> list[Any]:
    """What was displayed as this mime type, in order."""
    bundles = [message["content"]["data"] for message in ran.outputs if "data" in message["content"]]
    return [bundle[mime] for bundle in bundles if mime in bundle]


def installed(ran: Ran) -> set[str]:
    return {package["name"] for data in shown(ran, PACKAGES) for package in data["installed"]}


def advice(ran: Ran) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(ran.reply["content"]["traceback"]))
    return text.rstrip("\n").rpartition("\n")[2]


def test_a_plot_needs_nothing_but_its_import(science: Kernel) -> None:
    ran = science.run("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9]);")
    assert (ran.error if ran.status != "ok" else "", len(shown(ran, "image/png"))) == ("", 1)
    assert {"matplotlib", "numpy", "pillow"} <= installed(ran)
    assert not ran.text(), "the packages are told in one line, which is displayed"
    assert shown(ran, "text/plain")[0].startswith("Successfully installed ")
    assert shown(science.run("plt.plot([1]); plt.show(); print('after')"), "image/png")
    assert science.run("plt.get_backend()").result == "'module://matplotlib_inline.backend_inline'"
    assert science.run("import matplotlib; matplotlib.use('agg'); plt.plot([1]); plt.savefig('a.png')").status == "ok"


def test_pandas_brings_what_it_must_have_and_later_what_a_method_needs(science: Kernel) -> None:
    ran = science.run("import pandas as pd; frame = pd.DataFrame({'a': [1, 2, 3]}); frame")
    assert "pandas" in installed(ran)
    assert not installed(ran) & {"scipy", "openpyxl", "lxml", "xlsxwriter"}, "what it merely tries"
    assert len(shown(ran, "text/html")) == 1
    ran = science.run("frame.to_excel('a.xlsx'); pd.read_excel('a.xlsx').shape")
    assert (ran.result, installed(ran) & {"openpyxl", "xlsxwriter"}) == ("(3, 2)", {"openpyxl"})
    assert installed(science.run("frame.to_excel('b.xlsx', engine='xlsxwriter')")) == {"xlsxwriter"}
    ran = science.run("pd.read_html('<table><tr><td>1</td></tr></table>')")
    assert "lxml" in installed(ran)
    assert science.run("import matplotlib; matplotlib.use(matplotlib.get_backend())").status == "ok"


def test_an_import_of_a_module_in_the_workspace_and_in_a_function(science: Kernel) -> None:
    ran = science.run("open('helper.py', 'w').write('import regex')\nimport helper\nhelper.regex.__name__")
    assert (ran.result, installed(ran)) == ("'regex'", {"regex"})
    ran = science.run("def f():\n    from bs4 import BeautifulSoup\n    return BeautifulSoup.__name__\nf()")
    assert (ran.result, "beautifulsoup4" in installed(ran)) == ("'BeautifulSoup'", True)
    ran = science.run("import importlib; importlib.import_module('docx').__name__")
    assert (ran.result, "python-docx" in installed(ran)) == ("'docx'", True)


@pytest.mark.parametrize("name", ["panda", "numpyy", "sklearnn", "reqeusts", "certainly_not_there"])
def test_what_the_distribution_does_not_have_is_not_installed(science: Kernel, name: str) -> None:
    ran = science.run(f"try:\n    import {name}\nexcept ImportError as error:\n    print(type(error).__name__, error)")
    assert ran.text() == f"ModuleNotFoundError No module named '{name}'\n"
    assert not installed(ran)


def test_installing_understands_the_names_of_modules(science: Kernel) -> None:
    assert "scikit-learn" in installed(science.run("%pip install sklearn"))
    assert science.run("%pip install PIL").status == "ok"
    assert "Already installed: pillow" in "".join(shown(science.run("%pip install PIL"), "text/plain"))


def test_a_name_is_checked_as_the_package_that_it_means(folder: Path, tmp_path: Path) -> None:
    settings = packages(folder, denied=["scikit-learn"], allowed=["regex", "scikit-learn"])
    with running_kernel(KERNELMCP_HOME=str(tmp_path), KERNELMCP_PACKAGES=settings) as kernel:
        assert kernel.run("%pip install sklearn").error.startswith("PackageDenied: scikit-learn")
        ran = kernel.run("import sklearn")
        assert ran.error == "ModuleNotFoundError: No module named 'sklearn'"
        assert advice(ran).startswith("kernelmcp: sklearn could not be installed: scikit-learn is")
        assert advice(kernel.run("import numpy")).startswith("kernelmcp: numpy could not be installed: numpy is not")
        assert "regex" in installed(kernel.run("import regex"))


def test_what_an_import_installs_is_listed(science: Kernel) -> None:
    names = science.run("%pip list --available").text().rstrip("\n").split(", ")
    assert {"numpy", "pandas", "beautifulsoup4", "scikit-learn"} <= set(names)
    assert names == sorted(names)


def test_auto_install_can_be_switched_off(folder: Path, tmp_path: Path) -> None:
    settings = packages(folder, auto_install=False)
    with running_kernel(KERNELMCP_HOME=str(tmp_path), KERNELMCP_PACKAGES=settings) as kernel:
        ran = kernel.run("import regex")
        assert ran.error == "ModuleNotFoundError: No module named 'regex'"
        assert (
            advice(ran) == "kernelmcp: install it with install_package('regex'), or with %pip install regex in a cell"
        )
        assert "regex" in installed(kernel.run("%pip install regex"))


def test_a_package_that_cannot_be_had_is_said_and_not_tried_again_at_once(folder: Path, tmp_path: Path) -> None:
    lock = json.loads((folder / "pyodide-lock.json").read_text())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "pyodide-lock.json").write_text(json.dumps(lock))  # and no file
    settings = packages(tmp_path / "empty")
    with running_kernel(KERNELMCP_HOME=str(tmp_path / "home"), KERNELMCP_PACKAGES=settings) as kernel:
        for _ in range(2):
            ran = kernel.run("import lxml.etree")
            assert ran.error == "ModuleNotFoundError: No module named 'lxml'"
            assert advice(ran).startswith("kernelmcp: lxml could not be installed: lxml==")
            assert "it comes from Pyodide's distribution, and the folder for it does not have the file" in advice(ran)
            assert "%pip install" not in advice(ran), "an index has no build of it either"


def test_a_row_of_a_table_stays_one_line_whatever_its_texts_hold(science: Kernel) -> None:
    ran = science.run(r"import pandas as pd; pd.DataFrame({'a': ['x\u2028y\x0bz\x85.', 'b']})")
    assert ran.result == "         a\n0  x\u2028y\x0bz\x85.\n1        b"


FRAME = "import pandas as pd\npd.DataFrame([[1 / 7] * {columns}] * {rows}).add_prefix('column_')"


@pytest.mark.parametrize(
    ("rows", "columns", "shown_rows", "shown_columns"),
    [
        (8, 18, 8, 18),
        (3, 40, 3, 40),
        (12, 60, 12, 20),
        (40, 15, 40, 15),
        (60, 20, 10, 20),
        (1000, 30, 10, 30),
        (2, 3000, 2, 20),
    ],
)
def test_a_table_is_text_with_whole_rows_and_as_much_as_fits(
    science: Kernel, rows: int, columns: int, shown_rows: int, shown_columns: int
) -> None:
    text = science.run(FRAME.format(rows=rows, columns=columns)).result or ""
    table, _, size = text.partition("\n\n")
    head, *lines = [line.split() for line in table.split("\n")]
    assert len([name for name in head if name != "..."]) == shown_columns
    assert len([line for line in lines if line[0] != ".."]) == shown_rows
    assert ("..." in head) == (shown_columns < columns)
    assert size == ("" if (rows, columns) == (shown_rows, shown_columns) else f"[{rows} rows x {columns} columns]")
    assert len(text) <= 7_000
    assert not re.search(r"[ \\]$", text, re.MULTILINE)


def test_a_table_is_shown_as_its_user_has_set(science: Kernel) -> None:
    frame = "pd.DataFrame([[1] * 9] * 9)"
    text = science.run(f"import pandas as pd\nwith pd.option_context('display.max_columns', 4): display({frame})")
    assert shown(text, "text/plain")[0].endswith("[9 rows x 9 columns]")
    grouped = science.run(f"{frame}.groupby(1).agg({{2: ['min', 'max']}})")
    assert (grouped.result or "").split("\n") == ["    2", "  min max", "1", "1   1   1"]


# What it is on a 64-bit Linux: it was wrong in silence where C's long has 32 bits.
OF_64_BITS = {
    "np.arange(100000).sum()": "np.int64(4999950000)",
    "np.array([50000]) ** 2": "array([2500000000])",
    "np.sum([50000] * 100000)": "np.int64(5000000000)",
    "np.cumsum([2**30] * 3)": "array([1073741824, 2147483648, 3221225472])",
    "np.array([2**20, 2**20]).prod()": "np.int64(1099511627776)",
    "np.array([200, 200], dtype=np.uint8).sum().dtype": "dtype('uint64')",
    "np.array([3e9]).astype(int), np.array([3e9], dtype=int)": "(array([3000000000]), array([3000000000]))",
    "np.zeros(2, dtype=int) + 2**40": "array([1099511627776, 1099511627776])",
    "np.random.seed(0); np.random.randint(0, 10, 5)": "array([5, 0, 3, 3, 7])",
    "np.random.RandomState(0).randint(2**40) > 0, type(np.random.randint(5)).__name__": "(True, 'int')",
    "np.dot([10**5], [10**5]), np.outer([10**5], [10**5]), np.kron([2**16], [2**16])": (
        "(np.int64(10000000000), array([[10000000000]]), array([4294967296]))"
    ),
    "np.dot(a=[10**5], b=[10**5]), np.einsum('i,i', [10**5], [10**5]), np.nansum([2**30] * 4)": (
        "(np.int64(10000000000), np.int64(10000000000), np.int64(4294967296))"
    ),
    "np.polyval([1, 0, 0], 10**5), np.poly1d([1, 0, 0])(10**5), np.diff([-(2**31) + 1, 2**31 - 1])": (
        "(np.int64(10000000000), np.int64(10000000000), array([4294967294]))"
    ),
    "np.linalg.matrix_power([[10**5]], 2), [np.broadcast_to(1, 9).strides, np.broadcast_to(1, 9).dtype]": (
        "(array([[10000000000]]), [(0,), dtype('int64')])"
    ),
    "np.sum(a=[2**30] * 4), np.array([2**30] * 4).sum(None, None, None), np.sum([2**30] * 4, out=None)": (
        "(np.int64(4294967296), np.int64(4294967296), np.int64(4294967296))"
    ),
    "a = np.ones((2, 2), np.int32); out = np.zeros(2); a.sum(0, None, out), np.cumprod(a, 1, None, a[:])": (
        "(array([2., 2.]), array([[1, 1], [1, 1]], dtype=int32))"
    ),
    "np.full(3, 50000, dtype='int') ** 2, np.ravel([50000], 'F') ** 2": (
        "(array([2500000000, 2500000000, 2500000000]), array([2500000000]))"
    ),
    "import io; pd.read_csv(io.StringIO('a\\n3000000000'), dtype=int).a[0], pd.Index([3e9]).astype(int)[0]": (
        "(np.int64(3000000000), np.int64(3000000000))"
    ),
    "pd.DataFrame({'a': [50000]}, dtype=int).pow(2).a.tolist(), pd.array([3e9], dtype=int).sum()": (
        "([2500000000], np.int64(3000000000))"
    ),
    "scope = {}; exec('import numpy as np; s = np.arange(100000).sum()', scope); scope['s']": "np.int64(4999950000)",
    "np.r_[1:4] * 2**31": "array([2147483648, 4294967296, 6442450944])",
    "np.argsort([3, 1, 2]), np.unique([5, 5], return_counts=True)": "(array([1, 2, 0]), (array([5]), array([2])))",
    "(lambda df: ((df.a * df.a).max(), df.a.astype(int).dtype))(pd.DataFrame({'a': np.arange(100000)}))": (
        "(np.int64(9999800001), dtype('int64'))"
    ),
    "pd.Series([1.0], dtype=int).dtype, pd.Series({'kind': 'int'}).tolist()": "(dtype('int64'), ['int'])",
}
# Whoever asks for 32 bits has them, and positions of 64 bits are taken where 32 are meant.
OF_OTHER_BITS = {
    "np.zeros(1, 'i4'), np.array([1], dtype=np.int32)": "(array([0], dtype=int32), array([1], dtype=int32))",
    "np.array([np.int32(1)]) + np.array([1], np.dtype('int32'))": "array([2], dtype=int32)",
    "np.repeat(np.arange(3), np.array([0, 1, 2]))": "array([1, 2, 2])",
    "np.add.reduceat(np.arange(4), np.array([0, 2]))": "array([1, 5])",
    "np.choose(np.array([1, 0]), [[1, 2], [3, 4]])": "array([3, 2])",
    "np.array([3, 1, 2]).searchsorted(2, sorter=np.array([1, 2, 0]))": "np.int64(1)",
    "np.random.binomial(np.array([3, 4]), 1.0)": "array([3, 4])",
    "np.random.RandomState(0).binomial(np.array([3, 4]), 1.0)": "array([3, 4])",
    "np.sum(np.ones(2, 'i4'), dtype=np.dtype('float64')), np.sum(np.ones(2, 'i4'), dtype=np.dtype('i4'))": (
        "(np.float64(2.0), np.int32(2))"
    ),
    "import array; a = array.array('l', [1]); np.asarray(a)[0] = 5; a[0], np.array([np.int32(1)]).dtype": (
        "(5, dtype('int32'))"
    ),
    "np.pad([1], 1, 'edge'), np.frompyfunc(int, 1, 1)('5')": "(array([1, 1, 1]), 5)",
}


@pytest.mark.parametrize(("code", "expected"), [*OF_64_BITS.items(), *OF_OTHER_BITS.items()])
def test_the_integers_of_a_cell_have_64_bits(science: Kernel, code: str, expected: str) -> None:
    before, _, last = code.rpartition("; ")
    ran = science.run(f"import numpy as np, pandas as pd\n{before}\n{last}")
    assert (ran.error if ran.status != "ok" else "", re.sub(r"\s+", " ", ran.result or "")) == ("", expected)


def test_a_warning_of_numpy_is_of_the_line_that_called_it(science: Kernel) -> None:
    ran = science.run(
        "import numpy as np, warnings\nwith warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always')\n    np.polyfit([1, 1], [1, 1], 1)\n[each.lineno for each in found][0]"
    )
    assert (ran.status, ran.result) == ("ok", "4")


def test_what_a_library_calls_keeps_its_integers(science: Kernel) -> None:
    """Compiled code agrees with NumPy about the size of a position, and so libraries may not get another one."""
    library = "source = 'import numpy\\ndef made(): return numpy.arange(3).dtype, numpy.dtype(numpy.intp)'"
    code = f"{library}\nscope = {{}}\nexec(compile(source, '/lib/packages/of.py', 'exec'), scope)\nscope['made']()"
    assert science.run(code).result == "(dtype('int32'), dtype('int32'))"
