"""Whether an output is acceptable: each gate is a pure function over one answer and what it answers. A user writes a
list of them, or a YAML file with a list for each class of requests."""

import hashlib
import importlib
import json
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from openloop.errors import SpecError
from openloop.plugins import find_function
from openloop.quality.case import Case, Grade, QualityGate
from openloop.quality.judge import Judge
from openloop.spec import Strict, convert, read_json, read_yaml, saying_where
from openloop.terms import COUNT, FLAG, NUMBER, SECONDS, SHARE, TEXT, Codec, by_name, param, read_term
from openloop.units import parse_number

SIGN = r"(?:(?<![^\W_])(?<![.)%\]])[-+\u2212])?"  # in 737-800 it is a hyphen; the last is the minus of typesetters
NUMBER_IN_TEXT = re.compile(SIGN + r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*", re.DOTALL)


def _grade(passed: bool, why: str, score: float | None = None) -> Grade:
    return Grade(passed, float(passed) if score is None else score, why=None if passed else why)


@dataclass(frozen=True)
class Contains(QualityGate):
    """The output holds this text; `case=no` takes large and small letters for the same."""

    name = "contains"
    text: str = param(TEXT)
    case: bool = param(FLAG, True)

    def check(self, case: Case) -> Grade:
        text, sought = (each if self.case else each.casefold() for each in (case.text, self.text))
        return _grade(sought in text, f"{self.text!r} is not in it")


@dataclass(frozen=True)
class Regex(QualityGate):
    """The pattern is found in the output; `whole=yes`: all of it matches."""

    name = "regex"
    pattern: str = param(TEXT)
    whole: bool = param(FLAG, False)

    def prepare(self) -> None:
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise SpecError(f"{self.pattern!r} is no regular expression: {error}") from None

    def check(self, case: Case) -> Grade:
        find = re.fullmatch if self.whole else re.search
        return _grade(find(self.pattern, case.text) is not None, f"it does not match {self.pattern!r}")


@dataclass(frozen=True)
class Exact(QualityGate):
    """The output is the reference, to the letter; `text` stands in for a reference of each request."""

    name, unlike = "exact", "is not"
    text: str | None = param(TEXT, None)

    def check(self, case: Case) -> Grade:
        reference = case.reference if self.text is None else self.text
        if reference is None:
            return Grade(None, why="there is no reference to compare it with")
        return _grade(self.counted(case.text) == self.counted(reference), f"it {self.unlike} the reference")

    def counted(self, text: str) -> str:
        """What must be the same."""
        return text


class Match(Exact):
    """As exact, but letters may be large or small, and spaces, punctuation and articles do not count."""

    name, unlike = "match", "does not match"

    def counted(self, text: str) -> str:
        plain = text.casefold().translate(str.maketrans("", "", string.punctuation))
        return " ".join(word for word in plain.split() if word not in ("a", "an", "the"))


@dataclass(frozen=True)
class Json(QualityGate):
    """The output is JSON; `fenced=yes` allows a code fence around it."""

    name = "json"
    fenced: bool = param(FLAG, False)

    def check(self, case: Case) -> Grade:
        _, why = _parse(case.text, self.fenced)
        return _grade(why is None, why or "")


def _parse(text: str, fenced: bool) -> tuple[Any, str | None]:
    """What the JSON says, or why it is none."""
    match = FENCED.fullmatch(text) if fenced else None
    try:
        return json.loads(match[1] if match else text, parse_constant=_no_constant), None
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


@dataclass(frozen=True)
class Schema(QualityGate):
    """The output is JSON that fits a JSON Schema, which is in this file."""

    name = "schema"
    path: str = param(TEXT)
    fenced: bool = param(FLAG, False)

    @property
    def files(self) -> tuple[str, ...]:
        return (self.path,)

    def prepare(self) -> None:
        _validator(self.path)

    def check(self, case: Case) -> Grade:
        found, why = _parse(case.text, self.fenced)
        if why is None:
            error = next(iter(_validator(self.path).iter_errors(found)), None)
            why = None if error is None else f"it does not fit the schema at {error.json_path}: {error.message[:200]}"
        return _grade(why is None, why or "")


@lru_cache
def _validator(path: str) -> Any:
    schema = read_json(Path(path))
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        raise SpecError("a schema gate needs the package jsonschema: pip install 'openloop[schema]'") from None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise SpecError(f"{path} is no JSON Schema: {error.message}") from None
    return kind(schema)


def _signed(text: str) -> float:
    return -parse_number(text[1:]) if text[:1] == "-" else parse_number(text)


@dataclass(frozen=True)
class SameNumber(QualityGate):
    """The last number of the output is that of the reference (or `value`), within a `tolerance` that is a share of it,
    or within `absolute`."""

    name = "number"
    value: float | None = param(Codec(_signed, repr), None)
    tolerance: float = param(SHARE, 0.0)
    absolute: float = param(NUMBER, 0.0)

    def check(self, case: Case) -> Grade:
        wanted = _last_number(case.reference or "") if self.value is None else self.value
        if wanted is None:
            return Grade(None, why="there is no number to compare it with")
        found = _last_number(case.text)
        near = found is not None and math.isclose(
            found, wanted, rel_tol=0.0, abs_tol=max(self.tolerance * abs(wanted), self.absolute) * (1 + 1e-12)
        )
        return _grade(near, "it has no number" if found is None else f"it says {found:g}, and not {wanted:g}")


def _last_number(text: str) -> float | None:
    found = NUMBER_IN_TEXT.findall(text)
    return float(found[-1].replace(",", "").replace("\u2212", "-")) if found else None


@dataclass(frozen=True)
class Length(QualityGate):
    """The output has at `least` and at `most` so many words; or characters, or tokens, by `unit`."""

    name = "length"
    least: int = param(COUNT, 1)
    most: int | None = param(COUNT, None)
    unit: str = param(TEXT, "words")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in ("words", "characters", "tokens"):
            raise SpecError(f"length: unit is {self.unit!r}; it is words, characters or tokens")

    def check(self, case: Case) -> Grade:
        counts = {"words": len(case.text.split()), "characters": len(case.text), "tokens": case.output_tokens}
        found = counts[self.unit]
        if found is None:
            return Grade(None, why="it is not told how many tokens it has")
        return _grade(self.least <= found <= (self.most or math.inf), f"it has {found} {self.unit}")


@dataclass(frozen=True)
class Finish(QualityGate):
    """Generation ended for one of these reasons, as `stop+tool_calls`."""

    name = "finish"
    reasons: str = param(TEXT, "stop")

    def check(self, case: Case) -> Grade:
        if case.finish_reason is None:
            return Grade(None, why="it is not told why it ended")
        return _grade(case.finish_reason in self.reasons.split("+"), f"it ended by {case.finish_reason}")


@dataclass(frozen=True)
class Grounded(QualityGate):
    """At `least` this share of the output's words, those that carry meaning and all numbers, are in its context (where
    none is given, in its prompt)."""

    name = "grounded"
    least: float = param(SHARE, 0.6)

    def check(self, case: Case) -> Grade:
        said, known = content_words(case.text), content_words(case.context or case.prompt)
        if not known:
            return Grade(None, why="there is no context that it could be grounded in")
        share = len(said & known) / len(said) if said else 0.0
        return _grade(share >= self.least, f"{share:.0%} of its words are in the context", share)


WORD = re.compile(r"\w[\w.,:/-]*\w|\w")


def content_words(text: str) -> set[str]:
    """Words of four letters and more, and everything with a digit."""
    found = (word.casefold() for word in WORD.findall(text))
    return {word for word in found if len(word) > 3 or any(letter.isdigit() for letter in word)}


@dataclass(frozen=True)
class Python(QualityGate):
    """A function of yours, `module:function` or `path/file.py:function`: it is given the case and returns whether it
    passes, or a score of which at `least` so much passes, or None."""

    name = "python"
    function: str = param(TEXT)
    least: float = param(SHARE, 0.5)
    limit: float = param(SECONDS, 10.0, above=0.0)

    @property
    def limit_s(self) -> float:
        return self.limit

    @property
    def files(self) -> tuple[str, ...]:
        path = self.function.rpartition(":")[0]
        return (path,) if path.endswith(".py") else ()

    def prepare(self) -> None:
        find_function(self.function)

    def check(self, case: Case) -> Grade:
        found = _loaded(self.function)(case)
        if found is None:
            return Grade(None, why=f"{self.function} does not say")
        if isinstance(found, bool):
            return _grade(found, f"{self.function} refuses it")
        score = float(found)
        if not 0 <= score <= 1:
            return Grade(None, why=f"{self.function} gives {score:g}; a score is from 0 to 1")
        return _grade(score >= self.least, f"{self.function} gives it {score:g}", score)


_loaded = lru_cache(find_function)


QUALITY_GATES = by_name(
    Contains, Regex, Exact, Match, Json, Schema, SameNumber, Length, Finish, Grounded, Python, Judge
)


def read_quality_gate(text: str) -> QualityGate:
    """`contains:text=refund`, one of QUALITY_GATES, ready to be used."""
    found: QualityGate = read_term(text, QUALITY_GATES, "quality gate")
    with saying_where(f"quality gate {text.strip()[:200]!r}"):
        found.prepare()
    return found


@dataclass(frozen=True)
class Gating:
    """The gates that all must pass, by class of requests; `slices` name kinds of prompts by a gate that they pass."""

    default: tuple[QualityGate, ...]
    classes: Mapping[str, tuple[QualityGate, ...]] = field(default_factory=dict)
    slices: Mapping[str, QualityGate] = field(default_factory=dict)

    def of(self, workload_class: str | None) -> tuple[QualityGate, ...]:
        return self.classes.get(workload_class, self.default) if workload_class is not None else self.default

    @property
    def all(self) -> Iterator[QualityGate]:
        yield from self.default
        for gates in self.classes.values():
            yield from gates
        yield from self.slices.values()

    @property
    def fingerprint(self) -> str:
        """The same for the same gates and slices, and files that they read."""
        digest = hashlib.sha256(
            "; ".join([str(self), *(f"{name}= {gate}" for name, gate in self.slices.items())]).encode()
        )
        for path in sorted({path for gate in self.all for path in gate.files}):
            digest.update(Path(path).read_bytes())
        return digest.hexdigest()[:16]

    def __str__(self) -> str:
        named = [f"{name}: {_listed(gates)}" for name, gates in self.classes.items()]
        every = [_listed(self.default)] if self.default else []
        return "; ".join([*(f"default: {each}" if named else each for each in every), *named])


def _listed(gates: Sequence[QualityGate]) -> str:
    return " and ".join(map(str, gates))


class _File(Strict, frozen=True):
    default: list[str] | None = None
    classes: dict[str, list[str]] | None = None
    slices: dict[str, str] | None = None


def read_gating(what: "str | Path | Sequence[str] | Mapping[str, Any] | Gating") -> Gating:
    """Gates from wherever they come: text, several texts, a YAML file, or its contents."""
    if isinstance(what, Gating):
        return what
    if isinstance(what, Path) or (isinstance(what, str) and what.endswith((".yaml", ".yml"))):
        return _from(read_yaml(Path(what)), str(what))
    if isinstance(what, str):
        return Gating((read_quality_gate(what),))
    given = list(what) if not isinstance(what, Mapping) else []
    if len(given) == 1 and given[0].endswith((".yaml", ".yml")):
        return read_gating(given[0])
    return _from(what if isinstance(what, Mapping) else given, "the quality gates")


def _from(raw: object, where: str) -> Gating:
    file = convert({"default": raw} if isinstance(raw, list | tuple) else raw, _File, where)
    if not file.default and not file.classes:
        raise SpecError(f"{where}: it names no gate; give a list, such as [json, 'length:most=200']")
    with saying_where(where):
        return Gating(
            _gates(file.default or ()),
            {name: _gates(gates) for name, gates in (file.classes or {}).items()},
            {_slice(name): read_quality_gate(gate) for name, gate in (file.slices or {}).items()},
        )


def _gates(texts: Sequence[str]) -> tuple[QualityGate, ...]:
    """In the order in which they are asked: a judge, which costs money, after all others."""
    return tuple(sorted(map(read_quality_gate, texts), key=lambda gate: isinstance(gate, Judge)))


def _slice(name: str) -> str:
    if not name or any(letter in "+," or letter.isspace() for letter in name):
        raise SpecError(f"{name!r} is no name of a slice; use letters, digits and hyphens")
    return name
