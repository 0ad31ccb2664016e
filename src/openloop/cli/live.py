"""Commands around live endpoints: asking one, standing in front of it, watching it, and one to ask."""

import json
import math
import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import cli, command_line, say, tell, tell_made
from openloop.cli.options import (
    DURATION,
    JSON,
    PATH,
    PLACE,
    POSITIVE,
    PRICES,
    RATE,
    RATES,
    RAY,
    REQUIRE,
    SHARE,
    SLO,
    scenario_flags,
)
from openloop.errors import SpecError


@cli.command()
@click.argument("scenario", required=False, type=PATH)
@scenario_flags()
@REQUIRE
@click.option("-o", "--out", type=PLACE, help="Folder for the run; by default one named by the time.")
@RAY
@JSON
@click.pass_obj
def run(
    flags: dict[str, Any],
    scenario: Path | None,
    out: Path | None,
    require: float | None,
    ray: str | None,
    as_json: bool,
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

    if "://" in str(out or "") and ray is None:
        raise click.UsageError(f"{out} is a URL, and a live run is written here as it goes: copy it when it is over")
    given = read_scenario(scenario, flags)
    objectives = given.objectives()
    with LiveView(given.horizon_s, objectives, quiet=as_json) as view:
        done = run_scenario(given, out or default_folder(), view, command_line(), ray)
    if not as_json:
        click.echo(f"the run is in {done.path}")
    tell_made(done, objectives, as_json, require)


@cli.command()
@click.argument("scenario", default="openloop.yaml", type=PATH)
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
@click.argument("scenario", type=PATH)
@scenario_flags()
@click.pass_obj
def validate(flags: dict[str, Any], scenario: Path) -> None:
    """Check SCENARIO without asking anybody: its keys, its terms, its files, and what would be sent.

    \b
    Example:
      openloop validate chat.yaml --rate 30
    """
    from openloop.load.scenario import check_files, read_scenario
    from openloop.report.workload import show_workload
    from openloop.workload import describe as describe_demand

    given = read_scenario(scenario, flags)
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
@scenario_flags(
    *("--arrivals", "--rate", "--for", "--seed"),
    other={"--for": "How long they come.  [default: 10m, or as the file says]"},
)
@click.option("-o", "--out", type=PATH, help="Also draw it, into this file (.svg or .png).")
@JSON
@click.pass_obj
def describe(flags: dict[str, Any], spec: str, out: Path | None, as_json: bool) -> None:
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
    from openloop.workload import describe as describe_demand

    written = spec.endswith((".yaml", ".yml"))
    flags = flags if written else {"for": "10m", "workload": spec, **flags}
    scenario = read_scenario(Path(spec) if written else None, flags, live=False)
    asked, horizon = scenario.read_workload(), scenario.horizon_s
    demand = asked.demand(scenario.read_arrivals(), horizon, scenario.seed)
    tell(describe_demand(demand, horizon), as_json, lambda found: show_workload(str(asked), found, demand))
    if out:
        draw_workload(str(asked), demand, horizon, out)


@cli.command()
@click.option(
    "--engine",
    default="slots",
    help="What stands behind it: slots:count=8,gap=20ms, or the YAML file of a fleet, simulated in real time.",
)
@click.option("--model", default="openloop", help="Name of the model that it serves.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0: any that is free.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the engine's chances.")
def serve(engine: str, model: str, host: str, port: int, seed: int) -> None:
    """Serve an OpenAI-compatible endpoint around a modelled engine: for trying things out, and for tests.

    It answers /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics; GET /truth tells when each
    request arrived and each token was written (by X-Request-Id, a whole number), and POST /behaviour makes it stall,
    fail, cut, reset, drip or hang, for example {"fault": "cut", "share": 0.1} or {"stall_s": 1, "every_s": 10}.

    \b
    Examples:
      openloop serve --engine "slots:count=8,prefill=0.2ms,gap=exponential(20ms)" --port 8000
      openloop serve --engine fleet.yaml     # a model on GPUs, as openloop sim has it, in real time
    """
    import gc

    from openloop.serve import Endpoint, read_engine

    if engine.endswith((".yaml", ".yml")):
        from openloop.serve.fleet import FleetEngineSpec

        endpoint = Endpoint(FleetEngineSpec(engine), model, host, port, seed)
    else:
        endpoint = Endpoint(read_engine(engine), model, host, port, seed)
    click.echo(f"listening on http://{endpoint.host}:{endpoint.port} (model {model!r}; Ctrl-C stops)")
    sys.stdout.flush()
    gc.disable()  # a collection would show as a stall
    endpoint.run()


@cli.command()
@click.option("--rates", type=RATES, default="50,200,500,1000,2000,3000", help="Requests per second to try.")
@click.option("--for", "seconds", type=DURATION, default="5s", help="How long, at each rate.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, help="Processes that send.")
@click.option("--require", type=RATE, help="Exit with 1 if this rate cannot be trusted, for example 1000.")
@JSON
def selftest(rates: list[float], seconds: float, workers: int, require: float | None, as_json: bool) -> None:
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

    if not as_json:
        show_trials_header()
    trials = test(rates, seconds, workers, None if as_json else show_trial)
    best = max((trial.offered_rps for trial in trials if trial.trusted), default=0.0)
    if as_json:
        tell({"trials": [plain(trial) | {"trusted": trial.trusted} for trial in trials], "trusted_rps": best}, as_json)
    else:
        click.echo(f"trusted up to {best:g} requests per second of 20 tokens, with {workers} sending")
    if require is not None and best < require:
        sys.exit(say(f"required {require:g} requests per second, trusted {best:g}", 1))


@cli.command()
@click.option("-o", "--out", type=PATH, default="openloop-demo", help="Folder.")
def demo(out: Path) -> None:
    """See goodput collapse in under a minute: real HTTP load on the built-in endpoint, no GPU and no key.

    Five rates from comfortable to overloaded, each a run of its own in the folder, a table and a picture.

    \b
    Example:
      openloop demo
    """
    from openloop.demo import demo as show

    show(out)


@cli.command()
@click.argument("file", type=PATH)
@click.option("-o", "--out", type=PLACE, help="Folder for records and decisions, in place of `run` in the file.")
@click.option("--listen", help="Host and port, in place of `listen` in the file; port 0 takes a free one.")
@JSON
def proxy(file: Path, out: Path | None, listen: str | None, as_json: bool) -> None:
    """Stand in front of OpenAI-compatible replicas, as FILE says: route requests, stream answers, record both.

    \b
    A proxy in three lines:
      replicas: [http://127.0.0.1:8001, http://127.0.0.1:8002]
      routing: prefix-aware
      slo: ttft<=500ms, tpot<=40ms
    See docs/proxy.md for the rest: admission, retries, hedges, health, draining, limits, a token.
    /metrics tells attainment and goodput by class and by replica; `openloop view` and `openloop watch` read the
    records while they grow. TERM drains it. HUP reads again which replicas are to be drained.

    \b
    Examples:
      openloop proxy proxy.yaml -o run/
      openloop score run/ --slo "ttft<=500ms, tpot<=40ms"
      openloop decisions run/decisions.jsonl
    """
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise SpecError("the proxy needs the package aiohttp: pip install 'openloop[proxy]'") from None
    import msgspec

    from openloop.proxy import read_proxy, serve_proxy
    from openloop.score.judged import judge_batch

    spec = read_proxy(file)
    given = {"run": None if out is None else str(out), "listen": listen}
    spec = msgspec.structs.replace(spec, **{name: value for name, value in given.items() if value is not None})
    spec.address()

    def tell(sentence: str) -> None:
        with suppress(OSError):  # whoever read it may be gone, and the traffic goes on
            click.echo(json.dumps({"event": sentence}) if as_json else sentence)

    try:
        from uvloop import run  # it takes a fifth less processor time
    except ImportError:
        from asyncio import run  # type: ignore[assignment]
    done = run(serve_proxy(file, spec, partial(judge_batch, objectives=spec.objectives()), tell))
    kept = {"requests": done.ledger.due, "rows": done.ledger.rows, "lost": done.ledger.lost, "run": spec.run}
    where = f"in {spec.run}" if spec.run else "and no records, for want of a folder (-o)"
    click.echo(json.dumps(kept) if as_json else f"{done.ledger.due:,} requests, {done.ledger.rows:,} attempts, {where}")
    if done.ledger.lost:
        sys.exit(1)


@cli.command()
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--policy", help="Another routing policy on what was seen then, such as prefix-aware:lead=4.")
@JSON
def decisions(log: Path, policy: str | None, as_json: bool) -> None:
    """Decide once more: replay a LOG of routing decisions with the compiled routing policy of the simulator.

    Each decision is made by what was seen then. Exit code 1 if any falls out differently, unless another was
    asked for: then it says how many requests that would have sent elsewhere.

    \b
    Examples:
      openloop decisions proxy/decisions.jsonl
      openloop decisions proxy/decisions.jsonl --policy least-requests
    """
    from openloop.routing import replay

    found = replay(log, policy)
    lines = [
        f"{found.policy}: {found.decisions - len(found.elsewhere):,} of {found.decisions:,} decisions are the same"
    ]
    if found.elsewhere:
        shown = ", ".join(map(str, found.elsewhere[:10]))
        lines.append(f"elsewhere: {shown}{', ...' if len(found.elsewhere) > 10 else ''}")
    click.echo(json.dumps(found._asdict()) if as_json else "\n".join(lines))
    if found.elsewhere and policy is None:
        sys.exit(1)


@cli.command()
@click.argument("what", type=PLACE)
@SLO
@click.option("--attain", type=SHARE, default="99%", help="Attainment to keep; the rest is the budget.")
@click.option("--burn", help="Alert rules, as factor:long/short.  [default: 14.4:1h/5m, 6:6h/30m, 1:72h/6h]")
@click.option("--window", "window_s", type=DURATION, default="60s", help="What rolling figures are over.")
@click.option("--every", "every_s", type=DURATION, default="1s", help="How often to look.")
@click.option("--disruption", "disruption_s", type=DURATION, default="60s", help="How long an event disturbs.")
@PRICES
@click.option("--speed", type=POSITIVE, help="Replay what is there, so many times as fast.")
@click.option(
    "--once", is_flag=True, help="Go through what is there at once; exit with 1 if an alert is on at its end."
)
@click.option("--fail-on-alert", is_flag=True, help="Exit with 1 as soon as an alert begins.")
@click.option(
    "--webhook", envvar="OPENLOOP_WEBHOOK", help="Post alerts there; better in OPENLOOP_WEBHOOK, if it is secret."
)
@click.option("--listen", help="Offer /metrics for Prometheus at this port, or host:port.")
@click.option("--token", envvar="OPENLOOP_WATCH_TOKEN", help="Who asks for /metrics must have it.")
@JSON
def watch(
    what: Path | str,
    slo: str | None,
    burn: str | None,
    prices: Path | None,
    speed: float | None,
    once: bool,
    fail_on_alert: bool,
    webhook: str | None,
    listen: str | None,
    token: str | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Watch WHAT go on: rolling goodput, each gate by itself, tails by replica, burn-rate alerts, disruptions.

    WHAT is the folder of a run or of the proxy, in progress or over; a file of OpenTelemetry GenAI spans, one JSON
    object a line; the file of another tool; or the address of a server's /metrics. What is over is replayed.
    --json prints an object a line.

    \b
    Examples:
      openloop watch run/ --slo "ttft<=500ms, tpot<=40ms"
      openloop watch run/ --speed 20 --burn 10:5m/30s
      openloop watch run/ --once --attain 95% --json
      openloop watch spans.jsonl --slo "ttft<=1s" --webhook https://example.com/hook
      openloop watch http://localhost:8000/metrics --slo "ttft<=500ms, e2e<=10s" --listen 9464
    """
    from openloop.records import read_prices
    from openloop.watch import RULES, Settings, open_feed, parse_rules
    from openloop.watch import watch as moments
    from openloop.watch.outlets import Audience, MetricsServer

    if once and speed is not None:
        raise click.UsageError("--once goes through it at once: leave out --speed")
    rules = parse_rules(burn) if burn else RULES
    settings = Settings(rules=rules, speed=math.inf if once else speed, **how)
    feed = open_feed(what, slo, read_prices(prices) if prices else None, settings)
    with MetricsServer(listen, token) if listen else nullcontext() as page:
        if page:
            click.echo(f"metrics at {page.url}", err=True)
        audience = Audience(feed, settings.window_s, as_json=as_json, quiet=once, webhook=webhook, page=page)
        with audience, suppress(KeyboardInterrupt):
            for frame, changed in moments(feed, settings):
                audience.tell(frame, changed)
                if fail_on_alert and any(alert.until_s is None for alert in changed):
                    break
        audience.sum_up()
    on = len(audience.frame.alerts) if audience.frame else 0
    if (fail_on_alert and audience.began) or (once and on):
        sys.exit(say(f"{audience.began} alerts began, {on} are on", 1))
    if once and not feed.ledger.total("ended", 0, feed.ledger.end):
        sys.exit(say("nothing has ended, so nothing was judged", 1))
