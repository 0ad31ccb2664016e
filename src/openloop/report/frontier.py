"""A frontier for people: a table with bars, the knee in a sentence, and a view of a sweep while it goes on."""

from collections.abc import Sequence

import click
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from openloop.frontier import Frontier, Point
from openloop.load.conductor import Snapshot
from openloop.report.curve import frontier_headline
from openloop.report.live import InPlace, Tally
from openloop.report.page import Columns, columns, texts
from openloop.report.terminal import WIDTH
from openloop.slo import Objectives
from openloop.units import format_seconds

BAR = 30
BRIEF = columns("rate goodput_rps attainment")  # what a narrow terminal has room for
FULL = columns(
    "rate goodput_rps completed_in_window_rps attainment attainment_interval ttft_s.p50 ttft_s.p99 tpot_s.p99 e2e_s.p99"
)


def frontier_table(points: Sequence[Point], shown: Columns = FULL) -> Table:
    """A row per point: goodput as a solid bar inside of what was completed in the window."""
    grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    offered, *others = (words for words, _ in shown.values())
    header = (offered, "", *others, "")
    for place, name in enumerate(header):
        grid.add_column(name, justify="left" if place in (1, len(header) - 1) else "right", no_wrap=True)
    most = max((point.completed_in_window_rps for point in points), default=1.0) or 1.0
    for point in points:
        rate, *rest = texts(point, shown)
        whole = round(BAR * point.completed_in_window_rps / most)
        good = round(BAR * min(point.goodput_rps, point.completed_in_window_rps) / most)
        cells = (rate, "█" * good + "░" * (whole - good), *rest)
        style = "" if point.usable else "strike"
        grid.add_row(*(Text(cell, style=style) for cell in cells), Text(_words(point)))
    return grid


def _words(point: Point) -> str:
    told = [point.name or ""]
    if point.overloaded:
        told.append(f"backlog grows{', ended early' if point.cut_short == 'overload' else ''}")
    elif not point.usable:
        told.append("not used, as the note says")
    elif not point.steady:
        told.append("not steady")
    return ", ".join(each for each in told if each)


def show_frontier(found: Frontier) -> None:
    if found.points:
        Console(highlight=False, soft_wrap=True, width=WIDTH).print(frontier_table(found.points))
    headline, sentences = frontier_headline(found)
    runs = sum(point.repeats for point in found.points)
    ended = f"{runs} runs, {format_seconds(found.took_s)} in all; {found.stopped or 'not finished'}"
    for line in (headline, *sentences, ended):
        click.echo(line)


class SweepView(InPlace):
    """Draws the frontier as it grows: in place on a terminal, a line per run elsewhere."""

    def __init__(self, objectives: Objectives | None, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._objectives = objectives
        self._found: Frontier | None = None
        self._next = ""
        self._tally = Tally(1.0, None)
        self._line = ""

    def begin(self, found: Frontier, rate: float, seconds: float, why: str) -> None:
        self._found = found
        self._tally, self._line = Tally(seconds, self._objectives), ""
        self._next = f"{why}: {rate:g}/s for {format_seconds(seconds)}"
        if self._live:
            self._draw()
        elif not self._quiet:
            known = f"; knee so far {found.knee.sentence}" if found.points else ""
            click.echo(f"{self._next}{known}", err=True)

    def __call__(self, snapshot: Snapshot) -> None:
        if self._live:
            self._tally.add(snapshot.finished)
            self._line = self._tally.line(snapshot)
            self._draw()

    def _draw(self) -> None:
        if self._live and self._found:
            points, knee = self._found.points, Text(f"knee so far: {self._found.knee.sentence}")
            so_far = (frontier_table(points, BRIEF), knee) if points else ()
            self._live.update(Group(*so_far, Text(self._next), Text(self._line)))
