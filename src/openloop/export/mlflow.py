"""MLflow's own folder of files: `mlflow ui --backend-store-uri FOLDER` shows it."""

import hashlib
from pathlib import Path

import msgspec
import yaml

from openloop.export.figures import facts, figures, started_ns
from openloop.records import Run
from openloop.score import Score

__all__ = ["write_mlflow"]

LONGEST = 6000  # characters of a parameter


def write_mlflow(run: Run, score: Score, path: Path) -> None:
    start = started_ns(run) // 10**6
    manifest = msgspec.to_builtins(run.manifest)
    told = {name: value for name, value in manifest.items() if value is not None and value not in ((), [])}
    params = {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in told.items()
    }
    params |= facts(run, score)
    name = run.path.name if run.path else "run"
    identity = hashlib.md5(f"{name}{sorted(params.items())}".encode(), usedforsecurity=False).hexdigest()
    experiment, folder = path / "0", path / "0" / identity
    for each in ("metrics", "params", "tags", "artifacts"):
        (folder / each).mkdir(parents=True)
    _meta(
        experiment,
        {
            "artifact_location": experiment.absolute().as_uri(),
            "experiment_id": "0",
            "lifecycle_stage": "active",
            "name": "openloop",
        },
    )
    _meta(
        folder,
        {
            "artifact_uri": (folder / "artifacts").absolute().as_uri(),
            "end_time": start + int(score.window_s * 1000),
            "entry_point_name": "",
            "experiment_id": "0",
            "lifecycle_stage": "active",
            "run_id": identity,
            "run_name": name,
            "run_uuid": identity,
            "source_name": "openloop",
            "source_type": 4,
            "source_version": "",
            "start_time": start,
            "status": 3,
            "tags": [],
            "user_id": "",
        },
    )
    for key, value in figures(score):
        (folder / "metrics" / key).write_text(f"{start} {value!r} 0\n")
    for key, text in params.items():
        (folder / "params" / key).write_text(text[:LONGEST], encoding="utf-8")
    (folder / "tags" / "mlflow.runName").write_text(name, encoding="utf-8")


def _meta(folder: Path, fields: dict[str, object]) -> None:
    (folder / "meta.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
