"""Tables for the terminal. A run that is not valid has its numbers struck out."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openloop.records import Run
from openloop.report.marks import Unit
from openloop.report.metric_map import Metric
from openloop.report.page import Cell, Columns, numbers, own_units, show, span, texts, unit_costs, written
from openloop.score import CostScore, Leak, QualityScore, Score, ServerScore, SliceScore, Verdict
from openloop.spec import plain
from openloop.units import format_count, format_money, format_rate, format_seconds, format_share

LATENCIES = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "itl": "itl_s",
    "longest gap": "tbt_s",
    "jitter": "jitter_s",
    "e2e": "e2e_s",
    "user idle": "idle_s",
    "client lag": "client_lag_s",
}
OTHERWISE: Columns = {
    "failures_as_inf.p50": ("p50, failures as never", "seconds"),
    "failures_as_inf.p99": ("p99, failures as never", "seconds"),
    "from_sent.p50": ("p50 from send", "seconds"),
    "from_sent.p99": ("p99 from send", "seconds"),
}
GROUP: Columns = {
    "requests": ("requests", "count"),
    "goodput_rps": ("goodput", "rate"),
    "attainment": ("attainment", "share"),
    "attainment_interval": ("95% interval", "share"),
    "ttft_s.p50": ("ttft p50", "seconds"),
    "ttft_s.p99": ("p99", "seconds"),
    "tpot_s.p50": ("tpot p50", "seconds"),
    "tpot_s.p99": ("p99", "seconds"),
    "e2e_s.p50": ("e2e p50", "seconds"),
    "e2e_s.p99": ("p99", "seconds"),
    "cache_hit_rate": ("cached", "share"),
    "cost_per_accepted": ("cost per accepted", "money"),
}
GATE: Columns = {
    "failed": ("failed", "count"),
    "failed_alone": ("alone", "count"),
    "attainment": ("attainment of it alone", "share"),
}
TURN: Columns = {
    "requests": ("requests", "count"),
    "attainment": ("attainment", "share"),
    "prompt_tokens": ("prompt tokens", "count"),
    "cache_hit_rate": ("cached", "share"),
}
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
    _show_latencies(page, score)
    _show_failures(page, score)
    _show_more(page, score)
    for key, groups in score.by.items():
        page.things(f"by {key}", groups.items(), GROUP)
    page.things("by time", ((f"{w.start_s:.6g} s to {w.end_s:.6g} s", w.summary) for w in score.windows), GROUP)
    disruptions = [(f"{d.kind}, {d.start_s:.6g} s to {d.end_s:.6g} s", d.summary) for d in score.disruptions]
    steady = [("outside of these", score.steady)] if score.steady else []
    page.things("disruption", [*disruptions, *steady], GROUP)
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


def _show_latencies(page: Page, score: Score) -> None:
    found = {name: values for name, field in LATENCIES.items() if (values := getattr(score, field)) is not None}
    if not score.output_tokens_per_s:
        found.pop("user idle", None)
    rows = []
    for name, values in found.items():
        low = numbers(values, {"n": "count", "p50": "seconds", "p90": "seconds", "p95": "seconds", "p99": "seconds"})
        interval = span(values.intervals["p99"], "seconds")
        rows.append([name, *low, interval, *numbers(values, {"p99_9": "seconds", "mean": "seconds"})])
    page.table("latency", ("n", "p50", "p90", "p95", "p99", "95% interval", "p99.9", "mean"), rows)
    shown = [str(cell) for row in rows for cell in row]
    if any(cell.endswith("*") for cell in shown):
        page.line("* fewer values than it takes to have one beyond this percentile", style="dim")
    if any(cell.endswith("?") for cell in shown):
        page.line("? the run is too short, or varies too much, to bound it from above", style="dim")
    other = {name: values for name, values in found.items() if name in ("ttft", "tpot", "e2e")}
    both = {name: values for name, values in other.items() if values.from_sent and values.failures_as_inf}
    page.things("latency seen otherwise", both.items(), OTHERWISE)


def _show_failures(page: Page, score: Score) -> None:
    page.things("gate", score.gates.items(), GATE)
    joint = [joint for joint in score.joint_failures if len(joint.gates) > 1]
    page.table("failed together", ("requests",), ((" + ".join(j.gates), format_count(j.requests)) for j in joint[:5]))
    failed = {name: count for name, count in score.statuses.items() if count and name != "ok"}
    page.table("unsuccessful", ("requests",), ((name, format_count(count)) for name, count in failed.items()))


def _show_more(page: Page, score: Score) -> None:
    little, retries = score.little, score.retries
    rows = [
        ("in flight, measured", f"{little.L_measured:,.4g}"),
        ("in flight, by Little's law", f"{little.L_law:,.4g} ({little.residual:+.1%} off)"),
        ("completed inside the window", format_rate(score.completed_in_window_rps)),
        (
            "their output tokens",
            format_rate(score.completed_in_window_tokens_per_s) if score.output_tokens_per_s else "-",
        ),
        ("utilisation (busy, not productive)", format_share(score.utilisation)),
        ("QoE", format_share(score.qoe)),
        ("fluidity index", format_share(score.fluidity_index)),
        ("cached share of prompts", format_share(score.cache_hit_rate)),
    ]
    if score.server:
        rows += _server_rows(score.server)
    if score.preemptions:
        rows.append(("preemptions", format_count(score.preemptions)))
    if retries.attempts != score.requests:
        extra = f"{retries.retries} retries, {retries.hedges} hedges, {retries.repairs} repairs"
        rows.append(("attempts per request", f"{retries.amplification:.3f} ({extra})"))
    page.table("", ("",), ((name, value) for name, value in rows if value != "-"))
    if score.output_tokens_per_s:
        page.table("where the work went", ("attempts/s", "tokens/s", "share", "cost", ""), map(_leak_row, score.leaks))
    show_quality(page, score.quality)
    page.things("turn", ((str(each.turn + 1), each) for each in score.sessions.by_turn), TURN)
    page.things("straggler", ((each.replica, each) for each in score.stragglers), STRAGGLER)


def _server_rows(server: ServerScore) -> list[tuple[str, str]]:
    """Two lines of what is known."""
    levels: dict[str, tuple[float, float, Unit]] = {
        "waiting": (server.queue_mean, server.queue_peak, "number"),
        "running": (server.running_mean, server.running_peak, "number"),
        "KV cache": (server.kv_use_mean, server.kv_use_peak, "share"),
    }
    totals = {
        "preemptions": f"{server.preemptions:,.0f}",
        "prefix hits": format_share(server.prefix_hit_rate),
        "drafts accepted": format_share(server.draft_acceptance),
        "GPU": format_share(server.gpu_use),
    }
    known = {
        "server's mean level": [
            f"{name} {show(mean, unit)} (peak {show(peak, unit)})"
            for name, (mean, peak, unit) in levels.items()
            if not math.isnan(mean)
        ],
        "server's totals": [f"{name} {value}" for name, value in totals.items() if value not in ("-", "nan")],
    }
    return [(name, ", ".join(each) or "-") for name, each in known.items()]


def _leak_row(leak: Leak) -> tuple[str, ...]:
    name, gone = leak.name.replace("_", " "), f"{leak.requests_per_s:,.2f}"
    cost = "" if leak.cost is None else format_money(leak.cost)
    if leak.tokens_per_s is None or leak.share is None:
        return name, gone, "not told", "", cost, ""
    tellers = {"server": "by the server's counters", "estimate": "estimated from preemptions"}
    told_by = tellers.get(leak.told_by or "", "")
    return name, gone, f"{leak.tokens_per_s:,.1f}", format_share(leak.share), cost, told_by


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
