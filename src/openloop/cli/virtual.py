"""Commands in virtual time."""

import sys
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import DURATION, JSON, PLACE, RATE, RATES, cli, tell_run, tell_score


@cli.command()
@click.argument("model")
@click.option("--arrivals", help="When requests are due, for example gamma:rate=12,cv=2.")
@click.option("--rate", type=RATE, help="Short for --arrivals poisson:rate=RATE.")
@click.option("--for", "seconds", type=DURATION, default="60s", show_default=True, help="How long requests arrive.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed, the same run.")
@click.option("--slo", help="Score the run against this SLO; without one the run is shown as it is.")
@click.option("--price", type=click.FloatRange(0), help="Cost of all servers together, per hour.")
@click.option("-o", "--out", type=PLACE, help="Folder to write the run to.")
@JSON
def queue(
    model: str,
    arrivals: str | None,
    rate: float | None,
    seconds: float,
    seed: int,
    slo: str | None,
    price: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
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
    from openloop.score import score as score_run
    from openloop.sim import simulate

    if (arrivals is None) == (rate is None):
        raise click.UsageError("say when requests are due: --rate 450 or --arrivals gamma:rate=450,cv=2, and not both")
    run = simulate(
        model,
        f"poisson:rate={rate!r}" if arrivals is None else arrivals,
        seconds,
        seed,
        slo=slo,
        command=["openloop", *sys.argv[1:]],
        prices=None if price is None else Prices(per_hour=price),
    )
    if out:
        run.save(out)
        run = open_run(out)
    if slo is None:
        tell_run(run, 5, as_json)
    else:
        tell_score(score_run(run, slo), as_json)


@cli.command()
@click.argument("fleet", type=click.Path(path_type=Path))
@click.option("--workload", help="What is asked, for example sessions:turns=5,think=8s.  [default: synthetic]")
@click.option("--prompt", help="Tokens in a prompt: a number or a distribution.  [default: 128]")
@click.option("--output", help="Tokens of an answer: a number or a distribution.  [default: 64]")
@click.option("--arrivals", help="When users come, for example gamma:rate=12,cv=2.")
@click.option("--rate", type=RATE, help="Short for --arrivals poisson:rate=RATE.")
@click.option("--rates", type=RATES, help="Several, such as 5:50:5 or 5,10,20: a sweep on all cores; needs --slo.")
@click.option("--for", "seconds", help="How long they come.  [default: 10m]")
@click.option("--seed", type=click.IntRange(0), help="The same seed, the same run.  [default: 0]")
@click.option("--slo", help="Score the run against this SLO; its TTFT is the deadline that orders go by.")
@click.option("--warmth", help="Bring caches into a state: cold-cache, warm-cache, hot, disrupted:at=5m.")
@click.option("--quality", help="Label answers by a model of quality, such as quality:fail=2%,tail=4%,factor=1.5.")
@click.option("--policies", help="Rank routing policies on the same requests: all, or a list; needs --slo.")
@click.option("--seeds", type=click.IntRange(2), default=5, show_default=True, help="Of --policies: runs of each.")
@click.option("--explain", is_flag=True, help="Print where every number of the replica comes from, and stop.")
@click.option("-o", "--out", type=PLACE, help="Folder to write the run to.")
@JSON
def sim(
    fleet: Path,
    rates: list[float] | None,
    seconds: str | None,
    quality: str | None,
    policies: str | None,
    seeds: int,
    explain: bool,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Simulate FLEET, a YAML file of modelled replicas, in virtual time, and score what its users got.

    \b
    A fleet in three lines:
      model: 8b            # 7b, 8b, 13b, 32b, 70b
      gpu: h100            # a100, h100, h200, l40s, mi300x; tp: 4 spreads it over four
      policy: chunked      # prefill-first, static, prepone:steps=4
    See docs/simulator.md for the rest: limits, memory, prefix caches, drafts, orders.

    \b
    Examples:
      openloop sim fleet.yaml --rate 8 --prompt "lognormal(median=900,sigma=0.7)" --slo "ttft<=1s, tpot<=40ms"
      openloop sim fleet.yaml --workload trace:mooncake.jsonl --for 1h -o run/
      openloop sim fleet.yaml --rates 5:50:5 --slo "ttft<=1s, tpot<=40ms"
      openloop sim fleet.yaml --policies all --workload sessions:system=2000,systems=40 --rate 4 --slo "ttft<=1s"
      openloop sim fleet.yaml --explain
    """
    from openloop.load.scenario import read_scenario
    from openloop.records import open_run
    from openloop.score import score as score_run
    from openloop.sim.fleet import explain_fleet, read_fleet, simulate_fleet
    from openloop.sim.quality import label, read_quality
    from openloop.sim.warmth import simulate_warm

    chosen = read_fleet(fleet)
    if explain:
        click.echo("\n".join(explain_fleet(chosen)))
        return
    given = {name: value for name, value in asked.items() if value is not None}
    if rates and policies:
        raise click.UsageError("--policies ranks at one rate: give --rate, and not --rates")
    if rates:
        given.setdefault("arrivals", "poisson:rate=1")
        _sweep(fleet, read_scenario(None, {"for": seconds or "10m", **given}, live=False), rates, out, as_json)
        return
    scenario = read_scenario(None, {"for": seconds or "10m", **given}, live=False)
    if policies:
        if out or quality:
            raise click.UsageError("--policies ranks and keeps nothing: leave out --out and --quality")
        _tournament(chosen, scenario, policies, seeds, as_json)
        return
    objectives = scenario.objectives()
    warming, facts = scenario.read_warming(), {"slo": scenario.slo, "command": ["openloop", *sys.argv[1:]]}
    how = scenario.read_workload(), scenario.read_arrivals(), scenario.horizon_s, scenario.seed, objectives
    straight = out if not warming and not quality else None  # as it goes, however long it is
    if warming:
        run = simulate_warm(chosen, warming, *how, **facts)
    else:
        run = simulate_fleet(chosen, *how, out=straight, **facts)
    if quality:
        run = label(run, read_quality(quality), scenario.seed)
    if out and not straight:
        run.save(out)
        run = open_run(out)
    if objectives is None:
        tell_run(run, 5, as_json)
    else:
        tell_score(score_run(run, objectives), as_json)


def _sweep(fleet: Path, scenario: Any, rates: list[float], out: Path | None, as_json: bool) -> None:
    """A rate each, on all cores; without a folder, nothing is kept."""
    import tempfile

    from openloop.cli.curve import tell_frontier
    from openloop.frontier import sweep as measure

    with tempfile.TemporaryDirectory(prefix="openloop-") as scratch:
        command = ["openloop", *sys.argv[1:]]
        tell_frontier(measure(out or Path(scratch) / "sweep", scenario, fleet, rates=rates, command=command), as_json)


def _tournament(fleet: Any, scenario: Any, policies: str, seeds: int, as_json: bool) -> None:
    """Who gets the most accepted."""
    import json

    from openloop.compare.tournament import read_policies, tournament
    from openloop.report.standings import show_standings

    objectives = scenario.objectives()
    if objectives is None:
        raise click.UsageError('say what is accepted: --slo "ttft<=1s, tpot<=40ms"')

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            click.echo(
                f"\r{done} of {total} runs{'' if done < total else chr(13) + chr(27) + '[K'}", err=True, nl=False
            )

    found = tournament(
        fleet,
        read_policies(policies),
        scenario.read_workload(),
        scenario.read_arrivals(),
        scenario.horizon_s,
        objectives,
        seeds=range(scenario.seed, scenario.seed + seeds),
        warming=scenario.read_warming(),
        tell=tell,
    )
    if as_json:
        click.echo(json.dumps([each.to_dict() for each in found], indent=2, allow_nan=False))
    else:
        show_standings(found, seeds, str(scenario.slo))
