"""Tables for the terminal. A run that is not valid has its numbers struck out."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openloop.records import Run
from openloop.report.metric_map import Metric
from openloop.score import (
    CostScore,
    Leak,
    Percentiles,
    QualityScore,
    Score,
    ServerScore,
    SliceScore,
    Summary,
    Verdict,
)
from openloop.spec import plain
from openloop.units import format_count, format_money, format_rate, format_seconds, format_share

__all__ = ["Page", "inspection", "show_inspection", "show_metrics", "show_quality", "show_score", "show_table"]

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

WIDTH = 10_000

SHOWN_COLUMNS = (
    "attempt",
    "kind",
    "status",
    "replica",
    "scheduled_ns",
    "sent_ns",
    "ended_ns",
    "output_tokens",
)


class Page:
    """A console that knows whether the numbers on it may be believed."""

    def __init__(self, valid: bool, console: Console | None = None) -> None:
        # Wide enough for every table: a wrapped line is better than a number cut short.
        self.console = console or Console(highlight=False, soft_wrap=True, width=WIDTH)
        self.valid = valid

    def line(self, text: str, style: str = "") -> None:
        self.console.print(Text(_printable(text), style=style))

    def table(self, title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> None:
        """Rows of a name and its numbers (or words), under a header; nothing where there are no rows."""
        rows = list(rows)
        if not rows:
            return
        grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for index, name in enumerate((title, *header)):
            grid.add_column(name, justify="left" if words or index == 0 else "right", no_wrap=True)
        for name, *cells in rows:
            grid.add_row(Text(_printable(name)), *(self.number(_printable(cell)) for cell in cells))
        self.console.print()
        self.console.print(grid)

    def number(self, text: str) -> Text:
        if self.valid or not text or text == "-":
            return Text(text)
        return Text(text, style="strike") if self.console.is_terminal else Text(f"~~{text}~~")


def _printable(text: str) -> str:
    """Text from a run must not steer the terminal."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def show_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    Page(valid=True).table(title, header, rows)


def show_score(score: Score, console: Console | None = None) -> None:
    page = Page(score.valid, console)
    page.line(f"{score.run or 'run'}: {format_count(score.requests)} requests due in {format_seconds(score.window_s)}")
    page.line(f"SLO: {score.slo}")
    _show_verdict(page, Verdict(score.valid, score.reasons, ()))
    _show_rates(page, score)
    _show_latencies(page, score)
    _show_failures(page, score)
    _show_more(page, score)
    for key, groups in score.by.items():
        page.table(f"by {key}", GROUP_HEADER, ((name, *_group_row(summary)) for name, summary in groups.items()))
    page.table(
        "by time",
        GROUP_HEADER,
        ((f"{w.start_s:.6g} s to {w.end_s:.6g} s", *_group_row(w.summary)) for w in score.windows),
    )
    _show_disruptions(page, score)
    for note in score.notes:
        page.line(f"note: {note}", style="dim")


def _show_verdict(page: Page, verdict: Verdict) -> None:
    if verdict.valid:
        page.line("VALID", style="bold green")
    for reason in verdict.reasons:
        page.line(f"INVALID: {reason}", style="bold red")


def _show_rates(page: Page, score: Score) -> None:
    low, high = score.attainment_interval
    rows = [
        ("offered", format_rate(score.offered_rps), "", ""),
        ("throughput", format_rate(score.throughput_rps), "", ""),
        (
            "goodput",
            format_rate(score.goodput_rps),
            _range(score.goodput_rps_interval, "/s"),
            format_rate(score.goodput_rps_from_sent),
        ),
        (
            "attainment",
            format_share(score.attainment),
            f"{format_share(low)} to {format_share(high)}",
            format_share(score.attainment_from_sent),
        ),
    ]
    for classes, unit in score.units.items():
        if unit.unit == "request" and unit.per_s == 1:
            continue
        per = {1.0: "s", 60.0: "min", 3600.0: "h"}.get(unit.per_s, f"{unit.per_s:g} s")
        name = f"accepted {unit.name}s" + ("" if classes == "all" else f" ({classes})")
        rows.append((name, f"{unit.goodput:,.3g}/{per}", f"{format_share(unit.attainment)} of {unit.due:,}", ""))
    if score.output_tokens_per_s:
        rows += _token_rates(score)
    if score.sessions.by_turn:
        sessions = score.sessions
        rows.append(
            (
                "accepted sessions",
                format_rate(sessions.goodput_per_s),
                f"{format_share(sessions.attainment)} of {sessions.sessions:,}; "
                f"{format_share(sessions.turn_attainment)} of {sessions.turns:,} turns",
                "",
            )
        )
    if score.cost is not None:
        rows.append(("cost per accepted", format_money(score.cost.per_accepted), _cost_parts(score.cost), ""))
    page.table("", ("from schedule", "95% interval", "from send"), rows)


def _cost_parts(cost: CostScore) -> str:
    parts = {
        "by the hour": cost.hourly,
        "by use": cost.serving,
        "judging": cost.judging,
        "human review": cost.human_review,
    }
    return " + ".join(f"{format_money(value)} {name}" for name, value in parts.items() if value)


def _token_rates(score: Score) -> list[tuple[str, str, str, str]]:
    return [
        ("output tokens", format_rate(score.output_tokens_per_s), "", ""),
        ("accepted output tokens", format_rate(score.output_token_goodput), "", ""),
        (
            "smooth goodput, tokens",
            format_rate(score.smooth_goodput),
            _range(score.smooth_goodput_interval, "/s"),
            "",
        ),
    ]


def _show_latencies(page: Page, score: Score) -> None:
    found = {name: getattr(score, field) for name, field in LATENCIES.items()}
    if not score.output_tokens_per_s:
        found["user idle"] = None
    rows = {name: _latency_row(values) for name, values in found.items() if values is not None}
    page.table(
        "latency",
        ("n", "p50", "p90", "p95", "p99", "95% interval", "p99.9", "mean"),
        ((name, *row) for name, row in rows.items()),
    )
    shown = [cell for row in rows.values() for cell in row]
    if any(cell.endswith("*") for cell in shown):
        page.line("* fewer values than it takes to have one beyond this percentile", style="dim")
    if any(cell.endswith("?") for cell in shown):
        page.line("? the run is too short, or varies too much, to bound it from above", style="dim")
    other = {name: values for name, values in found.items() if values and values.from_sent and values.failures_as_inf}
    page.table(
        "latency seen otherwise",
        ("p50, failures as never", "p99, failures as never", "p50 from send", "p99 from send"),
        (
            (
                name,
                *map(
                    format_seconds,
                    (v.failures_as_inf.p50, v.failures_as_inf.p99, v.from_sent.p50, v.from_sent.p99),
                ),
            )
            for name, v in other.items()
            if name in ("ttft", "tpot", "e2e")
        ),
    )


def _latency_row(values: Percentiles) -> list[str]:
    low, high = values.intervals["p99"]
    return [
        format_count(values.n),
        *(format_seconds(value) for value in (values.p50, values.p90, values.p95)),
        format_seconds(values.p99) + ("" if values.n >= 100 else "*"),
        f"{format_seconds(low)} to {'?' if math.isinf(high) else format_seconds(high)}",
        format_seconds(values.p99_9) + ("" if values.n >= 1000 else "*"),
        format_seconds(values.mean),
    ]


def _show_failures(page: Page, score: Score) -> None:
    rows = [
        (name, format_count(gate.failed), format_count(gate.failed_alone), format_share(gate.attainment))
        for name, gate in score.gates.items()
    ]
    page.table("gate", ("failed", "alone", "attainment of it alone"), rows)
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
        ("utilisation (busy, not productive)", format_share(score.utilisation)),
        ("QoE", format_share(score.qoe)),
        ("fluidity index", format_share(score.fluidity_index)),
        ("cached share of prompts", format_share(score.cache_hit_rate)),
    ]
    if score.server:
        rows += _server_rows(score.server)
    if retries.attempts != score.requests:
        extra = f"{retries.retries} retries, {retries.hedges} hedges, {retries.repairs} repairs"
        rows.append(("attempts per request", f"{retries.amplification:.3f} ({extra})"))
    page.table("", ("",), ((name, value) for name, value in rows if value != "-"))
    if score.output_tokens_per_s:
        page.table("where the work went", ("attempts/s", "tokens/s", "share", "cost", ""), map(_leak_row, score.leaks))
    show_quality(page, score.quality)
    page.table(
        "turn",
        ("requests", "attainment", "prompt tokens", "cached"),
        (
            (
                str(each.turn + 1),
                format_count(each.requests),
                format_share(each.attainment),
                "-" if math.isnan(each.prompt_tokens) else format_count(each.prompt_tokens),
                format_share(each.cache_hit_rate),
            )
            for each in score.sessions.by_turn
        ),
    )
    page.table(
        "straggler",
        ("metric", "p95", "fleet's p95"),
        ((s.replica, s.metric, format_seconds(s.p95_s), format_seconds(s.fleet_p95_s)) for s in score.stragglers),
    )


def _server_rows(server: ServerScore) -> list[tuple[str, str]]:
    """Two lines of what is known."""
    levels = {
        "waiting": (server.queue_mean, server.queue_peak, _level),
        "running": (server.running_mean, server.running_peak, _level),
        "KV cache": (server.kv_use_mean, server.kv_use_peak, format_share),
    }
    totals = {
        "preemptions": f"{server.preemptions:,.0f}",
        "prefix hits": format_share(server.prefix_hit_rate),
        "drafts accepted": format_share(server.draft_acceptance),
        "GPU": format_share(server.gpu_use),
    }
    known = [
        [
            f"{name} {show(mean)} (peak {show(peak)})"
            for name, (mean, peak, show) in levels.items()
            if not math.isnan(mean)
        ],
        [f"{name} {value}" for name, value in totals.items() if value not in ("-", "nan")],
    ]
    names = ("server's mean level", "server's totals")
    return [(name, ", ".join(each) or "-") for name, each in zip(names, known, strict=True)]


def _level(value: float) -> str:
    return f"{value:,.4g}"


def _leak_row(leak: Leak) -> tuple[str, ...]:
    name, gone = leak.name.replace("_", " "), f"{leak.requests_per_s:,.2f}"
    cost = "" if leak.cost is None else format_money(leak.cost)
    if leak.tokens_per_s is None or leak.share is None:
        return name, gone, "not told", "", cost, ""
    teller = {"server": "by the server's counters", "estimate": "estimated from preemptions"}.get(
        leak.told_by or "", ""
    )
    return name, gone, f"{leak.tokens_per_s:,.1f}", format_share(leak.share), cost, teller


def show_quality(page: Page, quality: QualityScore | None) -> None:
    """By slice, with what it takes to see a tail fail."""
    if quality is None:
        return
    whole = SliceScore(
        quality.judged, quality.failed, quality.pass_rate, quality.interval, math.nan, quality.interval, quality.needed
    )
    page.table(
        "quality",
        ("judged", "failed", "pass", "95% interval", "others pass", "needed to see +2% fail", ""),
        (
            (
                name,
                format_count(each.judged),
                format_count(each.failed),
                format_share(each.pass_rate),
                " to ".join(map(format_share, each.interval)),
                format_share(each.rest_pass_rate),
                format_count(each.needed),
                "worse" if each.worse else "" if each.enough else "too few to tell",
            )
            for name, each in {"all": whole, **quality.slices}.items()
        ),
    )


GROUP_HEADER = (
    "requests",
    "goodput",
    "attainment",
    "95% interval",
    "ttft p50",
    "p99",
    "tpot p50",
    "p99",
    "e2e p50",
    "p99",
    "cost per accepted",
)


def _group_row(summary: Summary) -> list[str]:
    low, high = summary.attainment_interval
    tails = [
        format_seconds(getattr(values, step)) if values else "-"
        for values in (summary.ttft_s, summary.tpot_s, summary.e2e_s)
        for step in ("p50", "p99")
    ]
    return [
        format_count(summary.requests),
        format_rate(summary.goodput_rps),
        format_share(summary.attainment),
        f"{format_share(low)} to {format_share(high)}",
        *tails,
        "-" if summary.cost_per_accepted is None else format_money(summary.cost_per_accepted),
    ]


def _show_disruptions(page: Page, score: Score) -> None:
    rows = [(f"{d.kind}, {d.start_s:.6g} s to {d.end_s:.6g} s", *_group_row(d.summary)) for d in score.disruptions]
    if score.steady:
        rows.append(("outside of these", *_group_row(score.steady)))
    page.table("disruption", GROUP_HEADER, rows)


def _range(interval: tuple[float, float], unit: str) -> str:
    return " to ".join(format_rate(value).removesuffix("/s") for value in interval) + unit


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
        _show_verdict(page, verdict)
    facts = {
        name: value for name, value in msgspec.to_builtins(run.manifest).items() if value is not None and value != ()
    }
    page.table("manifest", ("",), ((name, _fact(value)) for name, value in facts.items()), words=True)
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


def _fact(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


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
