"""The one table: a row per attempt, whoever produced it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from openloop.arrays import Counts, Ints
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
    return pa.nulls(rows, column.type)


def _array(given: Any, wanted: pa.DataType) -> pa.Array:
    if isinstance(given, pa.Array) and given.type == wanted:
        return given
    if not pa.types.is_integer(_item(wanted)):
        return pa.array(given, wanted)
    found = pa.array(given)  # from floats at once, Arrow would cut fractions off; a cast refuses them
    item = _item(found.type)
    return found.cast(wanted) if pa.types.is_integer(item) or pa.types.is_floating(item) else pa.array(given, wanted)


def _item(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


_DEFAULTS = {"attempt": 0, "kind": "first", "status": "ok", "event_ns": []}


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
