"""Busy is not productive: chat and long documents on one pool, and a GPU that is 78% utilised.

Both are from "Goodput or it didn't happen". In the first, chats (about 360 tokens, 360 to answer) and documents (about
6,800 tokens, 570 to answer) share four replicas of a 13B model on A100s, whose memory holds 56,000 tokens each.
Documents fill it, whoever comes waits behind the next document, and what grows beyond the memory is preempted and
computed again. Then the same four replicas are two pools of two. Memory is as full as before, but chats wait for chats
only, and preemptions stop climbing; documents pay a little, because they have half as many replicas to themselves.

In the second, questions over documents are served by a 70B model on four H100s; clients give up after 8 s and ask again
up to twice; the objective is the article's rough one, TTFT <= 1.5 s and TPOT <= 60 ms.
"""

import sys
from pathlib import Path

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.sim.fleet import FleetSpec, engine_of, read_fleet, simulate_fleet
from openloop.sim.tables import FREE
from openloop.slo import read_slo
from openloop.workload import Workload, read_source
from openloop.workload.mix import Class

CHAT = "synthetic:prompt=lognormal(median=300,sigma=0.6),output=lognormal(median=300,sigma=0.6)"
DOCUMENTS = "synthetic:prompt=lognormal(median=6000,sigma=0.5),output=lognormal(median=500,sigma=0.5)"
RATES = {"chat": 8.0, "documents": 0.42}
SLO = read_slo({"default": "ttft<=1s, tpot<=100ms", "classes": {"documents": "ttft<=30s, tpot<=100ms"}})
SECONDS = 900.0
POOLS: dict[str, dict[tuple[str, ...], int]] = {
    "one pool": {("chat", "documents"): 4},
    "two pools": {("chat",): 2, ("documents",): 2},
}

QUESTIONS = "synthetic:prompt=lognormal(median=6000,sigma=0.8),output=200"
LOADS = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.345, 0.4, 0.45]
BUSY = 0.345


def asked(*names: str) -> tuple[Workload, Poisson]:
    total = sum(RATES[name] for name in names)
    sources = {"chat": read_source(CHAT), "documents": read_source(DOCUMENTS)}
    return Workload(tuple(Class(name, RATES[name] / total, sources[name]) for name in names)), Poisson(total)


def replicas(count: int) -> FleetSpec:
    shape = {"model": "13b", "gpu": "a100", "max_tokens": 512, "routing": "least-requests"}
    return read_fleet({**shape, "replicas": count})


def serve(classes: tuple[str, ...], count: int, seed: int = 1) -> ol.Run:
    return simulate_fleet(replicas(count), *asked(*classes), SECONDS, seed, SLO)


def watch(fleet: FleetSpec, workload: Workload, arrivals: Poisson, times: list[float]) -> list[tuple[float, int]]:
    """Share of the memory in use, and preemptions so far."""
    found, before = [], 0
    engine = engine_of(fleet, workload.demand(arrivals, SECONDS, 1), seconds=SECONDS, seed=1)
    reps = engine.replicas
    for time in times:
        before += sum(int(served.rows.preemptions.sum()) for served in engine.run_to(time))
        there = engine.ended[: engine.world[0].ended], engine.attempts[engine.attempts.where != FREE]
        preemptions = before + sum(int(rows.preemptions.sum()) for rows in there)
        found.append((1 - float((reps.free + reps.unused).sum() / reps.blocks.sum()), preemptions))
    return found


def mixing(folder: Path | None) -> None:
    print(
        "four replicas           accepted   p50 TTFT   p99 TTFT   preemptions   recomputed   memory, mean   above 90%"
    )
    times = [30.0 * step for step in range(1, 31)]
    lines: dict[str, list[tuple[float, int]]] = {}
    goodput = {}
    for name, pools in POOLS.items():
        goodput[name] = 0.0
        for classes, count in pools.items():
            workload, arrivals = asked(*classes)
            run = serve(classes, count)
            score = ol.score(run, SLO, by=["class"])
            goodput[name] += score.goodput_rps
            told = lines[f"{name}: {', '.join(classes)}"] = watch(replicas(count), workload, arrivals, times)
            rows = run.head(run.num_rows)
            use = [share for share, _ in told]
            for each, summary in score.by["class"].items():
                assert summary.ttft_s
                mine = [row for row in rows if row["workload_class"] == each]
                print(
                    f"{name:10} {each:10} {summary.attainment:>9.1%} {summary.ttft_s.p50:>9.2f}s"
                    f" {summary.ttft_s.p99:>9.1f}s {sum(row['preemptions'] for row in mine):>13,}"
                    f" {sum(row['recomputed_tokens'] for row in mine):>12,}"
                    f" {sum(use) / len(use):>14.0%} {sum(share > 0.9 for share in use) / len(use):>11.0%}"
                )
    seeds = range(2, 6)
    spans = {
        name: [
            sum(ol.score(serve(classes, count, seed), SLO).goodput_rps for classes, count in pools.items())
            for seed in seeds
        ]
        for name, pools in POOLS.items()
    }
    print(
        "accepted per second: "
        + ", ".join(
            f"{name} {value:.2f} (other seeds {min(spans[name]):.2f} to {max(spans[name]):.2f})"
            for name, value in goodput.items()
        )
    )
    if folder:
        minutes = [time / 60 for time in times]
        chart = Chart("Memory is nearly full either way", "Minutes", "Memory in use", shares=True)
        for name, told in lines.items():
            chart.line(minutes, [share for share, _ in told], name)
        chart.limits(y=(0, 1.05))
        chart.save(folder / "pools_memory.svg")
        chart.save(folder / "pools_memory.png")
        chart = Chart("Preemptions climb where chats and documents are mixed", "Minutes", "Preemptions so far")
        for name, told in lines.items():
            chart.line(minutes, [count for _, count in told], name)
        chart.save(folder / "pools_preemptions.svg")
        chart.save(folder / "pools_preemptions.png")


def utilised(folder: Path | None) -> None:
    print()
    print("  load   utilised   past the objective   attempts   p99 TTFT   tokens: accepted   retried   late   never")
    busy, late = [], []
    for load in LOADS:
        clients = {"timeout": "8s", "retry": "retry:most=2,on=timeout"}
        fleet = read_fleet({"model": "70b", "gpu": "h100", "tp": 4, "client": clients})
        run = simulate_fleet(fleet, Workload.of(read_source(QUESTIONS)), Poisson(load), 14_400.0, 1)
        score = ol.score(run, "ttft<=1500ms, tpot<=60ms")
        assert score.ttft_s
        busy.append(score.utilisation)
        late.append(1 - score.attainment)
        went = {leak.name: leak.share or 0.0 for leak in score.leaks}
        print(
            f"{load:>5.3f}/s {busy[-1]:>9.0%} {late[-1]:>20.0%} {score.retries.amplification:>10.2f}"
            f" {score.ttft_s.p99:>9.1f}s {went['accepted']:>18.0%} {went['retries_and_repairs']:>9.0%}"
            f" {went['slo_misses']:>6.0%} {went['unsuccessful']:>7.0%}"
        )
    place = LOADS.index(BUSY)
    print(f"utilised {busy[place]:.0%}, and {late[place]:.0%} of requests past the objective")
    if folder:
        chart = Chart("Utilisation says busy, not productive", "Requests/s", "Share", shares=True)
        chart.line(LOADS, busy, "utilised", color="orange")
        chart.line(LOADS, late, "past the objective", color="red")
        chart.mark_x(BUSY, f"{busy[place]:.0%} and {late[place]:.0%}")
        chart.save(folder / "pools_utilised.svg")
        chart.save(folder / "pools_utilised.png")


if __name__ == "__main__":
    where = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    mixing(where)
    utilised(where)
