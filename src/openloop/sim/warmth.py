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
from openloop.records import Run, ints
from openloop.sim.events import plan_rows
from openloop.sim.fleet import FleetSpec, flags_of, prices_in, simulate_fleet
from openloop.slo import Objectives
from openloop.units import NS_PER_S, to_ns
from openloop.workload import Demand, Warming, Workload, priming, salted, steady
from openloop.workload.warmth import Hot, window_s

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
    seconds = window_s(seconds, workload.lasts_s(arrivals), warming)
    demand = workload.demand(arrivals, seconds + settling_s, seed)
    salts = np.array([warming.salt(n, due, seconds) for n, due in enumerate(_expected_due(demand).tolist())])
    primes = priming(demand) if warming.primes else None
    planned = _Planned(workload.classes, salted(demand, salts))
    how = planned, arrivals, settling_s + seconds, seed, objectives
    facts = {"cache_warmth": warming.state, "events": warming.events(seconds), **facts}
    if not settling_s:
        return simulate_fleet(fleet, *how, primes=primes, **facts)
    plan_rows(fleet.plan(), fleet.most, seconds)
    calm = msgspec.structs.replace(fleet, events=())  # until it is steady, and its events count from then on
    run = simulate_fleet(calm, *how, primes=primes, **facts)
    opened = _opened(run, settling_s, seconds)
    begin, _ = window = opened["window_ns"]
    if fleet.events:
        later = tuple(str(dataclasses.replace(each, at=each.at + begin / NS_PER_S)) for each in fleet.plan())
        run = simulate_fleet(msgspec.structs.replace(fleet, events=later), *how, primes=primes, **facts)
        opened["engine_flags"] = flags_of(fleet)
    if run.manifest.stays and not facts.get("prices"):
        opened["prices"] = prices_in(fleet, run.manifest.stays, window)
    return dataclasses.replace(run, manifest=msgspec.structs.replace(run.manifest, **opened))


def _expected_due(demand: Demand) -> Floats:
    """When each request is due; of a later turn, if answers took no time."""
    due = demand.due_s.copy()
    if demand.after is not None and demand.think_s is not None:
        while np.any(mine := np.isnan(due) & ~np.isnan(due[demand.after])):
            due[mine] = due[demand.after[mine]] + np.nan_to_num(demand.think_s[mine])
    return np.nan_to_num(due)


def _opened(run: Run, settling_s: float, seconds: float) -> dict[str, Any]:
    """What the manifest says of a run that is measured from when its hit rate was steady."""
    names = ("ended_ns", "cached_tokens", "prompt_tokens")
    columns = [np.concatenate([ints(batch, name) for batch in run.batches(names)]) for name in names]
    ended, cached, prompt = columns
    mine = np.flatnonzero(ended >= 0)
    mine = mine[np.argsort(ended[mine])]
    moments = np.linspace(0, to_ns(settling_s), LOOKS + 1)[1:].astype(np.int64)
    hits = np.stack([cached[mine], prompt[mine]], axis=1).tolist()
    found = next((at for at in moments if steady(hits[: np.searchsorted(ended[mine], at)])), None)
    at = int(moments[-1] if found is None else found)
    told = f"the hit rate was {'steady' if found is not None else 'not steady yet'} after {at / 1e9:.0f} s"
    return {
        "window_ns": (at, at + to_ns(seconds)),
        "cache_warmth": run.manifest.cache_warmth if found is not None else None,
        "notes": (*run.manifest.notes, f"{told}, and the window begins there"),
    }
