"""Two objectives, one stream: first tokens and further tokens fail at different loads.

A replica reads prompts one at a time, 0.1 ms per token, and then streams 64 tokens; a token takes 20 ms on average and
4% longer for every other stream that is active. Goodput is counted against each objective by itself: the first token
within 500 ms, and at most 40 ms per further token.
"""

import sys
from pathlib import Path

import openloop as ol
from openloop.arrivals import Poisson
from openloop.distributions import Exponential, Fixed, Lognormal
from openloop.report.chart import Chart
from openloop.sim import ReplicaQueue

REPLICA = ReplicaQueue(
    prompt=Lognormal(500, 0.6), output=Fixed(64), prefill=0.0001, gap=Exponential(0.020), crowding=0.04
)
LOADS = [2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18]
KEPT = 0.9  # share of a goodput below which it has collapsed


def main(folder: Path | None) -> None:
    print(" load  throughput  ttft goodput  tpot goodput  both  tokens/s")
    first: list[float] = []
    further: list[float] = []
    throughput: list[float] = []
    offered: list[float] = []
    for load in LOADS:
        score = ol.score(ol.simulate(REPLICA, Poisson(load), 600.0, seed=1), "ttft<=500ms, tpot<=40ms")
        first.append(score.gates["ttft"].attainment * score.offered_rps)
        further.append(score.gates["tpot"].attainment * score.offered_rps)
        offered.append(score.offered_rps)
        throughput.append(score.completed_in_window_rps)
        print(
            f"{load:>4}/s {throughput[-1]:>9.1f}/s {first[-1]:>11.1f}/s {further[-1]:>11.1f}/s"
            f" {score.goodput_rps:>6.1f} {throughput[-1] * 64:>8.0f}"
        )
    decode, prefill = (
        next(load for load, rate, due in zip(LOADS, rates, offered, strict=True) if rate < KEPT * due)
        for rates in (further, first)
    )
    print(f"further tokens are late from {decode}/s on, first tokens from {prefill}/s")
    if decode < prefill:
        print("decode saturates first: admit by the number of active streams, not by the length of the queue")
    else:
        print("prefill saturates first: admit by the length of the queue, not by the number of active streams")
    if folder:
        chart = Chart("Two goodputs collapse at different loads", "Offered load (requests/s)", "Requests per second")
        chart.line(LOADS, throughput, "throughput", color="orange")
        chart.line(LOADS, first, "first token ≤ 500 ms", color="blue")
        chart.line(LOADS, further, "≤ 40 ms per token", color="green")
        chart.save(folder / "two_goodputs.svg")
        chart.save(folder / "two_goodputs.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
