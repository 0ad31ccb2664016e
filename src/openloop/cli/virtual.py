"""Commands in virtual time."""

import re
import sys
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import JSON, PATH, PLACE, RATES, Quantity, cli, command_line, progress_bar, tell, tell_made
from openloop.cli.options import renamed, scenario_flags
from openloop.errors import SpecError
from openloop.units import parse_amount

AMOUNT = Quantity("amount", parse_amount)


@cli.command()
@click.argument("model")
@scenario_flags("--arrivals", "--rate", "--for", "--seed", "--slo", "--price")
@click.option("-o", "--out", type=PLACE, help="Folder to write the run to.")
@JSON
@click.pass_obj
def queue(flags: dict[str, Any], model: str, out: Path | None, as_json: bool) -> None:
    """Send arrivals through MODEL, a queue in virtual time, and score what its users got.

    \b
    Models:
      fcfs:service=exponential(2ms)                        one server, first come first served
      fcfs:service=lognormal(median=40ms,sigma=0.5),servers=8   eight; servers=inf: no queue
      fcfs:service=5ms,servers=inf,stall=1s,every=10s,connections=50
                                                           a server that stalls, a client that cannot keep up
      batch:size=16,fixed=4ms,each=0.9ms,timeout=50ms      static batches
      pipeline:2ms,exponential(20ms),5ms                   stages, each a queue
      fanout:n=100,service=exponential(10ms)               wait for the slowest of n
      hedged:service=exponential(10ms),after=p95           a second copy when the first is late
      replica:prompt=lognormal(median=500,sigma=0.8),output=64,prefill=0.1ms,gap=exponential(20ms),crowding=1%
                                                           shaped like a language model
    Times: a fixed one (2ms), exponential, uniform, lognormal, gamma, pareto, straggling.
    Arrivals: constant, poisson, gamma, weibull, onoff, ramp, piecewise, sine, replay. See docs/queues.md.

    \b
    Examples:
      openloop queue "fcfs:service=exponential(2ms)" --rate 450 --slo "e2e<=200ms"
      openloop queue "batch:size=16,fixed=4ms,each=0.9ms" --arrivals gamma:rate=800,cv=2 -o run/
    """
    from openloop.records import Prices, open_run
    from openloop.sim import simulate
    from openloop.units import parse_seconds

    if ("arrivals" in flags) == ("rate" in flags):
        raise click.UsageError("say when requests are due: --rate 450 or --arrivals gamma:rate=450,cv=2, and not both")
    price = flags.get("prices.per_hour")
    run = simulate(
        model,
        flags.get("arrivals") or f"poisson:rate={flags['rate']!r}",
        parse_seconds(flags.get("for", "60s")),
        flags.get("seed", 0),
        slo=flags.get("slo"),
        command=command_line(),
        prices=None if price is None else Prices(per_hour=price),
    )
    if out:
        run.save(out)
        run = open_run(out)
    tell_made(run, flags.get("slo"), as_json)


@cli.command()
@click.argument("fleet", type=PATH)
@scenario_flags(
    *("--workload", "--prompt", "--output", "--arrivals", "--rate", "--for", "--seed", "--slo", "--warmth"),
    other={
        "--for": "How long they come.  [default: 10m]",
        "--slo": "Score the run against this SLO; its TTFT is the deadline that orders go by.",
        "--warmth": "Bring caches into a state: cold-cache, warm-cache, hot, disrupted:at=5m.",
    },
)
@click.option("--rates", type=RATES, help="Several, such as 5:50:5 or 5,10,20: a sweep on all cores; needs --slo.")
@click.option("--quality", help="Label answers by a model of quality, such as quality:fail=2%,tail=4%,factor=1.5.")
@click.option("--policies", help="Rank routing policies on the same requests: all, or a list; needs --slo.")
@click.option("--seeds", type=click.IntRange(2), default=5, help="Of --policies: runs of each.")
@click.option("--repair", help="Ask again where an answer fails its quality: how many times, or repair:most=2.")
@click.option("--replicas", type=click.IntRange(1), help="What if: so many replicas.")
@click.option("--batching", help="What if: chunked, prefill-first, static or prepone:steps=4.")
@renamed("--policy", "--batching")
@click.option("--change", "changes", multiple=True, help="What if: other keys of the fleet, as 'max_tokens: 512'.")
@click.option(
    "--prompt-mean", type=AMOUNT, help="What if: prompts twice as long (2x), or of 800 tokens on average (800)."
)
@click.option("--output-mean", type=AMOUNT, help="The same for answers.")
@click.option("--explain", is_flag=True, help="Print where every number of the replica comes from, and stop.")
@click.option("-o", "--out", type=PLACE, help="Folder to write the run to.")
@JSON
@click.pass_obj
def sim(
    flags: dict[str, Any],
    /,
    fleet: Path,
    rates: list[float] | None,
    quality: str | None,
    policies: str | None,
    seeds: int,
    prompt_mean: Any,
    output_mean: Any,
    explain: bool,
    out: Path | None,
    as_json: bool,
    **whatif: Any,
) -> None:
    """Simulate FLEET, a YAML file of modelled replicas, in virtual time, and score what its users got.

    \b
    A fleet in three lines:
      model: 8b            # 7b, 8b, 13b, 32b, 70b
      gpu: h100            # a100, h100, h200, l40s, mi300x; tp: 4 spreads it over four
      batching: chunked    # prefill-first, static, prepone:steps=4
    See docs/simulator.md for the rest: limits, memory, prefix caches, drafts, orders.

    \b
    Examples:
      openloop sim fleet.yaml --rate 8 --prompt "lognormal(median=900,sigma=0.7)" --slo "ttft<=1s, tpot<=40ms"
      openloop sim fleet.yaml --workload trace:mooncake.jsonl --for 1h -o run/
      openloop sim fleet.yaml --rate 8 --quality quality:fail=5% --repair 1 --slo "ttft<=5s, quality"
      openloop sim fleet.yaml --rates 5:50:5 --slo "ttft<=1s, tpot<=40ms"
      openloop sim fleet.yaml --policies all --workload sessions:system=2000,systems=40 --rate 4 --slo "ttft<=1s"
      openloop sim model.yaml --rate 8 --replicas 6 --batching chunked --prompt-mean 2x   # calibrated: what if
      openloop sim fleet.yaml --explain
    """
    from openloop.load.scenario import read_scenario
    from openloop.sim.spec import explain_fleet

    chosen = _changed(fleet, quality, **whatif)
    if explain:
        click.echo("\n".join(explain_fleet(chosen)))
        return
    if rates and policies:
        raise click.UsageError("--policies ranks at one rate: give --rate, and not --rates")
    if rates and (prompt_mean or output_mean):
        raise click.UsageError("--prompt-mean and --output-mean are for one rate; write the workload for several")
    if policies and out:
        raise click.UsageError("--policies ranks and keeps nothing: leave out --out")
    told = chosen.calibration
    if told and told.rates and not rates and not {"rate", "arrivals"} & flags.keys():
        flags["rate"] = max(told.rates)
    if rates:
        flags.setdefault("arrivals", "poisson:rate=1")
    scenario = read_scenario(None, {"for": "10m", **as_calibrated(chosen, flags)}, live=False)
    if rates:
        _sweep(chosen, scenario, rates, out, as_json)
    elif policies:
        _tournament(chosen, scenario, (prompt_mean, output_mean), policies, seeds, as_json)
    else:
        _simulate(chosen, scenario, (prompt_mean, output_mean), out, as_json)


def as_calibrated(fleet: Any, flags: dict[str, Any]) -> dict[str, Any]:
    """What is asked of a fleet that was fitted to runs: what was asked there, where the flags do not say otherwise."""
    told = fleet.calibration
    found = {"slo": told.slo} if told and told.slo else {}
    if found and "slo" not in flags and fleet.quality is None and re.search(r"\bquality\b", str(told.slo)):
        raise SpecError(
            f"it was fitted to runs with the SLO {told.slo}, and its simulated answers have no quality: "
            "give --slo without it, or write quality: into the fleet"
        )
    if told and told.workload and not {"workload", "prompt", "output"} & flags.keys():
        found["workload"] = told.workload
    return {**found, **flags}


def _changed(
    path: Path,
    quality: str | None,
    repair: str | None,
    replicas: int | None,
    batching: str | None,
    changes: tuple[str, ...],
) -> Any:
    """The fleet as it would be."""
    import msgspec

    from openloop.calibrate.whatif import changed, read_change
    from openloop.sim.fleet import read_fleet

    keys = {"replicas": replicas, "batching": batching}
    several = [{key: value for key, value in keys.items() if value is not None}]
    several += [dict(read_change(text).keys) for text in changes]
    fleet = read_fleet(path)
    for each in several:
        fleet = changed(fleet, each) if each else fleet
    if quality is None and repair is None:
        return fleet
    whole = msgspec.to_builtins(fleet)
    if quality is not None:
        whole["quality"] = quality
    if repair is not None:
        whole["client"] = {**(whole["client"] or {}), "repair": repair}
    return read_fleet(whole)


def _simulate(fleet: Any, scenario: Any, means: Any, out: Path | None, as_json: bool) -> None:
    from openloop.calibrate.whatif import resized
    from openloop.records import open_run
    from openloop.sim.fleet import simulate_fleet
    from openloop.sim.warmth import simulate_warm

    warming, arrivals, objectives = scenario.read_warming(), scenario.read_arrivals(), scenario.objectives()
    workload = resized(scenario.read_workload(), arrivals, *means)
    how = workload, arrivals, scenario.horizon_s, scenario.seed, objectives
    facts = {"slo": scenario.slo, "command": command_line()}
    if not warming:
        run = simulate_fleet(fleet, *how, out=out, **facts)
    else:
        run = simulate_warm(fleet, warming, *how, **facts)
        if out:
            run.save(out)
            run = open_run(out)
    tell_made(run, objectives, as_json)


def _sweep(fleet: Any, scenario: Any, rates: list[float], out: Path | None, as_json: bool) -> None:
    """A rate each, on all cores; without a folder, nothing is kept."""
    import tempfile

    from openloop.frontier import sweep
    from openloop.frontier.measure import INTERRUPTED
    from openloop.report.frontier import show_frontier

    with tempfile.TemporaryDirectory(prefix="openloop-") as scratch:
        found = sweep(out or Path(scratch) / "sweep", scenario, fleet, rates=rates, command=command_line())
        tell(found, as_json, show_frontier)
    if found.stopped == INTERRUPTED:
        sys.exit(130)
    if not any(point.usable for point in found.points):
        sys.exit(1)


def _tournament(fleet: Any, scenario: Any, means: Any, policies: str, seeds: int, as_json: bool) -> None:
    """Who gets the most accepted."""
    from openloop.calibrate.whatif import resized
    from openloop.compare.tournament import read_policies, tournament
    from openloop.report.compare import show_standings

    objectives = scenario.objectives()
    if objectives is None:
        raise click.UsageError('say what is accepted: --slo "ttft<=1s, tpot<=40ms"')
    arrivals = scenario.read_arrivals()
    with progress_bar("simulating", quiet=as_json) as progress:
        found = tournament(
            fleet,
            read_policies(policies),
            resized(scenario.read_workload(), arrivals, *means),
            arrivals,
            scenario.horizon_s,
            objectives,
            seeds=range(scenario.seed, scenario.seed + seeds),
            warming=scenario.read_warming(),
            tell=progress,
        )
    tell(found, as_json, lambda standings: show_standings(standings, seeds, str(scenario.slo)))
