"""Plans a run, feeds the workers ahead of time, reads what they bring back, and writes it down.

Nothing here is in a hurry: workers send and stamp, and this process parses, counts and stores behind them.
"""

import bisect
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openloop.arrivals import MOST_ARRIVALS, Arrivals
from openloop.clock import READ, WRITE, Poller, stolen_s
from openloop.errors import OpenloopError, SpecError
from openloop.load.address import Place
from openloop.load.channel import Channel, GoneError
from openloop.load.rows import Row, batch_of, read_finished
from openloop.load.targets import Outcome, Target
from openloop.load.worker import Finished
from openloop.records import Manifest, Run, RunWriter, open_run
from openloop.seeds import stream
from openloop.units import to_ns
from openloop.workload import Ask, Synthetic

__all__ = ["Load", "Snapshot", "drive"]

Floats = NDArray[np.float64]

AHEAD_NS = 2_000_000_000  # requests are with their worker this long before they are due
LEAD_NS = 500_000_000  # between the workers' being ready and the first arrival
FEED_AT_ONCE = 50  # a worker reads what it is fed between two sends
FLUSH_NS = 1_000_000_000
FLUSH_ROWS = 5_000
READ_NS = 5_000_000
TICK_NS = 50_000_000
TELL_NS = 500_000_000
STOLEN_SHARE = 0.01
MOST_IN_CLOSED_LOOP = 1_000_000
HALT_S = 5.0  # what is in flight has this long after an interrupt


@dataclass(frozen=True)
class Load:
    """Everything that a run is made of."""

    place: Place
    target: Target
    arrivals: Arrivals
    workload: Synthetic
    seconds: float
    seed: int = 0
    timeout_s: float = 120.0
    drain_s: float = 30.0
    workers: int = 1
    connections: int | None = None  # at most so many, as an experiment
    users: int | None = None  # a closed loop of so many in place of the schedule, to show what it hides
    facts: dict[str, Any] = field(default_factory=dict)  # for the manifest


@dataclass
class Snapshot:
    """Where a run is, for people who watch."""

    seconds: float = 0.0
    due: int = 0
    in_flight: int = 0
    statuses: "Counter[str]" = field(default_factory=Counter)
    finished: list[Row] = field(default_factory=list)  # since the snapshot before


@dataclass
class _Worker:
    channel: Channel
    process: "subprocess.Popen[bytes]"
    numbers: range
    ready: bool = False
    over: bool = False


def drive(load: Load, out: str | Path, watch: Callable[[Snapshot], None] | None = None) -> Run:
    """Drive a live endpoint on a schedule and record what its users would have got, into the folder `out`.

    An interrupt stops the schedule and leaves a complete run; a second one stops everything at once, and leaves a
    readable one. `watch` is called from another thread.
    """
    _Conductor(load, Path(out), watch or (lambda _: None)).run()
    return open_run(out)


class _Conductor:
    def __init__(self, load: Load, out: Path, watch: Callable[[Snapshot], None]) -> None:
        self.load = load
        self.watch = watch
        self.due_ns = _schedule(load)
        self.asks: Iterator[Ask] = load.workload.asks(len(self.due_ns), load.seed)
        self.asked: dict[int, Ask] = {}  # fed to a worker, and not back
        self.fed = 0
        self.brought: deque[Finished] = deque()
        self.rows: list[Row] = []
        self.statuses: Counter[str] = Counter()
        self.unseen: list[Row] = []
        self.kernel_stamps = self.stamps = self.finished = 0
        self.notes: list[str] = list(load.facts.get("notes", ()))
        self.interrupts = 0
        self.failure: BaseException | None = None
        self.halted_ns: int | None = None
        self.start_ns = 0
        self.stolen_s = 0.0
        self.poller = Poller()
        self.writer = RunWriter(out, self._manifest())
        self.workers: list[_Worker] = []

    def run(self) -> None:
        signals = (signal.SIGINT, signal.SIGTERM) if _main_thread() else ()
        before = {each: signal.signal(each, self._interrupted) for each in signals}
        try:
            self.workers = [self._start(number) for number in range(self.load.workers)]
            thread = threading.Thread(target=self._conduct_politely)
            thread.start()
            thread.join()
            if self.failure is not None:
                raise self.failure
            self._close()
        except BaseException:
            with contextlib.suppress(OpenloopError):
                self._flush()
            self.writer.close()
            raise
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.wait()
                worker.channel.close()
            self.poller.close()
            for each, handler in before.items():
                signal.signal(each, handler)

    def _interrupted(self, _: int, __: FrameType | None) -> None:
        self.interrupts += 1

    def _manifest(self) -> Manifest:
        load = self.load
        facts: dict[str, Any] = {"source": "load", "arrivals": f"closed:users={load.users}"}
        if not load.users:
            facts |= {
                "arrivals": str(load.arrivals),
                "arrivals_cv": load.arrivals.cv,
                "arrivals_dispersion": load.arrivals.dispersion(load.seconds),
                "offered_rps": load.arrivals.expected(load.seconds) / load.seconds,
            }
        facts |= {
            "seed": load.seed,
            "workload": str(load.workload),
            "lengths": f"prompt {load.workload.prompt} words, output {load.workload.output} tokens",
            "window_ns": (0, to_ns(load.seconds)),
            "started_at": datetime.now(UTC).isoformat(),
        }
        return Manifest(**{**facts, **load.facts})

    def _start(self, number: int) -> _Worker:
        load = self.load
        limit, users = (_share(each, number, load.workers) for each in (load.connections, load.users))
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "openloop.load.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is for us to hear
            )
        channel = Channel(ours)
        mine = range(number, len(self.due_ns), load.workers)
        rate = len(mine) / load.seconds if not load.users else 0.0
        spare = max(4, min(256, int(rate * 0.1)))
        spare = min(spare, limit) if limit else spare
        channel.send((astuple(load.place.address), to_ns(load.timeout_s), spare, limit, users))
        self.poller.watch(channel.fd, READ)
        return _Worker(channel, process, mine)

    def _conduct_politely(self) -> None:
        """In a thread of its own, whose priority is lowered for good: where processors are few, workers come first."""
        with contextlib.suppress(AttributeError, OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            self._conduct()
        except BaseException as error:
            self.failure = error

    def _conduct(self) -> None:
        """Until every worker has said goodbye, or is gone."""
        while not all(worker.ready or worker.over for worker in self.workers):
            self._listen(None)
        self.start_ns = time.monotonic_ns() + LEAD_NS
        self.stolen_s = stolen_s()
        flushed = told = self.start_ns
        while not all(worker.over for worker in self.workers):
            now = time.monotonic_ns()
            self._feed(now)
            self._stop_if_told(now)
            if len(self.rows) >= FLUSH_ROWS or now - flushed >= FLUSH_NS:
                self._flush()
                flushed = now
            if now - told >= TELL_NS:
                self._tell(now)
                told = now
            self._read(now + READ_NS)
            busy = bool(self.brought) or self._hungry(now)
            self._listen(now if busy else now + TICK_NS)
        self._read(None)
        self._tell(time.monotonic_ns())

    def _listen(self, until_ns: int | None) -> None:
        for worker in self.workers:
            if not worker.over:
                self.poller.change(worker.channel.fd, READ | WRITE if worker.channel.full else READ)
        ready = dict(self.poller.wait(until_ns))
        for worker in self.workers:
            if worker.over or worker.channel.fd not in ready:
                continue
            try:
                if ready[worker.channel.fd] & WRITE:
                    worker.channel.flush()
                for message in worker.channel.receive():
                    self._hear(worker, message)
            except GoneError:
                self._lost(worker)

    def _hear(self, worker: _Worker, message: Any) -> None:
        match message:
            case ("ready",):
                worker.ready = True
            case ("done", finished):
                self.brought.extend(finished)
            case ("bye",):
                worker.over = True
                self.poller.forget(worker.channel.fd)

    def _read(self, until_ns: int | None) -> None:
        """Read what workers brought, for a while: feeding them comes first."""
        while self.brought and (until_ns is None or time.monotonic_ns() < until_ns):
            self._take(self.brought.popleft())

    def _take(self, finished: Finished) -> None:
        number = finished[0]
        ask = self.asked.pop(number, None)
        if ask is None:
            return
        load = self.load
        if load.users:
            self.due_ns[number] = max(finished[3] - self.start_ns, 0)  # it was due when it was sent
        self._add(read_finished(finished, self.due_ns[number], self.start_ns, ask, load.target, load.timeout_s))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.unseen.append(row)
        self.statuses[row.outcome.status] += 1
        self.kernel_stamps += row.kernel_stamps
        self.stamps += row.stamps
        self.finished += 1

    def _hungry(self, now: int) -> bool:
        """Whether something is due soon that no worker has yet."""
        if self.fed == len(self.due_ns) or self.halted_ns is not None:
            return False
        if self.load.users:
            return len(self.asked) < 2 * self.load.users + FEED_AT_ONCE
        return bool(self.start_ns + self.due_ns[self.fed] < now + AHEAD_NS)

    def _feed(self, now: int) -> None:
        """Give workers what is due soon; when all is given, say so, and until when it may take."""
        if not self._hungry(now):
            return
        shares: list[list[tuple[int, int, bytes]]] = [[] for _ in self.workers]
        most = self.fed + FEED_AT_ONCE * len(self.workers)
        while self.fed < most and self._hungry(now):
            number, ask = self.fed, next(self.asks)
            self.asked[number] = ask
            due = self.start_ns + self.due_ns[number]
            shares[number % len(self.workers)].append((number, due, self.load.target.encode(ask, number)))
            self.fed += 1
        end = self.fed == len(self.due_ns)
        until = self.start_ns + to_ns(self.load.seconds + self.load.drain_s)
        for worker, share in zip(self.workers, shares, strict=True):
            if worker.over:
                self._drop(number for number, _, _ in share)
                continue
            messages = ([("ask", share)] if share else []) + ([("drain", until), ("end",)] if end else [])
            self._send(worker, *messages)

    def _send(self, worker: _Worker, *messages: Any) -> None:
        try:
            for message in messages:
                worker.channel.send(message)
        except GoneError:
            self._lost(worker)

    def _lost(self, worker: _Worker) -> None:
        """A worker died: what it had becomes rows that say so."""
        if worker.over:
            return
        worker.over = True
        self.poller.forget(worker.channel.fd)
        self._read(None)  # what it brought before is not lost
        mine = [number for number in self.asked if number in worker.numbers]
        self.notes.append(f"a worker died, and {len(mine):,} requests with it; those it was to send later are dropped")
        self._drop(mine)

    def _drop(self, numbers: Iterable[int], why: str = "the worker that was to send it died") -> None:
        for number in numbers:
            self.asked.pop(number, None)
            self._add(Row(number, self.due_ns[number], Outcome("dropped", error=why)))

    def _due_by(self, moment_ns: int) -> int:
        """How many were due before."""
        return bisect.bisect_left(self.due_ns, moment_ns - self.start_ns)

    def _stop_if_told(self, now: int) -> None:
        closed = self.load.users and now >= self.start_ns + to_ns(self.load.seconds)
        if (self.interrupts or closed) and self.halted_ns is None:
            self.halted_ns = max(now, self.start_ns + 1)
            if self.interrupts:
                self.notes.append(f"interrupted after {(self.halted_ns - self.start_ns) / 1e9:.1f} s")
            for number in [each for each in self.asked if self.start_ns + self.due_ns[each] >= self.halted_ns]:
                del self.asked[number]  # was not due yet
            for worker in self.workers:
                if not worker.over:
                    self._send(worker, ("halt", now + to_ns(HALT_S)))
        if self.interrupts > 1:
            for worker in self.workers:
                worker.over = True

    def _tell(self, now: int) -> None:
        seconds = (now - self.start_ns) / 1e9
        due = self._due_by(self.halted_ns or now)
        if self.load.users:
            due = self.finished + min(len(self.asked), self.load.users)
        try:
            self.watch(Snapshot(seconds, due, max(due - self.finished, 0), self.statuses, self.unseen))
        except Exception as error:  # nobody looks any more: that is no reason to stop measuring
            self.watch = lambda _: None
            self.notes.append(f"the display failed ({type(error).__name__}), and the run went on")
        self.unseen = []

    def _flush(self) -> None:
        if self.rows:
            self.writer.append(batch_of(self.rows))
            self.rows = []

    def _close(self) -> None:
        """Whatever did not come back was in flight when we stopped watching."""
        stopped = time.monotonic_ns() - self.start_ns
        if not self.load.users:
            end = len(self.due_ns) if self.halted_ns is None else self._due_by(self.halted_ns)
            self._drop(range(self.fed, end), "it was due before any worker had it")
        for number in [] if self.load.users else sorted(self.asked):
            outcome = Outcome("censored", error="still in flight when the run was stopped")
            self._add(Row(number, self.due_ns[number], outcome, requested_tokens=self.asked[number].output_tokens))
        self._flush()
        end = to_ns(self.load.seconds) if self.halted_ns is None else self.halted_ns - self.start_ns
        stolen = stolen_s() - self.stolen_s
        if stolen > STOLEN_SHARE * (os.cpu_count() or 1) * stopped / 1e9:
            self.notes.append(f"the host took {stolen:.1f} s of processor time from this machine during the run")
        self.writer.finish(
            window_ns=(0, end), stopped_ns=max(stopped, 1), stamps=self._stamps(), notes=tuple(self.notes)
        )

    def _stamps(self) -> str | None:
        if not self.stamps:
            return None
        share = self.kernel_stamps / self.stamps
        return (
            "the kernel's, on receiving"
            if share == 1
            else f"the kernel's for {share:.1%} of reads, else this process's"
        )


def _share(total: int | None, number: int, workers: int) -> int:
    """Of a limit that workers have together; 0: there is none."""
    if not total:
        return 0
    if total < workers:
        raise SpecError(f"{total} cannot be shared by {workers} workers; use as few workers")
    return total // workers + (number < total % workers)


def _schedule(load: Load) -> list[int]:
    """When each request is due; in a closed loop, when it may be sent at the earliest."""
    if load.users:
        return [0] * MOST_IN_CLOSED_LOOP
    expected = load.arrivals.expected(load.seconds)
    if expected > MOST_ARRIVALS:
        raise SpecError(f"{expected:,.0f} arrivals are too many for one run, which holds {MOST_ARRIVALS:,}")
    due_s = load.arrivals.times(load.seconds, stream(load.seed, "arrivals"))
    if not len(due_s):
        raise SpecError(f"nothing is due in {load.seconds:g} s of {load.arrivals}: raise the rate, or run longer")
    due: list[int] = np.minimum(np.rint(due_s * 1e9).astype(np.int64), to_ns(load.seconds) - 1).tolist()
    return due


def _main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
