"""Reliability gets worse with every machine, until it is engineered upward (chapter on the four metrics).

A job that needs all M machines is up with probability r^M. A service that needs k of M is up far more often: by the
binomial distribution, and here also by a fleet whose replicas crash and come back, at a load that needs four of them.
A job that saves its state loses at most what it did since: the best interval balances saving against repeating.
"""

import sys
from math import comb, exp, sqrt
from pathlib import Path

import numpy as np

import openloop as ol
from openloop.arrivals import Poisson
from openloop.report.chart import Chart
from openloop.seeds import stream
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source

SECONDS = 1800.0
UP_S, DOWN_S = 180.0, 20.0  # of a replica, on average: up nine tenths of the time
NEEDED = 4
MACHINE_H = 1000.0  # from failure to failure of a machine
SAVE_H, RESTART_H = 1 / 60, 5 / 60
INTERVALS_H = [1 / 60, 2 / 60, 4 / 60, 8 / 60, 11 / 60, 15 / 60, 30 / 60, 1.0, 2.0]


def k_of_m(k: int, m: int, r: float) -> float:
    """At least k of m are up."""
    return sum(comb(m, n) * r**n * (1 - r) ** (m - n) for n in range(k, m + 1))


def machines() -> None:
    print("each machine up 99.9% of the time: all of M are up")
    print("  " + ", ".join(f"{m:,}: {0.999**m:.1%}" for m in (1, 10, 100, 1000)))
    print("each replica up 99%: replicas for a service that needs 10")
    for nines in (0.99, 0.999, 0.9999, 0.99999):
        m = next(m for m in range(10, 100) if k_of_m(10, m, 0.99) >= nines)
        print(f"  {nines:.5g}: {m} (up {k_of_m(10, m, 0.99):.6f})")


def crashes(count: int) -> list[str]:
    """Of each replica, in turns up and down."""
    found = []
    for replica in range(count):
        rng, now = stream(7, f"replica {replica}"), 0.0
        while (now := now + rng.exponential(UP_S)) < SECONDS:
            down = rng.exponential(DOWN_S)
            found.append(f"crash:at={now:.3f}s,replica={replica},restart={down:.3f}s")
            now += down
    return found


def replication() -> None:
    print(f"replicas up {UP_S / (UP_S + DOWN_S):.0%} of the time, a load that needs {NEEDED}")
    print("replicas   at least 4 up: binomial   in the run   accepted")
    for count in (4, 5, 6, 7):
        plan = crashes(count)
        shape = {"model": "8b", "gpu": "h100", "max_sequences": 8, "replicas": count, "routing": "least-requests"}
        fleet = read_fleet({**shape, "events": plan, "client": {"retry": "retry:most=3,on=error"}})
        asked = Workload.of(read_source("synthetic:prompt=300,output=150"))
        score = ol.score(simulate_fleet(fleet, asked, Poisson(28), SECONDS, 1), "ttft<=1s")
        share = k_of_m(NEEDED, count, UP_S / (UP_S + DOWN_S))
        print(f"{count:>8} {share:>25.1%} {up_share(plan, count):>12.1%} {score.attainment:>10.1%}")


def up_share(plan: list[str], count: int) -> float:
    """Of the run, in which at least as many as needed were up."""
    times, changes = [0.0, SECONDS], [count, 0]
    for each in plan:
        at, down = (float(part.split("=")[1].rstrip("s")) for part in each.split(",")[::2])
        times += [at, min(at + down, SECONDS)]
        changes += [-1, 1]
    order = np.argsort(times, kind="stable")
    up = np.cumsum(np.array(changes)[order])
    return float(np.sum(np.diff(np.array(times)[order]) * (up[:-1] >= NEEDED)) / SECONDS)


def efficiency(interval_h: float, m: int) -> float:
    """Share of the time that is kept: an interval of work takes (exp(rate (interval + save)) - 1) / rate on average,
    and exp(rate restart) times as long because it may fail while it restarts."""
    rate = m / MACHINE_H
    return interval_h * rate / (exp(rate * RESTART_H) * (exp(rate * (interval_h + SAVE_H)) - 1))


def repeated(interval_h: float, m: int, intervals: int = 4000) -> float:
    """The same by drawing failures."""
    rng, spent = stream(3, f"{interval_h} {m}"), 0.0
    for _ in range(intervals):
        ahead = interval_h + SAVE_H
        while (alive := rng.exponential(MACHINE_H / m)) < ahead:
            spent += alive
            ahead = RESTART_H + interval_h + SAVE_H
        spent += ahead
    return intervals * interval_h / spent


def checkpoints(folder: Path | None) -> None:
    best = sqrt(2 * SAVE_H * MACHINE_H / 1000)
    print(f"1,000 machines, each fails every {MACHINE_H:,.0f} h: one does every hour; saving takes 1 min, restarting 5")
    print("saved every   time kept   drawn")
    for interval in INTERVALS_H:
        print(f"{60 * interval:>7.0f} min {efficiency(interval, 1000):>11.1%} {repeated(interval, 1000):>7.1%}")
    print(f"best by sqrt(2 * save * time between failures): {60 * best:.0f} min")
    never = (exp(24.0) - 1) / 24
    print(f"without saving, a day of work would take {never:,.0f} days")
    if folder:
        title = "Save too often, or repeat too much"
        chart = Chart(title, "Minutes between checkpoints", "Share of the time that is kept", log_x=True, shares=True)
        minutes = np.geomspace(1, 240, 60)
        for m in (100, 1000, 4000):
            chart.line(minutes, [efficiency(each / 60, m) for each in minutes], f"{m:,} machines")
        chart.mark_x(60 * best, f"best for 1,000: {60 * best:.0f} min")
        chart.save(folder / "reliability.svg")
        chart.save(folder / "reliability.png")


if __name__ == "__main__":
    machines()
    replication()
    checkpoints(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
