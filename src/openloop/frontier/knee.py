"""The knee: the largest offered rate at which attainment still meets its target, as an interval.

Near the knee the odds of being accepted fall steadily with the rate:

    logit A(rate) = logit target - slope * (rate / knee - 1)

So each pair of a knee and a slope says how likely the points are, every point being worth as many independent requests
as its blocks show. Weighing all pairs by that (with knees and slopes alike on a logarithmic scale beforehand) leaves a
distribution of the knee, and the interval holds 95% of it. Where the points are far apart any steep slope will do, and
the interval is as wide as the gap between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openloop.frontier.point import Point
from openloop.units import format_rate, format_share

__all__ = ["Knee", "find_knee"]

Floats = NDArray[np.float64]

SLOPES = np.geomspace(1.0, 1000.0, 60)
COARSE, FINE = 200, 400  # knees that are tried
BEYOND = 2.0  # times the largest rate, and below the smallest: as far as knees are looked for
FALSE_ALARM = 0.01  # of a backlog that seems to grow
LEVEL = 0.95


@dataclass(frozen=True)
class Knee:
    """Where attainment falls below `target`. Without a `rate`, `sentence` says what the points show instead."""

    target: float
    rate: float | None
    interval: tuple[float, float] | None  # 95%
    above: float | None  # it is at least this, where only that is shown
    below: float | None  # it is at most this, where only that is shown
    sentence: str

    def headroom(self, current_rps: float) -> tuple[float, tuple[float, float]] | None:
        """By how much the rate can grow, as a share of it, and the interval of that."""
        if self.rate is None or self.interval is None:
            return None
        low, high = (each / current_rps - 1 for each in self.interval)
        return self.rate / current_rps - 1, (low, high)


def find_knee(points: Sequence[Point], target: float) -> Knee:
    used = sorted((point for point in points if point.usable), key=lambda point: point.rate)
    if not used:
        why = "there are no points" if not points else "the client was at fault at every point"
        return Knee(target, None, None, None, None, f"no knee: {why}")
    first, last = used[0].rate, used[-1].rate
    knees, weights = _distribution(used, target)
    low, middle, high = (float(each) for each in np.interp(_ends(), np.cumsum(weights), knees))
    aim = format_share(target)
    if high > last:
        above = low if low < last else last
        what = f"beyond {format_rate(above)}: attainment is not shown to fall below {aim}; widen the sweep"
        return Knee(target, None, None, above, None, what)
    if low < first:
        what = f"below {format_rate(high)}: attainment is not shown to reach {aim}; sweep lower rates"
        return Knee(target, None, None, None, high, what)
    what = f"{format_rate(middle)} [{format_rate(low)}, {format_rate(high)}] at {aim} attainment"
    return Knee(target, middle, (low, high), None, None, what)


def _ends() -> list[float]:
    return [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]


def _distribution(points: Sequence[Point], target: float) -> tuple[Floats, Floats]:
    """Knees, and how much weight the points give to each."""
    knees = np.geomspace(points[0].rate / BEYOND, points[-1].rate * BEYOND, COARSE)
    weights = _weigh(knees, points, target)
    kept = np.flatnonzero(weights > 1e-6 * weights.max())
    knees = np.geomspace(knees[max(kept[0] - 1, 0)], knees[min(kept[-1] + 1, COARSE - 1)], FINE)
    return knees, _weigh(knees, points, target)


def _weigh(knees: Floats, points: Sequence[Point], target: float) -> Floats:
    aim = np.log(target / (1 - target))
    found = np.zeros((len(SLOPES), len(knees)))
    for point in points:
        if point.overloaded:
            found += np.where(knees <= point.rate, 0.0, np.log(FALSE_ALARM))
            continue
        odds = aim - SLOPES[:, None] * (point.rate / knees - 1)
        accepted = point.independent * point.attainment
        found -= accepted * np.logaddexp(0, -odds) + (point.independent - accepted) * np.logaddexp(0, odds)
    weights = np.exp(found - found.max()).sum(axis=0)
    return np.asarray(weights / weights.sum(), np.float64)
