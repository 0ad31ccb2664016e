"""Finished requests to rows of the table."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import astuple

from openloop.load.skim import Skimmed, reads_of
from openloop.load.targets import Outcome, Target
from openloop.load.wire import MARK, Marks, WireError
from openloop.load.worker import BROKEN, CANCELLED, CENSORED, TIMEOUT, UNSENT, Finished
from openloop.records import make_batch, make_lists
from openloop.said import without_secrets
from openloop.workload import Ask

OWN = ("attempt", "kind", "sent_ns", "ended_ns", "connect_ns")
ASKED = ("workload_class", "tenant", "session_id", "turn")
TOLD = [name for name in Outcome.__struct_fields__ if name not in ("event_ns", "text")]
NOBODY = Ask(())


class Row(msgspec.Struct, gc=False):
    """One attempt, its times in nanoseconds since the run's start; those of its outcome's events are of the clock.

    The clock's time at the start is `start_ns`, as it was known when the row was made: learning better moves no row.
    """

    number: int
    due_ns: int
    outcome: Outcome
    attempt: int = 0
    kind: str = "first"
    ask: Ask | None = None
    sent_ns: int | None = None
    ended_ns: int | None = None
    connect_ns: int | None = None
    first_ns: int | None = None  # when the first of its events came, and the last
    last_ns: int | None = None
    kernel_stamps: int = 0
    stamps: int = 0
    start_ns: int = 0

    def set_times(self, finished: Finished, start_ns: int) -> None:
        """When what happened to it did."""
        _, fate, _, sent, waited, ended, _, marks, kernel, _ = finished
        outcome, due_ns = self.outcome, self.due_ns
        self.kernel_stamps, self.start_ns = kernel, start_ns
        self.stamps = reads_of(marks) if isinstance(marks, tuple) else len(marks) // MARK
        if sent:
            self.sent_ns, self.connect_ns = max(sent - start_ns, due_ns), waited
        latest = self.sent_ns or due_ns
        if outcome.first_any_ns is not None:
            outcome.first_any_ns = max(outcome.first_any_ns - start_ns, latest)
        events = outcome.event_ns
        if events:
            if events[0] < start_ns + latest:  # clocks are compared: time must not turn round
                outcome.event_ns = events = array("q", [max(start_ns + latest, event) for event in events])
            self.first_ns, self.last_ns = events[0] - start_ns, events[-1] - start_ns
            latest = self.last_ns
        if fate != CENSORED:
            self.ended_ns = max(latest, ended - start_ns)


def read_finished(finished: Finished, target: Target, timeout_s: float) -> Outcome:
    """What became of a request, read off the bytes that came back."""
    _, fate, why, _, _, _, raw, marks, _, _ = finished
    found = _read(raw, marks, target) if raw else Outcome("error", error=why) if fate == UNSENT else Outcome()
    if fate == CENSORED:
        found.status, found.error = "censored", "still in flight when the run ended"
    elif fate == CANCELLED:
        found.status, found.error = "cancelled", "a copy of it was answered first"
    elif fate == BROKEN:
        what = "the stream was cut" if found.event_ns else "there was no answer"
        said = why if why.startswith("the response ") else f"{what}: {why}"
        found.status, found.error = "error", without_secrets(said, target.secrets)
    elif fate == TIMEOUT:
        what = f"after {len(found.event_ns)} events" if found.event_ns else "without a token"
        found.status, found.error = "timeout", f"gave up after {timeout_s:g} s, {what}"
    return found


def _read(raw: bytes, marks: Marks | Skimmed, target: Target) -> Outcome:
    try:
        return target.read(raw, marks)
    except WireError as error:
        return Outcome("error", error=without_secrets(str(error), target.secrets))
    except Exception as error:  # whatever a server sends costs its own request and no other
        why = f"the reply cannot be read: {type(error).__name__}: {error}"
        return Outcome("error", error=without_secrets(why, target.secrets))


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    own = _columns(Row.__struct_fields__, map(astuple, rows))
    told = _columns(Outcome.__struct_fields__, map(astuple, own["outcome"]))
    asked = _columns(Ask._fields, [ask or NOBODY for ask in own["ask"]])
    events = told["event_ns"]
    lengths = np.array(list(map(len, events)), np.int64)
    flat = np.frombuffer(b"".join(events), np.int64) - np.repeat(np.array(own["start_ns"], np.int64), lengths)
    parts = (own, OWN), (asked, ASKED), (told, TOLD)
    known = {name: columns[name] for columns, names in parts for name in names}
    known["requested_tokens"] = asked["output_tokens"]
    some = {name: column for name, column in known.items() if column.count(None) < len(column)}
    times = make_lists("event_ns", flat, lengths)
    return make_batch({"request_id": own["number"], "scheduled_ns": own["due_ns"], "event_ns": times, **some})


def _columns(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return dict(zip(names, list(zip(*rows, strict=True)) or [()] * len(names), strict=True))
