"""A policy is one function over plain rows, and parameters.

`choose(ask, views, memory, knobs, now)` gives the place of a replica, or -1: nobody should get it. The simulator
compiles it into its loop, and whoever stands in front of real replicas calls the same function. `memory` is the
policy's own, whole numbers that it may change, one of them the source of chance; `knobs` are its parameters in the
order of its fields.
"""

import ctypes
import dataclasses
import hashlib
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from openloop.arrays import Floats, row_kind
from openloop.errors import SpecError
from openloop.native import jitable, kept_by_numba, numba
from openloop.native.kept import PLAIN
from openloop.plugins import find_function
from openloop.terms import TEXT, Codec, Term, param
from openloop.units import parse_count

MEMORY = 64  # whole numbers that a policy may keep,
SEED = 63  # of which this one is where chance comes from
NOBODY = -1  # the place of no replica: the request is shed

# What a policy sees, the same in front of real replicas and in a model of them.
ASK = row_kind(
    "number session "  # the session is -1 where there is none
    "prompt output "  # tokens; of the answer as far as somebody knows
    "prefix",  # what its first blocks are, -1 where nobody may share them
    "deadline",  # when its first token is wanted, on the clock that `now` is of
)
VIEW = row_kind(
    "open "  # whether it may be chosen
    # As the replica says, `age` seconds ago:
    "requests waiting "  # all that are there, and those of them that are not served yet
    "prefill tokens used "  # tokens of prompts still to be read, of all requests, and in memory
    "capacity memory "  # requests that it serves at a time, tokens that it has room for; 0: not known
    # As the router knows at once:
    "sent sent_prefill sent_tokens "  # requests, prefill and tokens, of what it sent there and is not over
    "cached known home",  # tokens of this prompt that are there; tokens of all prompts; whether the session was there
    "age pace gap",  # seconds to read a token of a prompt, and lately between two that left the queue; 0: not known
)

NEVER, FULL = math.inf, 0.0
FALLBACKS = ("least", "stay", "shed")
_MOST, _LEAD, _FALLBACK = range(3)  # places in the knobs of every policy


def _read_limit(text: str) -> float:
    found = {"never": NEVER, "full": FULL}.get(text)
    return float(parse_count(text)) if found is None else found


def _write_limit(value: float) -> str:
    return {NEVER: "never", FULL: "full"}.get(value) or str(int(value))


def _read_fallback(text: str) -> str:
    if text not in FALLBACKS:
        raise SpecError(f"{text!r} is no fallback; write one of {', '.join(FALLBACKS)}")
    return text


LIMIT = Codec(_read_limit, _write_limit)
FALLBACK = Codec(_read_fallback, str)


@dataclass(frozen=True)
class Policy(Term):
    choose: ClassVar[Any]  # a function, as above
    sees: ClassVar[frozenset[str]] = (
        frozenset()
    )  # of "prefix", "cache", "session" and "memory": what is looked up for it

    def caller(self) -> Any:
        """`choose` to be called from Python."""
        return compiled(self.choose)

    def pointer(self, ask: Any, views: Any, errors: list[Exception]) -> Any:  # noqa: ARG002
        """`choose` as the loop of the simulator calls it; these rows are what it will see, and `errors` where to leave
        what it raises."""
        return compiled(self.choose, pointer=True)

    @property
    def note(self) -> str | None:
        """What is to be said of a run with it."""
        return None

    def knobs(self) -> Floats:
        return np.zeros(0)


@dataclass(frozen=True)
class Balanced(Policy):
    """A replica is saturated that has `most` requests (`full`: as many as it serves at a time), or `lead` more than
    the least busy one. Who would have gone there goes to the least busy (`fallback=least`), goes there all the same
    (`stay`), or is shed."""

    most: float = param(LIMIT, NEVER)
    lead: float = param(LIMIT, NEVER)
    fallback: str = param(FALLBACK, "least")

    def knobs(self) -> Floats:
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return np.array([FALLBACKS.index(each) if isinstance(each, str) else each for each in values], np.float64)


@jitable
def chance(memory: Any) -> float:
    """Between 0 and 1, the next of a row that the seed gives (Park and Miller's generator)."""
    memory[SEED] = memory[SEED] * 48271 % 2147483647
    return float(memory[SEED] / 2147483647.0)


@jitable
def least(views: Any) -> int:
    """Who has the fewest requests; of equals the first."""
    best = NOBODY
    for place in range(len(views)):
        if views[place].open and (best < 0 or views[place].requests < views[best].requests):
            best = place
    return best


@jitable
def _saturated(views: Any, place: int, knobs: Any) -> bool:
    v = views[place]
    if v.requests >= (knobs[_MOST] if knobs[_MOST] > 0 else v.capacity if v.capacity > 0 else np.inf):
        return True
    return bool(knobs[_LEAD] < np.inf and v.requests - views[least(views)].requests >= knobs[_LEAD])


@jitable
def or_fallback(views: Any, place: int, knobs: Any) -> int:
    """The place that was chosen, if it is not saturated; otherwise by the fallback."""
    if place < 0 or knobs[_FALLBACK] == 1 or not _saturated(views, place, knobs):
        return place
    return least(views) if knobs[_FALLBACK] == 0 else NOBODY


def signature() -> Any:
    """Of `choose`, where the simulator calls it."""
    nb = numba()
    ask, views = (nb.types.Array(nb.from_dtype(each), 1, "C") for each in (ASK, VIEW))
    memory, knobs = (nb.types.Array(each, 1, "C") for each in (nb.int64, nb.float64))
    return nb.int64(ask, views, memory, knobs, nb.float64)


@cache
def compiled(choose: Any, pointer: bool = False) -> Any:
    """A policy as compiled code: to be called from Python or, by a `pointer`, from the loop of the simulator. Numba
    keeps it on disk and looks at its own file only; the name says what else it is made of."""
    if PLAIN:
        return choose
    choose.__qualname__ = f"{choose.__name__}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"
    if not pointer:
        return kept_by_numba("njit", choose, error_model="numpy")
    return kept_by_numba("cfunc", choose, signature())


@dataclass(frozen=True)
class Own(Policy):
    """A function of yours, as `own:policy.py:choose`, called with the row of the request, the rows of all replicas and
    the time. Decorated with `numba.njit` it is as fast as any; plain Python is called as it is, and slower."""

    name = "own"
    function: str = param(TEXT)
    sees = frozenset({"cache", "session", "memory"})

    @property
    def choose(self) -> Any:
        return _python(self.function)

    def caller(self) -> Any:
        return self.choose

    @property
    def note(self) -> str | None:
        if hasattr(_function(self.function), "py_func"):
            return None
        return f"{self} is plain Python: the simulator asks it for every request, which takes longer; try numba.njit"

    def pointer(self, ask: Any, views: Any, errors: list[Exception]) -> Any:
        function = _function(self.function)
        if PLAIN:
            return self.choose
        if hasattr(function, "py_func"):  # of numba

            def choose(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> Any:
                found = function(ask[0], views, now)
                return NOBODY if found is None else found

            return numba().cfunc(signature())(choose)

        python = self.choose

        def call_python(now: float) -> int:
            try:
                return NOBODY if errors else int(python(ask, views, None, None, now))
            except Exception as error:  # it is raised when the loop is back
                errors.append(error)
                return NOBODY

        call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_double)(call_python)

        def ask_python(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> Any:
            return call(now)

        found = numba().cfunc(signature())(ask_python)
        found.kept = call  # as long as its caller
        return found


def _function(name: str) -> Any:
    """A user's, which numba may compile as the file is read: it knows before what is ours to be called."""
    if not PLAIN:
        numba()
    return find_function(name)


@cache
def _python(name: str) -> Any:
    function = _function(name)

    def choose(ask: Any, views: Any, memory: Any, knobs: Any, now: float) -> int:
        found = function(ask.view(np.recarray)[0], views.view(np.recarray), now)
        return NOBODY if found is None else int(found)

    return choose
