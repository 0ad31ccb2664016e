"""The load test of the goodput chapter: one replica, nine offered loads, a budget of 200 ms.

A single first-come-first-served server with a capacity of 500 requests per second. Arrivals and service times are those
of the chapter's listing, drawn from the same random stream; every number comes from the score of a run.

    python examples/load_test.py            prints the table
    python examples/load_test.py FOLDER     also writes each load as a run, and the picture
"""

import math
import sys
from pathlib import Path

import numpy as np

import openloop as ol
from openloop.arrivals import Poisson
from openloop.distributions import Exponential
from openloop.report.chart import Chart
from openloop.sim import Fcfs

CAPACITY = 500.0  # requests per second
WINDOW_S = 20.0
LOADS = [100, 200, 300, 400, 450, 480, 500, 520, 560]
DEMAND = 9_000.0


def sweep() -> dict[int, ol.Run]:
    rng = np.random.default_rng(7)
    replica = Fcfs(Exponential(1 / CAPACITY))
    return {load: ol.simulate(replica, Poisson(load), WINDOW_S, rng, slo="e2e<=200ms") for load in LOADS}


def draw(scores: dict[int, ol.Score], knee: int) -> Chart:
    chart = Chart("Throughput holds at capacity, goodput collapses", "Offered load (requests/s)", "Requests per second")
    chart.line(LOADS, [score.completed_in_window_rps for score in scores.values()], "throughput", color="orange")
    chart.line(LOADS, [score.goodput_rps for score in scores.values()], "goodput", color="green")
    chart.mark_x(knee, "SLO breached above here", color="red")
    chart.mark_x(CAPACITY, "capacity")
    chart.limits(y=(0, 600))
    chart.note("throughput: what completed within the 20 s")
    return chart


def main(folder: Path | None) -> None:
    runs = sweep()
    scores = {load: ol.score(run) for load, run in runs.items()}
    print(f"single replica: capacity={CAPACITY:.0f} req/s, SLO=p99<200ms, window={WINDOW_S:.0f}s")
    print(f"{'offered':>8} {'thrput':>8} {'goodput':>8} {'p50':>7} {'p95':>8} {'p99':>9}")
    print("-" * 56)
    for load, score in scores.items():
        assert score.e2e_s is not None
        p50, p95, p99 = (1000 * p for p in (score.e2e_s.p50, score.e2e_s.p95, score.e2e_s.p99))
        print(
            f"{load:>8} {score.throughput_rps:>8.0f} {score.goodput_rps:>8.0f} {p50:>6.0f}m {p95:>7.0f}m {p99:>8.0f}m"
        )
    knee = max(load for load, score in scores.items() if score.goodput_rps == score.throughput_rps)
    half = min(load for load, score in scores.items() if score.goodput_rps < score.throughput_rps / 2)
    print()
    print(f"all that completes is accepted up to {knee}/s; at {half}/s less than half of it is")
    needed, naive = math.ceil(DEMAND / knee), math.ceil(DEMAND / CAPACITY)
    print(f"{DEMAND:,.0f} accepted/s need {needed} replicas, not the {naive} of raw capacity")
    weak = ", ".join(str(load) for load, score in scores.items() if not score.valid)
    print(f"not valid by their score, as nothing is steady in them and {WINDOW_S:.0f} s decide: {weak}")
    if folder:
        for load, run in runs.items():
            run.save(folder / f"load-{load}")
        chart = draw(scores, knee)
        chart.save(folder / "collapse.svg")
        chart.save(folder / "collapse.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
