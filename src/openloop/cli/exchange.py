"""Commands that read other tools' files and write for other tools."""

import sys
from dataclasses import replace
from pathlib import Path

import click

from openloop.cli.common import cli, say, tell
from openloop.cli.options import JSON, PATH, PLACE, RUN

IMPORT = "import"  # a word that Python keeps for itself
FORMS = {
    "csv": "every attempt as a row; lists joined by spaces",
    "jsonl": "every attempt as an object on a line, without what is null",
    "arrow": "every attempt, as an Arrow file (Feather)",
    "hdr": "TTFT, TPOT and E2E of completed requests from schedule, as an HdrHistogram log",
    "otel": "figures and latency histograms, as OTLP JSON for a collector",
    "mlflow": "figures as metrics and the manifest as parameters, as MLflow's log-batch takes them",
    "prometheus": "figures as a page for a Pushgateway or textfile collector",
}
WRITTEN = "\n".join(f"  {name:<11} {what}" for name, what in FORMS.items())


@cli.command(IMPORT)
@click.argument("file", type=PLACE)
@click.option("-o", "--out", type=PLACE, required=True, help="Folder for the run.")
@click.option("--tool", help="Which tool wrote it; by default its content tells.")
@click.option("--part", type=click.IntRange(1), help="Which run, if the file holds several.")
@JSON
def import_file(file: Path, out: Path, tool: str | None, part: int | None, as_json: bool) -> None:
    """Make a run of another tool's FILE, so that everything that reads runs reads it.

    It knows vllm bench, sglang bench_serving, aiperf, guidellm, inference-perf, genai-bench, veeksha, etalon, llmperf,
    MLPerf LoadGen, kneepoint, vegeta, k6, locust, hey, wrk2 and HdrHistogram logs, and OpenTelemetry GenAI spans. What
    the file cannot tell is said in the run's notes. `openloop score FILE` takes such a file as it is.

    \b
    Examples:
      openloop import vllm-result.json -o run/
      openloop import artifacts/profile_export.jsonl -o run/        # aiperf
      openloop import benchmarks.json --part 3 -o run/              # the third of a guidellm sweep
    """
    from openloop.importers import open_any

    run = open_any(file, tool=tool, part=part)
    run.save(out)
    stamps, notes = "a run" if run.path else run.manifest.stamps, (*run.missing, *run.manifest.notes)
    lines = [f"{out}: {run.num_rows:,} rows from {stamps}", *(f"note: {note}" for note in notes)]
    told = {"run": str(out), "tool": stamps, "rows": run.num_rows, "notes": notes}
    tell(told, as_json, lambda _: click.echo("\n".join(lines)))


@cli.command(
    help=f"""Write RUN for another tool.

\b
{WRITTEN}

\b
Examples:
  openloop export run/ --to csv -o rows.csv
  openloop export run/ --to prometheus --slo "ttft<=500ms" -o goodput.prom"""
)
@RUN
@click.option("--to", type=click.Choice(FORMS), required=True, help="In which form.")
@click.option("-o", "--out", type=PATH, required=True, help="File to write.")
@click.option("--slo", help="For otel, mlflow and prometheus; by default the SLO in the run's manifest.")
@JSON
def export(run: Path, to: str, out: Path, slo: str | None, as_json: bool) -> None:
    from openloop.export import export as write
    from openloop.importers import open_any

    opened = open_any(run)
    result = write(opened, to, out, slo)
    told = {"file": str(out), "form": to, "valid": result.valid if result else None}
    tell(told, as_json, lambda _: click.echo(f"wrote {out}"))
    if to in ("hdr", "otel", "mlflow") and opened.manifest.started_at is None:
        click.echo(
            "note: when the run was is not told: its times count from 1970, which many a collector drops", err=True
        )
    for reason in result.reasons if result else ():
        say(f"the run is not valid: {reason}", 1)
    if result and not result.valid:
        sys.exit(1)


@cli.command()
@click.argument("names", nargs=-1)
@click.option("--tool", multiple=True, help="Only what this tool calls them; several times for several.")
@JSON
def metrics(names: tuple[str, ...], tool: tuple[str, ...], as_json: bool) -> None:
    """Show each metric, its formula, what other tools call it and how theirs differs.

    \b
    Examples:
      openloop metrics
      openloop metrics ttft_s goodput_rps
      openloop metrics --tool vllm --tool aiperf
    """
    from openloop.report.metric_map import METRICS, TOOLS
    from openloop.report.terminal import show_metrics
    from openloop.spec import suggest

    known = {metric.key.removesuffix("_s"): metric.key for metric in METRICS}
    wanted = {known.get(name, name) for name in names}
    for name in sorted(wanted - set(known.values())):
        raise click.BadParameter(f"unknown metric {name!r}{suggest(name, known.values())}")
    for name in sorted(set(tool) - set(TOOLS)):
        raise click.BadParameter(f"unknown tool {name!r}{suggest(name, TOOLS)}")
    chosen = [
        replace(metric, theirs={name: each for name, each in metric.theirs.items() if not tool or name in tool})
        for metric in METRICS
        if not names or metric.key in wanted
    ]
    chosen = [metric for metric in chosen if metric.theirs or not tool]
    tell(chosen, as_json, show_metrics)
