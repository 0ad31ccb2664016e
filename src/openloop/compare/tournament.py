"""Routing policies on the same requests: who gets the most accepted, and what each accepted result costs.

Every policy is given the same demand, several times with another seed, so differences between two of them are of
pairs: chance that is common to both does not count.
"""

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import msgspec
import numpy as np

from openloop.arrays import Floats
from openloop.arrivals import Arrivals
from openloop.errors import SpecError
from openloop.routing import ROUTING, read_routing
from openloop.score import score
from openloop.score.quantiles import student_t
from openloop.sim.fleet import FleetSpec, simulate_fleet
from openloop.sim.warmth import simulate_warm
from openloop.slo import Objectives
from openloop.workload import Demand, Warming, Workload

ALONE_S = 3.0
EXACT = 12  # decimals: beyond them a difference is of rounding
_SCORED = ("goodput_rps", "attainment", "cost_per_accepted", "hit_rate", "ttft_mean_s", "ttft_p99_s", "shed")


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds, and its 95% interval: NaN where all seeds ask the same, and nothing tells of chance."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Floats, same: bool = False) -> "SeedMean | None":
        if np.isnan(values).any():
            return None
        mean, count = round(float(values.mean()), EXACT), len(values)
        if same:
            return SeedMean(mean, math.nan, math.nan)
        half = student_t(count) * float(values.std(ddof=1)) / math.sqrt(count)
        return SeedMean(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Standing:
    """How one policy did. `behind` is its goodput less that of the first, pair by pair; `tied`: that may be chance, and
    None where all seeds asked the same and nothing tells."""

    policy: str
    rank: int
    rank_by_cost: int | None
    goodput_rps: SeedMean
    behind_rps: SeedMean
    tied: bool | None
    attainment: SeedMean
    cost_per_accepted: SeedMean | None
    hit_rate: SeedMean | None
    ttft_mean_s: SeedMean | None
    ttft_p99_s: SeedMean | None
    shed: SeedMean


def read_policies(text: str) -> list[str]:
    """`all`, or names with their parameters, apart by commas."""
    if text.strip() == "all":
        return [name for name in ROUTING if name != "own"]
    found: list[str] = []
    for part in re.split(r"[,;\s]+", text.strip()):
        if found and re.match(r"\w+=", part):  # a further parameter of the one before
            found[-1] += f",{part}"
        else:
            found.append(part)
    chosen = [str(read_routing(each)) for each in found]
    if len(set(chosen)) < len(chosen):
        raise SpecError(f"a policy stands twice in {text!r}; keep one")
    return chosen


def tournament(
    fleet: FleetSpec,
    policies: Sequence[str],
    workload: Workload,
    arrivals: Arrivals | None,
    seconds: float,
    objectives: Objectives,
    *,
    seeds: Sequence[int] = range(5),
    warming: Warming | None = None,
    processes: int | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> list[Standing]:
    """All policies on the same requests, the one with the highest goodput first; `tell` hears how many are done."""
    if len(seeds) < 2:
        raise SpecError("one seed says nothing about chance; a tournament takes at least two")
    if len(policies) < 2:
        raise SpecError("a tournament takes at least two policies, such as round-robin,prefix-aware, or all")
    rest = workload, arrivals, seconds, objectives, warming
    calls = [(msgspec.structs.replace(fleet, routing=policy), *rest, seed) for policy in policies for seed in seeds]
    found: list[Any] = []
    for scored in _each(calls, os.cpu_count() or 1 if processes is None else processes):
        found.append(scored)
        if tell is not None:
            tell(len(found), len(calls))
    same = _same_requests(*(next(workload.parts(arrivals, seconds, seed)) for seed in seeds[:2]))
    return _ranked(policies, np.array(found, float).reshape(len(policies), len(seeds), len(_SCORED)), same)


def _same_requests(one: Demand, other: Demand) -> bool:
    """Whether another seed asks nothing else: a trace brings its own arrivals and lengths."""
    first, second = (
        (
            *(np.nan_to_num(times) for times in (each.due_s, 0.0 if each.think_s is None else each.think_s)),
            *(each.output_tokens, each.pieces.tokens, each.pieces.identity),
        )
        for each in (one, other)
    )
    return all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


def _each(calls: Sequence[Any], processes: int) -> Iterable[tuple[float, ...]]:
    """In their order. The first alone: what it compiles, others find on disk; more processes only for long work."""
    yield _play(*calls[0])
    began, done = time.monotonic(), 1
    while done < len(calls) and (processes == 1 or time.monotonic() - began < ALONE_S):
        yield _play(*calls[done])
        done += 1
    if done == len(calls):
        return
    with ProcessPoolExecutor(min(processes, len(calls) - done), get_context("spawn")) as pool:
        try:
            yield from pool.map(_play, *zip(*calls[done:], strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _play(
    fleet: FleetSpec,
    workload: Workload,
    arrivals: Arrivals | None,
    seconds: float,
    objectives: Objectives,
    warming: Warming | None,
    seed: int,
) -> tuple[float, ...]:
    how = workload, arrivals, seconds, seed, objectives
    found = score(simulate_warm(fleet, warming, *how) if warming else simulate_fleet(fleet, *how), objectives)
    return (
        found.goodput_rps,
        found.attainment,
        math.nan if found.cost_per_accepted is None else found.cost_per_accepted,
        found.cache_hit_rate,
        math.nan if found.ttft_s is None else found.ttft_s.mean,
        math.nan if found.ttft_s is None else found.ttft_s.p99,
        found.statuses["shed"] / max(found.requests, 1),
    )


def _ranked(policies: Sequence[str], scored: Floats, same: bool) -> list[Standing]:
    """`scored` is by policy, seed and figure; `same`: all seeds asked the same."""
    goodput, cost = scored[:, :, 0], np.round(scored[:, :, 2].mean(axis=1), EXACT)
    order = np.argsort(-np.round(goodput.mean(axis=1), EXACT), kind="stable")
    by_cost = np.argsort(cost, kind="stable").tolist()
    standings = []
    for rank, place in enumerate(order.tolist(), 1):
        behind = SeedMean.of(goodput[place] - goodput[order[0]], same)
        each = {name: SeedMean.of(scored[place, :, n], same) for n, name in enumerate(_SCORED)}
        assert behind is not None
        standings.append(
            Standing(
                policy=policies[place],
                rank=rank,
                rank_by_cost=None if np.isnan(cost[place]) else 1 + by_cost.index(place),
                behind_rps=behind,
                tied=None if same else not behind.high < 0,
                **each,  # type: ignore[arg-type]
            )
        )
    return standings
