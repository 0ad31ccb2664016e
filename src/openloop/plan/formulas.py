"""The laws of capacity, in any direction. Times in seconds, rates per second, shares from 0 to 1."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openloop.distributions import Distribution
from openloop.errors import SpecError
from openloop.seeds import stream
from openloop.sim.recursions import static_batches
from openloop.sim.theory import batch_throughput

MOST_MACHINES = 5_000_000
DRAWS = 200_000
BATCHED = 1_000_000  # requests behind the p99 of a batch size
LARGEST_BATCH = BATCHED // 20


def rounded_up(amount: float) -> int:
    """Rounded up, forgiving what arithmetic adds: 8,000 / (40 / 0.12) are 24."""
    return max(math.ceil(amount * (1 - 1e-9)), 1)


def little(in_flight: float | None, rate: float | None, latency_s: float | None) -> tuple[float, float, float]:
    """L = lambda * W: the third from any two."""
    given = {"in flight": in_flight, "rate": rate, "latency": latency_s}
    for name, value in given.items():
        if value is not None and not 0 < value < math.inf:
            raise SpecError(f"the {name} is {value:g}; Little's law needs it above 0")
    if in_flight is None and rate is not None and latency_s is not None:
        return rate * latency_s, rate, latency_s
    if rate is None and in_flight is not None and latency_s is not None:
        return in_flight, in_flight / latency_s, latency_s
    if latency_s is None and in_flight is not None and rate is not None:
        return in_flight, rate, in_flight / rate
    raise SpecError("Little's law gives the third of three: give two of --in-flight, --rate and --latency")


def any_slow(each: float, n: int) -> float:
    """How often at least one of n is slow: 1 - (1 - each)**n, also where 1 - each would be 1."""
    return -math.expm1(n * math.log1p(-each))


def needed_share(slow: float, n: int) -> float:
    """How rarely each of n may be slow, so that a request is slow with this share: 1 - (1 - slow)**(1 / n)."""
    return -math.expm1(math.log1p(-slow) / n)


def fan_width(slow: float, each: float) -> int:
    """To how many a request may fan out: the largest n with 1 - (1 - each)**n <= slow."""
    if not (0 < each < 1 and 0 < slow < 1):
        raise SpecError("a width is found for shares between 0% and 100%, such as --p 1% and --slow 10%")
    n = int(math.log1p(-slow) / math.log1p(-each) * (1 + 1e-12))
    if n < 1:
        raise SpecError(f"one call is slow {each:.3g} of the time, which is more than {slow:.3g} already")
    return n


def all_up(up: float, machines: int) -> float:
    """r**M."""
    return up**machines


def some_up(needed: int, machines: int, up: float) -> float:
    """At least `needed` of so many machines are up, each with this chance, independently."""
    if up >= 1 or needed <= 0:
        return 1.0
    if needed > machines:
        return 0.0
    down = np.arange(machines - needed + 1)
    steps = np.log((machines - down[1:] + 1) / down[1:])  # from C(M, d - 1) to C(M, d)
    ways = np.concatenate([[0.0], np.cumsum(steps)])
    logs = ways + (machines - down) * math.log(up) + down * math.log1p(-up)
    return float(min(np.exp(logs).sum(), 1.0))


def machines_for(needed: int, up: float, availability: float) -> int:
    """The fewest machines of which at least `needed` are up with this availability."""
    if not 0 < up <= 1:
        raise SpecError(f"a machine that is up {up:.3g} of the time serves nobody; give a share such as 99.9%")
    if availability >= 1 > up:
        raise SpecError(
            "an availability of 100% cannot be reached with machines that fail, however many there are: ask for "
            f"99.999%, which takes {machines_for(needed, up, 0.99999):,} of which {needed:,} must be up"
        )
    top, spare = needed, 1
    while some_up(needed, top, up) < availability:
        top, spare = needed + spare, 2 * spare
        if top > MOST_MACHINES:
            raise SpecError(
                f"more than {MOST_MACHINES:,} machines that are up {up:.3g} of the time are needed: use better ones"
            )
    return _first(lambda machines: some_up(needed, machines, up) >= availability, needed, top)


def cost_each(price_per_hour: float, utilisation: float, most_per_s: float) -> float:
    """D / (3600 u X): of a token, or of a request, whichever X counts."""
    return price_per_hour / (3600 * utilisation * most_per_s)


def diluted(hit: float, before: int, after: int) -> float:
    """The hit rate when as many requests are spread over more replicas: 1 - (1 - h)**(before / after).

    A prefix that is used at Poisson moments is found if it was used within the lifetime of an entry, 1 - exp(-rate
    lifetime); at each of n replicas the rate is a part in n, and the lifetime stays. A router that knows where prefixes
    are does not dilute them.
    """
    return 1.0 if hit >= 1 else -math.expm1(math.log1p(-hit) * before / after)


@dataclass(frozen=True)
class Hedging:
    """A second copy of what takes longer than `after_s`; the first answer counts."""

    after_s: float
    extra: float  # copies per request
    p50_s: tuple[float, float]  # without and with
    p95_s: tuple[float, float]
    p99_s: tuple[float, float]
    mean_s: tuple[float, float]
    load: float | None  # of the servers, copies and all; None: not asked for


def hedging(service: Distribution, percentile: float, load: float | None = None, seed: int = 0) -> Hedging:
    """By drawing: an answer comes at min(first, after + second). Copies are not cancelled, so they are load."""
    rng = stream(seed, "hedging")
    first, second = service.draw(DRAWS, rng), service.draw(DRAWS, rng)
    after = float(np.quantile(first, percentile))
    late = first > after
    both = np.where(late, np.minimum(first, after + second), first)
    p50, p95, p99 = ((float(np.quantile(first, q)), float(np.quantile(both, q))) for q in (0.5, 0.95, 0.99))
    extra = float(late.mean())
    copies = float(second[late].sum())
    more = load if load is None or not copies else load * (1 + copies / float(first.sum()))
    return Hedging(after, extra, p50, p95, p99, (float(first.mean()), float(both.mean())), more)


def batch_p99(size: int, fixed_s: float, each_s: float, rate: float) -> tuple[float, float]:
    """By drawing: Poisson arrivals wait until their batch is full and the one before is done. The p99 of a million of
    them, and the worst of ten parts of these."""
    if not 0 < rate < math.inf:
        raise SpecError(f"--rate is {rate:g}/s; requests come at a rate above 0")
    if rate >= batch_throughput(size, fixed_s, each_s):
        return math.inf, math.inf
    if size > LARGEST_BATCH:
        raise SpecError(f"batches of {size:,} are more than are simulated, {LARGEST_BATCH:,}: leave out --rate")
    due = np.cumsum(stream(0, "batch").exponential(1 / rate, BATCHED))
    waits = static_batches(due, size, fixed_s, each_s, math.inf) - due
    parts = np.quantile(waits.reshape(10, -1), 0.99, axis=1)
    return float(np.quantile(waits, 0.99)), float(parts.max())


def batch_size(fixed_s: float, each_s: float, within_s: float, rate: float | None = None) -> int:
    """The largest batch whose own time keeps a bound; with a rate, whose p99 does, filling and queue and all."""
    if fixed_s + each_s > within_s:
        least = f"{1000 * (fixed_s + each_s):.4g} ms"
        raise SpecError(f"even a batch of one takes {least}, over the bound of {1000 * within_s:.4g} ms")
    if rate is not None:
        return _batch_at(rate, fixed_s, each_s, within_s)
    if each_s <= 0:
        raise SpecError("a batch whose requests take no time has no largest size: give --each above 0")
    return int((within_s - fixed_s) / each_s * (1 + 1e-12))


def _batch_at(rate: float, fixed_s: float, each_s: float, within_s: float) -> int:
    """The p99 falls with the size, as the queue before a batch does, and then rises, as its filling does."""

    def worst(size: int) -> float:
        return batch_p99(size, fixed_s, each_s, rate)[1]

    if rate * each_s >= 1:
        raise SpecError(f"{rate:g}/s is more than batches of any size can do, {1 / each_s:.4g}/s: lower --rate")
    low = high = int(rate * fixed_s / (1 - rate * each_s)) + 1  # the smallest that can do the rate
    while worst(2 * high) < worst(high):
        high *= 2
    best = _first(lambda size: worst(size) <= worst(size + 1), low, 2 * high)
    if worst(best) > within_s:
        raise SpecError(
            f"no batch size keeps a p99 of {1000 * within_s:.4g} ms at {rate:g}/s: the shortest is "
            f"{1000 * worst(best):.3g} ms, with batches of {best:,}; lower --rate, or allow more with --within"
        )
    filled = int(1.02 * (within_s - fixed_s + 1 / rate) / (each_s + 1 / rate)) + 2  # fills too slowly for sure
    return _first(lambda size: worst(size + 1) > within_s, best, max(best, filled))


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first from low on that holds, if all after it do; high, if none before it does."""
    return low + bisect_left(range(low, high), True, key=holds)
