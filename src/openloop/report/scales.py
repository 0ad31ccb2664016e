"""Where a value stands along an axis, and which values are written there."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openloop.arrays import Floats
from openloop.report.marks import Axis, Bars, Curve, Mark, Panel, Stretch
from openloop.report.page import show

TOP = 1 - 1e-7  # of shares on a stretched axis


@dataclass(frozen=True)
class AxisScale:
    """From values between `low` and `high` to 0..1."""

    axis: Axis
    low: float
    high: float

    def __call__(self, values: ArrayLike) -> Floats:
        a, b = (float(self._bend(np.array(edge))) for edge in (self.low, self.high))
        return np.asarray((self._bend(np.asarray(values, float)) - a) / ((b - a) or 1.0), float)

    def _bend(self, values: Any) -> Any:
        if self.axis.scale == "log":
            return np.log10(np.maximum(values, self.low))
        if self.axis.scale == "tail":
            return -np.log10(1 - np.clip(values, 0.0, TOP))
        return values

    def ticks(self, most: int) -> list[float]:
        if self.axis.scale == "names":
            return [float(place) for place in range(len(self.axis.names))]
        if self.axis.scale == "tail":
            steps = [0.0, 0.5, *(1 - 10.0**-i for i in range(1, 8))]
            found = [step for step in steps if step <= self.high]
            return found if len(found) <= most else found[1:]  # 0% and 50% are close then
        if self.axis.scale == "log":
            return _log_ticks(self.low, self.high, most, clock=self.axis.unit == "seconds")
        return _ticks(self.low, self.high, most, clock=self.axis.unit == "seconds")


def tick(value: float, axis: Axis) -> str:
    """As short as it can be."""
    if axis.scale == "names":
        return axis.names[int(value)]
    if axis.unit == "share":
        return f"{100 * value:.6g}%"
    if axis.unit == "seconds" and value:
        for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
            if abs(value) < limit * (1 - 1e-9):
                return f"{value * scale:.4g} {unit}"
        return f"{value / 3600:.4g} h"
    if axis.unit == "rate":
        return f"{value:,.10g}/s"
    if axis.unit == "money" and "." in (text := show(value, "money")):
        return text.rstrip("0").rstrip(".")
    return f"{value:,.10g}"


def short_tick(value: float, axis: Axis, longest: int) -> str:
    """The same in so many letters; names that are longer are told from where they differ."""
    text = tick(value, axis)
    if axis.scale == "names" and max(map(len, axis.names)) > longest:
        same = next((i for i, each in enumerate(zip(*axis.names, strict=False)) if len(set(each)) > 1), 0)
        text = f"…{text[same:]}" if same > 1 else text
    return shortened(text, longest)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def x_scale(axis: Axis, panels: Iterable[Panel]) -> AxisScale:
    found = [values for panel in panels for mark in panel.marks for values in _values(mark, "x")]
    return _scale(axis, found)


def y_scale(panel: Panel) -> AxisScale:
    if panel.y.scale == "names":
        return AxisScale(panel.y, len(panel.y.names) - 0.4, -0.6)  # the first on top
    return _scale(panel.y, [values for mark in panel.marks for values in _values(mark, "y")])


def _values(mark: Mark, along: str) -> list[ArrayLike]:
    if isinstance(mark, Curve):
        edges = [edge for edge in (mark.low, mark.high) if edge is not None] if mark.style != "dots" else []
        return [mark.x] if along == "x" else [mark.y, *edges]
    if isinstance(mark, Bars):
        return [mark.start, mark.end] if along == "x" else []
    if isinstance(mark, Stretch):
        return [mark.low, mark.high] if along == "x" else []
    return [mark.at] if mark.along == along else []


def _scale(axis: Axis, found: list[ArrayLike]) -> AxisScale:
    values = np.concatenate([np.atleast_1d(np.asarray(each, float)) for each in found] or [np.zeros(1)])
    values = values[np.isfinite(values)]
    if axis.scale == "log":
        values = values[values > 0]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.1, 1.0)
    low, high = axis.low if axis.low is not None else low, axis.high if axis.high is not None else high
    if axis.scale == "names":
        return AxisScale(axis, -0.5, len(axis.names) - 0.5)
    if axis.scale == "tail":
        return AxisScale(axis, low, high)
    if axis.scale == "log":
        low, high = max(low, 1e-12), max(high, 1e-12)
        return AxisScale(axis, _nearby(low, up=False), _nearby(max(high, low * 1.5), up=True))
    if axis.low is None and low > 0:
        low = 0.0
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = _step((high - low) / 5)
    top = high if axis.high is not None else math.ceil(high / step - 1e-9) * step
    bottom = low if axis.low is not None or low == 0 else math.floor(low / step + 1e-9) * step
    return AxisScale(axis, bottom, top)


def _nearby(value: float, *, up: bool) -> float:
    """The next 1, 2 or 5 of its decade."""
    decade = 10.0 ** math.floor(math.log10(value))
    steps = [decade * each for each in (1, 2, 5, 10)]
    if up:
        return next(step for step in steps if step >= value * (1 - 1e-9))
    return next(step for step in reversed(steps) if step <= value * (1 + 1e-9))


def _step(rough: float) -> float:
    """1, 2 or 5 of some decade: the nearest that is no smaller."""
    return _nearby(max(rough, 1e-12), up=True)


TIMES = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def _ticks(low: float, high: float, most: int, *, clock: bool = False) -> list[float]:
    step = _step((high - low) / most)
    if clock and step > 10:
        step = next((each for each in TIMES if each >= (high - low) / most), step)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, int(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int, *, clock: bool) -> list[float]:
    bases = [10.0**d for d in range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)]
    if clock:
        bases = [*(base for base in bases if base < 60), 60.0, 600.0, *(3600 * 10.0**d for d in range(8))]
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [m * base for base in bases for m in steps if low * (1 - 1e-9) <= m * base <= high * (1 + 1e-9)]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
