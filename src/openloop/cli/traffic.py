"""Live traffic: through a proxy that routes and records it, its decisions once more, and what goes on, watched."""

import json
import math
import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import cli, say
from openloop.cli.options import DURATION, JSON, PATH, PLACE, POSITIVE, PRICES, SHARE, SLO
from openloop.errors import SpecError


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
