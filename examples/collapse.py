"""Throughput climbs while goodput collapses: a streaming replica, from comfortable to overloaded.

One replica reads prompts one after the other (prefill, 40 ms each on average) and then streams 32 tokens, 20 ms apart
on average. So it can start at most 25 requests per second; what it streams is not the limit. Two goodputs are judged:
the first token within 500 ms, and at most 40 ms per further token.

    python examples/collapse.py            prints the table
    python examples/collapse.py FOLDER     also writes each point as a run, to be scored and inspected
"""

import sys
from pathlib import Path

import numpy as np

import openloop as ol

PREFILL_S = 0.040
TOKENS = 32
TOKEN_S = 0.020
WINDOW_S = 300.0
SLO = "ttft<=500ms, tpot<=40ms"

LOADS = {"comfortable": 10.0, "moderate": 16.0, "busy": 20.0, "stressed": 23.0, "overloaded": 30.0}


def serve(rate: float, seed: int) -> ol.Run:
    rng = np.random.default_rng(seed)
    due = np.sort(rng.uniform(0.0, WINDOW_S, rng.poisson(rate * WINDOW_S)))
    n = len(due)
    prefill = rng.exponential(PREFILL_S, n)
    gaps = rng.exponential(TOKEN_S, (n, TOKENS))
    free = 0.0
    for i in range(n):
        free = max(due[i], free) + prefill[i]  # prompts are read one at a time
        gaps[i, 0] = free
    token_ns = np.round(np.cumsum(gaps, axis=1) * 1e9).astype(np.int64)
    due_ns = np.round(due * 1e9).astype(np.int64)
    columns = {
        "request_id": np.arange(n),
        "scheduled_ns": due_ns,
        "sent_ns": due_ns,
        "ended_ns": token_ns[:, -1],
        "event_ns": ol.make_lists("event_ns", token_ns.ravel(), np.full(n, TOKENS)),
        "output_tokens": np.full(n, TOKENS),
    }
    manifest = ol.Manifest(
        source="example",
        command=["examples/collapse.py"],
        seed=seed,
        window_ns=(0, round(WINDOW_S * 1e9)),
        arrivals=f"poisson:rate={rate:g}",
        arrivals_cv=1.0,
        offered_rps=rate,
        lengths=f"{TOKENS} output tokens",
        model="none: a formula",
        prices=ol.Prices(per_hour=3.0),
    )
    return ol.Run.of(manifest, [ol.make_batch(columns)])


def main(folder: Path | None) -> None:
    print(f"one replica, SLO {SLO}")
    print("point        offered  throughput  goodput  attained  ttft ok  tpot ok  ttft p50  ttft p99  $/1000 accepted")
    for seed, (name, rate) in enumerate(LOADS.items()):
        run = serve(rate, seed)
        score = ol.score(run, SLO)
        assert score.ttft_s is not None
        assert score.cost_per_accepted is not None
        print(
            f"{name:12} {score.offered_rps:5.1f}/s {score.completed_in_window_rps:9.1f}/s {score.goodput_rps:6.1f}/s"
            f" {score.attainment:9.1%} {score.gates['ttft'].attainment:8.1%} {score.gates['tpot'].attainment:8.1%}"
            f" {score.ttft_s.p50 * 1000:7.0f}ms {score.ttft_s.p99 * 1000:7.0f}ms {score.cost_per_accepted * 1000:16.3f}"
        )
        if folder:
            run.save(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
