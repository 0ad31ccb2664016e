"""What MLflow's REST call `runs/log-batch` takes: figures as metrics, the manifest as parameters.

Its folder of files would be readable without a server, but MLflow refuses that by default since its version 3.
"""

from pathlib import Path
from typing import Any

import msgspec

from openloop.export.figures import facts, figures, started_ns
from openloop.records import Run
from openloop.score import Score

__all__ = ["write_mlflow"]

LONGEST = 6000  # characters that MLflow takes of a parameter


def write_mlflow(run: Run, score: Score, path: Path) -> None:
    at = started_ns(run) // 10**6
    told: dict[str, Any] = {**msgspec.to_builtins(run.manifest), **facts(run, score)}
    batch = {
        "metrics": [{"key": name, "value": value, "timestamp": at, "step": 0} for name, value in figures(score)],
        "params": [
            {"key": name, "value": (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:LONGEST]}
            for name, value in told.items()
            if value is not None and len(value if isinstance(value, tuple | list) else "some")
        ],
        "tags": [{"key": "openloop.valid", "value": str(score.valid).lower()}],
    }
    path.write_bytes(msgspec.json.encode(batch) + b"\n")
