"""A bokeh glyph with its data columns.

A property of a glyph is a value, or names a column of its source: as text if that cannot be a value, or as an object
with a field and its transformation.
"""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from dataclasses import dataclass
from typing import Any

from kernelmcp_guest.shown import drawing
from kernelmcp_guest.shown.chart import Axis, Chart, Mark, NotDrawn, days, is_date, number, numbers, text

MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^", "inverted_triangle": "v", "cross": "+",
            "x": "x", "plus": "P", "star": "*", "hex": "h", "dot": ".", "asterisk": "*", "dash": "_"}  # fmt: skip
_COLORS = ("fill_color", "line_color", "color", "text_color")


def factor_name(factor: Any) -> str:
    return " ".join(map(str, factor)) if isinstance(factor, tuple | list) else str(factor)


def coordinate(value: Any, axis: Axis) -> float:
    """A position on an axis, including that of a category or beside one."""
    if axis.categories is not None:
        shift = 0.0
        if isinstance(value, tuple | list) and value and isinstance(value[-1], int | float):
            *value, shift = value
            value = value[0] if len(value) == 1 else tuple(value)
        if isinstance(value, int | float):
            return float(value) - 0.5  # bokeh counts from the edge of the first category
        if (place := axis.index.get(factor_name(value))) is None:
            raise NotDrawn("a category that the axis does not have")
        return place + shift
    if isinstance(value, str):
        raise NotDrawn("categories on an axis of numbers")
    if axis.dates and not is_date(value):
        return number(value) / 86_400_000
    return days(value) if is_date(value) else number(value)


@dataclass
class Glyph:
    chart: Chart
    renderer: Any
    labels: list[Any]
    """Its legend items."""

    def __post_init__(self) -> None:
        if self.renderer.__class__.__name__ != "GlyphRenderer":
            raise NotDrawn(f"{type(self.renderer).__name__} is not drawn")
        view = self.renderer.view
        if view is not None and type(view.filter).__name__ != "AllIndices":
            raise NotDrawn("a filtered view")
        self.glyph = self.renderer.glyph
        self.data: dict[str, Any] = self.renderer.data_source.data
        self.length = len(next(iter(self.data.values()), ()))
        self.kind = type(self.glyph).__name__
        if self.length > drawing.MAX_POINTS:
            raise NotDrawn(f"{self.length:,} marks, more than {drawing.MAX_POINTS:,}")

    def column(self, name: str) -> list[Any]:
        """A property's value for each mark."""
        found = getattr(self.glyph, name)
        kind = type(found).__name__
        if kind == "Value":
            return [found.value] * self.length
        if kind == "Expr":
            return self._sums(found.expr)
        transform = None
        if kind == "Field":
            found, transform = found.field, found.transform
            transform = None if type(transform).__name__ in ("UnspecifiedType", "NoneType") else transform
        elif not isinstance(found, str) or (name in _COLORS and found not in self.data) or (
            name == "marker" and found in MARKERS
        ):  # fmt: skip
            return [found] * self.length
        if found not in self.data:
            raise NotDrawn(f"no column {found}")
        values = list(self.data[found])
        return values if transform is None else self._transformed(values, transform)

    def _sums(self, expression: Any) -> list[Any]:
        if type(expression).__name__ != "Stack":
            raise NotDrawn(f"the expression {type(expression).__name__}")
        columns = [numbers(self.data[name]) for name in expression.fields]
        return [sum(row) for row in zip(*columns, strict=True)] if columns else [0.0] * self.length

    def _transformed(self, values: list[Any], transform: Any) -> list[Any]:
        kind = type(transform).__name__
        if kind == "Dodge":
            return [(*(value if isinstance(value, tuple) else (value,)), float(transform.value)) for value in values]
        if kind == "CategoricalColorMapper":
            colors = dict(zip(map(factor_name, transform.factors), transform.palette, strict=False))
            return [colors.get(factor_name(value)) for value in values]
        if kind == "CategoricalMarkerMapper":
            raise NotDrawn("markers by category")
        if kind == "LinearColorMapper":
            raise _ByValue(numbers(values))
        raise NotDrawn(f"the transformation {kind}")

    def places(self, name: str) -> list[float]:
        axis = self.chart.y if "y" in name or name in ("top", "bottom") else self.chart.x
        return [coordinate(value, axis) for value in self.column(name)]

    def lists(self, name: str) -> list[list[float]]:
        axis = self.chart.y if name == "ys" else self.chart.x
        found = self.column(name)
        if (length := sum(map(len, found))) > drawing.MAX_POINTS:
            raise NotDrawn(f"{length:,} marks, more than {drawing.MAX_POINTS:,}")
        return [[coordinate(value, axis) for value in values] for values in found]

    @property
    def name(self) -> str | None:
        """The name of the whole glyph in the legend."""
        wholes = (item.label for item in self.labels if type(item.label).__name__ == "Value" and item.index is None)
        return next((text(label.value) for label in wholes), None)

    def add(self, mark: Mark, color: str = "fill_color", alpha: str = "fill_alpha") -> None:
        """Add a mark with its colour, and its name or those of its groups."""
        try:
            colors = [drawing.color(each) for each in self.column(color)]
        except _ByValue as found:
            mark.values, colors = found.values, []
        shades = set(map(float, self.column(alpha)))
        if len(shades) > 1:
            raise NotDrawn("opacity by data")
        mark.opacity = shades.pop() if shades else 1.0
        mark.color = colors[0] if len(set(colors)) == 1 else colors or None
        mark.name = self.name
        for item in self.labels:
            self._enter(item, colors)
        self.chart.marks.append(mark)

    def _enter(self, item: Any, colors: list[str | None]) -> None:
        """Add legend entries: for one of its marks, or for each value of a column."""
        if type(item.label).__name__ == "Field":
            for name, color in zip(map(text, self.data[item.label.field]), colors, strict=False):
                self.chart.entries.setdefault(name, color)
        elif item.index is not None:
            self.chart.entries[text(item.label.value)] = colors[item.index] if item.index < len(colors) else None


class _ByValue(Exception):
    """Colours are from a scale."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = values
