"""Find the batch size: throughput against the p99 for batches of 1 to 64, and a rule for "p99 under 50 ms".

A batch takes 4 ms + 0.9 ms per request, as in the latency chapter. Batches that always wait to be full are set against
batches that start after 20 ms at the latest: at the chapter's 800 requests/s, where no full batch keeps the bound, and
at 600, where one of them does.
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
RATES = [800.0, 600.0]
FLOOD = 2000.0  # more than any batch size can serve: what is served then is the capacity
SLO = "e2e<=50ms"


def main(folder: Path | None) -> None:
    capacities = {}
    print("size  capacity  B/(c0+c1 B)")
    for size in SIZES:
        flooded = ol.score(ol.simulate(Batch(size, FIXED_S, EACH_S), Poisson(FLOOD), 30.0), SLO)
        capacities[size] = flooded.completed_in_window_rps
        print(f"{size:>4} {capacities[size]:>7.0f}/s {batch_throughput(size, FIXED_S, EACH_S):>10.0f}/s")
    for rate in RATES:
        tails = sweep(rate)
    print(
        "\nthe rule: the size with the shortest p99 of those that can do the load: smaller ones queue and larger ones"
    )
    print("wait to fill; if it breaks the bound no other size keeps it, and a replica must be given fewer requests")
    if folder:
        draw(capacities, tails, folder)


def sweep(rate: float) -> dict[int, float]:
    """The p99 in ms of full batches that can do the load, by size."""
    print(f"\n{rate:.0f} requests/s      full batches                    after 20 ms at most")
    print("size  throughput      p99  Little's gap    throughput      p99  Little's gap")
    tails: dict[str, dict[int, float]] = {"full batches": {}, "after 20 ms at most": {}}
    for size in SIZES:
        cells = []
        for name, timeout in (("full batches", {}), ("after 20 ms at most", {"timeout": 0.020})):
            score = ol.score(ol.simulate(Batch(size, FIXED_S, EACH_S, **timeout), Poisson(rate), 300.0), SLO)
            assert score.e2e_s is not None
            stable = score.completed_in_window_rps > 0.98 * score.offered_rps
            law = f"{abs(score.little.residual):>12.1e}" if stable else "    unstable"
            cells.append(f"{score.completed_in_window_rps:>10.0f} {1000 * score.e2e_s.p99:>8,.0f}ms {law}")
            if stable:
                tails[name][size] = 1000 * score.e2e_s.p99
        print(f"{size:>4}  {'  '.join(cells)}")
    for name, found in tails.items():
        best = min(found, key=lambda size: found[size])
        keep = ", ".join(str(size) for size, tail in found.items() if tail <= 50) or "none"
        print(f"{name}: p99 under 50 ms with {keep}; the shortest, {found[best]:.0f} ms, with {best}")
    return tails["full batches"]


def draw(capacities: dict[int, float], tails: dict[int, float], folder: Path) -> None:
    title = f"Beyond {min(tails)}, larger batches buy only latency"
    chart = Chart(title, "Throughput it can sustain (requests/s)", "p99 latency (ms)")
    chart.points([capacities[size] for size in tails], list(tails.values()), [f"B = {size}" for size in tails])
    chart.mark_y(50, "SLO 50 ms", color="red")
    overloaded = ", ".join(str(size) for size in SIZES if size not in tails)
    chart.note(f"at {RATES[-1]:.0f} requests/s; B = {overloaded} cannot do as many")
    chart.limits(y=(0, 200))
    chart.save(folder / "batch_sweep.svg")
    chart.save(folder / "batch_sweep.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
