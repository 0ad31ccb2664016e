"""What one replica does: typed by hand, or read off a frontier."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openloop.errors import SpecError
from openloop.frontier import Frontier, Point
from openloop.frontier.folder import is_probe, lasting, read_asked, requests_per_user, short_points
from openloop.plan.formulas import little
from openloop.records import Manifest, open_run
from openloop.score import Score
from openloop.score.money import lower_bound
from openloop.score.quantiles import Z
from openloop.sim.events import Add, Remove
from openloop.sim.fleet import FleetSpec, read_fleet
from openloop.units import format_rate, format_share

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A value and, where it rests on measured data, its 95% interval."""

    value: float
    interval: Interval | None = None

    @staticmethod
    def spanning(values: Sequence[float], measured: bool, middle: float | None = None) -> "Estimate":
        """Of what was computed at the low end, the middle and the high end of something measured."""
        value = float(values[1] if middle is None else middle)
        return Estimate(value, (float(min(*values, value)), float(max(*values, value))) if measured else None)

    @property
    def ends(self) -> tuple[float, float, float]:
        """Low end, value, high end."""
        low, high = self.interval or (self.value, self.value)
        return low, self.value, high

    def times(self, by: float) -> "Estimate":
        return Estimate(self.value * by, self.interval and (self.interval[0] * by, self.interval[1] * by))


@dataclass(frozen=True)
class LoadPoint:
    """What was measured of a replica at an offered rate; what is not known is None."""

    rate: float
    attainment: float | None
    attainment_interval: Interval | None
    latency_s: float | None  # mean, from when a request was due
    by_use: float | None = None  # cost of a request, apart from the hours of what served it


@dataclass(frozen=True)
class System:
    """One replica. Rates are requests per second. Intervals are 95%; None: the number was typed, or is not known."""

    source: str
    knee: float  # the largest rate at which it keeps its SLO
    knee_interval: Interval | None = None
    beyond: bool = False  # no rate that was measured missed the SLO: the knee is at least that
    target: float | None = None  # attainment at the knee
    slo: str | None = None
    capacity: float | None = None  # what it completes at most, accepted or not
    capacity_interval: Interval | None = None
    in_flight: float | None = None  # requests that it holds at most
    latency_s: float | None = None  # mean, where it was typed
    tokens: float | None = None  # of an accepted answer
    price: float | None = None  # per hour
    hit_rate: float | None = None  # of its prefix cache
    measured_replicas: int = 1
    requests_per_user: float = 1.0  # of a sweep, whose own rates are users per second
    unit: str = "replica"
    loads: tuple[LoadPoint, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def knees(self) -> Estimate:
        return Estimate(self.knee, self.knee_interval)

    @property
    def goodput(self) -> float:
        """The most that is accepted per second at rates up to the knee."""
        found = [load.rate * (load.attainment or 0.0) for load in self.loads if load.rate <= self.knee]
        return max([self.knee * (1.0 if self.target is None else self.target), *found])

    def latency_at(self, rate: float) -> float | None:
        """Mean time in the system at a rate, between the rates that were measured."""
        found = self._between("latency_s", rate)
        return self.latency_s if found is None else found

    def by_use_at(self, rate: float) -> float:
        """What a request costs besides hours: by requests and tokens, judges and people."""
        return self._between("by_use", rate) or 0.0

    def _between(self, fact: str, rate: float) -> float | None:
        known = [(load.rate, value) for load in self.loads if (value := getattr(load, fact)) is not None]
        return float(np.interp(rate, *np.array(known).T)) if known else None

    def attainment_at(self, rate: float) -> Estimate:
        """Attainment at a rate: as measured, or all, up to a knee that was typed."""
        known = [
            (load.rate, load.attainment, *load.attainment_interval)
            for load in self.loads
            if load.attainment is not None and load.attainment_interval is not None
        ]
        if not known:
            return Estimate(1.0 if self.target is None else self.target)
        rates, *columns = np.array(known).T
        middle, low, high = (float(np.interp(rate, rates, column)) for column in columns)
        if self.target is not None and self.knee_interval and rate <= self.knee_interval[0]:
            low = max(low, min(self.target, middle))  # that is what left of the knee means
        return Estimate(middle, (low, high) if low < high else None)


def cost_caveat(scores: Iterable[Score]) -> str | None:
    """Said where the cost of some requests is not known in full."""
    return lower_bound(min((score.cost.known_for for score in scores if score.cost), default=1.0))


def typed_system(
    knee: Sequence[float] | None = None,
    in_flight: float | None = None,
    latency_s: float | None = None,
    **more: Any,
) -> System:
    """A knee, or low end, middle and high end of one; or L and W of a replica, of which Little's law makes one."""
    if knee is None:
        if in_flight is None or latency_s is None:
            raise SpecError(
                "say what one replica does: a frontier, a fleet.yaml, --knee 450/s, or --in-flight 40 --latency 120ms"
            )
        source, knee = "by Little's law", [little(in_flight, None, latency_s)[1]]
    else:
        source = "knee as typed"
    if len(knee) not in (1, 3) or not all(0 < each < np.inf for each in knee):
        told = ", ".join(f"{each:g}" for each in knee)
        raise SpecError(f"the knee is {told}; give one rate above 0, or three: low end, knee and high end")
    low, middle, high = sorted(knee) if len(knee) == 3 else (0.0, knee[0], 0.0)
    if (most := more.get("capacity")) is not None and most < middle * (1 - 1e-9):
        raise SpecError(f"a replica cannot do {middle:g}/s in time and {most:g}/s in all: --capacity is at least that")
    interval = (low, high) if len(knee) == 3 else None
    return System(source, middle, interval, in_flight=in_flight, latency_s=latency_s, **more)


def mean_replicas(manifest: Manifest) -> float:
    """There, and paid for, on average over the window."""
    window = manifest.window_ns or (0, 1)
    if not manifest.stays:
        return float(manifest.replicas or 1)
    return sum(stay.inside_ns(window) for stay in manifest.stays) / (window[1] - window[0])


def check_size(fleet: FleetSpec, where: str) -> None:
    """What a replica does cannot be told of a fleet whose size changes with its load, or while it is measured."""
    if fleet.scale is not None or any(isinstance(event, Add | Remove) for event in fleet.plan()):
        raise SpecError(
            f"{where}: the fleet grows or shrinks, so nobody can say what one replica does; leave out scale, add and "
            "remove, and measure a fixed number (what scaling saves is told by single runs, and by plan --day)"
        )


def frontier_system(found: Frontier, source: str | None = None) -> System:
    """A replica of what was swept, under the name `source` or that of its folder: users per second times their
    requests, over how many replicas there were."""
    if found.path is None or not found.points:
        raise SpecError(f"{found.path or 'the frontier'} has no finished run: there is nothing to plan by")
    asked, source = read_asked(Path(found.path)), source or found.path
    fleet = read_fleet(asked.fleet) if asked.fleet else None
    if fleet is not None:
        check_size(fleet, source)
    manifest = open_run(str(found.points[0].scores[0].run)).manifest
    whole_fleet = fleet is not None and bool(fleet.groups)  # unlike replicas go together
    count = 1 if whole_fleet else manifest.replicas or 1
    rate, interval, notes = _knee(found, source)
    points = [point for point in found.points if point.usable]
    told = [point for point in points if point.rate <= rate or point.overloaded or not is_probe(point, asked)]
    near = min(points, key=lambda point: (point.overloaded, abs(point.rate - rate)))
    several = requests_per_user(points)
    each = several / count  # requests of a replica, per user
    best = max(lasting(points), key=lambda point: point.completed_in_window_rps)
    most = best.completed_in_window_rps
    margin = Z / np.sqrt(max(most * best.seconds, 1.0))
    first = found.points[0].scores[0]
    hourly = first.cost.hourly * 3600 / first.window_s if first.cost else 0.0
    tokens = near.output_token_goodput / near.goodput_rps if near.goodput_rps else 0.0
    if whole_fleet and fleet is not None:
        notes += (f"a unit is the whole fleet that was measured, {fleet.size} replicas that belong together",)
    if caveat := cost_caveat(score for point in told for score in point.scores):
        notes += (caveat,)
    notes += tuple(short_points(points, found.knee, asked.seconds))
    if manifest.replicas is None:
        notes += ("how many replicas were measured is not told; taken for one",)
    return System(
        source=source,
        knee=rate * each,
        knee_interval=(interval[0] * each, interval[1] * each),
        target=found.knee.target,
        slo=found.slo,
        beyond=found.knee.rate is None,
        capacity=most / count,
        capacity_interval=(most * (1 - margin) / count, most * (1 + margin) / count),
        in_flight=None if fleet is None or fleet.groups else float(fleet.max_sequences),
        tokens=tokens or None,
        price=hourly / count if hourly or (first.cost and first.cost.serving) else None,
        hit_rate=None if np.isnan(near.cache_hit_rate) else near.cache_hit_rate,
        measured_replicas=count,
        requests_per_user=several,
        unit="fleet" if whole_fleet else "replica",
        loads=tuple(_load(point, each) for point in told),
        notes=notes,
    )


def _knee(found: Frontier, source: str) -> tuple[float, Interval, tuple[str, ...]]:
    knee = found.knee
    if knee.rate is not None and knee.interval is not None:
        return knee.rate, knee.interval, ()
    if knee.above is not None and knee.above > 0:
        note = (
            f"the knee lies beyond {format_rate(knee.above)}, as far as was measured: fewer may do, sweep higher rates"
        )
        return knee.above, (knee.above, knee.above), (note,)
    points = [point for point in found.points if point.usable]
    if not points:
        raise SpecError(f"{source} has no knee: {knee.sentence}; mend that, and repeat the sweep")
    if knee.below is None:  # which is not to say that the target was missed
        raise SpecError(f"{source} has no knee: {knee.sentence}")
    if points[0].attainment >= knee.target:
        raise SpecError(f"{source} has no knee: {knee.sentence}, or for longer")
    raise SpecError(_never_met(found, source, points[0]))


def _never_met(found: Frontier, source: str, first: Point) -> str:
    """Why no number of replicas helps, and what would."""
    slack = max(each for each, _ in first.slack)
    bounds = f"times {1.05 / slack:.2g} as long would be met there" if 0 < slack < 1 else "would have to be far laxer"
    return (
        f"{source}: {found.slo} was never met, for at {format_rate(first.rate)} only "
        f"{format_share(first.attainment)} are accepted and not {format_share(found.knee.target)}: no number of "
        f"replicas mends what one misses so nearly idle; sweep lower rates, make an answer faster, or ask for less "
        f"(bounds {bounds})"
    )


def _load(point: Point, each: float) -> LoadPoint:
    latency = point.e2e_s.mean if point.e2e_s and not point.overloaded else None
    costs = [score.cost for score in point.scores if score.cost]
    by_use = sum(cost.total - cost.hourly for cost in costs) / point.requests if costs else None
    return LoadPoint(point.rate * each, point.attainment, point.attainment_interval, latency, by_use)
