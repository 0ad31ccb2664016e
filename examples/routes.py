"""Route A or Route B: the worked example of the goodput article.

Two routings of one RAG workload, 100 requests in 10 s each. A streams more tokens for less money; B's tokens are
accepted. A fails on slow first tokens and on quality; six of B's answers came only with a second retry, which is over
the budget.
"""

import sys
from pathlib import Path

import numpy as np

import openloop as ol

SLO = "ttft<=800ms, tpot<=60ms, quality, retries<=1"
N = 100


def route(
    name: str,
    tokens: int,
    slow: int,
    ttft_ms: float,
    tpot_ms: float,
    bad: slice,
    retried: int,
    cost: float,
) -> ol.Run:
    """The first `slow` of N requests have the worst latencies, `bad` fail on quality, the last are retried twice. They
    come in a mixed order, so that no part of the run is worse than another."""
    number = np.arange(N)
    place = 37 * number % N
    due = number * 100_000_000
    ttft = np.where(place < slow, ttft_ms, 250.0)
    tpot = np.where(place < slow, tpot_ms, 8.0)
    first = due + (ttft * 1e6).astype(np.int64)
    step = (tpot * 1e6).astype(np.int64)
    events = first[:, None] + step[:, None] * np.arange(tokens)
    quality = ~np.isin(place, np.arange(N)[bad])
    late = place >= N - retried
    answers = {
        "request_id": number,
        "attempt": np.where(late, 2, 0),
        "kind": np.where(late, "retry", "first").tolist(),
        "scheduled_ns": due,
        "sent_ns": due + np.where(late, 20_000_000, 0),
        "ended_ns": events[:, -1],
        "event_ns": ol.make_lists("event_ns", events.ravel(), np.full(len(number), tokens)),
        "quality": quality,
        "cost": np.full(len(number), cost / (N + 2 * retried)),
    }
    again = np.repeat(number[late], 2)
    failures = {
        "request_id": again,
        "attempt": np.tile([0, 1], retried),
        "kind": ["first", "retry"] * retried,
        "scheduled_ns": due[again],
        "sent_ns": due[again] + np.tile([0, 10_000_000], retried),
        "ended_ns": due[again] + np.tile([10_000_000, 20_000_000], retried),
        "status": ["error"] * (2 * retried),
        "cost": np.full(2 * retried, cost / (N + 2 * retried)),
    }
    manifest = ol.Manifest(source="example", target=f"route {name}", workload="RAG", window_ns=(0, 10_000_000_000))
    return ol.Run.of(manifest, [ol.make_batch(answers), *([ol.make_batch(failures)] if retried else [])])


def main(folder: Path | None) -> None:
    routes = {
        "Route A": route("A", 120, slow=20, ttft_ms=1400, tpot_ms=55, bad=slice(14, 42), retried=0, cost=1.10),
        "Route B": route("B", 80, slow=20, ttft_ms=650, tpot_ms=42, bad=slice(20, 29), retried=6, cost=1.45),
    }
    scores = {name: ol.score(run, SLO) for name, run in routes.items()}
    print(f"{'':32} {'Route A':>9} {'Route B':>9}")
    rows = {
        "Raw throughput (tok/s)": [f"{s.output_tokens_per_s:,.0f}" for s in scores.values()],
        "p99 TTFT": [f"{s.ttft_s.p99 * 1000:,.0f} ms" for s in scores.values() if s.ttft_s],
        "p99 TPOT": [f"{s.tpot_s.p99 * 1000:.0f} ms" for s in scores.values() if s.tpot_s],
        "Quality pass rate": [f"{s.gates['quality'].attainment:.0%}" for s in scores.values()],
        "Requests meeting ALL gates": [f"{s.accepted}" for s in scores.values()],
        "Goodput (accepted req/s)": [f"{s.goodput_rps:.1f}" for s in scores.values()],
        "Total cost (100 req)": [f"${s.cost.total:.2f}" for s in scores.values() if s.cost],
        "Cost per accepted result": [f"${s.cost_per_accepted:.3f}" for s in scores.values()],
    }
    for name, (a, b) in rows.items():
        print(f"{name:32} {a:>9} {b:>9}")
    best = {
        "streams more tokens": max(scores, key=lambda name: scores[name].output_tokens_per_s),
        "does more that is accepted": max(scores, key=lambda name: scores[name].goodput_rps),
        "makes an accepted result for less": min(scores, key=lambda name: scores[name].cost_per_accepted or 0.0),
    }
    for what, name in best.items():
        print(f"{name} {what}")
    for name, score in scores.items():
        print(f"{name} is {'valid' if score.valid else 'NOT VALID: ' + score.reasons[0]}")
    if folder:
        for name, run in routes.items():
            run.save(folder / name.replace(" ", "-").lower())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
