"""The columns of a run that need no token events, as numpy arrays: one value per attempt."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from openloop.arrays import Codes, Counts, Floats, Ints
from openloop.records import COLUMNS, KINDS, MISSING, STATUSES, Run, check_attempts, check_rows, words

OK, DROPPED, CENSORED = (STATUSES.index(status) for status in ("ok", "dropped", "censored"))
RETRY, HEDGE, REPAIR = (KINDS.index(kind) for kind in ("retry", "hedge", "repair"))


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
            column = batch.column(name)
            if column.null_count < len(column):
                if name not in columns:
                    columns[name] = np.full(run.num_rows, _missing(name))
                columns[name][row:stop] = _values(column, _missing(name), known.get(name, {}))
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
