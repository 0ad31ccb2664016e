"""What a run is made of, and what is known of it before it begins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from openloop.arrivals import Arrivals, Constant
from openloop.errors import SpecError
from openloop.load.address import Place
from openloop.load.targets import HttpTarget, Target
from openloop.load.worker import NEVER
from openloop.persistence import Hedge, Repair, Retry
from openloop.quality import Gating
from openloop.records import Manifest
from openloop.workload import Demand, Scale, Warming, Words, Workload

MOST_IN_CLOSED_LOOP = 1_000_000


@dataclass(frozen=True)
class Load:
    """Everything that a run is made of."""

    sites: Sequence[tuple[Place, Target]]  # asked in turn
    workload: Workload
    arrivals: Arrivals | None  # of users; None: the workload says when it is due
    seconds: float
    seed: int = 0
    words: Words | None = None  # that prompts are made of
    timeout_s: float = 120.0
    drain_s: float = 30.0
    workers: int = 1
    connections: int | None = None  # at most so many, as an experiment
    users: int | None = None  # a closed loop of so many in place of the schedule, to show what it hides
    retry: Retry | None = None
    hedge: Hedge | None = None
    gating: Gating | None = None  # that outputs are graded by meanwhile
    repair: Repair | None = None  # of outputs that fail
    keep_texts: bool = False
    warming: Warming | None = None  # what caches are to know beforehand
    cache_salt: bool = False  # salts go where the API has a place for them, and not before the prompt
    most_requests: int | None = None
    most_spend: float | None = None
    metrics: dict[str, str] | None = None  # read what the servers say of themselves, asking with these headers
    facts: dict[str, Any] = field(default_factory=dict)  # for the manifest


def manifest_of(load: Load, demand: Demand, end_ns: int) -> Manifest:
    """What is known of a run before it begins."""
    seconds = end_ns / 1e9
    facts: dict[str, Any] = {"source": "load", "arrivals": f"closed:users={load.users}"}
    if not load.users:
        facts["arrivals"] = "as recorded" if load.arrivals is None else str(load.arrivals)
        facts["arrivals_dispersion"] = 0.0
        if not demand.with_answers:
            facts["offered_rps"] = int(np.sum(~np.isnan(demand.due_s))) / seconds
    if load.arrivals is not None and not load.users and not demand.with_answers:
        facts |= {
            "arrivals_cv": load.arrivals.cv,
            "arrivals_dispersion": load.arrivals.dispersion(seconds),
            "offered_rps": load.arrivals.expected(seconds) / seconds,
        }
    facts |= {
        "seed": load.seed,
        "workload": str(load.workload),
        "lengths": demand.lengths + _made_of(load.words),
        "retry_policy": "; ".join(str(each) for each in (load.retry, load.hedge, load.repair) if each) or None,
        "quality_gate": str(load.gating) if load.gating else None,
        "replicas": len(load.sites) if len(load.sites) > 1 else None,
        "window_ns": (0, end_ns),
        "cache_warmth": load.warming.state if load.warming else None,
        "events": load.warming.events(load.seconds) if load.warming else (),
        "started_at": datetime.now(UTC).isoformat(),
    }
    events = (*facts["events"], *load.facts.get("events", ()))
    return Manifest(**{**facts, **load.facts, "events": events})


def share_of(total: int | None, number: int, workers: int) -> int:
    """Of a limit that workers have together; 0: there is none."""
    if not total:
        return 0
    if total < workers:
        raise SpecError(f"{total} cannot be shared by {workers} workers; use as few workers")
    return total // workers + (number < total % workers)


def demand_of(load: Load, seconds: float) -> Demand:
    if not load.users:
        return load.workload.demand(load.arrivals, seconds, load.seed)
    found = load.workload.demand(Constant(MOST_IN_CLOSED_LOOP / load.seconds), load.seconds, load.seed)
    if found.with_answers:
        raise SpecError("a closed loop has no conversations; use a schedule, or a workload without turns")
    return found


def due_ns_of(load: Load, demand: Demand, end_ns: int) -> list[int]:
    """When each request is due: NEVER where that follows from an answer; in a closed loop, at the earliest."""
    if load.users:
        return [0] * len(demand)
    known = np.minimum(np.rint(np.nan_to_num(demand.due_s) * 1e9).astype(np.int64), end_ns - 1)
    due: list[int] = np.where(np.isnan(demand.due_s), NEVER, known).tolist()
    return due


def pages_of(load: Load) -> dict[str, Place]:
    """Whom to ask for figures: each server once."""
    return {place.host: place for place, target in load.sites if isinstance(target, HttpTarget)}


def _made_of(words: Words | None) -> str:
    scale = words.scale if words else Scale()
    if (scale.per_word, scale.overhead) == (1.0, 0.0):
        return ""
    return f"; a prompt is words of {scale.per_word:.4g} tokens and {scale.overhead:.3g} more"
