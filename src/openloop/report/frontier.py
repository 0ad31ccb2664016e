"""A frontier for people: a table with bars, the knee in a sentence, and a view of a sweep while it goes on."""

import sys
from collections.abc import Sequence
from types import TracebackType

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from openloop.frontier import Frontier, Point
from openloop.load.conductor import Snapshot
from openloop.report.live import LiveView
from openloop.slo import Objectives
from openloop.units import format_money, format_rate, format_seconds, format_share

__all__ = ["SweepView", "frontier_lines", "frontier_table"]

BAR = 30
BRIEF = ("offered", "", "goodput", "accepted", "")  # what a narrow terminal has room for
HEADER = ("offered", "", "goodput", "served", "accepted", "95% interval", "ttft p50", "p99", "tpot p99", "e2e p99", "")


def frontier_table(points: Sequence[Point], *, brief: bool = False) -> Table:
    """A row per point: goodput as a solid bar inside of what was served."""
    grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    header = BRIEF if brief else HEADER
    for place, name in enumerate(header):
        grid.add_column(name, justify="left" if place in (1, len(header) - 1) else "right", no_wrap=True)
    most = max((point.served_rps for point in points), default=1.0) or 1.0
    for point in points:
        low, high = point.attainment_interval
        style = "" if point.usable else "strike"
        cells = [
            format_rate(point.rate),
            _bar(point.goodput_rps / most, point.served_rps / most),
            format_rate(point.goodput_rps),
            format_rate(point.served_rps),
            format_share(point.attainment),
            f"{format_share(low)} to {format_share(high)}",
            _step(point, "ttft_s", "p50"),
            _step(point, "ttft_s", "p99"),
            _step(point, "tpot_s", "p99"),
            _step(point, "e2e_s", "p99"),
        ]
        shown = [cells[HEADER.index(name)] for name in header[:-1]] if brief else cells
        grid.add_row(*(Text(cell, style=style) for cell in shown), Text(_words(point)))
    return grid


def _bar(goodput: float, served: float) -> str:
    full = round(BAR * min(goodput, served))
    return "█" * full + "░" * (round(BAR * served) - full)


def _step(point: Point, metric: str, step: str) -> str:
    found = getattr(point, metric)
    return "-" if found is None else format_seconds(getattr(found, step))


def _words(point: Point) -> str:
    told = [point.name or ""]
    if point.overloaded:
        told.append(f"backlog grows{', ended early' if point.cut_short == 'overload' else ''}")
    elif not point.usable:
        told.append("not used: the client was at fault")
    elif not point.steady:
        told.append("not steady")
    return ", ".join(each for each in told if each)


def frontier_lines(found: Frontier) -> list[str]:
    """What the points show together, a sentence each."""
    lines = [f"knee: {found.knee.sentence}"]
    if found.peak is not None:
        low, high = found.peak.goodput_rps_interval
        spread = f"[{format_rate(low)}, {format_rate(high)}]"
        lines.append(f"peak goodput: {format_rate(found.peak.goodput_rps)} {spread}, offered {found.peak.rate:g}/s")
    if found.half_rate is not None:
        lines.append(f"goodput is below half of throughput from {found.half_rate:g}/s on")
    if found.current is not None and found.headroom is not None and found.headroom_interval is not None:
        low, high = found.headroom_interval
        lines.append(f"headroom at {found.current:g}/s: {found.headroom:+.0%} [{low:+.0%}, {high:+.0%}]")
    elif found.current is not None and found.knee.above is not None:
        lines.append(f"headroom at {found.current:g}/s: at least {found.knee.above / found.current - 1:+.0%}")
    costs = [point for point in found.points if point.cost_per_accepted is not None and not point.overloaded]
    if costs:
        best = min(costs, key=lambda point: point.cost_per_accepted or 0.0)
        lines.append(f"cheapest: {format_money(best.cost_per_accepted or 0.0)} per accepted, offered {best.rate:g}/s")
    runs = sum(point.repeats for point in found.points)
    lines.append(f"{runs} runs, {format_seconds(found.took_s)} in all; {found.stopped or 'not finished'}")
    return lines + [f"note: {note}" for note in found.notes]


class SweepView:
    """Draws the frontier as it grows: in place on a terminal, a line per run elsewhere."""

    def __init__(self, objectives: Objectives | None, *, quiet: bool = False) -> None:
        self._objectives, self._quiet = objectives, quiet
        self._terminal = sys.stderr.isatty() and not quiet
        self._live: Live | None = None
        self._found: Frontier | None = None
        self._next = ""
        self._run = LiveView(1.0, None, quiet=True)

    def __enter__(self) -> "SweepView":
        if self._terminal:
            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def begin(self, found: Frontier, rate: float, seconds: float, why: str) -> None:
        self._found = found
        self._run = LiveView(seconds, self._objectives, quiet=True)
        self._next = f"{why}: {rate:g}/s for {format_seconds(seconds)}"
        if self._live:
            self._draw()
        elif not self._quiet:
            known = f"; knee so far {found.knee.sentence}" if found.points else ""
            click.echo(f"{self._next}{known}", err=True)

    def __call__(self, snapshot: Snapshot) -> None:
        if self._live:
            self._run(snapshot)
            self._draw()

    def _draw(self) -> None:
        if self._live and self._found:
            points = self._found.points
            told = [Text(f"knee so far: {self._found.knee.sentence}")] if points else []
            table = [frontier_table(points, brief=True)] if points else []
            self._live.update(Group(*table, *told, Text(self._next), Text(self._run.last)))
