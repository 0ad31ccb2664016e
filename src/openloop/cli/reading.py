"""Commands that read records: what they are, what was accepted and at what cost, and pages for people to look at."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from openloop.cli.common import cli, progress_bar, say, tell, tell_run, tell_score
from openloop.cli.options import DURATION, DURATIONS, JSON, PATH, PLACE, PRICES, RATE, REQUIRE, RUN, SLO, UNSIGNED

WORTH_A_BAR = 50_000  # rows


@cli.command()
@RUN
@click.option("--rows", type=click.IntRange(0, 1_000_000), default=5, help="How many rows to show.")
@JSON
def inspect(run: Path, rows: int, as_json: bool) -> None:
    """Show what RUN (or another tool's file) is: its manifest, whether it can be believed, and its first rows.

    Reads and checks every row; the first one that breaks a rule is named.

    \b
    Example:
      openloop inspect run/
    """
    from openloop.importers import open_any

    tell_run(open_any(run), as_json, rows)


@cli.command()
@RUN
@SLO
@click.option("--by", multiple=True, help="Also score each replica, class, tenant or turn; several with commas.")
@click.option("--window", "window_s", type=DURATION, help="Also score each stretch of this length, for example 60s.")
@click.option("--warm-up", help="Leave out the start of the window: so long, such as 30s; auto: until it settles.")
@click.option(
    "--disruption", "disruption_s", type=DURATION, default="60s", help="How long an event in the run disturbs it."
)
@PRICES
@REQUIRE
@JSON
def score(
    run: Path,
    by: tuple[str, ...],
    warm_up: str | None,
    prices: Path | None,
    require: float | None,
    as_json: bool,
    **how: Any,
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
    from openloop.frontier.steady import after_warm_up
    from openloop.importers import open_any
    from openloop.records import read_prices
    from openloop.score import score as score_run
    from openloop.units import parse_seconds

    opened = open_any(run)
    if warm_up is not None:
        opened = after_warm_up(opened, None if warm_up == "auto" else parse_seconds(warm_up))
    chosen = read_prices(prices) if prices else None
    groups = [key.strip() for keys in by for key in keys.split(",")]
    with progress_bar("scoring", quiet=opened.num_rows < WORTH_A_BAR) as progress:
        result = score_run(opened, by=groups, prices=chosen, progress=progress, **how)
    tell_score(result, as_json, require)


@cli.command()
@click.argument("what", type=PLACE)
@click.option("-o", "--out", type=PATH, help="Write one self-contained HTML file.")
@click.option("--slo", help="Gates, a preset or a YAML file; by default the SLO that stands there.")
@click.option("--compare", type=PLACE, help="Another of its kind: WHAT is the baseline, this the candidate.")
@click.option("--request", type=int, help="Also show the tokens of the request with this number.")
@click.option(
    "--point", type=RATE, help="Of a frontier: which rate to show in detail.  [default: the last before the knee]"
)
@click.option("--md", type=PATH, help="Write Markdown, for a pull request; -: print it.")
@click.option("--png", type=PATH, help="Write each figure into this folder, as PNG.")
@click.option("--svg", type=PATH, help="Write each figure into this folder, as SVG.")
@click.option("--pdf", type=PATH, help="Print to this file, if Chromium is there.")
@JSON
def report(
    what: Path,
    out: Path | None,
    slo: str | None,
    compare: Path | None,
    request: int | None,
    point: float | None,
    md: Path | None,
    png: Path | None,
    svg: Path | None,
    pdf: Path | None,
    as_json: bool,
) -> None:
    """Show WHAT, a run, a frontier or a plan.json, to people: the verdict in plain words first, then the figures.

    A run may be the result file of another tool, too. Without -o it is told on the terminal. The HTML file needs no
    network and nothing beside it; a run that is not valid has its numbers struck out, and the exit code is 1.

    \b
    Examples:
      openloop report run/
      openloop report frontier/ -o report.html
      openloop report run/ --slo "ttft<=1s" --request 1234 -o report.html --png figures/
      openloop report old/ --compare new/ -o report.html
      openloop report plan.json -o plan.html
      openloop report run/ --md - >> summary.md
    """
    from openloop.errors import SpecError
    from openloop.records import locate, open_run
    from openloop.report.chart import draw_figure
    from openloop.report.files import print_pdf, write_text
    from openloop.report.html import page
    from openloop.report.markdown import markdown
    from openloop.report.plot import show_report
    from openloop.report.read import read_comparison, read_report

    if out is not None and out.suffix.lower() not in ("", ".html", ".htm"):
        raise SpecError(f"{out}: -o writes a .html file; for others give --md FILE, --pdf FILE, --png FOLDER or --json")
    what, compare = locate(what), compare and locate(compare)
    rows = open_run(what).num_rows if (what / "run.json").exists() else 0
    with progress_bar("scoring", quiet=rows < WORTH_A_BAR) as progress:
        if compare is None:
            found = read_report(what, slo, request=request, point=point, progress=progress)
        elif request is None and point is None:
            found = read_comparison(what, compare, slo)
        else:
            raise click.UsageError("--request and --point show one thing, and --compare shows two")
    for path, form in ((out, page), (md, markdown)):
        if str(path) == "-":
            click.echo(form(found), nl=False)
        elif path is not None:
            write_text(path, form(found))
    for folder, kind in ((png, "png"), (svg, "svg")):
        if folder is not None:
            for figure in found.figures:
                draw_figure(figure, folder / f"{figure.key}.{kind}")
    if pdf:
        print_pdf(page(found), pdf)
    written = [str(path) for path in (out, md, png, svg, pdf) if path is not None and str(path) != "-"]
    if as_json:
        told = {"verdict": found.verdict, "headline": found.headline, "sentences": found.sentences, "written": written}
        tell({**told, "data": found.data}, as_json)
    elif written:
        click.echo(f"{found.headline} ({', '.join(written)})")
    elif md is None:
        show_report(found)
    if found.verdict == "invalid":
        sys.exit(1 if as_json or not written else say("it is not valid: the report says why", 1))


@cli.command()
@click.argument("folder", type=PATH, default=".")
@click.option("--host", default="127.0.0.1", help="Address to listen on; elsewhere a token is needed.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="0: any that is free.")
@click.option("--token", envvar="OPENLOOP_VIEW_TOKEN", help="Who has it may look.  [default: made up, beyond loopback]")
@click.option("--open", "show", is_flag=True, help="Open a browser there.")
@JSON
def view(folder: Path, host: str, port: int, token: str | None, show: bool, as_json: bool) -> None:
    """A local page over all runs and frontiers in FOLDER: list, filter, compare, another SLO, runs in progress.

    Nothing is written, and nothing outside FOLDER is shown. It listens on this machine only, unless --host says
    otherwise; then only those who have the token are answered. Ctrl-C stops it.

    \b
    Examples:
      openloop view runs/
      openloop view runs/ --host 0.0.0.0 --port 8080
    """
    import webbrowser

    from openloop.view import ViewServer

    with ViewServer(folder, host, port, token) as server:
        told = {"url": server.url, "folder": str(server.shelf.root)}
        click.echo(json.dumps(told) if as_json else f"{server.shelf.root.name} is shown at {server.url} (Ctrl-C stops)")
        sys.stdout.flush()
        if show:
            webbrowser.open(server.url)
        server.serve_forever()


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
@click.option("--every", type=DURATIONS, default="12h,7d", help="How often something is deployed; several with commas.")
@click.option("--steady", type=UNSIGNED, help="Without a run: cost per accepted result, undisturbed.")
@click.option("--disrupted", type=UNSIGNED, help="Without a run: the same while disturbed, for as many accepted.")
@JSON
def cost(
    run: Path | None,
    slo: str | None,
    prices: Path | None,
    disruption: float,
    every: list[float],
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

    if run is None and (steady is None or disrupted is None):
        raise click.UsageError("give a RUN, or --steady and --disrupted")
    if run is not None and (steady is not None or disrupted is not None):
        raise click.UsageError("a RUN has costs of its own: leave out --steady and --disrupted")
    chosen = read_prices(prices) if prices else None
    score = score_run(run, slo, by=["class"], disruption_s=disruption, prices=chosen) if run else None
    tell(cost_report(score, steady, disrupted, disruption, every), as_json, show_cost)
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
