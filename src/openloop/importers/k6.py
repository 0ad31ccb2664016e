"""k6's `--out json=FILE`: points of metrics, several per request with the same tags and moment."""

from pathlib import Path

from openloop.importers.foreign import NO_SCHEDULE, Call, JsonLines, Row, Runs, begins, make_run, milliseconds, times
from openloop.importers.vegeta import iso_ns

looks_like = begins("{", '"type":"Metric"', '"contains":')


def read(path: Path) -> Runs:
    calls: list[Call] = []
    dropped: list[int] = []
    rows = JsonLines(path)
    for row in rows:
        if row["type"] == "Point" and row["metric"] == "http_req_duration":
            calls.append(_call(row["data"]))
        elif row["type"] == "Point" and row["metric"] == "dropped_iterations":
            dropped += [iso_ns(row["data"]["time"]) for _ in times(row["data"]["value"])]
    start = min((call.sent_ns or 0 for call in calls), default=0)
    calls += [Call(sent_ns=None, due_ns=max(at, start), status="dropped", error="no free VU") for at in dropped]
    yield make_run(
        "k6",
        calls,
        notes=[
            NO_SCHEDULE,
            "whether arrivals were scheduled or waited for answers depends on the executor, which is not in the file",
            "no tokens, only whole answers",
            *rows.notes,
        ],
        dated=True,
    )


def _call(point: Row) -> Call:
    """A request's points bear the moment of its end."""
    tags, end = point["tags"], iso_ns(point["time"])
    code = int(tags.get("status") or 0)
    ok = tags.get("expected_response", "true") == "true" and 0 < code < 400
    return Call(
        sent_ns=end - (milliseconds(point["value"]) or 0),
        ended_ns=end,
        workload_class=tags.get("scenario"),
        status="ok" if ok else "timeout" if tags.get("error_code") == "1050" else "error",
        http_status=code or None,
        error=tags.get("error"),
    )
