"""How many requests of a fleet does the simulator do in a second, on one core?

    python bench/fleet.py [--requests 200000] [--day 10000000]

Replicas of an 8B model on H100s with prefix caches, conversations of three turns that share a system prompt, to whoever
has the fewest requests, 15 requests/s for each replica: 8 replicas and 64. Printed are requests per second of processor
time with token times in memory, and the ratio to a simulator of such a workload, whose figure was taken on one idle
core of another machine of this kind. `--day`: so many requests in a day over 64 replicas,
straight into a run folder, with the peak of memory (ten million take minutes, and gigabytes of disk).
"""

import argparse
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from openloop.arrivals import Poisson
from openloop.sim.fleet import engine_of, read_fleet, simulate_fleet
from openloop.workload import Workload, read_source

FLEET = {"model": "8b", "gpu": "h100", "routing": "least-requests"}
SPEC = (
    "sessions:turns=3,think=exponential(5s),prompt=lognormal(median=200,sigma=0.6),"
    "output=lognormal(median=150,sigma=0.5),system=500"
)
DYNOSIM = 3140  # 8 workers, router by cache
PER_REPLICA_RPS = 15.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--day", type=int, default=0)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    workload = Workload.of(read_source(SPEC))
    for replicas in (8, 64):
        fleet = read_fleet({**FLEET, "replicas": replicas})
        users = Poisson(PER_REPLICA_RPS * replicas / 3)
        list(engine_of(fleet, workload.demand(users, 2.0, 1)).run())  # compiled or from the cache
        demand = workload.demand(users, given.requests / PER_REPLICA_RPS / replicas, 1)
        best = 0.0
        for _ in range(3):
            began = time.process_time()
            engine = engine_of(fleet, demand)
            blocks = list(engine.run())
            best = max(best, len(demand) / (time.process_time() - began))
        prompts, cached = (sum(int(block.rows[name].sum()) for block in blocks) for name in ("prompt", "cached"))
        events = sum(len(block.times) for block in blocks)
        print(
            f"{replicas:>3} replicas: {best:>8,.0f} requests/s, {best / DYNOSIM:.0f} times DynoSim"
            f" ({DYNOSIM:,}/s elsewhere); {events:,} token times, {cached / prompts:.0%} of prompts cached"
        )
        print(
            f"=> {replicas} replicas with prefix caches | {best:,.0f} requests/s | DynoSim: {DYNOSIM:,}/s elsewhere"
            f" | {best / DYNOSIM:.0f}x as fast | {50_000 if replicas == 8 else 20_000:,}/s"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    if given.day:
        _day(workload, given.day)


def _day(workload: Workload, count: int) -> None:
    fleet = read_fleet({**FLEET, "replicas": 64})
    rate, seconds = count / 86_400, 86_400.0
    folder = Path(tempfile.mkdtemp(prefix="openloop-day-"))
    began = time.monotonic()
    try:
        run = simulate_fleet(fleet, workload, Poisson(rate / 3), seconds, 1, out=folder / "run")
        spent, size = time.monotonic() - began, sum(path.stat().st_size for path in (folder / "run").iterdir())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"a day, {run.num_rows:,} requests over 64 replicas: {spent / 60:.1f} minutes, {size / 1e9:.1f} GB,"
            f" peak memory {memory:,.0f} MiB"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
