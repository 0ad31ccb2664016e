"""How two judged runs differ: the ratio of each metric, with an interval that respects autocorrelation.

Runs are cut into blocks by schedule time. A jackknife leaves one block out at a time, of both runs together where their
schedules match, so that what both had to bear cancels; blocks are also left out in pairs, and the wider answer counts.
A percentile hangs on a few busy stretches: for it blocks are left out in fours and in fives as well, and it has no more
degrees of freedom than there are stretches (bench/compare.py shows how often that is enough). A handful of requests, or
none, vary as counts do, whatever the blocks show.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openloop.arrays import Bools, Floats
from openloop.score.judged import Scope
from openloop.score.quantiles import BLOCKS, T

# 95% quantiles of Student's t with 1, 2, ... degrees of freedom; T has those of 97.5%.
ONE_SIDED = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729),
)
LEAST_FREE = 2  # degrees of freedom
FEW, NONE = 10, 0.5  # requests


@dataclass(frozen=True)
class ComparedMetric:
    """`of` takes a run and which of its requests to look at, and for how long they came."""

    words: str
    better: int  # 1: more of it is better; -1: less
    of: Callable[[Scope, Bools, float], float]
    count: Callable[[Scope], Bools] | None = None  # the requests that it counts
    beyond: Callable[[Scope, float], Bools] | None = None  # of a percentile: the requests above it

    @property
    def blocks(self) -> tuple[int, ...]:
        """By how many it is divided."""
        return (20, 10, 5, 4) if self.beyond else (20, 10)


def _percentile(words: str, name: str, share: float) -> ComparedMetric:
    def of(scope: Scope, kept: Bools, _: float) -> float:
        values = getattr(scope.answers, name)[kept & scope.deliveries.ok]
        values = values[~np.isnan(values)]
        return float(np.quantile(values, share)) if len(values) else np.nan

    def beyond(scope: Scope, value: float) -> Bools:
        return np.asarray(scope.deliveries.ok & (getattr(scope.answers, name) > value))

    return ComparedMetric(words, -1, of, beyond=beyond)


def _cost(scope: Scope, kept: Bools, seconds: float) -> float:
    run = scope.run
    if not run.priced:
        return np.nan
    accepted = int(_accepted(scope)[kept].sum())
    spent = float(scope.spent[kept].sum()) + run.per_hour * seconds / 3600
    return spent / accepted if accepted else np.inf


def _accepted(scope: Scope) -> Bools:
    return scope.judgement.accepted


def _answered(scope: Scope) -> Bools:
    return scope.deliveries.ok


METRICS = {
    "goodput": ComparedMetric("goodput", 1, lambda scope, kept, s: float(_accepted(scope)[kept].sum()) / s, _accepted),
    "attainment": ComparedMetric(
        "attainment", 1, lambda scope, kept, _: float(_accepted(scope)[kept].mean()), _accepted
    ),
    "throughput": ComparedMetric(
        "throughput", 1, lambda scope, kept, s: float(_answered(scope)[kept].sum()) / s, _answered
    ),
    "tokens": ComparedMetric(
        "output tokens/s",
        1,
        lambda scope, kept, s: float(scope.deliveries.tokens[kept & _answered(scope)].sum()) / s,
        _answered,
    ),
    "ttft_p50": _percentile("TTFT p50", "ttft_s", 0.5),
    "ttft_p95": _percentile("TTFT p95", "ttft_s", 0.95),
    "ttft_p99": _percentile("TTFT p99", "ttft_s", 0.99),
    "tpot_p99": _percentile("TPOT p99", "tpot_s", 0.99),
    "e2e_p99": _percentile("E2E p99", "e2e_s", 0.99),
    "cost": ComparedMetric("cost per accepted", -1, _cost, _accepted),
    "knee": ComparedMetric("knee", 1, lambda *_: np.nan),  # of frontiers
}


@dataclass(frozen=True)
class Change:
    """One metric of A, the baseline, and B, the candidate. `change` is B / A - 1; None where there is no ratio."""

    metric: str
    a: float
    b: float
    change: float | None
    interval: tuple[float, float] | None  # 95%
    at_most: float | None  # 95%, one-sided
    at_least: float | None

    @property
    def winner(self) -> str | None:
        """A or B, if it is sure."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return None
        return "B" if (self.interval[0] > 0) == (METRICS[self.metric].better > 0) else "A"

    @property
    def half(self) -> float | None:
        """Half of the interval, on a scale of ratios."""
        return None if self.interval is None else float(np.log1p(self.interval[1]) - np.log1p(self.interval[0])) / 2


def same_schedule(a: Scope, b: Scope) -> bool:
    return a.n == b.n and a.window_ns == b.window_ns and bool(np.array_equal(a.due_ns, b.due_ns))


def changes(a: Scope, b: Scope) -> dict[str, Change]:
    """Every metric that both runs tell."""
    paired = same_schedule(a, b)
    found = {name: _change(name, each, (a, b), paired) for name, each in METRICS.items()}
    return {name: each for name, each in found.items() if not np.isnan([each.a, each.b]).any()}


def mean_change(all_of: list[Change]) -> Change:
    """The mean of several independent changes in one metric."""
    a, b = (float(np.mean([getattr(each, end) for each in all_of])) for end in ("a", "b"))
    known = [each for each in all_of if each.change is not None and each.half is not None]
    if len(known) < len(all_of):
        return Change(all_of[0].metric, a, b, None, None, None, None)
    middle = float(np.mean([np.log1p(each.change or 0.0) for each in known]))
    two = [each.half or 0.0 for each in known]
    one = [float(np.log1p(each.at_most or 0.0) - np.log1p(each.at_least or 0.0)) / 2 for each in known]
    margins = (float(np.hypot.reduce(side) / len(known)) for side in (two, one))
    return change_of(all_of[0].metric, a, b, middle, *margins)


def _left_out(scope: Scope, metric: ComparedMetric) -> dict[int, Floats]:
    """The metric of all requests, followed by that without each block: by number of blocks."""
    whole = metric.of(scope, np.ones(scope.n, bool), scope.seconds) if scope.n else np.nan
    found = {}
    for blocks in metric.blocks:
        ends = scope.bounds[:: BLOCKS // blocks]
        values = [whole]
        for start, end in itertools.pairwise(ends):
            kept = np.ones(scope.n, bool)
            kept[start:end] = False
            values.append(metric.of(scope, kept, scope.seconds * (1 - 1 / blocks)) if kept.any() else np.nan)
        found[blocks] = np.array(values)
    return found


def _change(name: str, metric: ComparedMetric, runs: tuple[Scope, Scope], paired: bool) -> Change:
    a, b = (_left_out(run, metric) for run in runs)
    first, second = float(a[20][0]), float(b[20][0])
    everything = np.concatenate([*a.values(), *b.values()])
    counts = [int(metric.count(run).sum()) for run in runs] if metric.count else []
    if not np.isfinite(everything).all() or everything.max() <= 0 or (counts and not any(counts)):
        return Change(name, first, second, None, None, None, None)
    floor, least, free = 1e-12 * everything.max(), 0.0, len(ONE_SIDED)
    if counts:
        floor = NONE * max(value / count for value, count in zip((first, second), counts, strict=True) if count)
        least = float(np.sqrt(sum(1 / max(each, NONE) for each in counts))) if min(counts) < FEW else 0.0
    if metric.beyond:
        free = min(_stretches(run, metric.beyond(run, at)) for run, at in zip(runs, (first, second), strict=True)) - 2
    margins = []
    for blocks in a:
        parts = [_without_blocks(each[blocks], floor, counted=bool(counts)) for each in (a, b)]
        spread = np.var(parts[1] - parts[0]) if paired else np.var(parts[0]) + np.var(parts[1])
        error = max(float(np.sqrt((blocks - 1) * spread)), least)
        degree = max(min(blocks - 1, free), LEAST_FREE) - 1
        margins.append((T[degree] * error, ONE_SIDED[degree] * error))
    two, one = max(margins)
    return change_of(name, first, second, float(np.log(max(second, floor) / max(first, floor))), two, one)


def _without_blocks(found: Floats, floor: float, *, counted: bool) -> Floats:
    """The metric without each block, on a scale of ratios. A count is the sum of its blocks: a block that has all of it
    is missed once, and not as often as it could be divided."""
    whole, *left = np.maximum(found, floor)
    return np.asarray(left) / whole if counted else np.log(left)


def _stretches(scope: Scope, those: Bools) -> int:
    """In how many of the blocks there are any."""
    return sum(bool(those[start:end].any()) for start, end in itertools.pairwise(scope.bounds[:: BLOCKS // 20]))


def change_of(name: str, a: float, b: float, middle: float, two: float, one: float) -> Change:
    """From the logarithm of a ratio, and its margins, two-sided and one-sided."""
    logs = (middle, middle - two, middle + two, middle + one, middle - one)
    change, low, high, at_most, at_least = (float(np.expm1(log)) for log in logs)
    return Change(name, a, b, change, (low, high), at_most, at_least)
