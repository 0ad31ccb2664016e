"""genai-bench: a JSON object with `individual_request_metrics`, for one scenario and concurrency."""

from pathlib import Path

from openloop.importers.foreign import Call, Row, Runs, begins, load_json, make_run
from openloop.units import to_ns

looks_like = begins("{", '"aggregated_metrics"', '"iteration_type"')


def read(path: Path) -> Runs:
    found = load_json(path)
    totals = found["aggregated_metrics"]
    scale = 1e-3 if found.get("_time_unit") == "ms" else 1.0
    yield make_run(
        "genai-bench",
        [_call(row, scale) for row in found["individual_request_metrics"]],
        notes=["the file does not tell when requests were sent, and of tokens only the first and the end"],
        seconds=totals["run_duration"],
        arrivals=f"closed: {totals.get('num_concurrency')} users",
        workload=totals.get("scenario"),
    )


def _call(row: Row, scale: float) -> Call:
    failed = row.get("error_code") is not None
    first, took = row.get("ttft"), row.get("e2e_latency")
    end = None if took is None else to_ns(took * scale)
    return Call(
        ended_ns=end,
        first_ns=None if first is None else to_ns(first * scale),
        last_ns=end,
        prompt_tokens=row.get("num_input_tokens"),
        output_tokens=row.get("num_output_tokens"),
        reasoning_tokens=row.get("num_reasoning_tokens"),
        status="error" if failed else "ok",
        http_status=row["error_code"] if isinstance(row.get("error_code"), int) else None,
        error=row.get("error_message"),
    )
