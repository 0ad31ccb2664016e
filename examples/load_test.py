"""The load test of the goodput chapter: one replica, nine offered loads, a budget of 200 ms.

A single FCFS server with a capacity of 500 requests per second. The arrivals and service times are those of the
chapter's listing; each window is a run of openloop records, and every number in the table comes from its score.
"""

import numpy as np

import openloop as ol

CAPACITY = 500.0  # requests per second
WINDOW_S = 20.0


def serve(rate: float, rng: np.random.Generator) -> ol.Run:
    n = rng.poisson(rate * WINDOW_S)
    arrival = np.sort(rng.uniform(0.0, WINDOW_S, n))
    service = rng.exponential(1 / CAPACITY, n)
    end = np.empty(n)
    free = 0.0
    for i in range(n):
        free = end[i] = max(arrival[i], free) + service[i]
    due_ns = np.round(arrival * 1e9).astype(np.int64)
    columns = {
        "request_id": np.arange(n),
        "scheduled_ns": due_ns,
        "sent_ns": due_ns,
        "ended_ns": np.round(end * 1e9).astype(np.int64),
    }
    manifest = ol.Manifest(source="example", window_ns=(0, round(WINDOW_S * 1e9)), offered_rps=rate, arrivals_cv=1.0)
    return ol.Run.of(manifest, [ol.make_batch(columns)])


def main() -> None:
    rng = np.random.default_rng(7)
    print(f"single replica: capacity={CAPACITY:.0f} req/s, SLO=p99<200ms, window={WINDOW_S:.0f}s")
    print(f"{'offered':>8} {'thrput':>8} {'goodput':>8} {'p50':>7} {'p95':>8} {'p99':>9}")
    print("-" * 56)
    for rate in [100, 200, 300, 400, 450, 480, 500, 520, 560]:
        score = ol.score(serve(rate, rng), "e2e<=200ms")
        assert score.e2e_s is not None
        p50, p95, p99 = (1000 * p for p in (score.e2e_s.p50, score.e2e_s.p95, score.e2e_s.p99))
        print(
            f"{rate:>8} {score.throughput_rps:>8.0f} {score.goodput_rps:>8.0f} {p50:>6.0f}m {p95:>7.0f}m {p99:>8.0f}m"
        )


if __name__ == "__main__":
    main()
