"""A deployment from what one replica does and what is needed of all of them. Pure: numbers in, a plan out."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from openloop.arrays import Floats
from openloop.arrivals import read_arrivals
from openloop.errors import RunError, SpecError
from openloop.plan.formulas import all_up, cost_each, diluted, machines_for, rounded_up, some_up
from openloop.plan.system import Estimate, Interval, System
from openloop.spec import convert, plain, read_json
from openloop.terms import COUNT, FLAG, SHARE, Term, param, read_term
from openloop.units import format_share

PRICE = "price of a replica"
HOURS = 730.0  # in a month
SLOT_S, DAY_S = 300.0, 86_400.0
GAIN = 0.1
MOST_REPLICAS = 1_000_000


@dataclass(frozen=True)
class Cache(Term):
    """A prefix cache that found the share `hit` when there were so many replicas; a hit saves a share of a request's
    work. Requests are spread over all replicas, or go where their prefix is (`aware`)."""

    name = "cache"
    hit: float = param(SHARE)
    replicas: int = param(COUNT, 1)
    saves: float = param(SHARE, 0.0, most=0.99)
    aware: bool = param(FLAG, False)

    def hit_at(self, count: int) -> float:
        return self.hit if self.aware else diluted(self.hit, self.replicas, count)

    def slower(self, count: int) -> float:
        """Work of a request, against where the hit rate was measured: (1 - s h(n)) / (1 - s h)."""
        return (1 - self.saves * self.hit_at(count)) / (1 - self.saves * self.hit)


@dataclass(frozen=True)
class Needs:
    """What is asked of the deployment."""

    demand: float  # requests per second, on average
    peak: float = 1.0  # times the average
    headroom: float = 0.0  # beyond the peak, as a share of it
    failures: int = 0  # replicas that may be down at the same time
    availability: float | None = None
    machine_up: float = 0.999
    price: float | None = None  # of a replica, per hour; None: as measured, or not known
    utilisation: float | None = None  # of what replicas could do, on average; None: as the demand makes it
    quality: float = 1.0  # share of answers in time that also pass their gate, where the SLO does not ask for it
    cache: str | None = None
    day: str | None = None  # arrivals over 24 h, in place of demand and peak
    scale_delay_s: float = 300.0
    by: Literal["low", "middle"] = "low"  # end of the knee's interval that is trusted


@dataclass(frozen=True)
class Day:
    """A day with as many replicas as each five minutes need, against a fixed number."""

    hours: tuple[float, ...]
    rate: tuple[float, ...]
    ahead: tuple[int, ...]  # ordered before they are needed
    late: tuple[int, ...]  # serving, where they are ordered when they are needed
    fixed: int
    fixed_hours: float  # of replicas, in a day
    ahead_hours: float
    late_hours: float
    short: float  # share of requests that come while too few are serving
    saved: float  # of fixed_hours, by ordering ahead


@dataclass(frozen=True)
class Gain:
    """What one number would be worth if it were better by a tenth."""

    name: str
    now: float
    then: float
    replicas: int
    cost_per_million: float | None
    worth: float  # share of the cost per million, or of the replicas, that it saves
    unrounded: float  # the same if replicas could be bought in parts


@dataclass(frozen=True)
class Confirmed:
    """The planned fleet, simulated at its peak."""

    replicas: int
    rate: float
    seconds: float
    attainment: float
    attainment_interval: Interval
    hit_rate: float | None
    enough: bool


@dataclass(frozen=True)
class CapacityPlan:
    """Replicas, and what comes of them. Money is in the currency of the price."""

    system: System
    needs: Needs
    peak_rate: float
    replicas: int
    replicas_interval: Interval | None  # by the ends of the knee's interval
    carry: Estimate  # replicas that carry the peak at their knees
    sized: int  # with headroom
    for_failures: int
    for_availability: int | None
    knee: float  # of a replica of this plan: lower than the one measured, where caches are colder
    rate_each: float  # of a replica, at the peak
    utilisation: Estimate  # of the knee, at the peak
    busy: Estimate | None  # of raw capacity, on average: u
    available: float  # chance that enough are up to carry the peak with its headroom
    all_up: float
    in_flight: float | None  # at the peak, of all: L
    in_flight_each: float | None
    fits: bool | None  # within what a replica holds
    raw: Estimate | None  # replicas that raw capacity suggests
    raw_rate_each: float | None
    attainment: Estimate
    cost_per_hour: Estimate | None
    raw_cost_per_hour: Estimate | None
    cost_per_million: Estimate | None  # accepted results
    cost_per_million_tokens: Estimate | None  # of accepted answers
    hit_rate: float | None
    diluted_hit_rate: float | None
    day: Day | None
    gains: tuple[Gain, ...]
    notes: tuple[str, ...]
    confirmed: Confirmed | None = None
    kind: Literal["plan"] = "plan"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found


def read_plan(path: str | Path) -> CapacityPlan:
    """What `openloop plan -o plan.json` wrote."""
    raw = read_json(Path(path))
    if not isinstance(raw, dict) or raw.get("kind") != "plan":
        raise RunError(f"{path} is no plan; openloop plan ... -o plan.json writes one")
    present = {"attainment" if key == "accepted" else key: value for key, value in raw.items()}  # its earlier name
    found = convert(present, CapacityPlan, str(path))
    if (day := found.day) and {len(each) for each in (day.rate, day.ahead, day.late)} != {len(day.hours) or -1}:
        raise RunError(f"{path}: the day has not as many of rate, ahead and late as of hours; make the plan again")
    return found


def make_plan(system: System, needs: Needs) -> CapacityPlan:
    needs, rates = _spelt_out(needs)
    for name, least, most, sentence in LIMITS:
        if (value := getattr(needs, name)) is not None and not least <= value <= most:
            raise SpecError(sentence.format(value))
    if needs.price is None and system.price is not None:
        needs = replace(needs, price=system.price)
    knees = system.knees.ends
    sizes = [_size(each, needs) for each in knees]
    trusted = 0 if needs.by == "low" else 1
    size = sizes[trusted]
    raw: list[int] = []
    if system.capacity is not None and not system.beyond:
        raw = [_size(each, needs).replicas for each in Estimate(system.capacity, system.capacity_interval).ends]
    measured = system.knee_interval is not None and not system.beyond
    raw_measured = system.capacity_interval is not None
    replicas, rate_each = size.replicas, needs.demand * needs.peak / size.replicas
    there = _scaled(system, 1 / size.slower)  # a replica of this plan
    attainment = there.attainment_at(needs.demand / replicas).times(needs.quality)
    warm, held = there.latency_at(rate_each), system.in_flight
    in_flight = None if warm is None else needs.demand * needs.peak * (warm * size.slower)
    in_flight_each = None if in_flight is None else in_flight / replicas
    cache, hit = _cache(needs), system.hit_rate
    colder = None if hit is None else diluted(hit, system.measured_replicas, replicas)
    money = _Money(there, needs)
    million = money.per_million(replicas, attainment)
    return CapacityPlan(
        system=system,
        needs=needs,
        peak_rate=needs.demand * needs.peak,
        replicas=replicas,
        replicas_interval=(float(sizes[2].replicas), float(sizes[0].replicas)) if measured else None,
        carry=Estimate.spanning([each.carry for each in sizes], measured, middle=size.carry),
        sized=size.sized,
        for_failures=size.sized + needs.failures,
        for_availability=size.for_availability,
        knee=there.knee,
        rate_each=rate_each,
        utilisation=Estimate.spanning([rate_each / each for each in there.knees.ends], measured),
        busy=money.busy(replicas),
        available=some_up(size.sized, replicas, needs.machine_up),
        all_up=all_up(needs.machine_up, replicas),
        in_flight=in_flight,
        in_flight_each=in_flight_each,
        fits=None if in_flight_each is None or held is None else in_flight_each <= held * 1.0001,
        raw=Estimate.spanning(raw, raw_measured) if raw else None,
        raw_rate_each=needs.demand * needs.peak / raw[1] if raw else None,
        attainment=attainment,
        cost_per_hour=money.hourly(replicas, [each.replicas for each in sizes], measured),
        raw_cost_per_hour=money.hourly(raw[1], raw, raw_measured) if raw else None,
        cost_per_million=million,
        cost_per_million_tokens=million.times(1 / system.tokens) if million and system.tokens else None,
        hit_rate=cache.hit if cache else hit,
        diluted_hit_rate=cache.hit_at(replicas) if cache else colder,
        day=None if rates is None else _day(rates, needs, knees[trusted], replicas),
        gains=tuple(_gains(system, needs)),
        notes=(*system.notes, *_notes(there, needs, replicas)),
    )


def _spelt_out(needs: Needs) -> tuple[Needs, Floats | None]:
    """A day is a demand and a peak."""
    if needs.day is None:
        return needs, None
    if needs.peak != 1:
        raise SpecError(
            f"a day has a peak of its own, and {needs.peak:g} times more is asked for: leave out --peak, or write a day"
            " of higher rates"
        )
    edges = np.arange(0.0, DAY_S + 1, SLOT_S)
    arrivals = read_arrivals(needs.day)
    rates = np.diff([arrivals.expected(each) if each else 0.0 for each in edges]) / SLOT_S
    if not rates.max() > 0:
        raise SpecError(f"the day {needs.day!r} brings no requests: nothing has to be deployed; give a rate above 0")
    mean = float(rates.mean())
    return replace(needs, demand=mean, peak=float(rates.max()) / mean), rates


LEAST, MOST = sys.float_info.min, sys.float_info.max  # above 0, and finite
LIMITS = (
    ("demand", LEAST, MOST, "the demand is {:g}/s, for which no replica is needed; give one above 0, such as 9000/s"),
    ("peak", 1, 1000, "the peak is {:g} times the average; it is from 1x to 1000x"),
    ("headroom", 0, 10, "the headroom is {:g}; it is a share of the peak, such as 20%"),
    ("failures", 0, MOST, "failures is {}; it is how many replicas may be down, 0 or more"),
    ("utilisation", LEAST, 1, "utilisation is {:g}; it is a share above 0% and up to 100%, such as 90%"),
    ("quality", LEAST, 1, "quality is {:g}; it is a share above 0% and up to 100%, such as 90%"),
    ("machine_up", LEAST, 1, "machine-up is {:g}; it is a share above 0% and up to 100%, such as 90%"),
    ("price", 0, MOST, "the price is {:g} per hour; it is 0 or more"),
    ("availability", LEAST, 1, "the availability is {:g}; it is a share such as 99.95%"),
)


@dataclass(frozen=True)
class _Size:
    carry: int
    sized: int
    for_availability: int | None
    replicas: int
    slower: float  # work of a request at that size, against where the knee was measured
    parts: float  # replicas, if they could be bought in parts


def _size(knee: float, needs: Needs) -> _Size:
    """Enough to carry the peak with its headroom, even where some are down; more replicas may have colder caches."""
    peak, cache, replicas = needs.demand * needs.peak, _cache(needs), 0
    while True:
        slower = cache.slower(max(replicas, 1)) if cache else 1.0
        parts = peak * (1 + needs.headroom) * slower / knee
        if parts > MOST_REPLICAS:
            raise SpecError(
                f"{peak:g}/s at {knee:g}/s per replica take more than {MOST_REPLICAS:,}: check the demand and the knee"
            )
        sized = rounded_up(parts)
        for_availability = (
            None if needs.availability is None else machines_for(sized, needs.machine_up, needs.availability)
        )
        found = max(sized + needs.failures, for_availability or 0)
        if found <= replicas or cache is None:
            spare = max(found, replicas) - sized
            return _Size(
                rounded_up(peak * slower / knee), sized, for_availability, max(found, replicas), slower, parts + spare
            )
        replicas = found


def _cache(needs: Needs) -> Cache | None:
    found: Cache | None = None if needs.cache is None else read_term(needs.cache, {"cache": Cache}, "cache")
    return found


class _Money:
    """D / (3600 u X) and what is paid by use, of results that are accepted."""

    def __init__(self, system: System, needs: Needs) -> None:
        self.system, self.needs = system, needs
        interval = system.capacity_interval if system.capacity else system.knee_interval
        self.most = Estimate(system.capacity or system.knee, interval).ends

    def busy(self, replicas: float) -> Estimate | None:
        if self.needs.utilisation is not None:
            return Estimate(self.needs.utilisation)
        if self.system.beyond:
            return None
        low, most, high = self.most
        share = self.needs.demand / replicas
        return Estimate(share / most, (share / high, share / low) if low < high else None)

    def hourly(self, replicas: int, by_end: list[int], measured: bool) -> Estimate | None:
        if self.needs.price is None:
            return None
        bills = [self.needs.price * each + 3600 * self.needs.demand * self.by_use(each) for each in (*by_end, replicas)]
        return Estimate.spanning(bills[:-1], measured, bills[-1])

    def by_use(self, replicas: float) -> float:
        return self.system.by_use_at(self.needs.demand / replicas)

    def throughput_each(self, replicas: float) -> float:
        """u X: what a replica completes on average."""
        used = self.needs.utilisation
        return self.needs.demand / replicas if used is None else used * self.most[1]

    def per_million(self, replicas: float, attainment: Estimate) -> Estimate | None:
        if self.needs.price is None:
            return None
        each = 1e6 * (cost_each(self.needs.price, 1.0, self.throughput_each(replicas)) + self.by_use(replicas))
        low, value, high = attainment.ends
        if value <= 0:
            return None
        return Estimate(each / value, (each / high, each / max(low, 1e-12)) if attainment.interval else None)


def _day(rates: Floats, needs: Needs, knee: float, fixed: int) -> Day:
    slots = len(rates)
    lag = math.ceil(needs.scale_delay_s / SLOT_S)
    sizes = {
        rate: _size(knee, replace(needs, demand=rate, peak=1.0)).replicas for rate in set(rates.tolist()) if rate > 0
    }
    now = np.array([sizes.get(rate, 0) for rate in rates.tolist()])
    around = np.arange(slots)[:, None]  # a day comes after the other
    ahead = now[(around + np.arange(lag + 1)) % slots].max(axis=1)
    late = now[(around - np.arange(lag + 1)) % slots].min(axis=1)
    cache = _cache(needs)
    slower = np.array([cache.slower(max(each, 1)) if cache else 1.0 for each in late.tolist()])
    short = float(rates[late * knee < rates * slower * (1 - 1e-9)].sum() / rates.sum())
    per_slot = SLOT_S / 3600
    return Day(
        hours=tuple((np.arange(slots) * per_slot).tolist()),
        rate=tuple(rates.tolist()),
        ahead=tuple(ahead.tolist()),
        late=tuple(late.tolist()),
        fixed=fixed,
        fixed_hours=24.0 * fixed,
        ahead_hours=float(ahead.sum()) * per_slot,
        late_hours=float(now.sum()) * per_slot,
        short=short,
        saved=1 - float(ahead.sum()) * per_slot / (24.0 * fixed),
    )


def _levers(system: System, needs: Needs) -> Iterator[tuple[str, float, float, System, Needs]]:
    """What could be better by a tenth: its name, what it is, what it would be, and what is planned by then."""
    more, less = 1 + GAIN, 1 - GAIN
    if system.source == "by Little's law" and system.latency_s and system.in_flight:
        quicker = replace(system, latency_s=system.latency_s * less)
        yield "latency (s)", system.latency_s, system.latency_s * less, _scaled(quicker, 1 / less), needs
        larger = replace(system, in_flight=system.in_flight * more)
        yield "in flight per replica", system.in_flight, system.in_flight * more, _scaled(larger, more), needs
    elif not system.beyond:
        yield "knee (rate of a replica)", system.knee, system.knee * more, _scaled(system, more), needs
    if needs.price:
        yield PRICE, needs.price, needs.price * less, system, replace(needs, price=needs.price * less)
    if needs.utilisation:
        used = min(needs.utilisation * more, 1.0)
        yield "utilisation", needs.utilisation, used, system, replace(needs, utilisation=used)
    if needs.peak > 1:
        flat = 1 + (needs.peak - 1) * less
        yield "peak over average", needs.peak, flat, system, replace(needs, peak=flat)
    if needs.headroom:
        room = needs.headroom * less
        yield "headroom", needs.headroom, room, system, replace(needs, headroom=room)
    if needs.availability is not None and needs.machine_up < 1:
        up = 1 - (1 - needs.machine_up) * less
        yield "a machine's time down", 1 - needs.machine_up, 1 - up, system, replace(needs, machine_up=up)
    if needs.quality < 1:
        good = 1 - (1 - needs.quality) * less
        yield "answers that fail quality", 1 - needs.quality, 1 - good, system, replace(needs, quality=good)
    cache = _cache(needs)
    if cache and cache.saves and cache.hit < 1:
        hit = replace(cache, hit=1 - (1 - cache.hit) * less)
        faster = _scaled(system, (1 - cache.saves * cache.hit) / (1 - cache.saves * hit.hit))
        yield "cache misses", 1 - cache.hit, 1 - hit.hit, faster, replace(needs, cache=str(hit))


def _scaled(system: System, by: float) -> System:
    knee = system.knees.times(by)
    capacity = Estimate(system.capacity or 0.0, system.capacity_interval).times(by)
    return replace(
        system,
        knee=knee.value,
        knee_interval=knee.interval,
        capacity=system.capacity and capacity.value,
        capacity_interval=capacity.interval,
        loads=tuple(replace(load, rate=load.rate * by) for load in system.loads),
    )


def _gains(system: System, needs: Needs) -> Iterator[Gain]:
    """The most valuable first."""
    before = _cost(system, needs)
    found = []
    for name, now, then, better, asked in _levers(system, needs):
        after = _cost(better, asked)
        place = 2 if before[2] else 0
        worth, unrounded = (1 - float(after[i] or 0) / float(before[i] or 1) for i in (place, place + 1))
        found.append(Gain(name, now, then, after[0], after[2], worth, unrounded))
    yield from sorted(found, key=lambda gain: (-round(gain.worth, 6), -gain.unrounded))


def _cost(system: System, needs: Needs) -> tuple[int, float, float | None, float | None]:
    """Replicas and cost per million accepted, each also as if replicas could be bought in parts."""
    low, middle, _ = system.knees.ends
    size = _size(low if needs.by == "low" else middle, needs)
    there = _scaled(system, 1 / size.slower)
    attainment = there.attainment_at(needs.demand / size.replicas).times(needs.quality)
    money = _Money(there, needs)
    costs = [money.per_million(each, attainment) for each in (size.replicas, size.parts)]
    first, second = (None if each is None else each.value for each in costs)
    return size.replicas, size.parts, first, second


def _notes(system: System, needs: Needs, replicas: int) -> Iterator[str]:
    if needs.price is None:
        yield "there is no price, so nothing can be said of cost: give --price 3/h, of one replica"
    if needs.cache is None and system.hit_rate and replicas > system.measured_replicas:
        yield (
            f"the knee was measured with {system.measured_replicas} replica(s) and their caches: with more of them "
            "hits become rarer unless the router knows where prefixes are; --cache says what that costs"
        )
    by_demand = needs.demand / replicas / (system.capacity or system.knee)
    if needs.utilisation is not None and abs(needs.utilisation - by_demand) > 0.005:
        yield (
            f"the cost of a result goes by the utilisation that was given, {format_share(needs.utilisation)}; the "
            f"demand alone makes it {format_share(by_demand)}"
        )
    if not system.loads:
        yield "nothing was measured: the knee is as typed, and everything up to it is taken to be accepted"
