"""How often does a gate of `openloop compare` fail by chance, and how often does it find what is there?

    python bench/compare.py [--pairs 1000] [--processes 2]

Pairs of queues, of which theory tells the true change of goodput. The gate is put just at it: a failure is a false
alarm, and may happen one time in twenty. Then it is put 10% above: a failure is right, and how often it comes is the
power. Runs of one minute and of five; schedules of their own, and the same one. Last, percentiles: pairs of runs of the
same system, short and busy; how often is a difference shown that is not there?
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from openloop.compare import RegressionGate, compare
from openloop.records import Run
from openloop.sim import simulate

REPLICA = "replica:prompt=lognormal(median=500,sigma=0.8),output=16,prefill=0.1ms,gap=exponential(20ms)"
# Model, rate and seconds.
SYSTEMS = {
    "queue at 70%": ("fcfs:service=exponential(50ms)", 14, 60.0),
    "queue at 70%, longer": ("fcfs:service=exponential(50ms)", 14, 300.0),
    "queue at 90%": ("fcfs:service=exponential(50ms)", 18, 60.0),
    "replica at 80%": (REPLICA, 12, 60.0),
    "replica at 40%": (REPLICA, 6, 60.0),
}
PERCENTILES = ("ttft_p50", "ttft_p95", "ttft_p99", "e2e_p99")
LEVEL = 0.05
SLO = "e2e<=150ms"
RATE = 36.0


def run_of(service_ms: float, seconds: float, seed: int) -> Run:
    return simulate(f"fcfs:service=exponential({service_ms!r}ms)", f"poisson:rate={RATE}", seconds, seed, slo=SLO)


def true_goodput(service_ms: float) -> float:
    """P(stay <= t) in M/M/1."""
    return RATE * float(1 - np.exp(-(1000 / service_ms - RATE) * 0.15))


def change_of(slower: float) -> float:
    return true_goodput(20.0 * slower) / true_goodput(20.0) - 1


def trial(seed: int, seconds: float, slower: float, paired: bool) -> tuple[bool, bool, bool]:
    """Whether gates at the true change and 10% above it failed, and whether the interval holds that change."""
    runs = run_of(20.0, seconds, 2 * seed), run_of(20.0 * slower, seconds, 2 * seed + (0 if paired else 1))
    limits = [change_of(slower), change_of(slower) + 0.10]
    gates = [RegressionGate("goodput", below=True, limit=limit) for limit in limits]
    found = compare(*runs, fail_if=gates)
    low, high = found.changes["goodput"].interval or (np.nan, np.nan)
    return str(gates[0]) in found.failed, str(gates[1]) in found.failed, bool(low <= limits[0] <= high)


def differ(seed: int, name: str) -> list[bool]:
    model, rate, seconds = SYSTEMS[name]
    a, b = (simulate(model, f"poisson:rate={rate}", seconds, each, slo=SLO) for each in (2 * seed, 2 * seed + 1))
    found = compare(a, b).changes
    return [each in found and found[each].winner is not None for each in PERCENTILES]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    print(
        f"{'seconds':>8}{'true change':>13}{'schedule':>10}{'false alarms':>14}{'interval holds':>16}{'finds -10%':>12}"
    )
    worst = 0.0
    with ProcessPoolExecutor(asked.processes) as pool:
        for seconds in (60.0, 300.0):
            for slower in (1.0, 1.1):
                for paired in (False, True):
                    if paired and slower == 1.0:
                        continue  # the same run twice
                    study = partial(trial, seconds=seconds, slower=slower, paired=paired)
                    alarms, seen, held = np.mean(list(pool.map(study, range(asked.pairs), chunksize=20)), axis=0)
                    worst = max(worst, float(alarms))
                    print(
                        f"{seconds:>8.0f}{change_of(slower):>+13.1%}{'same' if paired else 'own':>10}{alarms:>14.1%}"
                        f"{held:>16.1%}{seen:>12.1%}"
                    )
        print(f"{'differences that are not there':32}" + "".join(f"{each:>10}" for each in PERCENTILES))
        most = 0.0
        for name in SYSTEMS:
            shares = np.mean(list(pool.map(partial(differ, name=name), range(asked.pairs), chunksize=20)), axis=0)
            most = max(most, float(shares.max()))
            print(f"{name:32}" + "".join(f"{each:>10.1%}" for each in shares))
    print(
        f"=> differences in percentiles of the same system | {most:.1%} at most | its level: {LEVEL:.0%}"
        f" | {most / LEVEL:.2f}x | about {LEVEL:.0%}"
    )
    print(
        f"=> false alarms of a gate | {worst:.1%} | its level: {LEVEL:.0%} | {worst / LEVEL:.2f}x | at most {LEVEL:.0%}"
    )
    error = 2 * np.sqrt(LEVEL * (1 - LEVEL) / asked.pairs)
    print(
        f"{'met' if worst <= LEVEL + error else 'MISSED'}: false alarms at most {LEVEL:.0%} (+- {error:.1%} by chance)"
    )


if __name__ == "__main__":
    main()
