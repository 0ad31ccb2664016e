"""Where a request goes: pure policies over what is known of the replicas.

A policy is one function over plain rows: the simulator compiles it into its loop, and whoever stands in front of real
replicas calls it as it is. `choose(ask, views, memory, knobs, now)` gives the place of a replica, or -1: nobody should
get it. `memory` is the policy's own, whole numbers that it may change; `knobs` are its parameters.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from openloop.terms import Term, read_term

__all__ = ["ASK", "MEMORY", "ROUTING", "VIEW", "LeastRequests", "Policy", "RoundRobin", "read_routing"]

ASK = np.dtype([("number", np.int64), ("session", np.int64), ("prompt", np.int64), ("output", np.int64)], align=True)
VIEW = np.dtype([("open", np.int64), ("requests", np.int64), ("waiting", np.int64), ("tokens", np.int64)], align=True)
MEMORY = 64  # whole numbers that a policy may keep


@dataclass(frozen=True)
class Policy(Term):
    choose: ClassVar[Any]  # a function, as above


def _round_robin(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    for step in range(len(views)):
        place = (memory[0] + step) % len(views)
        if views[place].open:
            memory[0] = place + 1
            return int(place)
    return -1


def _least_requests(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    best = -1
    for place in range(len(views)):
        if views[place].open and (best < 0 or views[place].requests < views[best].requests):
            best = place
    return best


@dataclass(frozen=True)
class RoundRobin(Policy):
    """In turn."""

    name = "round-robin"
    choose = staticmethod(_round_robin)


@dataclass(frozen=True)
class LeastRequests(Policy):
    """To whom has the fewest requests, waiting or served; of equals to the first."""

    name = "least-requests"
    choose = staticmethod(_least_requests)


_POLICIES: tuple[type[Policy], ...] = (RoundRobin, LeastRequests)
ROUTING = {kind.name: kind for kind in _POLICIES}


def read_routing(text: str) -> Policy:
    found: Policy = read_term(text, ROUTING, "routing policy")
    return found
