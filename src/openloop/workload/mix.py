"""The whole of what is asked: one source, or several classes of requests, each with a share of the users."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from openloop.arrays import Floats
from openloop.arrivals import MOST_ARRIVALS, Arrivals, lasts_s
from openloop.errors import SpecError
from openloop.seeds import stream
from openloop.terms import by_name, read_term
from openloop.workload.corpus import Corpus
from openloop.workload.demand import Demand, merged_demand
from openloop.workload.servegen import ServeGen
from openloop.workload.synthetic import Sessions, Synthetic
from openloop.workload.trace import Trace

SOURCES = by_name(Synthetic, Sessions, Corpus, Trace, ServeGen)
PART = 20_000  # users whose requests are held at once, where it can be


class Source(Protocol):
    """Where requests come from: a term, such as `synthetic:prompt=500,output=64`."""

    @property
    def timed(self) -> bool:
        """Whether it knows itself when its requests are due."""

    def demand(self, starts_s: Floats | None, horizon_s: float, rng: np.random.Generator) -> Demand:
        """Requests of users who come at these times, or at the source's own."""


def read_source(text: str) -> Source:
    found: Source = read_term(text, SOURCES, "workload")
    return found


@dataclass(frozen=True)
class Class:
    name: str
    share: float
    source: Source


@dataclass(frozen=True)
class Workload:
    """Classes of requests; a single one without a name is all there is."""

    classes: tuple[Class, ...]

    @classmethod
    def of(cls, source: Source) -> "Workload":
        return cls((Class("", 1.0, source),))

    def __post_init__(self) -> None:
        total = sum(each.share for each in self.classes)
        if not self.classes or abs(total - 1) > 0.001:
            raise SpecError(f"the shares of the classes add up to {total:.4g}; they must add up to 1 (or 100%)")

    def __str__(self) -> str:
        if not self.classes[0].name:
            return str(self.classes[0].source)
        return "; ".join(f"{each.share:.4g} {each.name}: {each.source}" for each in self.classes)

    @property
    def timed(self) -> bool:
        """Whether all of it knows when it is due."""
        return all(each.source.timed for each in self.classes)

    def lasts_s(self, arrivals: Arrivals | None) -> float:
        """How long there is something to ask, by `arrivals` or at times of its own: a recording has an end."""
        if arrivals is not None:
            return lasts_s(arrivals)
        sources = [each.source for each in self.classes]
        return max(each.lasts_s() if isinstance(each, Trace | ServeGen) else math.inf for each in sources)

    def demand(self, arrivals: Arrivals | None, horizon_s: float, seed: int) -> Demand:
        """All requests of a run, in the order in which they are due; the same for the same seed.

        Users come as `arrivals` says. Without it they come when the source says.
        """
        starts = None if arrivals is None else schedule(arrivals, horizon_s, seed)
        if starts is None and not self.timed:
            untimed = next(each.source for each in self.classes if not each.source.timed)
            raise SpecError(f"say when requests are due: {str(untimed).partition(':')[0]} has no times of its own")
        if not self.classes[0].name:
            found = self.classes[0].source.demand(starts, horizon_s, stream(seed, "workload"))
        else:
            found = self._mixed(starts, horizon_s, seed)
        if not len(found):
            raise SpecError(f"nothing is due in {horizon_s:g} s of {arrivals or self}: raise the rate, or run longer")
        return found

    def parts(self, arrivals: Arrivals | None, horizon_s: float, seed: int, users: int = PART) -> Iterator[Demand]:
        """The same in parts of so many users, each with all that they ask, so that a long run need not be held at once.
        The first part is what `demand` begins with; the next ones are drawn from streams of their own. A workload of
        classes, or with times of its own, is one part."""
        source = self.classes[0].source
        if arrivals is None or self.classes[0].name or not isinstance(source, Synthetic | Sessions):
            yield self.demand(arrivals, horizon_s, seed)
            return
        starts = schedule(arrivals, horizon_s, seed)
        if len(starts) <= users:
            yield self.demand(arrivals, horizon_s, seed)
            return
        for number in range(0, len(starts), users):
            some = starts[number : number + users]
            if number == 0:
                yield source.demand(some, horizon_s, stream(seed, "workload"))
            else:
                rng = stream(seed, f"workload from user {number}")
                yield source.part(some, rng, stream(seed, "workload"), users)

    def _mixed(self, starts_s: Floats | None, horizon_s: float, seed: int) -> Demand:
        shares = np.array([each.share for each in self.classes])
        count = 0 if starts_s is None else len(starts_s)
        chosen = stream(seed, "classes").choice(len(shares), count, p=shares / shares.sum())
        parts = [
            each.source.demand(
                None if starts_s is None else starts_s[chosen == number], horizon_s, stream(seed, f"class {each.name}")
            )
            for number, each in enumerate(self.classes)
        ]
        return merged_demand(parts, [each.name for each in self.classes])


def schedule(arrivals: Arrivals, horizon_s: float, seed: int) -> Floats:
    """When users come."""
    expected = arrivals.expected(horizon_s)
    if expected > MOST_ARRIVALS:
        raise SpecError(f"{expected:,.0f} arrivals are too many for one run, which holds {MOST_ARRIVALS:,}")
    return arrivals.times(horizon_s, stream(seed, "arrivals"))


@dataclass(frozen=True)
class Scaled(Workload):
    """The same requests, with prompts and answers so many times as long."""

    prompt: float = 1.0
    output: float = 1.0

    def __str__(self) -> str:
        return f"{super().__str__()} (prompts x {self.prompt:g}, answers x {self.output:g})"

    def demand(self, arrivals: Arrivals | None, horizon_s: float, seed: int) -> Demand:
        return self._scaled(Workload(self.classes).demand(arrivals, horizon_s, seed))

    def parts(self, arrivals: Arrivals | None, horizon_s: float, seed: int, users: int = PART) -> Iterator[Demand]:
        yield from map(self._scaled, Workload(self.classes).parts(arrivals, horizon_s, seed, users))

    def _scaled(self, found: Demand) -> Demand:
        tokens = np.maximum(np.rint(self.prompt * found.pieces.tokens), 1).astype(np.int64)
        output = np.rint(self.output * found.output_tokens).astype(np.int64)
        output = np.where(found.output_tokens > 0, np.maximum(output, 1), 0)
        return replace(found, pieces=replace(found.pieces, tokens=tokens), output_tokens=output)
