"""Which rate to measure next. Pure: what has been measured in, the next run or None out, so a sweep can be resumed."""

from collections.abc import Sequence
from dataclasses import dataclass

from openloop.frontier.knee import Knee
from openloop.frontier.point import Point

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
    if not broken or (knee.above is not None and _fine(tried[-1], knee.target)):  # what broke lower was bad luck
        return _probe(2 * tried[-1].rate if tried else start, seconds, "probing")
    if knee.quality is not None:
        return NextRun(None, 0, "quality alone misses the target")
    if not fine:
        return _probe(min(broken) / 2, seconds, "probing")
    if knee.rate is None or knee.interval is None:
        lower = max(tried[0].rate / WIDER, min(PROBE_DUE / seconds, tried[0].rate))
        rate = lower if knee.above is None else tried[-1].rate * WIDER
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
