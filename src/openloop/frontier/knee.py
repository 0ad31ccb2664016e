"""The knee: the largest offered rate at which attainment still meets its target, as an interval; and which rate to
measure next, from what has been measured alone, so that a sweep can be resumed.

A run's slack is how much stricter the bounds on time could be before attainment misses its target: 1 at the knee. Near
the knee it falls steadily with the rate (in a queue, where waiting is exponential, on a straight line to capacity):

    slack(rate) = 1 - slope * (rate / knee - 1)

So each pair of a knee and a slope says how likely the runs are, given the errors that their own blocks show. Weighing
all pairs by that (with knees and slopes alike on a logarithmic scale beforehand) leaves a distribution of the knee, and
the interval holds 95% of it. Where points are far apart any steep slope will do, and the interval is as wide as the gap
between them. Errors of runs of the same length are made to rise with the rate, as they do in a queue: if each run kept
its own, a lucky one would seem surer than an unlucky one, and the knee would come out too high. Runs whose backlog
grew, or whose attainment is surely below the target, say that the knee is below them; those that surely meet it, that
it is above: this holds however slack bends, as it does where one gate takes over from another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openloop.arrays import Bools, Floats
from openloop.frontier.point import MOST, Point
from openloop.score.quantiles import Z, wilson
from openloop.units import format_rate, format_share

SLOPES = np.geomspace(0.1, 100.0, 40)
COARSE, FINE = 100, 200  # knees that are tried
BEYOND = 2.0  # times the largest rate, and below the smallest: as far as knees are looked for
REACH, NEAR = 3.0, (0.1, 0.3)  # times half the interval, and from where to where that may lie around the knee:
# runs further away only say on which side of them it is, as surely as they can
ROUNDS = 4
LEAST_ERROR = 0.01  # of a slack
MOST_OFF = 4.0  # errors that a run may be away: further, and it is wrong some other way
SURE = 2 * Z  # standard errors
FALSE_ALARM = 0.002  # of a backlog that seems to grow, and of an attainment that seems to be surely on one side
CAUTION = 1.5  # times: errors of short runs are seen too small; chosen by how often intervals hold the truth
OPTIMISM = 0.4  # errors: rare latencies are rarely seen in a short run, which makes it look better than it is
LARGE = 0.2  # an error; of smaller ones it is less
MODEL = 0.01  # of the knee: the least that is left open, for no straight line is true
SHARES = (0.025, 0.5, 0.975)

# Of the search.
START_RPS = 1.0
PROBE_SHARE = 0.1  # of the time of a point, to see whether it breaks
PROBE_DUE = 20.0  # requests that a probe needs
LEAST_DUE, MOST_DUE = 10.0, 2e6  # in a run
TOUCH = 1.03  # what is nearer to an end of the interval is not inside
ASIDE = 0.7  # of the way from the knee to an end of its interval: where to measure, on either side in turn
WIDER = 1.4  # times the range of rates, where the knee may lie outside
BESIDE = (0.75, 1.3)  # times the knee: no further, for there all is fine or broken
CLOSE, CLOSE_RUNS = 0.2, 2.4  # of the knee: at least as long as so many points must have been measured so close to it
MOST_RUNS = 60

# Shares of the knee to measure at, so that there is a point of each name.
AIMS = {"comfortable": 0.5, "moderate": 0.75, "busy": 0.95, "stressed": 1.1, "overloaded": 1.5}


@dataclass(frozen=True)
class Knee:
    """Where attainment falls below `target`. Without a `rate`, `sentence` says what the points show instead."""

    target: float
    rate: float | None
    interval: tuple[float, float] | None  # 95%
    above: float | None  # it is at least this, where only that is shown
    below: float | None  # it is at most this, where only that is shown
    sentence: str
    quality: float | None = None  # share that quality alone accepts, where that is surely below the target

    def headroom(self, current_rps: float) -> tuple[float, tuple[float, float]] | None:
        """By how much the rate can grow, as a share of it, and the interval of that."""
        if self.rate is None or self.interval is None:
            return None
        low, high = (each / current_rps - 1 for each in self.interval)
        return self.rate / current_rps - 1, (low, high)


def find_knee(points: Sequence[Point], target: float) -> Knee:
    used = sorted((point for point in points if point.usable), key=lambda point: point.rate)
    if not used:
        why = "there are no points" if not points else f"no point can be used, for {points[0].why_unusable}"
        return Knee(target, None, None, None, None, why)
    aim = format_share(target)
    if (good := _quality_below(used, target)) is not None:
        what = f"quality alone accepts {format_share(good)}, less than {aim} at any rate; ask for less with --attain"
        return Knee(target, None, None, None, None, what, good)
    first, last = used[0].rate, used[-1].rate
    low, middle, high = _Runs(used, target).interval()
    if _meets(used[0], target) and middle >= first:
        low = max(low, first)
    if high > last and low < first:
        what = f"attainment is shown neither to reach {aim} at {format_rate(first)} nor to miss it"
        what += f" at {format_rate(last)}" if last > first else ""
        return Knee(target, None, None, None, None, f"{what}; measure for longer")
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
        self.ends = points[0].rate, points[-1].rate
        self.grown = [point.rate for point in points if point.overloaded or _misses(point, target)]
        self.fine = [point.rate for point in points if _meets(point, target)]
        steady = [
            (point.rate, *slack, score.window_s)
            for point in points
            if not point.overloaded
            for slack, score in zip(point.slack, point.scores, strict=True)
        ]
        self.rate, self.slack, error, seconds = np.array(steady, float).reshape(-1, 4).T
        length = np.sqrt(seconds)
        self.error = np.exp(_rising(np.log(np.maximum(error, LEAST_ERROR) * length), seconds)) / length
        self.slack = self.slack - OPTIMISM * self.error * np.minimum(self.error / LARGE, 1.0)

    def interval(self) -> tuple[float, float, float]:
        """Lower end, middle and upper end."""
        reach, low, knee, high, slope = np.inf, 0.0, 1.0, 0.0, 1.0
        error = CAUTION * self.error
        for turn in range(ROUNDS):
            near = abs(self.rate / knee - 1) <= reach
            if turn:
                error = CAUTION * self.error * self._beyond(near, knee, slope)
            knees = np.geomspace(self.ends[0] / BEYOND, self.ends[1] * BEYOND, COARSE)
            weights = self._weigh(knees, near, error).sum(axis=0)
            kept = np.flatnonzero(weights > 1e-6 * weights.max())
            knees = np.geomspace(knees[max(kept[0] - 1, 0)], knees[min(kept[-1] + 1, COARSE - 1)], FINE)
            both = self._weigh(knees, near, error)
            total = np.cumsum(both.sum(axis=0)) / both.sum()
            low, knee, high = (float(np.interp(share, total, knees)) for share in SHARES)
            slope = float(SLOPES[np.argmax(both[:, np.argmin(abs(knees - knee))])])
            reach = float(np.clip(REACH * (high - low) / 2 / knee, *NEAR))
        low, high = (knee + (-1, 1)[end > knee] * np.hypot(end - knee, MODEL * knee) for end in (low, high))
        return float(low), knee, float(high)

    def _weigh(self, knees: Floats, near: Bools, error: Floats) -> Floats:
        """How likely the runs are, by slope and knee."""
        found = np.zeros((len(SLOPES), len(knees)))
        for rate in self.grown:
            found += np.where(knees <= rate, 0.0, np.log(FALSE_ALARM))
        for rate in self.fine:
            found += np.where(knees >= rate, 0.0, np.log(FALSE_ALARM))
        for rate, slack, each, close in zip(self.rate, self.slack, error, near, strict=True):
            if close:
                expected = np.clip(1 - SLOPES[:, None] * (rate / knees - 1), 0.0, MOST)
                off = (slack - expected) / each
            else:
                off = np.where((knees >= rate) == (slack >= 1), 0.0, (slack - 1) / each)
            found -= np.minimum(off**2, MOST_OFF**2) / 2
        return np.asarray(np.exp(found - found.max()), np.float64)

    def _beyond(self, near: Bools, knee: float, slope: float) -> float:
        """How many times further than their own errors the runs are from what was expected of them."""
        expected = np.clip(1 - slope * (self.rate / knee - 1), 0.0, MOST)
        off = ((self.slack - expected) / self.error)[near]
        freedom = len(off) - 2
        return 1.0 if freedom < 2 else max(1.0, float(np.sqrt(np.sum(off**2) / freedom)))


def _quality_below(points: Sequence[Point], target: float) -> float | None:
    """The share of answers that are good, if its interval is below the target: no rate mends that."""
    scores = [score for point in points for score in point.scores]
    answers = sum(score.completed for score in scores)
    bad = sum(score.gates["quality"].failed for score in scores if "quality" in score.gates)
    if not bad or not answers:
        return None
    good = 1 - bad / answers
    return good if wilson(good, answers, SURE)[1] < target else None


def _misses(point: Point, target: float) -> bool:
    """Whether attainment is below the target by far more than chance: surely beyond the knee."""
    return wilson(point.attainment, point.independent, SURE)[1] < target


def _meets(point: Point, target: float) -> bool:
    """The same above the target: surely below the knee."""
    return not point.overloaded and wilson(point.attainment, point.independent, SURE)[0] > target


def _rising(values: Floats, weights: Floats) -> Floats:
    """The nearest values that do not fall: neighbours that do are put together (isotonic regression)."""
    groups: list[tuple[float, float, int]] = []  # mean, weight and number of each
    for mean, weight in zip(values.tolist(), weights.tolist(), strict=True):
        count = 1
        while groups and groups[-1][0] > mean:
            before, size, counted = groups.pop()
            mean = (before * size + mean * weight) / (size + weight)
            weight, count = size + weight, counted + count
        groups.append((mean, weight, count))
    return np.repeat([mean for mean, _, _ in groups], [count for _, _, count in groups])


@dataclass(frozen=True)
class NextRun:
    """A run to make; or, with a rate of None, why there is none."""

    rate: float | None
    seconds: float
    why: str


def next_run(
    points: Sequence[Point], knee: Knee, seconds: float, precision: float, repeat: int = 1, start: float = START_RPS
) -> NextRun:
    """Probe gently, double until it breaks, narrow to the knee, and see that there is a point of each name."""
    runs = sum(point.repeats for point in points)
    if runs >= MOST_RUNS:
        return NextRun(
            None, 0, f"there are {runs} runs, and the knee is still not known well enough: run each for longer"
        )
    tried = [point for point in points if point.usable]
    if points and not points[-1].usable:
        return NextRun(None, 0, f"the client is not up to {points[-1].rate:g}/s")
    fine = [point.rate for point in tried if _fine(point, knee.target)]
    broken = [point.rate for point in tried if not _fine(point, knee.target)]
    upwards = knee.rate is None and knee.below is None and knee.quality is None
    if not broken or (upwards and _fine(tried[-1], knee.target)):  # what broke lower was bad luck
        return _probe(2 * tried[-1].rate if tried else start, seconds, "probing")
    if knee.quality is not None:
        return NextRun(None, 0, "quality alone misses the target")
    if not fine:
        return _probe(min(broken) / 2, seconds, "probing")
    if knee.rate is None or knee.interval is None:
        lower = max(tried[0].rate / WIDER, min(PROBE_DUE / seconds, tried[0].rate))
        rate = tried[-1].rate * WIDER if upwards else lower
        return NextRun(_rounded(rate), seconds, "widening")
    low, high = knee.interval
    close = sum(point.seconds for point in tried if abs(point.rate / knee.rate - 1) <= CLOSE)
    if (high - low) / 2 > precision * knee.rate or close < CLOSE_RUNS * seconds:
        inside = any(low * TOUCH < point.rate < high / TOUCH for point in tried)
        rate = (low, high)[runs % 2] * ASIDE + knee.rate * (1 - ASIDE) if inside else knee.rate
        rate = min(max(rate, BESIDE[0] * knee.rate), BESIDE[1] * knee.rate)
        return NextRun(_rounded(rate), seconds, "narrowing")
    for name, share in AIMS.items():
        known = [point for point in points if point.name == name]
        if not any(point.repeats >= repeat and (point.overloaded or point.seconds >= seconds / 2) for point in known):
            aim = _rounded(share * knee.rate)
            return NextRun(min([each.rate for each in known] or [aim], key=lambda rate: abs(rate - aim)), seconds, name)
    return NextRun(None, 0, "done")


def _fine(point: Point, target: float) -> bool:
    return not point.overloaded and point.attainment >= target


def _probe(rate: float, seconds: float, why: str) -> NextRun:
    if rate * seconds < LEAST_DUE:
        return NextRun(
            None, 0, f"at {rate:g}/s fewer than {LEAST_DUE:g} requests are due in {seconds:g} s: run for longer"
        )
    if rate * PROBE_SHARE * seconds > MOST_DUE:
        return NextRun(None, 0, f"nothing breaks up to {rate / 2:g}/s")
    return NextRun(_rounded(rate), min(max(PROBE_SHARE * seconds, PROBE_DUE / rate), seconds), why)


def _rounded(rate: float) -> float:
    return float(f"{rate:.4g}")
