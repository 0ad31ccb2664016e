"""`vllm bench serve --save-result`: one JSON object of parallel arrays, or one per line (`--append-result`)."""

import math
from datetime import datetime
from pathlib import Path
from typing import Any

from openloop.errors import RunError
from openloop.importers.foreign import (
    CHUNKS,
    NO_SCHEDULE,
    NOT_TOLD,
    Call,
    JsonLines,
    Row,
    Runs,
    begins,
    event_times,
    make_run,
    rows_of,
    wall_clock,
)
from openloop.records import Run
from openloop.units import to_ns

LISTS = ("latencies", "ttfts", "itls", "start_times", "queue_times", "input_lens", "output_lens", "errors")
looks_like = begins("{", '"endpoint_type"', '"num_prompts"')


def read(path: Path) -> Runs:
    rows = JsonLines(path)
    for found in rows:
        yield _run(found)
    rows.refuse_torn()


def _run(found: Row) -> Run:
    if "latencies" not in found and "ttfts" not in found:
        raise RunError("it has totals and no requests: let vllm bench save them with --save-detailed")
    calls = [_call(found, i) for i in rows_of(found, *LISTS)]
    timed, queued = "start_times" in found, "queue_times" in found
    rate = float(found.get("request_rate", "inf"))
    closed = found.get("max_concurrency") is not None and math.isinf(rate)
    if closed or not (timed and queued):
        for call in calls:
            call.due_ns = None
    notes = [CHUNKS] if "ttfts" in found else ["saved without --save-detailed: no token is timed or counted"]
    if timed and not queued:
        notes.append(NO_SCHEDULE)
    empty = sum(call.error == _EMPTY for call in calls)
    if empty:
        notes.append(f"{empty:,} requests that vllm bench counts as successes delivered nothing: they are errors here")
    return make_run(
        "vllm bench",
        calls,
        notes=notes,
        seconds=found["duration"],
        model=found.get("model_id"),
        started_at=_started_at(found),
        arrivals=f"closed: {found['max_concurrency']} at a time"
        if closed
        else _arrivals(found, rate)
        if timed
        else NOT_TOLD,
    )


def _started_at(found: Row) -> str | None:
    """Its date is when the run was over, in whole seconds of local time: of this machine, for want of another."""
    try:
        over = datetime.strptime(found.get("date", ""), "%Y%m%d-%H%M%S").timestamp()
        return wall_clock(to_ns(over - found["duration"]))
    except (TypeError, ValueError, OverflowError, OSError):
        return None


_EMPTY, _ENDLESS = "no token came", "when it was over is not in the file"


def _call(found: Row, i: int) -> Call:
    def of(name: str) -> Any:
        return found[name][i] if name in found else None

    sent_ns = to_ns(of("start_times") or 0.0)
    ttft, gaps, took = of("ttfts"), of("itls"), of("latencies")
    if took is None and ttft:
        if "itls" not in found:
            raise RunError("it has neither latencies nor itls, which tell when answers were over")
        took = None if gaps is None else ttft + sum(gaps)
    call = Call(
        sent_ns=sent_ns,
        due_ns=sent_ns - to_ns(of("queue_times") or 0.0),
        ended_ns=sent_ns + to_ns(took) if took else None,
        prompt_tokens=of("input_lens"),
        output_tokens=of("output_lens"),
    )
    if of("errors") or not took:
        call.status, call.error = "error", of("errors") or (_ENDLESS if ttft else _EMPTY)
        call.output_tokens = None
    elif ttft and gaps is None:
        call.first_ns, call.last_ns = sent_ns + to_ns(ttft), call.ended_ns
    elif ttft:
        call.events_ns = event_times(sent_ns, ttft, gaps or ())
    return call


def _arrivals(found: Row, rate: float) -> str:
    if math.isinf(rate):
        return "all at once"
    shape = "poisson" if found.get("burstiness", 1.0) == 1.0 else f"gamma, burstiness {found['burstiness']:g},"
    return f"{shape} at {rate:g}/s as told, with gaps scaled to it"
