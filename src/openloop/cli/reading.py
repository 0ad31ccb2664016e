"""Commands that read records, and show them to people who would like to look."""

import json
import sys
from pathlib import Path

import click

from openloop.cli.common import DURATION, JSON, PATH, PLACE, RATE, cli, progress_bar, say, tell, tell_run, tell_score
from openloop.cli.options import PRICES, REQUIRE, RUN, SLO, renamed

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
@click.option("--window", type=DURATION, help="Also score each stretch of this length, for example 60s.")
@click.option("--warm-up", help="Leave out the start of the window: so long, such as 30s; auto: until it settles.")
@click.option("--disruption", type=DURATION, default="60s", help="How long an event in the run disturbs it.")
@PRICES
@REQUIRE
@JSON
def score(
    run: Path,
    slo: str | None,
    by: tuple[str, ...],
    window: float | None,
    warm_up: str | None,
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
        result = score_run(
            opened, slo, by=groups, window_s=window, disruption_s=disruption, prices=chosen, progress=progress
        )
    tell_score(result, as_json, require)


@cli.command()
@click.argument("what", type=PLACE)
@click.option("-o", "--out", type=PATH, help="Write one self-contained HTML file.")
@click.option("--slo", help="Gates, a preset or a YAML file; by default the SLO that stands there.")
@click.option("--compare", type=PLACE, help="Another of its kind: WHAT is the baseline, this the candidate.")
@renamed("--against", "--compare")
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
