"""Runs and scores as a notebook shows them: the tables of the terminal, and a chart."""

import io
from collections.abc import Callable

from rich.console import Console

from openloop.records import Run
from openloop.report.chart import Chart
from openloop.report.terminal import WIDTH, inspection, show_inspection, show_score
from openloop.score import Score

PAGE = '<pre style="font-family:ui-monospace,monospace;line-height:1.3;overflow-x:auto;white-space:pre">{code}</pre>'
SHOWN_ROWS = 5


def run_html(run: Run) -> str:
    return _recorded(lambda console: show_inspection(inspection(run, None, SHOWN_ROWS), console))


def score_html(score: Score) -> str:
    return _recorded(lambda console: show_score(score, console)) + _latencies(score)


def _recorded(show: Callable[[Console], None]) -> str:
    console = Console(
        record=True, file=io.StringIO(), force_terminal=True, highlight=False, soft_wrap=True, width=WIDTH
    )
    show(console)
    return console.export_html(inline_styles=True, code_format=PAGE)


def _latencies(score: Score) -> str:
    """Percentiles of the latencies that gates look at, from schedule and from send."""
    found = {name: getattr(score, f"{name}_s") for name in ("ttft", "tpot", "e2e")}
    known = {name: values for name, values in found.items() if values is not None}
    if not known:
        return ""
    title = "Latency by percentile" + ("" if score.valid else " (of a run that is not valid)")
    chart = Chart(title, "percentile", "ms", log_y=True, size=(7.0, 3.2))
    steps = ("p50", "p90", "p95", "p99", "p99_9")
    chart.ticks([step.replace("_", ".") for step in steps])
    for name, values in known.items():
        chart.line(range(len(steps)), [1e3 * getattr(values, step) for step in steps], name)
    return chart.svg().partition("?>")[2]
