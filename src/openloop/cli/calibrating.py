"""Commands that fit a model to what was measured, and ask it what would be."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import JSON, PATH, PLACE, SHARE, cli, tell
from openloop.cli.options import scenario_flags

ALL = 0.999  # accepted
ENDLESS = 1e200  # a cost beyond it is that of nothing


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
    with _status(quiet=as_json) as update:
        found = fit(opened, known or "", update)
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


@contextmanager
def _status(quiet: bool) -> Iterator[Callable[[str], None]]:
    """What goes on, in one line on standard error that changes; nothing when it is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield status.update


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
@click.option(
    "--price",
    type=click.FloatRange(0, min_open=True),
    help="Of a replica, per hour; without one cost is in replica seconds.",
)
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
    from openloop.spec import plain
    from openloop.units import parse_seconds

    model = read_fleet(fleet)
    if price is not None:
        model = msgspec.structs.replace(model, price_per_hour=price)
    chosen = [read_change(text) for text in changes] or common_changes(model, acceptance)
    load, arrivals, objectives, told = wanted(model, flags.get("rate"), flags.get("workload"), flags.get("slo"))
    seconds, seed = parse_seconds(flags.get("for", "5m")), flags.get("seed", 0)
    with _status(quiet=as_json) as update:
        found = compare_changes(model, chosen, load, arrivals, seconds, objectives, draws, seed, update)
    tell([_finite(plain(each)) for each in found], as_json, lambda _: _show_changes(model, found, told))
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
            "goodput",
            "90%",
            "gain",
            "90%",
            f"{unit} / accepted",
            "90%",
            "attainment",
            "TTFT p99",
            "TPOT p99",
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
    return "from nothing" if value > ENDLESS else f"{value:+.0%}"


def _money(value: float) -> str:
    return "nothing accepted" if value > ENDLESS else f"{value:.3g}"


def _finite(value: Any) -> Any:
    """Without costs of what accepts nothing."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and abs(value) > ENDLESS else value
