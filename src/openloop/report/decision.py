"""The page of a decision, for somebody who has one minute: what to do, what it saves, how sure, what is not known."""

from dataclasses import replace

import numpy as np

from openloop.decide import Case, Decision
from openloop.plan.make import Estimate
from openloop.report.page import Axis, Curve, Figure, Number, Panel, Part, Report, Section, Table, Unit, show
from openloop.report.plan import PLAN_SECTIONS

__all__ = ["decision_report"]

ROWS: dict[str, tuple[str, Unit]] = {
    "cost_per_accepted": ("cost per accepted result", "money"),
    "monthly": ("cost per month", "money"),
    "replicas": ("replicas for the demand", "count"),
    "accepted": ("requests accepted", "share"),
    "goodput_each": ("accepted per second, each replica", "rate"),
    "throughput_each": ("answered per second, each replica", "rate"),
    "tokens_per_s": ("tokens per second, raw", "rate"),
}


def decision_report(found: Decision) -> Report:
    sections = [_beside(found), _unknown(found), *_plan(found)]
    return Report(
        title=found.question,
        subtitle=found.decision,
        verdict="good" if found.valid else "invalid",
        headline=found.headline,
        sentences=[*found.sentences, *_weak(found)],
        numbers=_numbers(found),
        sections=sections,
        data=found.to_dict(),
        badge="Decision" if found.valid else "Not valid",
    )


def _weak(found: Decision) -> list[str]:
    return [f"{case.name} is not valid: {case.reasons[0]}." for case in found.cases if case.reasons]


def _numbers(found: Decision) -> list[tuple[str, Number, str]]:
    told = []
    if found.saves is not None:
        name = "saved a month" if found.saves.value >= 0 else "more a month"
        about = _span(found.saves, "money") or "by the middle of what is known"
        told.append((name, Number(abs(found.saves.value), "money"), about))
    if found.sure is not None:
        told.append(("sure", Number(min(found.sure, 0.999), "share"), "given what was measured"))
    if found.payback_months is not None:
        told.append(("months until it pays", Number(round(found.payback_months, 1), "number"), ""))
    for place, case in enumerate(found.cases):
        if case.cost_per_accepted:
            key = f"cases.{place}.cost_per_accepted.value"
            cost = case.cost_per_accepted
            told.append((f"per accepted, {case.name}", Number(cost.value, "money", key), _span(cost, "money")))
    return told


def _span(found: Estimate, unit: Unit) -> str:
    return "" if found.interval is None else " to ".join(show(end, unit) for end in found.interval)


def _beside(found: Decision) -> Section:
    rows: list[list[str | Number]] = []
    for field, (words, unit) in ROWS.items():
        cells: list[str | Number] = []
        for place, case in enumerate(found.cases):
            value = getattr(case, field)
            exact = value.value if isinstance(value, Estimate) else value
            key = f"cases.{place}.{field}" + (".value" if isinstance(value, Estimate) else "")
            cells += [
                Number(exact, unit, key if exact is not None else ""),
                _span(value, unit) if isinstance(value, Estimate) else "",
            ]
        if any(isinstance(cell, Number) and cell.value is not None for cell in cells):
            rows.append([words, *cells])
    header = ["", *(cell for case in found.cases for cell in (case.name, "95% interval"))]
    parts: list[Part] = [Table(header, rows)]
    if figure := _figure(found.cases):
        parts.insert(0, figure)
    lead = "Results that users accept, and what each of them costs; throughput stands last, for it decides nothing."
    note = "Costs hold everything that failed; the share accepted holds latency, success and quality."
    return Section("options", "Why", lead, parts, note)


def _figure(cases: tuple[Case, ...]) -> Figure | None:
    costs = [case.cost_per_accepted for case in cases]
    if len(cases) < 2 or None in costs:
        return None
    known = [each for each in costs if each is not None]
    places = np.arange(len(known), dtype=float)
    spans = [
        Curve("95% interval", np.array(each.interval), np.full(2, place), "grey")
        for each, place in zip(known, places, strict=True)
        if each.interval
    ]
    dots = Curve("cost per accepted", np.array([each.value for each in known]), places, "blue", "dots")
    names = [case.name for case in cases]
    return Figure(
        "costs",
        "Cost per accepted result",
        Axis("cost", "money", low=0.0),
        [Panel(Axis("", "count", "names", names=names), [*spans, dots])],
        "Left is cheaper. Where intervals overlap widely, no difference is shown.",
    )


def _unknown(found: Decision) -> Section:
    whose: dict[tuple[str, str], list[str]] = {}
    for gap in found.gaps:
        whose.setdefault((gap.fact, gap.why), []).append(gap.option)
    rows = [(fact, ", ".join(names), why) for (fact, why), names in whose.items()]
    lead = "Each of these could change the answer." if rows else "All that an answer needs was measured."
    return Section(
        "unknown", "What was not measured", lead, [Table(("fact", "of", "why it matters"), rows)] if rows else []
    )


def _plan(found: Decision) -> list[Section]:
    """Of the one system to size: how the number comes about."""
    plan = found.cases[0].plan if found.decision == "capacity" else None
    return [] if plan is None else [_inside(section) for make in PLAN_SECTIONS if (section := make(plan))]


def _inside(section: Section) -> Section:
    """Keys of its numbers, as they are in the decision."""
    parts = [
        replace(part, rows=[[_moved(cell) for cell in row] for row in part.rows]) if isinstance(part, Table) else part
        for part in section.parts
    ]
    return replace(section, parts=parts)


def _moved(cell: str | Number) -> str | Number:
    return replace(cell, key=f"cases.0.plan.{cell.key}") if isinstance(cell, Number) and cell.key else cell
