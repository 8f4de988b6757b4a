"""Shows a figure of plotly, altair or bokeh without interaction: a line of text, and a picture.

The interactive figure is the HTML beside it, created by its library. Vega draws the picture of an altair chart, and
matplotlib that of a plotly figure; if that is impossible, the line gives the reason. bokeh draws in a browser only.
"""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
import os
from collections.abc import Callable
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from IPython.core import display_functions

from kernelmcp_guest.packages import missing_imports
from kernelmcp_guest.shown import drawing, for_views, plotly_reader, vega
from kernelmcp_guest.shown.chart_model import Described, NotDrawn, text

Bundle = dict[str, Any]

publish: Callable[[Bundle], None] = vars(display_functions)["publish_display_data"]

_PLOTLY = "application/vnd.plotly.v1+json"
_BOKEH_HEIGHT, _BOKEH_MARGIN = 600, 30
# A message that exceeds the server's limit is dropped as a whole, including line and picture.
_MAX_FORM_BYTES = 8 * 1024 * 1024


def show_plotly(renderers: Any) -> None:
    """Patch plotly.io._renderers: `figure.show()`, and a figure as a result, which uses it too."""

    def show(fig: Any, *_: Any, **__: Any) -> None:
        if isinstance(fig, dict):
            fig = import_module("plotly.graph_objects").Figure(fig)
        html = fig.to_html(include_plotlyjs="cdn")
        shown = _shown({"text/html": html}, fig, plotly_reader.describe, _drawn_by_matplotlib)
        publish(shown | for_views.chart(_PLOTLY, lambda: json.loads(fig.to_json())))

    renderers.show = show


def show_altair(api: Any) -> None:
    """Patch altair.vegalite.v5.api and its successors: the output of the selected renderer, and a picture; and
    `chart.save("chart.svg")`, for which altair has a compiled package."""
    usual, usual_save = api.TopLevelMixin._repr_mimebundle_, api.TopLevelMixin.save

    def bundle(chart: Any, *args: Any, **options: Any) -> Any:
        try:
            spec = chart.to_dict(context={"pre_transform": False})
        except Exception:  # noqa: BLE001  # whatever is wrong with the chart, altair says it
            return usual(chart, *args, **options)
        found = api.renderers.get()(spec)
        data, *metadata = found if isinstance(found, tuple) else (found,)
        if isinstance(data, dict):
            data = _shown(data, spec, vega.describe, _drawn_by_vega) | for_views.chart(_vega_lite(spec), lambda: spec)
        return (data, *metadata) if metadata else data

    def save(chart: Any, fp: Any, format: str | None = None, *args: Any, **options: Any) -> None:  # noqa: A002  # its name
        is_file = hasattr(fp, "write")
        if (format or ("" if is_file else os.fspath(fp).rpartition(".")[2])) != "svg":
            return usual_save(chart, fp, format, *args, **options)
        svg = vega.picture(chart.to_dict(context={"pre_transform": False}))
        if is_file:
            fp.write(svg)
        else:
            Path(fp).write_text(svg, "utf-8")
        return None

    api.TopLevelMixin._repr_mimebundle_, api.TopLevelMixin.save = bundle, save


def _vega_lite(spec: Any) -> str:
    """The mime type of a specification, by its schema's version."""
    version = "5" if "/v5" in str(spec.get("$schema", "")) else "6"
    return f"application/vnd.vegalite.v{version}+json"


def show_bokeh(showing: Any) -> None:
    """Patch bokeh.io.showing: `show(figure)` would need a file and a browser, or JavaScript loaded elsewhere."""
    usual = showing._show_with_state

    def show_with_state(obj: Any, state: Any, browser: Any, new: Any, notebook_handle: bool = False) -> Any:
        if notebook_handle:  # for later changes from here, which need bokeh's own way
            import_module("bokeh.io.notebook").load_notebook()
            state.output_notebook()
            return usual(obj, state, browser, new, notebook_handle=True)
        publish(_bokeh_bundle(obj))
        if state.file:
            showing.save(obj, state=state)
        return None

    showing._show_with_state = show_with_state


def load_nothing(output: Any) -> None:
    """Patch bokeh.io.output: each figure includes its JavaScript, so `output_notebook()` has nothing to load."""

    def run_notebook_hook(*_: Any, **__: Any) -> None:
        pass

    output.run_notebook_hook = run_notebook_hook


def show_bokeh_results(layouts: Any) -> None:
    """Patch bokeh.models.layouts: a figure as a result is shown, instead of its many properties."""

    def bundle(model: Any, *_: Any, **__: Any) -> Bundle:
        return _bokeh_bundle(model)

    layouts.LayoutDOM._repr_mimebundle_ = bundle


def _bokeh_bundle(model: Any) -> Bundle:
    resources = import_module("bokeh.resources").CDN
    # In a separate document: a figure shown earlier may share its data.
    document = import_module("bokeh.embed").file_html(model, resources, "Bokeh", _always_new=True)
    height = model.height if isinstance(model.height, int) else _BOKEH_HEIGHT
    frame = f'<iframe style="width: 100%; height: {height + _BOKEH_MARGIN}px; border: 0" srcdoc="{escape(document)}">'
    return _shown({"text/html": f"{frame}</iframe>"}, model, _described_bokeh, _drawn_by_a_browser)


def _described_bokeh(model: Any) -> Described:
    plots = [each for each in model.references() if hasattr(each, "renderers") and hasattr(each, "x_range")]
    renderers = [each for plot in plots for each in plot.renderers if type(each).__name__ == "GlyphRenderer"]
    kinds = [type(each.glyph).__name__ for each in renderers]
    marks = sum(len(next(iter(each.data_source.data.values()), ())) for each in renderers)
    title = next((text(plot.title.text) for plot in plots if plot.title is not None and plot.title.text), "")
    named = "bokeh figure" if len(plots) == 1 else f"bokeh {type(model).__name__} of {len(plots)} figures"
    return Described(named, kinds, title, f"{marks:,} marks")


def _drawn_by_a_browser(_: Any) -> Bundle:
    raise NotDrawn("only a browser draws it")


def _drawn_by_matplotlib(figure: Any) -> Bundle:
    chart = plotly_reader.read(figure)
    if not missing_imports.have("matplotlib"):
        raise NotDrawn("matplotlib, which draws it, is not installed")
    return {"image/png": drawing.picture(chart)}


def _drawn_by_vega(spec: Any) -> Bundle:
    return {"image/svg+xml": vega.picture(spec)}


def _shown(
    interactive: Bundle, figure: Any, describe: Callable[[Any], Described], draw: Callable[[Any], Bundle]
) -> Bundle:
    """A figure as its library shows it, a line about it, and a picture where it can be drawn."""
    drawn: Bundle = {}
    why_not: str | None = None
    try:
        drawn = draw(figure)
    except NotDrawn as reason:
        why_not = str(reason)
    except Exception as error:  # noqa: BLE001  # what a figure holds may be anything, and it is there all the same
        why_not = f"{type(error).__name__} while drawing"
    try:
        described = describe(figure)
    except Exception:  # noqa: BLE001  # as above
        described = Described("chart", [type(figure).__name__])
    line = described.line(why_not)
    if (size := len(json.dumps(interactive, default=repr))) > _MAX_FORM_BYTES:
        line += f"\nIts interactive form, {size / 1e6:,.0f} MB, is left out: save the figure as an HTML file"
        interactive = {}
    return {**interactive, "text/plain": line} | drawn
