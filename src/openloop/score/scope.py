"""A run, read and judged; and the part of it that a metric looks at."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from openloop.arrays import Bools, Counts, Floats, Ints
from openloop.records import MISSING, Prices
from openloop.score.quantiles import Sample, block_bounds
from openloop.score.requests import Answers, Attempts, Deliveries, Where
from openloop.score.streams import Streams
from openloop.slo import SLO


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
        count = sum(self.missed.values(), np.zeros(due, np.int8))

        def by_itself(failed: Bools, alone: int) -> GateScore:
            passed = int(np.sum(self.ok & ~failed))
            return GateScore(int(failed.sum()), alone, passed / due if due else np.nan, passed / seconds)

        failed = int(np.sum(~self.ok))
        scores = {"success": GateScore(failed, failed, 1 - failed / due if due else np.nan, (due - failed) / seconds)}
        return scores | {
            name: by_itself(missed, int(np.sum(missed & (count == 1)))) for name, missed in self.missed.items()
        }

    def joint_failures(self) -> list[JointFailure]:
        """Every combination of gates that completed requests missed together, most frequent first."""
        stopped = self.ok & ~self.accepted
        code = np.zeros(int(stopped.sum()), np.int64)
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
    def everyone(self) -> "Scope":
        return Scope(self, slice(0, len(self.deliveries.requests)), self.window_ns)

    @cached_property
    def whole(self) -> "Scope":
        """The requests that were due in the measured window."""
        return self.between(*self.window_ns)

    def between(self, start_ns: int, end_ns: int) -> "Scope":
        start, stop = np.searchsorted(self.deliveries.requests.due_ns, (start_ns, end_ns))
        return Scope(self, slice(int(start), int(stop)), (start_ns, end_ns))


@dataclass(frozen=True)
class Scope:
    """Some of a run's requests, in order of their due times, and the stretch of time their rates refer to."""

    run: JudgedRun
    where: slice | Ints  # places among all requests
    window_ns: tuple[int, int]
    without_ns: tuple[tuple[int, int], ...] = ()  # stretches of the window that are left out, in order

    @property
    def places(self) -> Ints:
        return np.arange(self.where.start, self.where.stop) if isinstance(self.where, slice) else self.where

    def part(self, those: Bools | Ints) -> "Scope":
        return Scope(self.run, self.places[those], self.window_ns, self.without_ns)

    @property
    def n(self) -> int:
        return len(self.due_ns)

    @property
    def seconds(self) -> float:
        left_out = sum(end - start for start, end in self.without_ns)
        return (self.window_ns[1] - self.window_ns[0] - left_out) / 1e9

    @cached_property
    def due_ns(self) -> Ints:
        return self.run.deliveries.requests.due_ns[self.where]

    @cached_property
    def deliveries(self) -> Deliveries:
        return self.run.deliveries.at(self.where)

    @cached_property
    def answers(self) -> Answers:
        return self.run.answers.of(self.deliveries)

    @cached_property
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

    @cached_property
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

    @cached_property
    def e2e_s(self) -> Sample:
        return self.sample(self.answers.e2e_s)

    @cached_property
    def lag_s(self) -> Sample:
        """How much later than due each request was first sent."""
        sent_ns = self.deliveries.requests.sent_ns
        return Sample((sent_ns - self.due_ns) / 1e9, sent_ns != MISSING, self.bounds)

    @cached_property
    def of_attempts(self) -> Bools:
        """By attempt: whether it was made at one of these requests."""
        chosen = np.zeros(len(self.run.deliveries.requests), np.bool_)
        chosen[self.where] = True
        return chosen[self.run.request_of]

    @cached_property
    def left_ns(self) -> Ints:
        """When each request left the system: with its answer, or when the last attempt at it was given up.

        One that was still in flight leaves when watching ended; one that was never sent was never in it.
        """
        requests, ok = self.deliveries.requests, self.deliveries.ok
        over = np.where(requests.over_ns != MISSING, requests.over_ns, self.run.stopped_ns)
        left = np.maximum(np.where(ok, self.deliveries.done_ns, over), self.due_ns)
        return np.where(requests.sent_ns != MISSING, left, self.due_ns)
