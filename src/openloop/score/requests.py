"""Attempts become logical requests, and requests become answers by one clock or the other."""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from openloop.records import MISSING
from openloop.score.attempts import OK, REPAIR, RETRY, Attempts
from openloop.score.streams import Streams
from openloop.slo import CustomDeadlines, Deadlines, LinearDeadlines
from openloop.units import to_ns

__all__ = ["Answers", "Deliveries", "Requests", "Where", "group_attempts"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Where = slice | Ints | Bools
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Requests:
    """Logical requests in order of their due times.

    `rows` is where the attempts are that answered the user: the first that went well (and was not labelled as bad), or
    the last one where none did. It is a slice where every request has one attempt, which saves copies. Sums are over
    all attempts.
    """

    rows: slice | Ints
    due_ns: Ints
    sent_ns: Ints  # when it was first sent; MISSING: never
    retries: Ints  # retries and repairs
    cost: Floats  # NaN: not known

    def __len__(self) -> int:
        return len(self.due_ns)

    def at(self, where: Where) -> "Requests":
        return Requests(
            _pick(self.rows, where), self.due_ns[where], self.sent_ns[where], self.retries[where], self.cost[where]
        )


def _pick(rows: slice | Ints, where: Where) -> slice | Ints:
    if not isinstance(rows, slice):
        return rows[where]
    if isinstance(where, slice):
        return slice(rows.start + where.start, rows.start + where.stop)
    return np.arange(rows.start, rows.stop)[where]


def group_attempts(attempts: Attempts) -> tuple[Requests, slice | Ints]:
    """All logical requests of a run, and for each attempt the place of its request among them."""
    request_of: slice | Ints
    if np.all(attempts.request_id[1:] > attempts.request_id[:-1]):  # one attempt each: nothing to group
        everything, no_retries = slice(0, len(attempts)), np.broadcast_to(np.int64(0), len(attempts))
        found = Requests(everything, attempts.scheduled_ns, attempts.sent_ns, no_retries, attempts.cost)
        request_of = everything
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
        rows=order[starts],
        due_ns=np.minimum.reduceat(attempts.scheduled_ns[order], starts),
        sent_ns=np.where(first_sent == np.iinfo(np.int64).max, MISSING, first_sent),
        retries=np.add.reduceat(((kind == RETRY) | (kind == REPAIR)).astype(np.int64), starts),
        cost=np.where(np.logical_or.reduceat(known, starts), cost, np.nan),
    )
    return found, request_of


class Deliveries:
    """What the users of these requests got, whatever clock it is measured by: a value per request."""

    def __init__(self, requests: Requests, attempts: Attempts, streams: Streams, tokens: Ints) -> None:
        self.requests = requests
        self._attempts = attempts
        self._streams = streams
        self._tokens = tokens

    def at(self, where: Where) -> "Deliveries":
        if isinstance(where, slice) and where == slice(0, len(self.requests)):
            return self  # all of them, with whatever was worked out before
        return Deliveries(self.requests.at(where), self._attempts, self._streams, self._tokens)

    @cached_property
    def ok(self) -> Bools:
        return np.equal(self.of_attempt(self._attempts.status), OK)

    @cached_property
    def delivered(self) -> Ints:
        return self.of_attempt(self._streams.delivered)

    @cached_property
    def tokens(self) -> Ints:
        """Generated: as reported, or else as delivered."""
        return self.of_attempt(self._tokens)

    @cached_property
    def first_ns(self) -> Ints:
        return self.of_attempt(self._streams.facts.first)

    @cached_property
    def last_ns(self) -> Ints:
        return self.of_attempt(self._streams.facts.last)

    @cached_property
    def done_ns(self) -> Ints:
        """When the user had all of it: the last token, or the end where nothing was streamed; MISSING: never."""
        return np.where(self.delivered > 0, self.last_ns, self.of_attempt(self._attempts.ended_ns))

    @cached_property
    def tpot_s(self) -> Floats:
        """(E2E - TTFT) / (n - 1)."""
        further = np.maximum(self.tokens - 1, 1) * 1e9
        return _known((self.last_ns - self.first_ns) / further, (self.delivered > 0) & (self.tokens > 1))

    @cached_property
    def tbt_s(self) -> Floats:
        return _known(self.of_attempt(self._streams.facts.longest) / 1e9, self.delivered > 1)

    @cached_property
    def jitter_s(self) -> Floats:
        facts = self._streams.facts
        return _known(self.of_attempt(facts.longest - facts.shortest) / 1e9, self.delivered > 1)

    def reach_ns(self, pace_ns: int) -> Ints:
        return self.of_attempt(self._streams.reach_at[pace_ns])

    def itl_s(self, share: float) -> Floats:
        return self.of_attempt(self._streams.gap_at[share]) / 1e9

    def late_by_s(self, deadlines: CustomDeadlines, *, from_sent: bool) -> Floats:
        return self.of_attempt(self._streams.late_by[deadlines, from_sent])

    @property
    def qoe(self) -> NDArray[np.float32]:
        return self.of_attempt(self._streams.facts.qoe)

    @property
    def fluidity(self) -> NDArray[np.float32]:
        return self.of_attempt(self._streams.facts.fluidity)

    @property
    def quality(self) -> NDArray[np.int8]:
        return self.of_attempt(self._attempts.quality)

    @property
    def quality_score(self) -> Floats:
        return self.of_attempt(self._attempts.quality_score)

    def of_attempt(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        """A column over attempts, at those that answered."""
        return column[self.requests.rows]


class Answers:
    """Deliveries by one clock: from when requests were due, or from when they were sent. Gates look at these."""

    def __init__(self, deliveries: Deliveries, opened_ns: int, *, from_sent: bool) -> None:
        self.deliveries = deliveries
        self.opened_ns = opened_ns
        self.from_sent = from_sent
        self._origin_ns = deliveries.requests.sent_ns if from_sent else deliveries.requests.due_ns

    @property
    def tokens(self) -> Ints:
        return self.deliveries.tokens

    @cached_property
    def ttft_s(self) -> Floats:
        return _known(self._since(self.deliveries.first_ns), self.deliveries.delivered > 0)

    @property
    def tpot_s(self) -> Floats:
        return self.deliveries.tpot_s

    @property
    def tbt_s(self) -> Floats:
        return self.deliveries.tbt_s

    @property
    def jitter_s(self) -> Floats:
        return self.deliveries.jitter_s

    @cached_property
    def e2e_s(self) -> Floats:
        return _known(self._since(self.deliveries.done_ns), self.deliveries.done_ns != MISSING)

    @property
    def completion_s(self) -> Floats:
        done_ns = self.deliveries.done_ns
        return _known((done_ns - self.opened_ns) / 1e9, done_ns != MISSING)

    @property
    def quality(self) -> NDArray[np.int8]:
        return self.deliveries.quality

    @property
    def quality_score(self) -> Floats:
        return self.deliveries.quality_score

    @property
    def retries(self) -> Ints:
        return self.deliveries.requests.retries

    @property
    def cost(self) -> Floats:
        return self.deliveries.requests.cost

    def itl_s(self, share: float) -> Floats:
        return self.deliveries.itl_s(share)

    def lateness_s(self, deadlines: Deadlines) -> Floats:
        """max over i of (t_i - d_i); NaN where no token came."""
        if not isinstance(deadlines, LinearDeadlines):
            return self.deliveries.late_by_s(deadlines, from_sent=self.from_sent)
        late_first = self.ttft_s - deadlines.first
        late_later = self._latest_over(deadlines) - deadlines.offset
        return np.fmax(late_first, _known(late_later, self.deliveries.delivered > 1))

    def next_due_s(self, deadlines: Deadlines) -> Floats:
        """d of the token after the last that came: what the user of an unfinished request was waiting for."""
        delivered = self.deliveries.delivered
        first = np.where(delivered > 0, self.ttft_s, 0.0)
        last = np.where(delivered > 0, self._since(self.deliveries.last_ns), 0.0)
        return deadlines.due(delivered + 1, first, last)

    def _latest_over(self, deadlines: LinearDeadlines) -> Floats:
        """max over i > 1 of (t_i - origin - pace * i), in seconds."""
        if deadlines.origin == "previous":
            return self.deliveries.tbt_s
        latest = self.deliveries.reach_ns(to_ns(deadlines.pace)) if deadlines.pace else self.deliveries.last_ns
        return (latest - self.deliveries.first_ns) / 1e9 if deadlines.origin == "first" else self._since(latest)

    def _since(self, ns: Ints) -> Floats:
        """Seconds on the clock; NaN where it never started."""
        return _known((ns - self._origin_ns) / 1e9, self._origin_ns != MISSING)


def _known(values: Floats, where: Bools) -> Floats:
    """`values`, made NaN wherever they are not known."""
    if not where.all():
        values[~where] = np.nan
    return values
