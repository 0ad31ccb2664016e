"""Find the batch size: throughput against the p99 for batches of 1 to 64, and a rule for "p99 under 50 ms".

A batch takes 4 ms + 0.9 ms per request, as in the latency chapter. Batches that always wait to be full are set against
batches that start after 20 ms at the latest.
"""

import sys
from pathlib import Path

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.sim import Batch
from openloop.sim.theory import batch_throughput

SIZES = [1, 2, 4, 8, 16, 32, 64]
FIXED_S, EACH_S = 0.004, 0.0009
RATE = 600.0
FLOOD = 2000.0  # more than any batch size can serve: what is served then is the capacity
SLO = "e2e<=50ms"


def main(folder: Path | None) -> None:
    print(f"{RATE:.0f} requests/s                  full batches                    after 20 ms at most")
    print("size  capacity  B/(c0+c1 B)  served/s      p99  Little's gap    served/s      p99  Little's gap")
    capacities: list[float] = []
    tails: list[float] = []
    for size in SIZES:
        cells = []
        for timeout in ({}, {"timeout": 0.020}):
            score = ol.score(ol.simulate(Batch(size, FIXED_S, EACH_S, **timeout), Poisson(RATE), 300.0), SLO)
            assert score.e2e_s is not None
            stable = score.completed_in_window_rps > 0.98 * score.offered_rps
            law = f"{abs(score.little.residual):>12.1e}" if stable else "    unstable"
            cells.append(f"{score.completed_in_window_rps:>8.0f} {1000 * score.e2e_s.p99:>8,.0f}ms {law}")
            if not timeout:
                tails.append(1000 * score.e2e_s.p99)
        flooded = ol.score(ol.simulate(Batch(size, FIXED_S, EACH_S), Poisson(FLOOD), 30.0), SLO)
        capacities.append(flooded.completed_in_window_rps)
        print(
            f"{size:>4} {capacities[-1]:>7.0f}/s {batch_throughput(size, FIXED_S, EACH_S):>10.0f}/s  {'  '.join(cells)}"
        )
    enough = next(size for size in SIZES if batch_throughput(size, FIXED_S, EACH_S) > 1.1 * RATE)
    print(
        f"the rule: the smallest batch that can do the load with a tenth to spare, here {enough}; larger ones only wait"
    )
    if folder:
        chart = Chart(
            "Beyond 8, larger batches buy only latency",
            "Throughput it can sustain (requests/s)",
            "p99 latency (ms)",
            log_y=True,
        )
        chart.points(capacities, tails, [f"B = {size}" for size in SIZES])
        chart.mark_y(50, "SLO 50 ms", color="red")
        chart.save(folder / "batch_sweep.svg")
        chart.save(folder / "batch_sweep.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
