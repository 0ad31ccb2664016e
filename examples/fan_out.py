"""How bad does fan-out get? A request that waits for n backends is slow when any of them is.

Each backend is over its budget of 50 ms with a probability of 1%, or of 0.1%: exponential service times whose mean is
set so. The simulated share of slow requests stands beside 1 - q**n.
"""

import math
import sys
from pathlib import Path

import openloop as ol
from openloop.distributions import Exponential
from openloop.report.chart import Chart
from openloop.sim import FanOut
from openloop.sim.theory import slow_share

BUDGET_S = 0.050
WIDTHS = [1, 10, 40, 50, 100, 200]


def simulated(fast_share: float, n: int) -> float:
    backend = Exponential(-BUDGET_S / math.log1p(-fast_share))
    run = ol.simulate(FanOut(n, backend), "poisson:rate=1000", 40.0)
    return 1 - ol.score(run, "e2e<=50ms").attainment


def main(folder: Path | None) -> None:
    chart = Chart("A rare slow backend is a common slow request", "Backends asked", "Slow requests", shares=True)
    print(f"{'n':>5} {'1 - 0.99^n':>11} {'simulated':>10} {'1 - 0.999^n':>12} {'simulated':>10}")
    found = {q: [simulated(q, n) for n in WIDTHS] for q in (0.99, 0.999)}
    for n, common, rare in zip(WIDTHS, found[0.99], found[0.999], strict=True):
        print(f"{n:>5} {slow_share(0.99, n):>11.1%} {common:>10.1%} {slow_share(0.999, n):>12.1%} {rare:>10.1%}")
    better = slow_share(0.99, 200) / slow_share(0.999, 200)
    print(f"at n = 200, backends that are slow a tenth as often make {better:.1f} times fewer slow requests")
    if folder:
        for q, shares in found.items():
            chart.line(WIDTHS, shares, f"{1 - q:.1%} slow each", color="red" if q == 0.99 else "blue")
        chart.limits(y=(0, 1))
        chart.save(folder / "fan_out.svg")
        chart.save(folder / "fan_out.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
