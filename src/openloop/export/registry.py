"""What a run can be written as: its table, a batch at a time; its latencies, a histogram for each second; its score."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc

from openloop.errors import SpecError, StorageError
from openloop.export.scores import started_ns, write_mlflow, write_otel, write_prometheus
from openloop.importers import open_any
from openloop.importers.hdr import encode
from openloop.records import SCHEMA, Run
from openloop.report.files import writing
from openloop.score import Score
from openloop.score.judged import judge_run
from openloop.score.scorer import objectives_of, score_judged
from openloop.slo import SLO, Objectives
from openloop.spec import suggest

HIGHEST = 3600 * 10**9  # nanoseconds of a histogram
FLAT = pa.schema(
    [pa.field(each.name, pa.string() if pa.types.is_list(each.type) else each.type) for each in SCHEMA],
)


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
