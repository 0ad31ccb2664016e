"""A figure as SVG for a page: colours are the page's, so it follows light, dark and print."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from openloop.arrays import Bools, Floats, Ints
from openloop.report.marks import Axis, Bars, Curve, Figure, Panel, Rule, Stretch
from openloop.report.scales import AxisScale, short_tick, shortened, tick, x_scale, y_scale

WIDE, NARROW = 860, 360  # of a desk or paper, and of a phone

LETTER = 6.4  # width of one, of the size that axes are written in
LINE = 16.0
DOTS = 60  # a line of so many points shows each of them
LONGEST_NAME = {WIDE: 26, NARROW: 13}


@dataclass(frozen=True)
class _Box:
    """Where a panel is drawn."""

    left: float
    top: float
    width: float
    height: float
    x: AxisScale
    y: AxisScale

    def at_x(self, values: ArrayLike) -> Floats:
        return self.left + self.width * self.x(values)

    def at_y(self, values: ArrayLike) -> Floats:
        return self.top + self.height * (1 - self.y(values))

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


def svg(figure: Figure, width: int) -> str:
    """The figure at one width; marks carry the number of their curve, so that the page can hide them."""
    x = x_scale(figure.x, figure.panels)
    scales = [y_scale(panel) for panel in figure.panels]
    written = [short_tick(v, s.axis, LONGEST_NAME[width]) for s in scales for v in s.ticks(6)]
    left = 10 + LETTER * max(map(len, written), default=4)
    top, inside = 4.0, []
    number = 0
    for panel, y in zip(figure.panels, scales, strict=True):
        rows = _label_rows(panel, lambda at: float(left + (width - left - 14) * x(at)), left, width)
        height = panel.height if y.axis.scale != "names" else max(26.0 * len(y.axis.names), 40)
        box = _Box(left, top + LINE * (1.6 + len(set(rows.values()))), width - left - 14, height, x, y)
        inside.append("".join(_panel(panel, box, rows, number, width)))
        number += len(panel.curves)
        top = box.bottom + 8
    inside.append("".join(_x_axis(figure.x, box)))
    total = top + LINE * 2.4
    return (
        f'<svg class="{"wide" if width == WIDE else "narrow"}" viewBox="0 0 {width} {total:.0f}" role="img" '
        f'aria-label="{escape(figure.title)}">{"".join(inside)}</svg>'
    )


def _panel(panel: Panel, box: _Box, rows: dict[int, int], number: int, width: int) -> Iterator[str]:
    yield f'<g class="panel" data-box="{box.left:.1f} {box.top:.1f} {box.width:.1f} {box.height:.1f}">'
    yield from _y_axis(panel.y, box, len(set(rows.values())), width)
    for place, mark in enumerate(panel.marks):
        match mark:
            case Stretch() | Rule(along="x"):
                yield _above(mark, box, rows.get(place, 0), width)
            case Rule():
                y = float(box.at_y(mark.at))
                yield f'<path class="rule {mark.color}" d="M{box.left:.1f} {y:.1f}H{box.right:.1f}"/>'
    for place, mark in enumerate(panel.curves, number):
        drawn = "".join(_curve(mark, box) if isinstance(mark, Curve) else _bars(mark, box))
        yield f'<g class="mark {mark.color}" data-mark="{place}">{drawn}</g>'
    yield from _level_names([mark for mark in panel.marks if isinstance(mark, Rule) and mark.along == "y"], box)
    yield "</g>"


def _y_axis(axis: Axis, box: _Box, rows: int, width: int) -> Iterator[str]:
    """Its title stands above so many lines of names."""
    if axis.label:
        yield _text(0, box.top - LINE * (0.8 + rows), axis.label, "title")
    for value in box.y.ticks(6 if box.height > 120 else 3):
        y = float(box.at_y(value))
        if axis.scale != "names":
            yield f'<path class="grid" d="M{box.left:.1f} {y:.1f}H{box.right:.1f}"/>'
        yield _text(box.left - 6, y + 4, short_tick(value, axis, LONGEST_NAME[width]), "end")
    for value in box.x.ticks(8):
        if box.x.axis.scale != "names":
            yield f'<path class="grid" d="M{float(box.at_x(value)):.1f} {box.top:.1f}V{box.bottom:.1f}"/>'


def _x_axis(axis: Axis, box: _Box) -> Iterator[str]:
    room = -np.inf
    for value in box.x.ticks(8):
        x, label = float(box.at_x(value)), tick(value, axis)
        half = LETTER * len(label) / 2
        place = min(x, box.right + 12 - half)
        if place - half > room:
            yield _text(place, box.bottom + LINE, label, "middle")
            room = place + half + 6
    yield _text(box.right, box.bottom + LINE * 2.1, axis.label, "end title")
    yield f'<path class="axis" d="M{box.left:.1f} {box.bottom:.1f}H{box.right:.1f}"/>'


def _label_rows(panel: Panel, at_x: Callable[[float], float], left: float, width: int) -> dict[int, int]:
    """In which line above the panel the names of upright rules and stretches stand, so that none cover each other."""
    rows: dict[int, int] = {}
    ends: list[float] = []
    named = [
        (at_x(mark.at if isinstance(mark, Rule) else (mark.low + mark.high) / 2), place, mark.name)
        for place, mark in enumerate(panel.marks)
        if mark.name and (isinstance(mark, Stretch) or (isinstance(mark, Rule) and mark.along == "x"))
    ]
    for middle, place, name in sorted(named):
        half = LETTER * len(shortened(name, LONGEST_NAME[width])) / 2
        middle = float(np.clip(middle, left + half, width - half))
        row = next((row for row, end in enumerate(ends) if end < middle - half), len(ends))
        ends[row : row + 1] = [middle + half + LETTER]
        rows[place] = row
    return rows


def _above(mark: Rule | Stretch, box: _Box, row: int, width: int) -> str:
    """A stretch or an upright rule, with its name above the panel."""
    if isinstance(mark, Stretch):
        a, b = (float(box.at_x(np.clip(edge, box.x.low, box.x.high))) for edge in (mark.low, mark.high))
        drawn = (
            f'<rect class="band" x="{a:.1f}" y="{box.top:.1f}" width="{max(b - a, 1):.1f}" height="{box.height:.1f}"/>'
        )
    else:
        a = b = float(box.at_x(mark.at))
        drawn = f'<path class="rule" d="M{a:.1f} {box.top:.1f}V{box.bottom:.1f}"/>'
    name = shortened(mark.name, LONGEST_NAME[width])
    half = LETTER * len(name) / 2
    x = min(max((a + b) / 2, box.left + half), box.right + 14 - half)
    return f'<g class="{mark.color}">{drawn}{_text(x, box.top - 5 - LINE * row, name, "middle name")}</g>'


def _level_names(marks: list[Rule], box: _Box) -> Iterator[str]:
    """Each at the right end of its rule, or further left where another is in the way; none where there is no room."""
    taken: list[tuple[float, float]] = []  # from where to the right, and how high
    for mark in marks:
        y = float(box.at_y(mark.at))
        y, right = y - 5 if y - box.top > LINE else y + 13, box.right - 4
        for left, other in taken:
            if abs(other - y) < 0.8 * LINE:
                right = min(right, left - LETTER)
        left = right - LETTER * len(mark.name)
        if left > box.left:
            taken.append((left, y))
            yield f'<g class="{mark.color}">{_text(right, y, mark.name, "name halo end")}</g>'


def _curve(mark: Curve, box: _Box) -> Iterator[str]:
    x, y = box.at_x(mark.x), box.at_y(mark.y)
    known = np.isfinite(mark.x) & np.isfinite(mark.y)
    if mark.low is not None and mark.high is not None:
        low, high = (box.at_y(np.clip(edge, box.y.low, box.y.high)) for edge in (mark.low, mark.high))
        if mark.style == "dots":
            ends = np.where(np.isinf(mark.high), y - 14, high)  # an arrow where nothing bounds it
            bars = zip(x[known], low[known], ends[known], np.isinf(mark.high[known]), strict=True)
            drawn = (f"M{a:.1f} {b:.1f}V{c:.1f}{'m-3 5l3-5l3 5' if open_ else ''}" for a, b, c, open_ in bars)
            yield f'<path class="whisker" d="{"".join(drawn)}"/>'
        else:
            bounded = np.isfinite(mark.low) & np.isfinite(mark.high) & np.isfinite(mark.x)
            for inside in _pieces(bounded):
                edges = [
                    *zip(x[inside], low[inside], strict=True),
                    *zip(x[inside][::-1], high[inside][::-1], strict=True),
                ]
                if len(inside) > 1:
                    kind = "band deep" if mark.style == "area" else "band"
                    yield f'<path class="{kind}" d="M{"L".join(f"{a:.1f} {b:.1f}" for a, b in edges)}Z"/>'
    if mark.style == "area":
        return
    if mark.style != "dots":
        kind = "line dashed" if mark.style == "dashed" else "line"
        yield f'<path class="{kind}" d="{_path(x, y, known, steps=mark.style == "steps")}"/>'
    if mark.keys or mark.few is not None or (len(x) <= DOTS and mark.style in ("line", "dots")):
        yield from _circles(mark, mark.x if box.y.axis.scale == "names" else mark.y, x, y, known)
    elif mark.style == "dots":
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x[known], y[known], strict=True))
        yield f'<path class="dots" d="{dots}"/>'


def _circles(mark: Curve, values: Floats, x: Floats, y: Floats, known: Bools) -> Iterator[str]:
    few = np.zeros(len(x), np.bool_) if mark.few is None else mark.few
    for i in np.flatnonzero(known).tolist():
        told = _told(mark, i, float(values[i]))
        kind = "few" if few[i] else "dot"
        yield f'<circle class="{kind}" cx="{x[i]:.1f}" cy="{y[i]:.1f}" r="{3.4 if few[i] else 3}"{told}/>'


def _told(mark: Curve | Bars, i: int, value: float) -> str:
    return f' data-key="{escape(mark.keys[i])}" data-value="{value!r}"' if mark.keys else ""


def _pieces(known: Bools) -> list[Ints]:
    """Places of what is known, apart where something between is not."""
    split = np.split(np.arange(len(known)), np.flatnonzero(~known))
    return [inside for piece in split if len(inside := piece[known[piece]])]


def _path(x: Floats, y: Floats, known: Bools, *, steps: bool) -> str:
    drawn = ""
    for first, *others in _pieces(known):
        drawn += f"M{x[first]:.1f} {y[first]:.1f}"
        drawn += "".join(f"H{x[i]:.1f}V{y[i]:.1f}" if steps else f"L{x[i]:.1f} {y[i]:.1f}" for i in others)
    return drawn


def _bars(mark: Bars, box: _Box) -> Iterator[str]:
    a, b = box.at_x(mark.start), box.at_x(mark.end)
    for i in range(len(a)):
        y = float(box.at_y(i)) - 8
        told = _told(mark, i, float(mark.end[i] - mark.start[i]))
        left, wide = min(a[i], b[i]), abs(b[i] - a[i])
        yield f'<rect class="bar" x="{left:.1f}" y="{y:.1f}" width="{wide:.1f}" height="16" rx="2"{told}/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'
