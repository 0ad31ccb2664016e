"""Gates in processes of their own: in parallel, off the clock of a run, and each within a time limit.

A regular expression, a JSON Schema or a function of the user's can run forever. An alarm ends what Python can end; a
process that does not answer even then is replaced. What it was at is left without a grade.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from types import FrameType
from typing import Any

from openloop.quality.case import Case, Grade, QualityGate, TimeUp, joint_grade
from openloop.quality.gates import Gating
from openloop.quality.judge import Judge
from openloop.spec import one_line

GRACE_S = 5.0
STARTING_S = 60.0
ASKING = 8  # processes that wait for a judge


def jobs_for(gating: Gating) -> int:
    """As many as there are processors; more where they only wait for a judge."""
    asks = any(isinstance(gate, Judge) for gate in gating.all)
    return max(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, ASKING if asks else 1)


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    pipe: "Connection[Any, Any]"
    key: Hashable | None = None
    until: float = 0.0


class Pool:
    """Cases in, grades out, in whatever order they are done."""

    def __init__(self, gating: Gating, jobs: int, *, idly: bool = False) -> None:
        self._gating = pickle.dumps(gating)
        slices = sum(gate.limit_s for gate in gating.slices.values())
        self._limits = {name: slices + sum(g.limit_s for g in gating.of(name)) for name in (None, *gating.classes)}
        self._idly = idly
        self._waiting: deque[tuple[Hashable, Case]] = deque()
        self._jobs = jobs
        self._workers: list[_Worker] = [self._start() for _ in range(jobs)]

    @property
    def pending(self) -> int:
        return len(self._waiting) + sum(worker.key is not None for worker in self._workers)

    def submit(self, key: Hashable, case: Case) -> None:
        self._waiting.append((key, case))
        self._hand_out()

    def finished(self, timeout_s: float) -> Iterator[tuple[Hashable, Grade]]:
        """What is done by then, or as soon as anything is."""
        busy = [worker for worker in self._workers if worker.key is not None]
        ready = wait([worker.pipe for worker in busy], timeout_s) if busy else []
        for worker in busy:
            key = worker.key
            assert key is not None
            if worker.pipe in ready:
                try:
                    grade = worker.pipe.recv()
                    worker.key = None
                except (EOFError, OSError, pickle.UnpicklingError):
                    self._end(worker)
                    grade = Grade(None, why="the process that judged it died")
                yield key, grade
            elif time.monotonic() > worker.until:
                self._end(worker)
                yield key, Grade(None, why="judging it took too long")
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            worker = next((each for each in self._workers if each.key is None), None)
            if worker is None and len(self._workers) < self._jobs:
                worker = self._start()
                self._workers.append(worker)
            if worker is None:
                return
            key, case = self._waiting.popleft()
            limit = self._limits.get(case.workload_class, self._limits[None])
            started = worker.until == 0.0
            try:
                worker.pipe.send(case)
            except (OSError, ValueError):  # it died while it had nothing to do
                self._end(worker)
                self._waiting.appendleft((key, case))
                continue
            worker.key, worker.until = key, time.monotonic() + limit + GRACE_S + (STARTING_S if started else 0.0)

    def _start(self) -> _Worker:
        ours, theirs = Pipe()
        os.set_inheritable(theirs.fileno(), True)
        process = subprocess.Popen(
            [sys.executable, "-c", f"from openloop.quality.pool import work; work({theirs.fileno()})"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,  # no session of its own: Linux shares processors by session, however idle who is in one
        )
        theirs.close()
        worker = _Worker(process, ours)
        with contextlib.suppress(OSError):  # it shows when a case is sent
            ours.send((self._gating, self._idly))
        return worker

    def _end(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.wait()
        worker.pipe.close()
        self._workers.remove(worker)

    def close(self) -> None:
        self._waiting.clear()
        for worker in list(self._workers):
            self._end(worker)


def work(fd: int) -> None:
    """A process of the pool: grade until the pipe is closed."""
    pipe: Connection[Any, Any] = Connection(fd)
    signal.signal(signal.SIGALRM, _ring)
    for touched in (signal.SIGTTIN, signal.SIGTTOU):  # a terminal, which is for others: nobody would wake us up again
        signal.signal(touched, signal.SIG_IGN)
    try:
        raw, idly = pipe.recv()
        if idly and hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        gating: Gating = pickle.loads(raw)
        while True:
            case = pipe.recv()
            grade = joint_grade(_limited(gate, case) for gate in gating.of(case.workload_class))
            asked = Case(case.prompt, case.prompt)
            slices = tuple(name for name, gate in gating.slices.items() if _limited(gate, asked).passed)
            pipe.send(replace(grade, slices=slices))
    except (EOFError, OSError):
        return


def _ring(_: int, __: FrameType | None) -> None:
    raise TimeUp


def _limited(gate: QualityGate, case: Case) -> Grade:
    """A gate within its time; whatever a user's function does costs its own case and no other."""
    try:
        signal.setitimer(signal.ITIMER_REAL, gate.limit_s)
        try:
            return gate.check(case)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except TimeUp as up:
        return Grade(None, cost=up.cost, why=f"{gate} took longer than {gate.limit_s:g} s")
    except Exception as error:
        return Grade(None, why=f"{gate} failed: {type(error).__name__}: {one_line(error)[:200]}")
