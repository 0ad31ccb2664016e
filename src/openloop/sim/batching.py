"""How a replica puts its batches together, and whom it takes first. Each is a code that the compiled loop knows."""

from dataclasses import dataclass
from typing import ClassVar

from openloop.errors import SpecError
from openloop.sim import tables
from openloop.terms import COUNT, Codec, Term, param


@dataclass(frozen=True)
class Static(Term):
    """A batch is filled when the one before it is done, and computed until its longest answer is."""

    name = "static"
    code: ClassVar[int] = tables.STATIC


@dataclass(frozen=True)
class PrefillFirst(Term):
    """Whoever can be admitted is prefilled at once, and those that decode stand still meanwhile (vLLM before v1)."""

    name = "prefill-first"
    code: ClassVar[int] = tables.PREFILL_FIRST


@dataclass(frozen=True)
class Chunked(Term):
    """Every step makes a token for all that decode, and reads as much of the prompts as it has room for
    (Sarathi-Serve, vLLM v1)."""

    name = "chunked"
    code: ClassVar[int] = tables.CHUNKED


@dataclass(frozen=True)
class Prepone(Term):
    """As prefill-first, but before a prefill those that decode make `steps` tokens ahead, which are handed out evenly
    until it is done (the smooth-goodput paper's imitation of chunks)."""

    name = "prepone"
    steps: int = param(COUNT, 4)
    code: ClassVar[int] = tables.PREPONE


@dataclass(frozen=True)
class First(Term):
    """Who came first."""

    name = "first"
    code: ClassVar[int] = tables.FIRST


@dataclass(frozen=True)
class Shortest(Term):
    """Who needs the fewest tokens, prompt and answer together; known beforehand, as no real system does."""

    name = "shortest"
    code: ClassVar[int] = tables.SHORTEST


@dataclass(frozen=True)
class DeadlineOrder(Term):
    """Whose first token is due first."""

    name = "deadline"
    code: ClassVar[int] = tables.DEADLINE


def _read_late(text: str) -> bool:
    if text not in ("defer", "shed"):
        raise SpecError(f"late is {text!r}; those who would be late are served last (defer) or refused (shed)")
    return text == "shed"


@dataclass(frozen=True)
class Goodput(Term):
    """Whose first token is due first, of those that can still be in time; the others are served when nobody else
    waits (`late=defer`) or refused (`late=shed`)."""

    name = "goodput"
    late: bool = param(Codec(_read_late, lambda shed: "shed" if shed else "defer"), False)
    code: ClassVar[int] = tables.GOODPUT


_BATCHING: tuple[type[Term], ...] = (Static, PrefillFirst, Chunked, Prepone)
BATCHING = {kind.name: kind for kind in _BATCHING}
_ORDERS: tuple[type[Term], ...] = (First, Shortest, DeadlineOrder, Goodput)
ORDERS = {kind.name: kind for kind in _ORDERS}
