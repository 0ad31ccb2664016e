"""What a report is made of, before it becomes HTML, Markdown, a picture or a terminal's page."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import msgspec

from openloop.report.marks import Bars, Curve, Figure, Unit
from openloop.score import UnitScore
from openloop.units import format_count, format_money, format_rate, format_seconds, format_share

LEAST = {"p50": 0, "p90": 10, "p95": 20, "p99": 100, "p99_9": 1000}  # values that it takes to have one beyond


def show(value: float | None, unit: Unit) -> str:
    """With its unit, as people write it; `-` where it is not known."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value) and unit != "seconds":
        return "infinite"
    return _FORMS[unit](value)


def span(interval: Sequence[float | None] | None, unit: Unit, otherwise: str = "") -> str:
    """From one end to the other; `?` where nothing bounds it from above."""
    if interval is None:
        return otherwise
    low, high = interval
    return f"{show(low, unit)} to {'?' if high is None or math.isinf(high) else show(high, unit)}"


def written(fact: Any) -> str:
    """Of a manifest, as people read it."""
    return fact if isinstance(fact, str) else msgspec.json.encode(fact).decode()


def capital(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


_FORMS: dict[Unit, Callable[[float], str]] = {
    "seconds": format_seconds,
    "rate": format_rate,
    "share": format_share,
    "count": format_count,
    "money": format_money,
    "number": lambda value: f"{value:,.4g}",
}


@dataclass(frozen=True)
class Number:
    """A number of the report and, where it is one of the scorer's, its place in the scorer's JSON."""

    value: float | None
    unit: Unit
    key: str = ""
    mark: str = ""  # behind it: what weakens it, explained below the table
    sound: bool = False  # though the report is not
    change: bool = False  # written with its sign

    def __str__(self) -> str:
        return ("+" if self.change and (self.value or 0) > 0 else "") + show(self.value, self.unit) + self.mark


Cell = str | Number


Columns = Mapping[str, tuple[str, Unit]]  # by field: what it is called, and its unit


# Of a score, a part of it or a point; percentiles of latencies are called by their names.
FIELDS: Columns = {
    "rate": ("offered", "rate"),
    "requests": ("requests", "count"),
    "accepted": ("accepted", "count"),
    "offered_rps": ("offered", "rate"),
    "throughput_rps": ("throughput", "rate"),
    "completed_in_window_rps": ("completed", "rate"),
    "goodput_rps": ("goodput", "rate"),
    "attainment": ("attainment", "share"),
    "attainment_interval": ("95% interval", "share"),
    "output_tokens_per_s": ("output tokens", "rate"),
    "output_token_goodput": ("tokens of accepted answers", "rate"),
    "smooth_goodput": ("smooth goodput, tokens", "rate"),
    "prompt_tokens": ("prompt tokens", "count"),
    "cache_hit_rate": ("cached", "share"),
    "utilisation": ("busy", "share"),
    "error_rate": ("errors", "share"),
    "retry_rate": ("further attempts", "share"),
    "quality_rate": ("passes quality", "share"),
    "cost_per_accepted": ("cost per accepted", "money"),
}


def columns(paths: str) -> Columns:
    """Those of these fields, in their order."""
    found: dict[str, tuple[str, Unit]] = {}
    for path in paths.split():
        name, _, step = path.partition("_s.")
        found[path] = (f"{name.upper()} {step}", "seconds") if step else FIELDS[path]
    return found


def field_of(thing: Any, path: str) -> Any:
    """A dot leads inside, as to `ttft_s.p99`; None where there is nothing."""
    for name in path.split("."):
        thing = thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)
    return thing


def texts(thing: Any, columns: Columns) -> list[str]:
    """Fields as people read them."""
    return [str(cell).removesuffix("*") for cell in numbers(thing, columns)]


def number(thing: Any, path: str, unit: Unit, key: str = "", mark: str = "") -> Number:
    """A field of what the scorer made, with its place in its JSON below `key`."""
    return Number(field_of(thing, path), unit, f"{key}{path}", mark)


def numbers(thing: Any, columns: Columns, key: str = "") -> list[Cell]:
    """Several such fields; two numbers are an interval. Percentiles of too few values are marked."""
    cells: list[Cell] = []
    for path, (_, unit) in columns.items():
        value, step = field_of(thing, path), path.rpartition(".")[2]
        if value is None or isinstance(value, str):
            cells.append(value or "-")
        elif isinstance(value, tuple):
            cells.append(span(value, unit))
        else:
            n = (
                field_of(thing, f"{path[: -len(step)]}n") or field_of(thing, "n") or 0
            )  # a ladder inside has its whole's
            cells.append(number(thing, path, unit, key, "*" if n < LEAST.get(step, 0) else ""))
    return cells


def unit_costs(words: str, units: Mapping[str, UnitScore]) -> list[tuple[str, Number]]:
    """Of those units of an SLO that are more than a request."""
    return [
        (f"{words} {unit.name}{of_classes(name)}", number(unit, "cost_per_accepted", "money", f"units.{name}."))
        for name, unit in units.items()
        if unit.unit == "session"
    ]


def own_units(units: Mapping[str, UnitScore]) -> list[tuple[str, UnitScore, str, str]]:
    """Those that are not requests per second, by key: each with what it is called, and how many are accepted."""
    return [
        (
            key,
            unit,
            f"{unit.name}s{of_classes(key)}",
            f"{unit.goodput:,.3g}/{_PER.get(unit.per_s, f'{unit.per_s:g} s')}",
        )
        for key, unit in units.items()
        if unit.unit != "request" or unit.per_s != 1
    ]


_PER = {1.0: "s", 60.0: "min", 3600.0: "h"}


def of_classes(names: str) -> str:
    return "" if names == "all" else f" ({names})"


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


Part = Table | Figure | str


@dataclass(frozen=True)
class Section:
    """`lead` is for everybody, `footnote` for those who would like to know exactly."""

    key: str
    title: str
    lead: str
    parts: Sequence[Part]
    footnote: str = ""
    folded: bool = False  # its parts, until somebody asks for them


@dataclass(frozen=True)
class Report:
    title: str
    subtitle: str
    verdict: Literal["good", "invalid", "live"]
    headline: str
    sentences: Sequence[str]
    numbers: Sequence[tuple[str, Number, str]]  # a name, a number and what to know about it
    sections: Sequence[Section]
    data: dict[str, Any] = field(repr=False)  # the scorer's JSON
    badge: str = ""  # a word for what it is; by default for its verdict

    @property
    def word(self) -> str:
        return self.badge or {"good": "Valid", "invalid": "Not valid", "live": "In progress"}[self.verdict]

    @property
    def figures(self) -> list[Figure]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Figure)]


def below(thing: Any, key: str) -> Any:
    """The same section, part or number, with the keys of all numbers in it below another key of the JSON."""
    if isinstance(thing, Number):
        return replace(thing, key=f"{key}.{thing.key}") if thing.key else thing
    if isinstance(thing, Curve | Bars):
        return replace(thing, keys=[f"{key}.{each}" for each in thing.keys])
    if isinstance(thing, list | tuple):
        return [below(each, key) for each in thing]
    if is_dataclass(thing) and not isinstance(thing, type):
        return replace(thing, **{each.name: below(getattr(thing, each.name), key) for each in fields(thing)})
    return thing
