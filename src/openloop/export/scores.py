"""A score as flat numbers with names, for tools that know nothing else.

mlflow is what MLflow's REST call `runs/log-batch` takes. Its folder of files would be readable without a server, but
MLflow refuses that by default since its version 3. otel is OTLP JSON, what a collector takes at /v1/metrics or from a
file: latencies are histograms under the names of the GenAI conventions, from when requests were sent, as these define
them; figures of the score are gauges under `openloop.`. prometheus is a page in Prometheus' text format.
"""

import math
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from openloop import __version__
from openloop.arrays import Floats
from openloop.errors import RunError
from openloop.records import Run
from openloop.report.page import written
from openloop.score import Score
from openloop.score.quantiles import LADDER
from openloop.score.scope import JudgedRun

RATES = (
    *("requests", "completed", "accepted", "offered_rps", "throughput_rps", "goodput_rps", "goodput_rps_from_sent"),
    *("attainment", "attainment_from_sent", "output_tokens_per_s", "output_token_goodput", "smooth_goodput"),
    *("cost_per_accepted", "window_s", "qoe", "fluidity_index", "utilisation", "cache_hit_rate", "valid"),
)
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "tbt_s", "jitter_s", "longest_wait_s", "e2e_s", "client_lag_s")
LONGEST = 6000  # characters that MLflow takes of a parameter
SECONDS = [0.01 * 2**i for i in range(14)]
BETWEEN = [0.001, 0.0025, 0.005, *SECONDS[:8]]
HISTOGRAMS = {
    "gen_ai.client.operation.duration": ("e2e_s", SECONDS),
    "gen_ai.client.operation.time_to_first_chunk": ("ttft_s", BETWEEN),
    "openloop.time_per_output_token": ("tpot_s", BETWEEN),
}


def _figures(score: Score) -> dict[str, float]:
    """Every figure that is known and finite: `goodput_rps`, `goodput_rps.low` of its interval, `ttft_s.p99`, ..."""
    found: dict[str, float | None] = {name: getattr(score, name) for name in RATES}
    for name in ("goodput_rps", "attainment"):
        found[f"{name}.low"], found[f"{name}.high"] = getattr(score, f"{name}_interval")
    for name in LATENCIES:
        values = getattr(score, name)
        found |= {f"{name}.{step}": getattr(values, step) for step in (*LADDER, "mean") if values}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def _facts(run: Run, score: Score) -> dict[str, str]:
    """What the figures belong to."""
    found = {name: getattr(run.manifest, name) for name in ("model", "engine", "engine_version", "hardware", "source")}
    return {"slo": score.slo, **{name: str(value) for name, value in found.items() if value is not None}}


def started_ns(run: Run) -> int:
    """When the run started, since 1970; 0 where it is not told."""
    told = run.manifest.started_at
    try:
        return int(datetime.fromisoformat(told).timestamp() * 1e9) if told else 0
    except (ValueError, OverflowError):
        raise RunError(f"started_at of the run is {told!r}; write it as 2026-11-15T12:00:00+00:00") from None


def write_mlflow(run: Run, _: JudgedRun, score: Score, path: Path) -> None:
    at = started_ns(run) // 10**6
    told: dict[str, Any] = {**msgspec.to_builtins(run.manifest), **_facts(run, score)}
    batch = {
        "metrics": [
            {"key": name, "value": value, "timestamp": at, "step": 0} for name, value in _figures(score).items()
        ],
        "params": [
            {"key": name, "value": written(value)[:LONGEST]}
            for name, value in told.items()
            if value not in (None, [], ())
        ],
        "tags": [{"key": "openloop.valid", "value": str(score.valid).lower()}],
    }
    path.write_bytes(msgspec.json.encode(batch) + b"\n")


def write_otel(run: Run, judged: JudgedRun, score: Score, path: Path) -> None:
    scope = judged.whole
    start, end = (started_ns(run) + at for at in scope.window_ns)
    times = {"startTimeUnixNano": str(start), "timeUnixNano": str(end)}
    labels = _attributes(_facts(run, score))
    metrics: list[dict[str, Any]] = [
        {"name": f"openloop.{name}", "gauge": {"dataPoints": [{**times, "attributes": labels, "asDouble": value}]}}
        for name, value in _figures(score).items()
    ]
    for name, (column, bounds) in HISTOGRAMS.items():
        values = getattr(scope.answers_from_sent, column)[scope.deliveries.ok]
        point = _histogram(values[~np.isnan(values)], bounds)
        told = {"aggregationTemporality": 2, "dataPoints": [{**times, "attributes": labels, **point}]}
        metrics.append({"name": name, "unit": "s", "histogram": told})
    scoped = {"scope": {"name": "openloop", "version": __version__}, "metrics": metrics}
    resource = {"attributes": _attributes({"service.name": "openloop"})}
    document = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scoped]}]}
    path.write_bytes(msgspec.json.encode(document) + b"\n")


def _histogram(values: Floats, bounds: list[float]) -> dict[str, Any]:
    """Counts of what is in (bound before, bound]."""
    counts = np.bincount(np.searchsorted(bounds, values, side="left"), minlength=len(bounds) + 1)
    return {
        "count": str(len(values)),
        "sum": float(values.sum()),
        "bucketCounts": [str(count) for count in counts.tolist()],
        "explicitBounds": bounds,
        **({"min": float(values.min()), "max": float(values.max())} if len(values) else {}),
    }


def _attributes(told: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in told.items()]


def write_prometheus(run: Run, _: JudgedRun, score: Score, path: Path) -> None:
    facts, samples = _facts(run, score), []
    for name, value in _figures(score).items():
        base, step = name.partition(".")[::2]
        metric = re.sub(r"(?<!per)_s$", "_seconds", base)
        quantile = {"quantile": str(LADDER[step])} if step in LADDER else {}
        metric += f"_{step}" if step and not quantile else ""
        samples.append((metric, facts | quantile, value))
    path.write_text(prometheus_page(samples), encoding="utf-8")


def prometheus_page(samples: Iterable[tuple[str, dict[str, str], float]]) -> str:
    """Gauges in Prometheus' text format: a name, its labels and a value each; those of one name follow each other."""
    lines: list[str] = []
    told = ""
    for name, labels, value in samples:
        if name != told:
            lines.append(f"# TYPE openloop_{name} gauge")
            told = name
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        lines.append(f"openloop_{name}{{{inside}}} {value!r}" if inside else f"openloop_{name} {value!r}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
