"""What importers share: calls as another tool saw them, made into a run of ours."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from openloop.arrays import Ints
from openloop.errors import RunError
from openloop.records import COLUMNS, Manifest, Run, checked, make_batch, make_lists
from openloop.units import LONGEST_S, NS_PER_S, to_ns

NO_SCHEDULE = (
    "the file tells when requests were sent and not when they were due: what the client held back is not seen, so "
    "coordinated omission cannot be excluded"
)
CHUNKS = "token times are those of chunks in the stream, which may carry several tokens or none"
SUCCESSES = "the file lists successes only: failed requests are missing from every share"
ENCODING = "utf-8-sig"  # some editors and shells put a byte-order mark before a text
MOST_COUNTED = 10_000_000
NOT_TOLD = "not told: the file has no send times"  # the arrivals of such a run; its verdict says so

Row = dict[str, Any]
Runs = Iterator[Run]


@dataclass
class Call:
    """One attempt. Times are nanoseconds on the tool's own clock, all on the same.

    `events_ns` are all deliveries that the tool saw. Where it kept only some facts, `first_ns` and `last_ns` are the
    first and the last; neither is ever made up from the other, and without the first no token is timed.
    """

    sent_ns: int | None = 0
    due_ns: int | None = None  # None: when it was sent
    ended_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    events_ns: Sequence[int] | Ints | None = None
    event_tokens: Sequence[int] | None = None
    request: object = None  # attempts that share it are attempts at one request; None: it is its own
    session: object = None
    turn: int | None = None
    attempt: int = 0
    kind: str = "first"
    workload_class: str | None = None
    tenant: str | None = None
    replica: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    requested_tokens: int | None = None
    status: str = "ok"
    http_status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    quality: bool | None = None
    cost: float | None = None


def make_run(
    tool: str,
    calls: Sequence[Call],
    *,
    notes: Iterable[str] = (),
    start_ns: int | None = None,
    seconds: float | None = None,
    dated: bool = False,
    **facts: Any,
) -> Run:
    """The run of these calls; `dated`: their clock is the wall's, so that it is known when the run began.

    `seconds` is what the tool divides its rates by, from `start_ns` or the first call; the window is longer only where
    something would otherwise be due after it.
    """
    if not calls:
        raise RunError("it holds no requests")
    told = [time for call in calls for time in (call.due_ns, call.sent_ns) if time is not None]
    origin = min([*told, *([start_ns] if start_ns is not None else [])], default=0)
    crowded = sum(_has_more_chunks_than_tokens(call) for call in calls)
    said = list(notes)
    if crowded:
        said.append(
            f"{crowded:,} requests have more chunks than tokens (such as a role or a finish chunk): of these only the "
            "first and the last are kept"
        )
    took_ns = None if seconds is None else to_ns(seconds)
    if took_ns is not None and took_ns < 0:
        raise RunError(f"it says that it took {seconds:g} s; a run takes more than none")
    opened = (origin if start_ns is None else start_ns) - origin
    last = max((call.sent_ns if call.due_ns is None else call.due_ns) or 0 for call in calls) - origin
    if dated:
        facts["started_at"] = wall_clock(origin)
    manifest = Manifest(
        source="import",
        finished=True,
        stamps=f"{tool}, in its own client",
        window_ns=(opened, max(opened + took_ns, last + 1)) if took_ns else None,
        notes=tuple(said),
        **facts,
    )
    return Run.of(checked(manifest), [make_batch(_columns(calls, origin))])


def _columns(calls: Sequence[Call], origin: int) -> dict[str, Any]:
    def since(ns: int | None) -> int | None:
        return None if ns is None else ns - origin

    same = [each.name for each in fields(Call) if each.name in COLUMNS]
    columns: dict[str, Any] = {name: [getattr(call, name) for call in calls] for name in same}
    columns["request_id"] = _numbered(id(call) if call.request is None else call.request for call in calls)
    columns["session_id"] = _numbered(call.session for call in calls)
    columns["sent_ns"] = [since(call.sent_ns) for call in calls]
    columns["scheduled_ns"] = [since(call.sent_ns if call.due_ns is None else call.due_ns) for call in calls]
    kept = [_events(call) for call in calls]
    events = np.concatenate([np.asarray(each, np.int64) for each, _ in kept])
    columns["event_ns"] = make_lists("event_ns", events - origin, np.array([len(each) for each, _ in kept]))
    columns["ends_only"] = [True if ends else None for _, ends in kept]
    columns["event_tokens"] = [
        None if ends or call.event_tokens is None else list(call.event_tokens)
        for call, (_, ends) in zip(calls, kept, strict=True)
    ]
    columns["ended_ns"] = [
        since(max([each for each in (call.ended_ns, *map(int, times[-1:])) if each is not None], default=None))
        if call.status != "censored"
        else None
        for call, (times, _) in zip(calls, kept, strict=True)
    ]
    return columns


def _events(call: Call) -> tuple[Sequence[int] | Ints, bool]:
    """Deliveries that can be kept, and whether they are only the first and the last."""
    seen = call.events_ns
    if seen is None or not len(seen):
        ends = [] if call.first_ns is None else [call.first_ns, call.last_ns]
    elif _has_more_chunks_than_tokens(call):
        ends = [int(seen[0]), int(seen[-1])]
    else:
        return seen, False
    known = [time for time in ends if time is not None][: call.output_tokens]
    return known, len(known) > 1 or ends[1:] == [None]


def _has_more_chunks_than_tokens(call: Call) -> bool:
    if call.output_tokens is None or call.events_ns is None:
        return False
    return (sum(call.event_tokens) if call.event_tokens else len(call.events_ns)) > call.output_tokens


def _numbered(names: Iterable[object]) -> list[int | None]:
    """Small numbers for whatever names a tool gives."""
    known: dict[object, int] = {}
    return [None if name is None else known.setdefault(name, len(known)) for name in names]


def rows_of(found: Mapping[str, Any], *names: str) -> range:
    """The places in lists that stand side by side, those of the names that are there."""
    lengths = {name: len(found[name]) for name in names if isinstance(found.get(name), list)}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise RunError(f"its lists are of unlike length ({told}): some of it was lost")
    return range(max(lengths.values(), default=0))


def event_times(sent_ns: int, ttft_s: float, gaps_s: Sequence[float]) -> Ints:
    """When deliveries came, from the time to the first and the gaps after it."""
    after_s = np.cumsum([ttft_s, *gaps_s])
    if not np.all(np.abs(after_s) < LONGEST_S):
        raise RunError(f"a token came {after_s[-1]} s after it was asked for")
    return np.asarray(sent_ns + np.rint(after_s * NS_PER_S).astype(np.int64))


def times(count: float) -> range:
    """As often as something was counted, within reason."""
    if not 0 <= count <= MOST_COUNTED:
        raise RunError(f"it counts {count:g} requests of a kind; up to {MOST_COUNTED:,} can be read")
    return range(round(count))


def milliseconds(value: float | None) -> int | None:
    return None if value is None else round(value * 1e6)


def slo_of(bounds: Mapping[str, float | None], gates: Mapping[str, str]) -> str | None:
    """Bounds in milliseconds as gates, if all have one."""
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    if not given.keys() <= gates.keys():
        return None
    return ", ".join(f"{gates[name]}<={bound:.15g}ms" for name, bound in given.items()) or None


def wall_clock(ns: int) -> str:
    """Nanoseconds since 1970 as a manifest writes a moment."""
    return datetime.fromtimestamp(ns / NS_PER_S, UTC).isoformat(timespec="milliseconds")


def begins(start: str, *words: str) -> Callable[[str], bool]:
    """Whether the head of a file starts so and has these words in it."""
    return lambda head: head.lstrip().startswith(start) and all(word in head for word in words)


def load_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding=ENCODING))


class JsonLines:
    """The values of a file, one per line or spread over lines. A last line that was cut short is left out and noted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes: list[str] = []  # once all are read

    def refuse_torn(self) -> None:
        """Where a line is a whole run, one of them is missing."""
        if self.notes:
            raise RunError("its last run was cut short; --part chooses one before it, which openloop import takes")

    def __iter__(self) -> Iterator[Any]:
        with self._path.open(encoding=ENCODING) as file:
            first = file.readline()
            if first.strip() == "{":  # spread over lines, as jq does it
                yield from _values(first + file.read())
                return
            for line in chain([first], file):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except ValueError:
                        if line.endswith("\n"):
                            raise
                        self.notes.append("the file ends in the middle of a line: what came after that is missing")


BLANKS = re.compile(r"\s*")


def _values(text: str) -> Iterator[Any]:
    """JSON values one after another."""
    decoder, at, end = json.JSONDecoder(), 0, len(text.rstrip())
    while at < end:
        value, at = decoder.raw_decode(text, BLANKS.match(text, at).end())  # type: ignore[union-attr]
        yield value
