"""GuideLLM's `benchmarks.json`: benchmarks, each with its requests by outcome. Each is a run."""

from pathlib import Path

from openloop.importers.foreign import Call, Row, Runs, begins, load_json, make_run, slo_of
from openloop.records import Run
from openloop.units import to_ns

STATUSES = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}
CLOSED = {"concurrent", "synchronous", "throughput"}
GATES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2el_ms": "e2e"}  # what it calls inter-token latency is our TPOT
looks_like = begins("{", '"guidellm_version"')


def read(path: Path) -> Runs:
    for benchmark in load_json(path)["benchmarks"]:
        yield _run(benchmark)


def _run(found: Row) -> Run:
    config = found.get("config") or {}
    strategy, backend = config.get("strategy") or {}, config.get("backend") or {}
    closed = strategy.get("type_") in CLOSED
    calls = [
        _call(row, status, closed) for group, status in STATUSES.items() for row in found["requests"].get(group) or ()
    ]
    total = sum((found.get("metrics", {}).get("request_totals") or {}).get(group) or 0 for group in STATUSES)
    notes = ["the file keeps the first and the last token of a request, on the wall clock"]
    if total > len(calls):
        notes.append(f"the file keeps {len(calls):,} of {total:,} requests: the others are missing from every share")
    cancelled = sum(call.status == "cancelled" for call in calls)
    if cancelled:
        notes.append(
            f"{cancelled:,} requests were cancelled at the tool's limit: it leaves them out of its own attainment, "
            "which is higher for it"
        )
    return make_run(
        "guidellm",
        calls,
        notes=notes,
        start_ns=min([to_ns(found["start_time"]), *(call.due_ns for call in calls if call.due_ns is not None)]),
        seconds=found["duration"],
        dated=True,
        model=backend.get("model"),
        arrivals=f"closed: {strategy['type_']}" if closed else _arrivals(strategy),
        slo=slo_of(config.get("slo") or {}, GATES),
    )


def _call(row: Row, status: str, closed: bool) -> Call:
    info, used, made = row["info"], row.get("input_metrics") or {}, row.get("output_metrics") or {}
    at = {name: to_ns(value) for name, value in info["timings"].items() if value is not None}
    sent_ns, due_ns = at.get("request_start"), None if closed else at.get("targeted_start")
    if sent_ns is None and due_ns is None:
        due_ns = at.get("queued", 0)
    return Call(
        sent_ns=sent_ns,
        due_ns=due_ns if sent_ns is None or due_ns is None else min(due_ns, sent_ns),
        ended_ns=at.get("request_end"),
        first_ns=at.get("first_token_iteration"),
        last_ns=at.get("last_token_iteration"),
        session=info.get("conversation_id"),
        turn=info.get("turn_index"),
        prompt_tokens=used.get("total_tokens"),
        cached_tokens=used.get("cached_tokens"),
        output_tokens=made.get("total_tokens"),
        status=status if sent_ns is not None or status != "cancelled" else "dropped",
        error=info.get("error"),
    )


def _arrivals(strategy: Row) -> str | None:
    return f"{strategy['type_']} at {strategy['rate']:g}/s as told" if strategy.get("rate") else strategy.get("type_")
