"""Finished requests to rows of the table."""

from dataclasses import dataclass, field, fields
from itertools import accumulate

import numpy as np
import pyarrow as pa

from openloop.load.targets import Outcome, Target
from openloop.load.wire import WireError
from openloop.load.worker import BROKEN, CENSORED, DONE, UNSENT, Finished
from openloop.records import make_batch, make_lists
from openloop.workload import Ask

__all__ = ["Row", "batch_of", "read_finished"]


@dataclass(slots=True)
class Row:
    """One attempt, its times in nanoseconds since the run's start."""

    number: int
    due_ns: int
    outcome: Outcome
    sent_ns: int | None = None
    ended_ns: int | None = None
    connect_ns: int | None = None
    requested_tokens: int | None = None
    kernel_stamps: int = 0
    stamps: int = 0
    event_ns: list[int] = field(default_factory=list)
    workload_class: str | None = None


def read_finished(finished: Finished, due_ns: int, start_ns: int, ask: Ask, target: Target, timeout_s: float) -> Row:
    """What became of a request, read off the bytes that came back."""
    number, fate, why, sent, waited, ended, blocks, stamps, kernel = finished
    outcome = _outcome(fate, why, blocks, stamps, target, timeout_s)
    row = Row(number, due_ns, outcome, requested_tokens=ask.output_tokens, workload_class=ask.workload_class)
    row.kernel_stamps, row.stamps = kernel, len(stamps)
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
    return row


def _outcome(fate: str, why: str, blocks: list[bytes], stamps: list[int], target: Target, timeout_s: float) -> Outcome:
    if fate == UNSENT:
        return Outcome("error", error=why)
    found = Outcome()
    if blocks:
        try:
            found = target.read(blocks, stamps)
        except WireError as error:
            found = Outcome("error", error=str(error))
        except Exception as error:  # whatever a server sends costs its own request and no other
            found = Outcome("error", error=f"the reply cannot be read: {type(error).__name__}: {error}"[:300])
    if fate == CENSORED:
        found.status, found.error = "censored", "still in flight when the run ended"
    elif fate == BROKEN:
        what = "the stream was cut" if found.event_ns else "there was no answer"
        found.status, found.error = "error", f"{what}: {why}"
    elif fate != DONE:
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
    own = ("sent_ns", "ended_ns", "connect_ns", "requested_tokens", "workload_class")
    return make_batch(
        {
            "request_id": [row.number for row in rows],
            "scheduled_ns": [row.due_ns for row in rows],
            "event_ns": make_lists("event_ns", flat, lengths),
            **{name: [getattr(row, name) for row in rows] for name in own},
            **told,
        }
    )
