"""What commands share: their group, and how a run or a score is told."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openloop import __version__

if TYPE_CHECKING:
    from openloop.records import Run
    from openloop.score import Score


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True})
@click.version_option(__version__, prog_name="openloop")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Goodput for people who serve language models.

    How much work does this system do that users accept, and what does each accepted result cost?

    Exit codes: 0 all is well; 1 the run is not valid or a requirement is not met; 2 the input cannot be used;
    3 a defect of openloop.
    """
    ctx.obj = {}  # what flags say of a scenario


def command_line() -> list[str]:
    """What was typed, for the manifest."""
    return ["openloop", *sys.argv[1:]]


def tell(found: Any, as_json: bool, show: Callable[[Any], None] | None = None) -> None:
    """For machines as JSON, or shown to people."""
    if show is not None and not as_json:
        show(found)
        return
    from openloop.spec import plain

    data = found.to_dict() if hasattr(found, "to_dict") else plain(found)
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def tell_run(run: "Run", as_json: bool, rows: int = 5) -> None:
    """What a run is; exit with 1 if it is not valid."""
    from openloop.report.terminal import inspection, show_inspection
    from openloop.score import check

    verdict = check(run)
    tell(inspection(run, verdict, rows), as_json, show_inspection)
    if not verdict.valid:
        sys.exit(1)


def tell_score(result: "Score", as_json: bool, require: float | None = None) -> None:
    """A score; exit with 1 if the run is not valid, or fewer of what its SLO counts are accepted than is required."""
    if as_json:
        tell(result, as_json)
    else:
        from openloop.report.terminal import show_score

        show_score(result)
    if require is not None and not result.unit_attainment >= require:
        due = any(each.due for each in result.units.values())
        names = " and ".join(dict.fromkeys(f"{each.name}s" for each in result.units.values()))
        reached = f"{100 * result.unit_attainment:.8g}% of {names}" if due else "nothing, for nothing was due"
        click.echo(f"required attainment {100 * require:.8g}%, reached {reached}", err=True)
        sys.exit(1)
    if not result.valid:
        sys.exit(1)


def tell_made(run: "Run", slo: Any, as_json: bool, require: float | None = None, out: Path | None = None) -> None:
    """A run that was just made, and kept: its score, or what it is where nothing says what is accepted."""
    from openloop.records import open_run
    from openloop.score import score

    if out:
        run.save(out)
        run = open_run(out)
    if slo is None:
        tell_run(run, as_json)
    else:
        tell_score(score(run, slo), as_json, require)


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Any]:
    """A bar on standard error for people who wait, told how much is done of how much; None where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, now=what: bar.update(task, completed=done, total=total, description=now)


def say(sentence: str, exit_code: int) -> int:
    click.echo(f"openloop: {sentence}", err=True)
    return exit_code
