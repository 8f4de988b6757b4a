"""One Vega-Lite layer in the form that its marks need: groups, positions of their rows, stacking."""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator
from dataclasses import dataclass

from kernelmcp_guest.shown import drawing
from kernelmcp_guest.shown.chart import Axis, Chart, NotDrawn, number
from kernelmcp_guest.shown.vega_rows import SUMS, Row, grouped, kind_of
from kernelmcp_guest.shown.vega_scales import (
    DEFAULT_COLOR,
    Layer,
    categories,
    category,
    is_discrete,
    places,
    scale_of,
    title_of,
)

_EVERYWHERE = {"x", "y", "color", "opacity", "detail"}
_RANGES = {"x2", "y2"}
# Additional channels of each mark; on other marks they would change the picture.
_CHANNELS = {
    "arc": {"theta", "order"}, "area": _RANGES, "bar": _RANGES | {"xOffset", "yOffset"}, "circle": {"size"},
    "line": {"order", "strokeDash"}, "point": {"shape", "size"}, "rect": _RANGES, "rule": _RANGES, "square": {"size"},
    "text": {"text"},
}  # fmt: skip
_COLORED_BY_NUMBERS = ("bar", "circle", "point", "rect", "square", "tick")


@dataclass
class Group:
    """The rows with one name and colour."""

    name: str | None
    color: str
    rows: list[Row]
    number: int
    """The position of the name in the legend."""


class View:
    """A layer, and the chart that it is added to."""

    def __init__(self, chart: Chart, layer: Layer, colors: dict[str, str]) -> None:
        self.chart, self.layer, self.colors = chart, layer, colors
        self.encoding, self.rows = layer.encoding, layer.table.rows
        by_data = {name for name, definition in self.encoding.items() if set(definition) != {"value"}}
        if wrong := by_data - _EVERYWHERE - _CHANNELS.get(layer.kind, set()):
            raise NotDrawn(f"the channel {min(wrong)} of the mark {layer.kind}")
        by_numbers = "color" in by_data and not is_discrete(self.encoding["color"])
        if by_numbers and layer.kind not in _COLORED_BY_NUMBERS:
            raise NotDrawn(f"colours by numbers of the mark {layer.kind}")

    @property
    def opacity(self) -> float:
        given = self.encoding.get("opacity", {})
        if given and set(given) != {"value"}:
            raise NotDrawn("opacity by data")
        found = given.get("value", self.layer.mark.get("opacity", self.layer.mark.get("fillOpacity")))
        return float(found) if found is not None else (0.7 if self.layer.kind in ("point", "circle", "square") else 1.0)

    @property
    def one_color(self) -> str:
        """The colour if the data do not determine it."""
        mark = self.layer.mark
        given = (
            self.encoding.get("color", {}).get("value") or mark.get("color") or mark.get("fill") or mark.get("stroke")
        )
        if isinstance(given, dict):
            raise NotDrawn("a gradient")
        plain = "black" if self.layer.kind in ("rule", "text") else DEFAULT_COLOR
        return drawing.color(given) or plain

    def by_color(self) -> str | None:
        """The channel that defines named groups; if there are several, all must use the same field."""
        found = [name for name in ("color", "shape", "strokeDash") if self._is_group(name)]
        if len({self.encoding[name].get("field") for name in found}) > 1:
            raise NotDrawn("groups of two kinds")
        return found[0] if found else None

    def _is_group(self, name: str) -> bool:
        return name in self.encoding and "value" not in self.encoding[name] and is_discrete(self.encoding[name])

    def groups(self, *others: str) -> Iterator[Group]:
        """Groups in the order of the legend."""
        channel = self.by_color()
        names = categories([self.layer], channel) if channel else [None]
        of_name: dict[str | None, list[Row]] = {}
        for row in self.rows:
            name = category(self.layer, channel, row[channel]) if channel else None
            of_name.setdefault(name, []).append(row)
        for place, name in enumerate(names):
            color = self.colors.get(name or "", self.one_color)
            if channel and channel != "color":
                self.chart.legend_title = title_of(self.encoding[channel])
            for rows in grouped(of_name.get(name, []), list(others)) if others else [of_name.get(name, [])]:
                yield Group(name, color, rows, place)

    def values(self, rows: list[Row]) -> list[float] | None:
        """Values for the colour scale."""
        definition = self.encoding.get("color", {})
        if not definition or "value" in definition or is_discrete(definition):
            return None
        if scale_of(definition).get("type") not in (None, "linear") or self.layer.table.bins.get("color"):
            raise NotDrawn("a scale of colours of that kind")
        if kind_of(definition) == "temporal":
            raise NotDrawn("colours by dates")
        return [number(row["color"]) for row in rows]

    def where(self, channel: str, rows: list[Row]) -> list[float]:
        """Positions on an axis; for a bin, its middle."""
        if channel not in self.encoding or "value" in self.encoding[channel]:
            raise NotDrawn(f"a mark without data for {channel}")
        axis = self.axis(channel)
        found = places(self.layer, channel, axis, rows)
        half = self.layer.table.bins.get(channel, 0.0) / 2 if axis.categories is None else 0.0
        return [place + half for place in found]

    def axis(self, channel: str) -> Axis:
        return self.chart.x if channel[0] == "x" else self.chart.y

    def stands_on(self) -> tuple[str, str]:
        """The channel along which marks stand side by side, and the one along which they have their length."""
        x, y = self.encoding.get("x"), self.encoding.get("y")
        if "x2" in self.encoding or y is None:
            across = "y2" not in self.encoding
        elif "y2" in self.encoding or x is None:
            across = False
        else:
            across = self._is_length("x") and (
                not self._is_length("y")
                or kind_of(y) == "temporal"
                or (bool(x.get("aggregate")) and not y.get("aggregate"))
            )
        if self.layer.mark.get("orient") in ("horizontal", "vertical") and "x2" not in self.encoding:
            turned = (self.layer.mark["orient"] == "horizontal") == (self.layer.kind not in ("line", "area"))
            across = turned if self._is_length("x") and self._is_length("y") else across
        return ("y", "x") if across else ("x", "y")

    def _is_length(self, channel: str) -> bool:
        return self.axis(channel).categories is None and channel not in self.layer.table.bins and (
            kind_of(self.encoding[channel]) == "quantitative"
        )  # fmt: skip

    def is_stacked(self, length: str) -> str | None:
        """The type of stacking: "zero" or "normalize"."""
        definition = self.encoding[length]
        if "stack" in definition:
            wish = {True: "zero", False: None}.get(definition["stack"], definition["stack"])
            if wish not in (None, "zero", "normalize"):
                raise NotDrawn(f"the stack {wish}")
            return wish
        is_one = any(each.get("aggregate") for each in self.encoding.values()) and not (
            self.by_color() or "detail" in self.encoding
        )
        adds_up = (definition.get("aggregate") or "sum") in SUMS and not self.axis(length).log
        return "zero" if adds_up and not is_one else None
