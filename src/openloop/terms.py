"""The short text form of a thing with parameters: `gamma:rate=12,cv=2`.

A thing is a frozen dataclass derived from `Term`; each of its fields says with `param` how its value is read and
written. Values may come by name or, first to last, without one. Inside another term a term stands in parentheses:
`fcfs:service=lognormal(median=40ms,sigma=0.5),servers=4`. A text with commas or parentheses stands in single quotes,
one inside it twice: `regex:'^(yes|no), it''s'`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import ge, gt, le
from typing import Any, ClassVar

from openloop.errors import SpecError
from openloop.spec import saying_where, suggest
from openloop.units import (
    LONGEST_S,
    check_number,
    parse_count,
    parse_number,
    parse_rate,
    parse_seconds,
    parse_share,
    write_seconds,
)


@dataclass(frozen=True)
class Codec:
    """How one kind of value is read and written, and what else must be true of it."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]
    check: Callable[[str, Any], None] | None = None


@dataclass(frozen=True)
class InContext:
    """A codec that depends on what the term around it is about: seconds, or plain numbers."""

    codec: Callable[[Codec], Codec]


def _between(least: float, most: float) -> Callable[[str, Any], None]:
    return lambda what, value: check_number(what, value, least, most)


def _whole(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1e9:
        raise SpecError(f"{what} is {value!r}; it is a whole number from 1 to 1e+09")


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _read_text(text: str) -> str:
    if text[:1] != "'":
        return text
    if len(text) < 2 or text[-1] != "'":
        raise SpecError(f"{text!r} has a quote that does not end")
    return text[1:-1].replace("''", "'")


def _write_text(text: str) -> str:
    return text if re.fullmatch(r"[^\s,()'=][^,()=]*(?<!\s)", text) else "'" + text.replace("'", "''") + "'"


def _read_flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise SpecError(f"{text!r} is neither yes nor no")
    return text == "yes"


TEXT = Codec(_read_text, _write_text)
FLAG = Codec(_read_flag, lambda value: "yes" if value else "no")
SECONDS = Codec(parse_seconds, write_seconds, _between(0.0, LONGEST_S))
NUMBER = Codec(parse_number, _number, _between(0.0, 1e12))
COUNT = Codec(parse_count, str, _whole)
SHARE = Codec(parse_share, _number, _between(0.0, 1.0))
RATE = Codec(parse_rate, _number, _between(1e-9, 1e9))
RATE_OR_NONE = Codec(parse_rate, _number, _between(0.0, 1e9))
VALUE = InContext(lambda value: value)

DEEPEST = 8

_NO_DEFAULT: Any = dataclasses.MISSING


def param(
    codec: Codec | InContext,
    default: Any = _NO_DEFAULT,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    rest: bool = False,
) -> Any:
    """A field of a term, within limits of its own; `rest` takes all values that are left."""
    return dataclasses.field(
        default=default, metadata={"codec": codec, "least": least, "above": above, "most": most, "rest": rest}
    )


@dataclass(frozen=True)
class Term:
    """Base of everything that has a short text form."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is field.default:
                continue
            for each in value if field.metadata["rest"] else [value]:
                _check(f"{self.name}: {field.name}", each, field.metadata)

    def __str__(self) -> str:
        return write_term(self)


def by_name(*kinds: type[Term]) -> dict[str, type[Term]]:
    """A registry of terms."""
    return {kind.name: kind for kind in kinds}


def read_term(text: str, registry: Mapping[str, type[Term]], what: str, value: Codec = NUMBER) -> Any:
    """The term that `text` writes, one of `registry`; `what` is what is being read, for people."""
    name, inner = _name_and_inner(text, what)
    if name not in registry:
        raise SpecError(f"unknown {what} {name!r}{suggest(name, registry, both=True)}")
    kind = registry[name]
    try:
        return kind(**_arguments(inner, kind, value))
    except SpecError as error:
        sentence = str(error).removeprefix(f"{name}: ")
        shown = text.strip() if len(text) < 200 else f"{text.strip()[:200]}..."
        raise SpecError(f"{what} {shown!r}: {sentence}") from None


def write_term(term: Term, value: Codec = NUMBER, *, inside: bool = False) -> str:
    """Text that `read_term` reads as the same term; defaults are left out."""
    parts: list[str] = []
    for field in dataclasses.fields(term):
        given = getattr(term, field.name)
        if given == field.default:
            continue
        codec = _resolved(field.metadata["codec"], value)
        many = field.metadata["rest"]
        parts += [codec.write(each) for each in given] if many else [f"{field.name}={codec.write(given)}"]
    inner = ",".join(parts)
    return f"{term.name}({inner})" if inside and inner else f"{term.name}:{inner}" if inner else term.name


def _check(what: str, value: Any, metadata: Mapping[str, Any]) -> None:
    check = _resolved(metadata["codec"], NUMBER).check
    if check:
        check(what, value)
    for limit, holds, words in (("above", gt, "more than"), ("least", ge, "at least"), ("most", le, "at most")):
        bound = metadata[limit]
        if bound is not None and not holds(value, bound):
            raise SpecError(f"{what} is {value:g}; it must be {words} {bound:g}")


def _resolved(codec: Codec | InContext, value: Codec) -> Codec:
    return codec if isinstance(codec, Codec) else codec.codec(value)


def _name_and_inner(text: str, what: str) -> tuple[str, str]:
    match = re.fullmatch(r"\s*([A-Za-z][\w-]*)\s*(?::(.*)|\((.*)\))?\s*", text, re.DOTALL)
    if match is None:
        raise SpecError(f"{text.strip()!r} is no {what}; write a name and its parameters, such as name:key=value")
    return match[1], match[2] or match[3] or ""


def _arguments(inner: str, kind: type[Term], value: Codec) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    named = [name for name, field in fields.items() if not field.metadata["rest"]]
    rest = next((name for name, field in fields.items() if field.metadata["rest"]), None)
    found: dict[str, Any] = {}
    for part in _parts(inner):
        if not part.strip():
            raise SpecError("there is nothing between two commas, or after the last; remove one")
        key, equals, text = part.partition("=") if re.match(r"\s*\w+\s*=", part) else ("", "", part)
        if equals:
            name = key.strip()
            if name == rest:
                raise SpecError(f"{name} are written without a name: {kind.name}:first,second")
            if name not in named:
                raise SpecError(f"{kind.name} has no parameter {name!r}{suggest(name, named)}")
            if name in found:
                raise SpecError(f"{name} is given twice; keep one")
        else:
            name = rest or next((each for each in named if each not in found), "")
            if not name:
                raise SpecError(f"there is nothing left for {part.strip()!r} to mean; parameters are {_listed(named)}")
        with saying_where(name):
            read = _resolved(fields[name].metadata["codec"], value).read(text.strip())
        found[name] = (*found.get(name, ()), read) if name == rest else read
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in found]
    if missing:
        raise SpecError(f"{missing[0]} is missing; parameters are {_listed(fields)}")
    return found


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"


_QUOTED = re.compile(r"\s*(?:\w+\s*=\s*)?'(?:[^']|'')*'")


def _parts(inner: str) -> list[str]:
    """Split at the commas that are in no parentheses and no quotes."""
    parts, depth, start, place = [], 0, 0, 0
    while place < len(inner):
        if place == start and (quoted := _QUOTED.match(inner, place)):
            place = quoted.end()
            continue
        letter = inner[place]
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
        if depth > DEEPEST:
            raise SpecError(f"parentheses are more than {DEEPEST} deep")
        place += 1
        if letter == "," and depth == 0:
            parts.append(inner[start : place - 1])
            start = place
    if depth:
        raise SpecError("a parenthesis is missing")
    return [*parts, inner[start:]] if inner.strip() else []
