"""What a run can be written as."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from openloop.errors import SpecError, StorageError
from openloop.export.rows import write_arrow, write_csv, write_hdr, write_jsonl
from openloop.export.scores import write_mlflow, write_otel, write_prometheus
from openloop.records import Run
from openloop.report.files import writing
from openloop.score import Score, score
from openloop.spec import suggest


@dataclass(frozen=True)
class Exporter:
    """`write(run, path)`, or with `scored` also the score: `write(run, score, path)`."""

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


def export(run: Run, to: str, path: str | Path, slo: Any = None) -> Score | None:
    """Write a run in the form `to`.

    Forms that tell goodput need an SLO, by default the run's own, and return the score.
    """
    if to not in EXPORTERS:
        raise SpecError(f"cannot export to {to!r}{suggest(to, EXPORTERS)}")
    path = Path(path)
    if path.exists():
        raise StorageError(f"{path} exists already: choose another name or remove it")
    exporter = EXPORTERS[to]
    result = score(run, slo) if exporter.scored else None
    with writing(path):
        exporter.write(*((run, path) if result is None else (run, result, path)))
    return result
