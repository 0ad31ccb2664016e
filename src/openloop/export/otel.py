"""OTLP JSON: what a collector takes at /v1/metrics, or from a file.

Latencies are histograms under the names of the GenAI conventions, from when requests were sent, as these define them;
figures of the score are gauges under `openloop.`.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from openloop import __version__
from openloop.export.figures import facts, figures, started_ns
from openloop.records import Run
from openloop.score import Score
from openloop.score.judged import judge_run
from openloop.slo import SLO, Objectives

__all__ = ["write_otel"]

SECONDS = [0.01 * 2**i for i in range(14)]
BETWEEN = [0.001, 0.0025, 0.005, *SECONDS[:8]]
HISTOGRAMS = {
    "gen_ai.client.operation.duration": ("e2e_s", SECONDS),
    "gen_ai.client.operation.time_to_first_chunk": ("ttft_s", BETWEEN),
    "openloop.time_per_output_token": ("tpot_s", BETWEEN),
}


def write_otel(run: Run, score: Score, path: Path) -> None:
    scope = judge_run(run, Objectives(SLO(()))).whole
    start, end = (started_ns(run) + at for at in scope.window_ns)
    times = {"startTimeUnixNano": str(start), "timeUnixNano": str(end)}
    labels = _attributes(facts(run, score))
    metrics: list[dict[str, Any]] = [
        {"name": f"openloop.{name}", "gauge": {"dataPoints": [{**times, "attributes": labels, "asDouble": value}]}}
        for name, value in figures(score)
    ]
    for name, (column, bounds) in HISTOGRAMS.items():
        values = getattr(scope.answers_from_sent, column)[scope.deliveries.ok]
        point = _histogram(values[~np.isnan(values)], bounds)
        metrics.append(
            {
                "name": name,
                "unit": "s",
                "histogram": {
                    "aggregationTemporality": 2,
                    "dataPoints": [{**times, "attributes": labels, **point}],
                },
            }
        )
    scoped = {"scope": {"name": "openloop", "version": __version__}, "metrics": metrics}
    resource = {"attributes": _attributes({"service.name": "openloop"})}
    document = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scoped]}]}
    path.write_bytes(msgspec.json.encode(document) + b"\n")


def _histogram(values: NDArray[np.float64], bounds: list[float]) -> dict[str, Any]:
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
