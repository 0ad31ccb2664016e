"""Does the tuner find what trying everything finds, with a tenth of the simulations?

    python bench/tune.py [--seeds 3] [--processes 2]

Three spaces of fleets, each searched from several seeds and then tried out in full, all under the same requests:

- batching: one 8B replica on an H100, beyond what it can serve: policy, order, tokens in a step, sequences in a batch;
- fleet: how many replicas, which routing, batch limit and admission, by accepted results per dollar;
- roles: four replicas together or apart for prefill and decode, with drafts or without, batch limits.

Aims: what the search names has at least 98% of the best there is, by the requests it was searched with; simulations in
all, those that confirm included, are at most a tenth of the places. "As good" is the share of places within 2% of the
best: how likely a single guess would do.
"""

import argparse
import itertools
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from openloop.load.scenario import read_scenario
from openloop.tune import OBJECTIVES, read_space, tune
from openloop.tune.run import simulate_one, trial_of

SPLITS = [[], *([{"replicas": n, "role": "prefill"}, {"replicas": 4 - n, "role": "decode"}] for n in (1, 2, 3))]
DRAFTS = [None, *({"tokens": n, "acceptance": 0.6, "cost": "5%"} for n in (1, 2, 4))]
LONG = "lognormal(median=900,sigma=0.8)"

SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "batching": (
        {"model": "8b", "gpu": "h100", "memory_tokens": 60_000, "price_per_hour": 3.0},
        {
            "policy": ["chunked", "prefill-first", "prepone:steps=4"],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    fine = True
    print("scenario   places  simulations    found  of the best  as good     search  everything")
    with ProcessPoolExecutor(given.processes) as pool:
        for name, (fleet, keys, asked, objective) in SCENARIOS.items():
            space = read_space(fleet, keys)
            for seed in range(given.seeds):
                scenario = read_scenario(None, {"for": "60s", "seed": 1000 * seed, **asked}, live=False)
                began = time.perf_counter()
                found = tune(space, scenario, objective, processes=given.processes)
                searched = time.perf_counter() - began
                began = time.perf_counter()
                places = list(itertools.product(*map(range, space.shape)))
                calls = [(space.fleet(place), scenario, [scenario.seed]) for place in places]
                results = pool.map(simulate_one, calls, chunksize=8)
                value = OBJECTIVES[objective]
                values = {
                    place: value(trial_of(place, {}, False, result, "ttft_s"))
                    for place, result in zip(places, results, strict=True)
                }
                whole = time.perf_counter() - began
                named = values[found.best.place] if found.best else 0.0
                share, part = named / max(values.values()), found.simulations / space.size
                good = sum(each >= 0.98 * max(values.values()) for each in values.values()) / space.size
                fine &= share >= 0.98 and part <= 0.1
                print(
                    f"{name:9} {space.size:7} {found.simulations:7} ({part:.1%}) {named:8.5g} {share:12.1%} {good:8.1%}"
                    f" {searched:8.0f} s {whole:9.0f} s",
                    flush=True,
                )
    print("as aimed" if fine else "NOT as aimed")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
