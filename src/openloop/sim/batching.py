"""How a replica puts its batches together, and whom it takes first; in the order in which `tables` numbers them."""

from dataclasses import dataclass

from openloop.errors import SpecError
from openloop.terms import COUNT, Codec, Term, by_name, param


class Static(Term):
    """A batch is filled when the one before it is done, and computed until its longest answer is."""

    name = "static"


class PrefillFirst(Term):
    """Whoever can be admitted is prefilled at once, and those that decode stand still meanwhile (vLLM before v1)."""

    name = "prefill-first"


class Chunked(Term):
    """Every step makes a token for all that decode, and reads as much of the prompts as it has room for
    (Sarathi-Serve, vLLM v1)."""

    name = "chunked"


@dataclass(frozen=True)
class Prepone(Term):
    """As prefill-first, but before a prefill those that decode make `steps` tokens ahead, which are handed out evenly
    until it is done (the smooth-goodput paper's imitation of chunks)."""

    name = "prepone"
    steps: int = param(COUNT, 4)


class First(Term):
    """Who came first."""

    name = "first"


class Shortest(Term):
    """Who needs the fewest tokens, prompt and answer together; known beforehand, as no real system does."""

    name = "shortest"


class DeadlineOrder(Term):
    """Whose first token is due first."""

    name = "deadline"


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


BATCHING = by_name(Static, PrefillFirst, Chunked, Prepone)
ORDERS = by_name(First, Shortest, DeadlineOrder, Goodput)
