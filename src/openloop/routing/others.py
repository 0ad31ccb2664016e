"""The deciding rules of routers that others run, written from their documentation; each says of which version."""

import math
from dataclasses import dataclass
from typing import Any

from openloop.routing.policy import Balanced, chance, settle
from openloop.routing.rows import NOBODY
from openloop.terms import COUNT, NUMBER, SHARE, param

__all__ = ["Dynamo", "LlmD", "Sglang"]


def _sglang(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    idlest, busiest, best, smallest = NOBODY, NOBODY, NOBODY, NOBODY
    for place in range(len(views)):
        v = views[place]
        if v.open:
            idlest = place if idlest < 0 or v.sent < views[idlest].sent else idlest
            busiest = place if busiest < 0 or v.sent > views[busiest].sent else busiest
            best = place if best < 0 or v.cached > views[best].cached else best
            smallest = place if smallest < 0 or v.known < views[smallest].known else smallest
    if best < 0:
        return NOBODY
    low, high = views[idlest].sent, views[busiest].sent
    if high - low > knobs[3] and high > knobs[4] * low:
        return settle(views, idlest, knobs)
    matched = views[best].cached > knobs[5] * ask[0].prompt
    return settle(views, best if matched else smallest, knobs)


def _llm_d(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    low, high = math.inf, -1.0
    for place in range(len(views)):
        if views[place].open:
            low, high = min(low, views[place].waiting), max(high, views[place].waiting)
    best, most, equals = NOBODY, 0.0, 0
    for place in range(len(views)):
        v = views[place]
        if not v.open:
            continue
        queue = 1.0 if high == low else (high - v.waiting) / (high - low)
        free = 1.0 - (v.used / v.memory if v.memory > 0 else 0.0)
        score = knobs[3] * queue + knobs[4] * free + knobs[5] * v.cached / max(ask[0].prompt, 1)
        if best < 0 or score > most:
            best, most, equals = place, score, 1
        elif score == most:  # by chance among equals, each as likely
            equals += 1
            if chance(memory) * equals < 1:
                best = place
    return settle(views, best, knobs)


def _dynamo(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    weight, heat, block = knobs[3], knobs[4], knobs[5]
    best, low, high = NOBODY, math.inf, -math.inf
    for place in range(len(views)):
        v = views[place]
        if v.open:
            cost = (weight * (v.sent_prefill + ask[0].prompt - v.cached) + v.sent_tokens) / block
            if cost < low:
                best, low = place, cost
            high = max(high, cost)
    if heat == 0 or best < 0 or high == low:
        return settle(views, best, knobs)
    total, drawn = 0.0, NOBODY
    for place in range(len(views)):
        v = views[place]
        if v.open:
            cost = (weight * (v.sent_prefill + ask[0].prompt - v.cached) + v.sent_tokens) / block
            share = math.exp(-(cost - low) / (high - low) / heat)
            total += share
            if chance(memory) * total < share:
                drawn = place
    return settle(views, drawn, knobs)


@dataclass(frozen=True)
class Sglang(Balanced):
    """The cache-aware rule of the sglang router (sglang-router 0.3.2). Where the busiest has more than `apart` requests
    more than the idlest and more than `times` as many, to the idlest. Otherwise to whom was sent the longest beginning
    of this prompt, if that is more than the share `match` of it, and else to whom was sent the least. Loads are the
    router's own counts, and so are not stale."""

    name = "sglang"
    apart: float = param(NUMBER, 64.0)
    times: float = param(NUMBER, 1.5)
    match: float = param(SHARE, 0.3)
    choose = staticmethod(_sglang)
    sees = frozenset({"prefix"})


@dataclass(frozen=True)
class LlmD(Balanced):
    """Filter, score, pick, as llm-d does by default (llm-d 0.8, with the scorers of the Gateway API inference
    extension): who is ready; the sum of how short its queue is among all (`queue`), how much memory is free (`free`)
    and which share of the prompt it was sent before (`prefix`), by these weights; the highest, of equals by chance.
    Queues and memory are as replicas report them."""

    name = "llm-d"
    queue: float = param(NUMBER, 2.0)
    free: float = param(NUMBER, 2.0)
    prefix: float = param(NUMBER, 3.0)
    choose = staticmethod(_llm_d)
    sees = frozenset({"prefix"})


@dataclass(frozen=True)
class Dynamo(Balanced):
    """The cost function of Dynamo's KV router (Dynamo 0.9): `weight` times the blocks that are to be prefilled, its own
    uncached ones among them, and the blocks that are in use; to the lowest, or with a `temperature` by chance, softmax
    of costs brought to 0 to 1. Caches are known from events, loads are the router's own counts."""

    name = "dynamo"
    weight: float = param(NUMBER, 1.0)
    temperature: float = param(NUMBER, 0.0)
    block: int = param(COUNT, 16)
    choose = staticmethod(_dynamo)
    sees = frozenset({"cache"})
