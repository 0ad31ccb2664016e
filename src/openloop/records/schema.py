"""The one table: a row per attempt, whoever produced it; and its rules. A row that breaks one is named, with what is
wrong in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from openloop.arrays import Bools, Counts, Ints
from openloop.errors import RecordError
from openloop.records.tables import first_line

SCHEMA_VERSION: Final = 1

KINDS: Final = ("first", "retry", "hedge", "repair")
STATUSES: Final = ("ok", "error", "timeout", "shed", "cancelled", "dropped", "censored")

MISSING: Final = np.iinfo(np.int64).min
LATEST_NS: Final = 1 << 61  # seventy years: sums and differences of times stay within 64 bits


@dataclass(frozen=True)
class Column:
    type: pa.DataType
    required: bool
    meaning: str


def _list_of(item: pa.DataType) -> pa.DataType:
    # Items that cannot be null make Parquet lists a quarter faster to read.
    return pa.list_(pa.field("element", item, nullable=False))


COLUMNS: Final[Mapping[str, Column]] = {
    "request_id": Column(pa.int64(), True, "rows that share it are attempts at one logical request"),
    "session_id": Column(pa.int64(), False, "the conversation or task it belongs to"),
    "turn": Column(pa.int32(), False, "place in the session, from 0"),
    "attempt": Column(pa.int32(), True, "number of the attempt at this request, from 0"),
    "kind": Column(pa.string(), True, f"why it was sent: {', '.join(KINDS)}"),
    "workload_class": Column(pa.string(), False, "which SLO applies, where classes differ"),
    "tenant": Column(pa.string(), False, "on whose behalf"),
    "replica": Column(pa.string(), False, "who served it"),
    "scheduled_ns": Column(
        pa.int64(), True, "when the logical request was due: latency starts here, for every attempt"
    ),
    "sent_ns": Column(pa.int64(), False, "when this attempt left the client; null if it never did"),
    "connect_ns": Column(
        pa.int64(),
        False,
        "how long this attempt waited for a connection to open, which counts as latency; null: not told",
    ),
    "ended_ns": Column(pa.int64(), False, "when this attempt was over; null if it was still in flight at the end"),
    "event_ns": Column(_list_of(pa.int64()), True, "each delivery of tokens to the user"),
    "event_tokens": Column(_list_of(pa.int32()), False, "tokens in each delivery; null: one each"),
    "merged_events": Column(
        pa.int32(), False, "deliveries that were read together with the one before: no gap is known"
    ),
    "ends_only": Column(
        pa.bool_(), False, "whether event_ns holds no more than the first and the last delivery; null: it holds all"
    ),
    "first_any_ns": Column(pa.int64(), False, "first byte of the body, token or not"),
    "prompt_tokens": Column(pa.int32(), False, "tokens in the prompt"),
    "cached_tokens": Column(pa.int32(), False, "of these, found in a prefix cache"),
    "output_tokens": Column(pa.int32(), False, "tokens generated; null: as many as were delivered"),
    "reasoning_tokens": Column(pa.int32(), False, "of these, spent on reasoning"),
    "requested_tokens": Column(pa.int32(), False, "the limit that was asked for"),
    "drafted_tokens": Column(pa.int32(), False, "tokens proposed by a draft model"),
    "accepted_draft_tokens": Column(pa.int32(), False, "of these, accepted by the target model"),
    "recomputed_tokens": Column(pa.int32(), False, "tokens computed again after a preemption"),
    "preemptions": Column(pa.int32(), False, "how often it was preempted"),
    "status": Column(pa.string(), True, f"how it ended: {', '.join(STATUSES)}"),
    "http_status": Column(pa.int32(), False, "status code of the response"),
    "error": Column(pa.string(), False, "what went wrong, in words"),
    "finish_reason": Column(pa.string(), False, "why generation stopped"),
    "quality": Column(pa.bool_(), False, "whether the output passed its quality gate; null: not judged"),
    "quality_score": Column(pa.float64(), False, "the grade behind it"),
    "slices": Column(pa.string(), False, "kinds of request that quality is looked at apart for, as `numeric+rare`"),
    "cost": Column(pa.float64(), False, "money spent on this attempt"),
    "review_cost": Column(pa.float64(), False, "money spent on judging its output"),
}

SCHEMA: Final = pa.schema(
    [pa.field(name, c.type, nullable=not c.required) for name, c in COLUMNS.items()],
    metadata={"openloop.schema_version": str(SCHEMA_VERSION)},
)


TIMES = ("scheduled_ns", "sent_ns", "ended_ns", "first_any_ns")
COUNTS = [name for name in COLUMNS if name.endswith("_tokens") and name != "event_tokens"]
COUNTS += ["turn", "attempt", "preemptions", "connect_ns", "merged_events"]
PARTS = {"cached_tokens": "prompt_tokens", "accepted_draft_tokens": "drafted_tokens"}
LARGEST_EVENT = 1_000_000  # tokens
WHOLE = {int, type(None)}  # kinds of what Arrow takes as it is for whole numbers


def make_batch(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """A record batch from arrays or lists by column name.

    `request_id` and `scheduled_ns` are needed. `attempt`, `kind`, `status` and `event_ns` default to the first
    attempt, which went well and delivered nothing; everything else defaults to null.
    """
    for name in columns:
        if name not in COLUMNS:
            raise RecordError(f"unknown column {name!r}: the table has {', '.join(COLUMNS)}")
    for name in ("request_id", "scheduled_ns"):
        if name not in columns:
            raise RecordError(f"column {name!r} is missing: every row needs it")
    rows = len(columns["request_id"])
    arrays = [_column(name, columns, rows) for name in COLUMNS]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def make_lists(name: str, values: NDArray[Any], lengths: NDArray[Any]) -> pa.Array:
    """The list column `name` from all its items end to end and the number of them in each row."""
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if bounds[-1] != len(values) or np.any(np.diff(bounds) < 0):
        raise RecordError(
            f"column {name!r}: the rows' lengths add up to {bounds[-1]}, and there are {len(values)} items"
        )
    if len(values) > np.iinfo(np.int32).max:
        raise RecordError(f"column {name!r}: {len(values)} items are too many for one batch; make several")
    offsets = bounds.astype(np.int32)
    item = COLUMNS[name].type.value_type
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, item), type=COLUMNS[name].type)


def make_words(codes: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """A column of words from the place of each in `names`; null where it is below zero."""
    places = pa.array(np.asarray(codes, np.int32), mask=np.asarray(codes) < 0)
    return pa.DictionaryArray.from_arrays(places, pa.array(names, pa.string())).cast(pa.string())


def ints(batch: pa.RecordBatch, name: str) -> Ints:
    """An integer column as numpy, nulls as MISSING."""
    column = batch.column(name)
    if column.null_count == len(column):
        return np.broadcast_to(np.int64(MISSING), len(column))
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(MISSING)
    return np.asarray(column.to_numpy(), np.int64)


def words(column: pa.Array, known: dict[str, int]) -> Counts:
    """A column of words as codes, nulls as -1. A word that `known` does not hold yet gets the next code in it."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = [known.setdefault(word, len(known)) for word in column.dictionary.to_pylist()]
    indices = column.indices.fill_null(len(codes)) if column.null_count else column.indices
    table = np.array([*codes, -1], np.int32)
    return table[np.asarray(indices.to_numpy(), np.int64)]


def _column(name: str, columns: Mapping[str, Any], rows: int) -> pa.Array:
    column = COLUMNS[name]
    if name in columns:
        given = columns[name]
        try:
            array = _array(given, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise RecordError(f"column {name!r} is not {column.type}: {first_line(error)}") from None
        if len(array) != rows:
            raise RecordError(f"column {name!r} has {len(array)} rows where 'request_id' has {rows}")
        return array
    if name in _DEFAULTS:
        return pa.repeat(pa.scalar(_DEFAULTS[name], column.type), rows)
    if name == "event_ns":
        return make_lists(name, np.empty(0, np.int64), np.zeros(rows, np.int32))
    return pa.nulls(rows, column.type)


def _array(given: Any, wanted: pa.DataType) -> pa.Array:
    if isinstance(given, pa.Array) and given.type == wanted:
        return given
    whole = pa.types.is_integer(_item(wanted))
    if not whole or (isinstance(given, list | tuple) and WHOLE.issuperset(map(type, given))):
        return pa.array(given, wanted)
    found = pa.array(given)  # from floats at once, Arrow would cut fractions off; a cast refuses them
    item = _item(found.type)
    return found.cast(wanted) if pa.types.is_integer(item) or pa.types.is_floating(item) else pa.array(given, wanted)


def _item(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


_DEFAULTS = {"attempt": 0, "kind": "first", "status": "ok"}


def split(batch: pa.RecordBatch, tokens: int, rows: int) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of at most so many rows and tokens; a row that has more by itself is a piece of its own."""
    running = np.concatenate([[0], np.cumsum(_tokens(batch))])
    start = 0
    while start < batch.num_rows:
        stop = int(np.searchsorted(running, running[start] + tokens, side="right")) - 1
        stop = min(max(stop, start + 1), start + rows, batch.num_rows)
        yield batch.slice(start, stop - start)
        start = stop


def count_tokens(batch: pa.RecordBatch) -> int:
    return int(_tokens(batch).sum())


def _tokens(batch: pa.RecordBatch) -> Ints:
    """Tokens that each row delivered."""
    events, tokens = batch.column("event_ns"), batch.column("event_tokens")
    delivered: Ints = np.diff(events.offsets.to_numpy().astype(np.int64))
    if tokens.null_count < len(tokens):
        bounds = tokens.offsets.to_numpy().astype(np.int64)
        counts = tokens.values.fill_null(0) if tokens.values.null_count else tokens.values  # refused when it is checked
        running = np.concatenate([[0], np.cumsum(counts.to_numpy(), dtype=np.int64)])
        told = bounds[1:] > bounds[:-1]
        delivered[told] = (running[bounds[1:]] - running[bounds[:-1]])[told]
    return delivered


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
        rows.refuse_values(name, _negative, "; times count from the run's start and are never negative")
        rows.refuse_values(name, lambda values: values > LATEST_NS, " ns, over seventy years")
    for name in COUNTS:
        rows.refuse_values(name, _negative, "; it is zero or more")
    for part, whole in PARTS.items():
        rows.refuse_larger(part, whole)
    _check_course(rows, status)
    for name in ("cost", "review_cost"):
        rows.refuse_values(name, lambda values: ~(values >= 0) | np.isinf(values), "; it is zero or more")


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

    def refuse_values(self, name: str, bad: Callable[[NDArray[Any]], Bools], why: str) -> None:
        column = self.batch.column(name)
        if column.null_count < len(column):
            values = (column.fill_null(0) if column.null_count else column).to_numpy()
            self.refuse(bad(values), lambda i: f"{name} is {values[i]}{why}")

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


def _negative(values: NDArray[Any]) -> Bools:
    return values < 0


def _nulls(column: pa.Array) -> Bools:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _bounds(lists: pa.ListArray) -> tuple[Ints, Ints]:
    """Where each row's items start and stop in `lists.values`."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], offsets[1:]
