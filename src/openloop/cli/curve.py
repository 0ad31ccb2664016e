"""Commands over many rates and over two systems."""

import sys
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import cli, command_line, say, tell
from openloop.cli.options import DURATION, JSON, PATH, PLACE, RATE, RAY, SHARE, Quantity, scenario_flags
from openloop.cli.virtual import as_calibrated
from openloop.units import parse_rates

AUTO_OR_RATES = Quantity("rates", lambda text: None if text == "auto" else parse_rates(text))


@cli.command()
@click.argument("scenario", required=False, type=PATH)
@click.option("--sim", "fleet", type=PATH, help="Simulate this fleet instead of asking a target.")
@click.option("--rates", type=AUTO_OR_RATES, default="auto", help="5:50:5, or 5,10,20, or auto: find the knee.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Runs of each rate, or named point.")
@click.option("--attain", type=SHARE, default="99%", help="Attainment to keep at the knee.")
@click.option("--precision", type=SHARE, default="5%", help="Of the knee: half of its interval.")
@click.option("--start", type=RATE, default="1/s", help="Rate to begin with, where it is looked for.")
@click.option("--current", type=RATE, help="Rate of today: how much headroom is there?")
@click.option("--budget", type=DURATION, help="Stop when runs have taken this long together, for example 30m.")
@click.option("--require", type=RATE, help="Exit with 1 if the knee is not shown to be at least this rate.")
@click.option("--compare", type=PATH, help="A frontier as baseline: its rates and SLO, and both in OUT/compare.html.")
@scenario_flags(without=("--rate", "--closed"))
@click.option("-o", "--out", type=PATH, required=True, help="Folder of the frontier.")
@RAY
@JSON
@click.pass_obj
def sweep(
    flags: dict[str, Any],
    /,
    scenario: Path | None,
    fleet: Path | None,
    rates: list[float] | None,
    attain: float,
    budget: float | None,
    require: float | None,
    compare: Path | None,
    out: Path,
    as_json: bool,
    **how: Any,
) -> None:
    """Measure goodput over offered rates, live or simulated, and find the knee with its interval.

    With --rates auto it probes gently, doubles the rate until the SLO breaks, narrows to the knee, and sees that there
    are points called comfortable, moderate, busy, stressed and overloaded. Every run has prompts and arrivals of its
    own, the next one waits until the server is free, and one whose backlog grows ends early. The same command goes on
    with a sweep that was cut off. --for is the time of one point, by default 10m where it is simulated, --max-spend the
    cost of all. Simulated points of a list use all cores, or with --ray those of a cluster. With several states in
    --warmth there is a sweep of each, in a folder of its own, and the gap between them; budgets are shared evenly.

    \b
    Examples:
      openloop sweep --target http://localhost:8000 --slo "ttft<=500ms, tpot<=40ms" -o frontier/
      openloop sweep --sim fleet.yaml --slo "ttft<=1s, tpot<=40ms" --rates 5:50:5 --for 5m --repeat 3 -o frontier/
      openloop sweep scenario.yaml --budget 30m --current 12 -o frontier/
      openloop sweep --sim fleet.yaml --slo "ttft<=1s" --warmth warm-cache,disrupted -o states/
      openloop sweep --sim model.yaml --compare measured/ -o predicted/
    """
    from openloop.frontier import open_frontier
    from openloop.frontier import sweep as measure
    from openloop.frontier.folder import read_asked
    from openloop.frontier.measure import INTERRUPTED, sweep_states
    from openloop.load.scenario import SIMULATED_FOR, read_scenario
    from openloop.report.frontier import SweepView, show_frontier
    from openloop.sim.fleet import read_fleet
    from openloop.spec import read_yaml
    from openloop.workload.warmth import split_states

    written = read_yaml(scenario) if scenario else None
    written = written if isinstance(written, dict) else {}
    warmth = flags.get("warmth") or written.get("warmth")
    states = split_states(str(warmth)) if warmth else []
    several = len(states) > 1
    if compare is not None:
        if several:
            raise click.UsageError("--compare takes one state: give one in --warmth, or leave out --compare")
        flags.setdefault("slo", read_asked(compare).slo)
        rates = rates or [point.rate for point in open_frontier(compare).points]
    if fleet is not None and scenario is None:
        flags |= as_calibrated(read_fleet(fleet), flags)
    if not written.get("arrivals"):
        flags.setdefault("arrivals", "poisson:rate=1")
    if fleet is not None and not written.get("for"):
        flags.setdefault("for", SIMULATED_FOR)
    changes = [{"warmth": each} for each in states] if several else [{}]
    all_given = [read_scenario(scenario, {**flags, **each}, live=fleet is None) for each in changes]
    given = all_given[0]
    how |= {"rates": rates, "target": attain, "budget_s": budget, "command": command_line()}
    with SweepView(given.objectives(), quiet=as_json) as view:
        if several:
            of_states = sweep_states(out, given, fleet, states, view=view, **how)
            all_found = [each.frontier for each in of_states]
        else:
            all_found = [measure(out, given, fleet, view=view, **how)]
    if several:
        _tell_states(of_states, as_json)
    else:
        tell(all_found[0], as_json, show_frontier)
    if all_found[-1].stopped == INTERRUPTED:
        sys.exit(130)
    if compare is not None:
        from openloop.report.files import write_text
        from openloop.report.html import page
        from openloop.report.read import read_comparison

        write_text(out / "compare.html", page(read_comparison(compare, out, None)))
        if not as_json:
            click.echo(f"written: {out / 'compare.html'}")
    for found in all_found:
        shown = found.knee.interval[0] if found.knee.interval else found.knee.above
        if require is not None and not (shown is not None and shown >= require):
            sys.exit(say(f"required a knee of at least {require:g}/s: {found.knee.sentence}", 1))
        if not any(point.usable for point in found.points):
            sys.exit(1)


def _tell_states(states: Any, as_json: bool) -> None:
    """A frontier per state, and what lies between them."""
    from openloop.compare.states import gap_lines, gaps
    from openloop.report.frontier import show_frontier

    between = gaps({each.warmth: each.path for each in states if each.frontier.points})
    if as_json:
        told = {each.warmth: each.frontier.to_dict() for each in states}
        tell({"states": told, "gaps": [gap.to_dict() for gap in between]}, as_json)
        return
    for each in states:
        click.echo(f"\n{each.warmth} ({each.path})")
        show_frontier(each.frontier)
    for gap in between:
        click.echo("\n" + "\n".join(gap_lines(gap)))


@cli.command()
@click.argument("a", type=PLACE, metavar="BASELINE")
@click.argument("b", type=PLACE, metavar="CANDIDATE")
@click.option("--slo", help="One SLO for both; by default their own, if it is the same.")
@click.option("--fail-if", multiple=True, help="A change that must not be, as 'goodput < -5%'; may be given again.")
@click.option("--junit", type=PATH, help="Also write a JUnit file, a case for each --fail-if.")
@click.option("--md", type=PATH, help="Also write Markdown.")
@JSON
def compare(
    a: Path, b: Path, slo: str | None, fail_if: tuple[str, ...], junit: Path | None, md: Path | None, as_json: bool
) -> None:
    """Decide between two runs or two frontiers: which one, by how much, how sure, and what else could explain it.

    The baseline is A and the candidate B; changes are from A to B. Where both had the same schedule they are paired,
    block by block of time. --fail-if exits with 1 when a change is beyond its limit with 95% confidence: where the
    true change is just at the limit, that happens one time in twenty. If one of the two is not valid, it also exits
    with 1.

    \b
    Metrics: goodput, attainment, throughput, tokens, ttft_p50, ttft_p95, ttft_p99, tpot_p99, e2e_p99, cost

    \b
    Examples:
      openloop compare before/ after/ --fail-if "goodput < -5%" --fail-if "ttft_p99 > 10%" --junit compare.xml
      openloop compare frontier-a/ frontier-b/ --slo "ttft<=500ms, tpot<=40ms"
    """
    from openloop.compare import UnjudgedError, read_regression_gate
    from openloop.compare import compare as decide
    from openloop.report.compare import as_junit, as_markdown, show_comparison

    gates = tuple(str(read_regression_gate(each)) for each in fail_if)
    unjudged: UnjudgedError | None = None
    try:
        found = decide(a, b, slo, fail_if)
    except UnjudgedError as error:
        found, unjudged = error.found, error
    if junit:
        junit.write_text(as_junit(found, gates), encoding="utf-8")
    if md:
        md.write_text(as_markdown(found), encoding="utf-8")
    tell(found, as_json, show_comparison)
    if unjudged:
        raise unjudged
    if found.failed or not found.valid:
        sys.exit(1)
