"""Percentiles and rates with intervals that respect autocorrelation.

Requests that are close in time share a queue, so they are not independent, and an interval that supposes so is too
narrow. Everything here is counted in BLOCKS equal blocks of the window by schedule time: what a block shows beyond its
share varies between blocks as much as the data really do (batch means). Blocks are also taken in pairs, and the wider
answer counts, so that correlation longer than a block is noticed. A tail says little about correlation by itself (all
requests accepted: no variation at all), so the number of independent requests is never taken to be larger than what
the middle of the same distribution shows.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from openloop.arrays import Bools, Floats, Ints, only
from openloop.score import kernel

LADDER = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
BLOCKS = 20
Z = 1.96
MANY = 100_000  # values that are not worth sorting

# 97.5% quantiles of Student's t with 1, 2, ... degrees of freedom.
T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)


def student_t(count: int) -> float:
    """For the mean of so many."""
    return T[min(count - 2, len(T) - 1)]


@dataclass(frozen=True)
class Ladder:
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    mean: float


@dataclass(frozen=True)
class Percentiles(Ladder):
    """A ladder over `n` values, 95% intervals of its steps, and the same ladder seen in two other ways.

    `failures_as_inf` puts every unsuccessful request above all others: an infinite step means that more requests
    failed than this percentile allows. `from_sent` starts the clock when the request was sent.
    """

    n: int
    intervals: dict[str, tuple[float, float]]
    failures_as_inf: Ladder | None
    from_sent: Ladder | None


class Ranked(Protocol):
    """Anything that can be ranked as a whole and counted by block."""

    n: int
    mean: float

    def quantile(self, share: float) -> float: ...
    def below(self, value: float) -> tuple[Ints, Ints]: ...  # by block: how many are no larger, and how many there are


class Ordered:
    """Many values as if sorted: a ladder looks at few, so they are put in parts, and a part sorted when looked at."""

    PARTS, LOOKED_AT = 2048, 1000

    def __init__(self, values: Floats) -> None:
        few = np.sort(values[:: max(len(values) // self.LOOKED_AT, 1)])
        self._values, self._ends = np.empty(len(values)), np.empty(self.PARTS, np.int64)
        kernel.put_in_parts(values, few[0], few[-1], self._ends, self._values)
        self._sorted: set[int] = set()

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: int) -> float:
        part = int(np.searchsorted(self._ends, place, side="right"))
        if part not in self._sorted:
            self._values[self._ends[part - 1] if part else 0 : self._ends[part]].sort()
            self._sorted.add(part)
        return float(self._values[place])

    def mean(self) -> float:
        return float(self._values.mean())


class Sample:
    """Values of those requests that are in `use` and have one, in order of their due times."""

    def __init__(self, values: Floats, use: Bools, bounds: Ints) -> None:
        use = use & ~np.isnan(values)
        self._counts = count_by_block(use, bounds)
        self._values = only(values, use)
        self._bounds = np.concatenate([[0], np.cumsum(self._counts)])
        self._sorted = np.sort(self._values) if len(self._values) < MANY else Ordered(self._values)
        self.n = len(self._sorted)
        self.mean = float(self._sorted.mean()) if self.n else np.nan

    def quantile(self, share: float, failures: int = 0) -> float:
        return interpolated(self._sorted, share, self.n + failures)

    def below(self, value: float) -> tuple[Ints, Ints]:
        return count_by_block(self._values <= value, self._bounds), self._counts

    @cached_property
    def independence(self) -> float:
        """The share of values that count as independent, by how the share below the median varies between blocks."""
        return float(_independent(*self.below(self.quantile(0.5)))) / self.n if self.n else 1.0

    @cached_property
    def percentiles(self) -> "Percentiles | None":
        return percentiles(self)

    @cached_property
    def pools(self) -> "dict[tuple[Sample, ...], Percentiles | None]":
        """Percentiles of this one and others together, as far as they were asked for."""
        return {(): self.percentiles}


def ratio(amount: float, count: float) -> float:
    """amount / count; of nothing, infinite if anything was spent on it and otherwise not known."""
    return float(amount / count) if count else np.inf if amount else np.nan


def pooled(first: Sample, *others: Sample) -> Percentiles | None:
    """The percentiles of several samples as one, block after block."""
    if others not in first.pools:
        values, counts = (
            np.concatenate([getattr(each, name) for each in (first, *others)]) for name in ("_values", "_counts")
        )
        together = Sample(values, np.ones(len(values), np.bool_), np.concatenate([[0], np.cumsum(counts)]))
        first.pools[others] = together.percentiles
    return first.pools[others]


def block_bounds(due_ns: Ints, window_ns: tuple[int, int]) -> Ints:
    """Where each block of the window starts and ends in the sorted due times."""
    edges = np.linspace(window_ns[0], window_ns[1], BLOCKS + 1)
    edges[0], edges[-1] = -np.inf, np.inf
    return np.searchsorted(due_ns, edges)


def percentiles(sample: Ranked) -> Percentiles | None:
    """The ladder of `sample` with its intervals; None where there is nothing to rank."""
    if not sample.n:
        return None
    steps = {name: sample.quantile(share) for name, share in LADDER.items()}
    counts, (totals, *_) = zip(*map(sample.below, steps.values()), strict=True)
    independent = _independent(np.array(counts), totals)
    effective = np.clip(independent, 1.0, max(independent[0], 1.0))  # no more than the median shows, which is the first
    intervals = {name: _around(sample, *each) for name, *each in zip(LADDER, LADDER.values(), effective, strict=True)}
    return Percentiles(mean=sample.mean, n=sample.n, intervals=intervals, failures_as_inf=None, from_sent=None, **steps)


def ladder(sample: Sample, failures: int = 0) -> Ladder:
    steps = {name: sample.quantile(share, failures) for name, share in LADDER.items()}
    return Ladder(**steps, mean=sample.mean if not failures else np.inf)


def _around(sample: Ranked, share: float, effective: float) -> tuple[float, float]:
    """Order statistics at share +- margin, where the margin is that of the share in so many independent values."""
    margin = Z * math.sqrt(share * (1 - share) / effective)
    low = sample.quantile(max(share - margin, 0.0))
    return low, sample.quantile(share + margin) if share + margin <= 1 else np.inf


def _independent(counts: Ints, totals: Ints) -> Floats:
    """How many independent values would make sum(counts) / sum(totals) as uncertain as the blocks show it to be.

    Blocks are the last axis; before it, as many counts as one likes.
    """
    total = totals.sum()
    share = counts.sum(-1) / total
    pairs = (each[..., ::2] + each[..., 1::2] for each in (counts, totals))
    margin = np.maximum(_share_margin(counts, totals), _share_margin(*pairs))
    known = (margin > 0) & (share > 0) & (share < 1)
    found = Z**2 * share * (1 - share) / np.where(known, margin, 1.0) ** 2
    return np.asarray(np.where(known, np.minimum(found, total), total))


def _share_margin(counts: Ints, totals: Ints) -> Floats:
    """Half the 95% interval of sum(counts) / sum(totals), from how it varies between blocks (ratio estimator)."""
    blocks = int(np.count_nonzero(totals))
    if blocks < 2:
        return np.zeros(counts.shape[:-1])
    total = totals.sum()
    excess: Floats = counts - counts.sum(-1, keepdims=True) / total * totals  # none where a block has none
    return np.asarray(np.sqrt(blocks / (blocks - 1) * np.sum(excess**2, -1)) * (student_t(blocks) / total))


def share_interval(hits: Bools, bounds: Ints, limit: float = 1.0) -> tuple[float, float]:
    """95% interval of the share of `hits`: Wilson's, with as many independent requests as the blocks show.

    `limit` is the largest share of them that may count as independent, from a distribution that tells more about it.
    Wilson's form keeps a width at 0% and 100%, where blocks show none.
    """
    return wilson(float(hits.mean()), independent_hits(hits, bounds, limit)) if len(hits) else (np.nan, np.nan)


def independent_hits(hits: Bools, bounds: Ints, limit: float = 1.0) -> float:
    """How many independent requests make the share of `hits` as uncertain as it is."""
    if not len(hits):
        return 1.0
    return max(min(float(_independent(count_by_block(hits, bounds), np.diff(bounds))), limit * len(hits)), 1.0)


def wilson(share: float, effective: float, z: float = Z) -> tuple[float, float]:
    """Interval of a share that was seen in so many independent requests: 95%, if not told otherwise."""
    centre = (share + z**2 / (2 * effective)) / (1 + z**2 / effective)
    half = z / (1 + z**2 / effective) * np.sqrt(share * (1 - share) / effective + (z / (2 * effective)) ** 2)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def rate_interval(amounts: Floats | Bools, bounds: Ints, seconds: float) -> tuple[float, float]:
    """95% interval of sum(amounts) / seconds, from how the rate varies between blocks."""
    sums = np.array([amounts[a:b].sum() for a, b in itertools.pairwise(bounds)])
    rate = sums.sum() / seconds
    half = max(_rate_margin(sums, seconds), _rate_margin(sums[::2] + sums[1::2], seconds))
    return float(rate - half), float(rate + half)


def _rate_margin(sums: NDArray[np.float64 | np.int64], seconds: float) -> float:
    rates = sums / (seconds / len(sums))
    return float(student_t(len(rates)) * rates.std(ddof=1) / np.sqrt(len(rates)))


def count_by_block(hits: Bools, bounds: Ints) -> Ints:
    return np.array([np.count_nonzero(hits[a:b]) for a, b in itertools.pairwise(bounds)])


def interpolated(values: "Floats | Ints | Ordered", share: float, n: int) -> float:
    """The quantile of `n` values of which `values`, sorted, are the finite ones; linear between neighbours."""
    place = share * (n - 1)
    below = int(place)
    above = min(below + 1, n - 1) if place > below else below
    if above >= len(values):
        return np.inf
    return float(values[below] + (place - below) * (values[above] - values[below]))
