"""Commands for people who would like to look: the report."""

import json
import sys
from pathlib import Path

import click

from openloop.cli.common import JSON, RATE, cli, progress_bar, say


@cli.command()
@click.argument("what", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write one self-contained HTML file.")
@click.option("--slo", help="Gates, a preset or a YAML file; by default the SLO that stands there.")
@click.option("--against", type=click.Path(path_type=Path), help="Another of its kind, to be shown beside it.")
@click.option("--request", type=int, help="Also show the tokens of the request with this number.")
@click.option(
    "--point", type=RATE, help="Of a frontier: which rate to show in detail.  [default: the last before the knee]"
)
@click.option(
    "--md", type=click.Path(path_type=Path, allow_dash=True), help="Write Markdown, for a pull request; -: print it."
)
@click.option("--png", type=click.Path(path_type=Path), help="Write each figure into this folder, as PNG.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write each figure into this folder, as SVG.")
@click.option("--pdf", type=click.Path(path_type=Path), help="Print to this file, if Chromium is there.")
@JSON
def report(
    what: Path,
    out: Path | None,
    slo: str | None,
    against: Path | None,
    request: int | None,
    point: float | None,
    md: Path | None,
    png: Path | None,
    svg: Path | None,
    pdf: Path | None,
    as_json: bool,
) -> None:
    """Show WHAT, a run, a frontier or a plan.json, to people: the verdict in plain words first, then the figures.

    Without -o it is told on the terminal. The HTML file needs no network and nothing beside it; a run that is not valid
    has its numbers struck out, and the exit code is 1.

    \b
    Examples:
      openloop report run/
      openloop report frontier/ -o report.html
      openloop report run/ --slo "ttft<=1s" --request 1234 -o report.html --png figures/
      openloop report old/ --against new/ -o report.html
      openloop report plan.json -o plan.html
      openloop report run/ --md - >> summary.md
    """
    from openloop.errors import StorageError
    from openloop.records import open_run
    from openloop.report.html import page
    from openloop.report.markdown import markdown
    from openloop.report.paper import print_pdf
    from openloop.report.picture import draw_figure
    from openloop.report.plot import show_report
    from openloop.report.read import read_pair, read_report

    rows = open_run(what).num_rows if (what / "run.json").exists() else 0
    with progress_bar("scoring", rows) as progress:
        if against is None:
            found = read_report(what, slo, request=request, point=point, progress=progress)
        elif request is None and point is None:
            found = read_pair(what, against, slo)
        else:
            raise click.UsageError("--request and --point show one thing, and --against shows two")
    texts = {out: page, md: markdown}
    for path, write in texts.items():
        if path is None:
            continue
        if str(path) == "-":
            click.echo(write(found), nl=False)
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(write(found), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}") from None
    for folder, kind in ((png, "png"), (svg, "svg")):
        for figure in found.figures if folder else ():
            draw_figure(figure, folder / f"{figure.key}.{kind}")  # type: ignore[operator]
    if pdf:
        print_pdf(page(found), pdf)
    written = [str(path) for path in (out, md, png, svg, pdf) if path is not None and str(path) != "-"]
    if as_json:
        told = {"verdict": found.verdict, "headline": found.headline, "sentences": list(found.sentences)}
        click.echo(json.dumps(told | {"written": written, "data": found.data}, indent=2, allow_nan=False))
    elif not written and md is None:
        show_report(found)
    else:
        click.echo(f"{found.headline} ({', '.join(written)})" if written else "", err=not written, nl=bool(written))
    if found.verdict == "invalid":
        sys.exit(1 if as_json or not written else say("it is not valid: the report says why", 1))


@cli.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; elsewhere a token is needed."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any that is free.")
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
