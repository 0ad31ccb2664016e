"""The SLO of a run: gates, the unit that counts as one success, and one set of these per workload class."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from openloop.errors import SpecError
from openloop.slo.deadlines import PENALTIES, Smooth, reading, reading_from_first
from openloop.slo.gates import GATES, SLOGate, find_form
from openloop.spec import Strict, convert, read_yaml, saying_where, suggest
from openloop.units import LONGEST_S, check_number, parse_seconds, parse_token_rate

ObjectiveUnit = Literal["request", "session", "row"]


@dataclass(frozen=True)
class SLO:
    """When a request is accepted, and what is counted.

    `unit` is what one success is: a request, a whole session (all of its turns accepted) or a row of a batch.
    Goodput is counted per `per_s` seconds: 1, or 3600 where people think in items per hour.
    """

    gates: tuple[SLOGate, ...]
    unit: ObjectiveUnit = "request"
    unit_name: str = "request"
    per_s: float = 1.0
    smooth: Smooth = field(default_factory=Smooth)

    def __post_init__(self) -> None:
        check_number("the time that goodput is counted per", self.per_s, 1e-9, LONGEST_S)
        names = [gate.name for gate in self.gates]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"the SLO names {name!r} twice; keep one")

    def __str__(self) -> str:
        return ", ".join(str(gate) for gate in self.gates)


@dataclass(frozen=True)
class Objectives:
    """An SLO for every workload class, and one for requests of no class or of any other."""

    default: SLO | None
    classes: Mapping[str, SLO] = field(default_factory=dict)

    @property
    def slos(self) -> tuple[SLO, ...]:
        return (*([self.default] if self.default else []), *self.classes.values())

    def of(self, workload_class: str | None) -> SLO:
        found = self.classes.get(workload_class, self.default) if workload_class is not None else self.default
        if found is None:
            what = f"workload class {workload_class!r}" if workload_class is not None else "requests without a class"
            raise SpecError(f"the SLO says nothing about {what}; add it under 'classes' or give a 'default'")
        return found

    def __str__(self) -> str:
        named = [f"{name}: {slo}" for name, slo in self.classes.items()]
        return "; ".join(([f"{'default: ' if named else ''}{self.default}"] if self.default else []) + named)


def parse_slo(text: str) -> SLO:
    """`ttft<=500ms, tpot<=40ms, quality`. A preset's name may come first: `rag, ttft<=1s`."""
    terms = [term.strip() for term in text.split(",")]
    if not text.strip():
        raise SpecError("the SLO is empty; write at least one gate, for example ttft<=500ms")
    base = PRESETS.get(terms[0])
    given = SLO(tuple(_parse_term(term, n) for n, term in enumerate(terms, 1) if n > 1 or base is None))
    if base is None:
        return given
    return replace(base, gates=tuple({gate.name: gate for gate in (*base.gates, *given.gates)}.values()))


def parse_objectives(text: str) -> Objectives:
    """Gates for everybody, or as objectives by class are written: `default: ttft<=1s; chat: ttft<=300ms`."""
    if ":" not in text:
        return Objectives(parse_slo(text))
    found: dict[str, SLO] = {}
    for part in text.split(";"):
        name, colon, gates = (each.strip() for each in part.rpartition(":"))  # a class may be named a:b
        if not (colon and name) or name in found:
            raise SpecError(f"{part.strip()!r} names no class of its own; write default: ttft<=1s; chat: ttft<=300ms")
        if re.search(r"\n|[<>]=[^,]*,", name):
            raise SpecError(f"{name!r} names no class: a semicolon ends its gates, as in ttft<=1s; chat: ttft<=300ms")
        with saying_where(f"class {name!r}"):
            found[name] = parse_slo(gates)
    return Objectives(found.pop("default", None), found)


_TERM = re.compile(r"([A-Za-z_][\w.]*)\s*(<=|>=|≤|≥|[<>=]=?)?\s*(.*)", re.DOTALL)


def _parse_term(term: str, number: int) -> SLOGate:
    where = f"SLO term {number}, {term!r}"
    match = _TERM.fullmatch(term)
    if match is None:
        raise SpecError(f"{where}: expected a gate such as ttft<=500ms")
    name, operator, value = match[1], (match[2] or "").replace("≤", "<=").replace("≥", ">="), match[3]
    form = find_form(name)
    if form is None:
        raise SpecError(f"{where}: {_unknown_gate(name)}")
    if not operator and not value and form.bare:
        return form.bare
    if not value:
        raise SpecError(f"{where}: write it as {form.example}")
    with saying_where(where):
        bound = form.parse(value)
        if operator != form.operator:
            raise SpecError(f"write it as {name}{form.operator}{value}")
        return form.build(bound)


def _unknown_gate(name: str) -> str:
    plain = re.sub(r"(^p\d+(\.\d+)?_)|(_p\d+(\.\d+)?$)", "", name)
    if plain != name and plain in GATES:
        return (
            f"a gate judges one request, so {plain} takes no percentile; "
            f"write {GATES[plain].example} and ask for the share of requests with --require 99%"
        )
    if name in PRESETS:
        return f"the preset {name!r} must come first"
    return f"unknown gate {name!r}{suggest(name, [*GATES, *PRESETS])}"


class _SmoothEntry(Strict, frozen=True):
    alpha: float = 5.0
    read: str = "20tok/s"
    start: Literal["arrival", "first token"] = "arrival"
    penalty: str = "linear"
    scale: str | None = None  # of the penalty: step's tolerance, exponential's tau


class _Entry(Strict, frozen=True):
    gates: str
    unit: ObjectiveUnit | None = None
    per: str | None = None
    smooth: _SmoothEntry | None = None


class _File(Strict, frozen=True):
    default: Any = None
    classes: dict[str, Any] | None = None


def read_slo(what: "str | Path | Mapping[str, Any] | SLO | Objectives") -> Objectives:
    """Objectives from wherever they come: text, a YAML file, its contents, or objects."""
    if isinstance(what, Objectives):
        return what
    if isinstance(what, SLO):
        return Objectives(what)
    if isinstance(what, Mapping):
        return _from_mapping(what, "the SLO")
    if not isinstance(what, str | Path):
        raise SpecError(f"the SLO is {what!r}; write gates, such as 'ttft<=500ms', a preset or a file")
    if isinstance(what, Path) or what.endswith((".yaml", ".yml")):
        return _from_mapping(read_yaml(Path(what)), str(what))
    return parse_objectives(what)


def _from_mapping(raw: object, where: str) -> Objectives:
    file = convert(raw, _File, where)
    if file.default is None and not file.classes:
        raise SpecError(f"{where}: it names no SLO; give a 'default', 'classes', or both")
    classes = {name: _entry(entry, f"{where}, class {name!r}") for name, entry in (file.classes or {}).items()}
    return Objectives(None if file.default is None else _entry(file.default, f"{where}, default"), classes)


def _entry(raw: object, where: str) -> SLO:
    entry = _Entry(gates=raw) if isinstance(raw, str) else convert(raw, _Entry, where)
    with saying_where(where):
        slo = parse_slo(entry.gates)
        if entry.unit:
            slo = replace(slo, unit=entry.unit, unit_name=entry.unit)
        if entry.per:
            slo = replace(slo, per_s=parse_seconds(entry.per))
        if entry.smooth:
            slo = replace(slo, smooth=_smooth(entry.smooth))
        return slo


def _smooth(entry: _SmoothEntry) -> Smooth:
    if entry.penalty not in PENALTIES:
        raise SpecError(f"unknown penalty {entry.penalty!r}{suggest(entry.penalty, PENALTIES)}")
    if entry.scale and entry.penalty == "linear":
        raise SpecError("the linear penalty takes no scale; change alpha instead")
    scale = [parse_seconds(entry.scale)] if entry.scale else []
    read = {"arrival": reading, "first token": reading_from_first}[entry.start]
    return Smooth(entry.alpha, read(parse_token_rate(entry.read)), PENALTIES[entry.penalty](*scale))


def _preset(gates: str, unit: ObjectiveUnit, unit_name: str, per_s: float = 1.0) -> SLO:
    return SLO(tuple(_parse_term(t.strip(), n) for n, t in enumerate(gates.split(","), 1)), unit, unit_name, per_s)


# The six workload classes of "Goodput or it didn't happen". Units are the article's; thresholds are rough starting
# points (the article's own where it names one), to be replaced by those of the product.
PRESETS: dict[str, SLO] = {
    "conversational": _preset("ttft<=500ms, tpot<=40ms, quality, retries<=1", "session", "resolution"),
    "agentic": _preset("ttft<=1500ms, e2e<=60s, quality, retries<=2", "session", "task"),
    "rag": _preset("ttft<=800ms, tpot<=60ms, quality, retries<=1", "request", "grounded answer"),
    "extraction": _preset("e2e<=10s, quality, retries<=1", "row", "validated record"),
    "voice": _preset("ttft<=300ms, itl_p95<=80ms, jitter<=1s, quality, retries<=0", "session", "interaction"),
    "batch": _preset("window<=24h, quality, retries<=3", "row", "item", per_s=3600.0),
}
