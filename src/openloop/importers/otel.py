"""OpenTelemetry spans of calls to models (GenAI semantic conventions), as OTLP JSON: one object, or one per line."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from openloop.importers.foreign import NO_SCHEDULE, Call, JsonLines, Row, Runs, begins, make_run
from openloop.records import Run
from openloop.units import to_ns

ASKING = {"chat", "text_completion", "generate_content", "llm_request"}
FIRST = (  # seconds from the start of the span, whoever wrote it
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.server.time_to_first_token",
    "gen_ai.latency.time_to_first_token",
)
NOTES = (
    NO_SCHEDULE,
    "a span covers a call with all retries inside it",
    "of tokens the first is known where the span tells it, and the end",
)

looks_like = begins("{", '"resourceSpans"')


def read(path: Path) -> Runs:
    rows = JsonLines(path)
    found = calls(rows)
    # A call may be told by whoever asked and by whoever answered: the user is with the former.
    asked = [call for by_client, call in found if by_client]
    yield run_of(asked or [call for _, call in found], more=rows.notes)


def calls(batches: Iterable[Row]) -> list[tuple[bool, Call]]:
    """Every call to a model in these, and whether it is told by whoever asked."""
    return [
        (span.get("kind") in (3, "SPAN_KIND_CLIENT"), call)
        for batch in batches
        for resource in batch["resourceSpans"]
        for scope in resource.get("scopeSpans") or ()
        for span in scope.get("spans") or ()
        if (call := _call(span)) is not None
    ]


def run_of(found: Sequence[Call], start_ns: int | None = None, more: Sequence[str] = ()) -> Run:
    """Times count from `start_ns`, or from the first call; there may be more to note."""
    return make_run("OpenTelemetry", found, notes=(*NOTES, *more), start_ns=start_ns, dated=True)


def _call(span: Row) -> Call | None:
    """None: the span is about something else."""
    told = {each["key"]: _value(each["value"]) for each in span.get("attributes") or ()}
    asking = told.get("gen_ai.operation.name", span.get("name"))
    if asking not in ASKING:
        return None
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    first = next((told[name] for name in FIRST if name in told), None)
    status = span.get("status") or {}
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    reasons = told.get("gen_ai.response.finish_reasons")
    return Call(
        sent_ns=start,
        ended_ns=end,
        first_ns=None if first is None else start + to_ns(float(first)),
        last_ns=end,
        session=told.get("gen_ai.conversation.id"),
        replica=told.get("server.address"),
        workload_class=told.get("gen_ai.request.model"),
        prompt_tokens=told.get("gen_ai.usage.input_tokens", told.get("gen_ai.usage.prompt_tokens")),
        cached_tokens=told.get("gen_ai.usage.cache_read.input_tokens"),
        output_tokens=told.get("gen_ai.usage.output_tokens", told.get("gen_ai.usage.completion_tokens")),
        requested_tokens=told.get("gen_ai.request.max_tokens"),
        status="error" if failed else "ok",
        error=(status.get("message") or str(told.get("error.type") or "failed")) if failed else None,
        finish_reason=reasons[0] if reasons else None,
    )


def _value(value: Row) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(each) for each in value["arrayValue"].get("values") or ()]
    return next(iter(value.values()), None)
