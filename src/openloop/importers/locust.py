"""locust's `--json` or `--json-file`: per request name, how often each response time was seen."""

from pathlib import Path

from openloop.importers.foreign import Call, Row, Runs, begins, load_json, make_run, times, wall_clock
from openloop.units import to_ns

looks_like = begins("[", '"num_none_requests"')


def read(path: Path) -> Runs:
    found = load_json(path)
    start = min((entry["start_time"] for entry in found), default=0.0)
    over = max((entry["last_request_timestamp"] or start for entry in found), default=0.0)
    untimed = sum(entry["num_none_requests"] for entry in found)
    yield make_run(
        "locust",
        [call for entry in found for call in _calls(entry)],
        notes=[
            "the file counts response times, rounded to two digits, and does not tell which requests failed: it counts "
            "as if the fastest had, so attainment is a lower bound",
            "no tokens, only whole answers",
            *([f"{untimed:,} requests have no response time in the file: they are errors here"] if untimed else []),
        ],
        seconds=over - start,
        started_at=wall_clock(to_ns(start)),
        arrivals="closed: users that wait for answers",
    )


def _calls(entry: Row) -> list[Call]:
    name = f"{entry['method']} {entry['name']}"
    took = sorted((float(ms), count) for ms, count in entry["response_times"].items())
    calls = [Call(ended_ns=round(ms * 1e6), workload_class=name) for ms, count in took for _ in times(count)]
    for call in calls[: entry["num_failures"]]:
        call.status, call.error = "error", "failed, it is not told how"
    untimed = times(entry["num_none_requests"])
    return calls + [Call(workload_class=name, status="error", error="its time is not in the file") for _ in untimed]
