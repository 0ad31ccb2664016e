"""inference-perf's `per_request_lifecycle_metrics.json`: an array with an object per request."""

from itertools import groupby
from pathlib import Path

from openloop.importers.foreign import NO_SCHEDULE, Call, Row, Runs, begins, load_json, make_run
from openloop.units import NS_PER_S, to_ns

looks_like = begins("[", '"start_time"', '"end_time"', '"request"')


def read(path: Path) -> Runs:
    calls = [_call(row) for row in load_json(path)]
    done = [call for call in calls if call.status == "ok"] or calls
    start = min((call.sent_ns or 0 for call in done), default=0)
    over = max((call.ended_ns or 0 for call in done), default=0)
    first = min((call.sent_ns or 0 for call in calls), default=0)
    yield make_run(
        "inference-perf",
        calls,
        notes=[NO_SCHEDULE, "a token's time is that of its chunk, cut into tokens by the tool's own tokenizer"],
        start_ns=first,
        seconds=(over - start) / NS_PER_S,
    )


def _call(row: Row) -> Call:
    info = row.get("info") or {}
    made, error = info.get("response_metrics") or {}, row.get("error")
    times = [to_ns(time) for time in made.get("output_token_times") or info.get("output_token_times") or ()]
    events = [(at, len(list(same))) for at, same in groupby(times)]
    return Call(
        sent_ns=to_ns(row["start_time"]),
        ended_ns=to_ns(row["end_time"]),
        events_ns=[at for at, _ in events],
        event_tokens=[tokens for _, tokens in events],
        prompt_tokens=info.get("input_tokens"),
        output_tokens=made.get("output_tokens", info.get("output_tokens")) if not error else None,
        status="error" if error else "ok",
        error=f"{error['error_type']}: {error['error_msg']}" if error else None,
    )
