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
    print("size  capacity  B/(c0+c1 B)  throughput      p99  Little's gap    throughput      p99  Little's gap")
    capacities: dict[int, float] = {}
    tails: dict[int, float] = {}  # of full batches that can do the load, in ms
    accepted: dict[str, list[int]] = {"full batches": [], "after 20 ms at most": []}
    for size in SIZES:
        cells = []
        for name, timeout in (("full batches", {}), ("after 20 ms at most", {"timeout": 0.020})):
            score = ol.score(ol.simulate(Batch(size, FIXED_S, EACH_S, **timeout), Poisson(RATE), 300.0), SLO)
            assert score.e2e_s is not None
            stable = score.completed_in_window_rps > 0.98 * score.offered_rps
            law = f"{abs(score.little.residual):>12.1e}" if stable else "    unstable"
            cells.append(f"{score.completed_in_window_rps:>10.0f} {1000 * score.e2e_s.p99:>8,.0f}ms {law}")
            if stable and not timeout:
                tails[size] = 1000 * score.e2e_s.p99
            if score.e2e_s.p99 <= 0.050:
                accepted[name].append(size)
        flooded = ol.score(ol.simulate(Batch(size, FIXED_S, EACH_S), Poisson(FLOOD), 30.0), SLO)
        capacities[size] = flooded.completed_in_window_rps
        theory = batch_throughput(size, FIXED_S, EACH_S)
        print(f"{size:>4} {capacities[size]:>7.0f}/s {theory:>10.0f}/s  {'  '.join(cells)}")
    enough = min(size for size in SIZES if capacities[size] > 1.1 * RATE)
    for name, sizes in accepted.items():
        print(f"p99 under 50 ms, {name}: {', '.join(map(str, sizes))}")
    print(f"the smallest batch that can do the load with a tenth to spare: {enough}")
    if enough in accepted["full batches"] and all(tails[enough] <= tail for tail in tails.values()):
        print("so the rule is to take that one: every larger one serves as much and waits longer to fill")
    if folder:
        draw(capacities, tails, enough, folder)


def draw(capacities: dict[int, float], tails: dict[int, float], enough: int, folder: Path) -> None:
    title = f"Beyond {enough}, larger batches buy only latency"
    chart = Chart(title, "Throughput it can sustain (requests/s)", "p99 latency (ms)")
    chart.points([capacities[size] for size in tails], list(tails.values()), [f"B = {size}" for size in tails])
    chart.mark_y(50, "SLO 50 ms", color="red")
    overloaded = ", ".join(str(size) for size in SIZES if size not in tails)
    chart.note(f"at {RATE:.0f} requests/s; B = {overloaded} cannot do as many")
    chart.limits(y=(0, 200))
    chart.save(folder / "batch_sweep.svg")
    chart.save(folder / "batch_sweep.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
