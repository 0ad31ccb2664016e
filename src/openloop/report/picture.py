"""A figure of a report as .svg or .png, drawn by matplotlib: no browser needed."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from openloop.report.chart import COLORS, STYLE
from openloop.report.files import save_picture
from openloop.report.marks import Bars, Curve, Figure, Mark, Panel, Rule, Stretch
from openloop.report.scales import AxisScale, tick, x_scale, y_scale

INK = "#222222"
INCH = 90  # of a panel's height


def draw_figure(figure: Figure, path: Path) -> None:
    x, ys = x_scale(figure.x, figure.panels), [y_scale(panel) for panel in figure.panels]
    heights = [panel.height / INCH if not panel.y.names else 0.5 + 0.3 * len(panel.y.names) for panel in figure.panels]
    with mpl.rc_context(STYLE):
        canvas = Canvas((9.0, sum(heights) + 1.5 + 0.3 * len(heights)), layout="constrained")
        drawn = canvas.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel, y in zip(drawn, figure.panels, ys, strict=True):
            _draw_panel(axes, panel, x, y)
        drawn[-1].set_xlabel(figure.x.label)
        canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        canvas.supxlabel(figure.note, x=0.01, ha="left", fontsize=8, color=COLORS["grey"], wrap=True)
        save_picture(canvas, path)


def _draw_panel(axes: Axes, panel: Panel, x: AxisScale, y: AxisScale) -> None:
    """Everything in places between 0 and 1, so that the axes are those of the page."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_axisbelow(True)
    for axis, scale, most in ((axes.xaxis, x, 10), (axes.yaxis, y, 6 if panel.height > 120 else 3)):
        names = {float(scale(value)): tick(value, scale.axis) for value in scale.ticks(most)}
        axis.set_ticks(list(names), list(names.values()))
    if panel.y.names:
        axes.grid(visible=False, axis="y")
    axes.set_title(panel.y.label, loc="left", fontsize=9, color=COLORS["grey"])
    for mark in panel.marks:
        match mark:
            case Rule(along="x"):
                axes.axvline(float(x(mark.at)), color=_color(mark), linestyle="--", linewidth=1.2, label=mark.name)
            case Rule():
                axes.axhline(float(y(mark.at)), color=_color(mark), linestyle=":", linewidth=1.4, label=mark.name)
            case Stretch():
                a, b = (float(x(np.clip(edge, x.low, x.high))) for edge in (mark.low, mark.high))
                axes.axvspan(a, b, color=_color(mark), alpha=0.15, linewidth=0, label=mark.name)
            case Bars():
                left, places = x(mark.start), y(np.arange(len(mark.start)))
                wide, high = x(mark.end) - left, 0.6 / len(panel.y.names)
                axes.barh(places, wide, high, left, color=_color(mark), label=mark.name)
            case Curve():
                _draw_curve(axes, mark, x, y)
    named = {name: line for line, name in zip(*axes.get_legend_handles_labels(), strict=True) if name}
    if named:
        look: Any = {"fontsize": 8, "frameon": False, "ncols": 3, "columnspacing": 1.2, "borderaxespad": 0.1}
        axes.legend(named.values(), named.keys(), loc="lower right", bbox_to_anchor=(1.0, 1.0), **look)


def _draw_curve(axes: Axes, mark: Curve, x: AxisScale, y: AxisScale) -> None:
    px, py = x(mark.x), y(mark.y)
    color = _color(mark)
    if mark.low is not None and mark.high is not None:
        low, high = (y(np.clip(edge, min(y.low, y.high), max(y.low, y.high))) for edge in (mark.low, mark.high))
        if mark.style == "dots":
            known = np.isfinite(mark.high)
            axes.vlines(px[known], low[known], high[known], color=color, linewidth=1.2)
        else:
            axes.fill_between(px, low, high, color=color, alpha=0.16, linewidth=0, label=mark.name)
    if mark.style == "area":
        return
    how: dict[str, Any] = {"color": color, "label": mark.name}
    few = np.zeros(len(px), np.bool_) if mark.few is None else mark.few
    if mark.style == "dots":
        size = 4 if mark.keys or len(px) < 60 else 2
        axes.plot(px[~few], py[~few], "o", markersize=size, alpha=1 if mark.keys else 0.6, **how)
    else:
        dots = "o" if len(px) <= 60 and mark.style == "line" else ""
        drawn = "steps-post" if mark.style == "steps" else "default"
        line = "--" if mark.style == "dashed" else "-"
        axes.plot(px, py, line, marker=dots, markersize=4, drawstyle=drawn, linewidth=1.6, **how)
    if few.any():
        axes.plot(px[few], py[few], "o", markersize=5, markerfacecolor="white", **how)


def _color(mark: Mark) -> str:
    return COLORS.get(mark.color, INK)
