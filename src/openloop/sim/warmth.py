"""A fleet whose caches are brought into a state before it is measured, as a live server's are."""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from openloop.arrays import Floats
from openloop.arrivals import Arrivals
from openloop.records import Run, TimedEvent, ints
from openloop.sim.fleet import FleetSpec, simulate_fleet
from openloop.slo import Objectives
from openloop.units import to_ns
from openloop.workload import Demand, Warming, Workload, priming, salted, steady, with_priming
from openloop.workload.warmth import Hot

LOOKS = 40  # at the hit rate, while it settles


@dataclass(frozen=True)
class _Planned(Workload):
    """A workload whose requests are known beforehand."""

    planned: Demand | None = None

    def parts(self, *_: Any) -> Iterator[Demand]:
        assert self.planned is not None
        yield self.planned

    def lasts_s(self, *_: Any) -> float:
        return math.inf


def simulate_warm(
    fleet: FleetSpec,
    warming: Warming,
    workload: Workload,
    arrivals: Arrivals | None,
    seconds: float,
    seed: int = 0,
    objectives: Objectives | None = None,
    **facts: Any,
) -> Run:
    """As `simulate_fleet`, after a pass over what prompts have in common, and with prefixes that change as it says."""
    settling_s = warming.most if isinstance(warming, Hot) else 0.0
    demand = workload.demand(arrivals, seconds + settling_s, seed)
    salts = np.array([warming.salt(n, due, seconds) for n, due in enumerate(_expected_due(demand).tolist())])
    lead_s = 0.0
    if warming.primes and len(primes := _every_replica(priming(demand), fleet)):
        due_s, lead_s = _spread(primes, fleet)
        demand = with_priming(demand, primes, due_s, lead_s)
        salts = np.concatenate([np.zeros(len(primes), np.int64), salts])
    planned = _Planned(workload.classes, salted(demand, salts))
    events = [(event.at_ns + to_ns(lead_s), event.kind) for event in warming.events(seconds)]
    run = simulate_fleet(
        fleet,
        planned,
        arrivals,
        lead_s + settling_s + seconds,
        seed,
        objectives,
        **{
            "window_ns": (to_ns(lead_s), to_ns(lead_s + settling_s + seconds)),
            "cache_warmth": warming.state,
            "events": tuple(TimedEvent(at_ns=at, kind=kind) for at, kind in events),
            **facts,
        },
    )
    return _opened(run, lead_s, settling_s, seconds) if settling_s else run


def _every_replica(primes: Demand, fleet: FleetSpec) -> Demand:
    """As often as there are replicas, one after the other: each gets one in turn."""
    return primes.take(np.repeat(np.arange(len(primes)), fleet.size))


def _spread(primes: Demand, fleet: FleetSpec) -> tuple[Floats, float]:
    """When each is due, so that they do not crowd, and when the last is surely answered."""
    step = fleet.step_time()
    takes = np.array([step.prefill(int(tokens)) + step.decode(1, int(tokens)) for tokens in primes.prompt_tokens])
    due = np.concatenate([[0.0], np.cumsum(takes[:-1])])
    return due, float(due[-1] + 2 * takes.max() + 1.0)


def _expected_due(demand: Demand) -> Floats:
    """When each request is due; of a later turn, if answers took no time."""
    due = demand.due_s.copy()
    if demand.after is not None and demand.think_s is not None:
        while np.any(mine := np.isnan(due) & ~np.isnan(due[demand.after])):
            due[mine] = due[demand.after[mine]] + np.nan_to_num(demand.think_s[mine])
    return np.nan_to_num(due)


def _opened(run: Run, lead_s: float, settling_s: float, seconds: float) -> Run:
    """The run, measured from when its hit rate was steady."""
    names = ("ended_ns", "scheduled_ns", "cached_tokens", "prompt_tokens")
    columns = [np.concatenate([ints(batch, name) for batch in run.batches(names)]) for name in names]
    ended, due, cached, prompt = columns
    mine = np.flatnonzero((due >= to_ns(lead_s)) & (ended >= 0))
    mine = mine[np.argsort(ended[mine])]
    moments = to_ns(lead_s) + np.linspace(0, to_ns(settling_s), LOOKS + 1)[1:].astype(np.int64)
    hits = np.stack([cached[mine], prompt[mine]], axis=1).tolist()
    found = next((at for at in moments if steady(hits[: np.searchsorted(ended[mine], at)])), None)
    at = int(moments[-1] if found is None else found)
    manifest = msgspec.structs.replace(
        run.manifest,
        window_ns=(at, at + to_ns(seconds)),
        cache_warmth=run.manifest.cache_warmth if found is not None else None,
        notes=(
            *run.manifest.notes,
            f"the hit rate was {'steady' if found is not None else 'not steady yet'} after "
            f"{at / 1e9 - lead_s:.0f} s, and the window begins there",
        ),
    )
    return dataclasses.replace(run, manifest=manifest)
