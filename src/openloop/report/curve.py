"""The report of a frontier: the curve, its knee, the tails and the price, and one point of it in detail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from openloop.arrays import Floats
from openloop.audit import audit_sweep
from openloop.errors import SpecError
from openloop.frontier import Frontier, Point, open_frontier
from openloop.frontier.folder import read_asked
from openloop.frontier.point import from_second
from openloop.records import Manifest, Run, locate, open_run
from openloop.report.figures import WAITS, gate_rules
from openloop.report.marks import Axis, Curve, Figure, Mark, Panel, Rule, Stretch
from openloop.report.page import (
    LEAST,
    Number,
    Part,
    Report,
    Section,
    Table,
    below,
    capital,
    columns,
    number,
    span,
    written,
)
from openloop.report.run import RUN_SECTIONS, RunSubject, how, missing, read_run_subject
from openloop.report.tables import LATENCIES, field_table
from openloop.score.judged import JudgedRun
from openloop.slo import Objectives, read_slo
from openloop.units import format_money, format_rate, format_seconds, format_share

ENOUGH = 100  # requests of a point, as of a run
HOLLOW = f"Hollow points rest on fewer than {ENOUGH} requests, or on a client that was at fault."
TOO_FAR = 2.0  # times the highest rate
STEPS = {"p50": "grey", "p95": "blue", "p99": "red"}
COLUMNS = columns("rate requests completed_in_window_rps goodput_rps attainment ttft_s.p99 tpot_s.p99 e2e_s.p99")
FURTHER = columns("output_tokens_per_s error_rate retry_rate quality_rate cache_hit_rate utilisation cost_per_accepted")
OF_ALL = ("evidence", "reproduce")  # sections of a run that the frontier has one of itself


@dataclass(frozen=True)
class FrontierSubject:
    frontier: Frontier
    objectives: Objectives
    detail: RunSubject | None  # one run of one point
    point: Point | None  # which it is
    asked: tuple[str, ...] = ()  # the command that makes this report, where one is known


def read_frontier_subject(
    path: str | Path,
    slo: "str | Path | Objectives | None" = None,
    point: float | None = None,
    request: int | None = None,
) -> FrontierSubject:
    """`point` is the rate of the one to be shown in detail: by default the last before the knee, or the peak."""
    objectives = read_slo(read_asked(locate(path)).slo if slo is None else slo)
    return frontier_subject(open_frontier(path, objectives), objectives, point, request)


def frontier_subject(
    frontier: Frontier,
    objectives: Objectives,
    point: float | None = None,
    request: int | None = None,
    kept: Mapping[str, tuple[Run, JudgedRun]] = MappingProxyType({}),
) -> FrontierSubject:
    """`kept`: its runs after their warm-up, by their paths, and as they were judged, if they were lately."""
    chosen = _choose(frontier, point)
    if chosen is None or not chosen.scores[0].run:
        return FrontierSubject(frontier, objectives, None, chosen)
    path = chosen.scores[0].run
    run, judged = kept.get(path) or (from_second(open_run(path), chosen.warm_up_s[0]), None)
    detail = read_run_subject(run, objectives, request, before=judged)
    return FrontierSubject(frontier, objectives, detail, chosen)


def _choose(frontier: Frontier, rate: float | None) -> Point | None:
    if rate is not None:
        found = [point for point in frontier.points if np.isclose(point.rate, rate)]
        if not found:
            rates = ", ".join(f"{point.rate:g}" for point in frontier.points)
            raise SpecError(f"the frontier has no point at {rate:g}/s; it has {rates}")
        return found[0]
    before = [point for point in frontier.points if point.requests and point.rate <= (frontier.knee.rate or 0.0)]
    return max(before, key=lambda point: point.rate, default=frontier.peak)


def frontier_report(subject: FrontierSubject) -> Report:
    frontier, detail = subject.frontier, subject.detail
    headline, sentences = frontier_headline(frontier)
    facts = detail.run.manifest if detail else None
    told = [facts.model, facts.target or facts.engine] if facts else []
    sections = [section for make in FRONTIER_SECTIONS if (section := make(subject))]
    return Report(
        title=Path(frontier.path).resolve().name if frontier.path else "frontier",
        subtitle=" · ".join(["frontier", f"{len(frontier.points)} points", *(fact for fact in told if fact)]),
        verdict="good" if any(point.usable for point in frontier.points) else "invalid",
        headline=headline,
        sentences=sentences,
        numbers=list(_numbers(frontier)),
        sections=[*sections, *_detail(subject)],
        data=frontier_data(subject),
    )


def frontier_data(subject: FrontierSubject) -> dict[str, Any]:
    return subject.frontier.to_dict() | ({"detail": subject.detail.score.to_dict()} if subject.detail else {})


def frontier_headline(frontier: Frontier) -> tuple[str, list[str]]:
    knee, aim = frontier.knee, format_share(frontier.knee.target)
    if knee.rate is not None and knee.interval is not None:
        low, high = map(format_rate, knee.interval)
        headline = f"The system keeps its promise up to {format_rate(knee.rate)}"
        sentences = [
            f"The knee lies between {low} and {high} (95% interval): beyond it fewer than {aim} of requests "
            f"meet {frontier.slo}."
        ]
    else:
        headline, sentences = f"No knee is shown: {knee.sentence}", [f"Held against {frontier.slo}."]
    peak = frontier.peak
    if peak and not peak.goodput_rps:
        sentences.append("Nothing was accepted at any rate.")
    elif peak:
        accepted = f"{format_rate(peak.goodput_rps)} ({span(peak.goodput_rps_interval, 'rate')})"
        sentences.append(f"Goodput is highest at {format_rate(peak.rate)}: {accepted} are accepted there.")
    if frontier.half_rate is not None:
        sentences.append(f"From {format_rate(frontier.half_rate)} on, less than half of what is answered is accepted.")
    sentences += _headroom(frontier)
    if cheap := frontier.cheapest:
        cost = format_money(cheap.cost_per_accepted or 0.0)
        sentences.append(f"An accepted result is cheapest at {format_rate(cheap.rate)}: {cost}.")
    return headline, [*sentences, *(f"{capital(note)}." for note in frontier.notes)]


def _headroom(frontier: Frontier) -> Iterator[str]:
    today, room, interval = frontier.current, frontier.headroom, frontier.headroom_interval
    above = frontier.knee.above
    if today is None:
        return
    now = f"today's {format_rate(today)}"
    if room is not None and interval is not None and room >= 0:
        yield f"At {now} there is room for {format_share(room)} more ({' to '.join(map(format_share, interval))})."
    elif room is not None:
        yield f"Of {now}, {format_share(-room)} are too much."
    elif above is not None and above >= today:
        yield f"At {now} there is room for {format_share(above / today - 1)} more, or beyond that."
    elif above is not None:
        yield f"Whether there is room at {now} is not known: the sweep shows no more than {format_rate(above)}."


def _numbers(frontier: Frontier) -> Iterator[tuple[str, Number, str]]:
    knee, peak = frontier.knee, frontier.peak
    if knee.interval:
        yield "knee", number(frontier, "knee.rate", "rate"), span(knee.interval, "rate")
    if peak:
        offered = f"at {format_rate(peak.rate)} offered"
        yield "peak goodput", number(frontier, "peak.goodput_rps", "rate"), offered
    if frontier.half_rate is not None:
        yield "half is wasted from", number(frontier, "half_rate", "rate"), "goodput under half of throughput"
    if frontier.headroom is not None:
        yield "headroom", number(frontier, "headroom", "share"), f"at {format_rate(frontier.current or 0)}"
    if frontier.cheapest:
        cost = number(frontier, "cheapest.cost_per_accepted", "money")
        yield "cheapest accepted", cost, f"at {format_rate(frontier.cheapest.rate)}"


def point_curve(points: Sequence[Point], field: str, name: str, color: str, key: str | None = "", **how: Any) -> Curve:
    """A field of each point over its rate, with its interval where it has one; None: without keys."""
    edges = [getattr(point, f"{field}_interval", (np.nan, np.nan)) for point in points]
    low, high = np.array(edges, float).reshape(-1, 2).T
    if not np.isnan(low).all():
        how |= {"low": low, "high": high}
    keys = [] if key is None else [f"{key}points.{i}.{field}" for i in range(len(points))]
    return Curve(name, _column(points, "rate"), _column(points, field), color, keys=keys, **how)


def _column(points: Sequence[Point], name: str) -> Floats:
    return np.array([np.nan if (value := getattr(point, name)) is None else value for point in points], float)


def _load_axis(frontier: Frontier) -> Axis:
    most = max((point.rate for point in frontier.points), default=1.0)
    return Axis("offered load", "rate", low=0.0, high=max(most, _today(frontier) or 0.0) * 1.02)


def _today(frontier: Frontier) -> float | None:
    """Unless it is so far away that points would be lost beside it."""
    most = TOO_FAR * max((point.rate for point in frontier.points), default=0.0)
    return frontier.current if frontier.current is not None and frontier.current <= most else None


def _weak(points: Sequence[Point]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([point.requests < ENOUGH or not point.usable for point in points], np.bool_)


def _knee_marks(frontier: Frontier, *, named: bool = True) -> list[Mark]:
    """The knee and today's rate; named in the first panel of a figure."""
    knee, marks = frontier.knee, list[Mark]()
    if knee.rate is not None and knee.interval is not None:
        marks.append(Stretch(*knee.interval, f"knee {format_rate(knee.rate)}" if named else "", "purple"))
    if (today := _today(frontier)) is not None:
        marks.append(Rule(today, "today" if named else "", "x"))
    return marks


def _frontier_figure(frontier: Frontier) -> Figure:
    points, weak = frontier.points, _weak(frontier.points)
    rates = [
        *_knee_marks(frontier),
        point_curve(points, "completed_in_window_rps", "completed in the window", "orange", few=weak),
        point_curve(points, "goodput_rps", "goodput, 95% interval", "green", few=weak),
    ]
    shares = [
        *_knee_marks(frontier, named=False),
        point_curve(points, "attainment", "attainment, 95% interval", "blue", few=weak),
        Rule(frontier.knee.target, f"target {format_share(frontier.knee.target)}", "y"),
    ]
    few, many = (min(p.requests for p in points), max(p.requests for p in points)) if points else (0, 0)
    return Figure(
        "frontier",
        "Completed and accepted over offered load",
        _load_axis(frontier),
        [
            Panel(Axis("requests per second", "rate", low=0.0), rates, 260),
            Panel(Axis("attainment", "share", low=0.0, high=1.0), shares, 150),
        ],
        f"{len(points)} points of {few:,} to {many:,} requests. {HOLLOW} Lines join them; nothing is smoothed.",
    )


def curve(subject: FrontierSubject) -> Section | None:
    frontier = subject.frontier
    if not frontier.points:
        return Section("frontier", "The frontier", "No point has been measured to its end yet.", [])
    points = [(point.name or "-", point, f"points.{i}") for i, point in enumerate(frontier.points)]
    table = field_table("point", points, COLUMNS)
    rows = [
        [*row, "backlog grows" if point.overloaded else "steady" if point.steady else "not steady"]
        for row, point in zip(table.rows, frontier.points, strict=True)
    ]
    more = [(format_rate(point.rate), point, key) for _, point, key in points]
    return Section(
        "frontier",
        "The frontier",
        "What was completed in the window counts all answers, goodput those that were accepted. Up to the knee they "
        "are the same; beyond it the system keeps busy and users go without.",
        [
            _frontier_figure(frontier),
            Table((*table.header, "state"), rows, table.note),
            field_table("offered", more, FURTHER),
        ],
        "The knee is the largest offered rate at which attainment meets its target; its band is the 95% interval that "
        "the points allow, each with the uncertainty that batch means show (docs/frontier.md). In a short run, "
        "whose last answers come after its end, what was completed in the window may lie below goodput.",
    )


def tails(subject: FrontierSubject) -> Section | None:
    points = subject.frontier.points
    panels: list[Panel] = []
    for field, (_, _, kind) in WAITS.items():
        known = [(i, point.rate, found) for i, point in enumerate(points) if (found := getattr(point, field))]
        if not known:
            continue
        places, rates, found = zip(*known, strict=True)
        marks = _knee_marks(subject.frontier, named=not panels)
        for step, color in STEPS.items():
            low, high = np.array([each.intervals[step] for each in found]).T if step == "p99" else (None, None)
            few = np.array([each.n < LEAST[step] for each in found], np.bool_)
            y, keys = np.array([getattr(each, step) for each in found]), [f"points.{i}.{field}.{step}" for i in places]
            marks.append(Curve(step, np.array(rates), y, color, "line", low, high, few, keys))
        marks += gate_rules(subject.objectives.slos, kind)
        panels.append(Panel(Axis(f"{LATENCIES[field]}, logarithmic", "seconds", "log"), marks, 150))
    if not panels:
        return None
    figure = Figure(
        "tails",
        "Tails over offered load",
        _load_axis(subject.frontier),
        panels,
        "Over completed requests. Shaded: 95% interval of p99, left out where nothing bounds it from above. Hollow: "
        "fewer requests than it takes to have one beyond the percentile.",
    )
    lead = "The slowest requests are the first to tell that the system is full: p99 leaves before the median moves."
    return Section("tails", "Tails against load", lead, [figure])


def cost(subject: FrontierSubject) -> Section | None:
    points = subject.frontier.points
    if not any(point.cost_per_accepted is not None for point in points):
        return None
    each = np.array([np.nan if p.cost is None or not p.requests else p.cost / p.requests for p in points])
    marks = [
        *_knee_marks(subject.frontier),
        point_curve(points, "cost_per_accepted", "per accepted result", "red", few=_weak(points)),
        Curve("per request", _column(points, "rate"), each, "grey", "dashed"),
    ]
    figure = Figure(
        "cost",
        "Cost over offered load",
        _load_axis(subject.frontier),
        [Panel(Axis("cost, in the manifest's currency (logarithmic)", "money", "log"), marks)],
        f"{HOLLOW} A point without any accepted result has no price and is not drawn.",
    )
    lead = "An idle system is dear because few share it; an overloaded one because few of its answers count."
    return Section("cost", "What an accepted result costs", lead, [figure])


def evidence(subject: FrontierSubject) -> Section | None:
    found = subject.frontier
    rows = [
        (format_rate(point.rate), "; ".join(point.reasons) or "-", point.cut_short or "-")
        for point in found.points
        if point.reasons or point.cut_short
    ]
    parts: list[Part] = [Table(("point", "not valid as a steady state, for", "ended early by"), rows)] if rows else []
    runs = sum(point.repeats for point in found.points)
    spent = f", {format_money(found.spent)} spent" if found.spent else ""
    ended = f"The sweep ended: {found.stopped}." if found.stopped else "The sweep has not said that it ended."
    steady = (
        "A point beyond capacity cannot be steady; the others should be." if rows else "Every point is a valid run."
    )
    lead = f"{runs:,} runs, {format_seconds(found.took_s)} of load in all{spent}. {ended} {steady}"
    return Section("evidence", "Can it be believed?", lead, parts)


def audited(subject: FrontierSubject) -> Section | None:
    if subject.detail is None:
        return None
    found = audit_sweep(subject.frontier, [(subject.detail.run, subject.detail.score)])
    told = missing(found, "the sweep and its point below")
    return replace(told, key="audit", footnote="openloop audit goes by all runs up to the knee.")


def again(subject: FrontierSubject) -> Section | None:
    path = subject.frontier.path
    if path is None:
        return None
    asked = read_asked(locate(path))
    facts = subject.detail.run.manifest if subject.detail else Manifest(source=asked.source)
    told = msgspec.to_builtins(asked)
    rows = [(name, written(value)) for name, value in told.items() if value and name not in ("seed", "version")]
    lead = "What was asked for, as it stands in frontier.json; the same seed gives the same schedules and requests."
    parts = [how(facts, asked.seed, subject.asked), Table(("key", "value"), rows)]
    return Section("reproduce", "Do it again", lead, parts, folded=True)


FRONTIER_SECTIONS: tuple[Callable[[FrontierSubject], Section | None], ...] = (
    *(curve, tails, cost, evidence, audited, again),
)


def _detail(subject: FrontierSubject) -> Iterator[Section]:
    """The sections of one run, with the keys of their numbers below `detail`."""
    if subject.detail is None or subject.point is None:
        return
    name = ", ".join(filter(None, (subject.point.name, format_rate(subject.point.rate))))
    lead = (
        "The last point before the knee or, where none is shown, that of the highest goodput; "
        "openloop report FRONTIER --point RATE shows another."
    )
    yield Section("point", f"One point in detail: {name}", lead, [])
    for make in RUN_SECTIONS:
        if make.__name__ not in OF_ALL and (section := make(subject.detail)):
            yield replace(below(section, "detail"), key=f"point-{section.key}")
