"""Commands from measurement to a deployment: the plan, and the laws behind it."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import cli, progress_bar, tell
from openloop.cli.options import DURATION, JSON, NUMBER, PATH, RATE, RATES, SHARE, UNSIGNED, Quantity, scenario_flags
from openloop.cli.virtual import as_calibrated
from openloop.units import parse_price, parse_share, parse_times

PRICE = Quantity("price", parse_price)
TIMES = Quantity("factor", parse_times)
THREE_FORMS = (".html", ".md", ".json")
PLOT = click.option("--plot", type=PATH, help="Draw it into this .svg or .png file.")


def _tell_report(found: Any, outs: Sequence[Path], as_json: bool) -> None:
    """Write a report by the names of files, and tell it: as JSON, or in full."""
    from openloop.report.files import write_text
    from openloop.report.html import page
    from openloop.report.markdown import markdown
    from openloop.report.plot import show_report

    data = json.dumps(found.data, indent=2, allow_nan=False)
    forms: dict[str, Any] = {".html": page, ".md": markdown, ".json": lambda _: data + "\n"}
    for out in outs:
        write_text(out, forms[out.suffix](found))
    if as_json:
        click.echo(data)
    else:
        show_report(found)
        if outs:
            click.echo(f"\nwritten: {', '.join(map(str, outs))}")
    if found.verdict == "invalid":
        sys.exit(1)


@cli.command()
@click.argument("what", required=False, type=PATH)
@click.option("--demand", type=RATE, help="Requests to serve on average, for example 9000/s or 10000/d.")
@click.option("--peak", type=TIMES, default="1x", help="The peak, in times of the average.")
@click.option("--day", help="Demand over 24 hours in place of --demand and --peak, as 'sine:rate=6000,swing=50%'.")
@click.option("--price", type=PRICE, help="Of one replica, for example 3/h.  [default: as measured]")
@click.option("--headroom", type=SHARE, default="0%", help="Beyond the peak.")
@click.option("--failures", type=click.IntRange(0), default=0, help="Replicas that may be down.")
@click.option("--availability", type=SHARE, help="Of enough replicas, for example 99.95%.")
@click.option("--machine-up", type=SHARE, default="99.9%", help="Of one machine.")
@click.option("--knee", type=RATES, help="Without WHAT: rate of a replica, or low end, knee and high end with commas.")
@click.option("--capacity", type=RATE, help="Raw rate of a replica, accepted or not, to compare with.")
@click.option("--in-flight", type=UNSIGNED, help="Requests that a replica holds.")
@click.option("--latency", "latency_s", type=DURATION, help="Mean time of a request; with --in-flight it makes a knee.")
@click.option("--tokens", type=UNSIGNED, help="Of an accepted answer, for the cost of a token.")
@click.option("--utilisation", type=SHARE, help="Average use of what replicas can do, for costs.  [default: by demand]")
@click.option("--quality", type=SHARE, default="100%", help="Answers in time that also are good.")
@click.option("--cache", help="Hits become rarer with more replicas, as 'cache:hit=85%,replicas=4,saves=60%'.")
@click.option("--scale-delay", "scale_delay_s", type=DURATION, default="5m", help="Until a new replica serves.")
@click.option("--by", type=click.Choice(["low", "middle"]), default="low", help="Part of the knee's interval to trust.")
@scenario_flags(
    *("--slo", "--workload", "--prompt", "--output", "--for", "--seed"),
    other={
        "--slo": "Another SLO for the frontier; for a fleet, the one to keep.  [default: as measured, if calibrated]",
        "--workload": "Of a fleet: what is asked, as for sim.  [default: as measured, if calibrated]",
        "--prompt": "Of a fleet: tokens in a prompt.",
        "--output": "Of a fleet: tokens of an answer.",
        "--for": "Of a fleet: simulated time of a point.  [default: 2m]",
        "--seed": "Of a fleet.  [default: 0]",
    },
)
@click.option("--attain", type=SHARE, help="Of a fleet: attainment to keep at the knee.  [default: 99%]")
@click.option("-o", "--out", "outs", multiple=True, type=PATH, help="Write .json, .html or .md; may repeat.")
@JSON
@click.pass_obj
def plan(
    flags: dict[str, Any],
    /,
    what: Path | None,
    attain: float | None,
    outs: tuple[Path, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """How many replicas a demand needs, sized to the goodput knee and not to raw capacity, and what they cost.

    WHAT is a frontier, whose knee and interval are used, or a fleet.yaml (also one that was calibrated):
    its knee is found by simulation, and its planned size is simulated at the peak. Without WHAT, --knee, or --in-flight
    and --latency, say what a replica does. A plan in a .json file can be shown again with openloop report.

    \b
    Examples:
      openloop plan frontier/ --demand 9000/s --peak 1.5x --price 3/h --availability 99.95% -o plan.json -o plan.html
      openloop plan fleet.yaml --slo "ttft<=1s, tpot<=40ms" --prompt 800 --demand 40/s --price 3/h --failures 1
      openloop plan --knee 450/s --capacity 500/s --demand 9000/s --price 3/h
      openloop plan --in-flight 40 --latency 120ms --demand 8000/s --failures 1 --price 3/h --utilisation 70%
      openloop plan --knee 450/s --day "sine:rate=6000,swing=50%" --headroom 20% --price 3/h
    """
    from openloop.plan import Needs, make_plan
    from openloop.report.plan import plan_report

    for out in outs:
        if out.suffix not in THREE_FORMS:
            raise click.UsageError(f"{out}: write a .json, a .html or a .md file")
    typed = {name: given.pop(name) for name in ("knee", "in_flight", "latency_s", "capacity", "tokens")}
    if (given["demand"] is None) == (given["day"] is None):
        raise click.UsageError("say what to serve: --demand 9000/s, or --day 'sine:rate=6000,swing=50%'")
    if given["day"] is not None:
        given["demand"] = 1.0  # the day has its own
    needs = Needs(**given)
    if what is not None and what.is_file():
        for name, value in typed.items():
            if value is not None:
                raise click.UsageError(f"a fleet is simulated: leave out --{name.removesuffix('_s').replace('_', '-')}")
        made = _plan_fleet(what, flags, needs, 0.99 if attain is None else attain, as_json)
    else:
        source = "a knee that is typed" if what is None else "a frontier"
        for name in [*flags, *([] if attain is None else ["attain"])]:
            if name != "slo" or what is None:
                raise click.UsageError(
                    f"{source} is not asked anything again: leave out --{name}, or give a fleet.yaml"
                )
        made = make_plan(_system(what, flags.get("slo"), typed), needs)
    _tell_report(plan_report(made), outs, as_json)


def _system(what: Path | None, slo: str | None, typed: dict[str, Any]) -> Any:
    from dataclasses import replace

    from openloop.errors import SpecError
    from openloop.frontier import open_frontier
    from openloop.plan import frontier_system, typed_system

    if what is None:
        return typed_system(**typed)
    if typed["knee"] is not None or typed["latency_s"] is not None:
        raise click.UsageError("a frontier has a knee and latencies of its own: leave out --knee and --latency")
    found, given = frontier_system(open_frontier(what, slo)), {k: each for k, each in typed.items() if each is not None}
    if "capacity" in given:
        given["capacity_interval"] = None  # as typed
        if (most := given["capacity"]) < found.knee:
            raise SpecError(
                f"a replica cannot do {found.knee:g}/s in time, as measured, and {most:g}/s in all: --capacity is at"
                " least the knee"
            )
    return replace(found, **given)


def _plan_fleet(fleet: Path, flags: dict[str, Any], needs: Any, target: float, quiet: bool) -> Any:
    import tempfile

    from openloop.load.scenario import SIMULATED_FOR, read_scenario
    from openloop.plan.simulated import plan_fleet
    from openloop.report.frontier import SweepView
    from openloop.sim.fleet import read_fleet

    asked = {"arrivals": "poisson:rate=1", "for": SIMULATED_FOR, **as_calibrated(read_fleet(fleet), flags)}
    scenario = read_scenario(None, asked, live=False)
    with tempfile.TemporaryDirectory(prefix="openloop-") as scratch, SweepView(None, quiet=quiet) as view:
        return plan_fleet(fleet, scenario, needs, Path(scratch) / "sweep", target, view)


def _tell_answer(law: str, plot: Path | None, as_json: bool, **given: Any) -> None:
    """A calculator's lines and its picture."""
    from openloop.report import calculators
    from openloop.report.chart import draw_figure
    from openloop.report.plot import show_answer

    answer = getattr(calculators, f"answer_{law}")(**given)
    if plot is not None:
        if plot.suffix not in (".svg", ".png"):
            raise click.UsageError(f"{plot}: a picture is an .svg or a .png file")
        draw_figure(answer.figure, plot)
    tell(answer.data, as_json, lambda _: show_answer(answer.lines, answer.figure if plot is None else None))


@cli.command()
@click.option("--n", type=int, help="Backends that a request waits for.")
@click.option("--p", "each", type=SHARE, help="Share of the time that each is slow.")
@click.option("--slow", type=SHARE, help="Share of requests that may be slow.")
@PLOT
@JSON
def fanout(plot: Path | None, as_json: bool, **given: Any) -> None:
    """A request that waits for N backends is slow when any of them is: 1 - (1 - p)^n, from any two of the three.

    \b
    Examples:
      openloop fanout --n 100 --p 1%
      openloop fanout --n 100 --slow 10%          # how rarely may each be slow?
      openloop fanout --p 1% --slow 10%           # how wide may it be?
    """
    _tell_answer("fanout", plot, as_json, **given)


@cli.command()
@click.option("--in-flight", type=NUMBER, help="Requests in the system: L.")
@click.option("--rate", type=RATE, help="Requests per second: lambda.")
@click.option("--latency", "latency_s", type=DURATION, help="Mean time in the system: W.")
@click.option("--per-replica", type=NUMBER, help="Requests that a replica holds: how many are needed?")
@click.option("--failures", type=click.IntRange(0), default=0, help="Replicas that may be down.")
@PLOT
@JSON
def little(plot: Path | None, as_json: bool, **given: Any) -> None:
    """Little's law, L = lambda W: the third from any two, and the replicas that hold L.

    \b
    Examples:
      openloop little --rate 5000 --latency 46.8ms --per-replica 30
      openloop little --in-flight 24 --latency 60ms
      openloop little --rate 8000 --latency 120ms --per-replica 40 --failures 1
    """
    _tell_answer("little", plot, as_json, **given)


@cli.command()
@click.option("--service", required=True, help="Distribution of one answer, as lognormal(median=40ms,sigma=0.35).")
@click.option("--after", default="p95", help="When the copy is sent: a percentile.")
@click.option("--extra", type=SHARE, help="In place of --after: as many further requests.")
@click.option("--load", type=SHARE, help="Share of the time that servers are busy without copies.")
@PLOT
@JSON
def hedge(service: str, after: str, extra: float | None, load: float | None, plot: Path | None, as_json: bool) -> None:
    """What a second copy of late requests gains in the tail, and the load that it adds.

    \b
    Examples:
      openloop hedge --service "straggling(lognormal(median=40ms,sigma=0.35),2%,6)" --load 70%
      openloop hedge --service "exponential(10ms)" --extra 2% --plot hedge.svg
    """
    from openloop.distributions import read_distribution
    from openloop.errors import SpecError
    from openloop.terms import SECONDS

    try:
        share = 1 - extra if extra is not None else parse_share(f"{after.strip().removeprefix('p')}%")
    except SpecError:
        raise click.UsageError(f"--after is {after!r}; it is a percentile, such as p95") from None
    given = {"service": read_distribution(service, SECONDS), "after": share, "load": load}
    _tell_answer("hedge", plot, as_json, **given)


@cli.command()
@click.option("--fixed", "fixed_s", type=DURATION, required=True, help="Time of a batch, whatever is in it: c0.")
@click.option("--each", "each_s", type=DURATION, required=True, help="Time of each request in it: c1.")
@click.option("--size", type=int, help="Requests in a batch: B.")
@click.option(
    "--within",
    "within_s",
    type=DURATION,
    help="A bound on latency: the largest batch that keeps it (with --rate: whose p99 does).",
)
@click.option("--rate", type=RATE, help="At which requests come (Poisson): filling and the batch before then count.")
@PLOT
@JSON
def batch(plot: Path | None, as_json: bool, **given: Any) -> None:
    """Batches buy throughput with latency: B / (c0 + c1 B) at a size, or at the largest that keeps a bound.

    \b
    Examples:
      openloop batch --fixed 4ms --each 0.9ms --size 16
      openloop batch --fixed 4ms --each 0.9ms --within 50ms --rate 600
    """
    _tell_answer("batch", plot, as_json, **given)


@cli.command()
@click.argument("question", type=PATH)
@click.option("-o", "--out", type=PATH, help="Folder for decision.html, .md and .json.")
@JSON
def decide(question: Path, out: Path | None, as_json: bool) -> None:
    """Decide what QUESTION asks, from runs, frontiers, prices and quality, on one page for whoever signs.

    It says what to do, what it saves, how sure that is, and what was not measured. A decision is capacity (how many
    replicas), migration (from the first option to the second) or model (X or Y); paths are relative to the file.

    \b
    A question:
      decision: migration
      demand: 40/s              # accepted results
      one_time: 20000           # what the change costs
      options:
        engine A: {from: frontier-a/, price: 3/h, quality: 72% of 500}
        engine B: {from: frontier-b/, price: 3/h, quality: 91% of 500}

    \b
    Examples:
      openloop decide migration.yaml
      openloop decide capacity.yaml -o decision/
    """
    from openloop.decide import decide as answer
    from openloop.report.decision import decision_report

    found = decision_report(answer(question))
    _tell_report(found, [out / f"decision{kind}" for kind in THREE_FORMS] if out else [], as_json)


@cli.command()
@click.argument("fleet", type=PATH)
@click.option("--space", type=PATH, required=True, help="YAML: keys of the fleet, values to try.")
@click.option(
    "--maximize",
    default="goodput_per_dollar",
    help="goodput_per_dollar, token_goodput_per_dollar or goodput.",
)
@scenario_flags(
    *("--slo", "--rate", "--arrivals", "--workload", "--prompt", "--output", "--for", "--seed"),
    other={
        "--slo": "Gates, a preset or a YAML file.  [required, unless calibrated]",
        "--workload": "What is asked, as for sim.  [default: as measured, if calibrated]",
        "--for": "Simulated time of each.  [default: 2m]",
        "--seed": "The same seed, the same search.  [default: 0]",
    },
)
@click.option("--attain", type=SHARE, default="0%", help="Least attainment.")
@click.option(
    "--trials",
    type=click.IntRange(1),
    help="Fleets to try.  [default: a tenth of the space, less 6 to confirm; 20 to 200]",
)
@click.option("--processes", type=click.IntRange(1), help="[default: all cores]")
@click.option("-o", "--out", type=PATH, help="Folder of the search: it can be resumed there.")
@JSON
@click.pass_obj
def tune(
    flags: dict[str, Any], /, fleet: Path, space: Path, maximize: str, out: Path | None, as_json: bool, **how: Any
) -> None:
    """Find the best fleet of a space by simulation, and confirm it on fresh seeds before it is named.

    Few of the fleets are tried: those that a model of what was found before expects the most of. All get the same
    requests. Ctrl-C keeps what was found: with -o, the same command goes on. The folder then holds best.yaml, a fleet
    to simulate, sweep, serve or plan, and the report as tuning.html, .md and .json.

    \b
    A space:
      batching: [chunked, prefill-first]
      max_tokens: {from: 512, to: 8192, times: 2}
      replicas: {from: 2, to: 8}
      admission: [null, deadline, "in-flight:32"]
      drafts: [null, {tokens: 3, acceptance: 0.6}]

    \b
    Examples:
      openloop tune fleet.yaml --space space.yaml --rate 40 --slo "ttft<=1s, tpot<=40ms" -o tuned/
      openloop tune fleet.yaml --space space.yaml --rate 40 --slo rag --maximize goodput --attain 95%
    """
    from openloop.load.scenario import read_scenario
    from openloop.report.tuning import tuning_report
    from openloop.sim.fleet import read_fleet
    from openloop.tune import read_space
    from openloop.tune import tune as search

    scenario = read_scenario(None, {"for": "2m", **as_calibrated(read_fleet(fleet), flags)}, live=False)
    with progress_bar("searching", quiet=as_json) as bar:

        def watch(done: int, total: int, trial: Any) -> None:
            stage = "confirming" if trial.fresh else "searching"
            bar(done, total, f"{stage}: {trial.goodput_rps:.3g}/s accepted")

        found = search(read_space(fleet, space), scenario, maximize, out=out, watch=watch if bar else None, **how)
    cut = found.stopped != "done"
    try:
        outs = [out / f"tuning{kind}" for kind in THREE_FORMS] if out and not cut else []
        _tell_report(tuning_report(found), outs, as_json)
    finally:
        if cut:
            sys.exit(130)
