"""Does grading outputs during a run disturb its clock? Send lag and stamp error, without a gate and with one, in turn.

    python bench/gating.py [--rate 200] [--seconds 4] [--rounds 4]

The built-in endpoint knows when each request arrived and each token was written. Every output is held against a regular
expression and a function that computes for five milliseconds; runs without and with these gates alternate, so that
whatever else this machine does meets both. Printed are p50 / p99 / max in milliseconds, and the medians over rounds.
"""

import argparse
import time
from typing import Any

import numpy as np

from openloop.load.selftest import RateTrial, selftest
from openloop.quality import read_gating

MEASURED = {"lag": "sending late", "ttft": "error of TTFT", "itl": "error of token gaps"}
GATES = ["regex:'.'", "python:bench/gating.py:slow"]


def slow(_: Any) -> bool:
    until = time.process_time() + 0.005
    while time.process_time() < until:
        pass
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    trials: dict[str, list[RateTrial]] = {"without": [], "with": []}
    print(f"{'gates':>8}  {'sending late':>22}  {'ttft error':>22}  {'itl error':>22}  cpu s/1000  stolen")
    for _ in range(asked.rounds):
        for name, found in trials.items():
            gating = read_gating(GATES) if name == "with" else None
            (trial,) = selftest([asked.rate], asked.seconds, gating=gating)
            found.append(trial)
            cells = "  ".join(f"{_three(each):>22}" for each in (trial.lag, trial.ttft, trial.itl))
            print(f"{name:>8}  {cells}  {trial.cpu_s_per_1000:>10.2f}  {trial.stolen:>6.1%}", flush=True)
    p99 = {
        name: {what: 1e3 * float(np.median([getattr(trial, what).p99 for trial in found])) for what in MEASURED}
        for name, found in trials.items()
    }
    for name, found in trials.items():
        told = ", ".join(f"{what} {value:.3f} ms" for what, value in p99[name].items())
        print(f"{name} gates, median of p99: {told}; completed {min(trial.completed for trial in found):.0%}")
    for what, words in MEASURED.items():
        ours, plain = p99["with"][what], p99["without"][what]
        print(f"=> {words}, p99, outputs graded | {ours:.3f} ms | not graded: {plain:.3f} ms | {ours / plain:.1f}x |")


def _three(error: Any) -> str:
    return " / ".join(f"{1e3 * value:.3f}" for value in (error.p50, error.p99, error.max))


if __name__ == "__main__":
    main()
