"""Charts of altair and bokeh: a picture, or a line that says why there is none.

Vega, bokeh, jinja2 and dask are real. altair is not available for the sandbox in a test, for want of rpds-py: its
specifications of charts were recorded (charts/vega.json), and a stand-in shows them as altair does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepared_home import unpacked_home
from tests.pure_wheels import pure_wheels
from tests.pyodide_packages import pyodide_folder

from .conftest import running_kernel
from .driver import Kernel, Ran
from .wheels import make_wheel

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "charts" / "vega.json").read_text())
# The part of altair that shows a chart.
ALTAIR = """
class TopLevelMixin:
    def __init__(self, spec):
        self.spec = spec
    def to_dict(self, context=None):
        if self.spec is None:
            raise ValueError("it is not a chart")
        return self.spec
    def _repr_mimebundle_(self, *args, **options):
        return {"text/plain": "altair says what is wrong"}
    def save(self, fp, format=None):
        raise ValueError(f"Saving charts in {format or fp!r} requires the vl-convert-python package")

class renderers:
    @staticmethod
    def get():
        return lambda spec: {"text/html": "<b>interactive</b>", "text/plain": "alt.Chart(...)"}
"""
BOKEH = """
from bokeh.plotting import figure, show, output_notebook
from bokeh.layouts import row
F = ["a", "b", "c"]
"""
ROWS = {"values": [{"a": number, "l": [0] * 30} for number in range(1000)]}
DATES = """
import datetime as dt
p = figure(title='T', x_axis_type='datetime')
p.line([dt.date(2024, 1, 1), dt.date(2024, 2, 1)], [1, 2])
"""


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    wheels = tmp_path_factory.mktemp("wheels")
    files = {f"altair/{name}": "" for name in ("__init__.py", "vegalite/__init__.py", "vegalite/v6/__init__.py")}
    make_wheel(wheels, "altair", files=files | {"altair/vegalite/v6/api.py": ALTAIR})
    settings = json.dumps({"pyodide_url": str(pyodide_folder()), "wheel_folders": [str(wheels), str(pure_wheels())]})
    with unpacked_home() as home, running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=settings) as kernel:
        ran = kernel.prepare("%pip install -q altair==1.0 bokeh jinja2 pandas matplotlib dask")
        assert ran.status == "ok", ran.error
        assert kernel.prepare("import json\nfrom altair.vegalite.v6.api import TopLevelMixin").status == "ok"
        ran = kernel.prepare(BOKEH)
        assert ran.status == "ok", ran.error
        yield kernel


def bundle(ran: Ran) -> dict[str, Any]:
    """What was displayed last."""
    assert ran.status == "ok", ran.error
    return [message["content"]["data"] for message in ran.outputs if "data" in message["content"]][-1]


def is_picture(data: dict[str, Any]) -> bool:
    return data.get("image/svg+xml", "").startswith("<svg ")


@pytest.mark.parametrize("name", RECORDED)
def test_a_chart_of_altair_is_a_picture(charts: Kernel, name: str) -> None:
    data = bundle(charts.run(f"TopLevelMixin(json.loads({json.dumps(RECORDED[name])!r}))"))
    assert data["text/html"] == "<b>interactive</b>"
    assert data["text/plain"].startswith("<altair chart: ")
    missing = "without a picture here: data that are not in the chart" if name == "data elsewhere" else ""
    assert is_picture(data) != bool(missing), data["text/plain"]
    assert ("without a picture" in data["text/plain"]) == bool(missing)
    assert missing in data["text/plain"]


def marks(data: dict[str, Any], kind: str) -> int:
    """How many marks of a kind the picture has."""
    group = data["image/svg+xml"].partition(f'class="mark-{kind} role-mark')[2]
    return group.partition("</g>")[0].count("<path")


def test_what_a_chart_says_is_computed(charts: Kernel) -> None:
    """Its expressions are interpreted: in a guest, JavaScript makes no code from strings."""
    rows = "[{'x': n} for n in range(10)]"
    steps = "[{'calculate': 'datum.x * 2', 'as': 'y'}, {'filter': 'datum.y > 8 && datum.y < 16'}]"
    encoding = "{'x': {'field': 'y', 'type': 'quantitative'}}"
    spec = f"{{'mark': 'point', 'data': {{'values': {rows}}}, 'transform': {steps}, 'encoding': {encoding}}}"
    code = f"TopLevelMixin({spec})"
    assert marks(bundle(charts.run(code)), "symbol") == 3


def test_a_chart_of_altair_is_saved_as_svg(charts: Kernel) -> None:
    spec = f"json.loads({json.dumps(RECORDED['points'])!r})"
    code = f"import io\nchart, file = TopLevelMixin({spec}), io.StringIO()\n"
    code += "chart.save('a.svg'); chart.save(file, 'svg')\n"
    assert charts.run(code + "file.getvalue() == open('a.svg').read(), file.getvalue()[:5]").result == "(True, '<svg ')"
    assert "chart.save('chart.svg')" in str(charts.run("chart.save('a.png')").reply)


def test_what_is_wrong_with_a_chart_of_altair_is_said_by_altair(charts: Kernel) -> None:
    assert bundle(charts.run("TopLevelMixin(None)"))["text/plain"] == "altair says what is wrong"


@pytest.mark.parametrize(
    ("spec", "why_not"),
    [
        ({"mark": {}, "encoding": []}, "TypeError: "),
        ({"mark": "nothing", "data": {"values": [{}]}}, "TypeError: "),
        ({"mark": "point", "data": {"url": "https://example.org/data.csv"}}, "data that are not in the chart"),
        ({"mark": "point", "data": {"url": "/workspace/data.csv"}}, "data that are not in the chart"),
        ({"mark": "point", "data": {"values": [{}] * 20_001}}, "20,001 rows, more than 20,000"),
        ({"data": {"values": [{}] * 6_000}, "layer": [{"mark": "point"}] * 4}, "24,000 rows, more than 20,000"),
        ({"mark": "point", "data": {"sequence": {"start": 0, "stop": 100_000}}}, "100,000 rows, more than 20,000"),
        ({"mark": "point", "data": {"sequence": {"stop": "1e6"}}}, "1,000,000 rows, more than 20,000"),
        ({"mark": "point", "data": {"sequence": {"start": 5, "stop": None}}}, "more than 20,000 rows"),
        (
            {"layer": [{"mark": "point", "data": {"sequence": {"start": -n, "stop": n}}} for n in (50_000, -50_000)]},
            "100,000 rows, more than 20,000",
        ),
        ({"mark": "geoshape", "data": {"graticule": {"step": [0.01, 0.01]}}}, "3,888,000 rows, more than 20,000"),
        ({"data": ROWS, "transform": [{"impute": "a", "keyvals": {"stop": 3e6}}], "mark": "line"}, "3,001,000 rows"),
        ({"data": ROWS, "mark": "line", "encoding": {"y": {"impute": {"keyvals": [0] * 30_000}}}}, "31,000 rows, more"),
        (
            {"data": {"values": [1]}, "transform": [{"flatten": ["a"]}, {"fold": []}], "mark": "line"},
            "more than 20,000",
        ),
        ({"data": ROWS, "transform": [{"fold": ["a"] * 30}], "mark": "line"}, "30,000 rows, more than 20,000"),
        ({"data": ROWS, "layer": [{"transform": [{"flatten": ["l"]}], "mark": "line"}]}, "30,000 rows, more than"),
        ({"data": ROWS, "transform": [{"density": "a", "steps": 50_000}], "mark": "area"}, "50,000 rows, more than"),
        ({"data": ROWS, "transform": [{"quantile": "a", "step": 1e-5}], "mark": "line"}, "100,000 rows, more than"),
        (
            {"data": ROWS, "transform": [{"impute": "a", "key": "a", "groupby": ["a"]}], "mark": "line"},
            "1,000,000 rows",
        ),
        ({"data": {"values": [{}] * 6_000}, "repeat": ["a"] * 4, "spec": {"mark": "point"}}, "24,000 rows, more than"),
        ({"mark": "point", "data": {"values": ["x" * 9_000_000]}}, "9 MB of data, more than 8"),
        (
            {"mark": "image", "data": {"values": [{"u": "file:///etc/passwd"}]}, "encoding": {"url": {"field": "u"}}},
            "images that",
        ),
        (
            {"mark": "point", "data": {"values": [{"a": 1}]}, "transform": [{"calculate": "nono(", "as": "b"}]},
            "Unexpected end",
        ),
    ],
)
def test_a_strange_specification_has_no_picture_and_is_no_error(
    charts: Kernel, spec: dict[str, Any], why_not: str
) -> None:
    data = bundle(charts.run(f"TopLevelMixin(json.loads({json.dumps(spec)!r}))"))
    assert not is_picture(data)
    assert f"without a picture here: {why_not}" in data["text/plain"]


def test_a_specification_that_holds_itself_has_no_picture(charts: Kernel) -> None:
    data = bundle(charts.run("spec = {'mark': 'bar'}; spec['layer'] = [spec] * 100; TopLevelMixin(spec)"))
    assert data["text/plain"] == "<altair chart: 1000 x bar, without a picture here: ValueError while drawing>"


def test_code_in_a_chart_reaches_nothing(charts: Kernel) -> None:
    """Vega's expressions are code of whoever made the chart; they see the chart."""
    for code in ("datum.constructor.constructor('return process')()", "event.view", "globalThis", "this.process"):
        spec = {
            "mark": {"type": "text"}, "data": {"values": [{"a": 1}]},
            "transform": [{"calculate": code, "as": "b"}], "encoding": {"text": {"field": "b"}},
        }  # fmt: skip
        data = bundle(charts.run(f"TopLevelMixin(json.loads({json.dumps(spec)!r}))"))
        assert "process" not in data.get("image/svg+xml", "").replace(">undefined<", "")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            "p = figure(); p.line([1, 2], [3, 4], legend_label='L'); p.scatter([1], [3], size=9)",
            "figure: Line, Scatter",
        ),
        (DATES, "figure: Line, 'T', 2 marks"),
        ("p = row(figure(), figure())", "Row of 2 figures: empty"),
    ],
)
def test_a_figure_of_bokeh_is_its_html_and_a_line(charts: Kernel, code: str, line: str) -> None:
    for shown in ("p", "show(p)", "display(p)"):
        data = bundle(charts.run(f"{code}\n{shown}"))
        assert data["text/plain"].startswith(f"<bokeh {line}")
        assert data["text/plain"].endswith("without a picture here: only a browser draws it>")
        assert data["text/html"].startswith("<iframe ")
        assert "https://cdn.bokeh.org" in data["text/html"]


def test_bokeh_loads_nothing_into_a_notebook_and_writes_the_file_that_it_is_asked_for(charts: Kernel) -> None:
    assert charts.run("output_notebook()").outputs == []
    code = "from bokeh.io import output_file\noutput_file('own.html')\np = figure(); p.line([1, 2], [3, 4]); show(p)"
    assert "text/html" in bundle(charts.run(code))
    assert charts.run("from bokeh.io import reset_output\nreset_output()\nopen('own.html').read(15)").result == repr(
        "<!DOCTYPE html>"
    )


def test_a_styled_table_is_text_with_its_formats_and_html_with_its_colours(charts: Kernel) -> None:
    charts.run("import pandas as pd\nstyled = pd.DataFrame({'a': [1.234, 2.0], 'b': ['x', 'y']}).style")
    data = bundle(charts.run("styled.format(precision=1).highlight_max(subset=['a']).set_caption('Caption')"))
    assert data["text/plain"] == "Caption\n | a | b\n0 | 1.2 | x\n1 | 2.0 | y"
    assert "background-color: yellow" in data["text/html"]
    text = bundle(charts.run("pd.DataFrame({'a': range(1000)}).style"))["text/plain"]
    assert text.endswith("[1000 rows x 1 columns]")
    assert len(text.splitlines()) < 20


def test_dask_computes_in_order_whatever_scheduler_it_is_told(charts: Kernel) -> None:
    code = "import dask, dask.bag\nbag = dask.bag.from_sequence(range(10), npartitions=2).map(lambda n: n * 2)\n"
    for scheduler in ("", "scheduler='threads'", "scheduler='processes'"):
        assert charts.run(f"{code}sum(bag.compute({scheduler}))").result == "90"
    ran = charts.run(f"{code}from dask.diagnostics import ProgressBar\nwith ProgressBar(): bag.compute()")
    assert "100% Completed" in ran.text(), ran.error
