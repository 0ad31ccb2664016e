"""Two degraded replicas that the mean hides, and what a deployment costs.

The first is the fleet of the chapter on the four metrics: mean latency looks healthy, p99 is seconds, and two replicas
turn out to be slow now and then (a bad link, a noisy neighbour). They are drained; or late requests are copied to
another replica. Twenty replicas of an 8B model on H100s give short answers, in turn. The chapter has the p99 fall from
2.1 s to 190 ms with no change in the average. The average must fall: a hundredth of all above 2.1 s is 21 ms of it.

The second is the disruption window of "Goodput or it didn't happen" ($0.012 per accepted result, $0.035 in the 20
minutes after a deployment). Four replicas of a 70B model know 40 system prompts of 6,000 tokens. They are replaced one
after the other, and each comes back with a cold cache, at a load that three of them cannot serve. Twice a day is 2.8%
of the time: even if nothing were accepted in it, the whole would cost 2.9% more, unless it meets the busiest hours.
"""

import sys
from pathlib import Path
from typing import Any

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source

SHORT = "synthetic:prompt=lognormal(median=200,sigma=0.5),output=lognormal(median=5,sigma=0.75)"
SLOW = [f"slow:at={at}s,replica={replica},factor=75,last=5s,every=40s" for at, replica in ((5, 3), (17, 11))]
DRAINED = ["remove:at=0s,replica=3", "remove:at=0s,replica=11"]
CURES: dict[str, dict[str, Any]] = {
    "as it was": {"events": SLOW},
    "two drained": {"events": SLOW + DRAINED},
    "copies after 100 ms": {"events": SLOW, "client": {"hedge": "100ms"}},
    "drained, and copies": {"events": SLOW + DRAINED, "client": {"hedge": "100ms"}},
    "to the least busy": {"events": SLOW, "routing": "least-requests"},
}

SUPPORT = "synthetic:prompt=lognormal(median=300,sigma=0.6),output=800,prefixes=40,prefix=6000"
PRICE = 12.0  # an hour of a replica
DEPLOY_S, WINDOW_S, WARM_S = 300.0, 1200.0, 120.0


def degraded(folder: Path | None) -> None:
    print(
        "                        mean     p50     p99   within 200 ms   copies   worst replicas' p99 (fleet's median)"
    )
    tails: dict[str, dict[str, float]] = {}
    for name, fleet in CURES.items():
        chosen = read_fleet({"model": "8b", "gpu": "h100", "replicas": 20, "max_sequences": 16, **fleet})
        run = simulate_fleet(chosen, Workload.of(read_source(SHORT)), Poisson(100), 180.0, 1)
        score = ol.score(run, "e2e<=200ms", by=["replica"])
        assert score.e2e_s
        tails[name] = {each: s.e2e_s.p99 for each, s in score.by["replica"].items() if s.e2e_s}
        ranked = sorted(tails[name], key=tails[name].__getitem__)
        worst = ", ".join(f"{each}: {tails[name][each]:.2f} s" for each in ranked[-2:])
        middle = tails[name][ranked[len(ranked) // 2]]
        print(
            f"{name:20} {1e3 * score.e2e_s.mean:>5.0f}ms {1e3 * score.e2e_s.p50:>5.0f}ms"
            f" {1e3 * score.e2e_s.p99:>5.0f}ms {score.attainment:>15.2%}"
            f" {score.retries.hedges / score.requests:>8.1%}   {worst} ({middle:.2f} s)"
        )
        if name == "as it was":
            found = sorted({each.replica for each in score.stragglers})
            print(f"  stragglers by their p95: {', '.join(found) or 'none'}")
    if folder:
        chart = Chart("Two replicas make the tail of the fleet", "Replica", "p99 latency (s)", log_y=True)
        for name in ("as it was", "copies after 100 ms"):
            places = sorted(tails[name], key=int)
            chart.line([int(each) for each in places], [tails[name][each] for each in places], name)
        chart.save(folder / "degraded_replicas.svg")
        chart.save(folder / "degraded_replicas.png")


def deployment(folder: Path | None) -> None:
    print()
    fleet = {
        "model": "70b",
        "gpu": "h100",
        "tp": 4,
        "replicas": 4,
        "routing": "least-requests",
        "block": 64,
        "max_sequences": 128,
    }
    deploy = f"deploy:at={DEPLOY_S:g}s,every=240s,grace=20s,restart=90s"
    chosen = read_fleet({**fleet, "events": [deploy], "price_per_hour": PRICE})
    until = DEPLOY_S + WINDOW_S
    run = simulate_fleet(chosen, Workload.of(read_source(SUPPORT)), Poisson(11.5), until + 120, 1)
    windows = ol.score(run, "ttft<=800ms, tpot<=60ms", window_s=60.0).windows
    calm = [each for each in windows if WARM_S <= each.start_s < DEPLOY_S]
    after = [each for each in windows if DEPLOY_S <= each.start_s < until]
    rates = [sum(each.summary.accepted for each in part) / (60.0 * len(part)) for part in (calm, after)]
    costs = [4 * PRICE / 3600 / rate for rate in rates]
    print("                         accepted/s   per 1,000 accepted   TTFT p99   cache hits")
    for name, part, rate, cost in zip(("steady", "20 min from deployment"), (calm, after), rates, costs, strict=True):
        worst = max(each.summary.ttft_s.p99 for each in part if each.summary.ttft_s)
        hits = sum(each.summary.cache_hit_rate for each in part) / len(part)
        print(f"{name:23} {rate:>11.1f} {1e3 * cost:>17.2f} $ {worst:>9.1f}s {hits:>11.0%}")
    print(f"{costs[1] / costs[0]:.1f} times as much per accepted result; what that makes of the whole:")
    for name, per_day in (("once a week", 1 / 7), ("once a day", 1.0), ("twice a day", 2.0), ("every hour", 24.0)):
        share = per_day * WINDOW_S / 86_400
        blended = 4 * PRICE / 3600 / ((1 - share) * rates[0] + share * rates[1])
        print(f"  {name:12} {1e3 * blended:.3f} $ per 1,000 ({blended / costs[0] - 1:+.1%})")
    if folder:
        title = "A rolling deployment at a load that three replicas cannot serve"
        chart = Chart(title, "Minutes", "Requests per second")
        shown = [each for each in windows if each.start_s >= WARM_S]
        minutes = [each.start_s / 60 for each in shown]
        chart.line(minutes, [each.summary.offered_rps for each in shown], "due", color="orange")
        chart.line(minutes, [each.summary.goodput_rps for each in shown], "accepted", color="green")
        for number in range(4):
            chart.mark_x((DEPLOY_S + 240 * number) / 60, f"replica {number}")
        chart.save(folder / "degraded_deployment.svg")
        chart.save(folder / "degraded_deployment.png")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    degraded(where)
    deployment(where)
