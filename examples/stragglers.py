"""One slow worker among many, as in the chapter on the four metrics: 2% of traffic, six times as slow.

The latencies come from the chapter's random stream. They are spread over 40 s at 5,000 requests per second, so that the
run also measures the concurrency which Little's law predicts.
"""

import sys
from pathlib import Path

import numpy as np

import openloop as ol
from openloop.arrivals import Constant
from openloop.distributions import Distribution, Lognormal, Straggling
from openloop.report.chart import Chart
from openloop.sim import Fcfs
from openloop.sim.theory import concurrency

RATE = 5000.0
SECONDS = 40.0  # 200,000 requests
HEALTHY = Lognormal(0.040, 0.35)


def serve(service: Distribution) -> tuple[ol.Score, ol.Run]:
    """Enough workers for everybody: what a request takes is what its worker takes."""
    run = ol.simulate(Fcfs(service, servers=None), Constant(RATE), SECONDS, np.random.default_rng(7))
    return ol.score(run, "e2e<=200ms"), run


def main(folder: Path | None) -> None:
    (with_one, run), (without, _) = serve(Straggling(HEALTHY, share=0.02, factor=6.0)), serve(HEALTHY)
    assert with_one.e2e_s is not None
    assert without.e2e_s is not None
    slow, fast = with_one.e2e_s, without.e2e_s
    print("WITH one slow worker (2% of traffic)")
    print(f" p50 = {slow.p50 * 1000:6.1f} ms")
    print(f" p95 = {slow.p95 * 1000:6.1f} ms")
    print(f" p99 = {slow.p99 * 1000:6.1f} ms")
    print(f" mean= {slow.mean * 1000:6.1f} ms")
    print("WITHOUT the straggler (all workers healthy)")
    print(f" p50 = {fast.p50 * 1000:6.1f} ms p95 = {fast.p95 * 1000:6.1f} ms p99 = {fast.p99 * 1000:6.1f} ms")
    print(f" p99 inflation from one slow worker: {slow.p99 / fast.p99:4.2f}x")
    print()
    print("Little's law L = lambda * W")
    print(f" throughput lambda = {with_one.throughput_rps:8.0f} req/s")
    print(f" mean latency W = {slow.mean * 1000:8.1f} ms")
    print(f" concurrency L = {concurrency(with_one.throughput_rps, slow.mean):8.1f} requests in flight")
    print(f" measured in the run = {with_one.little.L_measured:8.1f}")
    if folder:
        chart = Chart("One slow worker: the median does not notice, the p99 does", "Latency (ms)", "Requests")
        batch = next(iter(run.batches(["scheduled_ns", "ended_ns"])))
        chart.distribution((batch["ended_ns"].to_numpy() - batch["scheduled_ns"].to_numpy()) / 1e6)
        chart.save(folder / "stragglers.svg")
        chart.save(folder / "stragglers.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
