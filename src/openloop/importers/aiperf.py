"""aiperf's `profile_export.jsonl`: an object per request, its metrics by tag.

Beside it, `profile_export_aiperf.json` tells the model, the load, the SLO and how long the phase was.
"""

from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from openloop.errors import RunError
from openloop.importers.foreign import CHUNKS, Call, JsonLines, Row, Runs, begins, load_json, make_run, slo_of
from openloop.units import NS_PER_S

GATES = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
UNITS_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "sec": 10**9}
looks_like = begins('{"metadata":', '"request_start_ns"', '"metrics"')


def read(path: Path) -> Runs:
    rows = JsonLines(path)
    found = [row for row in rows if row["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    calls = [_call(row["metadata"], row.get("metrics") or {}, row.get("error")) for row in found]
    start = min((call.sent_ns or 0 for call in calls), default=0)
    over = max((call.ended_ns or 0 for call in calls), default=start)
    facts = _facts(path.with_name("profile_export_aiperf.json"))
    yield make_run(
        "aiperf",
        calls,
        notes=[
            CHUNKS,
            "requests count as due when aiperf gave out their credit, which is after they waited for a slot; arrivals "
            "that it skipped or gave up when it fell behind are not in the file",
            *rows.notes,
        ],
        dated=True,
        **{"seconds": (over - start) / NS_PER_S, **facts},
    )


def _call(told: Row, metrics: Row, error: Row | None) -> Call:
    def of(tag: str) -> Any:
        return metrics[tag]["value"] if tag in metrics else None

    sent_ns = told["request_start_ns"]
    credit_ns = told.get("credit_issued_ns")
    call = Call(
        sent_ns=sent_ns,
        due_ns=min(credit_ns, sent_ns) if credit_ns else None,
        ended_ns=told["request_end_ns"],
        session=told.get("x_correlation_id"),
        turn=told.get("turn_index"),
        prompt_tokens=of("input_sequence_length"),
        output_tokens=of("output_sequence_length"),
        reasoning_tokens=of("reasoning_token_count"),
    )
    if error or told.get("was_cancelled"):
        call.status = "cancelled" if told.get("was_cancelled") else "error"
        call.error = str((error or {}).get("message") or "cancelled")
        code = (error or {}).get("code")
        call.http_status = code if isinstance(code, int) else None
    first, took = _times_ns(metrics, "time_to_first_token"), _times_ns(metrics, "request_latency")
    if first and isinstance(of("inter_chunk_latency"), list):
        call.events_ns = list(accumulate([sent_ns + first[0], *_times_ns(metrics, "inter_chunk_latency")]))
    elif first:
        call.first_ns, call.last_ns = sent_ns + first[0], sent_ns + took[0] if took else None
    return call


def _times_ns(metrics: Row, tag: str) -> list[int]:
    """The values of a metric, in nanoseconds."""
    if tag not in metrics:
        return []
    value, unit = metrics[tag]["value"], metrics[tag].get("unit", "ms")
    if unit not in UNITS_NS:
        raise RunError(f"{tag} is in {unit!r}; what is read is in {', '.join(UNITS_NS)}")
    return [round(each * UNITS_NS[unit]) for each in (value if isinstance(value, list) else [value])]


def _facts(path: Path) -> Row:
    if not path.exists():
        return {}
    summary = load_json(path)
    config = summary.get("input_config") or {}
    phase_s = {}
    if summary.get("start_time") and summary.get("end_time"):
        began, ended = (datetime.fromisoformat(summary[name]) for name in ("start_time", "end_time"))
        phase_s["seconds"] = (ended - began).total_seconds()
    phase = (config.get("phases") or [{}])[-1]
    models = (config.get("models") or {}).get("items") or [{}]
    arrivals = None
    if "rate" in phase:
        arrivals = f"{phase['type']} at {phase['rate']:g}/s as told" if "type" in phase else None
    elif "concurrency" in phase:
        arrivals = f"closed: {phase['concurrency']} at a time"
    return {
        **phase_s,
        "model": models[0].get("name"),
        "arrivals": arrivals,
        "slo": slo_of(config.get("slos") or {}, GATES),
    }
