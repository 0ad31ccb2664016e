"""A frame for people: a page on a terminal that is drawn anew, and a line elsewhere."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from openloop.units import format_count, format_money, format_rate, format_seconds, format_share
from openloop.watch.burn import Alert
from openloop.watch.frame import GOODPUT, Frame, RollingTail, SecondCounts, share

BARS = " ▁▂▃▄▅▆▇█"
POINTS = 30
MOST_SHOWN = 8


def line(frame: Frame) -> str:
    """All that matters in one line."""
    gates = ", ".join(f"{name} {_range(each.attainment, each.at_most)}" for name, each in frame.gates.items())
    alerts = f"; {len(frame.alerts)} alerts" if frame.alerts else ""
    return (
        f"{format_seconds(frame.at_s)}: goodput {_rates(frame)} of throughput {format_rate(frame.throughput_rps)}, "
        f"{format_count(frame.tokens_per_s)} tok/s; attainment {_range(frame.attainment, frame.attainment_at_most)}; "
        f"{gates}{alerts}"
    )


def history(
    ledger: SecondCounts, signals: Sequence[str], at_s: float, window_s: float
) -> dict[str, list[float | None]]:
    """The rolling share of each signal, and rolling rates, over the last stretches."""
    moments = [at_s - (POINTS - 1 - i) * window_s / 6 for i in range(POINTS)]
    moments = [at for at in moments if at > ledger.first]
    found: dict[str, list[float | None]] = {
        f"{what} / s": [
            ledger.total(column, at - window_s, at) / min(window_s, max(at - ledger.first, 1)) for at in moments
        ]
        for what, column in (("tokens", "tokens"), ("throughput", "ok"), ("goodput", f"{GOODPUT}.low"))
    }
    for signal in signals:
        if signal != GOODPUT:
            found[signal] = [share(ledger, signal, at - window_s, at).attainment for at in moments]
    return found


def picture(frame: Frame, past: dict[str, list[float | None]], told: Sequence[Alert], source: str) -> Group:
    """The whole page."""
    when = f"{frame.at}  " if frame.at else ""
    parts: list[Table | Text] = [
        Text(f"{source}   {when}{format_seconds(frame.at_s)}   SLO: {frame.slo}", style="bold"),
        _headline(frame),
        _numbers(frame, past),
    ]
    if frame.replicas:
        parts.append(_replicas(frame))
    parts += [*_alerts(frame, told), *_disruptions(frame)]
    parts += [Text(each, style="yellow") for each in frame.notes]
    parts += [Text(f"not shown here: {each}", style="dim") for each in frame.limits]
    return Group(*parts)


def _headline(frame: Frame) -> Text:
    if frame.attainment is None:
        return Text("nothing has ended in this window", style="dim")
    style = "bold red" if frame.alerts else "bold green"
    flight = "" if frame.in_flight is None else f", {frame.in_flight:,} in flight"
    offered = "" if frame.offered_rps is None else f", {format_rate(frame.offered_rps)} due"
    over = "all of it" if math.isnan(frame.window_s) else format_seconds(frame.window_s)
    return Text(
        f"goodput {_rates(frame)} of throughput {format_rate(frame.throughput_rps)} "
        f"(attainment {_range(frame.attainment, frame.attainment_at_most)}), over {over}"
        f"{offered}{flight}",
        style=style,
    )


def _numbers(frame: Frame, past: dict[str, list[float | None]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (("", "left"), ("now", "right"), ("p50", "right"), ("p95", "right"), ("p99", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("until now", no_wrap=True, overflow="crop")
    rates = {"tokens / s": frame.tokens_per_s, "throughput / s": frame.throughput_rps, "goodput / s": frame.goodput_rps}
    for name, value in rates.items():
        told = "-" if math.isnan(value) else format_count(value) if value >= 100 else f"{value:.3g}"
        table.add_row(name, told, "", "", "", _spark(past.get(name, [])))
    for name, each in frame.gates.items():
        bad = any(alert.signal == name for alert in frame.alerts)
        steps = _steps(frame.tails.get(name) or frame.tails.get("gaps" if name.startswith(("itl", "tbt")) else ""))
        table.add_row(
            Text(f"{name} met", style="red" if bad else ""),
            Text(_range(each.attainment, each.at_most), style="bold red" if bad else ""),
            *steps,
            _spark(past.get(name, []), top=1.0),
        )
    for name, ladder in frame.tails.items():
        if name not in frame.gates and name != "gaps":
            table.add_row(name, "", *_steps(ladder), "")
    return table


def _replicas(frame: Frame) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    for name in ("replica", "ended", "attainment", "ttft p50", "p95", "p99", "e2e p95", "straggler"):
        table.add_column(name, justify="left" if name in ("replica", "straggler") else "right", no_wrap=True)
    worst = sorted(frame.replicas, key=lambda each: (not each.straggler, each.attainment))
    for each in worst[:MOST_SHOWN]:
        slow = ", ".join(f"{metric} {times:.1f}x" for metric, times in each.straggler.items())
        e2e = each.tails.get("e2e")
        table.add_row(
            each.replica,
            f"{each.ended:,}",
            format_share(each.attainment),
            *_steps(each.tails.get("ttft")),
            format_seconds(e2e.p95_s) if e2e else "",
            Text(slow, style="bold red"),
        )
    if len(worst) > MOST_SHOWN:
        table.add_row(f"and {len(worst) - MOST_SHOWN} more", *[""] * 7)
    return table


def _alerts(frame: Frame, told: Sequence[Alert]) -> Iterator[Text]:
    yield from (Text(str(alert), style="bold red") for alert in frame.alerts)
    ended = [alert for alert in told if alert.until_s is not None]
    yield from (Text(str(alert), style="green") for alert in ended[-MOST_SHOWN:])


def _disruptions(frame: Frame) -> Iterator[Text]:
    for each in frame.disruptions[-MOST_SHOWN:]:
        name = f"{each.kind} ({each.detail})" if each.detail else each.kind
        parts = [f"{name} at {format_seconds(each.start_s)}, for {format_seconds(each.end_s - each.start_s)}"]
        if each.attainment is not None and each.steady_attainment is not None:
            parts.append(f"attainment {format_share(each.attainment)}, else {format_share(each.steady_attainment)}")
        if each.lost:
            parts.append(f"about {format_count(each.lost)} accepted results lost")
        if each.extra_cost is not None:
            parts.append(f"{format_money(each.extra_cost)} spent in vain")
        yield Text("; ".join(parts), style="magenta")


def _steps(ladder: RollingTail | None) -> list[str]:
    if ladder is None:
        return ["", "", ""]
    return [format_seconds(each) for each in (ladder.p50_s, ladder.p95_s, ladder.p99_s)]


def _rates(frame: Frame) -> str:
    low, high = frame.goodput_rps, frame.goodput_rps_at_most
    return f"{format_rate(low)} to {format_rate(high)}" if high - low >= 1e-9 else format_rate(low)


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "?"
    return format_share(low) if high - low < 1e-9 else f"{format_share(low)} to {format_share(high)}"


def _spark(values: Sequence[float | None], top: float | None = None) -> str:
    most = top or max((value for value in values if value is not None), default=0.0) or 1.0
    return "".join(
        " " if value is None else BARS[max(min(round(value / most * 8), 8), 1 if value > 0 else 0)] for value in values
    )
