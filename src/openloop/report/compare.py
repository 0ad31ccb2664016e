"""Comparisons and tournaments for people, and for machines of builds: text, Markdown and JUnit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from openloop.compare import Change, Comparison, read_regression_gate
from openloop.compare.change import METRICS
from openloop.compare.tournament import Standing
from openloop.report.marks import Unit
from openloop.report.page import Columns, show, span, texts
from openloop.report.terminal import Page
from openloop.units import format_rate

UNITS: dict[str, Unit] = {"cost": "money", "attainment": "share"}
HEADER = ("A", "B", "change", "95% interval", "better")
STANDING: Columns = {
    "goodput_rps.mean": ("goodput", "rate"),
    "attainment.mean": ("accepted", "share"),
    "cost_per_accepted.mean": ("per accepted", "money"),
    "hit_rate.mean": ("cached", "share"),
    "ttft_mean_s.mean": ("TTFT mean", "seconds"),
    "ttft_p99_s.mean": ("TTFT p99", "seconds"),
    "shed.mean": ("shed", "share"),
}


def show_comparison(found: Comparison) -> None:
    page = Page(found.valid)
    for line in _lines(found):
        page.line(line)
    page.table("", HEADER, _rows(found.changes))
    for rate, changes in found.by_rate.items():
        page.table(f"offered {rate:g}/s", HEADER, _rows(changes))


def _rows(changes: Mapping[str, Change]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """By metric: its name, A, B, the change, its interval, and who is better."""
    for name, change in changes.items():
        told = change.interval is not None and change.change is not None
        unit: Unit = UNITS.get(name, "seconds" if "_p" in name else "rate")
        yield (
            METRICS[name].words,
            show(change.a, unit),
            show(change.b, unit),
            _percent(change.change or 0.0) if told else "-",
            " to ".join(map(_percent, change.interval)) if change.interval else "-",
            change.winner or "",
        )


def _percent(share: float) -> str:
    return f"{100 * share:+,.0f}%" if abs(share) >= 1 else f"{100 * share:+.3g}%"


def _lines(found: Comparison) -> Iterator[str]:
    """All but the table."""
    yield found.sentence if found.valid else f"NOT VALID: {found.sentence}"
    if found.winner_by_throughput and found.winner and found.winner_by_throughput != found.winner:
        yield f"winner by throughput: {found.winner_by_throughput}; winner by goodput: {found.winner}"
    if found.knees:
        yield f"knee of A: {found.knees[0]}"
        yield f"knee of B: {found.knees[1]}"
    yield f"SLO {found.slo}; {'the same schedule, paired' if found.paired else 'schedules of their own'}"
    for gate in found.failed:
        yield f"FAILED: {gate}: {_bound(found, gate)}"
    for gate, why in found.unjudged.items():
        yield f"NOT JUDGED: {gate}: {why}"
    for warning in found.warnings:
        yield f"warning: {warning}"


def _bound(found: Comparison, text: str) -> str:
    """What a gate went by, which is not an end of the interval that is shown: that has two sides."""
    gate = read_regression_gate(text)
    change = found.changes[gate.metric]
    bound = change.at_most if gate.below else change.at_least
    if bound is None:
        return "one of them accepts nothing"
    return f"the change is at {'most' if gate.below else 'least'} {_percent(bound)} (95%, one-sided)"


def as_markdown(found: Comparison) -> str:
    headline, *others = _lines(found)
    lines = [f"**{headline}**", "", f"A: `{found.a}`, B: `{found.b}`", ""]
    lines += [f"| metric | {' | '.join(HEADER)} |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(found.changes)]
    return "\n".join([*lines, "", *(f"- {line}" for line in others), ""])


def as_junit(found: Comparison, gates: tuple[str, ...]) -> str:
    """A case per gate; without gates, or if it is not valid, one that carries the verdict."""
    failed = found.failed if found.valid else ("comparison", *found.failed)
    cases = gates if gates and found.valid else ("comparison", *gates)
    counts = {"tests": cases, "failures": failed, "errors": found.unjudged}
    told = {name: str(len(each)) for name, each in counts.items()}
    suite = ElementTree.Element("testsuite", {"name": "openloop compare", **told})
    for gate in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="openloop.compare", name=gate)
        if gate in failed:
            ElementTree.SubElement(case, "failure", message=f"{gate}: {next(_lines(found))}")
        elif gate in found.unjudged:
            ElementTree.SubElement(case, "error", message=f"{gate} cannot be judged, for {found.unjudged[gate]}")
        ElementTree.SubElement(case, "system-out").text = "\n".join(_lines(found))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def show_standings(found: Sequence[Standing], seeds: int, slo: str) -> None:
    page = Page(valid=True)
    page.line(f"{len(found)} routing policies on the same requests, {seeds} seeds each")
    page.line(f"SLO: {slo}")
    header = [*(words for words, _ in STANDING.values()), "goodput, 95% interval", "behind the first"]
    page.table("by goodput", header, map(_standing, found))
    tied = [each.policy for each in found[1:] if each.tied]
    told = f"; {', '.join(tied)} may be as good: the difference may be chance" if tied else ", beyond chance"
    if math.isnan(found[0].goodput_rps.low):
        told = "; all seeds asked the same, so there are no intervals, and nothing tells whether that is chance"
    page.line("")
    page.line(f"{found[0].policy} gets the most accepted{told}")
    by_cost = sorted((each for each in found if each.rank_by_cost), key=lambda each: each.rank_by_cost or 0)
    if by_cost:
        page.line(f"by cost per accepted: {', '.join(each.policy for each in by_cost)}")


def _standing(each: Standing) -> tuple[str, ...]:
    low, high = max(each.goodput_rps.low, 0.0), each.goodput_rps.high
    behind = "" if each.rank == 1 else f"{format_rate(0.0 - each.behind_rps.mean)}{' (tied)' if each.tied else ''}"
    interval = "-" if math.isnan(each.goodput_rps.low) else span((low, high), "rate")
    return f"{each.rank}. {each.policy}", *texts(each, STANDING), interval, behind
