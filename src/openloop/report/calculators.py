"""Small laws, worked out in any direction, each with a picture."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from openloop.arrays import Floats
from openloop.distributions import Distribution
from openloop.errors import SpecError
from openloop.plan.formulas import (
    LARGEST_BATCH,
    any_slow,
    batch_p99,
    batch_size,
    fan_width,
    hedging,
    little,
    needed_share,
    rounded_up,
)
from openloop.report.marks import Axis, Curve, Figure, Mark, Panel, Rule
from openloop.sim.theory import batch_throughput
from openloop.spec import plain
from openloop.units import format_rate, format_seconds, format_share

MOST = 10**12


@dataclass(frozen=True)
class Answer:
    lines: list[str]
    data: dict[str, Any]
    figure: Figure


def answer_fanout(n: int | None, each: float | None, slow: float | None) -> Answer:
    """1 - (1 - p)^n, for whichever of the three is not given."""
    if [n, each, slow].count(None) != 1:
        raise SpecError("give two of --n, --p and --slow: the third follows")
    _check_count("--n", n, "a request fans out to at least one backend")
    for name, value in (("--p", each), ("--slow", slow)):
        if value is not None and not 0 < value < 1:
            raise SpecError(f"{name} is {value:g}; it is a share between 0% and 100%, such as 1%")
    if each is None and n is not None and slow is not None:
        each = needed_share(slow, n)
    if n is None and slow is not None and each is not None:
        n = fan_width(slow, each)
    assert n is not None
    assert each is not None
    found = any_slow(each, n)
    lines = [f"{n:,} backends, each slow {_share(each)} of the time: a request is slow {_share(found)} of the time"]
    if slow is not None:
        lines.append(f"so that at most {_share(slow)} of requests are slow")
    better = any_slow(each / 10, n)
    lines.append(f"if each were slow a tenth as often: {_share(better)}, {found / better:.1f} times fewer")
    widths = np.unique(np.geomspace(1, max(4 * n, 10), 80).astype(int))
    marks: list[Mark] = [
        Curve(name, widths.astype(float), np.array([any_slow(p, int(w)) for w in widths]), color)
        for name, p, color in ((f"{_share(each)} each", each, "red"), (f"{_share(each / 10)} each", each / 10, "blue"))
    ]
    marks.append(Rule(float(n), f"n = {n:,}", "x"))
    figure = Figure(
        "fanout",
        "A rare slow backend is a common slow request",
        Axis("backends asked", "count", "log"),
        [Panel(Axis("slow requests", "share", low=0.0, high=1.0), marks)],
    )
    return Answer(lines, {"n": n, "p": each, "slow": found, "slow_if_p_is_a_tenth": better}, figure)


def answer_little(
    in_flight: float | None,
    rate: float | None,
    latency_s: float | None,
    per_replica: float | None,
    failures: int = 0,
) -> Answer:
    """L = lambda W, and how many replicas hold L."""
    held, rate, latency_s = little(in_flight, rate, latency_s)
    lines = [f"{format_rate(rate)} that stay {format_seconds(latency_s)} each are {held:,.4g} in flight"]
    data: dict[str, Any] = {"in_flight": held, "rate": rate, "latency_s": latency_s}
    if per_replica is not None:
        if not per_replica > 0:
            raise SpecError(f"--per-replica is {per_replica:g}; a replica holds at least one request")
        replicas = rounded_up(held / per_replica)
        data |= {"per_replica": per_replica, "replicas": replicas, "replicas_with_failures": replicas + failures}
        lines.append(f"at {per_replica:g} per replica: {replicas:,} replicas at least")
        if failures:
            lines.append(f"{replicas + failures:,} so that it holds with {failures} down")
    lines.append("twice the rate takes twice as many in flight, or half the latency")
    rates = np.linspace(0.0, 2 * rate, 41)
    marks: list[Mark] = [
        Curve(name, rates, rates * w, color)
        for name, w, color in (
            (format_seconds(latency_s), latency_s, "blue"),
            (f"half of it, {format_seconds(latency_s / 2)}", latency_s / 2, "green"),
        )
    ]
    marks += [Rule(rate, format_rate(rate), "x"), Rule(held, f"{held:,.4g} in flight", "y")]
    figure = Figure(
        "little",
        "In flight = rate x latency",
        Axis("rate", "rate", low=0.0),
        [Panel(Axis("requests in flight", "count", low=0.0), marks)],
    )
    return Answer(lines, data, figure)


def answer_hedge(service: Distribution, after: float, load: float | None = None) -> Answer:
    """What a second copy gains, and the load that it adds."""
    if not 0 < after < 1:
        raise SpecError(f"--after is the percentile {100 * after:g}; it lies between p0 and p100, such as p95")
    if load is not None and not 0 <= load < 1:
        raise SpecError(f"--load is {load:g}; it is a share below 100%")
    found = hedging(service, after, load)
    lines = [
        f"a copy goes out after {format_seconds(found.after_s)} (p{100 * after:g}): {_share(found.extra)} more requests"
    ]
    for name in ("p50_s", "p95_s", "p99_s", "mean_s"):
        before, then = getattr(found, name)
        saved = f"{1 - then / before if before else 0:.0%} less"
        lines.append(f"{name.removesuffix('_s'):>5}: {format_seconds(before)} -> {format_seconds(then)}, {saved}")
    if load is not None and found.load is not None:
        full = "; the servers cannot do that, and copies make a queue of it" if found.load >= 1 else ""
        lines.append(
            f"servers that were busy {_share(load)} of the time are busy {_share(min(found.load, 9.99))}{full}"
        )
    lines.append("copies are not cancelled, and nobody waits for a server: openloop queue 'hedged:...' has queues")
    places = np.linspace(0.5, 0.995, 34)
    tails = [hedging(service, float(each)) for each in places]
    extra = np.array([each.extra for each in tails])
    p99 = np.array([each.p99_s[1] for each in tails])
    marks: list[Mark] = [Curve("p99, hedged", extra, p99, "blue"), Rule(found.p99_s[0], "p99 without", "y", "red")]
    figure = Figure(
        "hedge",
        "A shorter tail for a little more load",
        Axis("further requests", "share", low=0.0),
        [Panel(Axis("p99 latency", "seconds", low=0.0), [*marks, Rule(found.extra, f"after p{100 * after:g}", "x")])],
    )
    return Answer(lines, plain(found), figure)


def answer_batch(
    fixed_s: float, each_s: float, size: int | None, within_s: float | None, rate: float | None = None
) -> Answer:
    """B / (c0 + c1 B) at a size, or at the largest that keeps a bound."""
    if (size is None) == (within_s is None):
        raise SpecError("give --size, or --within a bound on latency: the other follows")
    if not fixed_s + each_s > 0:
        raise SpecError("a batch that takes no time has no throughput; give --fixed and --each")
    _check_count("--size", size, "a batch has at least one request")
    chosen = size if size is not None else batch_size(fixed_s, each_s, within_s or 0.0, rate)
    most = batch_throughput(chosen, fixed_s, each_s)
    limit = 1 / each_s if each_s else np.inf
    alone = fixed_s + each_s * chosen
    lines = [
        f"batches of {chosen:,} take {format_seconds(alone)} and do {format_rate(most)}, "
        f"{format_share(most / limit) if np.isfinite(limit) else '0%'} of the most there is ({format_rate(limit)})"
    ]
    p99, worst = (None, None) if rate is None else batch_p99(chosen, fixed_s, each_s, rate)
    if rate is None or p99 is None or worst is None:
        lines.append("filling a batch and waiting for the one before are not in it: give --rate for the p99 with them")
    else:
        lines.append(
            f"{format_rate(rate)} is more than that: the queue grows without end; larger batches do more"
            if np.isinf(p99)
            else f"p99 {format_seconds(p99)} at {format_rate(rate)}, filling and waiting and all: a million Poisson "
            f"arrivals, simulated ({format_seconds(worst)} in the worst tenth of the time)"
        )
    data = {"size": chosen, "throughput": most, "limit": limit, "batch_s": alone, "p99_s": p99, "worst_p99_s": worst}
    sizes = np.unique(np.geomspace(1, max(4 * chosen, 64), 60 if rate is None else 30).astype(int))
    x = sizes.astype(float)
    speed = Curve("throughput", x, np.array([batch_throughput(int(b), fixed_s, each_s) for b in sizes]), "green")
    waits = _batch_latency(x, fixed_s, each_s, rate)
    bound = [] if within_s is None else [Rule(within_s, "bound", "y")]
    figure = Figure(
        "batch",
        "Throughput is bought with latency",
        Axis("batch size", "count", "log"),
        [
            Panel(Axis("throughput", "rate", low=0.0), [speed, Rule(float(chosen), f"B = {chosen:,}", "x")]),
            Panel(Axis("latency", "seconds", low=0.0), [waits, *bound], 150),
        ],
    )
    return Answer(lines, plain(data), figure)


def _batch_latency(sizes: Floats, fixed_s: float, each_s: float, rate: float | None) -> Curve:
    """The time of a batch over its size; with a rate the p99, of sizes that can do it."""
    if rate is None:
        return Curve("time of a batch", sizes, fixed_s + each_s * sizes, "red")
    able = sizes[(rate * (fixed_s + each_s * sizes) < sizes) & (sizes <= LARGEST_BATCH)]
    return Curve("p99", able, np.array([batch_p99(int(b), fixed_s, each_s, rate)[0] for b in able]), "red")


def _check_count(flag: str, count: int | None, least: str) -> None:
    if count is not None and not 1 <= count <= MOST:
        raise SpecError(f"{flag} is {count}; {least}, and up to {MOST:,} are looked at")


def _share(value: float) -> str:
    """Rare things keep their figures."""
    return f"{100 * value:.3g}%" if value < 0.1 else f"{100 * value:.1f}%"
