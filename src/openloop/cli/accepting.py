"""Commands about accepted results: their quality, their cost, and what is missing before a number is evidence."""

import sys
from pathlib import Path

import click

from openloop.cli.common import DURATION, JSON, NOT_NEGATIVE, PLACE, cli, progress_bar, tell
from openloop.cli.options import PRICES, RUN, SLO


@cli.command()
@RUN
@click.option(
    "--gate",
    "gates",
    multiple=True,
    required=True,
    help="A quality gate, such as json or contains:text=total, or a YAML file of them; may be given again.",
)
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes that judge.  [default: one per processor]")
@click.option("--again", is_flag=True, help="Judge anew what these gates have judged before.")
@JSON
def grade(run: Path, gates: tuple[str, ...], jobs: int | None, again: bool, as_json: bool) -> None:
    """Judge the outputs of RUN and fill its quality columns.

    Outputs are those that `openloop run` kept (--keep-texts or --gate). What the same gates have judged before stands;
    interrupted, it goes on where it was. What cannot be judged stays open, and is tried anew the next time.

    \b
    Gates, all of which an output must pass:
      contains:text=refund           regex:'^[0-9]+$'              json
      schema:path=invoice.json       exact, match                  number:tolerance=1%
      length:most=200                finish:stop                   grounded:least=60%
      python:checks.py:good          judge:url=http://localhost:8000,repeats=3
    See docs/quality.md.

    \b
    Examples:
      openloop grade run/ --gate json --gate "length:most=200"
      openloop grade run/ --gate gates.yaml --jobs 8
    """
    from openloop.quality.grading import grade_run
    from openloop.report.accepting import show_grading

    with progress_bar("judging") as progress:
        found = grade_run(run, list(gates), jobs=jobs, again=again, progress=progress)
    tell(found, as_json, lambda grading: show_grading(run, grading))


@cli.command()
@click.argument("run", required=False, type=PLACE)
@SLO
@PRICES
@click.option("--disruption", type=DURATION, default="20m", help="How long an event disturbs.")
@click.option("--every", default="12h,7d", help="How often something is deployed; several with commas.")
@click.option("--steady", type=NOT_NEGATIVE, help="Without a run: cost per accepted result, undisturbed.")
@click.option("--disrupted", type=NOT_NEGATIVE, help="Without a run: the same while disturbed, for as many accepted.")
@JSON
def cost(
    run: Path | None,
    slo: str | None,
    prices: Path | None,
    disruption: float,
    every: str,
    steady: float | None,
    disrupted: float | None,
    as_json: bool,
) -> None:
    """What an accepted result of RUN costs, with everything that failed in the numerator.

    By class of requests, by what became of the work, and blended with the disruptions that the run has marked, for a
    number of deployments. Without RUN only the blend, from two costs.

    \b
    A file of prices has any of:
      per_hour: 12                    # of all that was reserved; or per_gpu_hour: 3 and gpus: 4
      per_request: 0.001
      per_million_input_tokens: 0.5   # per_million_cached_tokens, per_million_output_tokens
      per_human_review: 0.8           # of an answer that fails its gate, and of reviewed_share of the others

    \b
    Examples:
      openloop cost run/ --slo rag --prices prices.yaml
      openloop cost --steady 0.012 --disrupted 0.035 --disruption 20m --every 12h,7d
    """
    from openloop.records import read_prices
    from openloop.report.accepting import cost_report, show_cost
    from openloop.score import score as score_run
    from openloop.units import parse_seconds

    stretches = [parse_seconds(each) for each in every.split(",")]
    if run is None and (steady is None or disrupted is None):
        raise click.UsageError("give a RUN, or --steady and --disrupted")
    if run is not None and (steady is not None or disrupted is not None):
        raise click.UsageError("a RUN has costs of its own: leave out --steady and --disrupted")
    chosen = read_prices(prices) if prices else None
    score = score_run(run, slo, by=["class"], disruption_s=disruption, prices=chosen) if run else None
    tell(cost_report(score, steady, disrupted, disruption, stretches), as_json, show_cost)
    if score and not score.valid:
        sys.exit(1)


@cli.command()
@click.argument("what", type=PLACE)
@SLO
@click.option("--strict", is_flag=True, help="Exit with 1 if anything is missing or a run is not valid.")
@JSON
def audit(what: Path, slo: str | None, strict: bool, as_json: bool) -> None:
    """What is missing before a number of WHAT is evidence, and which claims these data could support.

    WHAT is a run, a frontier or another folder of runs, the result file of another tool, or a YAML or JSON file that
    states what is known of somebody's benchmark, one fact to a key: slo, lengths, hardware, engine, tail, sweep and the
    others of docs/cost.md.

    \b
    Examples:
      openloop audit run/
      openloop audit frontier/ --strict
      openloop audit blog-post.yaml
    """
    from openloop.audit import audit as audit_it
    from openloop.report.accepting import show_audit

    found = audit_it(what, slo)
    tell(found, as_json, show_audit)
    if strict and (found.missing or found.reasons):
        sys.exit(1)
