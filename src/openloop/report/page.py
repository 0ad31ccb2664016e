"""What a report is made of, before it becomes HTML, Markdown, a picture or a terminal's page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openloop.units import format_count, format_money, format_rate, format_seconds, format_share

__all__ = [
    "MOST_NAMES",
    "Axis",
    "Bars",
    "Curve",
    "Figure",
    "Number",
    "Panel",
    "Part",
    "Report",
    "Rule",
    "Section",
    "Stretch",
    "Table",
    "Unit",
    "show",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Unit = Literal["seconds", "rate", "share", "count", "money", "number"]
Style = Literal["line", "dashed", "steps", "dots", "area"]

MOST_NAMES = 40  # along one axis of a figure


def show(value: float | None, unit: Unit) -> str:
    """With its unit, as people write it; `-` where it is not known."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value) and unit != "seconds":
        return "infinite"
    return _FORMS[unit](value)


_FORMS: dict[Unit, Callable[[float], str]] = {
    "seconds": format_seconds,
    "rate": format_rate,
    "share": format_share,
    "count": format_count,
    "money": format_money,
    "number": lambda value: f"{value:,.4g}",
}


@dataclass(frozen=True)
class Number:
    """A number of the report and, where it is one of the scorer's, its place in the scorer's JSON."""

    value: float | None
    unit: Unit
    key: str = ""
    mark: str = ""  # behind it: what weakens it, explained below the table
    sound: bool = False  # though the report is not

    def __str__(self) -> str:
        return show(self.value, self.unit) + self.mark


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str | Number]]
    note: str = ""


@dataclass(frozen=True)
class Axis:
    """`tail` stretches shares towards 100%, so that 99%, 99.9% and 99.99% are equally far apart."""

    label: str
    unit: Unit
    scale: Literal["linear", "log", "tail", "names"] = "linear"
    low: float | None = None
    high: float | None = None
    names: Sequence[str] = ()  # at 0, 1, 2, ...


@dataclass(frozen=True)
class Curve:
    """Points, joined or not. `low` and `high` are a band around a line, whiskers of dots, the edges of an area."""

    name: str
    x: Floats
    y: Floats
    color: str
    style: Style = "line"
    low: Floats | None = None
    high: Floats | None = None
    few: Bools | None = None  # points that rest on too little, drawn hollow
    keys: Sequence[str] = ()  # of each y in the scorer's JSON


@dataclass(frozen=True)
class Bars:
    """Lying bars, at places 0, 1, 2, ... of the y axis."""

    name: str
    start: Floats
    end: Floats
    color: str
    keys: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel, at x or at y, with its name."""

    at: float
    name: str
    along: Literal["x", "y"]
    color: str = "grey"


@dataclass(frozen=True)
class Stretch:
    """A band of x, with its name."""

    low: float
    high: float
    name: str
    color: str


@dataclass(frozen=True)
class Panel:
    y: Axis
    marks: Sequence[Curve | Bars | Rule | Stretch]
    height: int = 220


@dataclass(frozen=True)
class Figure:
    """Panels above each other that share x."""

    key: str
    title: str
    x: Axis
    panels: Sequence[Panel]
    note: str = ""


Part = Table | Figure | str


@dataclass(frozen=True)
class Section:
    """`lead` is for everybody, `footnote` for those who would like to know exactly."""

    key: str
    title: str
    lead: str
    parts: Sequence[Part]
    footnote: str = ""
    folded: bool = False  # its parts, until somebody asks for them


@dataclass(frozen=True)
class Report:
    title: str
    subtitle: str
    verdict: Literal["good", "invalid", "live"]
    headline: str
    sentences: Sequence[str]
    numbers: Sequence[tuple[str, Number, str]]  # a name, a number and what to know about it
    sections: Sequence[Section]
    data: dict[str, Any] = field(repr=False)  # the scorer's JSON
    badge: str = ""  # a word for what it is; by default for its verdict

    @property
    def word(self) -> str:
        return self.badge or {"good": "Valid", "invalid": "Not valid", "live": "In progress"}[self.verdict]

    @property
    def figures(self) -> list[Figure]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Figure)]
