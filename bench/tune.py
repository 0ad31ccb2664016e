"""Does the tuner find what trying everything finds, with a tenth of the simulations?

    python bench/tune.py [--seeds 6] [--processes 2]

Three spaces of fleets, each searched from several seeds, and tried out in full under other requests:

- batching: one 8B replica on an H100, beyond what it can serve: policy, order, tokens in a step, sequences in a batch;
- fleet: how many replicas, which routing, batch limit and admission, by accepted results per dollar;
- roles: four replicas together or apart for prefill and decode, with drafts or without, batch limits.

A place is worth its mean over three seeds that no search saw. Aims: what most searches name has at least 98% of the
best there is; simulations in all, those that confirm included, are at most a tenth of the places. "As good" is the
share of places within 2% of the best: how likely a single guess would do.
"""

import argparse
import itertools
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from openloop.load.scenario import read_scenario
from openloop.tune import MAXIMIZED, read_space, tune
from openloop.tune.run import simulate_one, trial_of

SPLITS = [[], *([{"replicas": n, "role": "prefill"}, {"replicas": 4 - n, "role": "decode"}] for n in (1, 2, 3))]
DRAFTS = [None, *({"tokens": n, "acceptance": 0.6, "cost": "5%"} for n in (1, 2, 4))]
LONG = "lognormal(median=900,sigma=0.8)"
NEAR, MOST_RUNS = 0.98, 0.1

SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "batching": (
        {"model": "8b", "gpu": "h100", "memory_tokens": 60_000, "price_per_hour": 3.0},
        {
            "batching": ["chunked", "prefill-first", "prepone:steps=4"],
            "order": ["first", "shortest", "deadline", "goodput:late=shed"],
            "max_tokens": {"from": 256, "to": 8192, "times": 2},
            "max_sequences": {"from": 8, "to": 256, "times": 2},
        },
        {"rate": 28.0, "prompt": LONG, "output": "lognormal(median=150,sigma=0.6)", "slo": "ttft<=1s, tpot<=25ms"},
        "goodput",
    ),
    "fleet": (
        {"model": "8b", "gpu": "h100", "memory_tokens": 60_000, "price_per_hour": 3.0},
        {
            "replicas": {"from": 1, "to": 10},
            "routing": ["round-robin", "least-requests"],
            "max_sequences": {"from": 8, "to": 128, "times": 2},
            "admission": [None, "deadline", "queue:8", "in-flight:32"],
        },
        {"rate": 40.0, "prompt": LONG, "output": "lognormal(median=150,sigma=0.6)", "slo": "ttft<=1s, tpot<=25ms"},
        "goodput_per_dollar",
    ),
    "roles": (
        {"model": "8b", "gpu": "h100", "replicas": 4, "routing": "least-requests", "price_per_hour": 3.0},
        {
            "groups": SPLITS,
            "drafts": DRAFTS,
            "max_tokens": {"from": 512, "to": 8192, "times": 2},
            "max_sequences": {"from": 8, "to": 128, "times": 2},
        },
        {"rate": 100.0, "prompt": LONG, "output": "lognormal(median=150,sigma=0.6)", "slo": "ttft<=400ms, tpot<=15ms"},
        "goodput",
    ),
}


REFERENCE = (91, 92, 93)  # seeds


def worth(pool: ProcessPoolExecutor, name: str) -> dict[tuple[int, ...], float]:
    """Every place, tried out."""
    fleet, keys, asked, objective = SCENARIOS[name]
    space = read_space(fleet, keys)
    scenario = read_scenario(None, {"for": "60s", **asked}, live=False)
    places = list(itertools.product(*map(range, space.shape)))
    results = pool.map(simulate_one, [(space.fleet(place), scenario, REFERENCE) for place in places], chunksize=8)
    return {
        place: MAXIMIZED[objective](trial_of(place, {}, False, result, "ttft_s"))
        for place, result in zip(places, results, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    fine = True
    print("scenario   places  as good  simulations  search  of the best, by seed")
    with ProcessPoolExecutor(given.processes) as pool:
        for name, (fleet, keys, asked, objective) in SCENARIOS.items():
            space, values = read_space(fleet, keys), worth(pool, name)
            most = max(values.values())
            good = sum(each >= NEAR * most for each in values.values()) / space.size
            shares, began, runs = [], time.perf_counter(), 0
            for seed in range(given.seeds):
                scenario = read_scenario(None, {"for": "60s", "seed": 1000 * seed, **asked}, live=False)
                found = tune(space, scenario, objective, processes=given.processes)
                shares.append(values[found.best.place] / most if found.best else 0.0)
                runs = max(runs, found.simulations)
            took, part = (time.perf_counter() - began) / given.seeds, runs / space.size
            near = sum(each >= NEAR for each in shares)
            middle = statistics.median(shares)
            fine &= middle >= NEAR and part <= MOST_RUNS
            told = " ".join(f"{each:.1%}" for each in shares)
            print(f"{name:9} {space.size:7} {good:8.1%} {runs:5} ({part:.1%}) {took:6.1f} s  {told}", flush=True)
            print(
                f"=> tuning {name}: {near} of {given.seeds} searches within 2% of the best | {middle:.1%} of it, median"
                f" | trying everything: {space.size} simulations | {1 / part:.1f}x fewer | 98% with a tenth",
                flush=True,
            )
    print("as aimed" if fine else "NOT as aimed")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
