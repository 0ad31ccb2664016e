"""llmperf's `*_individual_responses.json`: an array with an object per request."""

from pathlib import Path

from openloop.importers.foreign import Call, Row, Runs, begins, load_json, make_run
from openloop.units import to_ns

looks_like = begins("[", '"ttft_s"', '"end_to_end_latency_s"')


def read(path: Path) -> Runs:
    yield make_run(
        "llmperf",
        [_call(row) for row in load_json(path)],
        notes=["the file does not tell when requests were sent, how long the run took, and of tokens only the first"],
        arrivals="closed: threads that wait for answers",
    )


def _call(row: Row) -> Call:
    failed = row.get("error_code") is not None
    end = to_ns(row["end_to_end_latency_s"]) if row.get("end_to_end_latency_s") else None
    return Call(
        ended_ns=end,
        first_ns=to_ns(row["ttft_s"]) if row.get("ttft_s") else None,
        last_ns=end,
        prompt_tokens=row.get("number_input_tokens"),
        output_tokens=None if failed else row.get("number_output_tokens"),
        status="error" if failed else "ok",
        http_status=row["error_code"] if isinstance(row.get("error_code"), int) else None,
        error=row.get("error_msg") or None,
    )
