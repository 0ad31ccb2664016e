"""Attempts, a row each, become logical requests; and requests become answers by one clock or the other."""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from openloop.arrays import Bools, Codes, Counts, Floats, Ints, Scalar
from openloop.records import Run
from openloop.records.schema import COLUMNS, KINDS, MISSING, STATUSES, check_attempts, check_rows, words
from openloop.score.streams import Streams
from openloop.slo import Deadlines, LinearDeadlines

OK, DROPPED, CENSORED = (STATUSES.index(status) for status in ("ok", "dropped", "censored"))
RETRY, HEDGE, REPAIR = (KINDS.index(kind) for kind in ("retry", "hedge", "repair"))
Where = slice | Ints | Bools


@dataclass(frozen=True)
class Attempts:
    """What is null in the table is MISSING here for times and ids, -1 for counts and labels, NaN for amounts.

    Words are codes: of `kind` and `status` into KINDS and STATUSES, of the others into `words`. `present` are the
    columns that are not null throughout.
    """

    request_id: Ints
    session_id: Ints
    turn: Counts
    attempt: Counts
    kind: Codes
    workload_class: Counts
    tenant: Counts
    replica: Counts
    scheduled_ns: Ints
    sent_ns: Ints
    ended_ns: Ints
    prompt_tokens: Counts
    cached_tokens: Counts
    output_tokens: Counts
    drafted_tokens: Counts
    accepted_draft_tokens: Counts
    recomputed_tokens: Counts
    preemptions: Counts
    merged_events: Counts
    ends_only: Codes
    status: Codes
    quality: Codes
    quality_score: Floats
    slices: Counts
    cost: Floats
    review_cost: Floats
    words: dict[str, tuple[str, ...]]
    present: frozenset[str]

    def __len__(self) -> int:
        return len(self.request_id)


def read_attempts(run: Run) -> Attempts:
    """Read and check every row, without its events: memory grows with attempts, not with tokens."""
    names = [field.name for field in fields(Attempts) if field.name in COLUMNS]
    checked = [name for name in COLUMNS if name not in ("event_ns", "event_tokens", "error", "finish_reason")]
    known = {name: dict[str, int]() for name in names if pa.types.is_string(COLUMNS[name].type)}
    known["kind"], known["status"] = ({word: i for i, word in enumerate(each)} for each in (KINDS, STATUSES))
    columns: dict[str, NDArray[Any]] = {}
    row = 0
    for batch in run.batches(checked, rows=100_000):
        check_rows(batch, row)
        stop = row + batch.num_rows
        for name in names:
            column, missing = batch.column(name), _missing(name)
            if name not in columns and column.null_count < len(column):
                columns[name] = np.empty(run.num_rows, missing.dtype)
                columns[name][:row] = missing
            if name in columns:
                columns[name][row:stop] = _values(column, missing, known.get(name, {}))
        row = stop
    # A column that is null throughout takes no memory.
    filled = {name: columns.get(name, np.broadcast_to(_missing(name), run.num_rows)) for name in names}
    check_attempts(filled["request_id"], filled["attempt"], filled["scheduled_ns"])
    return Attempts(**filled, words={name: tuple(each) for name, each in known.items()}, present=frozenset(columns))


def _missing(name: str) -> Any:
    kind = COLUMNS[name].type
    if pa.types.is_int64(kind):
        return np.int64(MISSING)
    if name in ("kind", "status", "quality", "ends_only"):  # few values, in every row
        return np.int8(-1)
    return np.float64(np.nan) if pa.types.is_floating(kind) else np.int32(-1)


def _values(column: pa.Array, missing: Any, known: dict[str, int]) -> NDArray[Any]:
    if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
        return words(column, known)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return np.asarray((column.fill_null(missing.item()) if column.null_count else column).to_numpy())


@dataclass(frozen=True)
class Spending:
    """What went into each request, all its attempts together."""

    tokens_by_attempt: Ints  # generated: as reported, or else as delivered
    tokens: Ints
    spent: Floats  # money, by request and token, as far as it is known
    known: Bools  # whether that is all of it
    cost: Floats  # of this request alone; NaN where it is not known in full

    def at(self, where: Where) -> "Spending":
        tokens, spent, known, cost = self.tokens[where], self.spent[where], self.known[where], self.cost[where]
        return Spending(self.tokens_by_attempt, tokens, spent, known, cost)


@dataclass(frozen=True)
class Requests:
    """Logical requests in order of their due times.

    `rows` is where the attempts are that answered the user; a slice, which saves copies, where every request has one.
    """

    rows: slice | Ints
    due_ns: Ints
    sent_ns: Ints  # when it was first sent; MISSING: never
    over_ns: Ints  # when its last attempt was over; MISSING: one was still in flight at the end
    retries: Ints  # retries and repairs

    def __len__(self) -> int:
        return len(self.due_ns)

    def at(self, where: Where) -> "Requests":
        columns = (self.due_ns, self.sent_ns, self.over_ns, self.retries)
        return Requests(_pick(self.rows, where), *(column[where] for column in columns))


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
        request_of = slice(0, len(attempts))
        retries = ((attempts.kind == RETRY) | (attempts.kind == REPAIR)).astype(np.int64)
        found = Requests(request_of, attempts.scheduled_ns, attempts.sent_ns, attempts.ended_ns, retries)
    else:
        found, request_of = _group(attempts)
    if np.all(found.due_ns[1:] >= found.due_ns[:-1]):
        return found, request_of
    order = np.argsort(found.due_ns, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found.at(order), place[request_of]


def _group(attempts: Attempts) -> tuple[Requests, Ints]:
    order = np.lexsort((*_preference(attempts), attempts.request_id))
    ids = attempts.request_id[order]
    new = np.concatenate([[True], ids[1:] != ids[:-1]])
    starts = np.flatnonzero(new)
    request_of = np.empty_like(order)
    request_of[order] = np.cumsum(new) - 1
    kind, sent, ended = attempts.kind[order], attempts.sent_ns[order], attempts.ended_ns[order]
    never = np.iinfo(np.int64).max
    first_sent = np.minimum.reduceat(np.where(sent == MISSING, never, sent), starts)
    running = np.logical_or.reduceat((sent != MISSING) & (ended == MISSING), starts)
    found = Requests(
        rows=order[starts],
        due_ns=attempts.scheduled_ns[order][starts],
        sent_ns=np.where(first_sent == never, MISSING, first_sent),
        over_ns=np.where(running, MISSING, np.maximum.reduceat(ended, starts)),
        retries=np.add.reduceat(((kind == RETRY) | (kind == REPAIR)).astype(np.int64), starts),
    )
    return found, request_of


def _preference(attempts: Attempts) -> tuple[Ints, Ints]:
    """Sort keys, the second before the first, that put the attempt which answered the user before the others.

    The last repair that went well replaces what it repaired; else the first attempt that went well; outputs labelled
    as bad come after all others; where nothing went well, it is the last attempt.
    """
    ok = attempts.status == OK
    repair = attempts.kind == REPAIR
    merit = np.select([ok & repair & (attempts.quality != 0), ok & (attempts.quality != 0), ok], [0, 1, 2], 3)
    tie = np.select([ok & repair, ok], [-attempts.ended_ns, attempts.ended_ns], -attempts.attempt.astype(np.int64))
    return tie, merit


@dataclass(frozen=True, eq=False)
class Deliveries:
    """What the users of these requests got, whatever clock it is measured by: a value per request."""

    requests: Requests
    attempts: Attempts
    streams: Streams
    spending: Spending

    def at(self, where: Where) -> "Deliveries":
        if isinstance(where, slice) and where == slice(0, len(self.requests)):
            return self  # all of them, with whatever was worked out before
        return Deliveries(self.requests.at(where), self.attempts, self.streams, self.spending.at(where))

    @cached_property
    def ok(self) -> Bools:
        return np.equal(self.of_attempt(self.attempts.status), OK)

    @cached_property
    def delivered(self) -> Ints:
        return self.of_attempt(self.streams.delivered)

    @cached_property
    def tokens(self) -> Ints:
        """Generated: as reported, or else as delivered."""
        return self.of_attempt(self.spending.tokens_by_attempt)

    @cached_property
    def first_ns(self) -> Ints:
        return self.of_attempt(self.streams.facts.first)

    @cached_property
    def last_ns(self) -> Ints:
        return self.of_attempt(self.streams.facts.last)

    @cached_property
    def done_ns(self) -> Ints:
        """When the user had all of it: the last token, or the end where nothing was streamed; MISSING: never."""
        return np.where(self.delivered > 0, self.last_ns, self.of_attempt(self.attempts.ended_ns))

    @cached_property
    def tpot_s(self) -> Floats:
        """(E2E - TTFT) / (n - 1)."""
        ends_told = (self.delivered > 1) & (self.of_attempt(self.attempts.output_tokens) >= 0)
        further = self.tokens - 1
        per_s = np.maximum(further, 1, out=further) * 1e9
        found = np.divide(self.last_ns - self.first_ns, per_s, out=per_s)
        return _known(found, self.gaps_told | ends_told | self.at_once)

    @cached_property
    def gaps_told(self) -> Bools:
        """Whether times between tokens are known, and not just the first and the last."""
        return np.asarray((self.delivered > 1) & (self.of_attempt(self.attempts.ends_only) != 1))

    @cached_property
    def single(self) -> Bools:
        """Whether it is known to have no more than one token."""
        told = (self.of_attempt(self.attempts.output_tokens) >= 0) | self._one_delivery
        return np.asarray(told & (self.tokens <= 1))

    @property
    def at_once(self) -> Bools:
        """Streams of several tokens in one delivery, which is first and last; how many it carried is not told."""
        return self._one_delivery & (self.tokens > 1)

    @cached_property
    def _one_delivery(self) -> Bools:
        return np.asarray((self.delivered == 1) & (self.of_attempt(self.attempts.ends_only) != 1))

    @cached_property
    def tbt_s(self) -> Floats:
        return _known(self.of_attempt(self.streams.facts.longest) / 1e9, self.gaps_told)

    @cached_property
    def jitter_s(self) -> Floats:
        facts = self.streams.facts
        return _known(self.of_attempt(facts.longest - facts.shortest) / 1e9, self.gaps_told)

    @property
    def all_told(self) -> Bools:
        return self.gaps_told | self.single | self.at_once

    @property
    def quality(self) -> Codes:
        return self.of_attempt(self.attempts.quality)

    @property
    def quality_score(self) -> Floats:
        return self.of_attempt(self.attempts.quality_score)

    def of_attempt(self, column: NDArray[Scalar]) -> NDArray[Scalar]:
        """A column over attempts, at those that answered."""
        return column[self.requests.rows]


def _either(name: str) -> Any:
    """Of deliveries: the same by either clock."""
    return property(attrgetter(f"deliveries.{name}"))


class Answers:
    """Deliveries by one clock: from when requests were due, or from when they were sent. Gates look at these."""

    tokens: Ints = _either("tokens")
    single: Bools = _either("single")
    tpot_s: Floats = _either("tpot_s")
    tbt_s: Floats = _either("tbt_s")
    jitter_s: Floats = _either("jitter_s")
    quality: Codes = _either("quality")
    quality_score: Floats = _either("quality_score")
    retries: Ints = _either("requests.retries")
    cost: Floats = _either("spending.cost")

    def __init__(self, deliveries: Deliveries, opened_ns: int, *, from_sent: bool) -> None:
        self.deliveries = deliveries
        self.opened_ns = opened_ns
        self.from_sent = from_sent
        self._origin_ns = deliveries.requests.sent_ns if from_sent else deliveries.requests.due_ns

    def of(self, deliveries: Deliveries) -> "Answers":
        """Others by the same clock; the same ones with whatever was worked out before."""
        if deliveries is self.deliveries:
            return self
        return Answers(deliveries, self.opened_ns, from_sent=self.from_sent)

    @property
    def timed(self) -> Bools:
        return self.deliveries.gaps_told | self.deliveries.single

    @cached_property
    def ttft_s(self) -> Floats:
        return _known(self._since(self.deliveries.first_ns), self.deliveries.delivered > 0)

    @property
    def longest_wait_s(self) -> Floats:
        """For the first token, or between two."""
        return _known(np.fmax(self.ttft_s, self.tbt_s), self.timed)

    @cached_property
    def e2e_s(self) -> Floats:
        return _known(self._since(self.deliveries.done_ns), self.deliveries.done_ns != MISSING)

    @property
    def completion_s(self) -> Floats:
        done_ns = self.deliveries.done_ns
        return _known((done_ns - self.opened_ns) / 1e9, done_ns != MISSING)

    def itl_s(self, share: float) -> Floats:
        gaps = self.deliveries.of_attempt(self.deliveries.streams.gap_at[share])
        return _known(gaps / 1e9, self.deliveries.gaps_told)

    def lateness_s(self, deadlines: Deadlines) -> Floats:
        """max over i of (t_i - d_i) over the tokens whose times are known; NaN where there are none."""
        if not isinstance(deadlines, LinearDeadlines):
            late = self.deliveries.of_attempt(self.deliveries.streams.late_by[deadlines, self.from_sent])
            return _known(np.array(late), self.deliveries.all_told)
        late_later = self._latest_over(deadlines) - deadlines.offset
        return np.fmax(self.ttft_s - deadlines.first, _known(late_later, self.deliveries.gaps_told))

    def next_due_s(self, deadlines: Deadlines) -> Floats:
        """d of the token after the last that came: what the user of an unfinished request was waiting for."""
        told = self.deliveries.gaps_told
        delivered = np.where(told, self.deliveries.delivered, np.minimum(self.deliveries.delivered, 1))
        first = np.where(delivered > 0, self.ttft_s, 0.0)
        last = np.where(told, self._since(self.deliveries.last_ns), first)
        return deadlines.due(delivered + 1, first, last)

    def _latest_over(self, deadlines: LinearDeadlines) -> Floats:
        """max over i > 1 of (t_i - origin - pace * i), in seconds."""
        if deadlines.origin == "previous":
            return self.deliveries.tbt_s
        latest = self.deliveries.last_ns
        if deadlines.pace:
            latest = self.deliveries.of_attempt(self.deliveries.streams.reach_at[pace_ns(deadlines)])
        return (latest - self.deliveries.first_ns) / 1e9 if deadlines.origin == "first" else self._since(latest)

    def _since(self, ns: Ints) -> Floats:
        """Seconds on the clock; NaN where it never started."""
        return _known(seconds_between(self._origin_ns, ns), self._origin_ns != MISSING)


def pace_ns(deadlines: LinearDeadlines) -> int:
    """Rounded up: a token may be late by a nanosecond per token before it counts, and never counts too early."""
    return math.ceil(deadlines.pace * 1e9)


def seconds_between(earlier_ns: Ints, later_ns: Ints) -> Floats:
    """(later - earlier) / 1e9, in the memory of the result: fresh memory costs more than arithmetic."""
    found = np.subtract(later_ns, earlier_ns, np.empty(len(later_ns)), dtype=np.int64, casting="unsafe")
    found /= 1e9
    return found


def _known(values: Floats, where: Bools) -> Floats:
    """`values`, made NaN wherever they are not known."""
    if not where.all():
        values[~where] = np.nan
    return values
