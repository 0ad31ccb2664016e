"""A run while it goes on: what has ended so far, judged as the score at the end will be."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from openloop.arrays import Floats
from openloop.records import MISSING, Now
from openloop.records.tail import MOST_ROWS, Tail
from openloop.report.figures import gate_rules, waits_of
from openloop.report.marks import Axis, Curve, Figure, Panel
from openloop.report.page import Number, Report, Section, number
from openloop.score.judged import Scope, judge_run
from openloop.score.scorer import objectives_of
from openloop.slo import SLO, Objectives, parse_objectives
from openloop.units import format_seconds

RECENT_S = 10.0
SHOWN_S = 120
ENOUGH = 100  # requests, for a p99


def live_report(tail: Tail, slo: str | None = None) -> Report:
    tail.read_on()
    now, facts = tail.now, tail.manifest
    name = tail.folder.name
    about = " · ".join(each for each in (facts.model, facts.target) if each)
    if not tail.rows:
        waits = "Nothing has ended yet."
        return Report(name, about, "live", "The run has just begun", [waits], [], [], {"rows": 0})
    objectives = parse_objectives(slo) if slo else objectives_of(tail.run) if facts.slo else Objectives(SLO(()))
    scope = judge_run(tail.run, objectives).everyone
    ended = np.where(scope.left_ns != MISSING, scope.left_ns, scope.due_ns) / 1e9
    until = now.seconds if now else float(ended.max())
    data = {"rows": tail.rows, "slo": str(objectives), "seconds": until, **_lately(scope, ended, until, now)}
    flights = [(look.seconds, look.in_flight) for look in tail.looks]
    judged = f" Of {tail.rows:,} attempts the latest {MOST_ROWS:,} are judged." if tail.rows > MOST_ROWS else ""
    section = Section(
        "live",
        "As it goes",
        "The last two minutes, second by second.",
        [_figure(scope, ended, until, flights)],
        "Counted when requests end, so that what is in flight is not yet in goodput; the score at the end "
        f"counts everything that was due. In flight is known since this page was opened.{judged}",
    )
    total = f" of {format_seconds(facts.window_ns[1] / 1e9)}" if facts.window_ns else ""
    return Report(
        name,
        about,
        "live",
        f"{format_seconds(until)}{total}, {tail.rows:,} attempts ended",
        [f"Held against {objectives}." if str(objectives) else "There is no SLO: whatever is answered counts."],
        list(_numbers(data, waits_of(scope)[0])),
        [section],
        data,
    )


def _lately(scope: Scope, ended: Floats, until: float, now: Now | None) -> dict[str, Any]:
    """What ended in the last seconds."""
    recent, seconds = ended > until - RECENT_S, min(RECENT_S, max(until, 1e-9))
    accepted, completed = scope.judgement.accepted[recent], recent & scope.deliveries.ok
    waits = waits_of(scope)[1][completed]
    return {
        "due": now.due if now else None,
        "in_flight": now.in_flight if now else None,
        "offered_rps": now.due / max(until, 1e-9) if now else None,
        "ended_rps": float(recent.sum()) / seconds,
        "goodput_rps": float(accepted.sum()) / seconds,
        "attainment": float(accepted.mean()) if recent.any() else None,
        "p50_s": _quantile(waits, 0.5),
        "p99_s": _quantile(waits, 0.99),
        "recent": int(recent.sum()),
    }


def _numbers(data: dict[str, Any], what: str) -> Iterator[tuple[str, Number, str]]:
    lately, few = f"over the last {RECENT_S:g} s", "" if data["recent"] >= ENOUGH else "*"
    yield "goodput", number(data, "goodput_rps", "rate"), lately
    yield "ended", number(data, "ended_rps", "rate"), lately
    yield "offered", number(data, "offered_rps", "rate"), "since it began"
    yield "in flight", number(data, "in_flight", "count"), "now"
    yield "attainment", number(data, "attainment", "share"), f"of {data['recent']:,} that ended lately"
    yield f"p50 {what}", number(data, "p50_s", "seconds"), lately
    yield f"p99 {what}", number(data, "p99_s", "seconds", mark=few), lately


def _quantile(waits: Floats, share: float) -> float | None:
    known = waits[~np.isnan(waits)]
    return float(np.quantile(known, share)) if len(known) else None


def _figure(scope: Scope, ended: Floats, until: float, flights: list[tuple[float, int]]) -> Figure:
    first = max(int(until) - SHOWN_S, 0)
    edges = np.arange(first, max(int(until) - 1, first + 1) + 1, dtype=float)  # what ended just now is not written yet
    slot = np.searchsorted(edges, ended, side="right") - 1
    what, waits, gate = waits_of(scope)
    ok = scope.deliveries.ok & ~np.isnan(waits)
    all_, good = (np.histogram(times, edges)[0].astype(float) for times in (ended, ended[scope.judgement.accepted]))
    each = [waits[ok & (slot == place)] for place in range(len(edges) - 1)]
    p50, p99 = (np.array([np.quantile(x, q) if len(x) else np.nan for x in each]) for q in (0.5, 0.99))
    shown = [(at, count) for at, count in flights if at >= first]
    panels = [
        Panel(
            Axis("requests per second", "rate", low=0.0),
            [
                Curve("ended", edges[:-1], all_, "orange", "steps"),
                Curve("accepted", edges[:-1], good, "green", "steps"),
            ],
            140,
        ),
        Panel(
            Axis(f"{what} of those that ended (logarithmic)", "seconds", "log"),
            [
                Curve("p50", edges[:-1], p50, "blue"),
                Curve("p99", edges[:-1], p99, "red", few=np.array([len(x) < ENOUGH for x in each], np.bool_)),
                *gate_rules(scope.run.slos, gate),
            ],
            140,
        ),
    ]
    if shown:
        at, count = (np.array(column, float) for column in zip(*shown, strict=True))
        panels.append(
            Panel(Axis("in flight", "count", low=0.0), [Curve("in flight", at, count, "purple", "steps")], 80)
        )
    axis = Axis("time since the run began", "seconds", low=float(first), high=float(max(until, first + 10)))
    return Figure("live", "Rates and tails", axis, panels, "Hollow: a p99 of fewer than 100 requests.")
