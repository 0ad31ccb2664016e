"""A report as one HTML file that needs nothing else: no network, no fonts, no framework.

Whatever comes from a run is escaped, and the page's policy runs no script but its own.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from openloop import __version__
from openloop.report.marks import Bars, Curve, Figure
from openloop.report.page import Cell, Number, Report, Section, Table
from openloop.report.scales import x_scale
from openloop.report.svg import NARROW, WIDE, svg

TOP = (
    '<header class="top"><span class="brand">openloop</span>'
    '<button id="theme" type="button" aria-label="Change between light and dark">Theme</button></header>'
)


# Marks that turn text round, also what stands behind them: shown as something that cannot be shown.
TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")


def asset(name: str, room: str = "report") -> str:
    return files(f"openloop.{room}").joinpath(name).read_text(encoding="utf-8")


def page(report: Report) -> str:
    data = f'<script type="application/json" id="data">{_json(report.data)}</script>'
    return document(f"{report.title} - openloop", TOP + body(report) + data, [asset("page.js")])


def document(title: str, inside: str, scripts: Iterable[str], *, connect: bool = False) -> str:
    """A whole page; `connect` lets it ask the server that it came from."""
    style, scripts = asset("page.css"), list(scripts)
    own = "'self'" if connect else "'none'"
    run = "".join(f"<script>{script}</script>" for script in scripts)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(map(_hash, scripts))}; img-src data:; "
        f"connect-src {own}; base-uri 'none'; form-action {own}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{escape(_unturned(title))}</title><link rel="icon" href="data:,"><style>{style}</style></head>'
        f"<body>{_unturned(inside)}{run}</body></html>\n"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def body(report: Report) -> str:
    return _unturned("".join(_body(report)))


def _unturned(text: str) -> str:
    return TURNING.sub("\ufffd", text)


def _body(report: Report) -> Iterator[str]:
    yield f'<main class="{report.verdict}"><section class="verdict">'
    yield f'<p class="what"><strong>{escape(report.title)}</strong> {escape(report.subtitle)}</p>'
    yield f'<p class="badge">{escape(report.word)}</p><h1>{escape(report.headline)}</h1>'
    yield "".join(f"<p>{escape(sentence)}</p>" for sentence in report.sentences)
    yield '<dl class="numbers">'
    for name, number, about in report.numbers:
        yield f"<div><dt>{escape(name)}</dt><dd>{_number(number)}<small>{escape(about)}</small></dd></div>"
    yield '</dl></section><nav aria-label="Sections">'
    named = [each for each in report.sections if not each.key.startswith("point-")]
    yield "".join(f'<a href="#{each.key}">{escape(each.title)}</a>' for each in named)
    yield "</nav>"
    for section in report.sections:
        yield from _section(section)
    yield f"</main><footer>Made by openloop {__version__}. Throughput counts attempts; goodput counts wins.</footer>"
    yield '<div id="tip" role="status" hidden></div>'


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{escape(section.key)}"><h2>{escape(section.title)}</h2>'
    yield f'<p class="lead">{escape(section.lead)}</p>'
    if section.folded:
        yield "<details><summary>Show</summary>"
    for part in section.parts:
        if isinstance(part, Table):
            yield from _table(part)
        elif isinstance(part, Figure):
            yield from _figure(part)
        else:
            yield f"<p>{escape(part)}</p>"
    if section.folded:
        yield "</details>"
    if section.footnote:
        yield f'<p class="footnote">{escape(section.footnote)}</p>'
    yield "</section>"


def _table(table: Table) -> Iterator[str]:
    figures = any(isinstance(cell, Number) for row in table.rows for cell in row)
    kinds = [' class="n"' if figures and place else "" for place in range(len(table.header))]
    yield '<div class="table" tabindex="0" role="region" aria-label="Table"><table>'
    if any(table.header):
        heads = (f"<th{kind}>{escape(name)}</th>" for name, kind in zip(table.header, kinds, strict=True))
        yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        cells = (f"<td{kind}>{_number(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
    if table.note:
        yield f'<p class="note">{escape(table.note)}</p>'


def _number(number: Cell) -> str:
    if isinstance(number, str):
        return escape(number)
    key = f' data-key="{escape(number.key)}"' if number.key else ""
    value = "" if number.value is None or not np.isfinite(number.value) else repr(float(number.value))
    sound = ' class="sound"' if number.sound else ""
    return f'<data value="{value}" data-unit="{number.unit}"{key}{sound}>{escape(str(number))}</data>'


def _figure(figure: Figure) -> Iterator[str]:
    title = escape(figure.title)
    yield f'<figure id="figure-{escape(figure.key)}" tabindex="0" aria-label="{title}"><h3>{title}</h3>'
    yield "".join(_legend(figure))
    yield svg(figure, WIDE) + svg(figure, NARROW)
    yield f"<figcaption>{escape(figure.note)}</figcaption>"
    yield f'<script type="application/json" class="points">{_json(_points(figure))}</script></figure>'


def _legend(figure: Figure) -> Iterator[str]:
    """A button for each curve: what it is, and whether it is shown."""
    marks = [mark for panel in figure.panels for mark in panel.curves]
    names = list(dict.fromkeys(mark.name for mark in marks))
    if len(names) < 2:
        return
    yield '<div class="legend">'
    for name in names:
        numbers = [number for number, mark in enumerate(marks) if mark.name == name]
        mark = marks[numbers[0]]
        style = "bar" if isinstance(mark, Bars) else mark.style
        which = " ".join(map(str, numbers))
        yield f'<button type="button" class="{mark.color}" aria-pressed="true" data-marks="{which}">'
        yield f'<i class="{style}"></i>{escape(name)}</button>'
    yield "</div>"


def _points(figure: Figure) -> dict[str, Any]:
    """What the page shows at the pointer."""
    x = x_scale(figure.x, figure.panels)
    panels = [
        {
            "unit": panel.y.unit if panel.y.scale != "names" else "",
            "names": list(panel.y.names),
            "marks": [
                {
                    "name": mark.name,
                    "kind": "bar" if isinstance(mark, Bars) else mark.style,
                    "x": _rounded(mark.end if isinstance(mark, Bars) else mark.x),
                    "y": _rounded(mark.end - mark.start if isinstance(mark, Bars) else mark.y),
                    **_ends(mark),
                }
                for mark in panel.curves
            ],
        }
        for panel in figure.panels
    ]
    return {"x": {"low": x.low, "high": x.high, "scale": figure.x.scale, "unit": figure.x.unit}, "panels": panels}


def _ends(mark: Curve | Bars) -> dict[str, list[float | None]]:
    """Of the interval around each point."""
    if isinstance(mark, Bars) or mark.style == "area" or mark.low is None or mark.high is None:
        return {}
    return {"low": _rounded(mark.low), "high": _rounded(mark.high)}


def _rounded(values: Any) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _json(value: Any) -> str:
    """JSON inside a page: nothing in it can end the element that holds it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
