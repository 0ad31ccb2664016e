"""Commands around live endpoints: what to ask, asking it, and an endpoint to ask."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import DURATION, JSON, PLACE, RATE, RAY, SHARE, cli, say, tell_run, tell_score
from openloop.units import parse_rate


def _keyed(key: str) -> Any:
    """A flag that sets a key of the scenario; one that is not given leaves it as it is."""

    def take(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            ctx.ensure_object(dict)[key] = value

    return take


def scenario_option(flag: str, key: str, *names: str, **how: Any) -> tuple[str, Any]:
    return flag, click.option(flag, *names, callback=_keyed(key), expose_value=False, default=None, **how)


SCENARIO = [
    scenario_option(
        "--target",
        "target.url",
        multiple=True,
        help="The server, for example http://localhost:8000; /v1 may follow. Given again: asked in turn.",
    ),
    scenario_option("--model", "target.model", help="Name of the model; by default the one that the server has."),
    scenario_option("--slo", "slo", help="Gates, a preset or a YAML file; the run is scored against it at the end."),
    scenario_option("--rate", "rate", type=RATE, help="Short for --arrivals poisson:rate=RATE."),
    scenario_option("--arrivals", "arrivals", help="When users come, for example gamma:rate=12,cv=2."),
    scenario_option("--for", "for", help="How long they come.  [default: 60s]"),
    scenario_option("--workload", "workload", help="What is asked, for example sessions:turns=5,think=8s."),
    scenario_option("--prompt", "prompt", help="Tokens in a prompt: a number or a distribution.  [default: 128]"),
    scenario_option("--output", "output", help="Tokens to ask for: a number or a distribution.  [default: 64]"),
    scenario_option("--tokenizer", "tokenizer", help="Folder with tokenizer.json: prompts of exactly so many tokens."),
    scenario_option("--tokens-per-word", "tokens_per_word", type=float, help="Instead of asking the server."),
    scenario_option(
        "--api",
        "target.api",
        help="chat, completions, responses, messages, embeddings, http or python.  [default: chat]",
    ),
    scenario_option(
        "--stream/--no-stream", "target.stream", help="Ask for tokens as they come, or all at once.  [default: stream]"
    ),
    scenario_option("--extra", "extra", help="JSON to add to every request, for example '{\"ignore_eos\": true}'."),
    scenario_option("--template", "target.template", help="File of the body, with --api http."),
    scenario_option("--method", "target.method", help="Of HTTP, with --api http.  [default: POST]"),
    scenario_option(
        "--header", "header", multiple=True, help="A header for every request, as 'Name: value'; may be given again."
    ),
    scenario_option(
        "--key-env", "target.key_env", help="Variable that holds the key.  [default: the API's, as OPENAI_API_KEY]"
    ),
    scenario_option("--ca", "target.ca", help="File of certificates to trust besides the system's."),
    scenario_option("--insecure", "target.insecure", is_flag=True, flag_value=True, help="Check no certificate."),
    scenario_option("--replica-header", "target.replica_header", help="Response header that says who served."),
    scenario_option(
        "--metrics/--no-metrics", "target.metrics", help="Scrape /metrics of the servers meanwhile.  [default: metrics]"
    ),
    scenario_option("--timeout", "timeout", help="Give up on a request after this.  [default: 120s]"),
    scenario_option("--drain", "drain", help="Wait so long for what is in flight.  [default: 30s]"),
    scenario_option(
        "--gate",
        "gates",
        multiple=True,
        help="Grade outputs meanwhile: a quality gate such as json, or a YAML file of them; may be given again.",
    ),
    scenario_option(
        "--repair", "repair", help="Ask again, with a correction, where a gate fails: how many times, or repair:most=2."
    ),
    scenario_option("--keep-texts", "keep_texts", is_flag=True, flag_value=True, help="Keep prompts and outputs."),
    scenario_option(
        "--warmth",
        "warmth",
        help="Bring caches into a state: cold-cache, warm-cache, hot, disrupted (or disrupted:at=30s), cold.",
    ),
    scenario_option(
        "--restart-command",
        "restart",
        help="Ends the server and starts it anew, before the run; --warmth cold needs it.",
    ),
    scenario_option(
        "--event",
        "events",
        multiple=True,
        help="Mark what you will do to the system, as 30s=deploy; may be given again.",
    ),
    scenario_option(
        "--cache-salt",
        "target.cache_salt",
        is_flag=True,
        flag_value=True,
        help="The API takes cache_salt, as vLLM's does: --warmth then changes no prompt.",
    ),
    scenario_option("--retry", "retry", help="Ask again: how many times, or retry:most=2,on=429+503,budget=20%."),
    scenario_option(
        "--hedge", "hedge", help="Send a copy to whoever is next: after 500ms, after p95, or hedge:after=p95."
    ),
    scenario_option("--workers", "workers", type=click.IntRange(1, 64), help="Processes that send.  [default: 1]"),
    scenario_option(
        "--connections",
        "connections",
        type=click.IntRange(1),
        help="At most so many, as an experiment: what waits for one counts as late.",
    ),
    scenario_option(
        "--closed",
        "closed",
        type=click.IntRange(1),
        help="A closed loop of so many users instead of a schedule, to show what it hides.",
    ),
    scenario_option("--max-requests", "limits.requests", type=click.IntRange(1), help="Stop after so many."),
    scenario_option("--max-spend", "limits.spend", type=click.FloatRange(0), help="Stop when this is spent."),
    scenario_option("--seed", "seed", type=click.IntRange(0), help="The same seed, the same requests.  [default: 0]"),
    scenario_option("--prices", "prices", help="YAML file of prices: of GPUs, tokens, requests, human reviews."),
    scenario_option("--price", "prices.per_hour", type=click.FloatRange(0), help="Cost of all that serves, per hour."),
]


def scenario_options(command: Any, without: tuple[str, ...] = ()) -> Any:
    for flag, option in reversed(SCENARIO):
        command = command if flag in without else option(command)
    return command


@cli.command()
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@scenario_options
@click.option("--require", type=SHARE, help="Exit with 1 if attainment is below this share, for example 99%.")
@click.option("-o", "--out", type=PLACE, help="Folder for the run; by default one named by the time.")
@RAY
@JSON
@click.pass_context
def run(
    ctx: click.Context, scenario: Path | None, out: Path | None, require: float | None, ray: str | None, as_json: bool
) -> None:
    """Drive a live server open-loop, record every token, and score what its users would have got.

    Requests are sent when the schedule says, however slow the server is, and latency counts from then. The run is
    written as it goes: Ctrl-C stops sending, waits a moment for what is in flight and leaves a complete run; a second
    one stops at once. SCENARIO is a YAML file with all of it (`openloop init` writes one); flags change single values.

    \b
    Examples:
      openloop run --target http://localhost:8000 --rate 20 --for 2m --slo "ttft<=500ms, tpot<=40ms" -o run/
      openloop run --target http://localhost:8000 --arrivals gamma:rate=8,cv=2 --prompt "uniform(100,800)"
      openloop run scenario.yaml --rate 30
      openloop run scenario.yaml --arrivals poisson:rate=20000 --workers 8 --ray
    """
    from openloop.load.scenario import default_folder, read_scenario, run_scenario
    from openloop.report.live import LiveView
    from openloop.score import score as score_run

    if "://" in str(out or "") and ray is None:
        raise click.UsageError(f"{out} is a URL, and a live run is written here as it goes: copy it when it is over")
    given = read_scenario(scenario, ctx.obj)
    objectives = given.objectives()
    with LiveView(given.horizon_s, objectives, quiet=as_json) as view:
        done = run_scenario(given, out or default_folder(), view, ["openloop", *sys.argv[1:]], ray)
    if not as_json:
        click.echo(f"the run is in {done.path}")
    if objectives is None:
        tell_run(done, 5, as_json)
    else:
        tell_score(score_run(done, objectives), as_json, require)


@cli.command()
@click.argument("scenario", default="openloop.yaml", type=click.Path(path_type=Path))
def init(scenario: Path) -> None:
    """Write a scenario to start from, with comments, to SCENARIO (by default openloop.yaml).

    \b
    Example:
      openloop init chat.yaml
    """
    from openloop.load.scenario import STARTER

    if scenario.exists():
        raise click.UsageError(f"{scenario} is there already; choose another name")
    scenario.write_text(STARTER, encoding="utf-8")
    click.echo(f"{scenario} is written: change target and workload, then openloop validate {scenario}")


@cli.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@scenario_options
@click.pass_context
def validate(ctx: click.Context, scenario: Path) -> None:
    """Check SCENARIO without asking anybody: its keys, its terms, its files, and what would be sent.

    \b
    Example:
      openloop validate chat.yaml --rate 30
    """
    from openloop.load.scenario import check_files, read_scenario
    from openloop.report.workload import show_workload
    from openloop.workload import describe as describe_demand

    given = read_scenario(scenario, ctx.obj)
    check_files(given)
    if given.closed is None:  # else nobody knows how many there will be
        demand = given.read_workload().demand(given.read_arrivals(), given.horizon_s, given.seed)
        show_workload(str(given.read_workload()), describe_demand(demand, given.horizon_s), demand)
    click.echo(f"{scenario} can be run: openloop run {scenario}")


@cli.group()
def workload() -> None:
    """Look at what would be asked."""


@workload.command()
@click.argument("spec")
@click.option("--arrivals", help="When users come, for example gamma:rate=12,cv=2.")
@click.option("--rate", type=RATE, help="Short for --arrivals poisson:rate=RATE.")
@click.option("--for", "seconds", help="How long they come.  [default: 10m, or as the file says]")
@click.option("--seed", type=click.IntRange(0), help="The same seed, the same requests.  [default: 0]")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Also draw it, into this file (.svg or .png).")
@JSON
def describe(
    spec: str,
    arrivals: str | None,
    rate: float | None,
    seconds: str | None,
    seed: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show the lengths, the reuse and the arrivals of SPEC before anything is sent.

    SPEC is a workload (`synthetic:prompt=500,output=64`) or a scenario file. Reuse is the share of prompt tokens that
    a prefix cache without limits would know.

    \b
    Examples:
      openloop workload describe "synthetic:prompt=lognormal(median=500,sigma=0.8),output=64" --rate 20
      openloop workload describe "trace:mooncake.jsonl,speed=2" --for 1h -o trace.svg
      openloop workload describe scenario.yaml
    """
    from openloop.load.scenario import read_scenario
    from openloop.report.workload import draw_workload, show_workload
    from openloop.spec import plain
    from openloop.workload import describe as describe_demand

    flags = {"rate": rate, "arrivals": arrivals, "for": seconds, "seed": seed}
    given = {name: value for name, value in flags.items() if value is not None}
    if spec.endswith((".yaml", ".yml")):
        scenario = read_scenario(Path(spec), given, live=False)
    else:
        scenario = read_scenario(None, {"for": "10m", "workload": spec, **given}, live=False)
    asked, horizon = scenario.read_workload(), scenario.horizon_s
    demand = asked.demand(scenario.read_arrivals(), horizon, scenario.seed)
    found = describe_demand(demand, horizon)
    if as_json:
        click.echo(json.dumps(plain(found), indent=2, allow_nan=False))
    else:
        show_workload(str(asked), found, demand)
    if out:
        draw_workload(str(asked), demand, horizon, out)


@cli.command()
@click.option(
    "--engine",
    default="slots",
    show_default=True,
    help="What stands behind it: slots:count=8,gap=20ms, or the YAML file of a fleet, simulated in real time.",
)
@click.option("--model", default="openloop", show_default=True, help="Name of the model that it serves.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the engine's chances.")
def serve(engine: str, model: str, host: str, port: int, seed: int) -> None:
    """Serve an OpenAI-compatible endpoint around a modelled engine: for trying things out, and for tests.

    It answers /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics; GET /truth tells when each
    request arrived and each token was written (by X-Request-Id), and POST /behaviour makes it stall, fail, cut, reset,
    drip or hang, for example {"fault": "cut", "share": 0.1} or {"stall_s": 1, "every_s": 10}.

    \b
    Examples:
      openloop serve --engine "slots:count=8,prefill=0.2ms,gap=exponential(20ms)" --port 8000
      openloop serve --engine fleet.yaml     # a model on GPUs, as openloop sim has it, in real time
    """
    import gc

    from openloop.serve import Endpoint, read_engine

    if engine.endswith((".yaml", ".yml")):
        from openloop.serve.fleet import FleetSpec

        endpoint = Endpoint(FleetSpec(engine), model, host, port, seed)
    else:
        endpoint = Endpoint(read_engine(engine), model, host, port, seed)
    click.echo(f"listening on http://{endpoint.host}:{endpoint.port} (model {model!r}; Ctrl-C stops)")
    sys.stdout.flush()
    gc.disable()  # a collection would show as a stall
    endpoint.run()


@cli.command()
@click.option("--rates", default="50,200,500,1000,2000,3000", show_default=True, help="Requests per second to try.")
@click.option("--for", "seconds", type=DURATION, default="5s", show_default=True, help="How long, at each rate.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that send.")
@click.option("--require", type=RATE, help="Exit with 1 if this rate cannot be trusted, for example 1000.")
@JSON
def selftest(rates: str, seconds: float, workers: int, require: float | None, as_json: bool) -> None:
    """How wrong is this machine as a load generator? Drives an endpoint that knows the truth, and compares.

    A rate can be trusted when every request completes, p99 of the error of TTFT and p99 of sending behind schedule are
    at most 1 ms, and arrivals vary at the server as they should. Publish the table with your results.

    \b
    Example:
      openloop selftest --require 1000
    """
    from openloop.load.selftest import selftest as test
    from openloop.report.live import show_trial, show_trials_header
    from openloop.spec import plain

    chosen = [parse_rate(rate) for rate in rates.split(",")]
    if not as_json:
        show_trials_header()
    trials = test(chosen, seconds, workers, None if as_json else show_trial)
    best = max((trial.offered_rps for trial in trials if trial.trusted), default=0.0)
    if as_json:
        found = {"trials": [plain(trial) | {"trusted": trial.trusted} for trial in trials], "trusted_rps": best}
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        click.echo(f"trusted up to {best:g} requests per second of 20 tokens, with {workers} sending")
    if require is not None and best < require:
        sys.exit(say(f"required {require:g} requests per second, trusted {best:g}", 1))


@cli.command()
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), default="openloop-demo", show_default=True, help="Folder."
)
def demo(out: Path) -> None:
    """See goodput collapse in under a minute: real HTTP load on the built-in endpoint, no GPU and no key.

    Five rates from comfortable to overloaded, each a run of its own in the folder, a table and a picture.

    \b
    Example:
      openloop demo
    """
    from openloop.demo import demo as show

    show(out)
