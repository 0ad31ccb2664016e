"""The page of a decision, for somebody who has one minute: what to do, what it saves, how sure, what is not known."""

import numpy as np

from openloop.decide import Decision, KnownOption
from openloop.plan.system import Estimate
from openloop.report.marks import Axis, Curve, Figure, interval_lines, names_figure
from openloop.report.page import Cell, Columns, Number, Part, Report, Section, Table, below, number, span
from openloop.report.plan import PLAN_SECTIONS

ROWS: Columns = {
    "cost_per_accepted": ("cost per accepted result", "money"),
    "monthly": ("cost per month", "money"),
    "replicas": ("replicas for the demand", "count"),
    "attainment": ("attainment", "share"),
    "goodput_each": ("goodput of each replica", "rate"),
    "throughput_each": ("throughput of each replica", "rate"),
    "tokens_per_s": ("tokens per second of each, raw", "rate"),
}


def decision_report(found: Decision) -> Report:
    weak = [f"{case.name} is not valid: {case.reasons[0]}." for case in found.cases if case.reasons]
    return Report(
        title=found.question,
        subtitle=found.decision,
        verdict="good" if found.valid else "invalid",
        headline=found.headline,
        sentences=[*found.sentences, *weak],
        numbers=_numbers(found),
        sections=[_options(found), _unknown(found), *_plan(found)],
        data=found.to_dict(),
        badge="Decision" if found.valid else "Not valid",
    )


def _numbers(found: Decision) -> list[tuple[str, Number, str]]:
    told = []
    if found.saves is not None:
        name = "saved a month" if found.saves.value >= 0 else "more a month"
        interval = found.saves.interval
        about = f"95% interval {span(interval, 'money')}" if interval else "by the middle of what is known"
        told.append((name, Number(abs(found.saves.value), "money"), about))
    if found.sure is not None:
        told.append(("sure", Number(min(found.sure, 0.999), "share"), "given what was measured"))
    if found.payback_months is not None:
        told.append(("months until it pays", Number(round(found.payback_months, 1), "number"), ""))
    for place, case in enumerate(found.cases):
        if cost := case.cost_per_accepted:
            value = number(cost, "value", "money", f"cases.{place}.cost_per_accepted.")
            told.append((f"per accepted, {case.name}", value, span(cost.interval, "money")))
    return told


def _options(found: Decision) -> Section:
    rows: list[list[Cell]] = []
    for field, (words, unit) in ROWS.items():
        cells: list[Cell] = []
        for place, case in enumerate(found.cases):
            value, key = getattr(case, field), f"cases.{place}.{field}"
            if isinstance(value, Estimate):
                cells += [number(value, "value", unit, f"{key}."), span(value.interval, unit)]
            else:
                cells += [Number(value, unit, "" if value is None else key), ""]
        if any(isinstance(cell, Number) and cell.value is not None for cell in cells):
            rows.append([words, *cells])
    header = ["", *(cell for case in found.cases for cell in (case.name, "95% interval"))]
    parts: list[Part] = [Table(header, rows)]
    if figure := _figure(found.cases):
        parts.insert(0, figure)
    lead = "Results that users accept, and what each of them costs; throughput stands last, for it decides nothing."
    note = "Costs hold everything that failed; attainment holds latency, success and quality. Throughput and "
    note += "tokens count what was finished within the window; score counts all that was due in it."
    return Section("options", "Why", lead, parts, note)


def _figure(cases: tuple[KnownOption, ...]) -> Figure | None:
    known = [case.cost_per_accepted for case in cases if case.cost_per_accepted]
    if len(cases) < 2 or len(known) < len(cases):
        return None
    spans = interval_lines([each.interval for each in known])
    places = np.arange(len(known), dtype=float)
    dots = Curve("cost per accepted", np.array([each.value for each in known]), places, "blue", "dots")
    return names_figure(
        "costs",
        "Cost per accepted result",
        Axis("cost", "money", low=0.0),
        [case.name for case in cases],
        [*spans, dots],
        "Left is cheaper. Where intervals overlap widely, no difference is shown.",
    )


def _unknown(found: Decision) -> Section:
    whose: dict[tuple[str, str], list[str]] = {}
    for gap in found.gaps:
        whose.setdefault((gap.fact, gap.why), []).append(gap.option)
    rows = [(fact, ", ".join(names), why) for (fact, why), names in whose.items()]
    lead = "Each of these could change the answer." if rows else "All that an answer needs was measured."
    parts = [Table(("fact", "of", "why it matters"), rows)] if rows else []
    return Section("unknown", "What was not measured", lead, parts)


def _plan(found: Decision) -> list[Section]:
    """Of the one system to size: how the number comes about."""
    plan = found.cases[0].plan if found.decision == "capacity" else None
    made = [] if plan is None else [make(plan) for make in PLAN_SECTIONS]
    return [below(section, "cases.0.plan") for section in made if section]
