"""The policies that there are."""

from dataclasses import dataclass
from typing import Any

from openloop.routing.policy import Policy, least, settle
from openloop.routing.rows import NOBODY
from openloop.terms import read_term

__all__ = ["ROUTING", "LeastRequests", "RoundRobin", "read_routing"]


def _round_robin(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    for step in range(len(views)):
        place = (memory[0] + step) % len(views)
        if views[place].open:
            memory[0] = place + 1
            return settle(views, place, knobs)
    return NOBODY


def _least_requests(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    return settle(views, least(views), knobs)


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
