"""An HdrHistogram interval log: a line per second of the schedule and latency, in nanoseconds, tagged."""

from pathlib import Path

import numpy as np

from openloop.export.figures import started_ns
from openloop.importers.hdr import encode
from openloop.records import Run
from openloop.score.judged import judge_run
from openloop.slo import SLO, Objectives

__all__ = ["write_hdr"]

HIGHEST = 3600 * 10**9


def write_hdr(run: Run, path: Path) -> None:
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
            for each in np.unique(second[known]).tolist():
                ns = np.rint(latency[known & (second == each)] * 1e9).clip(1, HIGHEST).astype(np.int64)
                length = min(1.0, (end - start) / 1e9 - each)
                file.write(f"Tag={name},{each:.3f},{length:.3f},{ns.max() / 1e6:.6f},{encode(ns.tolist(), HIGHEST)}\n")
