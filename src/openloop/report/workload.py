"""A workload before it is sent: a table and a picture for the terminal, and a figure."""

from pathlib import Path

import click
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from openloop.arrays import Ints
from openloop.errors import SpecError
from openloop.report.chart import STYLE, draw_panel, histogram
from openloop.report.files import save_picture
from openloop.report.marks import Axis, Curve, Panel
from openloop.report.scales import x_scale, y_scale
from openloop.units import format_rate, format_seconds
from openloop.workload import Demand, Description, known_tokens

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60
LETTERS = 110  # of a title


def show_workload(name: str, found: Description, demand: Demand) -> None:
    click.echo(name)
    click.echo()
    follow = found.requests - found.scheduled
    over = f"{format_rate(found.rate)} over {format_seconds(found.span_s)}"
    rows = [
        ("requests", f"{found.requests:,}" + (f", of which {follow:,} follow from answers" if follow else "")),
        ("arrivals", f"{over}, gaps vary by {found.gaps_cv:.2f}, busiest second {found.busiest_second:,}"),
        ("reuse", f"{found.reuse:.1%} of prompt tokens were seen before, by a cache without limits"),
    ]
    if found.sessions:
        rows.append(("sessions", f"{found.sessions:,}, {found.requests / found.sessions:.1f} turns each"))
    if found.classes:
        shares = [f"{each} {count / found.requests:.1%}" for each, count in found.classes.items()]
        rows.append(("classes", ", ".join(shares)))
    if found.tenants:
        rows.append(("tenants", f"{found.tenants:,}"))
    for label, text in [*rows, *(("note", note) for note in found.notes)]:
        click.echo(f"{label:<10} {text}")
    click.echo()
    names = ["mean", "p1", "p10", "p50", "p90", "p99", "max"]
    click.echo(f"{'tokens':<10}" + "".join(f"{each:>9}" for each in names))
    for label, values in (("prompt", found.prompt_tokens), ("output", found.output_tokens)):
        click.echo(f"{label:<10}" + "".join(f"{values[each]:>9,.0f}" for each in names))
    click.echo()
    for label, tokens in (("prompt", demand.prompt_tokens), ("output", demand.output_tokens)):
        click.echo(_picture(label, tokens))
    due = demand.due_s[~np.isnan(demand.due_s)]
    counts, _ = np.histogram(due, WIDTH, (0.0, found.span_s))
    most = counts.max() * WIDTH / found.span_s
    click.echo(f"{'arrivals':<10}|{_bars(counts)}| 0 to {format_seconds(found.span_s)}, most {most:.3g}/s")


def _picture(label: str, tokens: Ints) -> str:
    low, high = (max(float(each), 1.0) for each in (tokens.min(), tokens.max()))
    edges = np.geomspace(low, max(high, low * 1.0001) * 1.0001, WIDTH + 1)
    counts, _ = np.histogram(tokens, edges)
    return f"{label:<10}|{_bars(counts)}| {low:,.0f} to {high:,.0f} tokens, logarithmic"


def _bars(counts: Ints) -> str:
    """Heights as letters; what is there is never invisible."""
    most = max(int(counts.max()), 1)
    return "".join(BARS[-(-int(each) * (len(BARS) - 1) // most)] for each in counts)


def draw_workload(name: str, demand: Demand, horizon_s: float, path: Path) -> None:
    """Lengths, arrivals, and of the tokens so far how many a cache without limits has seen, in one picture."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise SpecError(f"{path}: a picture is saved as .svg or .png")
    due = demand.due_s[~np.isnan(demand.due_s)]
    counts, edges = np.histogram(due, 120, (0.0, horizon_s))
    known = np.cumsum(known_tokens(demand)) / np.cumsum(demand.prompt_tokens)
    arrivals = Axis(f"Arrivals per second, mean {len(due) / horizon_s:.3g}", "number", low=0.0)
    seen = Axis(f"Prompt tokens seen before, in the end {known[-1]:.1%}", "share", low=0.0, high=1.0)
    panels = {
        Axis("Prompt (tokens)", "number", "log"): _lengths(demand.prompt_tokens, "sky"),
        Axis("Output (tokens)", "number", "log"): _lengths(demand.output_tokens, "orange"),
        Axis("Time (s)", "number"): Panel(arrivals, [histogram(counts / np.diff(edges), edges, "blue")]),
        Axis("Requests so far", "number"): Panel(seen, [Curve("", np.arange(1.0, len(known) + 1), known, "green")]),
    }
    with mpl.rc_context(STYLE):
        canvas = Canvas((10.0, 6.5), layout="constrained")
        for axes, (x, panel) in zip(canvas.subplots(2, 2).flat, panels.items(), strict=True):
            draw_panel(axes, panel, x_scale(x, [panel]), y_scale(panel), ticks=6)
            axes.set_xlabel(x.label)
        title = name if len(name) <= LETTERS else f"{name[:LETTERS]}…"
        canvas.suptitle(f"{title}\n{len(demand):,} requests", x=0.01, ha="left", fontsize=10, fontweight="bold")
        save_picture(canvas, path)


def _lengths(tokens: Ints, color: str) -> Panel:
    low, high = max(float(tokens.min()), 1.0), max(float(tokens.max()), 1.0)
    edges = np.geomspace(low, high, 61) if high > low else np.array([low * 0.9, low * 1.1])
    p50, p99 = np.percentile(tokens, [50, 99])
    label = f"Requests: p50 {p50:,.0f}, p99 {p99:,.0f}, mean {tokens.mean():,.0f}"
    return Panel(Axis(label, "number", low=0.0), [histogram(np.histogram(tokens, edges)[0], edges, color)])
