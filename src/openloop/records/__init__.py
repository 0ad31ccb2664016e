"""The table every producer writes and every reader reads."""

from openloop.records.manifest import Manifest, Prices, TimedEvent, Warmth, checked
from openloop.records.now import Now, forget_now, read_now, write_now
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
    make_words,
    split,
    words,
)
from openloop.records.server import MEASURES, SERVER_SCHEMA, Measure, Reading, ServerWriter, read_server, server_table
from openloop.records.validate import LARGEST_EVENT, check_attempts, check_rows
from openloop.records.writer import RunWriter

__all__ = [
    "COLUMNS",
    "KINDS",
    "LARGEST_EVENT",
    "MEASURES",
    "MISSING",
    "SCHEMA",
    "SERVER_SCHEMA",
    "STATUSES",
    "Manifest",
    "Measure",
    "Now",
    "Prices",
    "Reading",
    "Run",
    "RunWriter",
    "ServerWriter",
    "TimedEvent",
    "Warmth",
    "check_attempts",
    "check_rows",
    "checked",
    "forget_now",
    "ints",
    "make_batch",
    "make_lists",
    "make_words",
    "open_run",
    "read_now",
    "read_server",
    "server_table",
    "split",
    "words",
    "write_now",
]
