"""Two levers beside routing: a copy of what is late, and a refusal of what would be.

1. Hedging under an SLO. Eight replicas in turn, each of which is eight times slower for 2 s of every 40 s. A request
   without a first token after 150 ms is copied to another replica, and whoever answers first is kept. That takes the
   slow moments out of the tail for a twentieth more load. Where the fleet is nearly full the copies make more requests
   late, which are copied: at 280 requests per second, four of five of which would have been in time, hedging nearly
   doubles the load and three of four are late. A budget of one copy for twenty requests keeps it harmless; copies after
   50 ms are too many sooner.
2. Admission at the knee. Four replicas, each with a batch of at most 48. Beyond the knee all requests wait as long as
   the queue is, and goodput falls to nothing, though as many are served. Whoever refuses enough keeps the rest in time:
   a limit must be known beforehand, a prediction of the first token needs no limit.
"""

import sys
from pathlib import Path
from typing import Any

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.score import Score
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.slo import read_slo
from openloop.workload import Workload, read_source

ASKED = "synthetic:prompt=lognormal(median=700,sigma=0.7),output=lognormal(median=60,sigma=0.6)"
SLOW = [f"slow:at={3 + 5 * replica}s,replica={replica},factor=8,last=2s,every=40s" for replica in range(8)]
HEDGES: dict[str, dict[str, Any]] = {
    "no copies": {},
    "after 150 ms": {"client": {"hedge": "150ms"}},
    "150 ms, at most 5%": {"client": {"hedge": "hedge:after=150ms,budget=5%"}},
    "after 50 ms": {"client": {"hedge": "50ms"}},
}
ADMISSIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "in-flight:48": {"admission": "in-flight:48"},
    "queue:4": {"admission": "queue:4"},
    "deadline": {"admission": "deadline"},
    "slo-aware routing": {"routing": "slo-aware"},
}


def measured(fleet: dict[str, Any], rate: float, seconds: float, slo: str) -> Score:
    found = read_fleet({"model": "8b", "gpu": "h100", **fleet})
    run = simulate_fleet(found, Workload.of(read_source(ASKED)), Poisson(rate), seconds, 1, read_slo(slo))
    return ol.score(run, slo)


def hedging(folder: Path | None) -> None:
    loads = (100, 180, 240, 280, 310)
    print("ttft within 300 ms, its p99, and load added, by requests per second")
    print(" " * 19 + "".join(f"{load:>23}" for load in loads))
    goodputs: dict[str, list[float]] = {}
    for name, more in HEDGES.items():
        cells, goodputs[name] = [], []
        for load in loads:
            score = measured({"replicas": 8, "events": SLOW, **more}, load, 80.0, "ttft<=300ms")
            assert score.ttft_s
            added = score.retries.hedges / score.requests
            cells.append(f"{score.attainment:>9.1%}{score.ttft_s.p99:>6.2f} s{added:>+6.0%}")
            goodputs[name].append(score.goodput_rps)
        print(f"{name:19}{''.join(cells)}")
    if folder:
        chart = Chart("Copies help until the fleet is nearly full", "Requests per second", "Accepted per second")
        for name, each in goodputs.items():
            chart.line(loads, each, name)
        chart.save(folder / "levers_hedging.svg")
        chart.save(folder / "levers_hedging.png")


def admission(folder: Path | None) -> None:
    loads = (100, 120, 130, 140, 150, 180, 240)
    print()
    print("accepted per second (refused) of" + "".join(f"{load:>10}/s" for load in loads))
    goodputs: dict[str, list[float]] = {}
    for name, more in ADMISSIONS.items():
        fleet = {"replicas": 4, "routing": "least-requests", "max_sequences": 48, **more}
        scores = [measured(fleet, load, 60.0, "ttft<=500ms, tpot<=40ms") for load in loads]
        goodputs[name] = [score.goodput_rps for score in scores]
        shed = [score.statuses.get("shed", 0) / score.requests for score in scores]
        cells = "".join(f"{good:>6.0f} {f'({gone:.0%})':>5}" for good, gone in zip(goodputs[name], shed, strict=True))
        print(f"{name:31}{cells}")
    if folder:
        chart = Chart("Refusing some keeps the others in time", "Requests per second", "Accepted per second")
        for name, each in goodputs.items():
            chart.line(loads, each, name)
        chart.save(folder / "levers_admission.svg")
        chart.save(folder / "levers_admission.png")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    hedging(where)
    admission(where)
