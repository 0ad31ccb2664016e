"""Is the knee where it is said to be, and how long does it take to find?

    python bench/knee.py [--systems 200] [--first 0] [--processes 2]

Queues with random servers, service times, arrivals and SLOs; the true knee of each is known from a long run. Each is
swept twice, with points of 60 s: over a fixed grid of ten rates, three times each, that a user might have chosen (the
knee lies anywhere between 30% and 90% of it); and adaptively, until the interval is as narrow as that of the grid. In
both, points whose backlog grows end early. Aims: the adaptive search takes at most half of the grid's measured seconds;
95% intervals hold the true knee in 90 to 99% of systems; the mean error of knees is below 2%. What is run is what
`openloop sweep` runs, from records to knee.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from openloop.arrivals import read_arrivals
from openloop.frontier.folder import _name
from openloop.frontier.knee import Knee, find_knee, next_run
from openloop.frontier.measure import HORIZONS
from openloop.frontier.point import Point, PointRun, make_point, read_trial
from openloop.frontier.steady import flow_of, growth
from openloop.seeds import stream
from openloop.sim import read_queue, simulate
from openloop.slo import read_slo

SECONDS = 60.0
GRID, REPEATS = 10, 3
TRUTH = 1_000_000  # requests of a long run
LEAST_COVER, MOST_COVER, MOST_BIAS, MOST_SECONDS = 0.90, 0.99, 0.02, 0.5
NAMED = ("comfortable", "moderate", "busy", "stressed", "overloaded")


@dataclass(frozen=True)
class System:
    queue: str
    cv: float  # of gaps between arrivals
    within_s: float  # SLO: end to end
    target: float
    capacity: float

    def arrivals(self, rate: float) -> str:
        return f"poisson:rate={rate!r}" if self.cv == 1 else f"gamma:rate={rate!r},cv={self.cv!r}"


@dataclass(frozen=True)
class Found:
    system: System
    knee: float  # in truth
    grid: Knee
    grid_s: float
    search: Knee
    search_s: float  # until the interval was as narrow
    whole_s: float  # with the points that have to have a name


def system(number: int) -> System:
    rng = stream(number, "system")
    kind, servers = (
        rng.choice(["exponential", "lognormal", "gamma", "uniform", "batch", "stages"]),
        int(rng.choice([1, 1, 2, 4, 8, 16])),
    )
    target, cv, mean = (
        float(rng.choice([0.9, 0.95, 0.99])),
        float(rng.choice([0.7, 1.0, 1.0, 1.0, 1.5])),
        float(0.01 * 10 ** rng.uniform(0, 1.3)),
    )
    ms = 1000 * mean
    made = {
        "exponential": (
            f"fcfs:service=exponential({ms:.3f}ms),servers={servers}",
            servers / mean,
            mean,
            -np.log(1 - target),
        ),
        "lognormal": (
            f"fcfs:service=lognormal(median={ms:.3f}ms,sigma=0.6),servers={servers}",
            servers / mean / 1.197,
            1.2 * mean,
            4.5,
        ),
        "gamma": (f"fcfs:service=gamma(mean={ms:.3f}ms,cv=0.5),servers={servers}", servers / mean, mean, 2.5),
        "uniform": (
            f"fcfs:service=uniform({0.5 * ms:.3f}ms,{1.5 * ms:.3f}ms),servers={servers}",
            servers / mean,
            mean,
            1.6,
        ),
        "batch": (
            f"batch:size=8,fixed={ms:.3f}ms,each={0.1 * ms:.3f}ms,timeout={ms:.3f}ms",
            8 / (1.8 * mean),
            1.8 * mean,
            2.0,
        ),
        "stages": (f"pipeline:{ms:.3f}ms,exponential({0.8 * ms:.3f}ms)", 1 / mean, 1.8 * mean, 3.0),
    }
    queue, capacity, typical, tail = made[kind]
    return System(queue, cv, float(typical * (1.2 * tail + rng.uniform(0.5, 6.0))), target, float(capacity))


def true_knee(system: System) -> float | None:
    """By a long run at each rate tried; None where not even little load meets the target with some room."""

    def attainment(rate: float) -> float:
        due = read_arrivals(system.arrivals(rate)).times(TRUTH / rate, stream(99, "arrivals"))
        stay = read_queue(system.queue).serve(due, stream(99, "service")).ended_s - due
        return float(np.mean(stay[len(stay) // 20 :] <= system.within_s))

    low, high = 0.1 * system.capacity, 1.02 * system.capacity
    if attainment(low) < system.target + 0.3 * (1 - system.target):
        return None
    while high / low > 1.002:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if attainment(middle) >= system.target else (low, middle)
    return float(np.sqrt(low * high))


def measure(system: System, rate: float, seconds: float, seed: int) -> PointRun:
    """As a sweep does it: a run that a shorter one shows to be overloaded ends early."""
    for share in HORIZONS:
        run = simulate(system.queue, system.arrivals(rate), share * seconds, seed)
        if share < 1 and growth(flow_of(run), share * seconds):
            run = replace(run, manifest=msgspec.structs.replace(run.manifest, cut_short="overload"))
            break
    return read_trial(run, read_slo(f"e2e<={1e6 * system.within_s:.3f}us"), system.target)


class Sweep:
    """Points and seconds so far."""

    def __init__(self, system: System, seed: int) -> None:
        self.system, self.seed = system, seed
        self.trials: dict[float, list[PointRun]] = {}
        self.seconds = 0.0

    def add(self, rate: float, seconds: float) -> None:
        number = sum(map(len, self.trials.values()))
        trial = measure(self.system, rate, seconds, 1_000_000 * self.seed + number)
        self.trials.setdefault(rate, []).append(trial)
        self.seconds += trial.score.window_s + trial.warm_up_s

    def result(self) -> tuple[list[Point], Knee]:
        points = [make_point(rate, self.trials[rate]) for rate in sorted(self.trials)]
        knee = find_knee(points, self.system.target)
        return [replace(point, name=_name(point, knee)) for point in points], knee


def half(knee: Knee) -> float:
    """Of the interval, as a share of the knee."""
    return (knee.interval[1] - knee.interval[0]) / 2 / knee.rate if knee.interval and knee.rate else np.inf


def study(number: int) -> Found | None:
    chosen = system(number)
    truth = true_knee(chosen)
    if truth is None:
        return None
    grid = Sweep(chosen, 2 * number)
    top = truth / stream(number, "grid").uniform(0.3, 0.9)
    for rate in (float(f"{top * (place + 1) / GRID:.4g}") for place in range(GRID)):
        for _ in range(REPEATS):
            grid.add(rate, SECONDS)
    wanted = grid.result()[1]
    if wanted.rate is None:
        return None
    search, reached, narrow = Sweep(chosen, 2 * number + 1), None, None
    while True:
        points, knee = search.result()
        step = next_run(points, knee, SECONDS, half(wanted))
        if reached is None and half(knee) <= half(wanted) and (step.rate is None or step.why in NAMED):
            reached, narrow = search.seconds, knee
        if step.rate is None:
            break
        search.add(step.rate, step.seconds)
    return Found(chosen, truth, wanted, grid.seconds, narrow or knee, reached or search.seconds, search.seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--systems", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first system: others are other systems")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    start = time.perf_counter()
    found: list[Found] = []
    tried = asked.first
    with ProcessPoolExecutor(asked.processes) as pool:
        while len(found) < asked.systems:
            batch = range(tried, tried + max(asked.systems - len(found), asked.processes))
            found += [each for each in pool.map(study, batch) if each is not None]
            tried = batch.stop
    drawn, took = tried - asked.first, time.perf_counter() - start
    print(f"{len(found)} systems with a knee on their grid, of {drawn} drawn; {took:.0f} s")
    print(f"{'':<10}{'covers':>8}{'mean error':>12}{'median |error|':>16}{'half width':>12}{'seconds':>10}")
    ways: dict[str, Callable[[Found], tuple[Knee, float]]] = {
        "grid": lambda each: (each.grid, each.grid_s),
        "adaptive": lambda each: (each.search, each.search_s),
    }
    aims: list[tuple[str, bool]] = []
    for name, way in ways.items():
        knees, seconds = [way(each)[0] for each in found], float(np.mean([way(each)[1] for each in found]))
        errors = np.array([(knee.rate or np.nan) / each.knee - 1 for knee, each in zip(knees, found, strict=True)])
        ends = [knee.interval or (0.0, np.inf) for knee in knees]
        held = float(np.mean([low <= each.knee <= high for (low, high), each in zip(ends, found, strict=True)]))
        bias, width = float(np.nanmean(errors)), float(np.median([half(knee) for knee in knees]))
        middle = float(np.nanmedian(np.abs(errors)))
        print(f"{name:<10}{held:>8.1%}{bias:>+12.2%}{middle:>16.2%}{width:>12.1%}{seconds:>10.0f}")
        aims += [(f"{name}: intervals hold 90 to 99% of knees", LEAST_COVER <= held <= MOST_COVER)]
        aims += [(f"{name}: the mean error is below 2%", abs(bias) < MOST_BIAS)]
    ratios = np.array([each.search_s / each.grid_s for each in found])
    grid_s = sum(each.grid_s for each in found)
    total, whole = sum(each.search_s for each in found) / grid_s, sum(each.whole_s for each in found) / grid_s
    print(
        f"seconds until as narrow as the grid: {total:.1%} of the grid's in all, {np.median(ratios):.1%} in the median,"
    )
    print(
        f"at most half for {np.mean(ratios <= 0.5):.0%} of systems; with all points that have a name {whole:.1%} in all"
    )
    print(f"=> seconds to find a knee | {total:.0%} | a grid as precise: 100% | {1 / total:.1f}x less | at most 50%")
    for what, met in (*aims, ("adaptive: at most half of the grid's seconds", total <= MOST_SECONDS)):
        print(f"{'met' if met else 'MISSED'}: {what}")


if __name__ == "__main__":
    main()
