"""What is kept of the traffic: rows, decisions and events, in a run folder that can be read while it grows."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from openloop.arrays import Bools, Ints
from openloop.errors import StorageError
from openloop.proxy.attempt import Attempt
from openloop.proxy.fleet import Named
from openloop.proxy.meters import Judged, Meters
from openloop.records import Now, RunWriter, TimedEvent, forget_now, make_batch, write_now
from openloop.records.manifest import write_manifest
from openloop.said import Outcome

DECISIONS_FILE = "decisions.jsonl"
EVERY_S = 0.5
MOST_EVENTS = 10_000  # in the manifest; a replica that flaps must not fill the disk

Judge = Callable[
    [pa.RecordBatch], tuple[Ints, Bools]
]  # places of the rows that answered, and whether they are accepted

_TOLD = [each.name for each in fields(Outcome) if each.name not in ("replica", "text")]
_ANY = {"sent_ns": [0], "ended_ns": [3], "event_ns": [[1, 2, 3]]}


@dataclass(eq=False)
class Flight:
    """A request of a client, and the attempts at it."""

    number: int
    due_ns: int  # it was here
    workload_class: str | None = None
    session: int | None = None
    tenant: str | None = None
    requested_tokens: int | None = None
    named: Named | None = None  # its prompt, by blocks
    attempts: list[Attempt] = field(default_factory=list)

    def row(self, attempt: Attempt, start_ns: int) -> dict[str, Any]:
        def since(stamp: int | None) -> int | None:
            return None if stamp is None else stamp - start_ns

        return {
            **{name: getattr(attempt.outcome, name) for name in _TOLD},
            "request_id": self.number,
            "session_id": self.session,
            "workload_class": self.workload_class,
            "tenant": self.tenant,
            "requested_tokens": self.requested_tokens,
            "scheduled_ns": since(self.due_ns),
            "attempt": attempt.number,
            "kind": attempt.kind,
            "replica": attempt.replica and attempt.replica.name,
            "sent_ns": since(attempt.sent_ns),
            "ended_ns": since(attempt.ended_ns),
            "first_any_ns": since(attempt.outcome.first_any_ns),
            "event_ns": [stamp - start_ns for stamp in attempt.outcome.event_ns],
        }


class Ledger:
    """Rows are written twice a second by a thread, and judged then: the traffic does not wait for it."""

    def __init__(self, writer: RunWriter | None, meters: Meters, judge: Judge, tell: Callable[[str], None]) -> None:
        judge(make_batch({**_ANY, "request_id": [0], "scheduled_ns": [0]}))  # compiled before anybody waits
        self.start_ns = time.monotonic_ns()
        self.writer = writer
        self.lost = self.rows = self.due = self.ended = 0
        self._meters, self._judge, self._tell = meters, judge, tell
        self._ended: list[Flight] = []
        self._decisions: list[Callable[[], bytes]] = []  # that are not written yet
        self._events: list[TimedEvent] = []
        self._busy = asyncio.Lock()

    @property
    def seconds(self) -> float:
        return (time.monotonic_ns() - self.start_ns) / 1e9

    @property
    def in_flight(self) -> int:
        return self.due - self.ended

    def begin(self) -> int:
        """The number of a request that has come."""
        self.due += 1
        return self.due - 1

    def end(self, flight: Flight) -> None:
        self.ended += 1
        self.rows += len(flight.attempts)
        self._ended.append(flight)

    def decide(self, line: Callable[[], bytes]) -> None:
        self._decisions.append(line)

    def event(self, kind: str, detail: str) -> None:
        """Something happened to the fleet: in the manifest, for whoever reads on."""
        self._tell(f"{kind}: {detail}")
        self._events.append(TimedEvent(at_ns=time.monotonic_ns() - self.start_ns, kind=kind, detail=detail))
        if self.writer is not None and len(self._events) <= MOST_EVENTS:
            self.writer.manifest = msgspec.structs.replace(self.writer.manifest, events=tuple(self._events))
            with contextlib.suppress(StorageError):
                write_manifest(self.writer.folder, self.writer.manifest)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.shield(self.flush())  # whoever ends this waits for what is being written

    async def flush(self) -> None:
        async with self._busy:
            ended, self._ended = self._ended, []
            decisions, self._decisions = self._decisions, []
            judged = await asyncio.to_thread(self._store, ended, decisions)
            self._meters.count(self.seconds, judged)

    def _store(self, ended: Sequence[Flight], decisions: Sequence[Callable[[], bytes]]) -> list[Judged]:
        """Whatever goes wrong here costs rows and not the traffic; a request that cannot be stored costs its own."""
        rows = [flight.row(attempt, self.start_ns) for flight in ended for attempt in flight.attempts]
        stored = False
        try:
            if self.writer is not None:
                write_now(self.writer.folder, Now(self.seconds, self.due, self.in_flight))
                _append(self.writer.folder / DECISIONS_FILE, b"".join(line() for line in decisions))
            if not rows:
                return []
            batch = make_batch({name: [row[name] for row in rows] for name in rows[0]})
            if self.writer is not None:
                self.writer.append(batch)
            stored = True
            places, accepted = self._judge(batch)
            return [(rows[place], good) for place, good in zip(places.tolist(), accepted.tolist(), strict=True)]
        except Exception as error:
            if len(ended) > 1 and not stored and not isinstance(error, OSError | StorageError):
                return [each for flight in ended for each in self._store([flight], ())]
            if not self.lost:
                self._tell(f"rows are lost: {error or type(error).__name__}")
            self.lost += len(rows)
            return []

    async def finish(self) -> None:
        await self.flush()
        if self.writer is not None:
            stopped = max(time.monotonic_ns() - self.start_ns, 1)
            self.writer.finish(stopped_ns=stopped, window_ns=(0, stopped))
            forget_now(self.writer.folder)


def _append(path: Path, data: bytes) -> None:
    """All of it or nothing: a line that is torn in the middle would be no decision."""
    with path.open("ab", buffering=0) as file:
        before, rest = file.tell(), memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(before)
            raise
