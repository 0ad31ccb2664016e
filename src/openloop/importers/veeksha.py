"""veeksha's `metrics/request_level_metrics.jsonl`: an object per successful request."""

from pathlib import Path

from openloop.importers.foreign import (
    CHUNKS,
    NO_SCHEDULE,
    SUCCESSES,
    Call,
    JsonLines,
    Row,
    Runs,
    begins,
    event_times,
    make_run,
)
from openloop.units import to_ns

looks_like = begins("{", '"scheduler_dispatched_at"', '"ttfc"')


def read(path: Path) -> Runs:
    rows = JsonLines(path)
    calls = [_call(row) for row in rows]
    yield make_run("veeksha", calls, notes=[NO_SCHEDULE, CHUNKS, SUCCESSES, *rows.notes])


def _call(row: Row) -> Call:
    sent_ns = to_ns(row.get("client_picked_up_at") or row["scheduler_dispatched_at"])
    return Call(
        sent_ns=sent_ns,
        due_ns=min(to_ns(row["scheduler_dispatched_at"]), sent_ns),
        ended_ns=sent_ns + to_ns(row["end_to_end_latency"]),
        events_ns=event_times(sent_ns, row["ttfc"], row["tbc"]) if row.get("is_stream", True) else None,
        session=row.get("session_id"),
        prompt_tokens=row.get("num_total_prompt_tokens"),
        output_tokens=row.get("num_output_tokens"),
        requested_tokens=row.get("num_requested_output_tokens"),
    )
