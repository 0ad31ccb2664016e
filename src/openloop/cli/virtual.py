"""Commands in virtual time: queues and fleets, models that are fitted to what was measured, and what would be."""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import cli, command_line, progress_bar, tell, tell_made
from openloop.cli.options import JSON, PATH, PLACE, POSITIVE, RATES, SHARE, Quantity, scenario_flags
from openloop.errors import SpecError
from openloop.units import parse_amount

ALL = 0.999  # accepted
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
    from openloop.records import Prices
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
    tell_made(run, flags.get("slo"), as_json, out=out)


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
@click.option("--seeds", type=click.IntRange(2), help="Of --policies: runs of each.  [default: 5]")
@click.option("--repair", help="Ask again where an answer fails its quality: how many times, or repair:most=2.")
@click.option("--replicas", type=click.IntRange(1), help="What if: so many replicas.")
@click.option("--batching", help="What if: chunked, prefill-first, static or prepone:steps=4.")
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
    policies: str | None,
    seeds: int | None,
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
    from openloop.load.scenario import SIMULATED_FOR, read_scenario
    from openloop.sim.spec import explain_fleet

    chosen = _changed(fleet, **whatif)
    if explain:
        click.echo("\n".join(explain_fleet(chosen)))
        return
    if rates and policies:
        raise click.UsageError("--policies ranks at one rate: give --rate, and not --rates")
    if rates and (prompt_mean or output_mean):
        raise click.UsageError("--prompt-mean and --output-mean are for one rate; write the workload for several")
    if seeds and not policies:
        raise click.UsageError("--seeds is of --policies, which it repeats: give both, or --seed for another run")
    if policies and out:
        raise click.UsageError("--policies ranks and keeps nothing: leave out --out")
    told = chosen.calibration
    if told and told.rates and not rates and not {"rate", "arrivals"} & flags.keys():
        flags["rate"] = max(told.rates)
    if rates:
        flags.setdefault("arrivals", "poisson:rate=1")
    scenario = read_scenario(None, {"for": SIMULATED_FOR, **as_calibrated(chosen, flags)}, live=False)
    if rates:
        _sweep(chosen, scenario, rates, out, as_json)
    elif policies:
        _tournament(chosen, scenario, (prompt_mean, output_mean), policies, seeds or 5, as_json)
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
    for each in filter(None, several):
        fleet = changed(fleet, each)
    more: dict[str, Any] = {} if quality is None else {"quality": quality}
    if repair is not None:
        more["client"] = {**(msgspec.to_builtins(fleet.client) or {}), "repair": repair}
    return changed(fleet, more) if more else fleet


def _simulate(fleet: Any, scenario: Any, means: Any, out: Path | None, as_json: bool) -> None:
    from openloop.calibrate.whatif import resized
    from openloop.sim.fleet import simulate_fleet
    from openloop.sim.warmth import simulate_warm

    warming, arrivals, objectives = scenario.read_warming(), scenario.read_arrivals(), scenario.objectives()
    workload = resized(scenario.read_workload(), arrivals, *means)
    how = workload, arrivals, scenario.horizon_s, scenario.seed, objectives
    facts = {"slo": scenario.slo, "command": command_line()}
    if warming:
        tell_made(simulate_warm(fleet, warming, *how, **facts), objectives, as_json, out=out)
    else:
        tell_made(simulate_fleet(fleet, *how, out=out, **facts), objectives, as_json)


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


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=PLACE)
@click.option("-o", "--out", type=PATH, help="File to write the model to, such as model.yaml.")
@click.option("--known", help="Limits that need not be found, as batching=chunked,max_sequences=256.")
@click.option("--suggest", is_flag=True, help="Also say which measurement would tell what these runs do not.")
@JSON
def calibrate(runs: tuple[Path, ...], out: Path | None, known: str | None, suggest: bool, as_json: bool) -> None:
    """Fit a modelled fleet to measured RUNS, from their records alone, and say how sure it is.

    Who ran together is known from the times of the tokens, so the time of a step is known as a sum of costs; the same
    requests are then sent through the simulator until its times are the measured ones. Limits, memory and batching
    policy are those that predict best what they were not fitted to. Give runs of several rates, one of them with a
    queue: a frontier is fine. Where only first and last tokens are known, that is enough.

    \b
    The model is a fleet that other commands read:
      openloop sim model.yaml --rate 12 --replicas 6 --slo "ttft<=1s, tpot<=40ms"
      openloop sweep --sim model.yaml --compare measured/ -o predicted/
      openloop whatif model.yaml

    \b
    Examples:
      openloop calibrate quiet/ busy/ -o model.yaml
      openloop calibrate frontier/ --known max_sequences=256,max_tokens=2048 --suggest -o model.yaml
    """
    from openloop.calibrate import calibrate as fit
    from openloop.calibrate import fleet_of, suggestions, write_model
    from openloop.calibrate.model import measured_facts, system_differences
    from openloop.calibrate.trace import open_runs
    from openloop.report.terminal import show_table

    if out:
        _check_writable(out)
    opened = open_runs(runs)
    manifests = [run.manifest for run in opened]
    unlike = system_differences(manifests)
    with progress_bar("reading", quiet=as_json) as bar:
        found = fit(opened, known or "", lambda what: bar and bar(None, None, what))
    facts = measured_facts(manifests)
    fleet = write_model(found, out, **facts) if out else fleet_of(found, **facts)
    told = fleet.calibration
    assert told is not None
    values = {name: str(getattr(fleet.step, name, fleet.overhead)) for name in told.names}
    more = list(suggestions(found)) if suggest else []
    if unlike:
        click.echo(f"the runs differ in {unlike}: if these are several systems, the fit is of none of them", err=True)
    if as_json:
        times = {name: {"value": values[name], "interval": told.intervals[name]} for name in values}
        limits = ("batching", "max_tokens", "max_sequences", "memory_tokens", "padding")
        evidence = {"loss": found.loss, "held_out": found.held, "evidence": told.evidence, "unknown": told.unknown}
        tell(
            {"times": times, **{name: getattr(fleet, name) for name in limits}, **evidence, "suggestions": more},
            as_json,
        )
        return
    rows = [(name, value, *told.intervals[name]) for name, value in values.items() if value != "0ns"]
    show_table("time", ("fitted", "at least", "at most (90%)"), rows)
    click.echo("\n".join([f"limits: {found.limits}", *(f"  {line}" for line in told.evidence)]))
    show_table(
        "each rate predicted from the others: modelled over measured",
        ("requests", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p50", "p99"),
        [
            (f"{each.rate:g}/s", str(each.requests), *(f"{x:+.1%}" for x in (*each.ttft, *each.tpot, *each.e2e)))
            for each in found.held
        ],
    )
    for line in (*(f"not told: {each}" for each in told.unknown), *(f"to measure: {each}" for each in more)):
        click.echo(line)
    if out:
        click.echo(f"written: {out}")


def _check_writable(out: Path) -> None:
    """Before a fit, and not after it."""
    new = not out.exists()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.open("a").close()
    if new:
        out.unlink()


@cli.command()
@click.argument("fleet", type=PATH)
@click.option("--change", "changes", multiple=True, help="Keys of the fleet, as 'replicas: 6'; may be given again.")
@scenario_flags(
    *("--rate", "--workload", "--slo", "--for", "--seed"),
    other={
        "--rate": "Requests per second.  [default: the highest that was measured]",
        "--workload": "What is asked.  [default: what was measured]",
        "--slo": "What is accepted.  [default: as in the measured runs]",
        "--for": "How long requests arrive, in each simulation.  [default: 5m]",
        "--seed": "The same seed, the same load.  [default: 0]",
    },
)
@click.option("--draws", type=click.IntRange(1, 1000), default=10, help="Simulations of each.")
@click.option("--acceptance", type=SHARE, default="70%", help="Of drafted tokens.")
@click.option("--price", type=POSITIVE, help="Of a replica, per hour; without one cost is in replica seconds.")
@JSON
@click.pass_obj
def whatif(
    flags: dict[str, Any],
    fleet: Path,
    changes: tuple[str, ...],
    draws: int,
    acceptance: float,
    price: float | None,
    as_json: bool,
) -> None:
    """Compare changes of FLEET side by side: goodput, and what an accepted result takes.

    Every change meets the same load. Intervals hold 90% of the simulations, each with other parameters that the
    calibration allows and other arrivals. Without --change: more replicas, another batching policy, quantization,
    speculative decoding, prefill and decode apart, another routing.

    \b
    Examples:
      openloop whatif model.yaml
      openloop whatif model.yaml --rate 20 --change "replicas: 2" --change "replicas: 2, batching: prefill-first"
      openloop whatif model.yaml --acceptance 80% --price 2.5
    """
    import msgspec

    from openloop.calibrate import compare_changes
    from openloop.calibrate.whatif import common_changes, read_change, wanted
    from openloop.sim.fleet import read_fleet
    from openloop.units import parse_seconds

    model = read_fleet(fleet)
    if price is not None:
        model = msgspec.structs.replace(model, price_per_hour=price)
    chosen = [read_change(text) for text in changes] or common_changes(model, acceptance)
    load, arrivals, objectives, told = wanted(model, flags.get("rate"), flags.get("workload"), flags.get("slo"))
    seconds, seed = parse_seconds(flags.get("for", "5m")), flags.get("seed", 0)
    with progress_bar("simulating", quiet=as_json) as bar:
        how = (draws, seed, lambda what: bar and bar(None, None, what))
        found = compare_changes(model, chosen, load, arrivals, seconds, objectives, *how)
    tell(found, as_json, lambda _: _show_changes(model, found, told))
    for line in _cautions(model, found, flags.get("rate")):
        click.echo(line, err=True)
    if found[0].goodput_rps == 0:
        sys.exit(1)


def _show_changes(model: Any, found: list[Any], told: str) -> None:
    from openloop.report.terminal import show_table

    click.echo(told)
    unit = "replica s" if model.price_per_hour is None else "cost"
    show_table(
        "change",
        (
            "replicas",
            *("goodput", "90%", "gain", "90%", f"{unit} / accepted", "90%"),
            *("attainment", "TTFT p99", "TPOT p99"),
        ),
        [
            (
                each.name,
                str(each.replicas),
                f"{each.goodput_rps:.2f}/s",
                "{:.2f} to {:.2f}".format(*each.goodput_rps_interval),
                _gain(each.gain),
                " to ".join(map(_gain, each.gain_interval)),
                _money(each.cost_per_accepted),
                " to ".join(map(_money, each.cost_interval)),
                f"{each.attainment:.1%}",
                f"{each.ttft_p99_s:.3g} s",
                f"{1e3 * each.tpot_p99_s:.3g} ms",
            )
            for each in found
        ],
    )


def _cautions(model: Any, found: list[Any], rate: float | None) -> Iterator[str]:
    """What the table does not say."""
    told = model.calibration
    if told is None:
        yield "the fleet is not calibrated: intervals hold only what the load's chance does"
    elif rate is not None and rate > 1.2 * max(told.rates, default=rate):
        limits = [each for each in told.unknown if each.startswith(("max_sequences", "memory_tokens"))]
        yield f"{rate:g}/s is more than was measured; a limit that was not told is taken as none" + "".join(
            f"\n  {each}" for each in limits
        )
    if found[0].attainment > ALL:
        yield "all is accepted as it is, so no change can gain: a higher --rate shows what each is good for"


def _gain(value: float) -> str:
    return "from nothing" if math.isinf(value) else f"{value:+.0%}"


def _money(value: float) -> str:
    return "nothing accepted" if math.isinf(value) else f"{value:.3g}"
