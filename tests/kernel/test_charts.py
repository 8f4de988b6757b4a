"""Charts of altair and bokeh: a picture where it shows what the chart shows, else a line that says why not.

bokeh, jinja2 and dask are real. altair cannot be had for the sandbox in a test, for want of rpds-py: what it makes of
charts was recorded (charts/vega.json, with what must be read from it), and a stand-in shows it as altair does.
"""

from __future__ import annotations

import json
from base64 import b64decode
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

RECORDED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "charts" / "vega.json").read_text())
# What of altair a chart is shown by.
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

class renderers:
    @staticmethod
    def get():
        return lambda spec: {"text/html": "<b>interactive</b>", "text/plain": "alt.Chart(...)"}
"""
READ = """
import json
from kernelmcp_guest.shown import vega_reader
from kernelmcp_guest.shown.chart import NotDrawn

def read(spec):
    try:
        chart = vega_reader.read(spec)
    except NotDrawn as reason:
        return {"why_not": str(reason)}
    marks = [{"kind": type(mark).__name__} | vars(mark) for mark in chart.marks]
    return {"axes": [[axis.title, axis.categories] for axis in (chart.x, chart.y)], "marks": marks}
"""
BOKEH = """
from bokeh.plotting import figure, show, output_notebook
from bokeh.models import ColumnDataSource as Source, Span
from bokeh.transform import dodge, factor_cmap, jitter
F = ["a", "b", "c"]
source = Source({"f": F, "u": [3, 1, 2], "w": [1, 2, 3]})
"""
COLORED = """
p = figure(y_range=F)
p.hbar(y='f', right='u', source=source, color=factor_cmap('f', ['red', 'blue', 'green'], F), legend_field='f')
"""
DATES = """
import datetime as dt
p = figure(x_axis_type='datetime')
p.line([dt.date(2024, 1, 1), dt.date(2024, 2, 1)], [1, 2])
"""
TWO_AXES = "p = figure(); p.line([1, 2], [3, 4]); p.extra_y_ranges = {'b': p.y_range}; p"


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    wheels = tmp_path_factory.mktemp("wheels")
    files = {f"altair/{name}": "" for name in ("__init__.py", "vegalite/__init__.py", "vegalite/v6/__init__.py")}
    make_wheel(wheels, "altair", files=files | {"altair/vegalite/v6/api.py": ALTAIR})
    settings = json.dumps({"pyodide_url": str(pyodide_folder()), "wheel_folders": [str(wheels), str(pure_wheels())]})
    with unpacked_home() as home, running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=settings) as kernel:
        ran = kernel.prepare("%pip install -q altair==1.0 bokeh jinja2 pandas matplotlib dask")
        assert ran.status == "ok", ran.error
        assert kernel.prepare(READ + "from altair.vegalite.v6.api import TopLevelMixin").status == "ok"
        ran = kernel.prepare(BOKEH)
        assert ran.status == "ok", ran.error
        yield kernel


def bundle(ran: Ran) -> dict[str, Any]:
    """What was displayed last."""
    assert ran.status == "ok", ran.error
    return [message["content"]["data"] for message in ran.outputs if "data" in message["content"]][-1]


def is_picture(data: dict[str, Any]) -> bool:
    return b64decode(data.get("image/png", "")).startswith(b"\x89PNG")


def without_what_is_usual(mark: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mark.items() if key in like}


@pytest.mark.parametrize("name", RECORDED)
def test_a_chart_of_altair_is_read_as_vega_would_draw_it(charts: Kernel, name: str) -> None:
    record = RECORDED[name]
    ran = charts.run(f"print(json.dumps(read(json.loads({json.dumps(record['spec'])!r}))))")
    found = json.loads(ran.text().replace("NaN", "null"))
    if "marks" in found:
        expected = record["marks"]
        assert len(found["marks"]) == len(expected)
        found["marks"] = [without_what_is_usual(*pair) for pair in zip(found["marks"], expected, strict=True)]
    assert found == {key: value for key, value in record.items() if key != "spec"}


@pytest.mark.parametrize("name", RECORDED)
def test_a_chart_of_altair_is_a_picture_or_says_why_not(charts: Kernel, name: str) -> None:
    record = RECORDED[name]
    data = bundle(charts.run(f"TopLevelMixin(json.loads({json.dumps(record['spec'])!r}))"))
    assert data["text/html"] == "<b>interactive</b>"
    assert data["text/plain"].startswith("<altair chart: ")
    assert is_picture(data) == ("why_not" not in record)
    assert ("without a picture here: " in data["text/plain"]) == ("why_not" in record)


def test_what_is_wrong_with_a_chart_of_altair_is_said_by_altair(charts: Kernel) -> None:
    assert bundle(charts.run("TopLevelMixin(None)"))["text/plain"] == "altair says what is wrong"


@pytest.mark.parametrize(
    "spec",
    [
        {"mark": "bar", "encoding": {"x": {"field": "a", "type": "nominal"}, "y": {"aggregate": "count"}}, "data": []},
        {"mark": {}, "encoding": []},
        {"layer": [{"layer": []}]},
        {"mark": "point", "data": {"values": [{"a": 1}]}, "encoding": {"x": {"field": "a"}, "xOffset": {"field": "a"}}},
        {"mark": "text", "data": {"values": [{"a": 1}]}, "encoding": {"color": {"field": "a", "type": "quantitative"}}},
        {"mark": "line", "data": {"values": [{"x": "1", "y": {}}]}, "encoding": {"x": {"field": "x"}, "y": 7}},
        {"mark": "point", "data": {"values": [{}] * 100_001}, "encoding": {}},
        {"mark": "bar", "data": {"values": [{"n": n} for n in range(2_001)]}, "encoding": {"x": {"field": "n"}}},
    ],
)
def test_a_strange_specification_has_no_picture_and_is_no_error(charts: Kernel, spec: dict[str, Any]) -> None:
    data = bundle(charts.run(f"TopLevelMixin(json.loads({json.dumps(spec)!r}))"))
    assert not is_picture(data)
    assert "without a picture here: " in data["text/plain"]


def test_a_category_for_each_row_takes_no_longer_than_other_data(charts: Kernel) -> None:
    rows = "[{'x': f'n{n}', 'y': n} for n in range(90_000)]"
    encoding = "{'x': {'field': 'x', 'type': 'nominal'}, 'y': {'field': 'y', 'type': 'quantitative'}}"
    code = f"TopLevelMixin({{'mark': 'point', 'data': {{'values': {rows}}}, 'encoding': {encoding}}})"
    assert is_picture(bundle(charts.run(code)))
    code = "p = figure(x_range=[f'n{n}' for n in range(90_000)]); p.scatter(p.x_range.factors, list(range(90_000))); p"
    assert is_picture(bundle(charts.run(code)))


def test_a_specification_that_holds_itself_has_no_picture(charts: Kernel) -> None:
    data = bundle(charts.run("spec = {'mark': 'bar'}; spec['layer'] = [spec] * 100; TopLevelMixin(spec)"))
    assert data["text/plain"] == "<altair chart: 1000 x bar, without a picture here: RecursionError while drawing>"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("p = figure(title='T', x_range=F); p.vbar(x=F, top=[1, 2, 3], width=0.8)", "VBar, 'T', 3 marks"),
        ("p = figure(); p.line([1, 2], [3, 4], legend_label='L'); p.scatter([1], [3], size=9)", "Line, Scatter"),
        ("p = figure(x_range=F); p.vbar_stack(['u', 'w'], x='f', source=source, width=1)", "2 x VBar, 6 marks"),
        ("p = figure(x_range=F); p.vbar(x=dodge('f', 0.2, range=p.x_range), top='u', source=source)", "VBar, 3"),
        (COLORED, "HBar, 3"),
        ("p = figure(); p.quad(top=[1], bottom=0, left=[0], right=[1]); p.add_layout(Span(location=1))", "Quad"),
        (DATES, "Line, 2 marks"),
    ],
)
def test_a_figure_of_bokeh_is_a_picture_and_its_html(charts: Kernel, code: str, line: str) -> None:
    for shown in ("p", "show(p)", "display(p)"):
        data = bundle(charts.run(f"{code}\n{shown}"))
        assert data["text/plain"].startswith(f"<bokeh figure: {line}")
        assert is_picture(data), data["text/plain"]
        assert data["text/html"].startswith("<iframe ")
        assert "https://cdn.bokeh.org" in data["text/html"]


@pytest.mark.parametrize(
    ("code", "why_not"),
    [
        ("p = figure(); p.wedge(x=0, y=0, radius=1, start_angle=0, end_angle=1); p", "Wedge is not drawn"),
        ("p = figure(); p.scatter(x=jitter('u', 1), y='w', source=source); p", "the transformation Jitter"),
        (TWO_AXES, "several axes"),
        ("from bokeh.layouts import row\nrow(figure(), figure())", "a layout of several parts"),
        ("figure()", "it is empty"),
        ("p = figure(); p.line(list(range(100_001)), list(range(100_001))); p", "100,001 marks, more than 100,000"),
        ("p = figure(); p.multi_line([[1] * 500] * 300, [[1] * 500] * 300); p", "150,000 marks, more than 100,000"),
        ("p = figure(); p.multi_line([[1]] * 2_001, [[1]] * 2_001); p", "2,001 marks of these kinds, more than 2,000"),
    ],
)  # fmt: skip
def test_a_figure_of_bokeh_that_cannot_be_drawn_says_why(charts: Kernel, code: str, why_not: str) -> None:
    data = bundle(charts.run(code))
    assert data["text/plain"].endswith(f"without a picture here: {why_not}>")
    assert "image/png" not in data


def test_bars_of_bokeh_stand_where_their_columns_say(charts: Kernel) -> None:
    code = (
        "from kernelmcp_guest.shown import bokeh_reader\n"
        "p = figure(x_range=F); p.vbar_stack(['u', 'w'], x='f', source=source, width=0.9, color=['red', 'blue'])\n"
        "[(mark.at, mark.low, mark.high, mark.color) for mark in bokeh_reader.read(p).marks]"
    )
    places = "[0, 1, 2]"
    assert charts.run(code.replace("(mark.at", "([int(at) for at in mark.at]")).result == (
        f"[({places}, [0.0, 0.0, 0.0], [3.0, 1.0, 2.0], 'red'),\n ({places}, [3.0, 1.0, 2.0], [4.0, 3.0, 5.0], 'blue')]"
    )


def test_bokeh_loads_nothing_into_a_notebook_and_writes_the_file_that_it_is_asked_for(charts: Kernel) -> None:
    assert charts.run("output_notebook()").outputs == []
    code = "from bokeh.io import output_file\noutput_file('own.html')\np = figure(); p.line([1, 2], [3, 4]); show(p)"
    assert is_picture(bundle(charts.run(code)))
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
