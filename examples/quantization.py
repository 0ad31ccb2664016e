"""Quantization on the same hardware: 1.6 times the throughput, 1.5 points more failures in the tail, and what is left.

The article gives the 60%, the 1.5 points and three to four times less memory, and says "roughly break-even" after
retries and people; the share of requests in the tail, the price of the GPUs and that of a person who looks at an answer
are chosen here, and printed. An answer that fails is made once more; if it fails again, somebody looks at it. At this
load neither is short of memory: three times the room changes nothing.
"""

import sys
from pathlib import Path

import openloop as ol
from openloop.arrivals import Poisson
from openloop.records import Prices
from openloop.report.chart import Chart
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source

MODEL = {"model": "70b", "gpu": "h100", "tp": 4, "quality": "quality:fail=2%,tail=10%", "client": {"repair": "1"}}
FP8 = {"name": "fp8", "speed": 1.6, "memory": 3.0, "tail": 3.1}
ASKED = Workload.of(
    read_source("synthetic:prompt=lognormal(median=1500,sigma=0.6),output=lognormal(median=300,sigma=0.5)")
)
SLO = "e2e<=60s, tpot<=60ms, quality, retries<=1"
PER_HOUR, RATE, SECONDS = 12.0, 2.5, 16_000.0
REVIEWS = [0.0, 0.02, 0.04, 0.06, 0.08, 0.1]


def main(folder: Path) -> None:
    costs: dict[str, list[float]] = {"bf16": [], "fp8": []}
    print(f"Llama-3.1-70B on 4 x H100 at {PER_HOUR:.0f}/h; 7% of requests are in the tail,")
    print("of which 10% fail, and 31% when quantized; 2% of the others")
    print("          requests/s  goodput/s  made again  to people  in time")
    for name, speed, more in (("bf16", 1.0, {}), ("fp8", 1.6, {"quantization": FP8})):
        fleet = read_fleet({**MODEL, **more})
        run = simulate_fleet(fleet, ASKED, Poisson(RATE * speed), SECONDS / speed, 7)
        found = ol.score(run, SLO, prices=Prices(per_hour=PER_HOUR, per_human_review=1.0))
        assert found.cost is not None
        seen = found.cost.human_review  # at 1 each
        costs[name] = [(found.cost.total - seen + review * seen) / found.accepted for review in REVIEWS]
        again = found.retries.repairs / found.requests
        print(
            f"  {name:<6} {found.throughput_rps:>10.2f} {found.goodput_rps:>10.2f} {again:>11.1%}"
            f" {seen / found.requests:>10.2%} {found.gates['e2e'].attainment:>8.1%}"
        )
    print("cost per accepted result, by what it costs to have a person look at one that failed")
    print("  review     bf16      fp8   change")
    for review, plain, small in zip(REVIEWS, costs["bf16"], costs["fp8"], strict=True):
        print(f"  {review:>6.2f} {plain:>8.5f} {small:>8.5f} {small / plain - 1:>+8.0%}")
    gaps = [small - plain for plain, small in zip(costs["bf16"], costs["fp8"], strict=True)]
    even = -gaps[0] / (gaps[-1] - gaps[0]) * REVIEWS[-1]
    print(f"break-even at {even:.3f} a review: what the GPUs save goes to repairs and people")
    chart = Chart("Quantization saves GPUs and spends on people", "Price of a review", "Cost per accepted result")
    chart.line(REVIEWS, costs["bf16"], "bf16", color="orange")
    chart.line(REVIEWS, costs["fp8"], "fp8, 1.6 times as fast", color="green")
    chart.mark_x(even, "break-even")
    chart.save(folder / "quantization.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
