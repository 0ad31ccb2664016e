"""How fast is a queue of a million requests?

    python bench/queues.py

One first-come-first-served server, a million Poisson arrivals at 90% load: the compiled recursion against the plain
loop of the goodput chapter on the same arrays, and against the one pass over them that no queue can beat. Then whole
runs, from the schedule to a score.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import openloop as ol
from openloop.arrivals import Poisson
from openloop.sim.recursions import single_server

N = 1_000_000
RATE = 450.0
AIM_S = 1.0
QUEUES = {
    "one server": "fcfs:service=exponential(2ms)",
    "8 servers": "fcfs:service=exponential(16ms),servers=8",
    "batches of 16": "batch:size=16,fixed=4ms,each=0.9ms,timeout=50ms",
    "3 stages": "pipeline:1ms,exponential(1.5ms),0.5ms",
    "fan-out to 10": "fanout:n=10,service=exponential(2ms)",
    "hedged after p95": "hedged:service=exponential(2ms),after=p95",
    "replica, 10 tokens": "replica:prompt=uniform(50,150),output=10,prefill=0.01ms,gap=exponential(5ms),crowding=3%",
}


def seconds(what: Callable[[], Any], repeats: int = 5) -> float:
    """Of the fastest of several calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        what()
        times.append(time.perf_counter() - start)
    return min(times)


def plain_loop(arrivals: Any, service: Any) -> Any:
    """As the chapter has it."""
    finish = np.empty(len(arrivals))
    free_at = 0.0
    for i in range(len(arrivals)):
        start = max(arrivals[i], free_at)
        finish[i] = start + service[i]
        free_at = finish[i]
    return finish


def main() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rng = np.random.default_rng(0)
    arrivals = np.sort(rng.uniform(0.0, N / RATE, N))
    service = rng.exponential(0.002, N)
    assert np.array_equal(single_server(arrivals, service), plain_loop(arrivals, service))
    loop = seconds(lambda: plain_loop(arrivals, service), 2)
    ours = seconds(lambda: single_server(arrivals, service))
    once = seconds(lambda: arrivals + service)
    print(f"{N:,} requests through one server, on one core")
    print(f"  plain loop of the chapter      {loop * 1000:8.1f} ms")
    print(f"  compiled recursion             {ours * 1000:8.1f} ms   {loop / ours:,.0f}x as fast, equal to the bit")
    print(f"  one pass over the arrays       {once * 1000:8.1f} ms   the recursion takes {ours / once:.1f}x as long")
    print(
        f"=> a million requests through a queue | {ours * 1000:.1f} ms | a plain loop: {loop * 1000:.0f} ms"
        f" | {loop / ours:,.0f}x as fast | 100x"
    )
    print("whole runs of as many requests    simulate      score")
    for name, queue in QUEUES.items():
        run = ol.simulate(queue, Poisson(RATE), N / RATE)
        made = seconds(lambda queue=queue: ol.simulate(queue, Poisson(RATE), N / RATE), 3)  # type: ignore[misc]
        scored = seconds(lambda run=run: ol.score(run, "e2e<=200ms"), 2)  # type: ignore[misc]
        verdict = "" if name != "one server" else f"   {made / AIM_S:.0%} of the aim of {AIM_S:g} s"
        print(f"  {name:<28} {made:8.2f} s {scored:8.2f} s{verdict}")


if __name__ == "__main__":
    main()
