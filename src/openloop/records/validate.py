"""The rules of the table. A row that breaks one is named, with what is wrong in it."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from openloop.arrays import Bools, Counts, Ints
from openloop.errors import RecordError
from openloop.records.schema import COLUMNS, KINDS, LATEST_NS, MISSING, STATUSES, ints, words

TIMES = ("scheduled_ns", "sent_ns", "ended_ns", "first_any_ns")
COUNTS = [name for name in COLUMNS if name.endswith("_tokens") and name != "event_tokens"]
COUNTS += ["turn", "attempt", "preemptions", "connect_ns", "merged_events"]
PARTS = {"cached_tokens": "prompt_tokens", "accepted_draft_tokens": "drafted_tokens"}
LARGEST_EVENT = 1_000_000  # tokens


def check_batch(batch: pa.RecordBatch, first_row: int = 0) -> None:
    """Every rule that one batch can show broken; `first_row` is its place in the run, for the message."""
    check_rows(batch, first_row)
    rows = _Rows(batch, first_row)
    events = batch.column("event_ns")
    starts, stops = _bounds(events)
    rows.refuse_null_items("event_ns", starts, stops)
    times = events.values.to_numpy()
    _check_event_times(rows, times, starts, stops)
    delivered = stops - starts
    tokens = batch.column("event_tokens")
    if tokens.null_count < len(tokens):
        delivered = _check_event_tokens(rows, tokens, delivered)
    if batch.column("ends_only").null_count < batch.num_rows:
        ends = np.asarray(batch.column("ends_only").fill_null(False).to_numpy(zero_copy_only=False), np.bool_)
        rows.refuse(ends & (delivered > 2), lambda i: f"ends_only, yet it has {delivered[i]} tokens with times")
    output = rows.ints("output_tokens")
    rows.refuse(
        (output != MISSING) & (delivered > output),
        lambda i: f"{delivered[i]} tokens were delivered, more than its output_tokens {output[i]}",
    )


def check_rows(batch: pa.RecordBatch, first_row: int = 0) -> None:
    """The rules that need no token events."""
    rows = _Rows(batch, first_row)
    for name, column in COLUMNS.items():
        if column.required and name in batch.schema.names and batch.column(name).null_count:
            rows.refuse_null(name)
    rows.words("kind", KINDS)
    status = rows.words("status", STATUSES)
    for name in TIMES:
        rows.refuse_negative(name, "times count from the run's start and are never negative")
        rows.refuse_far(name)
    for name in COUNTS:
        rows.refuse_negative(name, "it is zero or more")
    for part, whole in PARTS.items():
        rows.refuse_larger(part, whole)
    _check_course(rows, status)
    for name in ("cost", "review_cost"):
        rows.refuse_no_money(name)


def _check_course(rows: "_Rows", status: Counts) -> None:
    """Due, sent and over in this order, as far as its status says."""
    scheduled, sent, ended = rows.ints("scheduled_ns"), rows.ints("sent_ns"), rows.ints("ended_ns")
    ok, dropped, censored = (status == STATUSES.index(name) for name in ("ok", "dropped", "censored"))
    rows.refuse(
        (sent != MISSING) & (sent < scheduled),
        lambda i: f"sent_ns {sent[i]} is before scheduled_ns {scheduled[i]}",
    )
    rows.refuse(
        (ended != MISSING) & (ended < np.maximum(scheduled, sent)),
        lambda i: f"ended_ns {ended[i]} is before it was {'sent' if sent[i] != MISSING else 'due'}",
    )
    rows.refuse(ok & ((sent == MISSING) | (ended == MISSING)), lambda _: "status is ok without sent_ns and ended_ns")
    rows.refuse(dropped & (sent != MISSING), lambda _: "status is dropped, yet it has a sent_ns")
    rows.refuse(censored & (ended != MISSING), lambda _: "status is censored, yet it has an ended_ns")


def _check_event_times(rows: "_Rows", times: Ints, starts: Ints, stops: Ints) -> None:
    sent, ended = rows.ints("sent_ns"), rows.ints("ended_ns")
    some = stops > starts
    rows.refuse(some & (sent == MISSING), lambda _: "tokens were delivered, yet it was never sent")
    first = times[np.where(some, starts, 0)] if times.size else starts
    last = times[np.where(some, stops - 1, 0)] if times.size else starts
    rows.refuse(some & (first < sent), lambda i: f"event 0 at {first[i]} is before sent_ns {sent[i]}")
    backwards = np.flatnonzero(times[1:] < times[:-1]) + 1
    row_of = np.searchsorted(stops, backwards, side="right")
    inside = (row_of < len(starts)) & (backwards > starts[np.minimum(row_of, len(starts) - 1)])
    if inside.any():
        k, i = int(backwards[inside][0]), int(row_of[inside][0])
        at = k - int(starts[i])
        rows.refuse_row(i, f"event {at} at {times[k]} is before event {at - 1} at {times[k - 1]}")
    rows.refuse(
        some & (ended != MISSING) & (last > ended),
        lambda i: f"its last event at {last[i]} is after ended_ns {ended[i]}",
    )


def _check_event_tokens(rows: "_Rows", tokens: pa.ListArray, events: Ints) -> Ints:
    """Checks event_tokens and returns how many tokens each row delivered."""
    given = ~_nulls(tokens)
    starts, stops = _bounds(tokens)
    rows.refuse_null_items("event_tokens", starts, stops)
    lengths = stops - starts
    rows.refuse(given & (lengths != events), lambda i: f"it has {events[i]} event_ns and {lengths[i]} event_tokens")
    values = tokens.values.to_numpy()
    running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    odd = np.concatenate([[0], np.cumsum((values < 1) | (values > LARGEST_EVENT))])
    rows.refuse(
        given & (odd[stops] > odd[starts]),
        lambda _: f"an event carries fewer than one token, which is no event, or more than {LARGEST_EVENT:,}",
    )
    return np.where(given, running[stops] - running[starts], events)


def check_attempts(request_id: Ints, attempt: NDArray[np.integer], scheduled_ns: Ints) -> None:
    """No two rows are the same attempt, and all attempts at a request say the same of when it was due."""
    if np.all(request_id[1:] > request_id[:-1]):
        return
    order = np.lexsort((attempt, request_id))
    ids, attempts, due = request_id[order], attempt[order], scheduled_ns[order]
    same = ids[1:] == ids[:-1]
    for wrong, why in (
        (
            same & (attempts[1:] == attempts[:-1]),
            "are the same attempt of request {}; number its attempts 0, 1, 2, ...",
        ),
        (
            same & (due[1:] != due[:-1]),
            "disagree on when request {} was due; scheduled_ns is the same for its attempts",
        ),
    ):
        if wrong.any():
            place = int(np.argmax(wrong))
            first, second = sorted((int(order[place]), int(order[place + 1])))
            raise RecordError(f"rows {first} and {second} {why.format(ids[place])}")


class _Rows:
    """A batch under inspection, which knows how to name its rows."""

    def __init__(self, batch: pa.RecordBatch, first_row: int) -> None:
        self.batch = batch
        self.first_row = first_row

    def ints(self, name: str) -> Ints:
        return ints(self.batch, name)

    def refuse(self, bad: Bools, why: Callable[[int], str]) -> None:
        if bad.any():
            i = int(np.argmax(bad))
            self.refuse_row(i, why(i))

    def refuse_null(self, name: str) -> None:
        self.refuse(_nulls(self.batch.column(name)), lambda _: f"{name} is null; every row needs it")

    def refuse_null_items(self, name: str, starts: Ints, stops: Ints) -> None:
        values = self.batch.column(name).values
        if values.null_count:
            nulls = np.concatenate([[0], np.cumsum(_nulls(values))])
            self.refuse(nulls[stops] > nulls[starts], lambda _: f"{name} holds a null; every item is a number")

    def refuse_negative(self, name: str, rule: str) -> None:
        column, values = self.batch.column(name), self.ints(name)
        if column.null_count < len(values) and values.min() < 0:
            self.refuse((values < 0) & ~_nulls(column), lambda i: f"{name} is {values[i]}; {rule}")

    def refuse_no_money(self, name: str) -> None:
        if self.batch.column(name).null_count < self.batch.num_rows:
            money = self.batch.column(name).fill_null(0.0).to_numpy()
            self.refuse(~(money >= 0) | np.isinf(money), lambda i: f"{name} is {money[i]}; it is zero or more")

    def refuse_far(self, name: str) -> None:
        values = self.ints(name)
        self.refuse(values > LATEST_NS, lambda i: f"{name} is {values[i]} ns, over seventy years")

    def refuse_larger(self, part: str, whole: str) -> None:
        parts, wholes = self.ints(part), self.ints(whole)
        bad = (parts != MISSING) & (wholes != MISSING) & (parts > wholes)
        self.refuse(bad, lambda i: f"{part} {parts[i]} is more than its {whole} {wholes[i]}")

    def words(self, name: str, known: tuple[str, ...]) -> Counts:
        """Codes into `known`; any other word is refused."""
        codes = {word: code for code, word in enumerate(known)}
        found = words(self.batch.column(name), codes)
        others = list(codes)
        self.refuse(found >= len(known), lambda i: f"{name} is {others[found[i]]!r}; it is one of {', '.join(known)}")
        return found

    def refuse_row(self, i: int, why: str) -> None:
        request = self.batch.column("request_id")[i].as_py()
        raise RecordError(f"row {self.first_row + i} (request {request}): {why}")


def _nulls(column: pa.Array) -> Bools:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _bounds(lists: pa.ListArray) -> tuple[Ints, Ints]:
    """Where each row's items start and stop in `lists.values`."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], offsets[1:]
