"""What commands share: how values are read, and how a run or a score is told."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openloop import __version__
from openloop.errors import OpenloopError
from openloop.units import parse_rate, parse_rates, parse_seconds, parse_share

if TYPE_CHECKING:
    from openloop.records import Run
    from openloop.score import Score
    from openloop.score.streams import Progress

__all__ = [
    "DURATION",
    "JSON",
    "PLACE",
    "RATE",
    "RATES",
    "RAY",
    "RUN",
    "SHARE",
    "Quantity",
    "cli",
    "progress_bar",
    "say",
    "status_line",
    "tell_run",
    "tell_score",
]


class Place(click.Path):
    """A path here, or a URL as it is."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


PLACE = Place()
RUN = click.argument("run", type=PLACE)
RAY = click.option(
    "--ray",
    is_flag=False,
    flag_value="auto",
    metavar="[ADDRESS]",
    help="On all machines of the Ray cluster at this address, or that this machine belongs to (docs/scale.md).",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table for people.")


class Quantity(click.ParamType[Any]):
    """A value with a unit, read by one of the parsers in units."""

    def __init__(self, name: str, parse: Any) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except OpenloopError as error:
            self.fail(str(error), param, ctx)


DURATION = Quantity("duration", parse_seconds)
RATE = Quantity("rate", parse_rate)
SHARE = Quantity("share", parse_share)
RATES = Quantity("rates", parse_rates)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="openloop")
def cli() -> None:
    """Goodput for people who serve language models.

    How much work does this system do that users accept, and what does each accepted result cost?

    Exit codes: 0 all is well; 1 the run is not valid or a requirement is not met; 2 the input cannot be used;
    3 a defect of openloop.
    """


def tell_run(run: "Run", rows: int, as_json: bool) -> None:
    """What a run is; exit with 1 if it is not valid."""
    from openloop.report.terminal import inspection, show_inspection
    from openloop.score import check

    verdict = check(run)
    if as_json:
        click.echo(json.dumps(inspection(run, verdict, rows), indent=2, allow_nan=False))
    else:
        show_inspection(run, verdict, rows)
    if not verdict.valid:
        sys.exit(1)


def tell_score(result: "Score", as_json: bool, require: float | None = None) -> None:
    """A score; exit with 1 if the run is not valid, or attainment is not what is required."""
    from openloop.report.terminal import show_score

    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, allow_nan=False))
    else:
        show_score(result)
    if require is not None and not result.attainment >= require:
        reached = f"{100 * result.attainment:.8g}%" if result.requests else "nothing, for nothing was due"
        click.echo(f"required attainment {100 * require:.8g}%, reached {reached}", err=True)
        sys.exit(1)
    if not result.valid:
        sys.exit(1)


@contextmanager
def progress_bar(what: str, total: int) -> "Iterator[Progress | None]":
    """A bar on standard error for people who wait; nothing when it is no terminal or the work is small."""
    if not sys.stderr.isatty() or total < 50_000:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, _: bar.update(task, completed=done)


@contextmanager
def status_line(quiet: bool) -> "Iterator[Callable[[str], None]]":
    """What goes on, in one line on standard error that changes; nothing when it is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield status.update


def say(sentence: str, exit_code: int) -> int:
    click.echo(f"openloop: {sentence}", err=True)
    return exit_code
