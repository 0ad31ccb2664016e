"""How warm caches are when a run is measured, as something that is brought about and not found.

cold: nothing was asked since the server started. cold-cache: the model is loaded, and no request finds anything of
its prompt. warm-cache: what prompts have in common has been asked once before. hot: the run's own traffic, from when
its hit rate is steady. disrupted: warm, until at a moment every prefix changes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from openloop.arrays import Ints
from openloop.errors import SpecError
from openloop.records import TimedEvent, Warmth
from openloop.terms import SECONDS, Term, param, read_term
from openloop.units import to_ns
from openloop.workload.demand import Demand, laid_out
from openloop.workload.describe import MULTIPLIER, chains

MOST_PRIMES = 2000
STEADY_POINTS = 0.03  # that the hit rate may differ by between thirds


@dataclass(frozen=True)
class Warming(Term):
    """A state that caches are brought into."""

    state: ClassVar[Warmth]
    primes: ClassVar[bool] = True
    settles: ClassVar[bool] = False
    touches: ClassVar[bool] = True  # the model is asked something before the clock starts

    def salt(self, number: int, due_s: float, seconds: float) -> int:
        """Prompts of the same number and text are the same to a cache; others are not."""
        return 0

    def events(self, seconds: float) -> tuple[TimedEvent, ...]:
        return ()


@dataclass(frozen=True)
class Cold(Warming):
    """Nothing was asked since the server started: the model's first requests, and caches that fill as it goes. Live it
    takes a command that starts the server anew; a modelled fleet has empty caches, and no start of its own.
    """

    name = "cold"
    state = "cold"
    primes = False
    touches = False

    def events(self, seconds: float) -> tuple[TimedEvent, ...]:
        return (TimedEvent(at_ns=0, kind="restart"),)


@dataclass(frozen=True)
class ColdCache(Warming):
    """The model is warm, and no prompt has a start that another had."""

    name = "cold-cache"
    state = "warm-model cold-cache"
    primes = False

    def salt(self, number: int, due_s: float, seconds: float) -> int:
        return number + 1


@dataclass(frozen=True)
class WarmCache(Warming):
    """What several prompts begin with has been asked once, of every server, before the clock starts."""

    name = "warm-cache"
    state = "warm-cache"


@dataclass(frozen=True)
class Hot(Warming):
    """As warm-cache, and measured from when the hit rate is steady, or after `most`."""

    name = "hot"
    state = "hot steady state"
    settles = True
    most: float = param(SECONDS, 120.0, above=0.0)


@dataclass(frozen=True)
class Disrupted(Warming):
    """As warm-cache, until at a moment (half way, where `at` is not given) all prompts begin differently."""

    name = "disrupted"
    state = "disrupted"
    at: float | None = param(SECONDS, None)

    def moment_s(self, seconds: float) -> float:
        at = seconds / 2 if self.at is None else self.at
        if at >= seconds:
            raise SpecError(f"disrupted: at is {at:g} s, and the run is over after {seconds:g} s; make it earlier")
        return at

    def salt(self, number: int, due_s: float, seconds: float) -> int:
        return int(due_s >= self.moment_s(seconds))

    def events(self, seconds: float) -> tuple[TimedEvent, ...]:
        return (TimedEvent(at_ns=to_ns(self.moment_s(seconds)), kind="salt-rotation"),)


WARMTHS: dict[str, type[Warming]] = {kind.name: kind for kind in (Cold, ColdCache, WarmCache, Hot, Disrupted)}


def read_warming(text: str) -> Warming:
    """`warm-cache`, `disrupted:at=30s`, or a state by the name that manifests have for it."""
    name = next((kind.name for kind in WARMTHS.values() if kind.state == text.strip()), text)
    found: Warming = read_term(name, WARMTHS, "cache warmth")
    return found


def window_s(seconds: float, lasts_s: float, warming: Warming | None) -> float:
    """For how long is measured, once caches have settled: not beyond the end of a recording that lasts so long."""
    settling_s = warming.most if isinstance(warming, Hot) else 0.0
    if settling_s >= lasts_s > 0:
        raise SpecError(f"the recording ends after {lasts_s:.4g} s, and {warming} may take all of it; settle for less")
    return min(seconds, lasts_s - settling_s) if lasts_s > 0 else seconds


def split_states(text: str) -> list[str]:
    """`warm-cache,disrupted:at=30s` as two."""
    return [each.strip() for each in re.split(r",(?!\s*\w+\s*=)", text)]


def priming(demand: Demand) -> Demand:
    """One request for each start that prompts of different users have in common, one token to answer."""
    pieces, hashes = demand.pieces, chains(demand)
    lengths = np.diff(pieces.starts)
    _, owner, level = laid_out(lengths)
    users = np.arange(len(demand)) + (1 << 40)
    if demand.session is not None:
        users = np.where(demand.session >= 0, demand.session, users)
    with np.errstate(over="ignore"):
        both = hashes ^ (users[owner].astype(np.uint64) + np.uint64(1)) * MULTIPLIER
    _, once = np.unique(both, return_index=True)  # by each user
    common, counts = np.unique(hashes[once], return_counts=True)
    shared = (pieces.identity >= 0) & np.isin(hashes, common[counts > 1])
    cut = lengths.copy()  # pieces up to the first that is not shared
    np.minimum.at(cut, owner[~shared], level[~shared])
    some = np.flatnonzero(cut > 0)
    ends = hashes[pieces.starts[some] + cut[some] - 1]
    _, firsts, often = np.unique(ends, return_index=True, return_counts=True)
    chosen = some[firsts[np.argsort(-often, kind="stable")[:MOST_PRIMES]]]
    none = np.full(len(chosen), -1)
    return replace(
        replace(demand, pieces=pieces.only(level < cut[owner])).take(chosen),
        due_s=np.zeros(len(chosen)),
        output_tokens=np.ones(len(chosen), np.int64),
        after=None if demand.after is None else none,
        answer=None if demand.answer is None else none,
        session=None if demand.session is None else none,
    )


def salted(demand: Demand, salts: Ints) -> Demand:
    """The same requests, of which only those with the same salt have a start in common; a salt of 0 changes nothing."""
    answers = () if demand.answer is None else demand.answer
    most = 1 + max(int(np.max(each, initial=0)) for each in (demand.pieces.identity, answers))

    def moved(identity: Ints, owner: Ints) -> Ints:
        return np.where(identity < 0, identity, identity + most * salts[owner])

    return demand.renamed(moved)


def steady(hits: Sequence[tuple[float, float]], least: int = 60) -> bool:
    """Whether the share of tokens found in a cache is the same in each third of the last half; (found, looked up)."""
    if len(hits) < least:
        return False
    last = np.array(hits[len(hits) // 2 :])
    rates = [third[:, 0].sum() / max(third[:, 1].sum(), 1.0) for third in np.array_split(last, 3)]
    return float(max(rates) - min(rates)) <= STEADY_POINTS
