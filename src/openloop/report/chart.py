"""Charts in one style, as SVG or PNG, without a browser."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import ArrayLike

from openloop.errors import SpecError
from openloop.report.files import save_picture

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

LABEL_ROOM = 13.0  # points between labels above each other
LETTER = 5.0  # points that a letter of a small label takes
TITLE_ROOM = 10.0


class Chart:
    """One pair of axes. Add lines, distributions and marks; then `save`, or take the `svg`."""

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
        with mpl.rc_context(STYLE):
            self._figure = Figure(size, layout="constrained")
            self._axes = self._figure.add_subplot()
            self._axes.set(xlabel=x, ylabel=y)
        self._axes.set_axisbelow(True)
        self._title = title
        self._ends: list[tuple[float, float, str, str]] = []
        self._marks: list[tuple[float, str, str]] = []
        self._labelled = False
        self._unused = [name for name in COLORS if name != "grey"]
        for log, axis, scale in ((log_x, self._axes.xaxis, "x"), (log_y, self._axes.yaxis, "y")):
            if log:
                self._axes.set(**{f"{scale}scale": "log"})
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axis.set_minor_formatter(NullFormatter())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        if shares:
            self._axes.yaxis.set_major_formatter(PercentFormatter(1.0))

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
        """A line with a dot at each point, its label at its right end, and its interval as a band."""
        shade = self._color(color)
        xs, ys = np.asarray(x, float), np.asarray(y, float)
        marker = "o" if len(xs) <= 50 else ""
        self._axes.plot(xs, ys, color=shade, linestyle="--" if dashed else "-", marker=marker, markersize=4)
        if band is not None:
            low, high = (np.asarray(edge, float) for edge in band)
            self._axes.fill_between(xs, low, high, color=shade, alpha=0.15, linewidth=0)
        known = np.flatnonzero(np.isfinite(xs) & np.isfinite(ys))
        if len(known):
            self._ends.append((xs[known[-1]], ys[known[-1]], label, shade))

    def points(self, x: ArrayLike, y: ArrayLike, labels: Sequence[str], *, color: str | None = None) -> None:
        """Points joined in their order, each with a label of its own."""
        shade = self._color(color)
        xs, ys = np.asarray(x, float), np.asarray(y, float)
        self._axes.plot(xs, ys, color=shade, marker="o", markersize=5, linewidth=1, alpha=0.9)
        for each_x, each_y, label in zip(xs, ys, labels, strict=True):
            self._write(label, (each_x, each_y), (0, 9), ha="center", fontsize=9, color="#333333")

    def distribution(self, values: ArrayLike, *, marks: Sequence[float] = (0.5, 0.95, 0.99), unit: str = "ms") -> None:
        """A histogram up to the 99.9th percentile, with percentiles marked where they fall."""
        sample = np.sort(np.asarray(values, float))
        top = float(np.quantile(sample, 0.999))
        beyond = int(np.sum(sample > top))
        self._axes.hist(sample[sample <= top], bins=80, color=COLORS["sky"], edgecolor="white", linewidth=0.3)
        self._axes.margins(x=0.02)
        for share in marks:
            value = float(np.quantile(sample, share))
            self.mark_x(value, f"p{100 * share:g} {value:,.0f} {unit}", color="red" if share >= 0.99 else "blue")
        note = f"n = {len(sample):,}" + (f", {beyond:,} beyond the right edge" if beyond else "")
        self.note(note)

    def mark_x(self, value: float, label: str, *, color: str = "grey") -> None:
        """A vertical line, its label above the plot."""
        self._axes.axvline(value, color=COLORS[color], linestyle="--", linewidth=1.2)
        self._marks.append((value, label, COLORS[color]))

    def mark_y(self, value: float, label: str, *, color: str = "grey") -> None:
        """A horizontal line, its label above it."""
        self._axes.axhline(value, color=COLORS[color], linestyle="--", linewidth=1.2)
        self._write(label, (0.01, value), (0, 3), xycoords=("axes fraction", "data"), fontsize=9, color=COLORS[color])

    def note(self, text: str) -> None:
        """Small print in the lower right corner."""
        small: Any = {"fontsize": 8, "color": COLORS["grey"]}
        self._write(text, (1.0, 0.0), (0, -34), xycoords="axes fraction", ha="right", **small)

    def _write(self, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
        self._axes.annotate(text, at, offset, textcoords="offset points", **how)

    def ticks(self, names: Sequence[str]) -> None:
        """Words along x, at 0, 1, 2, ..."""
        self._axes.set_xticks(range(len(names)), names)

    def limits(self, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        if x:
            self._axes.set_xlim(*x)
        if y:
            self._axes.set_ylim(*y)

    def svg(self) -> str:
        drawn = io.StringIO()
        with mpl.rc_context(STYLE):
            self._label()
            self._figure.savefig(drawn, format="svg", metadata={"Date": None})
        return drawn.getvalue()

    def _repr_svg_(self) -> str:
        """For notebooks."""
        return self.svg()

    def save(self, path: str | Path) -> None:
        """Write an .svg or a .png."""
        path = Path(path)
        if path.suffix.lower() not in (".svg", ".png"):
            raise SpecError(f"{path}: a chart is saved as .svg or .png")
        with mpl.rc_context(STYLE):
            self._label()
            save_picture(self._figure, path)

    def _label(self) -> None:
        if not self._labelled:
            self._label_marks()
            self._label_ends()
            self._figure.draw_without_rendering()
            self._figure.set_layout_engine("none")  # as it is now, so that every file shows the same
            self._labelled = True

    def _label_marks(self) -> None:
        """Labels of vertical lines, in as many rows above the plot as it takes to keep them apart."""
        self._figure.draw_without_rendering()
        rows: list[float] = []  # where the last label of each row ends, in points
        for value, label, color in sorted(self._marks):
            middle = self._axes.transData.transform((value, 0))[0] * 72 / self._figure.dpi
            half = LETTER * len(label) / 2
            row = next((row for row, end in enumerate(rows) if end < middle - half), len(rows))
            rows[row : row + 1] = [middle + half + LETTER]
            above = (0, 3 + LABEL_ROOM * row)
            how: Any = {"xycoords": ("data", "axes fraction"), "ha": "center", "fontsize": 9}
            self._write(label, (value, 1.0), above, color=color, **how)
        self._axes.set_title(self._title, loc="left", fontweight="bold", pad=TITLE_ROOM + LABEL_ROOM * len(rows))

    def _label_ends(self) -> None:
        """Labels beside the right ends of lines, moved apart where lines end close together."""
        transform = self._axes.transData
        scale = 72 / self._figure.dpi
        self._figure.draw_without_rendering()
        heights = [transform.transform((x, y))[1] * scale for x, y, _, _ in self._ends]
        placed = -np.inf
        for index in np.argsort(heights):
            x, y, label, color = self._ends[index]
            placed = max(heights[index], placed + LABEL_ROOM)
            offset = (7, placed - heights[index])
            self._write(label, (x, y), offset, va="center", color=color, annotation_clip=False)

    def _color(self, name: str | None) -> str:
        name = name or (self._unused[0] if self._unused else "grey")
        if name in self._unused:
            self._unused.remove(name)
        return COLORS[name]
