"""A run, read and judged; and the part of it that a metric looks at."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from openloop.records import MISSING
from openloop.score.attempts import Attempts
from openloop.score.judge import Judgement
from openloop.score.quantiles import slice_bounds
from openloop.score.requests import Answers
from openloop.score.streams import GapPool
from openloop.slo import SLO

__all__ = ["JudgedRun", "Scope"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class JudgedRun:
    """Every request of a run, by both clocks: from when it was due, and from when it was sent."""

    attempts: Attempts
    tokens: Ints  # generated, by attempt
    request_of: Ints  # by attempt
    slos: tuple[SLO, ...]
    objective: NDArray[np.int32]  # by request: which of the SLOs
    answers: Answers
    judgement: Judgement
    answers_from_sent: Answers
    judgement_from_sent: Judgement
    gaps: GapPool
    window_ns: tuple[int, int]
    stopped_ns: int

    @cached_property
    def whole(self) -> "Scope":
        """The requests that were due in the measured window."""
        due = self.answers.requests.due_ns
        start, stop = np.searchsorted(due, self.window_ns)
        return Scope(self, np.arange(start, stop), self.window_ns)


@dataclass(frozen=True)
class Scope:
    """Some of a run's requests, in order of their due times, and the stretch of time their rates refer to."""

    run: JudgedRun
    where: Ints
    window_ns: tuple[int, int]

    def part(self, mask: Bools, window_ns: tuple[int, int] | None = None) -> "Scope":
        return Scope(self.run, self.where[mask], window_ns or self.window_ns)

    @property
    def requests(self) -> int:
        return len(self.where)

    @property
    def seconds(self) -> float:
        return (self.window_ns[1] - self.window_ns[0]) / 1e9

    @cached_property
    def answers(self) -> Answers:
        return self.run.answers.at(self.where)

    @cached_property
    def answers_from_sent(self) -> Answers:
        return self.run.answers_from_sent.at(self.where)

    @cached_property
    def judgement(self) -> Judgement:
        return self.run.judgement.at(self.where)

    @cached_property
    def judgement_from_sent(self) -> Judgement:
        return self.run.judgement_from_sent.at(self.where)

    @cached_property
    def bounds(self) -> Ints:
        return slice_bounds(self.answers.requests.due_ns, self.window_ns)

    @cached_property
    def attempts(self) -> Bools:
        """By attempt: whether it was made at one of these requests."""
        chosen = np.zeros(len(self.run.answers.requests), np.bool_)
        chosen[self.where] = True
        return chosen[self.run.request_of]

    @cached_property
    def is_answer(self) -> Bools:
        """By attempt: whether it is what one of these users got in the end."""
        answer = np.zeros(len(self.run.attempts), np.bool_)
        answer[self.answers.requests.row] = True
        return answer

    @cached_property
    def left_ns(self) -> Ints:
        """When each request left the system; one that was never sent was never in it."""
        due = self.answers.requests.due_ns
        left = np.where(self.answers.done_ns != MISSING, self.answers.done_ns, self.run.stopped_ns)
        return np.where(self.answers.requests.sent_ns != MISSING, np.maximum(left, due), due)

    def words(self, column: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Codes of a column of words, by request, and what they stand for."""
        codes: NDArray[np.int32] = getattr(self.run.attempts, column)[self.answers.requests.row]
        return codes, self.run.attempts.words[column]
