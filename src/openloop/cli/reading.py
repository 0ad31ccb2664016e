"""Commands that read records."""

from pathlib import Path

import click

from openloop.cli.common import DURATION, JSON, RUN, SHARE, cli, progress_bar, tell_run, tell_score


@cli.command()
@RUN
@click.option("--rows", type=click.IntRange(0, 1_000_000), default=5, show_default=True, help="How many rows to show.")
@JSON
def inspect(run: Path, rows: int, as_json: bool) -> None:
    """Show what RUN (or another tool's file) is: its manifest, whether it can be believed, and its first rows.

    Reads and checks every row; the first one that breaks a rule is named.

    \b
    Example:
      openloop inspect run/
    """
    from openloop.importers import open_any

    tell_run(open_any(run), rows, as_json)


@cli.command()
@RUN
@click.option("--slo", help="Gates, a preset or a YAML file; by default the SLO in the run's manifest.")
@click.option("--by", multiple=True, help="Also score each replica, class, tenant or turn; several with commas.")
@click.option("--window", type=DURATION, help="Also score each stretch of this length, for example 60s.")
@click.option(
    "--disruption",
    type=DURATION,
    default="60s",
    show_default=True,
    help="How long an event in the run disturbs it.",
)
@click.option("--prices", type=click.Path(path_type=Path), help="YAML file of prices, in place of the manifest's.")
@click.option("--require", type=SHARE, help="Exit with 1 if attainment is below this share, for example 99%.")
@JSON
def score(
    run: Path,
    slo: str | None,
    by: tuple[str, ...],
    window: float | None,
    disruption: float,
    prices: Path | None,
    require: float | None,
    as_json: bool,
) -> None:
    """Score RUN against an SLO: goodput, attainment, tails, cost per accepted result, and what stopped the rest.

    RUN is the folder of a run, or the result file of another tool (see openloop import).

    \b
    An SLO is a list of gates, all of which a request must pass:
      ttft<=500ms          first token, from when the request was due
      tpot<=40ms           mean time per further token
      tbt<=200ms           longest time between two tokens
      itl_p95<=80ms        95% of the request's own token gaps (any percentile)
      jitter<=1s           longest minus shortest token gap
      e2e<=10s             last token
      window<=24h          done, from the start of the measured window (batches)
      read>=20tok/s        never slower than a reader who starts on arrival
      read_from_first>=20tok/s   ... who starts with the first token
      quality              passed its quality gate; or quality>=0.8 by score
      retries<=1           retries and repairs
      cost<=0.02           of all attempts at it
    Presets: conversational, agentic, rag, extraction, voice, batch; "rag, ttft<=1s" changes one.
    A YAML file gives an SLO per workload class; see docs/slo.md.

    \b
    Examples:
      openloop score run/ --slo "ttft<=500ms, tpot<=40ms"
      openloop score run/ --slo rag --by replica,class --window 60s
      openloop score run/ --slo slo.yaml --require 99% --json
      openloop score vllm-result.json --slo "ttft<=500ms, tpot<=40ms"
    """
    from openloop.importers import open_any
    from openloop.records import read_prices
    from openloop.score import score as score_run

    opened = open_any(run)
    chosen = read_prices(prices) if prices else None
    groups = [key.strip() for keys in by for key in keys.split(",")]
    with progress_bar("scoring", opened.num_rows) as progress:
        result = score_run(
            opened, slo, by=groups, window_s=window, disruption_s=disruption, prices=chosen, progress=progress
        )
    tell_score(result, as_json, require)
