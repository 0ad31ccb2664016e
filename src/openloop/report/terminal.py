"""Tables for the terminal. A run that is not valid has its numbers struck out."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openloop.records import Run
from openloop.report import tables
from openloop.report.metric_map import Metric
from openloop.report.page import FIELDS, Cell, Columns, own_units, show, span, texts, unit_costs, written
from openloop.report.page import Table as PageTable
from openloop.score import QualityScore, Score, SliceScore, Verdict
from openloop.spec import plain
from openloop.units import format_count, format_money, format_rate, format_seconds, format_share

SLICE: Columns = {
    "judged": ("judged", "count"),
    "failed": ("failed", "count"),
    "pass_rate": ("pass", "share"),
    "interval": ("95% interval", "share"),
    "rest_pass_rate": ("others pass", "share"),
    "needed": ("needed to see +2% fail", "count"),
}
SHOWN_COLUMNS = ("attempt", "kind", "status", "replica", "scheduled_ns", "sent_ns", "ended_ns", "output_tokens")
WIDTH = 10_000


class Page:
    """A console that knows whether the numbers on it may be believed."""

    def __init__(self, valid: bool, console: Console | None = None) -> None:
        # Wide enough for every table: a wrapped line is better than a number cut short.
        self.console = console or Console(highlight=False, soft_wrap=True, width=WIDTH)
        self.valid = valid

    def line(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style=style))

    def verdict(self, valid: bool, reasons: Iterable[str]) -> None:
        if valid:
            self.line("VALID", style="bold green")
        for reason in reasons:
            self.line(f"INVALID: {reason}", style="bold red")

    def table(self, title: str, header: Sequence[str], rows: Iterable[Sequence[Cell]], *, words: bool = False) -> None:
        """Rows of a name and its numbers (or words), under a header; nothing where there are no rows."""
        rows = list(rows)
        if not rows:
            return
        grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for index, heading in enumerate((title, *header)):
            grid.add_column(Text(printable(heading)), justify="left" if words or index == 0 else "right", no_wrap=True)
        for name, *cells in rows:
            grid.add_row(Text(printable(str(name))), *(self.number(printable(str(cell))) for cell in cells))
        self.console.print()
        self.console.print(grid)

    def show(self, table: PageTable) -> None:
        title, *header = table.header
        self.table(title, header, table.rows)
        if table.note and table.rows:
            self.line(table.note, style="dim")

    def number(self, text: str) -> Text:
        if self.valid or not text or text == "-":
            return Text(text)
        return Text(text, style="strike") if self.console.is_terminal else Text(f"~~{text}~~")


def printable(text: str) -> str:
    """Text from a run must not steer the terminal."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def show_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    Page(valid=True).table(title, header, rows)


def show_score(score: Score, console: Console | None = None) -> None:
    page = Page(score.valid, console)
    page.line(f"{score.run or 'run'}: {format_count(score.requests)} requests due in {format_seconds(score.window_s)}")
    page.line(f"SLO: {score.slo}")
    page.verdict(score.valid, score.reasons)
    _show_rates(page, score)
    for table in (tables.latencies(score), *tables.gates(score), tables.checks(score)):
        page.show(table)
    if score.output_tokens_per_s:
        page.show(tables.leaks(score.leaks))
    show_quality(page, score.quality)
    for table in (*tables.further(score), tables.disruptions(score)):
        page.show(table)
    for note in score.notes:
        page.line(f"note: {note}", style="dim")


def _show_rates(page: Page, score: Score) -> None:
    """From schedule, its interval, and from send."""
    rows: list[Sequence[Cell]] = []
    tokens = ("output_tokens_per_s", "output_token_goodput", "smooth_goodput") if score.output_tokens_per_s else ()
    for field in ("offered_rps", "throughput_rps", "goodput_rps", "attainment", *tokens):
        words, unit = FIELDS[field]
        interval, sent = (getattr(score, f"{field}_{kind}", None) for kind in ("interval", "from_sent"))
        sent = "" if sent is None else show(sent, unit)
        rows.append((words, show(getattr(score, field), unit), span(interval, unit), sent))
    rows += [
        (f"accepted {name}", rate, f"{format_share(unit.attainment)} of {unit.due:,}", "")
        for _, unit, name, rate in own_units(score.units)
        if not (name == "sessions" and unit.per_s == 1 and score.sessions.by_turn)  # told below, with their turns
    ]
    if score.sessions.by_turn:
        sessions = score.sessions
        all_of_it = f"{format_share(sessions.attainment)} of {sessions.sessions:,}"
        turns = f"{format_share(sessions.turn_attainment)} of {sessions.turns:,} turns"
        calls = f"{sessions.calls_per_session:.3g} calls each"
        rows.append(("accepted sessions", format_rate(sessions.goodput_per_s), f"{all_of_it}; {turns}; {calls}", ""))
    if score.cost is not None:
        costs = unit_costs("cost per accepted", score.units)
        name = "cost per accepted request" if costs else "cost per accepted"
        rows.append((name, format_money(score.cost.per_accepted), "", ""))
        rows += [(name, told, "", "") for name, told in costs]
    page.table("", ("from schedule", "95% interval", "from send"), rows)


def show_quality(page: Page, quality: QualityScore | None) -> None:
    """By slice, with what it takes to see a tail fail."""
    if quality is None:
        return
    whole = SliceScore(
        quality.judged, quality.failed, quality.pass_rate, quality.interval, math.nan, quality.interval, quality.needed
    )
    page.table(
        "quality",
        [*(words for words, _ in SLICE.values()), ""],
        (
            (name, *texts(each, SLICE), "worse" if each.worse else "" if each.enough else "too few to tell")
            for name, each in {"all": whole, **quality.slices}.items()
        ),
    )


def inspection(run: Run, verdict: Verdict | None, rows: int) -> dict[str, Any]:
    """What a run is; without a verdict, as far as that can be told without reading all of it."""
    found: dict[str, Any] = plain(
        {
            "run": str(run.path) if run.path else None,
            "rows": run.num_rows,
            "valid": verdict.valid if verdict else None,
            "reasons": list(verdict.reasons) if verdict else [],
            "notes": list(verdict.notes) if verdict else [],
            "manifest": msgspec.to_builtins(run.manifest),
            "server": _told(run),
            "head": run.head(rows),
        }
    )
    return found


def _told(run: Run) -> dict[str, Any] | None:
    """What of the server is in the run."""
    table = run.server()
    if table is None:
        return None
    words = {f"{name}s": sorted(table.column(name).unique().to_pylist()) for name in ("replica", "name")}
    return {"rows": table.num_rows, **words}


def show_inspection(found: dict[str, Any], console: Console | None = None) -> None:
    page = Page(valid=True, console=console)
    facts, told = found["manifest"], found["server"]
    page.line(f"{found['run'] or 'run'}: {facts['source']}, {format_count(found['rows'])} rows")
    page.verdict(bool(found["valid"]), found["reasons"])
    known = [(name, written(value)) for name, value in facts.items() if value is not None and value not in ((), [])]
    page.table("manifest", ("",), known, words=True)
    if told:
        page.console.print()
        page.line(
            f"server figures: {format_count(told['rows'])} readings of {', '.join(told['names']) or 'nothing'}, "
            f"from {', '.join(told['replicas']) or 'nobody'}"
        )
    rows = [
        (str(row["request_id"]), *(_cell(row, name) for name in SHOWN_COLUMNS), str(len(row["event_ns"])))
        for row in found["head"]
    ]
    page.table("request", [*(name.removesuffix("_ns") for name in SHOWN_COLUMNS), "events"], rows)
    for note in found["notes"]:
        page.line(f"note: {note}", style="dim")


def _cell(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if value is None:
        return "-"
    return format_seconds(value / 1e9) if name.endswith("_ns") else str(value)


def show_metrics(metrics: Sequence[Metric]) -> None:
    page = Page(valid=True)
    for place, metric in enumerate(metrics):
        if place:
            page.console.print()
        page.line(f"{metric.key}: {metric.what}", style="bold")
        page.line(f"  {metric.formula}")
        rows = [(f"  {tool}", theirs.name, theirs.differs) for tool, theirs in metric.theirs.items()]
        page.table("  tool", ("its name", "how it differs"), rows or [("  no other tool", "", "")], words=True)
