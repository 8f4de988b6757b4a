"""The forms of objects that a client with views asks for: rows of tables, and the data of charts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.prepared_home import unpacked_home
from tests.pyodide_packages import pyodide_folder

from .conftest import running_kernel
from .driver import Kernel, Ran

VIEW_TYPE = "application/vnd.kernelmcp.view+json"
TABLE = "application/vnd.dataresource+json"
SETUP = """
%pip install -q plotly
import pandas as pd, plotly.graph_objects as go
small = pd.DataFrame({"a": [1, 2]})
long = pd.DataFrame({"n": range(5000), "x": [0.5] * 5000, "city": ["Oslo", None] * 2500})
wide = pd.DataFrame({f"c{n}": ["words " * 20] * 2000 for n in range(30)})
"""


@pytest.fixture(scope="module")
def viewed() -> Iterator[Kernel]:
    settings = json.dumps({"pyodide_url": str(pyodide_folder())})
    with unpacked_home() as home, running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=settings) as kernel:
        ran = kernel.prepare(SETUP)
        assert ran.status == "ok", ran.error
        yield kernel


def run(kernel: Kernel, code: str, *, views: bool = True) -> Ran:
    """Run a cell whose request asks for them."""
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    message = kernel.client.session.msg("execute_request", content, metadata={"kernelmcp": {"views": views}})
    kernel.client.shell_channel.send(message)
    return kernel.finish(message["header"]["msg_id"])


def forms(ran: Ran) -> dict[str, Any]:
    """Of the last object."""
    assert ran.status == "ok", ran.error
    return [message["content"]["data"] for message in ran.outputs if "data" in message["content"]][-1].get(
        VIEW_TYPE, {}
    )


def test_a_table_comes_with_its_rows_if_the_html_has_only_some(viewed: Kernel) -> None:
    table = forms(run(viewed, "long"))[TABLE]
    assert table["rows"] == 5000
    assert len(table["data"]) == 2000
    assert table["data"][1] == {"index": 1, "n": 1, "x": 0.5, "city": None}
    assert [field["name"] for field in table["schema"]["fields"]] == ["index", "n", "x", "city"]
    assert forms(run(viewed, "small")) == {}


def test_nothing_is_added_for_other_clients(viewed: Kernel) -> None:
    assert forms(run(viewed, "long", views=False)) == {}
    assert forms(viewed.run("long")) == {}
    assert forms(run(viewed, "go.Figure(go.Bar(y=[1, 2]))", views=False)) == {}


def test_a_large_table_is_cut_to_what_fits(viewed: Kernel) -> None:
    table = forms(run(viewed, "wide"))[TABLE]
    assert table["rows"] == 2000
    assert 10 <= len(table["data"]) < 2000
    assert len(json.dumps(table)) < 600_000


def test_integers_that_a_browser_would_round_are_text(viewed: Kernel) -> None:
    code = "pd.DataFrame({'id': [2**53 + 1] * 100, 'n': [1] * 100})"
    row = forms(run(viewed, code))[TABLE]["data"][0]
    assert row["id"] == str(2**53 + 1)
    assert row["n"] == 1


def test_numbers_that_json_would_round_are_text(viewed: Kernel) -> None:
    code = (
        "pd.DataFrame({'p': [3.2e-12, float('nan')] * 50, 'x': [0.1234567890123456] * 100, 'half': [0.5] * 100},"
        " index=[12345678901234567] * 100)"
    )
    first, second, *_ = forms(run(viewed, code))[TABLE]["data"]
    assert first == {"index": "12345678901234567", "p": "3.2e-12", "x": "0.1234567890123456", "half": 0.5}
    assert second["p"] is None


def test_infinities_and_microseconds_are_kept(viewed: Kernel) -> None:
    code = "pd.DataFrame({'x': [float('-inf'), 0.5] * 50, 't': pd.Timestamp('2026-01-31 12:34:56.000007')})"
    first, second, *_ = forms(run(viewed, code))[TABLE]["data"]
    assert (first["x"], second["x"]) == ("-inf", "0.5")
    assert first["t"] == "2026-01-31T12:34:56.000007"


def test_numbers_too_large_to_be_rounded_warn_of_nothing(viewed: Kernel) -> None:
    ran = run(viewed, "pd.DataFrame({'a': [1e300, float('inf')] * 50})")
    assert ran.text("stderr") == ""
    assert float(forms(ran)[TABLE]["data"][0]["a"]) == 1e300


def test_an_object_in_a_table_is_its_text_and_nothing_of_it_is_read(viewed: Kernel) -> None:
    code = """
class Thing:
    read = 0
    @property
    def attribute(self):
        Thing.read += 1
        return 1
    def __repr__(self):
        return "thing"
thing = Thing()
pd.DataFrame({"a": [thing] * 100, thing: "x"}, index=pd.Index([thing] * 100, name="i"))
"""
    assert forms(run(viewed, code))[TABLE]["data"][0] == {"i": "thing", "a": "thing", "thing": "x"}
    assert viewed.run("Thing.read").result == "0"


def test_values_that_json_has_not_are_the_text_of_a_cell(viewed: Kernel) -> None:
    code = """
pd.DataFrame({
    "zoned": pd.date_range("2026-01-01", periods=100, tz="Europe/Oslo"),
    "took": pd.Timedelta(hours=1),
    "month": pd.Period("2026-01"),
    "any": [1e300, [1, 2], 1e-12, None] * 25,
    "least": [-2**63] * 100,
}, index=[pd.timedelta_range(0, periods=100, freq="h"), [2**53 + 1] * 100])
"""
    rows = forms(run(viewed, code))[TABLE]["data"]
    assert rows[0] == {
        "level_0": "0 days 00:00:00",
        "level_1": str(2**53 + 1),
        "zoned": "2026-01-01 00:00:00+01:00",
        "took": "0 days 01:00:00",
        "month": "2026-01",
        "any": "1e+300",
        "least": str(-(2**63)),
    }
    assert [row["any"] for row in rows[1:4]] == ["[1, 2]", "1e-12", None]


def test_a_column_without_a_value_leaves_the_table(viewed: Kernel) -> None:
    code = "pd.DataFrame({'n': pd.array([None] * 100, dtype='Int64'), 'x': pd.array([None] * 100, dtype='Float64')})"
    assert forms(run(viewed, code))[TABLE]["data"][0] == {"index": 0, "n": None, "x": None}


@pytest.mark.parametrize(
    "code",
    ["pd.DataFrame({1: range(100), '1': 0})", "pd.DataFrame({'1': [0] * 100}, index=pd.RangeIndex(100, name=1))"],
)
def test_a_table_whose_names_are_one_in_json_is_its_html(viewed: Kernel, code: str) -> None:
    assert forms(run(viewed, code)) == {}


@pytest.mark.parametrize(
    "code",
    [
        "pd.DataFrame([[1, 2]] * 100, columns=['a', 'a'])",
        "pd.DataFrame({'a': [object()] * 100})",
        "pd.DataFrame({('a', 'b'): range(100)})",
        "pd.DataFrame({'a': [float('inf')] * 100})",
    ],
)
def test_a_strange_table_is_shown_in_any_case(viewed: Kernel, code: str) -> None:
    ran = run(viewed, code)
    assert ran.status == "ok", ran.error
    [bundle] = [message["content"]["data"] for message in ran.outputs if "data" in message["content"]]
    assert "<table" in bundle["text/html"]


@pytest.mark.parametrize("code", ["FIGURE", "FIGURE.show()"])
def test_a_figure_of_plotly_comes_with_its_data(viewed: Kernel, code: str) -> None:
    ran = run(viewed, code.replace("FIGURE", "go.Figure(go.Bar(y=[1, 2], name='bars'))"))
    figure = forms(ran)["application/vnd.plotly.v1+json"]
    assert figure["data"][0]["name"] == "bars"
