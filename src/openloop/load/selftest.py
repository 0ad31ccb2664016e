"""How wrong is this machine as a load generator? Driven against an endpoint that knows the truth."""

import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openloop.arrays import Floats
from openloop.arrivals import Poisson
from openloop.clock import stolen_s
from openloop.distributions import Fixed
from openloop.load.address import find_place
from openloop.load.conductor import drive
from openloop.load.plan import Load
from openloop.load.targets import Chat
from openloop.quality import Gating
from openloop.records import MISSING, Run, ints
from openloop.serve.process import RunningEndpoint, endpoint_process
from openloop.workload import Synthetic, Workload

ENGINE = "slots:count=1000000,prefill=0s,overhead=50ms,gap=10ms"
TOKENS = 20
TRUSTED_ERROR_S = 0.001  # p99 of TTFT against the truth, and of sending against the schedule
TRUSTED_CV = 0.1  # of the arrivals' variation at the server, from 1


@dataclass(frozen=True)
class Error:
    """How far a measurement is from the truth, in seconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, errors: Floats) -> "Error":
        if not len(errors):
            return cls(np.nan, np.nan, np.nan)
        p50, p99, most = np.percentile(np.abs(errors), [50, 99, 100])
        return cls(float(p50), float(p99), float(most))


@dataclass(frozen=True)
class RateTrial:
    """One rate."""

    offered_rps: float
    achieved_rps: float
    completed: float  # share
    arrivals_cv: float  # at the server
    lag: Error  # of sending, behind the schedule
    ttft: Error
    itl: Error
    e2e: Error
    cpu_s_per_1000: float
    stolen: float  # share of this machine's processor time that its host gave to others
    stamps: str | None

    @property
    def trusted(self) -> bool:
        late = max(self.ttft.p99, self.lag.p99)
        return self.completed == 1.0 and late <= TRUSTED_ERROR_S and abs(self.arrivals_cv - 1) <= TRUSTED_CV


def selftest(
    rates: Sequence[float],
    seconds: float = 5.0,
    workers: int = 1,
    told: Callable[[RateTrial], None] | None = None,
    gating: Gating | None = None,
) -> list[RateTrial]:
    """Drive the built-in endpoint at each rate; where there are cores to spare, it has one of its own.

    With `gating` outputs are graded meanwhile.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    apart = len(cores) > 1
    found = []
    with tempfile.TemporaryDirectory() as folder, endpoint_process(ENGINE, cores[0] if apart else None) as server:
        if apart:
            os.sched_setaffinity(0, cores[1:])
        try:
            for rate in rates:
                found.append(_try(server, rate, seconds, workers, Path(folder) / f"{rate:g}", gating))
                if told:
                    told(found[-1])
        finally:
            if apart:
                os.sched_setaffinity(0, cores)
    return found


def _try(
    server: RunningEndpoint, rate: float, seconds: float, workers: int, folder: Path, gating: Gating | None
) -> RateTrial:
    place = find_place(server.url)
    target, workload = Chat(place.host, "openloop", place.base), Workload.of(Synthetic(Fixed(20), Fixed(TOKENS)))
    load = Load([(place, target)], workload, Poisson(rate), seconds, workers=workers, gating=gating)
    before, stolen, began = _cpu(), stolen_s(), time.monotonic()
    run = drive(load, folder)
    used = _cpu() - before
    taken = (stolen_s() - stolen) / (time.monotonic() - began) / (os.cpu_count() or 1)
    return _compare(run, server.truth(), rate, seconds, used, taken)


def _cpu() -> float:
    """Of this process and the workers that are over."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _compare(
    run: Run, truth: dict[int, tuple[int, list[int]]], rate: float, seconds: float, cpu_s: float, stolen: float
) -> RateTrial:
    """Measured times count from the run's start and true ones from the machine's: only differences are compared."""
    lag, ttft, itl, e2e = [], [], [], []
    rows = done = 0
    for batch in run.batches():
        sent, due = ints(batch, "sent_ns"), ints(batch, "scheduled_ns")
        lag += ((sent - due)[sent != MISSING] / 1e9).tolist()
        rows += batch.num_rows
        for number, begun, events, status in zip(
            batch["request_id"].to_pylist(), sent, batch["event_ns"], batch["status"].to_pylist(), strict=True
        ):
            arrived, written = truth.get(number, (0, []))
            if status != "ok" or len(written) != len(events):
                continue
            done += 1
            measured, true = np.asarray(events.values), np.array(written)
            ttft.append((measured[0] - begun) - (true[0] - arrived))
            e2e.append((measured[-1] - begun) - (true[-1] - arrived))
            itl.append(np.diff(measured) - np.diff(true))
    arrivals = np.sort([arrived for arrived, _ in truth.values()])
    gaps = np.diff(arrivals)
    return RateTrial(
        offered_rps=rate,
        achieved_rps=len(truth) / seconds,
        completed=done / rows,
        arrivals_cv=float(gaps.std() / gaps.mean()) if len(gaps) > 1 else np.nan,
        lag=Error.of(np.array(lag)),
        ttft=Error.of(np.array(ttft) / 1e9),
        itl=Error.of(np.concatenate(itl) / 1e9 if itl else np.empty(0)),
        e2e=Error.of(np.array(e2e) / 1e9),
        cpu_s_per_1000=1000 * cpu_s / rows,
        stolen=stolen,
        stamps=run.manifest.stamps,
    )
