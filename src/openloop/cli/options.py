"""How values are read, options of several commands, and the flags of a scenario: each command takes those that mean
something to it."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from openloop.errors import OpenloopError
from openloop.units import parse_number, parse_rate, parse_rates, parse_seconds, parse_share


class PathOrURL(click.Path):
    """A path here, or a URL as it is."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if "://" in str(value) else super().convert(value, param, ctx)


class Quantity(click.ParamType):  # type: ignore[type-arg]  # click 8.3 knows no arguments of it
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


class FiniteRange(click.FloatRange):
    """A number in a range, and never one that is none or has no end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a number that can be used; give a plain one, such as 40", param, ctx)
        return found


NUMBER = Quantity("float", parse_number)
POSITIVE = FiniteRange(0, min_open=True)
UNSIGNED = FiniteRange(0)
DURATION = Quantity("duration", parse_seconds)
DURATIONS = Quantity("durations", lambda text: [parse_seconds(each) for each in text.split(",")])
RATE = Quantity("rate", parse_rate)
SHARE = Quantity("share", parse_share)
RATES = Quantity("rates", parse_rates)
PATH = click.Path(path_type=Path)
PLACE = PathOrURL()

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table for people.")

RUN = click.argument("run", type=PLACE)
SLO = click.option("--slo", help="Gates, a preset or a YAML file; by default the SLO in the run's manifest.")
PRICES = click.option("--prices", type=PATH, help="YAML file of prices, in place of the manifest's.")
REQUIRE = click.option(
    "--require", type=SHARE, help="Exit with 1 if fewer are accepted than this share, for example 99%."
)
RAY = click.option(
    "--ray",
    is_flag=False,
    flag_value="auto",
    metavar="[ADDRESS]",
    help="On all machines of the Ray cluster at this address, or that this machine belongs to (docs/scale.md).",
)


Flag = tuple[str, str, str, dict[str, Any]]


def _flag(flag: str, key: str, help: str, **how: Any) -> Flag:
    return flag, key, help, how


ON: Any = {"is_flag": True, "flag_value": True}
COUNT = click.IntRange(1)

# A flag, the key of the scenario that it sets, and what it is for.
FLAGS: tuple[Flag, ...] = (
    _flag(
        "--target",
        "target.url",
        "The server, for example http://localhost:8000; /v1 may follow. Given again: asked in turn.",
        multiple=True,
    ),
    _flag("--model", "target.model", "Name of the model; by default the one that the server has."),
    _flag("--slo", "slo", "Gates, a preset or a YAML file; the run is scored against it at the end."),
    _flag("--rate", "rate", "Short for --arrivals poisson:rate=RATE.", type=RATE),
    _flag("--arrivals", "arrivals", "When users come, for example gamma:rate=12,cv=2."),
    _flag("--for", "for", "How long they come.  [default: 60s]"),
    _flag("--workload", "workload", "What is asked, for example sessions:turns=5,think=8s."),
    _flag("--prompt", "prompt", "Tokens in a prompt: a number or a distribution.  [default: 128]"),
    _flag("--output", "output", "Tokens of an answer: a number or a distribution.  [default: 64]"),
    _flag("--tokenizer", "tokenizer", "Folder with tokenizer.json: prompts of exactly so many tokens."),
    _flag("--tokens-per-word", "tokens_per_word", "Instead of asking the server.", type=NUMBER),
    _flag(
        "--api",
        "target.api",
        "chat, completions, responses, messages, embeddings, http or python.  [default: chat]",
    ),
    _flag("--stream/--no-stream", "target.stream", "Ask for tokens as they come, or all at once.  [default: stream]"),
    _flag("--extra", "extra", "JSON to add to every request, for example '{\"ignore_eos\": true}'."),
    _flag("--template", "target.template", "File of the body, with --api http."),
    _flag("--method", "target.method", "Of HTTP, with --api http.  [default: POST]"),
    _flag("--header", "header", "A header for every request, as 'Name: value'; may be given again.", multiple=True),
    _flag("--key-env", "target.key_env", "Variable that holds the key.  [default: the API's, as OPENAI_API_KEY]"),
    _flag("--ca", "target.ca", "File of certificates to trust besides the system's."),
    _flag("--insecure", "target.insecure", "Check no certificate.", **ON),
    _flag("--replica-header", "target.replica_header", "Response header that says who served."),
    _flag("--metrics/--no-metrics", "target.metrics", "Scrape /metrics of the servers meanwhile.  [default: metrics]"),
    _flag("--timeout", "timeout", "Give up on a request after this.  [default: 120s]"),
    _flag("--drain", "drain", "Wait so long for what is in flight.  [default: 30s]"),
    _flag(
        "--gate",
        "gates",
        "Grade outputs meanwhile: a quality gate such as json, or a YAML file of them; may be given again.",
        multiple=True,
    ),
    _flag("--repair", "repair", "Ask again, with a correction, where a gate fails: how many times, or repair:most=2."),
    _flag("--keep-texts", "keep_texts", "Keep prompts and outputs.", **ON),
    _flag(
        "--warmth",
        "warmth",
        "Bring caches into a state: cold-cache, warm-cache, hot, disrupted (or disrupted:at=30s), cold.",
    ),
    _flag("--restart-command", "restart", "Ends and starts the server anew, before the run; --warmth cold needs it."),
    _flag("--event", "events", "Mark what you do to the system, as 30s=deploy; may be given again.", multiple=True),
    _flag(
        "--cache-salt",
        "target.cache_salt",
        "The API takes cache_salt, as vLLM's does: --warmth then changes no prompt.",
        **ON,
    ),
    _flag("--retry", "retry", "Ask again: how many times, or retry:most=2,on=429+503,budget=20%."),
    _flag("--hedge", "hedge", "Send a copy to whoever is next: after 500ms, after p95, or hedge:after=p95."),
    _flag("--workers", "workers", "Processes that send.  [default: 1]", type=click.IntRange(1, 64)),
    _flag(
        "--connections",
        "connections",
        "At most so many, as an experiment: what waits for one counts as late.",
        type=COUNT,
    ),
    _flag(
        "--closed",
        "closed",
        "A closed loop of so many users instead of a schedule, to show what it hides.",
        type=COUNT,
    ),
    _flag("--max-requests", "limits.requests", "Stop after so many.", type=COUNT),
    _flag(
        "--max-spend",
        "limits.spend",
        "Stop when this is spent, with the most that requests in flight may cost.",
        type=UNSIGNED,
    ),
    _flag("--seed", "seed", "The same seed, the same requests.  [default: 0]", type=click.IntRange(0)),
    _flag("--prices", "prices", "YAML file of prices: of GPUs, tokens, requests, human reviews."),
    _flag("--price", "prices.per_hour", "Cost of all that serves, per hour.", type=UNSIGNED),
)


def scenario_flags(
    *only: str, without: tuple[str, ...] = (), other: Mapping[str, str] | None = None
) -> Callable[[Any], Any]:
    """All flags, or only these; those that are given are in the context's object. `other` help for some of them."""

    def declare(command: Any) -> Any:
        for flag, key, help, how in reversed(FLAGS):
            if (flag in only or not only) and flag not in without:
                told = (other or {}).get(flag, help)
                command = click.option(flag, callback=_set(key), expose_value=False, default=None, help=told, **how)(
                    command
                )
        return command

    return declare


def _set(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def take(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            ctx.ensure_object(dict)[key] = value

    return take
