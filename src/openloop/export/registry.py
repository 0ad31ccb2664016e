"""What a run can be written as: its table, a batch at a time; its latencies, a histogram for each second; its score.

Of a score, as flat numbers with names: mlflow is what MLflow's REST call `runs/log-batch` takes. Its folder of files
would be readable without a server, but MLflow refuses that by default since its version 3. otel is OTLP JSON, what a
collector takes at /v1/metrics or from a file: latencies are histograms under the names of the GenAI conventions, from
when requests were sent, as these define them; figures of the score are gauges under `openloop.`. prometheus is a page
in Prometheus' text format.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc

from openloop import __version__
from openloop.arrays import Floats
from openloop.errors import RunError, SpecError, StorageError
from openloop.importers import open_any
from openloop.importers.hdr import encode
from openloop.records import Run
from openloop.records.schema import SCHEMA
from openloop.report.files import writing
from openloop.report.page import written
from openloop.score import Score
from openloop.score.judged import JudgedRun, judge_run
from openloop.score.quantiles import LADDER
from openloop.score.scorer import objectives_of, score_judged
from openloop.slo import SLO, Objectives
from openloop.spec import suggest

HIGHEST = 3600 * 10**9  # nanoseconds of a histogram
FLAT = pa.schema(
    [pa.field(each.name, pa.string() if pa.types.is_list(each.type) else each.type) for each in SCHEMA],
)
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


def write_csv(run: Run, path: Path) -> None:
    with pa.csv.CSVWriter(str(path), FLAT) as writer:
        for batch in run.batches():
            columns = [_flat(column) for column in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=FLAT))


def _flat(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        return pc.binary_join(column.cast(pa.list_(pa.string())), " ")
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def write_jsonl(run: Run, path: Path) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for batch in run.batches():
            for row in batch.to_pylist():
                file.write(encoder.encode({name: value for name, value in row.items() if value is not None}) + b"\n")


def write_arrow(run: Run, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for batch in run.batches():
            writer.write_batch(batch.cast(SCHEMA))


def write_hdr(run: Run, path: Path) -> None:
    """An HdrHistogram interval log: a line per second of the schedule and latency, in nanoseconds, tagged."""
    scope = judge_run(run, Objectives(SLO(()))).whole
    start, end = scope.window_ns
    second = (scope.due_ns - start) // 10**9
    with path.open("w", encoding="utf-8") as file:
        file.write("#[Histogram log format version 1.3]\n")
        file.write(f"#[StartTime: {started_ns(run) / 1e9:.3f} (seconds since epoch)]\n")
        file.write('"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n')
        for name in ("ttft", "tpot", "e2e"):
            latency = getattr(scope.answers, f"{name}_s")
            known = scope.deliveries.ok & ~np.isnan(latency)
            ns = np.rint(latency[known] * 1e9).clip(1, HIGHEST).astype(np.int64)
            seconds, firsts = np.unique(second[known], return_index=True)
            for each, mine in zip(seconds.tolist(), np.split(ns, firsts[1:]), strict=False):
                began, length = start / 1e9 + each, min(1.0, (end - start) / 1e9 - each)
                most, packed = mine.max() / 1e6, encode(mine.tolist(), HIGHEST)
                file.write(f"Tag={name},{began:.3f},{length:.3f},{most:.6f},{packed}\n")


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


@dataclass(frozen=True)
class Exporter:
    """`write(run, path)`, or with `scored` also what it is made of: `write(run, judged, score, path)`."""

    write: Callable[..., None]
    scored: bool = False


EXPORTERS: Final[Mapping[str, Exporter]] = {
    "csv": Exporter(write_csv),
    "jsonl": Exporter(write_jsonl),
    "arrow": Exporter(write_arrow),
    "hdr": Exporter(write_hdr),
    "otel": Exporter(write_otel, scored=True),
    "mlflow": Exporter(write_mlflow, scored=True),
    "prometheus": Exporter(write_prometheus, scored=True),
}


def export(run: Run | str | Path, to: str, path: str | Path, slo: Any = None) -> Score | None:
    """Write a run, or the one in a folder or in another tool's file, in the form `to`.

    Forms that tell goodput need an SLO, by default the run's own, and return the score.
    """
    if to not in EXPORTERS:
        raise SpecError(f"cannot export to {to!r}{suggest(to, EXPORTERS)}")
    path = Path(path)
    if path.exists():
        raise StorageError(f"{path} exists already: choose another name or remove it")
    exporter, run = EXPORTERS[to], run if isinstance(run, Run) else open_any(run)
    if not exporter.scored:
        with writing(path):
            exporter.write(run, path)
        return None
    objectives = objectives_of(run, slo)
    judged = judge_run(run, objectives)
    result = score_judged(run, objectives, judged)
    with writing(path):
        exporter.write(run, judged, result, path)
    return result
