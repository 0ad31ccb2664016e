"""`sglang.benchmark.serving --output-details` (bench_serving): a JSON object of parallel arrays per run and line."""

from pathlib import Path
from typing import Any

from openloop.errors import RunError
from openloop.importers.foreign import (
    CHUNKS,
    NOT_TOLD,
    Call,
    JsonLines,
    Row,
    Runs,
    begins,
    event_times,
    make_run,
    rows_of,
    slo_of,
)

LISTS = ("ttfts", "itls", "input_lens", "output_lens", "cached_tokens", "errors")
looks_like = begins("{", '"sharegpt_output_len"', '"random_range_ratio"')


def read(path: Path) -> Runs:
    rows = JsonLines(path)
    for found in rows:
        if "ttfts" not in found:
            raise RunError("it has totals and no requests: run bench_serving with --output-details")
        info = found.get("server_info")
        yield make_run(
            "sglang bench_serving",
            [_call(found, i) for i in rows_of(found, *LISTS)],
            notes=[CHUNKS, "how long a request took is known up to its last chunk with text"],
            seconds=found["duration"],
            arrivals=NOT_TOLD,
            model=info.get("model_path") if isinstance(info, dict) else None,
            slo=slo_of(found.get("goodput_slos_ms") or {}, {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}),
        )
    rows.refuse_torn()


def _call(found: Row, i: int) -> Call:
    def of(name: str) -> Any:
        return found[name][i] if name in found else None

    call = Call(prompt_tokens=of("input_lens"), cached_tokens=of("cached_tokens"))
    if of("errors") or not of("ttfts"):
        call.status, call.error = "error", of("errors") or "no token came"
        return call
    if "itls" not in found:
        raise RunError("it has no itls, which tell when answers were over")
    call.output_tokens = of("output_lens")
    call.events_ns = event_times(0, of("ttfts"), of("itls"))
    return call
