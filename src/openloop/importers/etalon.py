"""etalon's `request_level_metrics.json`: one object of parallel arrays, successes only."""

import re
from pathlib import Path

from openloop.importers.foreign import NOT_TOLD, SUCCESSES, Call, Row, Runs, event_times, load_json, make_run, rows_of
from openloop.units import to_ns

FIRST = re.compile(r'\s*\{\s*"(request_dispatched_at|num_prompt_tokens|deadline_miss_rate)"\s*:\s*\[')
LISTS = ("ttft", "tbt", "tbc", "end_to_end_latency", "num_prompt_tokens", "num_output_tokens")


def looks_like(head: str) -> bool:
    return FIRST.match(head) is not None  # what comes after it may be far away


def read(path: Path) -> Runs:
    found = load_json(path)
    yield make_run(
        "etalon",
        [_call(found, i) for i in rows_of(found, *LISTS)],
        notes=[SUCCESSES, "arrivals for which etalon had no client free are not in the file"],
        arrivals=NOT_TOLD,
    )


def _call(found: Row, i: int) -> Call:
    gaps = found.get("tbt", found.get("tbc"))
    end = to_ns(found["end_to_end_latency"][i])
    ttft = found["ttft"][i]
    call = Call(
        ended_ns=end,
        prompt_tokens=int(found["num_prompt_tokens"][i]),
        output_tokens=int(found["num_output_tokens"][i]),
    )
    if gaps:
        call.events_ns = event_times(0, ttft, gaps[i])
    else:
        call.first_ns, call.last_ns = to_ns(ttft), end
    return call
