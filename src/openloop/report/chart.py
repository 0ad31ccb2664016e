"""Figures as .svg or .png, drawn by matplotlib in one style: those of reports, and charts made by hand."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from numpy.typing import ArrayLike

from openloop.errors import SpecError
from openloop.report.files import save_picture
from openloop.report.marks import Axis, Bars, Curve, Figure, Mark, Panel, Rule, Stretch
from openloop.report.scales import AxisScale, short_tick, x_scale, y_scale

# Told apart by people who see colours differently (Okabe and Ito).
COLORS = {
    "orange": "#E69F00",
    "green": "#009E73",
    "blue": "#0072B2",
    "red": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "grey": "#777777",
}

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "axes.labelcolor": "#333333",
    "lines.linewidth": 2,
    "text.parse_math": False,  # a dollar sign in a name is one
    "svg.fonttype": "none",  # text stays text: small, sharp and searchable
    "svg.hashsalt": "openloop",
}

INK = "#222222"
INCH = 90  # of a panel's height
LONGEST_NAME = 40


def draw_figure(figure: Figure, path: Path, width: float = 9.0) -> None:
    with mpl.rc_context(STYLE):
        save_picture(_draw(figure, width), path)


def _draw(figure: Figure, width: float) -> Canvas:
    x, ys = x_scale(figure.x, figure.panels), [y_scale(panel) for panel in figure.panels]
    heights = [panel.height / INCH if not panel.y.names else 0.5 + 0.3 * len(panel.y.names) for panel in figure.panels]
    with mpl.rc_context(STYLE):
        canvas = Canvas((width, sum(heights) + 1.5 + 0.3 * len(heights)), layout="constrained")
        drawn = canvas.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel, y in zip(drawn, figure.panels, ys, strict=True):
            draw_panel(axes, panel, x, y)
        drawn[-1].set_xlabel(figure.x.label)
        canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        canvas.supxlabel(figure.note, x=0.01, ha="left", fontsize=8, color=COLORS["grey"], wrap=True)
        return canvas


def draw_panel(axes: Axes, panel: Panel, x: AxisScale, y: AxisScale, ticks: int = 10) -> None:
    """Everything in places between 0 and 1, so that the axes are those of the page."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_axisbelow(True)
    for axis, scale, most in ((axes.xaxis, x, ticks), (axes.yaxis, y, 6 if panel.height > 120 else 3)):
        names = {float(scale(value)): short_tick(value, scale.axis, LONGEST_NAME) for value in scale.ticks(most)}
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
            deep = 0.4 if mark.style == "area" else 0.16
            axes.fill_between(px, low, high, color=color, alpha=deep, linewidth=0, label=mark.name)
    if mark.style == "area":
        return
    places = np.nan_to_num(np.concatenate([px, py]), nan=0.5)
    cut = bool(np.any((places < -1e-9) | (places > 1 + 1e-9)))  # what stands on the edge is drawn whole
    how: dict[str, Any] = {"color": color, "clip_on": cut, "label": mark.name}
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
        axes.plot(px[few], py[few], "o", markersize=5, markerfacecolor="white", **how | {"label": None})
    for name, a, b in zip(mark.names, px, py, strict=False):
        axes.annotate(name, (a, b), (0, 9), textcoords="offset points", ha="center", fontsize=9)


def _color(mark: Mark) -> str:
    return COLORS.get(mark.color, INK)


def histogram(counts: ArrayLike, edges: ArrayLike, color: str) -> Curve:
    """Bars between edges, as an area."""
    x, y = np.repeat(np.asarray(edges, float), 2)[1:-1], np.repeat(np.asarray(counts, float), 2)
    return Curve("", x, y, color, "area", np.zeros(len(y)), y)


class Chart:
    """A figure of one panel. Add lines, distributions and marks; then `save`, or take the `svg`."""

    def __init__(
        self,
        title: str,
        x: str,
        y: str,
        *,
        log_x: bool = False,
        log_y: bool = False,
        shares: bool = False,
        size: tuple[float, float] = (8.0, 4.5),
    ) -> None:
        self._title, self._size, self._note = title, size, ""
        self._x = Axis(x, "number", "log" if log_x else "linear")
        self._y = Axis(y, "share" if shares else "number", "log" if log_y else "linear")
        self._marks: list[Mark] = []
        self._unused = [name for name in COLORS if name != "grey"]

    def line(
        self,
        x: ArrayLike,
        y: ArrayLike,
        label: str,
        *,
        color: str | None = None,
        dashed: bool = False,
        band: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> None:
        """A line with a dot at each point, and its interval as a band."""
        low, high = (None, None) if band is None else (np.asarray(edge, float) for edge in band)
        xs, ys = np.asarray(x, float), np.asarray(y, float)
        self._marks.append(Curve(label, xs, ys, self._color(color), "dashed" if dashed else "line", low, high))

    def points(self, x: ArrayLike, y: ArrayLike, labels: Sequence[str], *, color: str | None = None) -> None:
        """Points joined in their order, each with a label of its own."""
        self._marks.append(Curve("", np.asarray(x, float), np.asarray(y, float), self._color(color), names=labels))

    def distribution(self, values: ArrayLike, *, marks: Sequence[float] = (0.5, 0.95, 0.99), unit: str = "ms") -> None:
        """A histogram up to the 99.9th percentile, with percentiles marked where they fall."""
        sample = np.asarray(values, float)
        top = float(np.quantile(sample, 0.999))
        self._marks.append(histogram(*np.histogram(sample[sample <= top], 80), "sky"))
        for share in marks:
            value = float(np.quantile(sample, share))
            color = "blue" if share < 0.9 else "orange" if share < 0.99 else "red"
            self.mark_x(value, f"p{100 * share:g} {value:,.0f} {unit}", color=color)
        beyond = int(np.sum(sample > top))
        self.note(f"n = {len(sample):,}" + (f", {beyond:,} beyond the right edge" if beyond else ""))

    def mark_x(self, value: float, label: str, *, color: str = "grey") -> None:
        self._marks.append(Rule(value, label, "x", color))

    def mark_y(self, value: float, label: str, *, color: str = "grey") -> None:
        self._marks.append(Rule(value, label, "y", color))

    def note(self, text: str) -> None:
        """Small print below."""
        self._note = text

    def ticks(self, names: Sequence[str]) -> None:
        """Words along x, at 0, 1, 2, ..."""
        self._x = replace(self._x, scale="names", names=names)

    def limits(self, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        if x:
            self._x = replace(self._x, low=x[0], high=x[1])
        if y:
            self._y = replace(self._y, low=y[0], high=y[1])

    def svg(self) -> str:
        drawn = io.StringIO()
        with mpl.rc_context(STYLE):
            _draw(self._figure, self._size[0]).savefig(drawn, format="svg", metadata={"Date": None})
        return drawn.getvalue()

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return self.svg()

    def save(self, path: str | Path) -> None:
        """Write an .svg or a .png."""
        path = Path(path)
        if path.suffix.lower() not in (".svg", ".png"):
            raise SpecError(f"{path}: a chart is saved as .svg or .png")
        draw_figure(self._figure, path, self._size[0])

    @property
    def _figure(self) -> Figure:
        panel = Panel(self._y, self._marks, int(INCH * (self._size[1] - 1.8)))
        return Figure("chart", self._title, self._x, [panel], self._note)

    def _color(self, name: str | None) -> str:
        name = name or (self._unused[0] if self._unused else "grey")
        if name in self._unused:
            self._unused.remove(name)
        return name
