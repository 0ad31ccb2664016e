"""The lever in the load balancer: what routing does to caches, to a fleet, and to its users.

1. The table of "Goodput or it didn't happen": a support chatbot behind eight replicas, prompts that begin with 6,000
   tokens of system prompt and tools. The article has 12% of prompts cached and 1,200 ms to the first token in turn, 85%
   and 300 ms where prefixes are routed, 90% and 250 ms where sessions stick. One prefix alone would soon be on every
   replica, whatever the router does; what the article describes takes more of them than a replica has room for. Here
   560 customers have one each, conversations have ten turns, and a replica (a 70B model on four A100s) keeps 125,000
   tokens. Input costs a quarter where it is cached. With a favourite that may be four requests ahead of the least busy,
   conversations are torn apart now and then, as the article has it; if it may be eight ahead, routing by prefix keeps
   them together as well.
2. Two of five requests are of one customer. Without a fallback all of them go to the replica that knows its prefix;
   with one the prefix spreads to as many as are needed.
3. More replicas for as much more load: in turn each prefix is needed everywhere, so a larger fleet caches less. Routed,
   each replica has its share of them.
4. Views that are old: everybody goes to whom was idle at the last look. Of two by chance the less busy is no herd, and
   what a router counts itself does not age.
"""

import sys
from pathlib import Path
from typing import Any

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.score import Score
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source

SLO = "ttft<=1500ms, tpot<=60ms"
TURNS = "turns=10,think=exponential(20s),prompt=lognormal(median=200,sigma=0.6),output=lognormal(median=150,sigma=0.5)"
FLEET = {"model": "70b", "gpu": "a100", "tp": 4, "replicas": 8, "memory_tokens": 125_000}
CACHED_PRICE = 0.25  # of a token that is not
CHATS_RPS, SECONDS, WARM = 0.3, 2000.0, 0.3


def measured(routing: str, chats: str, rate: float, seconds: float = SECONDS, **more: Any) -> Score:
    fleet = read_fleet({**FLEET, "routing": routing, **more})
    window = (int(1e9 * WARM * seconds), int(1e9 * seconds))
    run = simulate_fleet(fleet, Workload.of(read_source(chats)), Poisson(rate), seconds, 1, window_ns=window)
    return ol.score(run, SLO, by=["replica"])


def ttft(score: Score) -> str:
    assert score.ttft_s
    return f"{1e3 * score.ttft_s.mean:>6.0f} ms {score.ttft_s.p99:>6.2f} s"


def cached(score: Score) -> float:
    assert score.cache_hit_rate is not None
    return score.cache_hit_rate


def the_table(folder: Path | None) -> None:
    print("policy                cached   ttft mean      p99   accepted   input cost")
    chats = f"sessions:{TURNS},system=6000,systems=560"
    shown, baseline = {}, 0.0
    for routing in (
        "round-robin",
        "prefix-aware:lead=4",
        "sticky",
        "prefix-aware",
        "kv-aware",
        "sglang",
        "llm-d",
        "dynamo",
    ):
        score = measured(routing, chats, CHATS_RPS)
        cost = 1 - (1 - CACHED_PRICE) * cached(score)
        baseline = baseline or cost
        saved = cost / baseline - 1
        print(f"{routing:20} {cached(score):>7.0%} {ttft(score):>20} {score.attainment:>9.1%} {saved:>+10.0%}")
        assert score.ttft_s
        shown[routing] = (cached(score), score.ttft_s.mean)
    if folder:
        chart = Chart("Where requests go decides what is cached", "Share of prompt tokens cached", "Mean TTFT (s)")
        few = ["round-robin", "dynamo", "prefix-aware:lead=4", "sticky"]
        chart.points([shown[name][0] for name in few], [shown[name][1] for name in few], few)
        chart.limits(x=(0.0, 1.05), y=(0.0, 1.5))
        chart.save(folder / "routing_table.svg")
        chart.save(folder / "routing_table.png")


def hot_spot(folder: Path | None) -> None:
    print()
    print("two of five requests of one customer     cached   ttft mean      p99   accepted   busiest replica")
    skewed = "synthetic:prompt=lognormal(median=600,sigma=0.6),output=150,prefixes=80,prefix=6000,skew=1.4"
    shares: dict[str, list[float]] = {}
    for name, routing in {
        "by prefix, without a fallback": "prefix-aware:fallback=stay",
        "by prefix, at most 8 ahead": "prefix-aware",
        "by prefix, at most 16 there": "prefix-aware:lead=never,most=16",
        "by tokens to compute": "kv-aware",
        "the sglang router": "sglang",
    }.items():
        score = measured(routing, skewed, 12.0, 400.0)
        shares[name] = sorted((each.requests / score.requests for each in score.by["replica"].values()), reverse=True)
        print(f"{name:40} {cached(score):>7.0%} {ttft(score):>20} {score.attainment:>9.1%} {shares[name][0]:>16.0%}")
    if folder:
        title = "Without a fallback one replica has two of five requests"
        chart = Chart(title, "Replicas, the busiest first", "Share of requests", shares=True)
        for name in ("by prefix, without a fallback", "the sglang router", "by prefix, at most 8 ahead"):
            chart.line(range(1, 9), shares[name], name)
        chart.limits(y=(0.0, 0.4))
        chart.save(folder / "routing_hot_spot.svg")
        chart.save(folder / "routing_hot_spot.png")


def dilution(folder: Path | None) -> None:
    print()
    print("replicas, and chats of as much more        4       8      16")
    found: dict[str, list[float]] = {}
    chats = f"sessions:{TURNS},system=6000,systems=60"
    for routing in ("round-robin", "least-requests", "prefix-aware", "kv-aware"):
        found[routing] = [cached(measured(routing, chats, 0.0375 * count, replicas=count)) for count in (4, 8, 16)]
        print(f"{routing + ': cached':36}" + "".join(f"{share:>8.0%}" for share in found[routing]))
    if folder:
        chart = Chart(
            "More replicas, less cached, unless they are routed", "Replicas", "Prompt tokens cached", shares=True
        )
        for routing, shares in found.items():
            chart.line([4, 8, 16], shares, routing)
        chart.limits(y=(0.0, 1.0))
        chart.save(folder / "routing_dilution.svg")
        chart.save(folder / "routing_dilution.png")


def staleness(folder: Path | None) -> None:
    print()
    ages = {"fresh": None, "0.1 s": "100ms", "0.5 s": "500ms", "2 s": "2s", "10 s": "10s"}
    print("p99 of ttft, views seen every" + "".join(f"{name:>9}" for name in ages))
    lengths = "prompt=lognormal(median=1500,sigma=0.8),output=lognormal(median=150,sigma=0.5)"
    asked = f"synthetic:{lengths},prefixes=64,prefix=1500"
    found: dict[str, list[float]] = {}
    for routing in ("random", "round-robin", "least-requests", "power-of-two", "kv-aware", "llm-d", "dynamo"):
        scores = [measured(routing, asked, 9.0, 400.0, view_every=every) for every in ages.values()]
        found[routing] = [score.ttft_s.p99 for score in scores if score.ttft_s]
        print(f"{routing:29}" + "".join(f"{tail:>7.2f} s" for tail in found[routing]))
    if folder:
        chart = Chart("Old views make herds", "Views are seen every (s)", "p99 of TTFT (s)", log_x=True, log_y=True)
        for routing, tails in found.items():
            chart.line([0.02, 0.1, 0.5, 2.0, 10.0], tails, routing)
        chart.note("the leftmost is fresh")
        chart.save(folder / "routing_staleness.svg")
        chart.save(folder / "routing_staleness.png")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    the_table(where)
    hot_spot(where)
    dilution(where)
    staleness(where)
