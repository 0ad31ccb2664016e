"""Small runs for tests, written in seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from openloop.records import COLUMNS, Manifest, Run, RunWriter, make_batch, make_lists
from openloop.units import to_ns


def row(
    request: int,
    due: float = 0.0,
    tokens: Sequence[float] | None = (),
    *,
    sent: float | None = 0.0,
    ended: float | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """An attempt: token times, sending and end are seconds after it was due. `sent=None`: it never was."""
    times = [to_ns(due + t) for t in tokens or ()]
    if ended is None and columns.get("status") not in ("dropped", "censored"):
        ended = max([*(tokens or ()), sent or 0.0])
    return {
        "request_id": request,
        "scheduled_ns": to_ns(due),
        "sent_ns": None if sent is None else to_ns(due + sent),
        "ended_ns": None if ended is None else to_ns(due + ended),
        "event_ns": times,
        **columns,
    }


def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    defaults = {"attempt": 0, "kind": "first", "status": "ok", "event_ns": []}
    columns = {
        name: [each.get(name, defaults.get(name)) for each in rows]
        for name in COLUMNS
        if any(name in each for each in rows) or name in defaults
    }
    return make_batch(columns)


def run_of(rows: Sequence[dict[str, Any]], *, batches: int = 1, **manifest: Any) -> Run:
    """A run in memory, cut into so many batches."""
    cuts = np.array_split(np.arange(len(rows)), batches)
    return Run.of(Manifest(source="test", **manifest), [batch([rows[i] for i in cut]) for cut in cuts if len(cut)])


def write_run(folder: Path, rows: Sequence[dict[str, Any]], *, batches: int = 1, **manifest: Any) -> Path:
    with RunWriter(folder, Manifest(source="test", **manifest)) as writer:
        for cut in np.array_split(np.arange(len(rows)), batches):
            writer.append(batch([rows[i] for i in cut]))
    return folder


def steady_run(requests: int = 400, rate: float = 20.0, seed: int = 1, **manifest: Any) -> Run:
    """Poisson arrivals, answers of 20 tokens, nothing wrong with it."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / rate, requests))
    tokens = due[:, None] + 0.1 + np.cumsum(rng.exponential(0.02, (requests, 20)), axis=1)
    columns = {
        "request_id": np.arange(requests),
        "scheduled_ns": (due * 1e9).astype(np.int64),
        "sent_ns": (due * 1e9).astype(np.int64) + 50_000,
        "ended_ns": (tokens[:, -1] * 1e9).astype(np.int64) + 1000,
        "event_ns": make_lists("event_ns", (tokens * 1e9).astype(np.int64).ravel(), np.full(requests, 20)),
    }
    return Run.of(Manifest(source="test", **manifest), [make_batch(columns)])
