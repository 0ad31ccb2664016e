"""The pass over token events, batch by batch: a run of any size in the memory of one row group."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from openloop.arrays import Floats, Ints, only
from openloop.errors import SpecError
from openloop.records import LARGEST_EVENT, Run, split
from openloop.score import kernel
from openloop.score.quantiles import BLOCKS, LADDER, Ladder, Percentiles, interpolated, percentiles
from openloop.slo import CustomDeadlines

Progress = Callable[[int, int], None]

PIECE = 2_000_000  # tokens looked at together


@dataclass(frozen=True)
class StreamPlan:
    """What each row is held against, and what the pass is to find out beyond the usual."""

    rows: kernel.ScanPlan
    paces_ns: frozenset[int] = frozenset()  # reading paces that are asked for
    gap_shares: frozenset[float] = frozenset()
    custom: frozenset[CustomDeadlines] = frozenset()
    first_sent_ns: Ints | None = None  # by row: when its request was first sent; custom deadlines need it


@dataclass(frozen=True)
class Streams:
    """What the events say about each row."""

    facts: kernel.RowFacts
    delivered: Ints  # tokens
    reach_at: dict[int, Ints]
    gap_at: dict[float, Floats]
    late_by: dict[tuple[CustomDeadlines, bool], Floats]  # seconds, by schedule and whether the clock starts at sending
    gaps: "GapPool"
    plan: StreamPlan

    def serves(self, plan: StreamPlan) -> bool:
        """Whether all that another plan asks for is known, but for what depends on when first tokens are expected."""
        paces, wanted = (each.rows.pace_ns[each.rows.objective] for each in (self.plan, plan))
        known = plan.paces_ns <= self.plan.paces_ns and plan.gap_shares <= self.plan.gap_shares
        return known and plan.custom <= self.plan.custom and np.array_equal(paces, wanted)


class GapPool:
    """All gaps between tokens of completed requests.

    Quantiles are exact for runs of up to EXACT events; beyond, they are read off a histogram and are within 0.025%.
    """

    EXACT = 1 << 23

    def __init__(self, num_events: int) -> None:
        self.counts = kernel.GapCounts.of(BLOCKS)
        self.room = np.empty(self.EXACT if num_events <= self.EXACT else 0, np.int64)
        self.written = 0
        self.mean = np.nan

    def close(self, total_ns: float) -> None:
        """Rank what was collected; `total_ns` is the sum of all gaps. Nothing is added after this."""
        total = self.counts.total()
        pooled = total.sum(axis=0)
        some = np.flatnonzero(pooled)  # most bins are empty
        self._histogram, self._cumulative = total[:, some], np.cumsum(pooled[some])
        self._lows, self._values = (edges[some] / 1e9 for edges in kernel.bin_edges_and_values())
        self.n = int(pooled.sum())
        self.mean = total_ns / 1e9 / self.n if self.n else np.nan
        self.room = np.sort(self.room[: self.written]) if self.written == self.n else self.room[:0]

    def quantile(self, share: float) -> float:
        if len(self.room):
            return interpolated(self.room, share, self.n) / 1e9
        return float(self._values[np.searchsorted(self._cumulative, share * (self.n - 1), side="right")])

    @cached_property
    def percentiles(self) -> Percentiles | None:
        """By either clock the same. After this the gaps, which are many times as large, are of no use to anybody."""
        found = percentiles(self)
        del self.counts, self._histogram, self.room, self._cumulative, self._lows, self._values
        steps = {name: getattr(found, name) for name in (*LADDER, "mean")} if found else {}
        return found and replace(found, from_sent=Ladder(**steps))

    def below(self, value: float) -> tuple[Ints, Ints]:
        bins = np.searchsorted(self._lows, value, side="right")
        return self._histogram[:, :bins].sum(axis=1), self._histogram.sum(axis=1)


def read_streams(run: Run, plan: StreamPlan, progress: Progress | None = None) -> Streams:
    rows = run.num_rows
    facts = kernel.RowFacts.of(rows)
    streams = Streams(
        facts,
        np.zeros(rows, np.int64),
        {
            pace: facts.reach if np.all(plan.rows.pace_ns == pace) else np.zeros(rows, np.int64)
            for pace in plan.paces_ns
        },
        {share: np.full(rows, np.nan) for share in plan.gap_shares},
        {(custom, sent): np.full(rows, np.nan) for custom in plan.custom for sent in (False, True)},
        GapPool(run.num_events),
        plan,
    )
    start = 0
    for batch in run.batches(["event_ns", "event_tokens"]):
        for piece in split(batch, PIECE, PIECE):
            stop = start + piece.num_rows
            if not _read_batch(piece, plan, streams, slice(start, stop)):
                run.validate()  # reads it again, to say which row it is and what is wrong there
            start = stop
        if progress:
            progress(start, rows)
    counted = plan.rows.block_of >= 0
    streams.gaps.close(float(np.sum(only(facts.last - facts.first, counted), dtype=np.float64)))
    return streams


def read_again(run: Run, plan: StreamPlan, before: Streams) -> Streams:
    """The streams of the same run for a plan that `before` serves."""
    facts = before.facts._replace(qoe=before.facts.qoe.copy(), fluidity=before.facts.fluidity.copy())
    start = 0
    for batch in run.batches(["event_ns", "event_tokens"]):
        rows = slice(start, start + batch.num_rows)
        kernel.scan_again(*_token_times(batch), plan.rows.part(rows), facts.part(rows))
        start = rows.stop
    return replace(before, facts=facts, plan=plan)


def _read_batch(batch: pa.RecordBatch, plan: StreamPlan, streams: Streams, rows: slice) -> bool:
    """False where the events cannot be right."""
    if batch.column("event_ns").null_count or any(lists.values.null_count for lists in batch.columns):
        return False
    ns, offsets = _token_times(batch)
    if len(offsets) != batch.num_rows + 1:
        return False
    streams.delivered[rows] = lengths = np.diff(offsets)
    gaps, facts = streams.gaps, streams.facts.part(rows)
    places = np.empty(lengths.max(initial=0), np.uint32)
    written, backwards = kernel.scan(
        ns, offsets, plan.rows.part(rows), gaps.counts, gaps.room[gaps.written :], places, facts
    )
    gaps.written += written
    for pace, reach in streams.reach_at.items():
        if reach is not streams.facts.reach:
            kernel.reach_at_pace(ns, offsets, pace, reach[rows])
    room = np.empty(len(places) if streams.gap_at else 0, np.int64)
    for share, values in streams.gap_at.items():
        kernel.gap_quantiles(ns, offsets, share, room, values[rows])
    for (custom, sent), late in streams.late_by.items():
        origin = plan.first_sent_ns if sent and plan.first_sent_ns is not None else plan.rows.arrival
        late[rows] = _lateness(custom, ns, offsets, origin[rows])
    return bool(backwards < 0)


def _token_times(batch: pa.RecordBatch) -> tuple[Ints, Ints]:
    """When each token of each row came, end to end: an event of several tokens delivers them all at once."""
    events, tokens = batch.column("event_ns"), batch.column("event_tokens")
    offsets = events.offsets.to_numpy().astype(np.int64)
    ns = events.values.to_numpy()[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    if tokens.null_count == len(tokens):
        return ns, offsets
    told = np.asarray(tokens.is_valid())
    counts = tokens.flatten().to_numpy()
    lengths = np.diff(offsets)
    odd = (counts < 1) | (counts > LARGEST_EVENT)
    if np.any(np.diff(tokens.offsets.to_numpy())[told] != lengths[told]) or odd.any():
        return ns, np.empty(0, np.int64)
    per_event = np.ones(len(ns), np.int64)
    per_event[np.repeat(told, lengths)] = counts
    expanded = np.repeat(ns, per_event)
    expanded.flags.writeable = False  # as what Arrow lends is: the compiled pass need know only one kind
    return expanded, np.concatenate([[0], np.cumsum(per_event)])[offsets]


def _lateness(custom: CustomDeadlines, ns: Ints, offsets: Ints, arrival: Ints) -> Floats:
    """max over i of (t_i - d_i) in seconds, by row; NaN for a row without tokens."""
    lengths = np.diff(offsets)
    some = lengths > 0
    starts = offsets[:-1][some]
    late = np.full(len(lengths), np.nan)
    if not len(starts):
        return late
    t = (ns - np.repeat(arrival, lengths)) / 1e9
    i = np.arange(len(ns)) - np.repeat(offsets[:-1], lengths) + 1
    previous = np.concatenate([[0.0], t[:-1]])
    previous[starts] = 0.0
    due = np.asarray(custom.due(i, np.repeat(t[starts], lengths[some]), previous), np.float64)
    if due.shape != t.shape:
        raise SpecError(
            f"a deadline function must return a due time per token: {t.shape[0]} went in, {due.shape} came out"
        )
    late[some] = np.maximum.reduceat(t - due, starts)
    return late
