"""A page that compares two runs or two frontiers, held against one SLO."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openloop.compare.change import METRICS
from openloop.compare.decide import Comparison, compare
from openloop.errors import RunError
from openloop.records import Run
from openloop.report.curve import FrontierSubject, point_curve
from openloop.report.figures import WAITS, tail_curve
from openloop.report.marks import Axis, Curve, Figure, Mark, Panel, Rule, Stretch, Unit, interval_lines, names_figure
from openloop.report.page import Cell, Columns, Number, Report, Section, Table, capital, columns, field_of, span
from openloop.report.run import RunSubject
from openloop.report.tables import LATENCIES

Subject = RunSubject | FrontierSubject

COLORS = ("blue", "orange")
RUN_NUMBERS = columns(
    "offered_rps throughput_rps goodput_rps attainment output_token_goodput smooth_goodput ttft_s.p50 ttft_s.p99 "
    "tpot_s.p50 tpot_s.p99 e2e_s.p50 e2e_s.p99 cost_per_accepted requests"
)
FRONTIER_NUMBERS: Columns = {
    "knee.rate": ("knee", "rate"),
    "peak.goodput_rps": ("peak goodput", "rate"),
    "peak.rate": ("at offered", "rate"),
    "half_rate": ("half is wasted from", "rate"),
    "took_s": ("measured", "seconds"),
}
INTERVALS = {  # of numbers that stand above all others
    "goodput_rps": "goodput_rps_interval",
    "attainment": "attainment_interval",
    "knee.rate": "knee.interval",
    "peak.goodput_rps": "",
}


@dataclass(frozen=True)
class Compared:
    """`names` tell them apart."""

    subjects: tuple[Subject, Subject]
    names: tuple[str, str]
    decision: Comparison
    data: dict[str, Any]


def comparison_report(subjects: Sequence[Subject], names: tuple[str, str], sources: "Sequence[Run | Path]") -> Report:
    """Two of a kind, decided by the objectives of the first."""
    (a, b), (first, second) = subjects, names
    if type(a) is not type(b):
        raise RunError(f"{first} and {second} are a run and a frontier: compare two of one kind")
    decision = compare(sources[0], sources[1], a.objectives)
    found = [each.score if isinstance(each, RunSubject) else each.frontier for each in (a, b)]
    data = {"a": found[0].to_dict(), "b": found[1].to_dict(), "comparison": decision.to_dict()}
    both = Compared((a, b), names, decision, data)
    sentences = [f"A, the baseline, is {first}; B, the candidate, is {second}. Both are held against {decision.slo}."]
    for which, name in zip("ab", names, strict=True):
        sentences += [f"{name} is not valid: {reason}." for reason in data[which].get("reasons", ())[:1]]
    if decision.warnings:
        sentences.append("What else differs between them could explain it, and is listed below.")
    return Report(
        title=f"{first} and {second}",
        subtitle="compared",
        verdict="good" if decision.valid else "invalid",
        headline=capital(decision.sentence),
        sentences=sentences,
        numbers=list(_headline_numbers(both)),
        sections=[section for make in COMPARISON_SECTIONS if (section := make(both))],
        data=data,
    )


def _columns(both: Compared) -> Columns:
    return RUN_NUMBERS if isinstance(both.subjects[0], RunSubject) else FRONTIER_NUMBERS


def _headline_numbers(both: Compared) -> Iterator[tuple[str, Number, str]]:
    for field, (words, unit) in _columns(both).items():
        for which, name in zip("ab", both.names, strict=True) if field in INTERVALS else ():
            interval = span(field_of(both.data[which], INTERVALS[field]), unit)
            yield f"{words} of {name}", _number(both, which, field, unit), interval


def _number(both: Compared, which: str, field: str, unit: Unit) -> Number:
    data = both.data[which]
    return Number(field_of(data, field), unit, f"{which}.{field}", sound=data.get("valid", True))


def decided(both: Compared) -> Section | None:
    """Each change with its interval; what crosses zero is not shown."""
    known = {name: each for name, each in both.decision.changes.items() if each.change is not None and each.interval}
    if not known:
        return None
    x = np.array([each.change for each in known.values()], float)
    intervals = [each.interval for each in known.values() if each.interval]
    unsure = np.array([each.winner is None for each in known.values()], np.bool_)
    keys = [f"comparison.changes.{name}.change" for name in known]
    dots = Curve("change, A to B", x, np.arange(len(known), dtype=float), "blue", "dots", few=unsure, keys=keys)
    names = [METRICS[name].words for name in known]
    rows = [
        (name, Number(each.change, "share", key, change=True), f"{low:+.1%} to {high:+.1%}", each.winner or "not shown")
        for name, key, each, (low, high) in zip(names, keys, known.values(), intervals, strict=True)
    ]
    figure = names_figure(
        "changes",
        "Change, A to B",
        Axis("change, as a share of A", "share"),
        names,
        [*interval_lines(intervals), dots, Rule(0.0, "", "x", "ink")],
        "Hollow: the interval holds no change at all, so no difference is shown.",
    )
    lead = "Right of the line B has more of it, left of it less: more goodput is better, more latency or cost is worse."
    table = Table(("", "change, A to B", "95% interval", "better"), rows)
    paired = "paired, request by request: both had the same schedule" if both.decision.paired else "not paired"
    return Section("changes", "Which one", lead, [figure, table], f"The two are {paired}. Intervals are of B / A - 1.")


def numbers(both: Compared) -> Section | None:
    rows: list[list[Cell]] = []
    goodput = both.decision.changes.get("goodput")
    unsaid = "peak." if goodput is None or goodput.change is None else "-"  # a lower bound says nothing of a change
    for field, (words, unit) in _columns(both).items():
        a, b = (_number(both, which, field, unit) for which in "ab")
        if a.value is not None or b.value is not None:
            change = f"{100 * (b.value / a.value - 1):+,.1f}%" if a.value and b.value is not None else "-"
            change = "-" if field.startswith(unsaid) else change
            rows.append([words, a, b, change])
    lead = "The same SLO and the same formulas on both sides."
    return Section("numbers", "Number by number", lead, [Table(("", *both.names, "change, A to B"), rows)])


def curves(both: Compared) -> Section | None:
    a, b = both.subjects
    if isinstance(a, RunSubject) and isinstance(b, RunSubject):
        panels = [panel for field in WAITS if (panel := _tail_panel(field, (a, b), both.names))]
        figure = Figure(
            "compare",
            "Latency by percentile",
            Axis("share of completed requests that waited no longer", "share", "tail", low=0.0),
            panels,
            f"{a.score.completed:,} and {b.score.completed:,} completed requests. Where there are many, points "
            "are drawn evenly along the axis, and all of the largest.",
        )
        lead = "Lower is better, and the right is what counts."
        return Section("curves", "How long users waited", lead, [figure]) if panels else None
    assert isinstance(a, FrontierSubject)
    assert isinstance(b, FrontierSubject)
    lead = "Higher is better, and so is further to the right."
    return Section("curves", "The frontiers", lead, [_frontier_figure((a, b), both.names)])


def _tail_panel(field: str, subjects: Sequence[RunSubject], names: Sequence[str]) -> Panel | None:
    lines = [
        tail_curve(subject.judged.whole, field, name, color)
        for subject, name, color in zip(subjects, names, COLORS, strict=True)
    ]
    marks = [line for line in lines if len(line.x)]
    return Panel(Axis(f"{LATENCIES[field]}, logarithmic", "seconds", "log"), marks, 170) if marks else None


def _frontier_figure(subjects: Sequence[FrontierSubject], names: Sequence[str]) -> Figure:
    rates: list[Mark] = []
    shares: list[Mark] = []
    for which, subject, name, color in zip("ab", subjects, names, COLORS, strict=True):
        points, knee = subject.frontier.points, subject.frontier.knee
        rates.append(point_curve(points, "goodput_rps", f"{name}: goodput", color, f"{which}."))
        rates.append(point_curve(points, "completed_in_window_rps", f"{name}: completed", color, None, style="dashed"))
        shares.append(point_curve(points, "attainment", f"{name}: attainment", color, f"{which}."))
        if knee.interval:
            rates.append(Stretch(*knee.interval, f"knee of {name}", color))
    shares.append(Rule(subjects[0].frontier.knee.target, "target", "y"))
    return Figure(
        "compare",
        "Goodput over offered load",
        Axis("offered load", "rate", low=0.0),
        [
            Panel(Axis("requests per second", "rate", low=0.0), rates, 260),
            Panel(Axis("attainment", "share", low=0.0, high=1.0), shares, 150),
        ],
        "Bands are 95% intervals. Lines join the points; nothing is smoothed.",
    )


def differences(both: Compared) -> Section | None:
    told = both.decision.warnings
    lead = "Whatever else is not the same may be the reason." if told else "The manifests tell of no difference."
    return Section("differences", "What differs", lead, [Table(("",), [(each,) for each in told])] if told else [])


COMPARISON_SECTIONS: tuple[Callable[[Compared], Section | None], ...] = (decided, numbers, curves, differences)


def names_of(paths: tuple[Path, Path]) -> tuple[str, str]:
    """As short as tells them apart."""
    a, b = (path.resolve() for path in paths)
    depth = next((n for n in range(1, 20) if a.parts[-n:] != b.parts[-n:]), 1)
    return "/".join(a.parts[-depth:]), "/".join(b.parts[-depth:])
