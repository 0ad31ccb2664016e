"""A run read, grouped into requests, and judged by both clocks; and the part of it that a metric looks at."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from openloop.arrays import Bools, Counts, Floats, Ints, count
from openloop.errors import RunError
from openloop.records import MISSING, Manifest, Prices, Run
from openloop.score import kernel
from openloop.score.quantiles import BLOCKS, Percentiles, Sample, block_bounds, ladder
from openloop.score.requests import (
    OK,
    Answers,
    Attempts,
    Deliveries,
    Requests,
    Spending,
    Where,
    group_attempts,
    pace_ns,
    read_attempts,
    seconds_between,
)
from openloop.score.streams import Progress, StreamPlan, Streams, read_again, read_streams
from openloop.slo import SLO, TTFT, CustomDeadlines, Deadlines, LinearDeadlines, Objectives
from openloop.units import to_ns

T = TypeVar("T")
Known = dict[tuple[Callable[..., Any], object], Any]  # what was worked out, by how

FIRST_S, PACE_S = 1.0, 0.05  # when QoE and fluidity expect the first token and each further, where the SLO is silent


@dataclass(frozen=True)
class GateScore:
    """One gate by itself: `failed` counts completed requests that missed it, `failed_alone` those that missed no other.

    `attainment` and `goodput_rps` are what they would be with this gate only. For `success`, an unsuccessful request
    has failed that alone: the other gates judge completed ones.
    """

    failed: int
    failed_alone: int
    attainment: float
    goodput_rps: float


@dataclass(frozen=True)
class JointFailure:
    gates: tuple[str, ...]
    requests: int


@dataclass(frozen=True)
class Judgement:
    """By request: completed, accepted, and by gate which of the completed ones missed it."""

    ok: Bools
    accepted: Bools
    missed: dict[str, Bools]

    def gate_scores(self, seconds: float) -> dict[str, GateScore]:
        due = len(self.ok)
        how_many = sum(self.missed.values(), np.zeros(due, np.int8))
        failed = due - count(self.ok)
        scores = {"success": GateScore(failed, failed, 1 - failed / due if due else np.nan, (due - failed) / seconds)}
        for name, missed in self.missed.items():
            passed, alone = count(self.ok & ~missed), count(missed & (how_many == 1))
            scores[name] = GateScore(count(missed), alone, passed / due if due else np.nan, passed / seconds)
        return scores

    def joint_failures(self) -> list[JointFailure]:
        """Every combination of gates that completed requests missed together, most frequent first."""
        stopped = self.ok & ~self.accepted
        code = np.zeros(count(stopped), np.int64)
        for bit, missed in enumerate(self.missed.values()):
            code |= missed[stopped].astype(np.int64) << bit
        codes, counts = np.unique(code, return_counts=True)
        names = list(self.missed)
        found = [
            JointFailure(tuple(name for bit, name in enumerate(names) if code >> bit & 1), int(count))
            for code, count in zip(codes.tolist(), counts, strict=True)
        ]
        return sorted(found, key=lambda joint: -joint.requests)

    def at(self, where: Where) -> "Judgement":
        missed = {name: column[where] for name, column in self.missed.items()}
        return Judgement(self.ok[where], self.accepted[where], missed)


@dataclass(frozen=True)
class JudgedRun:
    """Every request of a run, judged by both clocks: from when it was due, and from when it was sent."""

    attempts: Attempts
    request_of: slice | Ints  # by attempt
    slos: tuple[SLO, ...]
    objective: Counts  # by request: which of the SLOs
    deliveries: Deliveries
    answers: Answers
    answers_from_sent: Answers
    judgement: Judgement
    judgement_from_sent: Judgement
    streams: Streams
    attempt_cost: Floats | None  # by attempt, as far as it is known; None: nothing is known of any
    per_hour: float  # what was reserved costs, on top
    prices: Prices | None
    window_ns: tuple[int, int]
    stopped_ns: int
    known: dict[str, Known] = field(default_factory=lambda: defaultdict(dict))  # of its parts, whatever the SLO

    @property
    def priced(self) -> bool:
        """Whether anything is known of what it cost."""
        reviewed = self.prices is not None and self.prices.per_human_review > 0
        return self.attempt_cost is not None or self.per_hour > 0 or reviewed or "review_cost" in self.attempts.present

    @cached_property
    def judging(self) -> Floats:
        """By attempt: what graders cost."""
        return np.nan_to_num(self.attempts.review_cost)

    @cached_property
    def human_review(self) -> Floats:
        """By request: a person looks at every answer that failed its quality gate, and at a share of the other ones."""
        if self.prices is None or not self.prices.per_human_review:
            return np.zeros(len(self.deliveries.requests))
        seen = np.where(self.deliveries.quality == 0, 1.0, self.prices.reviewed_share)
        return np.where(self.deliveries.ok, seen, 0.0) * self.prices.per_human_review

    @cached_property
    def spent(self) -> Floats:
        """By request: everything but what is paid by the hour."""
        n = len(self.deliveries.requests)
        judging = np.bincount(np.arange(n)[self.request_of], weights=self.judging, minlength=n)
        return self.deliveries.spending.spent + judging + self.human_review

    @cached_property
    def left_ns(self) -> Ints:
        """When each request left the system: with its answer, or when the last attempt at it was given up.

        One that was still in flight leaves when watching ended; one that was never sent was never in it.
        """
        requests, ok = self.deliveries.requests, self.deliveries.ok
        over = np.where(requests.over_ns != MISSING, requests.over_ns, self.stopped_ns)
        left = np.maximum(np.where(ok, self.deliveries.done_ns, over), requests.due_ns)
        return np.where(requests.sent_ns != MISSING, left, requests.due_ns)

    @property
    def everyone(self) -> "Scope":
        return Scope(self, slice(0, len(self.deliveries.requests)), self.window_ns, known=self.known["everyone"])

    @property
    def whole(self) -> "Scope":
        """The requests that were due in the measured window."""
        return replace(self.between(*self.window_ns), known=self.known["whole"])

    def again(self, slos: tuple[SLO, ...], objective: Counts, streams: Streams) -> "JudgedRun":
        """Held against something else; what that does not change is not worked out again."""
        by_due, by_sent = (judge(each, objective, slos) for each in (self.answers, self.answers_from_sent))
        found = replace(self, slos=slos, objective=objective, streams=streams)
        found = replace(found, judgement=by_due, judgement_from_sent=by_sent)
        vars(found).update({**vars(self), **vars(found)})
        return found

    def between(self, start_ns: int, end_ns: int) -> "Scope":
        start, stop = np.searchsorted(self.deliveries.requests.due_ns, (start_ns, end_ns))
        return Scope(self, slice(int(start), int(stop)), (start_ns, end_ns))


class Kept(Generic[T]):
    """A property of a scope that depends on nothing in an SLO: worked out once."""

    def __init__(self, work: "Callable[[Scope], T]") -> None:
        self._work, self.__doc__ = work, work.__doc__

    def __get__(self, scope: "Scope", _: type) -> T:
        return scope.once(self._work)


@dataclass(frozen=True)
class Scope:
    """Some of a run's requests, in order of their due times, and the stretch of time their rates refer to.

    What is `known` of them knows nothing of the run as it is judged: a circle of the two would be in memory for long.
    """

    run: JudgedRun
    where: slice | Ints  # places among all requests
    window_ns: tuple[int, int]
    without_ns: tuple[tuple[int, int], ...] = ()  # stretches of the window that are left out, in order
    known: Known = field(default_factory=dict, repr=False)

    @property
    def places(self) -> Ints:
        return np.arange(self.where.start, self.where.stop) if isinstance(self.where, slice) else self.where

    def once(self, work: Callable[..., T], *told: object, by: object = None) -> T:
        """work(scope, *told), which depends on nothing in an SLO but `by`; `told` is what the run says of itself."""
        if (work, by) not in self.known:
            self.known[work, by] = work(self, *told)
        return cast(T, self.known[work, by])

    def part(self, those: Bools | Ints) -> "Scope":
        return Scope(self.run, self.places[those], self.window_ns, self.without_ns)

    @property
    def n(self) -> int:
        return len(self.due_ns)

    @property
    def seconds(self) -> float:
        left_out = sum(end - start for start, end in self.without_ns)
        return (self.window_ns[1] - self.window_ns[0] - left_out) / 1e9

    @Kept
    def due_ns(self) -> Ints:
        return self.run.deliveries.requests.due_ns[self.where]

    @Kept
    def deliveries(self) -> Deliveries:
        return self.run.deliveries.at(self.where)

    @Kept
    def answers(self) -> Answers:
        return self.run.answers.of(self.deliveries)

    @Kept
    def answers_from_sent(self) -> Answers:
        return self.run.answers_from_sent.of(self.deliveries)

    @cached_property
    def judgement(self) -> Judgement:
        return self.run.judgement.at(self.where)

    @cached_property
    def judgement_from_sent(self) -> Judgement:
        return self.run.judgement_from_sent.at(self.where)

    @property
    def spent(self) -> Floats:
        return self.run.spent[self.where]

    @cached_property
    def objective(self) -> Counts:
        return self.run.objective[self.where]

    @Kept
    def bounds(self) -> Ints:
        """Where each block of the window starts and ends among these requests."""
        start, end = self.window_ns
        due = self.due_ns
        for a, b in reversed(self.without_ns):
            due = np.where(due >= b, due - (b - a), due)
            end -= b - a
        return block_bounds(due, (start, end))

    def sample(self, values: Floats) -> Sample:
        """Those values that belong to completed requests."""
        return Sample(values, self.deliveries.ok, self.bounds)

    @Kept
    def e2e_s(self) -> Sample:
        return self.sample(self.answers.e2e_s)

    @Kept
    def medians_s(self) -> Floats:
        """Of latency by block that has requests, with failures as infinite."""
        latency = np.where(self.deliveries.ok, self.answers.e2e_s, np.inf)
        blocks = [latency[a:b] for a, b in itertools.pairwise(self.bounds) if b > a]
        return np.array([np.partition(each, len(each) // 2)[len(each) // 2] for each in blocks])

    @Kept
    def latencies(self) -> dict[str, Percentiles | None]:
        """Of every kind, over completed requests; beside it, with failures as infinite, and from when requests were
        sent. Times between tokens are the same by either clock."""
        answers, sent, failures = self.answers, self.answers_from_sent, count(~self.deliveries.ok)

        def ranked(sample: Sample, from_sent: Floats | None = None) -> Percentiles | None:
            if (found := sample.percentiles) is None:
                return None
            other = sample if from_sent is None else self.sample(from_sent)
            return replace(found, failures_as_inf=ladder(sample, failures), from_sent=ladder(other))

        return {
            "ttft_s": ranked(self.sample(answers.ttft_s), sent.ttft_s),
            "tpot_s": ranked(self.sample(answers.tpot_s)),
            "tbt_s": ranked(self.sample(answers.tbt_s)),
            "jitter_s": ranked(self.sample(answers.jitter_s)),
            "longest_wait_s": ranked(self.sample(answers.longest_wait_s), sent.longest_wait_s),
            "e2e_s": ranked(self.e2e_s, sent.e2e_s),
        }

    @Kept
    def lag_s(self) -> Sample:
        """How much later than due each request was first sent."""
        sent_ns = self.deliveries.requests.sent_ns
        return Sample(seconds_between(self.due_ns, sent_ns), sent_ns != MISSING, self.bounds)

    @Kept
    def of_attempts(self) -> Bools:
        """By attempt: whether it was made at one of these requests."""
        chosen = np.zeros(len(self.run.deliveries.requests), np.bool_)
        chosen[self.where] = True
        return chosen[self.run.request_of]

    @property
    def left_ns(self) -> Ints:
        return self.run.left_ns[self.where]


def judge_run(
    run: Run,
    objectives: Objectives,
    progress: Progress | None = None,
    prices: Prices | None = None,
    before: JudgedRun | None = None,
) -> JudgedRun:
    """`before` is the same run held against something else: what is known from there is not worked out again."""
    attempts, prices = before.attempts if before else read_attempts(run), prices or run.manifest.prices
    if not len(attempts):
        raise RunError(f"{run.path or 'the run'} has no rows: there is nothing to score")
    requests, request_of = (before.deliveries.requests, before.request_of) if before else group_attempts(attempts)
    objective, slos = _assign(attempts, requests, objectives)
    window_ns = _window(run, attempts, requests)
    plan = _plan(attempts, requests, request_of, objective, slos, window_ns)
    if before and before.streams.serves(plan) and (before.window_ns, before.prices) == (window_ns, prices):
        return before.again(slos, objective, read_again(run, plan, before.streams))
    streams = read_streams(run, plan, progress)
    _check_against_rows(run, attempts, streams)
    tokens = np.where(attempts.output_tokens >= 0, attempts.output_tokens, streams.delivered)
    cost = _attempt_costs(attempts, tokens, prices)
    per_hour = prices.hourly if prices else 0.0
    untold = np.isnan(attempts.cost) & (per_hour > 0)
    spending = _spending(tokens, cost, untold, requests, request_of)
    deliveries = Deliveries(requests, attempts, streams, spending)
    answers, from_sent = (Answers(deliveries, window_ns[0], from_sent=sent) for sent in (False, True))
    # Watching ended as recorded, or else with the last thing that is known to have happened.
    last = max(int(each.max()) for each in (attempts.scheduled_ns, attempts.sent_ns, attempts.ended_ns))
    return JudgedRun(
        attempts=attempts,
        request_of=request_of,
        slos=slos,
        objective=objective,
        deliveries=deliveries,
        answers=answers,
        answers_from_sent=from_sent,
        judgement=judge(answers, objective, slos),
        judgement_from_sent=judge(from_sent, objective, slos),
        streams=streams,
        attempt_cost=cost[0] if cost else None,
        per_hour=per_hour,
        prices=prices,
        window_ns=window_ns,
        stopped_ns=last if run.manifest.stopped_ns is None else run.manifest.stopped_ns,
    )


def judge(answers: Answers, objective: Counts, slos: Sequence[SLO]) -> Judgement:
    """Hold each request against the gates of its own SLO, `slos[objective]`."""
    ok = answers.deliveries.ok
    missed = {gate.name: np.zeros(len(ok), np.bool_) for slo in slos for gate in slo.gates}
    for index, slo in enumerate(slos):
        mine = ok & (objective == index)
        for gate in slo.gates:
            missed[gate.name] |= mine & ~gate.met(answers)
    accepted = ok.copy()
    for column in missed.values():
        accepted &= ~column
    return Judgement(ok, accepted, missed)


def judge_batch(batch: pa.RecordBatch, objectives: Objectives) -> tuple[Ints, Bools]:
    """Of whole requests, as they end: the places of the rows that answered, and whether these are accepted."""
    judged = judge_run(Run.of(Manifest(source="proxy"), [batch]), objectives)
    rows = judged.deliveries.requests.rows
    return np.arange(batch.num_rows)[rows], judged.judgement.accepted


def _assign(attempts: Attempts, requests: Requests, objectives: Objectives) -> tuple[Counts, tuple[SLO, ...]]:
    """Which SLO each request is held against, and the SLOs."""
    if "workload_class" not in attempts.present:
        return np.zeros(len(requests), np.int32), (objectives.of(None),)
    codes = attempts.workload_class[requests.rows]
    present = np.flatnonzero(np.bincount(codes + 1)) - 1
    names = attempts.words["workload_class"]
    by_class = [objectives.of(names[code] if code >= 0 else None) for code in present]
    slos = list(dict.fromkeys(by_class))
    place = np.zeros(len(names) + 1, np.int32)  # the last of them without a class: its code is -1
    place[present] = [slos.index(slo) for slo in by_class]
    return place[codes], tuple(slos)


def _attempt_costs(attempts: Attempts, tokens: Ints, prices: Prices | None) -> tuple[Floats, Bools] | None:
    """What each attempt cost: as its row says, or else by the prices of requests and tokens; and whether that is all.

    What was never sent costs nothing. Where nobody tells how long a prompt was, the rest is charged.
    """
    sent, told = attempts.sent_ns != MISSING, ~np.isnan(attempts.cost)
    if prices is None or not prices.by_use:
        return (np.nan_to_num(attempts.cost), ~sent | told) if "cost" in attempts.present else None
    cached = np.maximum(attempts.cached_tokens, 0)
    cost = prices.of_each(np.maximum(attempts.prompt_tokens, cached), cached, tokens)  # some tell only what was cached
    known = told | ~sent | (attempts.prompt_tokens >= 0) | (not prices.per_million_input_tokens)
    return np.where(told, attempts.cost, np.where(sent, cost, 0.0)), known


def _spending(
    tokens: Ints, cost: tuple[Floats, Bools] | None, untold: Bools, requests: Requests, request_of: slice | Ints
) -> Spending:
    def by_request(values: Any) -> Any:
        if isinstance(request_of, slice):
            return values
        return np.bincount(request_of, weights=values, minlength=len(requests))

    mine: Ints = by_request(tokens).astype(np.int64, copy=False)
    if cost is None:
        nothing, unknown = (np.broadcast_to(np.float64(value), len(requests)) for value in (0.0, np.nan))
        return Spending(tokens, mine, nothing, np.isnan(unknown), unknown)
    spent, known = by_request(cost[0]), by_request(~cost[1]) == 0
    # By the hour nobody can say what a single request cost, unless its rows do.
    in_full = np.where(known & (by_request(untold) == 0), spent, np.nan)
    return Spending(tokens, mine, spent, known, in_full)


def _window(run: Run, attempts: Attempts, requests: Requests) -> tuple[int, int]:
    """The manifest's window. Without one: from the first arrival to the last and one mean gap more.

    So n requests count as n gaps; where all arrive at once, until the last of them ended. A run that was cut short is
    measured until the last arrival that is known.
    """
    first, last = int(requests.due_ns[0]), int(requests.due_ns[-1])
    given = run.manifest.window_ns
    if given is not None:
        return (given[0], min(given[1], max(last, given[0]) + 1)) if run.missing else (given[0], given[1])
    if last > first:
        return first, last + (last - first) // (len(requests) - 1)
    return first, max(int(attempts.ended_ns.max()), first + 1)


def _plan(
    attempts: Attempts,
    requests: Requests,
    request_of: slice | Ints,
    objective: Counts,
    slos: tuple[SLO, ...],
    window_ns: tuple[int, int],
) -> StreamPlan:
    block_of = np.full(len(attempts), -1, np.int32)
    inside = (requests.due_ns >= window_ns[0]) & (requests.due_ns < window_ns[1])
    counted = inside & (attempts.status[requests.rows] == OK) & (attempts.ends_only[requests.rows] != 1)
    place = np.repeat(np.arange(BLOCKS, dtype=np.int32), np.diff(block_bounds(requests.due_ns, window_ns)))
    block_of[requests.rows] = np.where(counted, place, -1)
    gates = [gate for slo in slos for gate in slo.gates]
    schedules = {slo.smooth.deadlines for slo in slos} | {g.deadlines for g in gates if hasattr(g, "deadlines")}
    custom = frozenset(each for each in schedules if isinstance(each, CustomDeadlines))
    return StreamPlan(
        kernel.ScanPlan(
            np.ascontiguousarray(attempts.scheduled_ns),
            objective[request_of],
            block_of,
            np.array([to_ns(next((g.within_s for g in slo.gates if isinstance(g, TTFT)), FIRST_S)) for slo in slos]),
            np.array([_expected_pace_ns(slo.smooth.deadlines) for slo in slos]),
        ),
        frozenset(pace_ns(each) for each in schedules if isinstance(each, LinearDeadlines) and each.pace),
        frozenset(gate.gap_share for gate in gates if hasattr(gate, "gap_share")),
        custom,
        requests.sent_ns[request_of] if custom else None,
    )


def _expected_pace_ns(deadlines: Deadlines) -> int:
    if isinstance(deadlines, LinearDeadlines) and deadlines.pace:
        return pace_ns(deadlines)
    return to_ns(PACE_S)


def _check_against_rows(run: Run, attempts: Attempts, streams: Streams) -> None:
    """Events lie between sending and end, and are no more than the tokens; if not, say where."""
    some, facts = streams.delivered > 0, streams.facts
    wrong = some & ((attempts.sent_ns == MISSING) | (facts.first < attempts.sent_ns))
    wrong |= some & (attempts.ended_ns != MISSING) & (facts.last > attempts.ended_ns)
    wrong |= (attempts.output_tokens >= 0) & (streams.delivered > attempts.output_tokens)
    if wrong.any():
        run.validate()
