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
from openloop.report.page import Cell, Columns, columns, own_units, span, texts, unit_costs, written
from openloop.report.page import Table as PageTable
from openloop.score import CostScore, QualityScore, Score, SliceScore, Verdict
from openloop.spec import plain
from openloop.units import format_count, format_money, format_rate, format_seconds, format_share

OTHERWISE: Columns = {
    "failures_as_inf.p50": ("p50, failures as never", "seconds"),
    "failures_as_inf.p99": ("p99, failures as never", "seconds"),
    "from_sent.p50": ("p50 from send", "seconds"),
    "from_sent.p99": ("p99 from send", "seconds"),
}
TURN = columns("requests attainment prompt_tokens cache_hit_rate")
STRAGGLER: Columns = {
    "metric": ("metric", "count"),
    "p95_s": ("p95", "seconds"),
    "fleet_p95_s": ("fleet's p95", "seconds"),
}
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

    def things(self, title: str, things: Iterable[tuple[str, Any]], columns: Columns) -> None:
        """A row of its fields for each, by name."""
        header = [words for words, _ in columns.values()]
        self.table(title, header, ((name, *texts(each, columns)) for name, each in things))

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
    page.show(tables.latencies(score))
    both = {
        name: found
        for name in ("TTFT", "TPOT", "E2E")
        if (found := getattr(score, f"{name.lower()}_s")) and found.from_sent and found.failures_as_inf
    }
    page.things("latency seen otherwise", both.items(), OTHERWISE)
    for table in (*tables.gates(score), tables.checks(score)):
        page.show(table)
    if score.output_tokens_per_s:
        page.show(tables.leaks(score))
    show_quality(page, score.quality)
    page.things("turn", ((str(each.turn + 1), each) for each in score.sessions.by_turn), TURN)
    page.things("straggler", ((each.replica, each) for each in score.stragglers), STRAGGLER)
    for key, groups in score.by.items():
        page.show(tables.group(key, groups))
    page.things("by time", ((f"{w.start_s:.6g} s to {w.end_s:.6g} s", w.summary) for w in score.windows), tables.PART)
    page.show(tables.disruptions(score))
    for note in score.notes:
        page.line(f"note: {note}", style="dim")


def _show_rates(page: Page, score: Score) -> None:
    """From schedule, its interval, and from send."""
    rows = [
        ("offered", format_rate(score.offered_rps), "", ""),
        ("throughput", format_rate(score.throughput_rps), "", ""),
        (
            "goodput",
            format_rate(score.goodput_rps),
            _rates(score.goodput_rps_interval),
            format_rate(score.goodput_rps_from_sent),
        ),
        (
            "attainment",
            format_share(score.attainment),
            span(score.attainment_interval, "share"),
            format_share(score.attainment_from_sent),
        ),
    ]
    rows += [
        (f"accepted {name}", rate, f"{format_share(unit.attainment)} of {unit.due:,}", "")
        for _, unit, name, rate in own_units(score.units)
        if not (name == "sessions" and unit.per_s == 1 and score.sessions.by_turn)  # told below, with their turns
    ]
    if score.output_tokens_per_s:
        rows += [
            ("output tokens", format_rate(score.output_tokens_per_s), "", ""),
            ("accepted output tokens", format_rate(score.output_token_goodput), "", ""),
            ("smooth goodput, tokens", format_rate(score.smooth_goodput), _rates(score.smooth_goodput_interval), ""),
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
        rows.append((name, format_money(score.cost.per_accepted), _cost_parts(score.cost), ""))
        rows += [(name, str(told), "", "") for name, told in costs]
    page.table("", ("from schedule", "95% interval", "from send"), rows)


def _rates(interval: tuple[float, float]) -> str:
    return span(interval, "rate").replace("/s to", " to")


def _cost_parts(cost: CostScore) -> str:
    parts = {
        "by the hour": cost.hourly,
        "by use": cost.serving,
        "judging": cost.judging,
        "human review": cost.human_review,
    }
    return " + ".join(f"{format_money(value)} {name}" for name, value in parts.items() if value)


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


def inspection(run: Run, verdict: Verdict, rows: int) -> dict[str, Any]:
    """What `openloop inspect --json` prints."""
    found: dict[str, Any] = plain(
        {
            "run": str(run.path) if run.path else None,
            "rows": run.num_rows,
            "valid": verdict.valid,
            "reasons": list(verdict.reasons),
            "notes": list(verdict.notes),
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


def show_inspection(run: Run, verdict: Verdict | None, rows: int, console: Console | None = None) -> None:
    """What a run is; without a verdict, as far as that can be told without reading all of it."""
    page = Page(valid=True, console=console)
    page.line(f"{run.path or 'run'}: {run.manifest.source}, {format_count(run.num_rows)} rows")
    if verdict:
        page.verdict(verdict.valid, verdict.reasons)
    facts = {
        name: value for name, value in msgspec.to_builtins(run.manifest).items() if value is not None and value != ()
    }
    page.table("manifest", ("",), ((name, written(value)) for name, value in facts.items()), words=True)
    if told := _told(run):
        page.console.print()
        page.line(
            f"server figures: {format_count(told['rows'])} readings of {', '.join(told['names']) or 'nothing'}, "
            f"from {', '.join(told['replicas']) or 'nobody'}"
        )
    page.table(
        "request",
        [*(name.removesuffix("_ns") for name in SHOWN_COLUMNS), "events"],
        (
            (str(row["request_id"]), *(_cell(row, name) for name in SHOWN_COLUMNS), str(len(row["event_ns"])))
            for row in run.head(rows)
        ),
    )
    for note in verdict.notes if verdict else ():
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
