"""What stands behind the built-in endpoint: who gets a token when. Engines are pure; the caller holds the clock."""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from openloop.distributions import TIMES, Distribution, Fixed
from openloop.terms import COUNT, SECONDS, Term, by_name, param, read_term
from openloop.units import to_ns


class Engine(Protocol):
    """Requests in; at each moment that it names, the requests that have a token."""

    slowness: float  # what begins now takes this many times as long

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    def submit(
        self, key: int, prompt_tokens: int, output_tokens: int, now_ns: int, words: Sequence[str] = ()
    ) -> None: ...

    def cancel(self, key: int) -> None: ...

    def failed(self) -> list[tuple[int, bool]]:
        """Who gets no answer, and whether because there is no room for it now; once."""

    def cached(self, key: int) -> int:
        """Tokens of its prompt that were known; to be asked once, after its last token."""

    def figures(self) -> dict[str, float]:
        """What it says of itself besides, by the names that engines use."""

    def next_ns(self) -> int | None:
        """When the next token is due; None: nobody waits for one."""

    def advance(self, now_ns: int) -> list[int]:
        """Whose next token is due by now, in order; a key stands there once for every token."""


class EngineSpec(Protocol):
    def start(self, seed: int) -> Engine: ...


@dataclass(frozen=True)
class Slots(Term):
    """A queue with slots: a request takes one, reads its prompt (`overhead` + `prefill` per token), then streams.

    Each token after the first takes a `gap`.
    """

    name = "slots"
    count: int = param(COUNT, 64, most=1e6)
    prefill: float = param(SECONDS, 0.00005)
    overhead: float = param(SECONDS, 0.0)
    gap: Distribution = param(TIMES, Fixed(0.010))

    def start(self, seed: int = 0) -> "SlotsEngine":
        return SlotsEngine(self, seed)


class SlotsEngine:
    def __init__(self, spec: Slots, seed: int) -> None:
        self.slowness = 1.0
        self._spec = spec
        self._rng = np.random.default_rng(seed)
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._left: dict[int, int] = {}  # tokens to come, of those in a slot
        self._due: list[tuple[int, int, int]] = []  # (when, order, key)
        self._order = 0
        self._gaps: list[float] = []

    @property
    def running(self) -> int:
        return len(self._left)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, key: int, prompt_tokens: int, output_tokens: int, now_ns: int, words: Sequence[str] = ()) -> None:
        if len(self._left) < self._spec.count:
            self._begin(key, prompt_tokens, output_tokens, now_ns)
        else:
            self._waiting.append((key, prompt_tokens, output_tokens))

    def cancel(self, key: int) -> None:
        """Its slot is free with its next token, which nobody gets."""
        if key in self._left:
            self._left[key] = 0
        else:
            self._waiting = deque(each for each in self._waiting if each[0] != key)

    def failed(self) -> list[tuple[int, bool]]:
        return []

    def cached(self, key: int) -> int:
        return 0

    def figures(self) -> dict[str, float]:
        return {}

    def next_ns(self) -> int | None:
        return self._due[0][0] if self._due else None

    def advance(self, now_ns: int) -> list[int]:
        found = []
        while self._due and self._due[0][0] <= now_ns:
            when, _, key = heapq.heappop(self._due)
            left = self._left[key]
            if left:
                found.append(key)
            if left > 1:
                self._left[key] = left - 1
                self._push(when + to_ns(self._gap() * self.slowness), key)
                continue
            del self._left[key]
            if self._waiting:
                self._begin(*self._waiting.popleft(), when)
        return found

    def _begin(self, key: int, prompt_tokens: int, output_tokens: int, at_ns: int) -> None:
        self._left[key] = output_tokens
        reading = self._spec.overhead + self._spec.prefill * prompt_tokens
        self._push(at_ns + to_ns(reading * self.slowness), key)

    def _push(self, when: int, key: int) -> None:
        self._order += 1
        heapq.heappush(self._due, (when, self._order, key))

    def _gap(self) -> float:
        if not self._gaps:
            self._gaps = self._spec.gap.draw(4096, self._rng).tolist()
        return self._gaps.pop()


def read_engine(text: str) -> EngineSpec:
    found: EngineSpec = read_term(text, ENGINES, "engine")
    return found


ENGINES = by_name(Slots)
