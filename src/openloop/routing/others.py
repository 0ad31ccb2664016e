"""The deciding rules of routers that others run; each says of which version. docs/routing.md: what was checked."""

import math
from dataclasses import dataclass
from typing import Any

from numba.extending import register_jitable

from openloop.routing.policy import NOBODY, Balanced, chance, or_fallback
from openloop.terms import COUNT, NUMBER, SHARE, param


def _sglang(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    idlest, best, low, high = NOBODY, NOBODY, views[0].sent, views[0].sent
    for place in range(len(views)):
        v = views[place]
        low, high = min(low, v.sent), max(high, v.sent)  # of all, whether they are well or not
        if v.open:
            idlest = place if idlest < 0 or v.sent < views[idlest].sent else idlest
            best = place if best < 0 or v.cached > views[best].cached else best
    if best < 0:
        return NOBODY
    unbalanced = high - low > knobs[3] and high > knobs[4] * low
    matched = views[best].cached > knobs[5] * ask[0].prompt
    return or_fallback(views, best if matched and not unbalanced else idlest, knobs)


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
    return or_fallback(views, best, knobs)


@register_jitable
def _cost(ask: Any, v: Any, knobs: Any) -> float:
    return float((knobs[3] * (v.sent_prefill + ask[0].prompt - v.cached) + v.sent_tokens) / knobs[5])


def _dynamo(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    heat, best, low, high, equals = knobs[4], NOBODY, math.inf, -math.inf, 0
    for place in range(len(views)):
        v = views[place]
        if v.open:
            cost = _cost(ask, v, knobs)
            high = max(high, cost)
            if best < 0 or cost < low or (cost == low and v.known < views[best].known):
                best, low, equals = place, cost, 1
            elif cost == low and v.known == views[best].known:
                equals += 1
                if chance(memory) * equals < 1:
                    best = place
    if heat == 0 or best < 0:
        return or_fallback(views, best, knobs)
    total, drawn = 0.0, NOBODY
    for place in range(len(views)):
        if views[place].open:
            share = math.exp((low - _cost(ask, views[place], knobs)) / max(high - low, 1e-300) / heat)
            total += share
            if chance(memory) * total < share:
                drawn = place
    return or_fallback(views, drawn, knobs)


@dataclass(frozen=True)
class Sglang(Balanced):
    """The cache-aware rule of the sglang router (sglang-router 0.3.2): to whom was sent the longest beginning of this
    prompt, if that is more than the share `match` of it, and else to the idlest; also to the idlest where the busiest
    has more than `apart` requests more than the idlest and more than `times` as many. Loads are the router's own
    counts, and so are not stale."""

    name = "sglang"
    apart: float = param(NUMBER, 64.0)
    times: float = param(NUMBER, 1.5)
    match: float = param(SHARE, 0.3)
    choose = staticmethod(_sglang)
    sees = frozenset({"prefix"})


@dataclass(frozen=True)
class LlmD(Balanced):
    """Filter, score, pick, as llm-d does by default (llm-d 0.8, whose router is 0.9.0): who is ready; the sum of how
    short its queue is among all (`queue`), how much memory is free (`free`) and which share of the prompt it was sent
    before (`prefix`), by these weights; the highest, of equals by chance. Queues and memory are as replicas report
    them."""

    name = "llm-d"
    queue: float = param(NUMBER, 2.0)
    free: float = param(NUMBER, 2.0)
    prefix: float = param(NUMBER, 3.0)
    choose = staticmethod(_llm_d)
    sees = frozenset({"prefix", "memory"})


@dataclass(frozen=True)
class Dynamo(Balanced):
    """The cost function of Dynamo's KV router (Dynamo 0.9): `weight` times the blocks that are to be prefilled, its
    own uncached ones among them, and the blocks that are in use; to the lowest, of equals to whose cache holds least
    and then by chance; or with a `temperature` by chance among all, softmax of costs brought to 0 to 1. Caches are
    known from events, loads are the router's own counts."""

    name = "dynamo"
    weight: float = param(NUMBER, 1.0)
    temperature: float = param(NUMBER, 0.0)
    block: int = param(COUNT, 16)
    choose = staticmethod(_dynamo)
    sees = frozenset({"cache", "memory"})
