"""What a figure is made of: axes, marks, and panels above each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from openloop.arrays import Bools, Floats

Unit = Literal["seconds", "rate", "share", "count", "money", "number"]
Style = Literal["line", "dashed", "steps", "dots", "area"]

MOST_NAMES = 40  # along one axis


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
    names: Sequence[str] = ()  # of each point, in pictures


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


Mark = Curve | Bars | Rule | Stretch


@dataclass(frozen=True)
class Panel:
    y: Axis
    marks: Sequence[Mark]
    height: int = 220

    @property
    def curves(self) -> "list[Curve | Bars]":
        """What it shows of data: numbered through all panels, named in the legend, told at the pointer."""
        return [mark for mark in self.marks if isinstance(mark, Curve | Bars)]


@dataclass(frozen=True)
class Figure:
    """Panels above each other that share x."""

    key: str
    title: str
    x: Axis
    panels: Sequence[Panel]
    note: str = ""


def interval_lines(intervals: Sequence[tuple[float, float] | None]) -> list[Curve]:
    """A line from end to end at each place of y that has an interval."""
    return [
        Curve("95% interval", np.array(each), np.full(2, float(place)), "grey")
        for place, each in enumerate(intervals)
        if each
    ]


def names_figure(key: str, title: str, x: Axis, names: Sequence[str], marks: Sequence[Mark], note: str = "") -> Figure:
    """With a name at each place of y, the first on top."""
    return Figure(key, title, x, [Panel(Axis("", "count", "names", names=names), marks)], note)
