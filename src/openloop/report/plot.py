"""A report on a terminal: the same verdict, its numbers, and its first figure drawn with letters."""

from collections.abc import Iterable
from dataclasses import replace

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
BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a Braille letter, by row and column
MOST_ROWS = 12


def show_report(report: Report) -> None:
    """On standard output: with a plot where it is a terminal."""
    page = Page(report.verdict != "invalid")
    page.line(f"{report.title} · {report.subtitle}")
    page.line(report.word.upper(), style="bold green" if report.verdict == "good" else "bold red")
    page.line(report.headline, style="bold")
    for sentence in report.sentences:
        page.line(sentence)
    page.table("", ("", ""), report.numbers)
    for figure in report.figures[:1]:
        if figure.panels[0].y.scale != "names" and _lines(figure.panels[0]) and page.console.is_terminal:
            page.console.print()
            page.line(figure.title)
            page.console.print(text_plot(figure))
    tables = [part for section in report.sections[:2] for part in section.parts if isinstance(part, Table)]
    for table in tables[:2]:
        page.show(replace(table, rows=table.rows[:MOST_ROWS]))


def show_answer(lines: Iterable[str], figure: Figure | None) -> None:
    """A few lines and, on a terminal, a figure."""
    page = Page(valid=True)
    for line in lines:
        page.line(line)
    if figure and page.console.is_terminal:
        page.console.print()
        page.console.print(text_plot(figure))


def text_plot(figure: Figure, width: int = 68, height: int = 14) -> Text:
    """The first panel."""
    panel = figure.panels[0]
    x, y = x_scale(figure.x, figure.panels), y_scale(panel)
    curves = _lines(panel)
    labels = {round(float((1 - y(value)) * (height - 1))): tick(value, y.axis) for value in y.ticks(4)}
    margin = max(map(len, labels.values()), default=0)
    found = Text()
    for row, cells in enumerate(_braille(curves, x, y, width, height)):
        found.append(f"{labels.get(row, ''):>{margin}} │")
        for sign, color in cells:
            found.append(sign, HUES.get(color, ""))
        found.append("\n")
    found.append(" " * margin + " └" + _axis(panel, x, width) + "\n")
    found.append(" " * (margin + 2) + _ticks(x, width) + "\n")
    found.append(" " * (margin + 2) + f"{figure.x.label}   ")
    for mark in curves:
        found.append("━ ", HUES.get(mark.color, ""))
        found.append(f"{printable(mark.name)}   ")
    found.append("".join(f"[=] {printable(mark.name)}" for mark in panel.marks if isinstance(mark, Stretch)))
    return found


def _lines(panel: Panel) -> list[Curve]:
    return [mark for mark in panel.curves if isinstance(mark, Curve) and mark.style in ("line", "dashed", "steps")]


Cells = list[list[tuple[str, str]]]


def _heights(mark: Curve, x: AxisScale, y: AxisScale, places: Floats) -> Floats:
    """How high the curve is at places along x, both from 0 to 1; NaN outside of it."""
    known = np.isfinite(mark.x) & np.isfinite(mark.y)
    return np.interp(places, x(mark.x[known]), y(mark.y[known]), np.nan, np.nan) if known.any() else places * np.nan


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


def _axis(panel: Panel, x: AxisScale, width: int) -> str:
    """The line below, with stretches and rules of x on it."""
    line = list("─" * width)
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
