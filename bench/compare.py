"""How often does a gate of `openloop compare` fail by chance, and how often does it find what is there?

    python bench/compare.py [--pairs 1000] [--processes 2]

Pairs of queues, of which theory tells the true change of goodput. The gate is put just at it: a failure is a false
alarm, and may happen one time in twenty. Then it is put 10% above: a failure is right, and how often it comes is the
power. Runs of one minute and of five; schedules of their own, and the same one.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from openloop.compare import Gate, compare
from openloop.records import Run
from openloop.sim import simulate

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
    gates = [Gate("goodput", below=True, limit=limit) for limit in limits]
    found = compare(*runs, fail_if=gates)
    low, high = found.changes["goodput"].interval or (np.nan, np.nan)
    return str(gates[0]) in found.failed, str(gates[1]) in found.failed, bool(low <= limits[0] <= high)


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
    print(
        f"=> false alarms of a gate | {worst:.1%} | its level: {LEVEL:.0%} | {worst / LEVEL:.2f}x | at most {LEVEL:.0%}"
    )
    error = 2 * np.sqrt(LEVEL * (1 - LEVEL) / asked.pairs)
    print(
        f"{'met' if worst <= LEVEL + error else 'MISSED'}: false alarms at most {LEVEL:.0%} (+- {error:.1%} by chance)"
    )


if __name__ == "__main__":
    main()
