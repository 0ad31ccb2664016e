"""Where requests come from. A source is a term: a name and parameters, such as `synthetic:prompt=500,output=64`."""

from typing import Protocol

import numpy as np

from openloop.arrays import Floats, Ints
from openloop.distributions import Distribution
from openloop.terms import Codec
from openloop.workload.demand import Demand

PATH = Codec(str, str)


class Source(Protocol):
    @property
    def timed(self) -> bool:
        """Whether it knows itself when its requests are due."""

    def demand(self, starts_s: Floats | None, horizon_s: float, rng: np.random.Generator) -> Demand:
        """Requests of users who come at these times, or at the source's own."""


def whole(lengths: Distribution, count: int, rng: np.random.Generator, least: int = 1) -> Ints:
    """Numbers of tokens."""
    return np.maximum(np.rint(np.minimum(lengths.draw(count, rng), 1e9)), least).astype(np.int64)
