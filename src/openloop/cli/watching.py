"""The command that watches what goes on."""

import sys
from pathlib import Path

import click

from openloop.cli.common import DURATION, JSON, PLACE, POSITIVE, SHARE, cli, say
from openloop.cli.options import PRICES, SLO


@cli.command()
@click.argument("what", type=PLACE)
@SLO
@click.option("--attain", type=SHARE, default="99%", help="Attainment to keep; the rest is the budget.")
@click.option("--burn", help="Alert rules, as factor:long/short.  [default: 14.4:1h/5m, 6:6h/30m, 1:72h/6h]")
@click.option("--window", type=DURATION, default="60s", help="What rolling figures are over.")
@click.option("--every", type=DURATION, default="1s", help="How often to look.")
@click.option("--disruption", type=DURATION, default="60s", help="How long an event disturbs.")
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
    attain: float,
    burn: str | None,
    window: float,
    every: float,
    disruption: float,
    prices: Path | None,
    speed: float | None,
    once: bool,
    fail_on_alert: bool,
    webhook: str | None,
    listen: str | None,
    token: str | None,
    as_json: bool,
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
    import math
    from contextlib import nullcontext, suppress

    from openloop.records import read_prices
    from openloop.watch import RULES, Settings, open_feed, parse_rules
    from openloop.watch import watch as moments
    from openloop.watch.outlets import Audience, MetricsServer

    if once and speed is not None:
        raise click.UsageError("--once goes through it at once: leave out --speed")
    rules = parse_rules(burn) if burn else RULES
    settings = Settings(attain, rules, window, every, disruption, math.inf if once else speed)
    feed = open_feed(what, slo, read_prices(prices) if prices else None, settings)
    with MetricsServer(listen, token) if listen else nullcontext() as page:
        if page:
            click.echo(f"metrics at {page.url}", err=True)
        audience = Audience(feed, window, as_json=as_json, quiet=once, webhook=webhook, page=page)
        with audience, suppress(KeyboardInterrupt):
            for frame, changed in moments(feed, settings):
                audience.tell(frame, changed)
                if fail_on_alert and any(alert.until_s is None for alert in changed):
                    break
        audience.sum_up()
    on = len(audience.frame.alerts) if audience.frame else 0
    if (fail_on_alert and audience.began) or (once and on):
        sys.exit(say(f"{audience.began} alerts began, {on} are on", 1))
