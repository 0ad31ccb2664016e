"""A report on a terminal: the same verdict, its numbers, and its first figure drawn with letters."""

from collections.abc import Iterable

import numpy as np
from rich.text import Text

from openloop.arrays import Floats
from openloop.report.marks import Curve, Figure, Panel, Rule, Stretch
from openloop.report.page import Report, Table
from openloop.report.scales import AxisScale, tick, x_scale, y_scale
from openloop.report.terminal import Page, printable

HUES = {
    "orange": "yellow",
    "green": "green",
    "blue": "blue",
    "red": "red",
    "sky": "cyan",
    "purple": "magenta",
    "grey": "bright_black",
}
SIGNS = "o*x+#"  # of curves, where there is no colour
BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a Braille letter, by row and column
MOST_ROWS = 12
PLAIN = {ord("·"): "-", ord("µ"): "u", ord("…"): "..."}


def show_report(report: Report) -> None:
    """On whatever standard output is: letters and colours for a terminal, plain ASCII for anything else."""
    page = Page(report.verdict != "invalid")
    plain = not page.console.is_terminal

    def text(value: object) -> str:
        return _words(str(value), plain)

    page.line(text(f"{report.title} · {report.subtitle}"))
    page.line(text(report.word.upper()), style="bold green" if report.verdict == "good" else "bold red")
    page.line(text(report.headline), style="bold")
    for sentence in report.sentences:
        page.line(text(sentence))
    page.table("", ("", ""), [tuple(map(text, row)) for row in report.numbers])
    for figure in report.figures[:1]:
        if figure.panels[0].y.scale != "names" and _lines(figure.panels[0]):
            page.console.print()
            page.line(text(figure.title))
            page.console.print(text_plot(figure, plain=plain))
    tables = [part for section in report.sections[:2] for part in section.parts if isinstance(part, Table)]
    for table in tables[:2]:
        first, *rest = map(text, table.header)
        page.table(first, rest, [tuple(map(text, row)) for row in table.rows[:MOST_ROWS]])


def _words(text: str, plain: bool) -> str:
    """Text from a run as the terminal may have it; plain: ASCII only."""
    shown = printable(text)
    return shown.translate(PLAIN).encode("ascii", "replace").decode() if plain else shown


def show_answer(lines: Iterable[str], figure: Figure | None) -> None:
    """A few lines and, on a terminal, a figure."""
    page = Page(valid=True)
    for line in lines:
        page.line(line)
    if figure and page.console.is_terminal:
        page.console.print()
        page.console.print(text_plot(figure, plain=False))


def text_plot(figure: Figure, *, plain: bool, width: int = 68, height: int = 14) -> Text:
    """The first panel. Plain: letters that every terminal has."""
    panel = figure.panels[0]
    x, y = x_scale(figure.x, figure.panels), y_scale(panel)
    curves = _lines(panel)
    drawn = _letters(curves, x, y, width, height) if plain else _braille(curves, x, y, width, height)
    labels = {round(float((1 - y(value)) * (height - 1))): tick(value, y.axis) for value in y.ticks(4)}
    margin = max(map(len, labels.values()), default=0)
    found = Text()
    for row, cells in enumerate(drawn):
        found.append(f"{labels.get(row, ''):>{margin}} {'|' if plain else '│'}")
        for sign, color in cells:
            found.append(sign, HUES.get(color, ""))
        found.append("\n")
    found.append(" " * margin + (" +" if plain else " └") + _axis(panel, x, width, plain) + "\n")
    found.append(" " * (margin + 2) + _ticks(x, width) + "\n")
    found.append(" " * (margin + 2) + f"{figure.x.label}   ")
    for place, mark in enumerate(curves):
        found.append(f"{SIGNS[place % len(SIGNS)] if plain else '━'} ", HUES.get(mark.color, ""))
        found.append(f"{_words(mark.name, plain)}   ")
    found.append("".join(f"[=] {_words(mark.name, plain)}" for mark in panel.marks if isinstance(mark, Stretch)))
    return found


def _lines(panel: Panel) -> list[Curve]:
    return [mark for mark in panel.curves if isinstance(mark, Curve) and mark.style in ("line", "dashed", "steps")]


Cells = list[list[tuple[str, str]]]


def _heights(mark: Curve, x: AxisScale, y: AxisScale, places: Floats) -> Floats:
    """How high the curve is at places along x, both from 0 to 1; NaN outside of it."""
    known = np.isfinite(mark.x) & np.isfinite(mark.y)
    return np.interp(places, x(mark.x[known]), y(mark.y[known]), np.nan, np.nan) if known.any() else places * np.nan


def _letters(curves: list[Curve], x: AxisScale, y: AxisScale, width: int, height: int) -> Cells:
    cells: Cells = [[(" ", "")] * width for _ in range(height)]
    for place, mark in enumerate(curves):
        for column, high in enumerate(_heights(mark, x, y, (np.arange(width) + 0.5) / width)):
            if np.isfinite(high):
                cells[round((1 - float(np.clip(high, 0, 1))) * (height - 1))][column] = (
                    SIGNS[place % len(SIGNS)],
                    mark.color,
                )
    return cells


def _braille(curves: list[Curve], x: AxisScale, y: AxisScale, width: int, height: int) -> Cells:
    cells: Cells = [[(" ", "")] * width for _ in range(height)]
    bits = np.zeros((height, width), int)
    for mark in curves:
        highs = _heights(mark, x, y, (np.arange(2 * width) + 0.5) / (2 * width))
        rows = np.where(np.isfinite(highs), (1 - np.clip(highs, 0, 1)) * (4 * height - 1), np.nan)
        for column, row in enumerate(rows):
            if np.isnan(row):
                continue
            before = rows[column - 1] if column and np.isfinite(rows[column - 1]) else row
            for each in range(round(min(row, before)), round(max(row, before)) + 1):
                bits[each // 4, column // 2] |= BITS[each % 4][column % 2]
                cells[each // 4][column // 2] = (chr(0x2800 + bits[each // 4, column // 2]), mark.color)
    return cells


def _axis(panel: Panel, x: AxisScale, width: int, plain: bool) -> str:
    """The line below, with stretches and rules of x on it."""
    line = list(("-" if plain else "─") * width)
    for mark in panel.marks:
        if isinstance(mark, Stretch):
            a, b = (int(np.clip(x(edge) * width, 0, width - 1)) for edge in (mark.low, mark.high))
            line[a : b + 1] = "[" + "=" * (b - a - 1) + "]" if b > a else "="
        elif isinstance(mark, Rule) and mark.along == "x":
            line[int(np.clip(x(mark.at) * width, 0, width - 1))] = "^"
    return "".join(line)


def _ticks(x: AxisScale, width: int) -> str:
    line = [" "] * (width + 8)
    free = 0
    for value in x.ticks(8):
        text, at = tick(value, x.axis), round(float(x(value)) * (width - 1))
        if at >= free:
            line[at : at + len(text)] = text
            free = at + len(text) + 2
    return "".join(line).rstrip()
