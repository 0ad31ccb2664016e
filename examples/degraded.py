"""Two degraded replicas, how much of them a mean can hide, and what a deployment costs.

The first is the fleet of the chapter on the four metrics: mean latency looks healthy at some 45 ms, and two replicas
turn out to be slow now and then (a bad link, a noisy neighbour). They are drained; or late requests are copied to
another replica. Twenty replicas of an 8B model on H100s give short answers, in turn. The chapter has the p99 fall from
2.1 s to 190 ms with no change in the average. Both cannot be: a hundredth of all above 2.1 s is 21 ms of it. So the
replicas are slowed twice: to where the mean hardly shows it and the p99 does, and to the chapter's p99, where the mean
shows it too.

The second is the disruption window of "Goodput or it didn't happen" ($0.012 per accepted result, $0.035 in the 20
minutes after a deployment). Four replicas of a 70B model know 40 system prompts of 6,000 tokens. They are replaced one
after the other, and each comes back with a cold cache. What that costs depends on how much of the load three of them
can serve. Twice a day is 2.8% of the time: machines are paid either way, so even if nothing were accepted in it, the
whole would cost 2.9% more, unless it meets the busiest hours.
"""

import sys
from pathlib import Path
from typing import Any

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.score import TimeWindow
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source

SHORT = "synthetic:prompt=lognormal(median=200,sigma=0.5),output=lognormal(median=5,sigma=0.75)"
SLOWED = {"20 times": "factor=20,last=1.2s,every=10s", "75 times": "factor=75,last=3s,every=20s"}
DRAINED = ["remove:at=0s,replica=3", "remove:at=0s,replica=11"]
CURES: dict[str, dict[str, Any]] = {
    "as it was": {},
    "two drained": {"events": DRAINED},
    "copies after 100 ms": {"client": {"hedge": "100ms"}},
    "drained, and copies": {"events": DRAINED, "client": {"hedge": "100ms"}},
    "to the least busy": {"routing": "least-requests"},
}

SUPPORT = "synthetic:prompt=lognormal(median=300,sigma=0.6),output=800,prefixes=40,prefix=6000"
FLEET_PRICE = 48.0  # an hour of it
LOADS = [10.0, 11.6, 12.0]
DEPLOY_S, EVERY_S, WINDOW_S, WARM_S = 300.0, 240.0, 1200.0, 120.0


def degraded(folder: Path | None) -> None:
    tails: dict[str, dict[str, float]] = {}
    for times, how in SLOWED.items():
        slow = [f"slow:at={at}s,replica={replica},{how}" for at, replica in ((1, 3), (5, 11))]
        print(
            f"slowed {times:12}    mean     p50     p99   within 200 ms   copies   worst replicas' p99 (their median)"
        )
        scores = {name: scored({**fleet, "events": slow + fleet.get("events", [])}) for name, fleet in CURES.items()}
        tails = {name: show(name, score) for name, score in scores.items()}
        found = sorted({each.replica for each in scores["as it was"].stragglers})
        print(f"  stragglers by their p95: {', '.join(found) or 'none'}")
        sick, cured = (scores[name].e2e_s for name in ("as it was", "two drained"))
        assert sick is not None
        assert cured is not None
        fell = 1e3 * (sick.mean - cured.mean)
        least = 10 * (sick.p99 - cured.p99)  # ms: a hundredth of all are above
        print(
            f"  drained: the p99 was {sick.p99 / cured.p99:.1f} times as long, the mean "
            f"{sick.mean / cured.mean:.2f} times; {least:.0f} ms of the mean's {fell:.0f} cannot be hidden"
        )
    if folder:
        chart = Chart("Two replicas make the tail of the fleet", "Replica", "p99 latency (s)", log_y=True)
        for name in ("as it was", "copies after 100 ms"):
            places = sorted(tails[name], key=int)
            chart.line([int(each) for each in places], [tails[name][each] for each in places], name)
        chart.save(folder / "degraded_replicas.svg")
        chart.save(folder / "degraded_replicas.png")


def scored(fleet: dict[str, Any]) -> ol.Score:
    chosen = read_fleet({"model": "8b", "gpu": "h100", "replicas": 20, "max_sequences": 16, **fleet})
    run = simulate_fleet(chosen, Workload.of(read_source(SHORT)), Poisson(100), 600.0, 1)
    return ol.score(run, "e2e<=200ms", by=["replica"])


def show(name: str, score: ol.Score) -> dict[str, float]:
    """The p99 of each replica."""
    assert score.e2e_s
    tails = {each: s.e2e_s.p99 for each, s in score.by["replica"].items() if s.e2e_s}
    ranked = sorted(tails, key=tails.__getitem__)
    worst = ", ".join(f"{each}: {tails[each]:.2f} s" for each in ranked[-2:])
    print(
        f"  {name:19} {1e3 * score.e2e_s.mean:>5.0f}ms {1e3 * score.e2e_s.p50:>5.0f}ms"
        f" {1e3 * score.e2e_s.p99:>5.0f}ms {score.attainment:>15.2%}"
        f" {score.retries.hedges / score.requests:>8.1%}   {worst} ({tails[ranked[len(ranked) // 2]]:.2f} s)"
        f"{'' if score.valid else '  NOT VALID'}"
    )
    return tails


def deployed(load: float, seed: int) -> list[TimeWindow]:
    """Minutes of a run in which the replicas are replaced one after the other, once caches are warm."""
    fleet = {"model": "70b", "gpu": "h100", "tp": 4, "replicas": 4, "max_sequences": 128, "block": 64}
    deploy = f"deploy:at={DEPLOY_S:g}s,every={EVERY_S:g}s,grace=20s,restart=90s"
    chosen = read_fleet({**fleet, "routing": "least-requests", "events": [deploy]})
    workload = Workload.of(read_source(SUPPORT))
    run = simulate_fleet(chosen, workload, Poisson(load), DEPLOY_S + WINDOW_S + 120, seed)
    windows = ol.score(run, "ttft<=800ms, tpot<=60ms", window_s=60.0).windows
    return [each for each in windows if each.start_s >= WARM_S]


def accepted_rps(minutes: list[TimeWindow], start_s: float, end_s: float) -> float:
    mine = [each.summary.goodput_rps for each in minutes if start_s <= each.start_s < end_s]
    return sum(mine) / len(mine)


def deployment(folder: Path | None) -> None:
    print()
    print("dollars per 1,000 accepted, mean of two runs")
    print("  load   steady   20 min from deployment   ratio   once a week   twice a day   every hour")
    for load in LOADS:
        runs = [deployed(load, seed) for seed in (1, 2)]
        steady = sum(accepted_rps(run, WARM_S, DEPLOY_S) for run in runs) / len(runs)
        after = sum(accepted_rps(run, DEPLOY_S, DEPLOY_S + WINDOW_S) for run in runs) / len(runs)
        shares = [per_day * WINDOW_S / 86_400 for per_day in (1 / 7, 2.0, 24.0)]
        blended = [steady / ((1 - share) * steady + share * after) - 1 for share in shares]
        cells = "".join(f"{each:>+13.1%}" for each in blended)
        cost = [FLEET_PRICE / 3.6 / rate for rate in (steady, after)]
        print(f"{load:>4.1f}/s {cost[0]:>8.2f} {cost[1]:>24.2f} {cost[1] / cost[0]:>7.1f} {cells}")
    if folder:
        title = "A rolling deployment at a load that three replicas cannot serve"
        chart = Chart(title, "Minutes", "Requests per second")
        shown = deployed(LOADS[1], 1)
        minutes = [each.start_s / 60 for each in shown]
        chart.line(minutes, [each.summary.offered_rps for each in shown], "due", color="orange")
        chart.line(minutes, [each.summary.goodput_rps for each in shown], "accepted", color="green")
        for number in range(4):
            chart.mark_x((DEPLOY_S + EVERY_S * number) / 60, f"replica {number}")
        chart.save(folder / "degraded_deployment.svg")
        chart.save(folder / "degraded_deployment.png")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    degraded(where)
    deployment(where)
