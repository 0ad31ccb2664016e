"""A report as Markdown, short enough for a pull request: the verdict, the numbers, and the small tables."""

from collections.abc import Iterator

from openloop.report.page import Number, Report, Table

MOST_ROWS = 40
LEFT_OUT = ("manifest",)  # nobody reads it there


def markdown(report: Report) -> str:
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    sign = {"good": "✅", "invalid": "⚠️ not valid:", "live": "⏳"}[report.verdict]
    yield from (f"### {sign} {_safe(report.headline)}", "", f"{_safe(report.title)} · {_safe(report.subtitle)}", "")
    yield from (f"- {_safe(sentence)}" for sentence in report.sentences)
    yield ""
    yield from _table(Table(("", "", ""), report.numbers), struck=report.verdict == "invalid")
    for section in report.sections:
        tables = [part for part in section.parts if isinstance(part, Table) and part.rows]
        if section.key in LEFT_OUT or not tables:
            continue
        yield from ("", f"<details><summary>{_safe(section.title)}</summary>", "")
        yield from (line for table in tables for line in (*_table(table, report.verdict == "invalid"), ""))
        yield "</details>"


def _table(table: Table, struck: bool) -> Iterator[str]:
    figures = any(isinstance(cell, Number) for row in table.rows for cell in row)
    yield f"| {' | '.join(_safe(name) or ' ' for name in table.header)} |"
    yield f"|{'|'.join('---:' if figures and place else '---' for place in range(len(table.header)))}|"
    for row in table.rows[:MOST_ROWS]:
        yield f"| {' | '.join(_cell(cell, struck) for cell in row)} |"
    if len(table.rows) > MOST_ROWS:
        yield f"\n{len(table.rows) - MOST_ROWS} more rows are in the page."
    if table.note:
        yield f"\n{_safe(table.note)}"


def _cell(cell: str | Number, struck: bool) -> str:
    if isinstance(cell, str):
        return _safe(cell)
    return f"~~{cell}~~" if struck and not cell.sound and str(cell) != "-" else _safe(str(cell))


def _safe(text: str) -> str:
    """Text from a run stays text: no links, no HTML, no further columns, no mentions."""
    return " ".join(text.translate(_SAFE).split())


_SAFE = {ord(sign): f"&#{ord(sign)};" for sign in "\\`*_[]<>|#@!&~"}
