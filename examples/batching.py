"""Static batches and Little's law: the listing of the latency chapter.

Poisson arrivals at 800 per second, batches of 16 that take 4 ms + 0.9 ms per request, the chapter's random stream.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import openloop as ol
from openloop.arrivals import Recording, Replay
from openloop.report.chart import Chart
from openloop.sim import Batch

Floats = NDArray[np.float64]

RATE = 800.0
N = 200_000


def concurrency(due_s: Floats, ended_s: Floats) -> float:
    """The average number in flight: counted up at every arrival and down at every end, and weighed by time."""
    moments = np.concatenate([due_s, ended_s])
    order = np.argsort(moments, kind="stable")
    in_flight = np.cumsum(np.repeat([1.0, -1.0], len(due_s))[order])
    times = moments[order]
    return float(np.sum(in_flight[:-1] * np.diff(times)) / (times[-1] - times[0]))


def main(folder: Path | None) -> None:
    rng = np.random.default_rng(7)
    arrival = np.cumsum(rng.exponential(1 / RATE, N))
    run = ol.simulate(Batch(16, 0.004, 0.0009), Replay(Recording("listing", arrival)), float(arrival[-1]) + 1e-6, rng)
    score = ol.score(run, "e2e<=50ms")
    batch = next(iter(run.batches(["scheduled_ns", "ended_ns"])))
    due_s, ended_s = batch["scheduled_ns"].to_numpy() / 1e9, batch["ended_ns"].to_numpy() / 1e9
    rate = N / (due_s[-1] - due_s[0])
    law = rate * np.mean(ended_s - due_s)
    measured = concurrency(due_s, ended_s)
    assert score.e2e_s is not None
    p50, p95, p99, mean = (1000 * p for p in (score.e2e_s.p50, score.e2e_s.p95, score.e2e_s.p99, score.e2e_s.mean))
    print(f"requests              : {score.requests}")
    print(f"p50 / p95 / p99 (ms)  : {p50:.2f} / {p95:.2f} / {p99:.2f}")
    print(f"mean latency W (ms)   : {mean:.2f}")
    print(f"throughput lambda     : {rate:.1f} req/s")
    print(f"Little's law  L = lam*W: {law:.3f}")
    print(f"measured concurrency L : {measured:.3f}")
    print(f"relative gap          : {abs(measured - law) / measured:.2e}")
    if folder:
        chart = Chart("Latency distribution: the median hides the tail", "Latency (ms)", "Requests")
        chart.distribution((ended_s - due_s) * 1000)
        chart.save(folder / "batching.svg")
        chart.save(folder / "batching.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
