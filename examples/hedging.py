"""A slow worker's share of traffic against the tail, then hedged requests and the load they add.

Service times are those of the chapter on the four metrics: lognormal about 40 ms, a share of them six times as long.
A second copy is sent once the first has taken longer than the p95, to a worker drawn anew; the first answer wins. The
chapter's exercise takes the smaller of two draws, as if the copy had not been sent late: that column is "ideal".
"""

import sys
from pathlib import Path

import numpy as np

import openloop as ol
from openloop.arrivals import Constant, Poisson
from openloop.distributions import Lognormal, Straggling
from openloop.report.chart import Chart
from openloop.score import Percentiles
from openloop.seeds import stream
from openloop.sim import After, Fcfs, Hedged, QueueModel

SHARES = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.10]
P95 = After(percentile=95)
WORKERS = 100


def service(share: float) -> Straggling:
    return Straggling(Lognormal(0.040, 0.35), share, 6.0)


def tail(queue: QueueModel, arrivals: Constant | Poisson, seconds: float) -> tuple[Percentiles, ol.Score]:
    score = ol.score(ol.simulate(queue, arrivals, seconds), "e2e<=200ms")
    assert score.e2e_s is not None
    return score.e2e_s, score


def ideal_p99(share: float, n: int) -> float:
    rng = stream(0, "service")
    first, second = service(share).draw(n, rng), service(share).draw(n, rng)
    late = first > np.quantile(first, 0.95)
    return float(np.quantile(np.where(late, np.minimum(first, second), first), 0.99))


def unloaded(folder: Path | None) -> None:
    print("slow share     p50     p95     p99 | hedged p99   ideal  extra requests")
    lines: dict[str, list[float]] = {name: [] for name in ("p50", "p95", "p99", "p99 hedged")}
    for share in SHARES:
        plain, _ = tail(Fcfs(service(share), servers=None), Constant(5000), 40.0)
        hedged, score = tail(Hedged(service(share), P95), Constant(5000), 40.0)
        for name, value in zip(lines, (plain.p50, plain.p95, plain.p99, hedged.p99), strict=True):
            lines[name].append(1000 * value)
        print(
            f"{share:>10.0%} {plain.p50 * 1000:>5.0f}ms {plain.p95 * 1000:>5.0f}ms {plain.p99 * 1000:>5.0f}ms |"
            f" {hedged.p99 * 1000:>8.0f}ms {ideal_p99(share, 200_000) * 1000:>5.0f}ms"
            f" {score.retries.amplification - 1:>15.1%}"
        )
    if folder:
        chart = Chart("The tail feels a slow worker, the median does not", "Share of slow requests (%)", "Latency (ms)")
        for name, values in lines.items():
            chart.line([100 * share for share in SHARES], values, name, dashed=name.endswith("hedged"))
        chart.save(folder / "hedging.svg")
        chart.save(folder / "hedging.png")


def loaded() -> None:
    """With workers that can be busy, copies queue too, and a queue makes more requests late enough to be copied."""
    print()
    print(f"{WORKERS} workers, 2% slow: load     p99  hedged p99  extra requests  busy")
    for load in (0.5, 0.7, 0.8, 0.85, 0.9):
        arrivals = Poisson(load * WORKERS / service(0.02).mean)
        plain, _ = tail(Fcfs(service(0.02), WORKERS), arrivals, 100.0)
        hedged, score = tail(Hedged(service(0.02), P95, WORKERS), arrivals, 100.0)
        print(
            f"{load:>27.0%} {plain.p99 * 1000:>5.0f}ms {hedged.p99 * 1000:>9,.0f}ms"
            f" {score.retries.amplification - 1:>15.1%} {score.utilisation:>5.0%}"
        )


if __name__ == "__main__":
    unloaded(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    loaded()
