"""A run of a fleet of modelled replicas."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from openloop import __version__
from openloop.arrays import Floats, Ints
from openloop.arrivals import Arrivals, read_arrivals
from openloop.errors import SpecError
from openloop.records import (
    Manifest,
    Prices,
    Run,
    RunWriter,
    Stay,
    TimedEvent,
    checked,
    ints,
    make_batch,
    make_lists,
    make_words,
    open_run,
)
from openloop.routing import read_routing
from openloop.seeds import stream
from openloop.sim.engine import ServedAttempts, SimEngine, engine_of
from openloop.sim.events import LOGGED
from openloop.sim.quality import LATE_TURN, SLICES, Repaired, with_repairs
from openloop.sim.spec import FleetSpec, read_fleet, request_tables
from openloop.sim.tables import LEFT, OK, ROTATE, SLOW, STATUSES
from openloop.slo import Objectives
from openloop.units import LONGEST_S, NS_PER_S, to_ns
from openloop.workload import Demand, Workload, read_source

__all__ = ["FleetSpec", "engine_of", "flags_of", "prices_in", "read_fleet", "simulate_fleet"]

MOST_EVENTS = 100_000  # of a manifest
KINDS = ("first", "retry", "hedge", "repair")


def simulate_fleet(
    fleet: FleetSpec | str | Path | dict[str, Any],
    workload: Workload | str,
    arrivals: Arrivals | str | None,
    seconds: float,
    seed: int = 0,
    objectives: Objectives | None = None,
    out: str | Path | None = None,
    primes: Demand | None = None,
    **facts: Any,
) -> Run:
    """Users of so many seconds, served by modelled replicas in virtual time; with `out`, straight into a run folder.

    It ends with the recording that the arrivals are or, without arrivals, the workload. `primes` are known to every
    cache from the start. A fleet may be a file or what stands in one, a workload and arrivals as flags have them.
    """
    fleet = fleet if isinstance(fleet, FleetSpec) else read_fleet(fleet)
    workload = Workload.of(read_source(workload)) if isinstance(workload, str) else workload
    arrivals = read_arrivals(arrivals) if isinstance(arrivals, str) else arrivals
    seconds = min(seconds, workload.lasts_s(arrivals) or seconds)
    window = (0, to_ns(seconds))
    parts = _asked(fleet, workload.parts(arrivals, seconds, seed), seed)
    first = next(parts)
    engine = SimEngine(fleet, *_tables(fleet, first, objectives), seconds, seed)
    if primes is not None and len(primes):
        engine.prime(*request_tables(fleet, primes, None))
    manifest = Manifest(
        **{
            "source": "sim",
            "engine": "openloop sim",
            "engine_version": __version__,
            "engine_flags": flags_of(fleet),
            "model": fleet.model or "a step time",
            "hardware": f"{fleet.tp} x {fleet.gpu}" if fleet.gpu else "none: virtual time",
            "replicas": fleet.size,
            "workload": str(workload),
            "lengths": first.lengths,
            "arrivals": "as recorded" if arrivals is None else str(arrivals),
            "arrivals_cv": None if arrivals is None or first.demand.with_answers else arrivals.cv,
            "window_ns": window,
            "seed": seed,
            "quantization": None if fleet.quantization is None else fleet.quantization.name,
            "quality_gate": None if fleet.quality is None else str(fleet.read_quality()),
            "notes": (*_notes(fleet, primes), *first.demand.notes),
            "retry_policy": None if fleet.client is None else fleet.client.persistence(),
            **facts,
        }
    )
    latest = seconds
    batches: list[pa.RecordBatch] = []
    writer = None if out is None else RunWriter(out, manifest)
    for row, part, served in _served(fleet, engine, first, parts, objectives):
        latest = max(latest, float(np.nanmax(served.rows.ended, initial=seconds)))
        _check_ends(served.rows.ended + fleet.delay_s() * served.rows.output)
        batch = _make_rows(fleet, part, served, row, to_ns(seconds), engine.requests.tries[row:], seed)
        latest = max(latest, ints(batch, "ended_ns").max(initial=0) / NS_PER_S)
        (batches if writer is None else writer).append(batch)
    stays = tuple(Stay(str(number), to_ns(begin), to_ns(end)) for number, begin, end in engine.stays(seconds))
    last: dict[str, Any] = {
        "stopped_ns": to_ns(latest + 1.0),
        "events": (*manifest.events, *_events(engine)),
        "prices": manifest.prices or prices_in(fleet, stays, window),
        "stays": stays if any(each.inside_ns(window) < window[1] for each in stays) else (),
    }
    if writer is None:
        return Run.of(checked(msgspec.structs.replace(manifest, finished=True, **last)), batches)
    writer.finish(**last)
    return open_run(writer.folder)


def _check_ends(ends_s: Floats) -> None:
    if np.nanmax(ends_s, initial=0.0) > LONGEST_S:
        raise SpecError(
            f"a request ends after {np.nanmax(ends_s):.3g} s, over thirty years; make steps, delays or load smaller"
        )


def flags_of(fleet: FleetSpec) -> str:
    """As a manifest has them."""
    return msgspec.json.encode(msgspec.structs.replace(fleet, calibration=None).written()).decode()


def _notes(fleet: FleetSpec, primes: Demand | None) -> Iterator[str]:
    told = read_routing(fleet.routing).note
    if told:
        yield told
    if any(each.role != "both" for each in fleet.kinds()):
        yield "a row names the replica that decoded it: utilisation counts those that prefill as idle"
    if primes is not None and fleet.prefix_cache:
        yield f"prefixes that every cache was primed with: {len(primes):,}"


@dataclass(frozen=True, eq=False)
class _Part:
    """Of a workload: what is asked, with its repairs where there are any; what users wait besides; and how many
    requests and sessions were before it."""

    demand: Demand
    repaired: Repaired | None
    late_ns: Ints | None
    lengths: str
    request: int
    session: int

    @cached_property
    def due_s(self) -> Floats:
        """When each request was due, as far as it is known; later turns become due as it goes."""
        return self.demand.due_s.copy()


def _asked(fleet: FleetSpec, parts: Iterator[Demand], seed: int) -> Iterator[_Part]:
    quality, repair = fleet.read_quality(), None if fleet.client is None else fleet.client.repairs()
    overhead = fleet.read_overhead()
    chances, waits = stream(seed, "repairs"), stream(seed, "overhead")
    requests = sessions = 0
    for number, asked in enumerate(parts):
        repaired, demand = None, asked
        if quality is not None and repair is not None:
            repaired = with_repairs(asked, quality, repair, chances, number)
            demand = repaired.demand
        late_ns = None if overhead is None else _ns(overhead.draw(len(demand), waits))
        yield _Part(demand, repaired, late_ns, asked.lengths, requests, sessions)
        requests += len(asked)
        sessions += 0 if asked.session is None else 1 + int(asked.session.max())


def _tables(fleet: FleetSpec, part: _Part, objectives: Objectives | None) -> tuple[Any, Ints | None]:
    requests, hashes = request_tables(fleet, part.demand, objectives)
    requests.late = 0.0 if part.late_ns is None else part.late_ns / NS_PER_S
    requests.session += np.where(requests.session >= 0, part.session, 0)
    return requests, hashes


_Served = Iterator[tuple[int, _Part, ServedAttempts]]  # from which row on a part is, and what is served of it


def _served(
    fleet: FleetSpec, engine: SimEngine, first: _Part, parts: Iterator[_Part], objectives: Objectives | None
) -> _Served:
    """All of it; the next part is fed when its first request is due."""
    fed = {0: first}
    for part in parts:
        for served in engine.run_to(float(part.demand.due_s[0])):
            yield from _by_part(fed, served)
        for served in engine.feed(*_tables(fleet, part, objectives)):
            yield from _by_part(fed, served)
        fed = {row: part for row, part in fed.items() if row in engine.places} | {engine.fed: part}
    for served in engine.run():
        yield from _by_part(fed, served)


def _by_part(fed: dict[int, _Part], served: ServedAttempts) -> _Served:
    if len(fed) == 1:
        yield *next(iter(fed.items())), served
        return
    for row, part in fed.items():
        mine = (served.rows.request >= row) & (served.rows.request < row + len(part.demand))
        if mine.any():
            yield row, part, served.some(mine)


def _events(engine: SimEngine) -> tuple[TimedEvent, ...]:
    rows = engine.log[: engine.world[0].events] if engine.log is not None else ()
    shown = [row for row in rows if row.kind != LEFT][:MOST_EVENTS]
    return tuple(
        TimedEvent(
            at_ns=to_ns(float(row.time)),
            kind=LOGGED[row.kind],
            detail="all replicas"
            if row.kind == ROTATE
            else f"replica {row.replica}" + (f", factor {row.value:g}" if row.kind == SLOW else ""),
        )
        for row in shown
    )


def prices_in(fleet: FleetSpec, stays: tuple[Stay, ...], window_ns: tuple[int, int]) -> Prices | None:
    """Of what was there in a window, on average."""
    prices = [each.price_per_hour for each in fleet.kinds_of(1 + max(int(each.replica) for each in stays))]
    if all(each is None for each in prices):
        return None
    paid = sum((prices[int(each.replica)] or 0.0) * each.inside_ns(window_ns) for each in stays)
    return Prices(per_hour=paid / (window_ns[1] - window_ns[0]))


def _make_rows(
    fleet: FleetSpec, part: _Part, served: ServedAttempts, row: int, end_ns: int, tries: Ints, seed: int
) -> pa.RecordBatch:
    """Records of what was due in the window; a repair is an attempt at what it repairs, and was due when that was.
    So many `tries` there were at each of the requests, which are in the table from `row` on."""
    demand, repaired = part.demand, part.repaired
    if repaired is not None:
        place = served.rows.request - row
        firsts = repaired.wave[place] == 0
        part.due_s[place[firsts]] = served.rows.due[firsts]
        served.rows.due = part.due_s[repaired.origin[place]]
    inside = served.rows.due * NS_PER_S < end_ns
    served = served if inside.all() else served.some(inside)
    steps = np.maximum(served.counts - 1, 0)
    made = served.counts if served.tokens is None else _sums(served.tokens, served.counts)  # handed out or not
    if fleet.delay is not None:
        served = _delayed(served, to_ns(fleet.delay_s())).clipped()
    if part.late_ns is not None:
        late = part.late_ns[served.rows.request - row]
        served = replace(served, times=served.times + np.repeat(late, served.counts)).clipped()
    rows, counts, times, tokens = served.rows, served.counts, served.times, served.tokens
    last = times[np.maximum(np.cumsum(counts) - 1, 0)] if len(times) else np.zeros(len(rows), np.int64)
    ok = rows.status == OK
    ended = np.maximum(_ns(rows.ended), np.where(ok & (counts > 0), last, 0))
    request = rows.request - row
    attempt, kind = rows.attempt, rows.kind
    if repaired is not None:
        wave = repaired.wave[request]
        kind = np.where((wave > 0) & (kind == 0), KINDS.index("repair"), kind)
        attempt = attempt + repaired.earlier(tries)[request]
    count = 1 + int(rows.replica.max(initial=0))
    drafts = np.array([each.drafts.tokens if each.drafts else 0 for each in fleet.kinds_of(count)])
    columns: dict[str, Any] = {
        "request_id": (request if repaired is None else repaired.origin[request]) + part.request,
        "scheduled_ns": np.minimum(_ns(rows.due), end_ns - 1),
        "sent_ns": np.where(attempt == 0, np.minimum(_ns(rows.sent), end_ns - 1), _ns(rows.sent)),
        "ended_ns": ended,
        "event_ns": make_lists("event_ns", times, counts),
        "prompt_tokens": rows.prompt,
        "cached_tokens": rows.cached,
        "output_tokens": counts if tokens is None else _sums(tokens, counts),
        "requested_tokens": rows.output,
        "recomputed_tokens": rows.recomputed,
        "drafted_tokens": drafts[rows.replica] * steps,
        "accepted_draft_tokens": np.maximum(made - 1 - steps, 0),
        "preemptions": rows.preemptions,
        "status": make_words(rows.status, STATUSES),
        "finish_reason": pa.array(np.where(ok, "length", ""), mask=~ok),
        "replica": make_words(rows.replica, [str(each) for each in range(count)]),
    }
    if np.any(attempt > 0):
        columns["attempt"], columns["kind"] = attempt.astype(np.int32), make_words(kind, KINDS)
    quality = fleet.read_quality()
    if quality is not None:
        if repaired is not None:
            good, slices = repaired.good[request], repaired.slices[repaired.origin[request]]
        else:
            late_turn = np.zeros(len(rows), bool) if demand.turn is None else demand.turn[request] >= LATE_TURN
            good, slices = quality.label(seed, request + part.request, late_turn)
        columns["quality"] = pa.array(good, mask=~ok)
        columns["quality_score"] = pa.array(good.astype(np.float64), mask=~ok)
        columns["slices"] = make_words(slices - 1, SLICES)
    if tokens is not None:
        columns["event_tokens"] = make_lists("event_tokens", tokens, counts)
    if demand.session is not None and demand.turn is not None:
        alone = demand.session[request] < 0
        columns["session_id"] = pa.array(demand.session[request] + part.session, mask=alone)
        columns["turn"] = pa.array(demand.turn[request].astype(np.int32), mask=alone)
    if demand.workload_class is not None:
        columns["workload_class"] = make_words(demand.workload_class[request], demand.classes)
    if demand.tenant is not None:
        columns["tenant"] = make_words(demand.tenant[request], demand.tenants)
    return make_batch(columns)


def _sums(values: Ints, counts: Ints) -> Ints:
    ends = np.concatenate([[0], np.cumsum(values)])
    places = np.cumsum(counts)
    found: Ints = ends[places] - ends[places - counts]
    return found


def _delayed(served: ServedAttempts, least_ns: int) -> ServedAttempts:
    """Tokens wait in a buffer, each by itself, until `least_ns` after the one before them: a running maximum of time
    less place."""
    counts, times = served.counts, served.times
    if served.tokens is not None:
        counts, times = _sums(served.tokens, counts), np.repeat(times, served.tokens)
    begin = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.arange(len(times)) - begin
    slack = times - times[begin] - least_ns * place
    apart = np.repeat(np.arange(len(counts)), counts) * (np.ptp(slack) + 1) if len(times) else slack
    handed = np.maximum.accumulate(slack + apart) - apart + times[begin] + least_ns * place
    return ServedAttempts(served.rows, counts, handed, None)


def _ns(seconds: Floats) -> Ints:
    return np.rint(np.nan_to_num(seconds) * NS_PER_S).astype(np.int64)
