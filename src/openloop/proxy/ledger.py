"""What is kept of the traffic: rows, decisions and events, in a run folder that can be read while it grows; and
/metrics: first of all, what users accepted, by class and by replica, over the last minute."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from openloop.arrays import Bools, Ints
from openloop.errors import StorageError
from openloop.proxy.attempt import Attempt
from openloop.proxy.fleet import Fleet, Named
from openloop.records import Now, RunWriter, TimedEvent, forget_now, make_batch, write_now
from openloop.records.manifest import write_manifest
from openloop.said import Outcome

DECISIONS_FILE = "decisions.jsonl"
EVERY_S = 0.5
MOST_EVENTS = 10_000  # in the manifest; a replica that flaps must not fill the disk

WINDOW_S = 60
OTHER = "other"
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
Judged = tuple[dict[str, Any], bool]  # the row that answered, and whether it is accepted
Judge = Callable[
    [pa.RecordBatch], tuple[Ints, Bools]
]  # places of the rows that answered, and whether they are accepted

_TOLD = [name for name in Outcome.__struct_fields__ if name not in ("replica", "text")]
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


class Meters:
    def __init__(self, classes: Iterable[str]) -> None:
        self._classes = set(classes)
        self._seconds: deque[tuple[int, Counter[tuple[str, ...]]]] = deque()
        self.totals: Counter[tuple[str, ...]] = Counter()
        self.refused: Counter[str] = Counter()

    def count(self, now: float, judged: Iterable[Judged]) -> None:
        """What is over. Classes that no SLO names are one: labels must not grow with what clients write."""
        if not self._seconds or self._seconds[-1][0] != int(now):
            self._seconds.append((int(now), Counter()))
        recent = self._seconds[-1][1]
        while self._seconds[0][0] <= int(now) - WINDOW_S:
            self._seconds.popleft()
        for row, accepted in judged:
            said, replica, status = row["workload_class"], row["replica"] or "", row["status"]
            name = said if said in self._classes else OTHER if said else ""
            tokens = row["output_tokens"] or sum(row["event_tokens"] or ()) or len(row["event_ns"])
            for who in (("class", name), ("replica", replica)):
                recent[*who, "ended"] += 1
                recent[*who, "accepted"] += accepted
                recent[*who, "tokens"] += tokens * accepted
            self.totals["requests", name, status] += 1
            self.totals["accepted", name] += accepted
            self.totals["replica_requests", replica, status] += 1

    def page(self, now: float, fleet: Fleet, in_flight: int, lost: int) -> str:
        since = max(int(now) - WINDOW_S + 1, 0)  # the last of these seconds is not over
        recent: Counter[tuple[str, ...]] = sum((counts for at, counts in self._seconds if at >= since), Counter())
        span = max(now - since, 1.0)
        replicas, lines = fleet.replicas, list[str]()

        def family(name: str, kind: str, about: str, values: Iterable[tuple[dict[str, str], float]]) -> None:
            lines.extend((f"# HELP openloop_{name} {about}", f"# TYPE openloop_{name} {kind}"))
            for labels, value in values:
                told = ",".join(f'{key}="{text.translate(ESCAPES)}"' for key, text in labels.items())
                lines.append(f"openloop_{name}{{{told}}} {value:.10g}" if told else f"openloop_{name} {value:.10g}")

        for kind, names in (
            ("class", sorted({"", *self._classes, *(key[1] for key in recent if key[0] == "class")})),
            ("replica", [each.name for each in replicas]),
        ):
            first = "" if kind == "class" else "replica_"
            ended = [name for name in names if recent[kind, name, "ended"]]
            shares = [({kind: name}, recent[kind, name, "accepted"] / recent[kind, name, "ended"]) for name in ended]
            family(f"{first}attainment", "gauge", "Attainment of requests that ended in the last minute.", shares)
            for what, counted, about in (
                ("goodput_rps", "accepted", "Requests accepted"),
                ("goodput_tokens_per_second", "tokens", "Output tokens of accepted requests"),
            ):
                rates = [({kind: name}, recent[kind, name, counted] / span) for name in names]
                family(f"{first}{what}", "gauge", f"{about} per second over the last minute.", rates)
        gets = [({"replica": r.name}, float(is_open)) for r, is_open in zip(replicas, fleet.open, strict=True)]
        family("replica_open", "gauge", "Whether it gets requests.", gets)
        for name, fact, about in (
            ("well", "well", "Whether it answers health checks."),
            ("draining", "draining", "Whether it is being drained."),
            ("in_flight", "requests", "Requests in flight at it."),
            ("waiting", "waiting", "Of these, without a token yet."),
            ("cached_blocks", "blocks", "Blocks that its cache holds, by its own events; 0 where it sends none."),
        ):
            each = [({"replica": r.name}, float(getattr(r, fact))) for r in replicas]
            family(f"replica_{name}", "gauge", about, each)
        totals = sorted(self.totals.items())
        for kind, labels, about in (
            ("requests", ("class", "status"), "Requests that ended."),
            ("accepted", ("class",), "Requests that were accepted."),
            ("replica_requests", ("replica", "status"), "Requests that ended, by who answered last."),
        ):
            mine = [(dict(zip(labels, key[1:], strict=True)), float(v)) for key, v in totals if key[0] == kind]
            family(f"{kind}_total", "counter", about, mine)
        refused = [({"why": why}, float(n)) for why, n in sorted(self.refused.items())]
        family("refused_total", "counter", "Requests that were not understood or not allowed; no rows.", refused)
        family("in_flight", "gauge", "Requests of clients in flight.", [({}, in_flight)])
        family("records_lost_total", "counter", "Rows that could not be written.", [({}, lost)])
        return "\n".join(lines) + "\n"


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
