"""Grades, costs and audits, for the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openloop.audit import Audit
from openloop.quality.grading import Grading
from openloop.report import tables
from openloop.report.page import Columns, columns
from openloop.report.terminal import Page, show_quality
from openloop.score import CostScore, Score, blended, blends, score
from openloop.score.money import lower_bound
from openloop.slo import SLO
from openloop.units import format_count, format_money, format_seconds, format_share


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


LETTERS = 100  # of a cell of an audit on the terminal
CLASS: Columns = {
    **columns("requests accepted"),
    "total": ("cost", "money"),
    "per_accepted": ("per accepted", "money"),
}


def cost_report(
    found: Score | None, steady: float | None, disrupted: float | None, disruption_s: float, every_s: Sequence[float]
) -> dict[str, Any]:
    """Of a run, or of two costs; `steady` is per accepted result, outside disruptions."""
    names = ("run", "valid", "reasons", "accepted", "units", "cost")
    if found is None:
        assert steady is not None
        assert disrupted is not None
        blend = [blended(steady, disrupted, disruption_s, every) for every in every_s]
        nothing: dict[str, Any] = dict(zip(names, (None, True, (), 0, {}, None), strict=True))
        return {**nothing, "classes": {}, "leaks": [], "steady": steady, "blends": blend}
    by = found.by["class"] if len(found.by["class"]) > 1 else {}
    classes = {
        name: {
            "requests": each.requests,
            "accepted": each.accepted,
            "total": each.cost.total,
            "per_accepted": each.cost.per_accepted,
        }
        for name, each in by.items()
        if each.cost
    }
    return {
        **{name: getattr(found, name) for name in names},
        "classes": classes,
        "leaks": found.leaks,
        "steady": found.steady.cost_per_accepted if found.steady else None,
        "blends": blends(found, every_s),
    }


def show_cost(found: dict[str, Any]) -> None:
    page = Page(found["valid"])
    page.verdict(False, found["reasons"])
    if found["run"] is not None:
        _show_run_cost(page, found)
    if found["blends"]:
        page.line("")
        page.line(f"steady, an accepted request costs {format_money(found['steady'] or 0.0)}")
        rows = [
            (
                format_seconds(each.every_s),
                format_share(each.disrupted_share),
                f"{each.cost_per_accepted:.5g}",
                f"{each.extra:+.2%}",
            )
            for each in found["blends"]
        ]
        page.table("disturbed every", ("share of time", "cost per accepted", "more than steady"), rows)


def _show_run_cost(page: Page, found: dict[str, Any]) -> None:
    cost: CostScore | None = found["cost"]
    if cost is None:
        page.line(f"{found['run']}: nothing is known of what it cost; give --prices, a YAML file")
        return
    page.line(f"{found['run']}: {format_count(found['accepted'])} accepted requests for {format_money(cost.total)}")
    if told := lower_bound(cost.known_for):
        page.line(f"note: {told}")
    page.show(tables.money(cost, found["units"]))
    page.show(tables.field_table("class", [(name, each, "") for name, each in found["classes"].items()], CLASS))
    spent = [(leak.name.replace("_", " "), leak.cost) for leak in found["leaks"] if leak.cost is not None]
    if cost.total:
        rows = [(name, format_money(each), format_share(each / cost.total)) for name, each in spent]
        page.table("spent on", ("cost", "share"), rows)


def show_audit(found: Audit) -> None:
    page = Page(valid=True)
    count = f", {found.runs} runs" if found.kind == "sweep" else ""
    page.line(f"{found.subject}{count}: {len(found.missing)} of {len(found.facts)} facts are missing")
    page.verdict(False, found.reasons)
    for table in tables.audited(found):
        rows = [[str(cell)[:LETTERS] for cell in row] for row in table.rows]  # flags of an engine go on for pages
        page.table(table.header[0], table.header[1:], rows, words=True)
