"""Metrics over judged requests: one function each, its formula above the code."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from openloop.arrays import Bools, Counts, Floats, Ints, count, only
from openloop.records import MISSING, Stay
from openloop.score.judged import Scope
from openloop.score.money import cost_score, work
from openloop.score.quantiles import ratio, share_interval
from openloop.score.requests import HEDGE, REPAIR, RETRY
from openloop.slo import SLO

MOST_TURNS = 100
LEAST_REPLICAS, LEAST_EACH = 3, 20  # and completed requests of each, to tell whether one stands out
RISE = 0.02  # of failures, that a slice is to show
LATE_TURN = 4  # turns count from 0: the fifth and later
LONG = 2.0  # medians of prompt tokens


@dataclass(frozen=True)
class LittleScore:
    L_measured: float
    L_law: float
    residual: float


def little_score(scope: Scope) -> LittleScore:
    """Little's law, L = lambda * W.

    L_measured is the time-average number of requests in the system: all the time that any of them spent inside the
    window, over its length. L_law is the rate of arrivals times their mean time in the system. The residual is the
    difference as a share of L_measured: near zero in a steady state, large where arrivals and departures differ.
    """
    start, end = scope.window_ns
    everyone = scope.run.everyone
    inside = np.minimum(everyone.left_ns, end)
    inside -= np.maximum(everyone.due_ns, start)
    # In a batch of a million that takes a day, all nanoseconds together are too many for a whole number.
    measured = float(np.sum(np.maximum(inside, 0, out=inside), dtype=np.float64)) / (end - start)
    law = float(np.sum(scope.left_ns - scope.due_ns, dtype=np.float64)) / (end - start)
    return LittleScore(measured, law, ratio(measured - law, measured))


def benefits(scope: Scope) -> tuple[Floats, Floats]:
    """The benefit n - alpha * f(l) of each request (smooth goodput, eq. 7) and its user idle latency l (eq. 6)."""
    benefit, idle_s = np.empty(scope.n), np.empty(scope.n)
    tokens = np.where(scope.deliveries.ok, scope.deliveries.tokens, 0.0)
    for index, slo in enumerate(scope.run.slos):
        mine = scope.objective == index
        if mine.all():
            idle_s = _idle(scope, slo)
            return slo.smooth.benefit(tokens, idle_s), idle_s
        idle_s[mine] = _idle(scope.part(mine), slo)
        benefit[mine] = slo.smooth.benefit(tokens[mine], idle_s[mine])
    return benefit, idle_s


def _idle(scope: Scope, slo: SLO) -> Floats:
    """How long the user had nothing to read.

    Tokens of which no time is known came at the end. The user of a request without success was idle from the next
    token's deadline to the end.
    """
    deadlines = slo.smooth.deadlines
    idle_s = scope.answers.lateness_s(deadlines)
    waiting = ~scope.deliveries.ok | ~scope.answers.timed | np.isnan(idle_s)
    if waiting.any():
        those = scope.part(waiting)
        stay_s = (those.left_ns - those.due_ns) / 1e9
        idle_s[waiting] = np.fmax(idle_s[waiting], stay_s - those.answers.next_due_s(deadlines))
    return np.maximum(idle_s, 0.0, out=idle_s)


def mean_over_due(scope: Scope, column: NDArray[np.float32]) -> float:
    """Mean of a column over attempts, by what answered everything due: an unsuccessful request counts as 0, completed
    ones whose tokens have no times do not count."""
    ok, values = scope.deliveries.ok, scope.deliveries.of_attempt(column)
    known = ok & scope.deliveries.all_told & ~np.isnan(values)
    if ok.any() and not known.any():
        return np.nan
    return ratio(float(only(values, known).sum(dtype=np.float64)), count(known) + count(~ok))


@dataclass(frozen=True)
class TurnScore:
    """Turns of the same number, over all sessions."""

    turn: int
    requests: int
    attainment: float
    prompt_tokens: float  # mean: how the context grows
    cache_hit_rate: float


@dataclass(frozen=True)
class SessionScore:
    """Sessions of which every turn was accepted; a request outside any session is a session of its own.

    A session belongs to the window in which its first turn was due, and is judged by all of its turns. One of which a
    turn is missing (there is a third, and no second) is not accepted.
    """

    sessions: int
    accepted: int
    attainment: float
    goodput_per_s: float
    turns: int  # of the requests due in the window
    turn_attainment: float  # with the same gates, turn by turn
    turn_goodput_per_s: float
    incomplete: int  # sessions of which a turn is missing
    calls_per_session: float  # attempts at all of their turns
    by_turn: list[TurnScore]


def sessions(scope: Scope) -> SessionScore:
    everyone, attempts = scope.run.everyone, scope.run.attempts
    session_id, turn = (everyone.deliveries.of_attempt(each) for each in (attempts.session_id, attempts.turn))
    accepted = scope.run.judgement.accepted
    alone = session_id == MISSING
    _, first, index = np.unique(session_id[~alone], return_index=True, return_inverse=True)
    good = np.bincount(index[~accepted[~alone]], minlength=len(first)) == 0
    whole = _whole(index, turn[~alone], len(first))
    mine = np.zeros(everyone.n, np.bool_)
    mine[scope.where] = True
    counted = mine[~alone][first]
    own = alone & mine
    total = count(counted) + count(own)
    passed = count((good & whole)[counted]) + count(accepted & own)
    turns = count(scope.judgement.accepted)
    own[~alone] = counted[index]
    made = count(own[scope.run.request_of])
    return SessionScore(
        total,
        passed,
        ratio(passed, total),
        passed / scope.seconds,
        scope.n,
        ratio(turns, scope.n),
        turns / scope.seconds,
        count(~whole[counted]),
        ratio(made, total),
        _by_turn(scope) if counted.any() else [],
    )


def _whole(session: Ints, turn: Counts, count: int) -> Bools:
    """Sessions that have every turn up to their last, as far as turns are told."""
    last = np.full(count, -1)
    np.maximum.at(last, session, turn)
    told, width = turn >= 0, int(turn.max(initial=0)) + 1
    different = np.unique(session[told] * width + turn[told]) // width
    return np.bincount(different, minlength=count) >= last + 1


def _by_turn(scope: Scope) -> list[TurnScore]:
    attempts = scope.run.attempts
    turn = scope.deliveries.of_attempt(attempts.turn)
    prompt = scope.deliveries.of_attempt(attempts.prompt_tokens)
    found = []
    for number in np.unique(turn[turn >= 0])[:MOST_TURNS].tolist():
        mine = turn == number
        told = mine & (prompt >= 0)
        found.append(
            TurnScore(
                number,
                int(mine.sum()),
                float(scope.judgement.accepted[mine].mean()),
                float(prompt[told].mean()) if told.any() else np.nan,
                cache_hit_rate(scope.part(mine)),
            )
        )
    return found


@dataclass(frozen=True)
class UnitScore:
    """Goodput in an SLO's own unit: accepted units per `per_s` seconds."""

    unit: str
    name: str
    due: int
    accepted: int
    attainment: float
    goodput: float
    per_s: float
    cost_per_accepted: float | None


def units(scope: Scope) -> dict[str, UnitScore]:
    """By SLO: "all" where there is one, else its workload classes."""
    found, total, only = {}, work(scope), len(scope.run.slos) == 1
    for index, slo in enumerate(scope.run.slos):
        mine = scope if only else scope.part(scope.objective == index)
        cost = cost_score(mine, 1.0 if only else work(mine) / total if total else None)
        if slo.unit == "session":
            counted = sessions(mine)
            due, good = counted.sessions, counted.accepted
        else:
            due, good = mine.n, count(mine.judgement.accepted)
        score = UnitScore(
            slo.unit,
            slo.unit_name,
            due,
            good,
            ratio(good, due),
            good / scope.seconds * slo.per_s,
            slo.per_s,
            ratio(cost.total, good) if cost else None,
        )
        found["all" if only else _classes(scope, index)] = score
    return found


def _classes(scope: Scope, objective: int) -> str:
    """That an SLO is for, also where nothing of them was due in the window."""
    run = scope.run
    codes = np.unique(run.deliveries.of_attempt(run.attempts.workload_class)[run.objective == objective])
    names = run.attempts.words["workload_class"]
    return ", ".join(names[code] if code >= 0 else "(none)" for code in codes)


@dataclass(frozen=True)
class RetryScore:
    attempts: int
    amplification: float  # attempts per request
    retries: int
    hedges: int
    repairs: int
    wasted_output_tokens: int  # generated by attempts that were not the answer


def retry_score(scope: Scope) -> RetryScore:
    attempts, kinds = count(scope.of_attempts), scope.run.attempts.kind
    wasted = int(scope.deliveries.spending.tokens.sum() - scope.deliveries.tokens.sum())
    retries, hedges, repairs = (count(scope.of_attempts & (kinds == kind)) for kind in (RETRY, HEDGE, REPAIR))
    return RetryScore(attempts, ratio(attempts, scope.n), retries, hedges, repairs, wasted)


def utilisation(scope: Scope, replicas: int | None, stays: Sequence[Stay] = ()) -> float:
    """Share of their time in the window in which replicas had something in flight. Busy is not productive."""
    attempts, (start, end) = scope.run.attempts, scope.window_ns
    told = len(attempts.words["replica"]) > 0  # where rows name replicas, those that are not named were idle
    sent = (attempts.sent_ns != MISSING) & ((attempts.replica >= 0) | (not told))
    left = np.where(attempts.ended_ns != MISSING, attempts.ended_ns, scope.run.stopped_ns)
    shares = []
    for replica in np.flatnonzero(np.bincount(attempts.replica[sent])) if told else [-1] if sent.any() else []:
        mine = sent & (attempts.replica == replica)
        whole = mine.all()
        begin, finish = (np.clip(each if whole else each[mine], start, end) for each in (attempts.sent_ns, left))
        if np.any(begin[1:] < begin[:-1]):
            order = np.argsort(begin, kind="stable")
            begin, finish = begin[order], finish[order]
        finish = np.maximum.accumulate(finish)
        idle = np.sum(np.maximum(begin[1:] - finish[:-1], 0)) + (begin[0] - start) + (end - finish[-1])
        shares.append(1 - idle / (end - start))
    there: float = max(len(shares), replicas or 0) if told else len(shares)
    if stays:
        there = sum(each.inside_ns(scope.window_ns) for each in stays) / (end - start)
    return min(ratio(float(np.sum(shares)), there), 1.0)


def cache_hit_rate(scope: Scope) -> float:
    """Cached prompt tokens over prompt tokens of the answers, where the server told both."""
    attempts = scope.run.attempts
    if "cached_tokens" not in attempts.present:
        return np.nan
    cached, prompt = (scope.deliveries.of_attempt(c) for c in (attempts.cached_tokens, attempts.prompt_tokens))
    told = (cached >= 0) & (prompt > 0)
    return ratio(float(cached[told].sum()), float(prompt[told].sum()))


@dataclass(frozen=True)
class Straggler:
    replica: str
    metric: str
    p95_s: float
    fleet_p95_s: float  # median over the replicas


def stragglers(scope: Scope) -> list[Straggler]:
    """Replicas whose p95 stands out from the fleet's.

    A replica is a straggler in a metric when its p95 is at least 1.5 times the median p95 of the replicas, and beyond
    that median by more than 3.5 robust standard deviations (1.4826 * median absolute deviation). Both are medians, so
    a few stragglers cannot hide each other. It takes three replicas with 20 completed requests each to tell.
    """
    replica = scope.deliveries.of_attempt(scope.run.attempts.replica)
    names = scope.run.attempts.words["replica"]
    found: list[Straggler] = []
    for metric in ("ttft_s", "tpot_s", "e2e_s") if len(names) >= LEAST_REPLICAS else ():
        values = np.where(scope.deliveries.ok, getattr(scope.answers, metric), np.nan)
        by_replica = {name: values[(replica == code) & ~np.isnan(values)] for code, name in enumerate(names)}
        p95 = {name: float(np.quantile(mine, 0.95)) for name, mine in by_replica.items() if len(mine) >= LEAST_EACH}
        if len(p95) < LEAST_REPLICAS:
            continue
        middle = float(np.median(list(p95.values())))
        spread = 1.4826 * float(np.median([abs(value - middle) for value in p95.values()]))
        found += [
            Straggler(name, metric, value, middle)
            for name, value in p95.items()
            if value >= 1.5 * middle and value - middle > 3.5 * spread
        ]
    return found


@dataclass(frozen=True)
class SliceScore:
    """Judged answers of one kind, beside all others. `needed` are those it takes to see two points more failing."""

    judged: int
    failed: int
    pass_rate: float
    interval: tuple[float, float]
    rest_pass_rate: float
    rest_interval: tuple[float, float]
    needed: int

    @property
    def enough(self) -> bool:
        return self.judged >= self.needed

    @property
    def worse(self) -> bool:
        """Surely: its interval ends below where that of the others begins."""
        return self.interval[1] < self.rest_interval[0]


@dataclass(frozen=True)
class QualityScore:
    judged: int
    open: int  # completed, and not judged
    failed: int
    pass_rate: float
    interval: tuple[float, float]
    needed: int
    slices: dict[str, SliceScore]


def quality_score(scope: Scope) -> QualityScore | None:
    """Of completed requests, their answers; None where none is judged."""
    quality = scope.deliveries.quality
    completed = scope.deliveries.ok
    known = completed & (quality >= 0)
    if not known.any():
        return None
    judged, failed, rate, interval = _passed(scope, known)
    slices = {}
    for name, mask in _slices(scope).items():
        if (mask & known).any() and not mask[known].all():
            _, _, rest, rest_interval = _passed(scope, known & ~mask)
            slices[name] = SliceScore(*_passed(scope, known & mask), rest, rest_interval, needed_to_see(1 - rest))
    unjudged = int(np.sum(completed & ~known))
    return QualityScore(judged, unjudged, failed, rate, interval, needed_to_see(1 - rate), slices)


def _passed(scope: Scope, those: Bools) -> tuple[int, int, float, tuple[float, float]]:
    """How many they are, how many failed, and the share that passed with its interval."""
    good = scope.deliveries.quality[those] == 1
    return len(good), int(np.sum(~good)), float(good.mean()), share_interval(good, scope.part(those).bounds)


def _slices(scope: Scope) -> dict[str, Bools]:
    """As rows name them, and those that records show by themselves."""
    attempts, deliveries = scope.run.attempts, scope.deliveries
    names = attempts.words["slices"]
    codes = deliveries.of_attempt(attempts.slices)
    found: dict[str, Bools] = {}
    for name in sorted({each for joined in names for each in joined.split("+")}):
        holding = [code for code, joined in enumerate(names) if name in joined.split("+")]
        found[name] = np.isin(codes, holding)
    turn, prompt = (deliveries.of_attempt(each) for each in (attempts.turn, attempts.prompt_tokens))
    found["turn 5 and later"] = turn >= LATE_TURN
    if np.any(prompt > 0):
        found["long prompts"] = prompt >= LONG * np.median(prompt[prompt > 0])
    return found


def needed_to_see(base: float, rise: float = RISE) -> int:
    """Answers of each kind it takes to tell a failure rate of base + rise from one of base: 5% level, 80% power.

    n = (z_a sqrt(2 m (1 - m)) + z_b sqrt(p (1 - p) + q (1 - q)))**2 / (q - p)**2,  m = (p + q) / 2
    """
    p, q = base, min(base + rise, 1.0)
    if not p < q:
        p, q = max(base - rise, 0.0), base
    m = (p + q) / 2
    z_a, z_b = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)
    root = z_a * math.sqrt(2 * m * (1 - m)) + z_b * math.sqrt(p * (1 - p) + q * (1 - q))
    return math.ceil(root**2 / (q - p) ** 2)
