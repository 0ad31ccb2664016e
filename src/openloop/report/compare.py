"""A comparison for people and for machines of builds: text, Markdown and JUnit."""

from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from openloop.compare import Change, Comparison
from openloop.compare.change import METRICS
from openloop.units import format_money, format_rate, format_seconds, format_share

__all__ = ["as_junit", "as_markdown", "comparison_lines", "rows"]


def rows(changes: Mapping[str, Change]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """By metric: its name, A, B, the change, its interval, and who is better."""
    for name, change in changes.items():
        told = change.interval is not None and change.change is not None
        yield (
            METRICS[name].words,
            _value(name, change.a),
            _value(name, change.b),
            _percent(change.change or 0.0) if told else "-",
            " to ".join(map(_percent, change.interval)) if change.interval else "-",
            change.winner or "",
        )


def _percent(share: float) -> str:
    return f"{100 * share:+,.0f}%" if abs(share) >= 1 else f"{100 * share:+.3g}%"


def _value(name: str, value: float) -> str:
    if name == "cost":
        return format_money(value)
    if name == "attainment":
        return format_share(value)
    return format_seconds(value) if "_p" in name else format_rate(value)


def comparison_lines(found: Comparison) -> Iterator[str]:
    """All but the table."""
    yield found.sentence
    if found.winner_by_throughput and found.winner and found.winner_by_throughput != found.winner:
        yield f"winner by throughput: {found.winner_by_throughput}; winner by goodput: {found.winner}"
    if found.knees:
        yield f"knee of A: {found.knees[0]}"
        yield f"knee of B: {found.knees[1]}"
    yield f"SLO {found.slo}; {'the same schedule, compared in pairs' if found.paired else 'schedules of their own'}"
    for gate in found.failed:
        yield f"FAILED: {gate}"
    for warning in found.warnings:
        yield f"warning: {warning}"


def as_markdown(found: Comparison) -> str:
    lines = [f"**{found.sentence}**", "", f"A: `{found.a}`, B: `{found.b}`", ""]
    lines += ["| metric | A | B | change | 95% interval | better |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows(found.changes)]
    return "\n".join([*lines, "", *(f"- {line}" for line in list(comparison_lines(found))[1:]), ""])


def as_junit(found: Comparison, gates: tuple[str, ...]) -> str:
    """A case per gate; without gates, one that always passes and carries the verdict."""
    suite = ElementTree.Element(
        "testsuite", name="openloop compare", tests=str(max(len(gates), 1)), failures=str(len(found.failed))
    )
    for gate in gates or ("comparison",):
        case = ElementTree.SubElement(suite, "testcase", classname="openloop.compare", name=gate)
        if gate in found.failed:
            ElementTree.SubElement(case, "failure", message=f"{gate}: {found.sentence}")
        ElementTree.SubElement(case, "system-out").text = "\n".join(comparison_lines(found))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
