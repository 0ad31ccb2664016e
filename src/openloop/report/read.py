"""A report of whatever is in a folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from openloop.compare.states import FigureGap, StateGap, gaps
from openloop.errors import RunError
from openloop.frontier.folder import FRONTIER_FILE
from openloop.frontier.measure import STATES_FILE, states_in
from openloop.importers import open_any, tool_of
from openloop.plan import read_plan
from openloop.report.compare_page import Subject, comparison_report, names_of
from openloop.report.curve import frontier_report, read_frontier_subject
from openloop.report.page import Cell, Columns, Report, Section, Table, capital, number
from openloop.report.plan import plan_report
from openloop.report.run import RunSubject, command_of, read_run_subject, run_report
from openloop.score.streams import Progress
from openloop.slo import Objectives


def read_report(
    path: Path,
    slo: str | None = None,
    *,
    request: int | None = None,
    point: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Of a run, a frontier, sweeps of several states, or a plan; `slo` is used instead of the one that stands there."""
    if (path / STATES_FILE).exists():
        if request is not None or point is not None:
            raise RunError(f"{path} holds sweeps of several states: give the folder of one for --request and --point")
        return _states_report(path, slo)
    if path.suffix == ".json" and path.is_file() and path.name != "run.json" and tool_of(path) is None:
        if slo is not None or request is not None or point is not None:
            raise RunError(f"{path} is a plan, and has no requests: leave out --slo, --request and --point")
        return plan_report(read_plan(path))
    found = _read(path, slo, request, point, progress)
    return run_report(found) if isinstance(found, RunSubject) else frontier_report(found)


def _states_report(path: Path, slo: str | None) -> Report:
    """The two states furthest apart compared, and all of them in a table."""
    states = states_in(path)
    if len(states) < 2:
        raise RunError(f"{path} has sweeps of {len(states)} states so far: repeat the command that made it to go on")
    found = gaps(states, slo)
    widest = min(found, key=lambda gap: gap.knee.change if gap.knee.change is not None else gap.goodput.change or 0.0)
    report = read_comparison(states[widest.a], states[widest.b], slo)
    return replace(
        report,
        title=path.resolve().name,
        subtitle=f"{len(states)} states of the caches",
        headline=capital(widest.comparison.sentence),
        sentences=[f"A is {widest.a}, B is {widest.b}.", *report.sentences[1:]],
        sections=[_states_section(found), *report.sections],
        data=report.data | {"gaps": [gap.to_dict() for gap in found]},
    )


def _states_section(found: Sequence[StateGap]) -> Section:
    figures: Columns = {
        "knee": ("knee", "rate"),
        "goodput": ("highest goodput", "rate"),
        "cost_per_accepted": ("cost per accepted", "money"),
    }
    rows: list[list[Cell]] = []
    for name, (words, unit) in figures.items():
        each_gap: list[FigureGap] = [getattr(each, name) for each in found]
        if each_gap[0].a is None and all(gap.b is None for gap in each_gap):
            continue
        rows.append([words, number(each_gap[0], "a", unit, f"gaps.0.{name}.")])
        for place, gap in enumerate(each_gap):
            change = "-" if gap.change is None else f"{gap.change:+.1%}"
            rows[-1] += [number(gap, "b", unit, f"gaps.{place}.{name}."), change]
    header = ["", found[0].a, *(part for gap in found for part in (gap.b, "gap"))]
    lead = "The same system and the same requests, with its caches in one state and in another."
    footnote = "Gaps are against the first. The cost is the lowest over points that are not overloaded."
    return Section("states", "Between the states", lead, [Table(header, rows)], footnote)


def read_comparison(a: Path, b: Path, slo: str | None = None) -> Report:
    """Two runs or two frontiers, both held against the SLO that is given, or else against that of the first."""
    first = _read(a, slo)
    second = _read(b, slo or first.objectives)
    return comparison_report((first, second), names_of((a, b)), (a, b))


def _read(
    path: Path,
    slo: str | Objectives | None,
    request: int | None = None,
    point: float | None = None,
    progress: Progress | None = None,
) -> Subject:
    asked = command_of(path, slo, request, point)
    if (path / FRONTIER_FILE).exists():
        return replace(read_frontier_subject(path, slo, point, request), asked=asked)
    if point is not None:
        raise RunError(f"{path} is no frontier, so it has no point at {point:g}/s")
    return replace(read_run_subject(open_any(path), slo, request, progress), asked=asked)
