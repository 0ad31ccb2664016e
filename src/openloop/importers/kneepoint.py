"""kneepoint's `run-ID.jsonl`: an object per attempt; beside it `run-ID-meta.json` tells target and model."""

from pathlib import Path

from openloop.importers.foreign import Call, JsonLines, Row, Runs, begins, load_json, make_run, milliseconds, wall_clock
from openloop.records import Prices
from openloop.units import to_ns

looks_like = begins("{", '"session_id"', '"total_ms"', '"ttft_ms"')


def read(path: Path) -> Runs:
    told = JsonLines(path)
    rows = list(told)
    monotonic = all(row.get("started_monotonic_s") is not None for row in rows)
    calls = [_call(row, "started_monotonic_s" if monotonic else "started_at") for row in rows]
    first: dict[object, int | None] = {}
    for call in calls:  # a retry was due when its turn was
        first.setdefault(call.request, call.sent_ns)
        call.due_ns = first[call.request]
    yield make_run(
        "kneepoint",
        calls,
        notes=[
            "the file keeps the first content of an answer and its end",
            "levels of concurrency follow each other",
            *told.notes,
        ],
        started_at=wall_clock(to_ns(min(row["started_at"] for row in rows))) if rows else None,
        arrivals="closed: sessions that wait for answers",
        **_facts(path.with_name(f"{path.stem}-meta.json")),
    )


def _call(row: Row, clock: str) -> Call:
    sent_ns = to_ns(row[clock])
    first, took = milliseconds(row.get("ttft_ms")), milliseconds(row["total_ms"])
    end = sent_ns + (took or 0)
    retry = row.get("attempt", 1) - 1
    return Call(
        sent_ns=sent_ns,
        ended_ns=end,
        first_ns=None if first is None else sent_ns + first,
        last_ns=None if first is None else end,
        request=(row["session_id"], row.get("turn_index", 0)),
        session=row["session_id"],
        turn=row.get("turn_index"),
        attempt=retry,
        kind="retry" if retry else "first",
        workload_class=f"concurrency {row['concurrency']}",
        prompt_tokens=row.get("input_tokens"),
        output_tokens=row.get("output_tokens"),
        status="ok" if row["ok"] else "timeout" if row.get("abandoned") else "error",
        http_status=row.get("status_code"),
        error=row.get("error"),
    )


def _facts(path: Path) -> Row:
    if not path.exists():
        return {}
    meta = load_json(path)
    price, retry = meta.get("price"), meta.get("retry") or {}
    return {
        "model": meta.get("model"),
        "seed": meta.get("seed"),
        "retry_policy": f"up to {retry['max_attempts']} attempts" if retry else None,
        "prices": Prices(
            per_million_input_tokens=price["input_per_mtok"], per_million_output_tokens=price["output_per_mtok"]
        )
        if price
        else None,
    }
