"""Attempts become logical requests, and requests become answers by one clock or the other."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openloop.records import MISSING
from openloop.score.attempts import HEDGE, OK, REPAIR, RETRY, Attempts
from openloop.score.streams import Streams
from openloop.slo import Deadlines, LinearDeadlines
from openloop.units import to_ns

__all__ = ["Answers", "Requests", "group_attempts"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Requests:
    """Logical requests in order of their due times.

    `row` is the attempt that answered the user: the first that went well (and was not labelled as bad), or the last
    one where none did. Sums are over all attempts.
    """

    row: Ints
    due_ns: Ints
    sent_ns: Ints  # when it was first sent; MISSING: never
    attempts: Ints
    retries: Ints  # retries and repairs
    hedges: Ints
    cost: Floats  # NaN: not known

    def __len__(self) -> int:
        return len(self.row)

    def at(self, where: NDArray[Any]) -> "Requests":
        """The requests at an index or mask."""
        return Requests(*(getattr(self, name)[where] for name in self.__dataclass_fields__))


def group_attempts(attempts: Attempts) -> tuple[Requests, Ints]:
    """All logical requests of a run, and for each attempt the place of its request among them."""
    if np.all(attempts.request_id[1:] > attempts.request_id[:-1]):  # one attempt each: nothing to group
        row = np.arange(len(attempts))
        none, one = (np.broadcast_to(np.int64(n), len(row)) for n in (0, 1))
        found = Requests(row, attempts.scheduled_ns, attempts.sent_ns, one, none, none, attempts.cost)
        request_of = row
    else:
        found, request_of = _group(attempts)
    if np.all(found.due_ns[1:] >= found.due_ns[:-1]):
        return found, request_of
    order = np.argsort(found.due_ns, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found.at(order), place[request_of]


def _group(attempts: Attempts) -> tuple[Requests, Ints]:
    ok = attempts.status == OK
    # Best first: answered and not bad, answered, not answered; the earliest of the answered, the last of the others.
    merit = np.where(ok & (attempts.quality != 0), 0, np.where(ok, 1, 2))
    order = np.lexsort((np.where(ok, attempts.ended_ns, -attempts.attempt), merit, attempts.request_id))
    ids = attempts.request_id[order]
    new = np.concatenate([[True], ids[1:] != ids[:-1]])
    starts = np.flatnonzero(new)
    request_of = np.empty_like(order)
    request_of[order] = np.cumsum(new) - 1
    kind = attempts.kind[order]
    sent = np.where(attempts.sent_ns == MISSING, np.iinfo(np.int64).max, attempts.sent_ns)[order]
    first_sent = np.minimum.reduceat(sent, starts)
    known = ~np.isnan(attempts.cost[order])
    cost = np.add.reduceat(np.where(known, attempts.cost[order], 0.0), starts)
    found = Requests(
        row=order[starts],
        due_ns=np.minimum.reduceat(attempts.scheduled_ns[order], starts),
        sent_ns=np.where(first_sent == np.iinfo(np.int64).max, MISSING, first_sent),
        attempts=np.diff(np.append(starts, len(order))),
        retries=np.add.reduceat(((kind == RETRY) | (kind == REPAIR)).astype(np.int64), starts),
        hedges=np.add.reduceat((kind == HEDGE).astype(np.int64), starts),
        cost=np.where(np.logical_or.reduceat(known, starts), cost, np.nan),
    )
    return found, request_of


class Answers:
    """What the users of these requests saw, by one clock: from when they were due, or from when they were sent."""

    def __init__(self, requests: Requests, attempts: Attempts, streams: Streams, opened_ns: int, *, from_sent: bool) -> None:
        self.requests = requests
        self.from_sent = from_sent
        self._attempts = attempts
        self._streams = streams
        self._opened_ns = opened_ns
        self._origin_ns = requests.sent_ns if from_sent else requests.due_ns

    def at(self, where: NDArray[Any]) -> "Answers":
        return Answers(self.requests.at(where), self._attempts, self._streams, self._opened_ns, from_sent=self.from_sent)

    @cached_property
    def ok(self) -> Bools:
        return self._attempts.status[self.requests.row] == OK

    @cached_property
    def delivered(self) -> Ints:
        return self._streams.delivered[self.requests.row]

    @cached_property
    def tokens(self) -> Ints:
        """Generated tokens: as reported, or else as delivered."""
        reported = self._attempts.output_tokens[self.requests.row]
        return np.where(reported >= 0, reported, self.delivered)

    @cached_property
    def done_ns(self) -> Ints:
        """When the user had all of it: the last token, or the end where nothing was streamed; MISSING: never."""
        return np.where(self.delivered > 0, self._fact("last"), self._attempts.ended_ns[self.requests.row])

    @cached_property
    def ttft_s(self) -> Floats:
        return np.where(self.delivered > 0, self._since(self._fact("first")), np.nan)

    @cached_property
    def e2e_s(self) -> Floats:
        return np.where(self.done_ns != MISSING, self._since(self.done_ns), np.nan)

    @cached_property
    def tpot_s(self) -> Floats:
        """(E2E - TTFT) / (n - 1)."""
        span = np.where(self.delivered > 0, self._fact("last") - self._fact("first"), np.nan)
        return span / np.where(self.tokens > 1, self.tokens - 1, np.nan) / 1e9

    @cached_property
    def tbt_s(self) -> Floats:
        return np.where(self.delivered > 1, self._fact("longest") / 1e9, np.nan)

    @cached_property
    def jitter_s(self) -> Floats:
        return np.where(self.delivered > 1, (self._fact("longest") - self._fact("shortest")) / 1e9, np.nan)

    @cached_property
    def completion_s(self) -> Floats:
        return np.where(self.done_ns != MISSING, (self.done_ns - self._opened_ns) / 1e9, np.nan)

    @property
    def quality(self) -> NDArray[np.int32]:
        return self._attempts.quality[self.requests.row]

    @property
    def quality_score(self) -> Floats:
        return self._attempts.quality_score[self.requests.row]

    @property
    def retries(self) -> Ints:
        return self.requests.retries

    @property
    def cost(self) -> Floats:
        return self.requests.cost

    @property
    def qoe(self) -> Floats:
        return self._fact("qoe")

    @property
    def fluidity(self) -> Floats:
        return self._fact("fluidity")

    def itl_s(self, share: float) -> Floats:
        return self._streams.gap_at[share][self.requests.row] / 1e9

    def lateness_s(self, deadlines: Deadlines) -> Floats:
        """max over i of (t_i - d_i); NaN where no token came."""
        if not isinstance(deadlines, LinearDeadlines):
            return self._streams.late_by[deadlines, self.from_sent][self.requests.row]
        late_first = self.ttft_s - deadlines.first
        late_later = self._latest_over(deadlines) - deadlines.offset
        return np.where(self.delivered > 1, np.maximum(late_first, late_later), late_first)

    def next_due_s(self, deadlines: Deadlines) -> Floats:
        """d of the token after the last that came: what the user of an unfinished request was waiting for."""
        first, last = np.nan_to_num(self.ttft_s), np.where(self.delivered > 0, self._since(self._fact("last")), 0.0)
        return deadlines.due(self.delivered + 1, first, last)

    def _latest_over(self, deadlines: LinearDeadlines) -> Floats:
        """max over i > 1 of (t_i - origin - pace * i), in seconds."""
        if deadlines.origin == "previous":
            return self._fact("longest") / 1e9
        if deadlines.pace:
            latest = self._streams.reach_at[to_ns(deadlines.pace)][self.requests.row]
        else:
            latest = self._fact("last")
        return (latest - self._fact("first")) / 1e9 if deadlines.origin == "first" else self._since(latest)

    def _fact(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = getattr(self._streams.facts, name)
        return column[self.requests.row]

    def _since(self, ns: Ints) -> Floats:
        """Seconds on the clock; NaN where it never started."""
        return np.where(self._origin_ns != MISSING, (ns - self._origin_ns) / 1e9, np.nan)
