"""The knee: the largest offered rate at which attainment still meets its target, as an interval.

Near the knee the odds of being accepted fall steadily with the rate:

    logit A(rate) = logit target - slope * (rate / knee - 1)

So each pair of a knee and a slope says how likely the runs are. Weighing all pairs by that (with knees and slopes alike
on a logarithmic scale beforehand) leaves a distribution of the knee, and the interval holds 95% of it. Where points are
far apart any steep slope will do, and the interval is as wide as the gap between them.

Requests in a queue fail together, so a run of n requests is worth n / clump independent ones. The clump is measured by
how counts vary between blocks of runs, and between runs, all of those near the knee taken together: if each run were
given a weight of its own, a lucky one would seem surer than an unlucky one, and the knee would come out too high. Runs
whose backlog grew say only that the knee is below them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openloop.frontier.point import Point
from openloop.units import format_rate, format_share

__all__ = ["Knee", "find_knee"]

Floats = NDArray[np.float64]

SLOPES = np.geomspace(1.0, 1000.0, 40)
COARSE, FINE = 100, 200  # knees that are tried
BEYOND = 2.0  # times the largest rate, and below the smallest: as far as knees are looked for
REACH, NEAR = 3.0, (0.1, 0.35)  # times half the interval, and from where to where that may lie around the knee:
# runs further away only say on which side of them it is, as surely as they can
ROUNDS = 4
FALSE_ALARM = 0.002  # of a backlog that seems to grow
GROUPS = (1, 2, 4)  # blocks to take together
CAUTION = 2.0  # times: clumps of short runs are seen too small; chosen by how often intervals hold the truth
SHARES = (0.025, 0.5, 0.975)


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
    low, middle, high = _Runs(used, target).interval()
    aim = format_share(target)
    if high > last:
        above = min(low, last)
        what = f"beyond {format_rate(above)}: attainment is not shown to fall below {aim}; widen the sweep"
        return Knee(target, None, None, above, None, what)
    if low < first:
        what = f"below {format_rate(high)}: attainment is not shown to reach {aim}; sweep lower rates"
        return Knee(target, None, None, None, high, what)
    what = f"{format_rate(middle)} [{format_rate(low)}, {format_rate(high)}] at {aim} attainment"
    return Knee(target, middle, (low, high), None, None, what)


class _Runs:
    """The runs of all points, and what they say about a knee."""

    def __init__(self, points: Sequence[Point], target: float) -> None:
        self.target = target
        self.aim = float(np.log(target / (1 - target)))
        self.ends = points[0].rate, points[-1].rate
        self.grown = np.array([point.rate for point in points if point.overloaded])
        steady = [(point.rate, blocks) for point in points if not point.overloaded for blocks in point.blocks]
        self.rate = np.array([rate for rate, _ in steady])
        self.blocks = [np.array(blocks, float) for _, blocks in steady]  # due and accepted, a row each
        alike = np.array([each for point in points if not point.overloaded for each in point.alike])
        self.alike = np.exp(_rising(np.log(alike)))
        sums = np.array([blocks.sum(axis=0) for blocks in self.blocks]).reshape(-1, 2)
        self.due, self.accepted = sums.T
        self.clump = self.alike

    def interval(self) -> tuple[float, float, float]:
        """Lower end, middle and upper end."""
        reach, low, knee, high, slope = np.inf, 0.0, 1.0, 0.0, 1.0
        for turn in range(ROUNDS):
            near = abs(self.rate / knee - 1) <= reach
            if turn:
                self.clump = self._clump(near, knee, slope)
            knees = np.geomspace(self.ends[0] / BEYOND, self.ends[1] * BEYOND, COARSE)
            weights = self._weigh(knees, near).sum(axis=0)
            kept = np.flatnonzero(weights > 1e-6 * weights.max())
            knees = np.geomspace(knees[max(kept[0] - 1, 0)], knees[min(kept[-1] + 1, COARSE - 1)], FINE)
            both = self._weigh(knees, near)
            total = np.cumsum(both.sum(axis=0)) / both.sum()
            low, knee, high = (float(np.interp(share, total, knees)) for share in SHARES)
            slope = float(SLOPES[np.argmax(both[:, np.argmin(abs(knees - knee))])])
            reach = float(np.clip(REACH * (high - low) / 2 / knee, *NEAR))
        return low, knee, high

    def _weigh(self, knees: Floats, near: NDArray[np.bool_]) -> Floats:
        """How likely the runs are, by slope and knee."""
        found = np.zeros((len(SLOPES), len(knees)))
        for rate in self.grown:
            found += np.where(knees <= rate, 0.0, np.log(FALSE_ALARM))
        for rate, due, accepted, clump in zip(*(each[near] for each in self._counts()), strict=True):
            odds = self.aim - SLOPES[:, None] * (rate / knees - 1)
            found -= (due * np.logaddexp(0, -odds) + (due - accepted) * odds) / clump
        for rate, due, accepted, clump in zip(*(each[~near] for each in self._counts()), strict=True):
            fine = accepted >= self.target * due
            found -= np.where((knees >= rate) == fine, 0.0, due / clump * _divergence(accepted / due, self.target))
        return np.asarray(np.exp(found - found.max()), np.float64)

    def _counts(self) -> tuple[Floats, Floats, Floats, Floats]:
        return self.rate, self.due, self.accepted, self.clump

    def _clump(self, near: NDArray[np.bool_], knee: float, slope: float) -> Floats:
        """Variance of accepted counts over that of independent requests, from blocks and from whole runs."""
        share = np.exp(-np.logaddexp(0, slope * (self.rate / knee - 1) - self.aim))
        mine = np.flatnonzero(near & (self.due > 0))
        alone = float(np.sum((self.due * share * (1 - share) * self.alike)[mine]))
        if not alone:
            return self.alike
        found = [(1.0, 100)]
        for size in GROUPS:
            varied, freedom = 0.0, 0
            for run in mine:
                whole = len(self.blocks[run]) // size * size
                blocks = self.blocks[run][:whole].reshape(-1, size, 2).sum(axis=1)
                excess = blocks[:, 1] - self.accepted[run] / self.due[run] * blocks[:, 0]
                varied += float(np.sum(excess**2)) * len(blocks) / (len(blocks) - 1)
                freedom += len(blocks) - 1
            found.append((varied / alone, freedom))
        if len(mine) > 3:
            excess = (self.accepted - self.due * share)[mine]
            found.append((float(np.sum(excess**2)) / alone * len(mine) / (len(mine) - 2), len(mine) - 2))
        clump, freedom = max(found)
        return self.alike * CAUTION * max(clump * (1 + 3.2 / freedom), 1.0)


def _divergence(share: float, other: float) -> float:
    """How much less likely each request of a share is, if the true share is another (Kullback and Leibler)."""
    parts = ((share, other), (1 - share, 1 - other))
    return float(sum(a * np.log(a / b) for a, b in parts if a))


def _rising(values: Floats) -> Floats:
    """The nearest values that do not fall: neighbours that do are put together (isotonic regression)."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values:
        means.append(float(value))
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            size, mean = sizes.pop(), means.pop()
            means[-1] = (means[-1] * sizes[-1] + mean * size) / (sizes[-1] + size)
            sizes[-1] += size
    return np.repeat(means, sizes)
