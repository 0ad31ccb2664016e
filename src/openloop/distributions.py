"""How long, how much: random values with a mean that is known beforehand.

The same distributions serve for times (`exponential(2ms)`) and for lengths (`lognormal(median=500,sigma=0.8)`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from openloop.errors import SpecError
from openloop.terms import NUMBER, SECONDS, SHARE, VALUE, Codec, InContext, Term, param, read_term, write_term

__all__ = [
    "DISTRIBUTIONS",
    "LENGTHS",
    "TIMES",
    "Distribution",
    "Exponential",
    "Fixed",
    "Gamma",
    "Lognormal",
    "Pareto",
    "Straggling",
    "Uniform",
    "read_distribution",
]

Floats = NDArray[np.float64]


class Distribution(Protocol):
    @property
    def mean(self) -> float: ...

    @property
    def cv(self) -> float:
        """Standard deviation over mean; infinite where there is none."""

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """n independent values."""


@dataclass(frozen=True)
class Fixed(Term):
    """Always the same."""

    name = "fixed"
    value: float = param(VALUE)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return np.full(n, float(self.value))

    @property
    def mean(self) -> float:
        return self.value

    @property
    def cv(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Exponential(Term):
    """Without memory: the service times of M/M/1."""

    name = "exponential"
    mean: float = param(VALUE)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.exponential(self.mean, n)

    @property
    def cv(self) -> float:
        return 1.0 if self.mean else 0.0


@dataclass(frozen=True)
class Uniform(Term):
    """Anything between two values alike."""

    name = "uniform"
    low: float = param(VALUE)
    high: float = param(VALUE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high < self.low:
            raise SpecError(f"uniform: high is {self.high:g}, below low, which is {self.low:g}")

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.uniform(self.low, self.high, n)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def cv(self) -> float:
        return (self.high - self.low) / math.sqrt(12) / self.mean if self.mean else 0.0


@dataclass(frozen=True)
class Lognormal(Term):
    """Most are near the median and a few far above it; `sigma` is the standard deviation of the logarithm."""

    name = "lognormal"
    median: float = param(VALUE, above=0.0)
    sigma: float = param(NUMBER, most=10.0)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.lognormal(math.log(self.median), self.sigma, n)

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    @property
    def cv(self) -> float:
        return math.sqrt(math.expm1(self.sigma**2))


@dataclass(frozen=True)
class Gamma(Term):
    """Between regular (`cv` below 1) and bursty (above)."""

    name = "gamma"
    mean: float = param(VALUE)
    cv: float = param(NUMBER, least=0.001, most=100.0)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return rng.gamma(1 / self.cv**2, self.mean * self.cv**2, n)


@dataclass(frozen=True)
class Pareto(Term):
    """A tail that falls as a power: P(X > x) = (least / x) ** alpha."""

    name = "pareto"
    least: float = param(VALUE, above=0.0)
    alpha: float = param(NUMBER, above=1.0, most=1000.0)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return self.least * (1 + rng.pareto(self.alpha, n))

    @property
    def mean(self) -> float:
        return self.least * self.alpha / (self.alpha - 1)

    @property
    def cv(self) -> float:
        return 1 / math.sqrt(self.alpha * (self.alpha - 2)) if self.alpha > 2 else math.inf


def read_distribution(text: str, value: Codec) -> Distribution:
    """`exponential(2ms)`; a bare value is a fixed one."""
    try:
        return Fixed(value.read(text))
    except SpecError as error:
        if text[:1].isdigit() or text[:1] in ".+-":
            raise error from None
    found: Distribution = read_term(text, DISTRIBUTIONS, "distribution", value)
    return found


def _codec(value: Codec) -> Codec:
    def write(each: Term) -> str:
        return value.write(each.value) if isinstance(each, Fixed) else write_term(each, value, inside=True)

    return Codec(lambda text: read_distribution(text, value), write, _check)


def _check(what: str, value: object) -> None:
    if not hasattr(value, "draw"):
        raise SpecError(f"{what} is {value!r}, which is no distribution; for a fixed value write Fixed({value!r})")


TIMES = _codec(SECONDS)
LENGTHS = _codec(NUMBER)


@dataclass(frozen=True)
class Straggling(Term):
    """Times of a fleet with a slow worker: a share of the values is that many times as long."""

    name = "straggling"
    base: Distribution = param(InContext(_codec))
    share: float = param(SHARE)
    factor: float = param(NUMBER)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        values = self.base.draw(n, rng)
        slow = rng.random(n) < self.share
        return np.where(slow, values * self.factor, values)

    @property
    def mean(self) -> float:
        return self.base.mean * (1 + self.share * (self.factor - 1))

    @property
    def cv(self) -> float:
        scale = 1 + self.share * (self.factor**2 - 1)
        return math.sqrt((1 + self.base.cv**2) * scale * (self.base.mean / self.mean) ** 2 - 1) if self.mean else 0.0


_KINDS: tuple[type[Term], ...] = (Fixed, Exponential, Uniform, Lognormal, Gamma, Pareto, Straggling)
DISTRIBUTIONS = {kind.name: kind for kind in _KINDS}
