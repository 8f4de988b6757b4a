"""Figures of plotly: a picture where it shows what the figure does, within bounds, else why there is none."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepared_home import unpacked_home
from tests.pyodide_packages import pyodide_folder

from .conftest import running_kernel
from .driver import Kernel, Ran


@pytest.fixture(scope="module")
def plotly() -> Iterator[Kernel]:
    settings = json.dumps({"pyodide_url": str(pyodide_folder())})
    with unpacked_home() as home, running_kernel(KERNELMCP_HOME=str(home), KERNELMCP_PACKAGES=settings) as kernel:
        ran = kernel.prepare("%pip install -q plotly pandas matplotlib")
        assert ran.status == "ok", ran.error
        ran = kernel.prepare(PLOTLY + "px.bar(df, x='m', y='v')")  # the first one imports what draws
        assert ran.status == "ok", ran.error
        yield kernel


def shown(ran: Ran, mime: str) -> list[Any]:
    """What was displayed as this mime type, in order."""
    bundles = [message["content"]["data"] for message in ran.outputs if "data" in message["content"]]
    return [bundle[mime] for bundle in bundles if mime in bundle]


PLOTLY = """import pandas as pd
import plotly.express as px
df = pd.DataFrame({"m": ["a", "b", "c"] * 2, "v": [1, 3, 2, 4, 1, 5], "g": ["x"] * 3 + ["y"] * 3})
"""


@pytest.mark.slow
def test_the_first_figure_of_a_session_brings_what_draws_it(tmp_path: Path) -> None:
    settings = json.dumps({"pyodide_url": str(pyodide_folder())})
    with running_kernel(KERNELMCP_HOME=str(tmp_path), KERNELMCP_PACKAGES=settings) as kernel:
        assert kernel.prepare("%pip install -q plotly").status == "ok"
        ran = kernel.prepare(
            "import sys, plotly.graph_objects as go\nprint('matplotlib' in sys.modules)\ngo.Figure(go.Bar(y=[1, 2]))"
        )
        assert ran.text().startswith("False\n")
        assert len(shown(ran, "image/png")) == 1


@pytest.mark.parametrize(
    ("code", "drawn"),
    [
        ("px.bar(df, x='m', y='v', color='g', title='A<br>title')", True),
        ("px.bar(df, x='v', y='m', orientation='h').show()", True),
        ("px.line(df, x='m', y='v', color='g')", True),
        ("px.scatter(df, x='v', y='v', color='v')", True),
        ("px.histogram(df, x='v')", True),
        ("px.pie(df, names='m', values='v')", True),
        ("px.imshow([[1, 2], [3, 4]])", True),
        ("px.box(df, x='g', y='v')", True),
        ("px.histogram(df, x='m', y='v')", False),  # sums
        ("px.area(df, x='m', y='v', color='g')", False),
        ("px.scatter(df, x='m', y='v', facet_col='g')", False),
        ("px.treemap(df, path=['g', 'm'], values='v')", False),
        ("px.line(x=range(200_000), y=range(200_000))", False),
    ],
)
def test_a_figure_of_plotly_is_a_picture_where_it_can_be_drawn(plotly: Kernel, code: str, drawn: bool) -> None:
    ran = plotly.run(PLOTLY + code)
    assert (ran.status, ran.text("stderr")) == ("ok", ""), ran.error
    assert shown(ran, "text/plain")[-1].startswith("<plotly figure: ")
    assert "cdn.plot.ly" in shown(ran, "text/html")[-1]
    assert bool(shown(ran, "image/png")) == drawn


GO = "import plotly.graph_objects as go\nfigure = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name='n'))\n"
MATH = r"r'$\frac$ and $'"


def drawn_size(ran: Ran) -> tuple[int, int]:
    """In pixels."""
    assert ran.status == "ok", ran.error
    (picture,) = shown(ran, "image/png")
    return struct.unpack(">II", b64decode(picture)[16:24])


@pytest.mark.parametrize(
    "code",
    [
        "figure.add_annotation(x=3_000, y=3, text='far').update_xaxes(range=[0, 3])",
        "go.Figure(go.Pie(labels=['a' * 3_000, 'b'], values=[1, 2]))",
        "import matplotlib\nwith matplotlib.rc_context({'savefig.dpi': 5_000}): figure.show()",
        "figure.update_layout(title='a<br>' * 200)",
    ],
)
def test_a_picture_of_a_figure_has_an_end(plotly: Kernel, code: str) -> None:
    assert max(drawn_size(plotly.run(GO + code))) <= 1_600


@pytest.mark.parametrize(
    "code",
    [
        f"figure.update_layout(title={MATH})",
        f"figure.update_xaxes(title={MATH})",
        f"figure.add_scatter(y=[1], name={MATH})",
        f"figure.add_scatter(y=[1]).update_layout(legend_title={MATH})",
        f"go.Figure(go.Pie(labels=[{MATH}], values=[1]))",
        f"go.Figure(go.Heatmap(z=[[1]], colorbar_title={MATH}))",
        f"go.Figure(go.Scatter(x=[1], y=[1], mode='markers', marker=dict(color=[1], colorbar_title={MATH})))",
    ],
)
def test_what_stands_between_dollars_in_a_figure_is_no_formula(plotly: Kernel, code: str) -> None:
    ran = plotly.run(GO + code)
    assert shown(ran, "image/png"), shown(ran, "text/plain")


def test_a_name_with_an_underscore_is_in_the_legend(plotly: Kernel) -> None:
    wide = drawn_size(plotly.run(GO + "figure.update_traces(name='_n').add_scatter(y=[1], name='_m')"))
    assert wide > drawn_size(plotly.run(GO + "figure.add_scatter(y=[1]).update_layout(showlegend=False)"))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("go.Figure([go.Pie(values=[1], domain={'x': [0, 0.4]}), go.Pie(values=[2])])", "several charts"),
        ("figure.add_pie(labels=['a'], values=[1])", "several charts"),
        ("go.Figure(go.Scatter(y=[1, 2], x0=2_000))", "places counted from a start"),
        ("go.Figure(go.Bar(x=[1, 2], dy=2, orientation='h'))", "places counted from a start"),
        ("go.Figure(go.Heatmap(z=[[1]], x0=2_000, dx=1))", "places counted from a start"),
        ("go.Figure(go.Scatter(x=[1, 2], y=[1, 2], x0=2_000))", None),
        ("go.Figure([go.Pie(labels=['a'], values=[1]), go.Pie(values=[2], visible=False)])", None),
    ],
)
def test_a_figure_whose_picture_would_be_another_says_so(plotly: Kernel, code: str, why: str | None) -> None:
    ran = plotly.run(GO + code)
    assert (ran.status, bool(shown(ran, "image/png"))) == ("ok", why is None)
    assert why is None or why in shown(ran, "text/plain")[-1]


def test_nobody_is_warned_of_how_a_figure_is_drawn(plotly: Kernel) -> None:
    ran = plotly.run(GO + "figure.update_layout(title='\\u65e5\\u672c')")
    assert shown(ran, "image/png")
    assert ran.text("stderr") == ""


def test_a_histogram_of_names_counts_each(plotly: Kernel) -> None:
    code = (
        "from kernelmcp_guest.shown import plotly_reader\n"
        "names = [f'{n:02}-name' for n in range(40)] + ['00-name']\n"
        "chart = plotly_reader.read(go.Figure(go.Histogram(x=names)))\n"
        "[(type(mark).__name__, len(mark.at), mark.high[:2]) for mark in chart.marks], chart.x.categories[:2]"
    )
    assert plotly.run(GO + code).result == "([('Bars', 40, [2.0, 1.0])], ['00-name', '01-name'])"


@pytest.mark.parametrize(
    "code",
    [
        "go.Figure([go.Bar(y=[1, 2], marker_color={}, opacity=0.5), go.Bar(y=[2, 1])], {{'barmode': 'stack'}})",
        "go.Figure([go.Bar(y=[1, 2], marker_color=['red', {}])])",
        "go.Figure([go.Scatter(y=[1, 2], line_color={})])",
        "go.Figure([go.Box(y=[1, 2, 3], marker_color={})])",
    ],
)
def test_the_opacity_of_a_color_is_that_of_its_marks(plotly: Kernel, code: str) -> None:
    seen = [
        shown(plotly.run(GO + code.format(repr(color))), "image/png")
        for color in ("rgba(0,0,0,0)", "rgba(255, 255, 255, 0.0)", "rgba(0,0,0,0.5)", "rgb(0,0,0)")
    ]
    assert seen[0] == seen[1]
    assert len({picture for (picture,) in seen}) == 3


def test_a_mark_fades_by_its_opacity(plotly: Kernel) -> None:
    code = "go.Figure(go.Bar(y=[1, 2], marker=dict(color=[1, 2], opacity={})))"
    clear, faded = (shown(plotly.run(GO + code.format(opacity)), "image/png") for opacity in (1, 0.2))
    assert clear != faded


def test_an_area_has_its_own_color_whatever_its_line_has(plotly: Kernel) -> None:
    code = "go.Figure(go.Scatter(y=[1, 2], fill='tozeroy', line=dict(color='rgba(0,0,0,0)'), fillcolor={!r}))"
    red, blue, none = (
        shown(plotly.run(GO + code.format(color)), "image/png") for color in ("red", "blue", "rgba(0,0,0,0)")
    )
    assert red != none != blue != red


def test_a_trace_that_only_the_legend_has_is_not_drawn(plotly: Kernel) -> None:
    pictures = [
        shown(plotly.run(GO + f"figure.add_scatter(y=[9, 9], visible={visible})"), "image/png")
        for visible in ("'legendonly'", "False", "True")
    ]
    assert pictures[0] == pictures[1] != pictures[2]


@pytest.mark.parametrize(
    ("code", "why_not"),
    [
        ("go.Figure(go.Bar(y=[1, 2]), {'barnorm': 'percent'})", "bars as shares"),
        ("go.Figure(go.Histogram(x=[1, 2], xbins={'size': 5}))", "a histogram whose bins are given"),
        ("go.Figure(go.Histogram(y=[1, 2], ybins={'start': 0}))", "a histogram whose bins are given"),
        ("go.Figure([go.Bar(y=[1, 2]), go.Bar(y=[1, -2])], {'barmode': 'stack'})", "stacked bars of both signs"),
        ("go.Figure(go.Bar(y=[1, 2], width=[0.1, 1]))", "bars whose widths or places are given"),
        ("go.Figure(go.Bar(y=[1, 2], offset=0))", "bars whose widths or places are given"),
        ("go.Figure(go.Scatter(y=[1, None, 2], connectgaps=True))", "details of a trace"),
        ("go.Figure(go.Scatter(y=[1, 2], line_width=0))", "lines without a width"),
        ("go.Figure(go.Heatmap(z=[[1, 2]], transpose=True))", "details of a trace"),
        ("go.Figure(go.Heatmap(z=[[1] * 1_001], x=[*range(1_001)]))", "1,001 rows or columns, more than 1,000"),
        ("go.Figure(go.Heatmap(z=[[1, 2]], x=[10, 20])).update_xaxes(range=[5, 15])", "a part of a heatmap"),
        ("go.Figure([go.Bar(y=[1, 0]), go.Bar(y=[1, -2])], {'barmode': 'stack'})", None),
        ("go.Figure([go.Bar(y=[1, 2]), go.Bar(y=[1, -2])], {'barmode': 'relative'})", None),
    ],
)
def test_a_figure_is_drawn_only_as_it_is(plotly: Kernel, code: str, why_not: str | None) -> None:
    ran = plotly.run(GO + code)
    (line,) = shown(ran, "text/plain")
    assert line.partition("here: ")[2].rstrip(">") == (why_not or "")
    assert bool(shown(ran, "image/png")) == (why_not is None)


READ = "from kernelmcp_guest.shown import plotly_reader\nchart = plotly_reader.read({figure})\n"


@pytest.mark.parametrize(
    ("figure", "marks"),
    [
        (
            "figure.update_yaxes(type='log').add_annotation(x=1, y=2, text='a').add_annotation(visible=False, x=9)",
            "[([1.0], [100.0])]",
        ),
        ("figure.add_vline(x=9, visible=False)", "[]"),
    ],
)
def test_notes_and_lines_of_a_figure_are_where_plotly_has_them(plotly: Kernel, figure: str, marks: str) -> None:
    ran = plotly.run(GO + READ.format(figure=figure) + "[(each.x, each.y) for each in chart.marks[1:]]")
    assert ran.result == marks


def test_boxes_stand_in_the_order_of_their_axis(plotly: Kernel) -> None:
    figure = "px.box(df, x='g', y='v', category_orders={'g': ['y', 'x']})"
    ran = plotly.run(PLOTLY + READ.format(figure=figure) + "chart.x.categories, chart.marks[0].at")
    assert ran.result == "(['y', 'x'], [1.0, 0.0])"


@pytest.mark.parametrize(
    "figure", ["px.imshow([[1, 9]], zmin=0, zmax=5)", "go.Figure(go.Heatmap(z=[[1]], zmin=0, zmax=5))"]
)
def test_a_heatmap_has_the_range_of_its_colors(plotly: Kernel, figure: str) -> None:
    ran = plotly.run(GO + PLOTLY + READ.format(figure=figure) + "chart.marks[0].limits")
    assert ran.result == "(0, 5)"


@pytest.mark.parametrize(
    ("code", "why_not"),
    [
        ("go.Figure(go.Histogram(x=list(range(1_000)) + [1e9]))", None),
        ("go.Figure(go.Histogram(x=[1.0, 1.0, None, 1.0]))", None),
        ("go.Figure(go.Histogram(x=[1, 2], nbinsx=30_000))", "30,000 bins, more than 2,000"),
        ("go.Figure([go.Scatter(x=[1], y=[1])] * 2_001)", "2,001 marks of these kinds, more than 2,000"),
        ("go.Figure([go.Scatter(y=list(range(60_000)))] * 2)", "120,000 marks, more than 100,000"),
        ("go.Figure(go.Heatmap(z=[[0] * 400] * 400))", "160,000 marks, more than 100,000"),
    ],
)
def test_a_figure_is_drawn_only_where_it_takes_seconds(plotly: Kernel, code: str, why_not: str | None) -> None:
    ran = plotly.run(GO + code)
    (line,) = shown(ran, "text/plain")
    assert line.partition("here: ")[2].rstrip(">") == (why_not or "")
    assert bool(shown(ran, "image/png")) == (why_not is None)


def test_of_a_figure_too_large_to_be_sent_there_is_still_the_line(plotly: Kernel) -> None:
    ran = plotly.run(GO + "import numpy\ngo.Figure(go.Scatter(y=numpy.random.rand(1_000_000)))")
    (line,) = shown(ran, "text/plain")
    assert line.startswith("<plotly figure: scatter, 1,000,000 marks")
    assert line.endswith(" MB, is left out: save the figure as an HTML file")
    assert shown(ran, "text/html") == []
