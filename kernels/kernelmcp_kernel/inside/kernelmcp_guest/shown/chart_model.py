"""A chart as data: plotly_reader.py creates it from a figure, and drawing.py draws it.

Every coordinate is a number: on an axis of categories the position of a category, 0, 1, 2 ...; on one of dates the days
since 1970, as in matplotlib. A reader raises NotDrawn for anything unknown to it, because people would believe a
picture that differs from the chart.
"""

# The contents of a chart have no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

_DAY_SECONDS = 86_400.0
_MAX_TEXT_CHARS = 200
_DATE_FORMS = ("%Y", "%Y-%m", "%Y/%m/%d", "%m/%d/%Y", "%b %d %Y", "%b %d, %Y", "%B %d, %Y")
_YEAR_FIRST = re.compile(r"\d{4}-\d\d?(-\d\d?([T ].*)?)?")

Color = str | Sequence[str | None] | None
"""For all marks, or for each; None: the next unused colour."""


class NotDrawn(ValueError):
    """There is no picture; the text gives the reason in a few words."""


@dataclass
class Axis:
    title: str = ""
    categories: list[str] | None = None
    """Their names, in the order of their positions."""
    dates: bool = False
    log: bool = False
    reversed: bool = False
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(kw_only=True)
class Mark:
    """Marks of one type with one name in the legend."""

    name: str | None = None
    color: Color = None
    values: list[float] | None = None
    """Values of a colour scale, instead of colours."""
    opacity: float = 1.0

    def count(self) -> int:
        return max((len(each) for each in vars(self).values() if isinstance(each, list)), default=1)


@dataclass
class Bars(Mark):
    """Rectangles. `width`: along the axis that they stand on."""

    at: list[float]
    low: list[float]
    high: list[float]
    width: list[float]
    across: bool = False


@dataclass
class Line(Mark):
    x: list[float]
    y: list[float]
    style: str = "-"
    """matplotlib's line style."""
    markers: bool = False


@dataclass
class Points(Mark):
    x: list[float]
    y: list[float]
    size: float | list[float] = 18.0
    """The area in square points."""
    marker: str = "o"


@dataclass
class Area(Mark):
    x: list[float]
    low: list[float]
    high: list[float]


@dataclass
class Histogram(Mark):
    samples: list[Any]
    bins: int | None = None
    across: bool = False


@dataclass
class BoxPlot(Mark):
    at: list[float]
    groups: list[list[float]]


@dataclass
class Grid(Mark):
    """One cell for each position on both axes, row by row from the bottom."""

    rows: list[list[float]]
    limits: tuple[float | None, float | None] = (None, None)
    """Of the colour scale; None: the data's own."""

    def count(self) -> int:
        return sum(map(len, self.rows))


@dataclass
class Pie(Mark):
    labels: list[str]
    shares: list[float]
    hole: float = 0.0


@dataclass
class Rules(Mark):
    """Lines across the whole picture at these positions of the y axis, or (upright) of the x axis."""

    at: list[float]
    upright: bool = False
    style: str = "-"


@dataclass
class Texts(Mark):
    x: list[float]
    y: list[float]
    texts: list[str]


@dataclass
class Chart:
    marks: list[Mark]
    title: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    legend: bool = True
    legend_title: str = ""
    values_title: str = ""
    """The title of the colour scale."""


@dataclass
class Described:
    """The description of a chart, whether or not it can be drawn."""

    library: str
    kinds: list[str]
    title: str = ""
    data: str = ""
    """The amount of data, in words."""

    def line(self, why_not: str | None) -> str:
        counted = [f"{count} x {kind}" if count > 1 else kind for kind, count in Counter(self.kinds).items()]
        facts = [", ".join(counted) or "empty"]
        facts += [repr(" ".join(self.title.split()))] if self.title else []
        facts += [self.data] if self.data else []
        facts += [f"without a picture here: {why_not}"] if why_not else []
        return f"<{self.library}: {', '.join(facts)}>"


def text(value: Any) -> str:
    """The text of a title, without its markup."""
    lines = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")
    return re.sub(r"<[^>]*>", "", re.sub(r"<br */?>", "\n", lines))[:_MAX_TEXT_CHARS]


def number(value: Any) -> float:
    """Convert to a number; missing values are nan. Raises NotDrawn if it is not a number."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        raise NotDrawn("text in place of numbers")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise NotDrawn(f"{type(value).__name__} in place of numbers") from None


def numbers(values: Iterable[Any]) -> list[float]:
    return [number(value) for value in values]


def is_date(value: Any) -> bool:
    return isinstance(value, date) or type(value).__name__ == "datetime64"


def days(value: Any) -> float:
    """Days since 1970 of a date in a Python, numpy or ISO form. Raises NotDrawn."""
    if value is None:
        return math.nan
    if type(value).__name__ == "datetime64":
        value = value.astype("datetime64[us]").item()  # None: not a time
    if isinstance(value, str):
        value = _written_date(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if value is None or value != value:
        return math.nan
    if not isinstance(value, datetime):
        raise NotDrawn(f"{type(value).__name__} in place of dates")
    return value.replace(tzinfo=UTC).timestamp() / _DAY_SECONDS  # as written, ignoring the time zone


def _written_date(value: str) -> datetime:
    with suppress(ValueError):
        return datetime.fromisoformat(value)
    for form in _DATE_FORMS:
        with suppress(ValueError):
            return datetime.strptime(value, form).replace(tzinfo=UTC)
    raise NotDrawn("dates that are written in another way")


def looks_like_dates(values: Sequence[Any]) -> bool:
    """Return whether all are texts that begin with year and month."""
    return bool(values) and all(isinstance(value, str) and _YEAR_FIRST.fullmatch(value) for value in values)


def step_of(at: Sequence[float]) -> float:
    """The smallest distance between two positions; 1 if there are fewer than two."""
    places = sorted({place for place in at if not math.isnan(place)})
    return min((b - a for a, b in pairwise(places)), default=1.0)


def stacked(keys: Sequence[Any], heights: Sequence[float], ends: dict[tuple[Any, bool], float]) -> list[float]:
    """The start of each when stacked on the earlier ones (`ends`, updated): positive upward, others downward."""
    begins: list[float] = []
    for key, height in zip(keys, heights, strict=True):
        begin = ends.get((key, height < 0), 0.0)
        begins.append(begin)
        ends[key, height < 0] = begin + (0.0 if math.isnan(height) else height)
    return begins
