"""The policies that there are: by load, by cache, by session, by length, by deadline; and the deciding rules of routers
that others run, each of which says of which version (docs/routing.md: what was checked)."""

import math
from dataclasses import dataclass
from typing import Any

from openloop.native import jitable
from openloop.routing.policy import FALLBACK, LIMIT, NOBODY, Balanced, Own, Policy, chance, least, or_fallback
from openloop.terms import COUNT, NUMBER, SECONDS, SHARE, by_name, param, read_term

LEAD = 8.0  # requests by which a favourite may be busier than others


def _round_robin(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    for step in range(len(views)):
        place = (memory[0] + step) % len(views)
        if views[place].open:
            memory[0] = place + 1
            return or_fallback(views, place, knobs)
    return NOBODY


@jitable
def _count_open(views: Any) -> int:
    count = 0
    for place in range(len(views)):
        count += views[place].open > 0
    return count


@jitable
def _nth_open(views: Any, n: int) -> int:
    for place in range(len(views)):
        n -= views[place].open > 0
        if n < 0:
            return place
    return NOBODY


def _random(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    return or_fallback(views, _nth_open(views, int(chance(memory) * _count_open(views))), knobs)


def _power_of_two(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    count = _count_open(views)
    first = int(chance(memory) * count)
    one, other = _nth_open(views, first), NOBODY
    if count > 1:
        second = int(chance(memory) * (count - 1))
        other = _nth_open(views, second + (second >= first))
        if views[other].requests < views[one].requests:
            one = other
    return or_fallback(views, one, knobs)


def _least_requests(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    return or_fallback(views, least(views), knobs)


def _least_tokens(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    best = NOBODY
    for place in range(len(views)):
        if views[place].open and (best < 0 or views[place].tokens < views[best].tokens):
            best = place
    return or_fallback(views, best, knobs)


@jitable
def _idler(v: Any, other: Any) -> bool:
    """Whether it has fewer requests, or as many and less in its cache."""
    return bool(v.requests < other.requests or (v.requests == other.requests and v.known < other.known))


@jitable
def _idlest(views: Any) -> int:
    best = NOBODY
    for place in range(len(views)):
        if views[place].open and (best < 0 or _idler(views[place], views[best])):
            best = place
    return best


def _prefix_aware(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    best, longest = NOBODY, 0
    for place in range(len(views)):
        v = views[place]
        match = min(v.cached, int(knobs[3]))
        if v.open and (match > longest or (match == longest > 0 and v.requests < views[best].requests)):
            best, longest = place, match
    return or_fallback(views, best if best >= 0 else _idlest(views), knobs)


def _kv_aware(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    best, least_work = NOBODY, 0.0
    for place in range(len(views)):
        v = views[place]
        work = v.prefill + ask[0].prompt - v.cached + knobs[3] * v.requests
        if v.open and (best < 0 or work < least_work or (work == least_work and _idler(v, views[best]))):
            best, least_work = place, work
    return or_fallback(views, best, knobs)


def _sticky(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    for place in range(len(views)):
        if views[place].open and views[place].home:
            return or_fallback(views, place, knobs)
    return or_fallback(views, _idlest(views), knobs)


def _pools(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    edge = min(max(int(knobs[4] * len(views) + 0.5), 1), max(len(views) - 1, 1))
    first, last = (0, edge) if ask[0].prompt <= knobs[3] else (edge, len(views))
    best = NOBODY
    for place in range(first, last):
        if views[place].open and (best < 0 or views[place].requests < views[best].requests):
            best = place
    return or_fallback(views, best if best >= 0 else least(views), knobs)


def _slo_aware(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
    best, soonest = NOBODY, 0.0
    for place in range(len(views)):
        v = views[place]
        pace = v.pace if v.pace > 0 else knobs[3]
        wait = max(pace * v.prefill, v.gap * v.waiting) + pace * (ask[0].prompt - v.cached)
        if v.open and (best < 0 or wait < soonest or (wait == soonest and _idler(v, views[best]))):
            best, soonest = place, wait
    late = soonest > knobs[4] * (ask[0].deadline - now)
    return NOBODY if late and knobs[2] == 2 else or_fallback(views, best, knobs)


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


@jitable
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


class RoundRobin(Balanced):
    """In turn."""

    name = "round-robin"
    choose = staticmethod(_round_robin)


class Random(Balanced):
    """By chance."""

    name = "random"
    choose = staticmethod(_random)


class LeastRequests(Balanced):
    """To whom has the fewest requests, waiting or served; of equals to the first."""

    name = "least-requests"
    choose = staticmethod(_least_requests)


class LeastTokens(Balanced):
    """To whom has the fewest tokens: those in its memory and the prompts that wait."""

    name = "least-tokens"
    choose = staticmethod(_least_tokens)
    sees = frozenset({"memory"})


class PowerOfTwo(Balanced):
    """Of two by chance, to whom has fewer requests."""

    name = "power-of-two"
    choose = staticmethod(_power_of_two)


@dataclass(frozen=True)
class PrefixAware(Balanced):
    """To whom was sent, by what the router remembers, the longest beginning of this prompt, of which the `first` tokens
    count; of equals to whom has the fewest requests. A beginning that nobody was sent goes to the least busy."""

    name = "prefix-aware"
    lead: float = param(LIMIT, LEAD)
    first: int = param(COUNT, 4096)
    choose = staticmethod(_prefix_aware)
    sees = frozenset({"prefix"})


@dataclass(frozen=True)
class KvAware(Balanced):
    """Where the fewest tokens must be computed before its first one: prompts that wait, and of its own what is not in
    the cache; a request that is there counts as `load` tokens. What caches hold is known exactly from replicas that
    say so, otherwise by what was sent there."""

    name = "kv-aware"
    load: float = param(NUMBER, 100.0)
    choose = staticmethod(_kv_aware)
    sees = frozenset({"cache"})


@dataclass(frozen=True)
class Sticky(Balanced):
    """Where its session was last; the first of a session, and one without, to the least busy."""

    name = "sticky"
    lead: float = param(LIMIT, LEAD)
    choose = staticmethod(_sticky)
    sees = frozenset({"session"})


@dataclass(frozen=True)
class Pools(Balanced):
    """Prompts up to `split` tokens to the first replicas, a `share` of all, longer ones to the others; there to whom
    has the fewest requests."""

    name = "pools"
    lead: float = param(LIMIT, LEAD)
    split: int = param(COUNT, 2048)
    share: float = param(SHARE, 0.5)
    choose = staticmethod(_pools)


@dataclass(frozen=True)
class SloAware(Balanced):
    """Where its first token will probably be soonest, by the prompts that wait and by what of its own is not cached, at
    the pace that replicas show (`token` seconds each, where they show none); of equals to the least busy. What would
    need more than `margin` of the time that is left to its deadline even there is shed; with another fallback it is
    sent all the same. The prediction knows nothing of those that decode, so it is too good by about the margin."""

    name = "slo-aware"
    fallback: str = param(FALLBACK, "shed")
    token: float = param(SECONDS, 0.0)
    margin: float = param(SHARE, 0.7)
    choose = staticmethod(_slo_aware)
    sees = frozenset({"cache"})


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


ROUTING = by_name(
    RoundRobin, Random, LeastRequests, LeastTokens, PowerOfTwo, PrefixAware, KvAware, Sticky, Pools, SloAware, Sglang,
    LlmD, Dynamo, Own,
)  # fmt: skip


def read_routing(text: str) -> Policy:
    found: Policy = read_term(text, ROUTING, "routing policy")
    return found
