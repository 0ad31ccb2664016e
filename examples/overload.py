"""Two ways into overload: an admission limit raised past the knee, and a storm of retries.

The first is the chatbot of the goodput chapter: a fleet that sustains 12,000 tokens/s per replica is allowed more
requests at a time, tokens stay as many, and TTFT goodput (first token within 500 ms) falls from 98% to 41%. Here it is
an 8B model on an H100 with up to 256 answers in a batch, at 43.6 requests/s, slightly more than it can do; whoever
comes while as many as the limit are waiting or served is refused, and counts as a miss.

The second is the retry storm of "Goodput or it didn't happen": something the server depends on is slow for ten seconds,
so clients time out and ask again. What they ask again is work, and the answers come too late for most of it.
"""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.slo import read_slo
from openloop.workload import Workload, read_source

REPLICA = {"model": "8b", "gpu": "h100"}
CHAT = "synthetic:prompt=lognormal(median=300,sigma=0.6),output=lognormal(median=250,sigma=0.6)"
LIMITS = [224, 256, 272, 288, 320, 352, 384]
SEEDS = (1, 2, 3)
KNEE, RAISED = 272, 320

LONGER = "synthetic:prompt=lognormal(median=900,sigma=0.7),output=150"
SLOW = {"events": ["slow:at=60s,replica=0,factor=50,last=10s"], "max_sequences": 64}
AGAIN = "retry:most=5,on=timeout+shed,base=100ms"
CLIENTS: dict[str, dict[str, Any]] = {
    "nobody asks again": {"client": {"timeout": "4s"}},
    "five retries": {"client": {"timeout": "4s", "retry": AGAIN}},
    "backoff from 4 s": {"client": {"timeout": "4s", "retry": AGAIN.replace("100ms", "4s")}},
    "retry budget of 10%": {"client": {"timeout": "4s", "retry": f"{AGAIN},budget=10%"}},
    "at most 80 in flight": {"client": {"timeout": "4s", "retry": AGAIN}, "admission": "in-flight:80"},
    "likely late: refused": {"client": {"timeout": "4s", "retry": AGAIN}, "admission": "deadline"},
}


def limited(limit: int) -> list[ol.Score]:
    """By seed: so close to capacity, chance has much to say."""
    fleet, asked = read_fleet({**REPLICA, "admission": f"in-flight:{limit}"}), Workload.of(read_source(CHAT))
    return [ol.score(simulate_fleet(fleet, asked, Poisson(43.6), 300.0, seed), "ttft<=500ms") for seed in SEEDS]


def admission(folder: Path | None) -> None:
    print("limit   tokens/s   refused   TTFT goodput (of three seeds)   p50 TTFT   p99 TTFT")
    good, tokens = {}, {}
    for limit in LIMITS:
        scores = limited(limit)
        each = [score.attainment for score in scores]
        good[limit], tokens[limit] = mean(each), mean(score.output_tokens_per_s for score in scores)
        refused = mean(score.statuses["shed"] / score.requests for score in scores)
        p50, p99 = (mean(getattr(score.ttft_s, name) for score in scores) for name in ("p50", "p99"))
        print(
            f"{limit:>5} {tokens[limit]:>10,.0f} {refused:>9.1%} {good[limit]:>14.0%}"
            f" ({min(each):.0%} to {max(each):.0%}) {p50:>15.2f} s {p99:>8.2f} s"
        )
    print(f"raised from {KNEE} to {RAISED}: TTFT goodput {good[KNEE]:.0%} -> {good[RAISED]:.0%},", end=" ")
    print(f"tokens/s {tokens[RAISED] / tokens[KNEE] - 1:+.1%}; lowering it again costs as little")
    if folder:
        title = "Past the knee a higher limit buys waiting, not tokens"
        chart = Chart(title, "Requests a replica may have", "Share", shares=True)
        most = max(tokens.values())
        chart.line(LIMITS, [value / most for value in tokens.values()], "tokens/s", color="orange")
        chart.line(LIMITS, list(good.values()), "TTFT goodput", color="green")
        chart.mark_x(KNEE, f"knee, {KNEE}")
        chart.limits(y=(0, 1.05))
        chart.save(folder / "overload_admission.svg")
        chart.save(folder / "overload_admission.png")


def storm(folder: Path | None) -> None:
    print()
    print("slow from 60 s to 70 s, 14/s     attempts per   first token within 2 s, by minute")
    print("                                      request       1    2    3    4    5    6")
    title = "Ten slow seconds, and retries that keep them alive"
    chart = Chart(title, "Time (s)", "First token within 2 s", shares=True)
    for name, clients in CLIENTS.items():
        fleet = read_fleet({**REPLICA, **SLOW, **clients})
        run = simulate_fleet(fleet, Workload.of(read_source(LONGER)), Poisson(14), 360.0, 1, read_slo("ttft<=2s"))
        minutes = ol.score(run, "ttft<=2s", window_s=60.0)
        cells = "".join(f"{each.summary.attainment:>5.0%}" for each in minutes.windows)
        print(f"{name:32} {minutes.retries.amplification:>12.2f}    {cells}")
        if name in ("nobody asks again", "five retries", "at most 80 in flight"):
            tens = ol.score(run, "ttft<=2s", window_s=10.0).windows
            chart.line([each.start_s + 5 for each in tens], [each.summary.attainment for each in tens], name)
    if folder:
        chart.mark_x(60, "slow")
        chart.save(folder / "overload_storm.svg")
        chart.save(folder / "overload_storm.png")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    admission(where)
    storm(where)
