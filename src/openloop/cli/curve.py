"""Commands over many rates and over two systems."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import DURATION, JSON, RATE, SHARE, Quantity, cli, say
from openloop.cli.live import scenario_options
from openloop.units import parse_rates

RATES = Quantity("rates", lambda text: None if text == "auto" else parse_rates(text))


def _sweep_options(command: Any) -> Any:
    return scenario_options(command, without=("--rate", "--closed"))


@cli.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option("--sim", "fleet", type=click.Path(path_type=Path), help="Simulate this fleet instead of asking a target.")
@click.option(
    "--rates", type=RATES, default="auto", show_default=True, help="5:50:5, or 5,10,20, or auto: find the knee."
)
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="Runs of each rate, or named point."
)
@click.option("--attain", type=SHARE, default="99%", show_default=True, help="Share of requests to accept at the knee.")
@click.option("--precision", type=SHARE, default="5%", show_default=True, help="Of the knee: half of its interval.")
@click.option(
    "--start", type=RATE, default="1/s", show_default=True, help="Rate to begin with, where it is looked for."
)
@click.option("--current", type=RATE, help="Rate of today: how much headroom is there?")
@click.option("--budget", type=DURATION, help="Stop when runs have taken this long together, for example 30m.")
@click.option("--require", type=RATE, help="Exit with 1 if the knee is not shown to be at least this rate.")
@_sweep_options
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of the sweep.")
@JSON
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    scenario: Path | None,
    fleet: Path | None,
    rates: list[float] | None,
    attain: float,
    budget: float | None,
    require: float | None,
    out: Path,
    as_json: bool,
    **how: Any,
) -> None:
    """Measure goodput over offered rates, live or simulated, and find the knee with its interval.

    With --rates auto it probes gently, doubles the rate until the SLO breaks, narrows to the knee, and sees that there
    are points called comfortable, moderate, busy, stressed and overloaded. Every run has prompts and arrivals of its
    own, the next one waits until the server is free, and one whose backlog grows ends early. The same command goes on
    with a sweep that was cut off. --for is the time of one point, --max-spend the cost of all. Simulated points of a
    list use all cores.

    \b
    Examples:
      openloop sweep --target http://localhost:8000 --slo "ttft<=500ms, tpot<=40ms" -o frontier/
      openloop sweep --sim fleet.yaml --slo "ttft<=1s, tpot<=40ms" --rates 5:50:5 --for 5m --repeat 3 -o frontier/
      openloop sweep scenario.yaml --budget 30m --current 12 -o frontier/
    """
    from openloop.frontier import sweep as measure
    from openloop.frontier.sweep import INTERRUPTED
    from openloop.load.scenario import read_scenario
    from openloop.report.frontier import SweepView
    from openloop.spec import read_yaml

    flags = dict(ctx.obj or {})
    written = read_yaml(scenario) if scenario else None
    if not (isinstance(written, dict) and written.get("arrivals")):
        flags.setdefault("arrivals", "poisson:rate=1")
    given = read_scenario(scenario, flags, live=fleet is None)
    command = ["openloop", *sys.argv[1:]]
    with SweepView(given.objectives(), quiet=as_json) as view:
        found = measure(
            out, given, fleet, rates=rates, target=attain, budget_s=budget, view=view, command=command, **how
        )
    tell_frontier(found, as_json)
    if found.stopped == INTERRUPTED:
        sys.exit(130)
    shown = found.knee.interval[0] if found.knee.interval else found.knee.above
    if require is not None and not (shown is not None and shown >= require):
        sys.exit(say(f"required a knee of at least {require:g}/s: {found.knee.sentence}", 1))
    if not any(point.usable for point in found.points):
        sys.exit(1)


def tell_frontier(found: Any, as_json: bool) -> None:
    from rich.console import Console

    from openloop.report.frontier import frontier_lines, frontier_table

    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
        return
    if found.points:
        Console(highlight=False, soft_wrap=True, width=10_000).print(frontier_table(found.points))
    for line in frontier_lines(found):
        click.echo(line)
