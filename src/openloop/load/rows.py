"""Finished requests to rows of the table."""

from dataclasses import dataclass, field, fields
from itertools import accumulate

import numpy as np
import pyarrow as pa

from openloop.load.targets import Outcome, Target
from openloop.load.wire import MARK, Marks, WireError
from openloop.load.worker import BROKEN, CANCELLED, CENSORED, TIMEOUT, UNSENT, Finished
from openloop.records import make_batch, make_lists
from openloop.workload import Ask


@dataclass(slots=True)
class Row:
    """One attempt, its times in nanoseconds since the run's start."""

    number: int
    due_ns: int
    outcome: Outcome
    attempt: int = 0
    kind: str = "first"
    ask: Ask | None = None
    sent_ns: int | None = None
    ended_ns: int | None = None
    connect_ns: int | None = None
    kernel_stamps: int = 0
    stamps: int = 0
    event_ns: list[int] = field(default_factory=list)


def read_finished(row: Row, finished: Finished, start_ns: int, target: Target, timeout_s: float) -> None:
    """Fill in what became of a request, read off the bytes that came back."""
    _, fate, why, sent, waited, ended, raw, marks, kernel, _ = finished
    outcome = row.outcome = _outcome(fate, why, raw, marks, target, timeout_s)
    due_ns = row.due_ns
    row.kernel_stamps, row.stamps = kernel, len(marks) // MARK
    if sent:
        row.sent_ns, row.connect_ns = max(sent - start_ns, due_ns), waited
    latest = row.sent_ns or due_ns
    events = [stamp - start_ns for stamp in outcome.event_ns]
    if events:
        if events[0] < latest or events != sorted(
            events
        ):  # clocks are compared: a microsecond must not turn time round
            events = list(accumulate([max(latest, event) for event in events], max))
        latest = events[-1]
    row.event_ns = events
    if fate != CENSORED:
        row.ended_ns = max(latest, ended - start_ns)
    if outcome.first_any_ns is not None:
        outcome.first_any_ns = max(outcome.first_any_ns - start_ns, row.sent_ns or due_ns)


def _outcome(fate: str, why: str, raw: bytes, marks: Marks, target: Target, timeout_s: float) -> Outcome:
    found = Outcome("error", error=why) if fate == UNSENT else Outcome()
    if raw:
        try:
            found = target.read(raw, marks)
        except WireError as error:
            found = Outcome("error", error=str(error))
        except Exception as error:  # whatever a server sends costs its own request and no other
            found = Outcome("error", error=f"the reply cannot be read: {type(error).__name__}: {error}"[:300])
    if fate == CENSORED:
        found.status, found.error = "censored", "still in flight when the run ended"
    elif fate == CANCELLED:
        found.status, found.error = "cancelled", "a copy of it was answered first"
    elif fate == BROKEN:
        what = "the stream was cut" if found.event_ns else "there was no answer"
        found.status, found.error = "error", f"{what}: {why}"
    elif fate == TIMEOUT:
        what = f"after {len(found.event_ns)} events" if found.event_ns else "without a token"
        found.status, found.error = "timeout", f"gave up after {timeout_s:g} s, {what}"
    return found


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    outcomes = [row.outcome for row in rows]
    events = [row.event_ns for row in rows]
    lengths = np.array([len(each) for each in events])
    flat = np.array([stamp for each in events for stamp in each], np.int64)
    told = {
        each.name: [getattr(outcome, each.name) for outcome in outcomes]
        for each in fields(Outcome)
        if each.name not in ("event_ns", "text")
    }
    own = ("attempt", "kind", "sent_ns", "ended_ns", "connect_ns")
    asked = ("workload_class", "tenant", "session_id", "turn")
    return make_batch(
        {
            "request_id": [row.number for row in rows],
            "scheduled_ns": [row.due_ns for row in rows],
            "event_ns": make_lists("event_ns", flat, lengths),
            "requested_tokens": [row.ask and row.ask.output_tokens for row in rows],
            **{name: [getattr(row, name) for row in rows] for name in own},
            **{name: [row.ask and getattr(row.ask, name) for row in rows] for name in asked},
            **told,
        }
    )
