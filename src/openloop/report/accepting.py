"""Grades, costs and audits, for the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openloop.audit import Audit
from openloop.quality.grading import Grading
from openloop.report.terminal import Page, show_quality
from openloop.score import Blend, CostScore, Leak, Score, blended, blends, score
from openloop.slo import SLO
from openloop.units import format_count, format_money, format_seconds, format_share

__all__ = ["ClassCost", "CostReport", "cost_report", "show_audit", "show_cost", "show_grading"]


def show_grading(run: Path, found: Grading) -> None:
    page = Page(valid=True)
    page.line(f"{run}: {format_count(found.texts)} outputs, {format_count(found.graded)} judged now by {found.gate}")
    rows = [("passed", found.passed), ("failed", found.failed), ("left open", sum(found.open.values()))]
    page.table("", ("outputs",), ((name, format_count(count)) for name, count in rows))
    for title, counts in (("failed because", found.reasons), ("left open because", found.open)):
        page.table(title, ("outputs",), ((why[:150], format_count(count)) for why, count in counts.items()))
    if found.cost:
        page.line(f"judging cost {format_money(found.cost)}")
    if found.agreement is not None:
        page.line(f"the judge's replies agree with their majority in {format_share(found.agreement)}")
    show_quality(page, score(run, SLO(())).quality)


@dataclass(frozen=True)
class ClassCost:
    requests: int
    accepted: int
    total: float
    per_accepted: float


@dataclass(frozen=True)
class CostReport:
    run: str | None
    valid: bool
    reasons: tuple[str, ...]
    accepted: int
    cost: CostScore | None
    classes: dict[str, ClassCost]
    leaks: list[Leak]
    steady: float | None  # per accepted result, outside disruptions
    blends: list[Blend]


def cost_report(
    found: Score | None, steady: float | None, disrupted: float | None, disruption_s: float, every_s: Sequence[float]
) -> CostReport:
    """Of a run, or of two costs."""
    if found is None:
        assert steady is not None
        assert disrupted is not None
        given = [blended(steady, disrupted, disruption_s, every) for every in every_s]
        return CostReport(None, True, (), 0, None, {}, [], steady, given)
    classes = {
        name: ClassCost(each.requests, each.accepted, each.cost.total, each.cost.per_accepted)
        for name, each in found.by["class"].items()
        if each.cost and len(found.by["class"]) > 1
    }
    calm = found.steady.cost_per_accepted if found.steady else None
    return CostReport(
        found.run,
        found.valid,
        found.reasons,
        found.accepted,
        found.cost,
        classes,
        found.leaks,
        calm,
        blends(found, every_s),
    )


def show_cost(found: CostReport) -> None:
    page = Page(found.valid)
    for reason in found.reasons:
        page.line(f"INVALID: {reason}", style="bold red")
    if found.run is not None:
        _show_run_cost(page, found)
    if found.blends:
        page.line("")
        page.line(f"steady, an accepted result costs {format_money(found.steady or 0.0)}")
        page.table(
            "disturbed every",
            ("share of time", "cost per accepted", "more than steady"),
            (
                (
                    format_seconds(each.every_s),
                    format_share(each.disrupted_share),
                    f"{each.cost_per_accepted:.5g}",
                    f"{each.extra:+.2%}",
                )
                for each in found.blends
            ),
        )


def _show_run_cost(page: Page, found: CostReport) -> None:
    cost = found.cost
    if cost is None:
        page.line(f"{found.run}: nothing is known of what it cost; give --prices, a YAML file")
        return
    page.line(f"{found.run}: {format_count(found.accepted)} accepted results for {format_money(cost.total)}")
    parts = {
        "by the hour": cost.hourly,
        "by request and token": cost.serving,
        "judging": cost.judging,
        "human review": cost.human_review,
        "per request": cost.per_request,
        "per accepted result": cost.per_accepted,
        "per million output tokens": cost.per_million_output_tokens,
        "per million accepted output tokens": cost.per_million_accepted_output_tokens,
    }
    page.table("cost", ("",), ((name, format_money(value)) for name, value in parts.items()))
    page.table(
        "class",
        ("requests", "accepted", "cost", "per accepted"),
        (
            (
                name,
                format_count(each.requests),
                format_count(each.accepted),
                format_money(each.total),
                format_money(each.per_accepted),
            )
            for name, each in found.classes.items()
        ),
    )
    page.table(
        "spent on",
        ("cost", "share"),
        (
            (leak.name.replace("_", " "), format_money(leak.cost), format_share(leak.cost / cost.total))
            for leak in found.leaks
            if leak.cost is not None and cost.total
        ),
    )


def show_audit(found: Audit) -> None:
    page = Page(valid=True)
    count = f", {found.runs} runs" if found.kind == "sweep" else ""
    page.line(f"{found.subject}{count}: {len(found.missing)} of {len(found.facts)} facts are missing")
    for reason in found.reasons:
        page.line(f"INVALID: {reason}", style="bold red")
    page.table(
        "known",
        ("",),
        ((fact.name.replace("_", " "), fact.found[:100]) for fact in found.facts if fact.found is not None),
        words=True,
    )
    page.table(
        "missing",
        ("",),
        ((fact.name.replace("_", " "), fact.why) for fact in found.facts if fact.found is None),
        words=True,
    )
    page.table(
        "could these data support it?",
        ("", ""),
        (
            (
                each.claim,
                "yes" if each.supported else "no",
                f"lacks {', '.join(each.lacks).replace('_', ' ')}"
                if each.lacks
                else ""
                if each.supported
                else "the run is not valid",
            )
            for each in found.claims
        ),
        words=True,
    )
