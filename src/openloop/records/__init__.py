"""The table every producer writes and every reader reads."""

from openloop.records.manifest import Manifest, Prices, TimedEvent, Warmth
from openloop.records.run import Run, open_run
from openloop.records.schema import (
    COLUMNS,
    KINDS,
    MISSING,
    SCHEMA,
    STATUSES,
    ints,
    make_batch,
    make_lists,
    words,
)
from openloop.records.validate import check_events, check_rows, check_unique
from openloop.records.writer import RunWriter

__all__ = [
    "COLUMNS",
    "KINDS",
    "MISSING",
    "SCHEMA",
    "STATUSES",
    "Manifest",
    "Prices",
    "Run",
    "RunWriter",
    "TimedEvent",
    "Warmth",
    "check_events",
    "check_rows",
    "check_unique",
    "ints",
    "make_batch",
    "make_lists",
    "open_run",
    "words",
]
