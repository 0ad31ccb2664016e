"""Percentiles and rates with intervals that respect autocorrelation.

Requests that are close in time share a queue, so they are not independent, and an interval that supposes so is too
narrow. Everything here is counted in SLICES equal slices of the window by schedule time (batch means): what a slice
shows beyond its share varies from slice to slice as much as the data really do.
"""

import itertools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LADDER",
    "SLICES",
    "Distribution",
    "Ladder",
    "Percentiles",
    "Sample",
    "ladder",
    "percentiles",
    "rate_interval",
    "share_interval",
    "slice_bounds",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LADDER = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
SLICES = 20
Z = 1.96

# 97.5% quantiles of Student's t with 1, 2, ... degrees of freedom.
T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)


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


class Distribution(Protocol):
    @property
    def n(self) -> int: ...
    @property
    def mean(self) -> float: ...
    def quantile(self, share: float) -> float: ...
    def below(self, value: float) -> tuple[Ints, Ints]: ...  # by slice: how many are no larger, and how many there are


class Sample:
    """Values of those requests that are in `use` and have one, in order of their due times."""

    def __init__(self, values: Floats, use: Bools, bounds: Ints) -> None:
        use = use & ~np.isnan(values)
        self._counts = _count_by_slice(use, bounds)
        self._values = values if use.all() else values[use]
        self._bounds = np.concatenate([[0], np.cumsum(self._counts)])
        self._sorted = np.sort(self._values)
        self.n = len(self._sorted)
        self.mean = float(self._sorted.mean()) if self.n else np.nan

    def quantile(self, share: float) -> float:
        return _interpolate(self._sorted, share, self.n)

    def quantile_with_failures(self, share: float, failures: int) -> float:
        return _interpolate(self._sorted, share, self.n + failures)

    def slices(self) -> list[Floats]:
        return [self._values[a:b] for a, b in itertools.pairwise(self._bounds)]

    def below(self, value: float) -> tuple[Ints, Ints]:
        return _count_by_slice(self._values <= value, self._bounds), self._counts


def slice_bounds(due_ns: Ints, window_ns: tuple[int, int]) -> Ints:
    """Where each slice of the window starts and ends in the sorted due times."""
    edges = np.linspace(window_ns[0], window_ns[1], SLICES + 1)
    edges[0], edges[-1] = -np.inf, np.inf
    return np.searchsorted(due_ns, edges)


def percentiles(sample: Distribution) -> Percentiles | None:
    """The ladder of `sample` with its intervals; None where there is nothing to rank."""
    if not sample.n:
        return None
    steps = {name: sample.quantile(share) for name, share in LADDER.items()}
    intervals = {name: _quantile_interval(sample, share, steps[name]) for name, share in LADDER.items()}
    return Percentiles(mean=sample.mean, n=sample.n, intervals=intervals, failures_as_inf=None, from_sent=None, **steps)


def ladder(sample: Sample, failures: int = 0) -> Ladder:
    steps = {name: sample.quantile_with_failures(share, failures) for name, share in LADDER.items()}
    return Ladder(**steps, mean=sample.mean if not failures else np.inf)


def _quantile_interval(sample: Distribution, share: float, value: float) -> tuple[float, float]:
    """Order statistics at share +- margin, where the margin is that of the observed share below `value`."""
    counts, totals = sample.below(value)
    margin = max(_share_margin(counts, totals), Z * np.sqrt(share * (1 - share) / sample.n))
    low = sample.quantile(max(share - margin, 0.0))
    return low, sample.quantile(share + margin) if share + margin <= 1 else np.inf


def _share_margin(counts: Ints, totals: Ints) -> float:
    """Half the 95% interval of sum(counts) / sum(totals), from how it varies between slices (ratio estimator)."""
    used = totals > 0
    slices = int(used.sum())
    if slices < 2:
        return 1.0
    total = totals.sum()
    excess = counts[used] - counts.sum() / total * totals[used]
    return float(T[slices - 2] * np.sqrt(slices / (slices - 1) * np.sum(excess**2)) / total)


def share_interval(hits: Bools, bounds: Ints) -> tuple[float, float]:
    """95% interval of the share of `hits`: Wilson's, with as many independent requests as the slices show.

    Wilson's form keeps a width at 0% and 100%, where slices show none.
    """
    n = len(hits)
    if not n:
        return np.nan, np.nan
    share = hits.mean()
    spread = share * (1 - share)
    margin = _share_margin(_count_by_slice(hits, bounds), np.diff(bounds))
    effective = min(n, Z**2 * spread / margin**2) if margin > 0 and spread > 0 else n
    centre = (share + Z**2 / (2 * effective)) / (1 + Z**2 / effective)
    half = Z / (1 + Z**2 / effective) * np.sqrt(spread / effective + (Z / (2 * effective)) ** 2)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def rate_interval(amounts: Floats | Bools, bounds: Ints, seconds: float) -> tuple[float, float]:
    """95% interval of sum(amounts) / seconds, from how the rate varies between slices."""
    sums = np.array([amounts[a:b].sum() for a, b in itertools.pairwise(bounds)])
    rates = sums / (seconds / len(sums))
    half = T[len(rates) - 2] * rates.std(ddof=1) / np.sqrt(len(rates))
    floor = 0.0 if amounts.dtype == np.bool_ else -np.inf  # a count of requests cannot be negative
    return max(float(rates.mean() - half), floor), float(rates.mean() + half)


def _count_by_slice(hits: Bools, bounds: Ints) -> Ints:
    return np.array([np.count_nonzero(hits[a:b]) for a, b in itertools.pairwise(bounds)])


def _interpolate(values: Floats, share: float, n: int) -> float:
    """The quantile of `n` values of which `values`, sorted, are the finite ones; linear between neighbours."""
    place = share * (n - 1)
    below = int(place)
    above = min(below + 1, n - 1) if place > below else below
    if above >= len(values):
        return np.inf
    return float(values[below] + (place - below) * (values[above] - values[below]))
