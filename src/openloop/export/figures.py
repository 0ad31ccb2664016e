"""A score as flat numbers with names, for tools that know nothing else."""

import math
from collections.abc import Iterator
from datetime import datetime

from openloop.records import Run
from openloop.score import Percentiles, Score

__all__ = ["LATENCIES", "STEPS", "facts", "figures", "started_ns"]

RATES = (
    *("requests", "completed", "accepted", "offered_rps", "throughput_rps", "goodput_rps", "goodput_rps_from_sent"),
    *("attainment", "attainment_from_sent", "output_tokens_per_s", "output_token_goodput", "smooth_goodput"),
    *("cost_per_accepted", "window_s", "qoe", "fluidity_index", "utilisation", "cache_hit_rate", "valid"),
)
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "tbt_s", "jitter_s", "e2e_s", "client_lag_s")
STEPS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}


def figures(score: Score) -> Iterator[tuple[str, float]]:
    """Every figure that is known and finite: `goodput_rps`, `goodput_rps.low` of its interval, `ttft_s.p99`, ..."""
    for name in RATES:
        yield from _known(name, getattr(score, name))
    for name in ("goodput_rps", "attainment"):
        for end, value in zip(("low", "high"), getattr(score, f"{name}_interval"), strict=True):
            yield from _known(f"{name}.{end}", value)
    for name in LATENCIES:
        values: Percentiles | None = getattr(score, name)
        for step in (*STEPS, "mean") if values else ():
            yield from _known(f"{name}.{step}", getattr(values, step))


def _known(name: str, value: float | None) -> Iterator[tuple[str, float]]:
    if value is not None and math.isfinite(value):
        yield name, float(value)


def facts(run: Run, score: Score) -> dict[str, str]:
    """What the figures belong to."""
    found = {name: getattr(run.manifest, name) for name in ("model", "engine", "engine_version", "hardware", "source")}
    return {"slo": score.slo, **{name: str(value) for name, value in found.items() if value is not None}}


def started_ns(run: Run) -> int:
    """When the run started, since 1970; 0 where it is not told."""
    told = run.manifest.started_at
    return int(datetime.fromisoformat(told).timestamp() * 1e9) if told else 0
