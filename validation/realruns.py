"""Calibrated to the first half of a published run of vLLM, held against its second half.

    python -m validation.realruns FOLDER -o OUT

FOLDER holds NAME.requests.jsonl (queued, first-token and last-token times, and lengths) and NAME.meta.json (settings of
the engine) of LLMServingSim's published examples.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from openloop.calibrate import read_known
from openloop.calibrate.fit import calibrate_traces
from openloop.calibrate.match import TraceReplay
from openloop.calibrate.trace import read_trace
from openloop.records import Manifest, Run, make_batch, make_lists
from openloop.report.chart import Chart
from validation.engines import table


def read(path: Path) -> Run:
    """Only first and last tokens are known."""
    rows = sorted((json.loads(line) for line in path.open()), key=lambda row: row["queued_ts"])
    start = rows[0]["queued_ts"]
    at = {name: np.array([round(1e9 * (row[name] - start)) for row in rows]) for name in TIMES}
    events = np.column_stack([at["first_token_ts"], at["last_token_ts"]]).ravel()
    columns = {
        "request_id": np.arange(len(rows)),
        "scheduled_ns": at["queued_ts"],
        "sent_ns": at["queued_ts"],
        "ended_ns": at["last_token_ts"],
        "event_ns": make_lists("event_ns", events, np.full(len(rows), 2)),
        "ends_only": np.ones(len(rows), bool),
        "prompt_tokens": [row["input_toks"] for row in rows],
        "output_tokens": [row["output_toks"] for row in rows],
    }
    return Run.of(Manifest(source="import", finished=True), [make_batch(columns)])


TIMES = ("queued_ts", "first_token_ts", "last_token_ts")


def known(meta: Path) -> str:
    """What the engine was told, which whoever runs it knows."""
    found = json.loads(meta.read_text())
    told = {"batching": "chunked", "max_tokens": found["engine_kwargs"]["max_num_batched_tokens"]}
    told["max_sequences"] = found["engine_kwargs"]["max_num_seqs"]
    if "kv_cache" in found:
        told["memory_tokens"] = found["kv_cache"]["num_kv_tokens"]
    return ",".join(f"{name}={value}" for name, value in told.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("validation-output"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    lines = []
    for path in sorted(given.folder.glob("*.requests.jsonl")):
        name = path.name.removesuffix(".requests.jsonl")
        (trace,) = read_trace(read(path))
        middle = float(trace.sent_s[len(trace) // 2])
        chart = Chart(name, "E2E (s)", "Share of the second half at most so long", shares=True)
        for how, limits in (("records alone", ""), ("settings known", known(path.with_name(f"{name}.meta.json")))):
            found = calibrate_traces([trace.between(-np.inf, middle)], *read_known(limits), lambda _: None)
            made = TraceReplay(trace).serve(found.limits, found.theta)
            late = trace.sent_s >= middle
            e2e = {
                "measured": (trace.last_s - trace.sent_s)[late],
                "predicted": (made.ttft + made.tpot * (trace.came - 1))[late],
            }
            pairs = [(trace.ttft_s[late], made.ttft[late]), (trace.tpot_s[late], made.tpot[late]), tuple(e2e.values())]
            cells = [f"{_off(seen, made, how_):+.1%}" for seen, made in pairs for how_ in MEASURES.values()]
            lines.append([name, how, str(found.limits), *cells])
            if how == "records alone":
                for label, values in e2e.items():
                    chart.line(np.sort(values), np.arange(1, len(values) + 1) / len(values), label)
        chart.save(given.out / f"realruns-{name}.svg")
        chart.save(given.out / f"realruns-{name}.png")
    head = ["run", "from", "limits", *(f"{kind} {measure}" for kind in ("ttft", "tpot", "e2e") for measure in MEASURES)]
    table("second half, predicted from the first: modelled over measured, less one", head, lines)


MEASURES = {"mean": np.mean, "p50": np.median, "p99": lambda values: np.quantile(values, 0.99)}


def _off(seen: Any, made: Any, measure: Any) -> float:
    return float(measure(made[np.isfinite(made)]) / measure(seen[np.isfinite(seen)]) - 1)


if __name__ == "__main__":
    main()
