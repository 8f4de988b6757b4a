"""A chart as data: what the readers of plotly, altair and bokeh make of their figures, and drawing.py draws.

Every coordinate is a number: on an axis of categories the place of a category, 0, 1, 2 ...; on one of dates days since
1970, as matplotlib counts them. A reader raises NotDrawn at whatever it does not know, because a picture that shows
something else than the chart would be believed.
"""

# What a chart holds has no types.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any

_DAY_SECONDS = 86_400.0
_MAX_TEXT_CHARS = 200
_DATE_FORMS = ("%Y", "%Y-%m", "%Y/%m/%d", "%m/%d/%Y", "%b %d %Y", "%b %d, %Y", "%B %d, %Y")
_YEAR_FIRST = re.compile(r"\d{4}-\d\d?(-\d\d?([T ].*)?)?")

Color = str | Sequence[str | None] | None
"""Of all, or of each; None: one that is free."""


class NotDrawn(ValueError):
    """Why there is no picture, in a few words."""


@dataclass
class Axis:
    title: str = ""
    categories: list[str] | None = None
    """Their names, in the order of their places."""
    dates: bool = False
    log: bool = False
    reversed: bool = False
    limits: tuple[float | None, float | None] = (None, None)

    @cached_property
    def index(self) -> dict[str, int]:
        """The places of categories, which no longer change."""
        return {name: place for place, name in enumerate(self.categories or ())}


@dataclass(kw_only=True)
class Mark:
    """What is of one kind and has one name in the legend."""

    name: str | None = None
    color: Color = None
    values: list[float] | None = None
    """To be coloured by, in place of colours."""
    opacity: float = 1.0

    def count(self) -> int:
        return max((len(each) for each in vars(self).values() if isinstance(each, list)), default=1)


@dataclass
class Bars(Mark):
    """Rectangles: how wide they are along the axis that they stand on."""

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
    """As matplotlib writes it."""
    width: float = 1.5
    markers: bool = False
    step: str = "default"


@dataclass
class Points(Mark):
    x: list[float]
    y: list[float]
    size: float | list[float] = 18.0
    """The area in square points."""
    marker: str = "o"
    filled: bool = True


@dataclass
class Area(Mark):
    x: list[float]
    low: list[float]
    high: list[float]
    across: bool = False


@dataclass
class Histogram(Mark):
    samples: list[Any]
    bins: int | None = None
    across: bool = False


@dataclass
class BoxPlot(Mark):
    at: list[float]
    groups: list[list[float]]
    whiskers: float | tuple[float, float] = 1.5
    across: bool = False


@dataclass
class Grid(Mark):
    """A cell for each place of both axes, row by row from below."""

    rows: list[list[float]]

    def count(self) -> int:
        return sum(map(len, self.rows))


@dataclass
class Pie(Mark):
    labels: list[str]
    shares: list[float]
    hole: float = 0.0
    percent: bool = True


@dataclass
class Rules(Mark):
    """Lines through the whole picture at these places of the y axis, or upright of the x axis."""

    at: list[float]
    upright: bool = False
    style: str = "-"


@dataclass
class Segments(Mark):
    x: list[float]
    y: list[float]
    x_end: list[float]
    y_end: list[float]


@dataclass
class Polygons(Mark):
    xs: list[list[float]]
    ys: list[list[float]]

    def count(self) -> int:
        return sum(map(len, self.xs))


@dataclass
class Texts(Mark):
    x: list[float]
    y: list[float]
    texts: list[str]
    offset: tuple[float, float] = (0.0, 0.0)
    """To the right and up, in points."""
    align: str = "center"
    baseline: str = "center"


@dataclass
class Chart:
    marks: list[Mark]
    title: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    legend: bool = True
    legend_title: str = ""
    entries: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Colours in the legend that marks do not bring."""
    values_title: str = ""
    """Beside the scale of the colours."""


@dataclass
class Described:
    """What is said of a chart, whether or not it can be drawn."""

    library: str
    kinds: list[str]
    title: str = ""
    data: str = ""
    """How many of them, in words."""

    def line(self, why_not: str | None) -> str:
        counted = [f"{count} x {kind}" if count > 1 else kind for kind, count in Counter(self.kinds).items()]
        facts = [", ".join(counted) or "empty"]
        facts += [repr(" ".join(self.title.split()))] if self.title else []
        facts += [self.data] if self.data else []
        facts += [f"without a picture here: {why_not}"] if why_not else []
        return f"<{self.library}: {', '.join(facts)}>"


def text(value: Any) -> str:
    """Of a title, whose markup is left out."""
    lines = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")
    return re.sub(r"<[^>]*>", "", re.sub(r"<br */?>", "\n", lines))[:_MAX_TEXT_CHARS]


def number(value: Any) -> float:
    """What is missing is nan. Raises NotDrawn for what is no number."""
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
    """Since 1970, of a date in one of Python's forms, numpy's or ISO's. Raises NotDrawn."""
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
    return value.replace(tzinfo=UTC).timestamp() / _DAY_SECONDS  # as it is written, in whatever zone


def _written_date(value: str) -> datetime:
    with suppress(ValueError):
        return datetime.fromisoformat(value)
    for form in _DATE_FORMS:
        with suppress(ValueError):
            return datetime.strptime(value, form).replace(tzinfo=UTC)
    raise NotDrawn("dates that are written in another way")


def looks_like_dates(values: Sequence[Any]) -> bool:
    """Whether all are texts that begin with year and month."""
    return bool(values) and all(isinstance(value, str) and _YEAR_FIRST.fullmatch(value) for value in values)


def step_of(at: Sequence[float]) -> float:
    """The least distance between two places; 1 where there are not two."""
    places = sorted({place for place in at if not math.isnan(place)})
    return min((b - a for a, b in pairwise(places)), default=1.0)


def stacked(keys: Sequence[Any], heights: Sequence[float], ends: dict[tuple[Any, bool], float]) -> list[float]:
    """Where each begins when it stands on what was stacked before (`ends`, which grows): positive ones up, others
    down."""
    begins: list[float] = []
    for key, height in zip(keys, heights, strict=True):
        begin = ends.get((key, height < 0), 0.0)
        begins.append(begin)
        ends[key, height < 0] = begin + (0.0 if math.isnan(height) else height)
    return begins
