"""How long, how much: random values with a mean that is known beforehand.

The same distributions serve for times (`exponential(2ms)`) and for lengths (`lognormal(median=500,sigma=0.8)`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from openloop.arrays import Floats
from openloop.errors import SpecError
from openloop.spec import read_text
from openloop.terms import (
    NUMBER,
    SECONDS,
    SHARE,
    TEXT,
    VALUE,
    Codec,
    InContext,
    Term,
    by_name,
    param,
    read_term,
    write_term,
)
from openloop.units import check_number, parse_number


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
    cv = 0.0

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return np.full(n, float(self.value))

    @property
    def mean(self) -> float:
        return self.value


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
class Normal(Term):
    """The bell; what would be below zero is zero, which the mean and the variation count."""

    name = "normal"
    center: float = param(VALUE)
    sd: float = param(VALUE, above=0.0)

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        return np.maximum(rng.normal(self.center, self.sd, n), 0.0)

    def _positive(self) -> tuple[float, float]:
        """The chance of being above zero, and the height of the bell there."""
        z = self.center / self.sd
        return (1 + math.erf(z / math.sqrt(2))) / 2, math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    @property
    def mean(self) -> float:
        chance, height = self._positive()
        return self.center * chance + self.sd * height

    @property
    def cv(self) -> float:
        chance, height = self._positive()
        square = (self.center**2 + self.sd**2) * chance + self.center * self.sd * height
        return math.sqrt(max(square / self.mean**2 - 1, 0.0))


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


@dataclass(frozen=True)
class Weighted:
    """A value and how often it is seen, in any unit."""

    value: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_number("a value", self.value, 0.0, 1e12)
        check_number("a weight", self.weight, 0.0, 1e12)


def _weighted(value: Codec) -> Codec:
    def read(text: str) -> Weighted:
        each, at, weight = text.partition("@")
        if not at:
            raise SpecError(f"{text!r} is no value with a weight; write it as 500@3")
        return Weighted(value.read(each), parse_number(weight))

    return Codec(read, lambda each: f"{value.write(each.value)}@{NUMBER.write(each.weight)}")


class _Tabled(Term):
    def _table(self) -> tuple[Floats, Floats]:
        """Values, and the share of each."""
        raise NotImplementedError

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        values, shares = self._table()
        return rng.choice(values, n, p=shares)

    @property
    def mean(self) -> float:
        values, shares = self._table()
        return float(values @ shares)

    @property
    def cv(self) -> float:
        values, shares = self._table()
        return math.sqrt(max(float(values**2 @ shares) / self.mean**2 - 1, 0.0)) if self.mean else 0.0


@dataclass(frozen=True)
class Histogram(_Tabled):
    """Values with weights: `histogram(100@5,500@3,2000@1)`."""

    name = "histogram"
    values: tuple[Weighted, ...] = param(InContext(_weighted), rest=True)

    def __post_init__(self) -> None:
        if not sum(each.weight for each in self.values) > 0:
            raise SpecError("histogram: no value has a weight above zero")

    def _table(self) -> tuple[Floats, Floats]:
        weights = np.array([each.weight for each in self.values])
        return np.array([each.value for each in self.values]), weights / weights.sum()


@dataclass(frozen=True)
class Empirical(_Tabled):
    """Values of a file, one to a line, each maybe with how often it was seen: `500` or `500 3`."""

    name = "empirical"
    path: str = param(TEXT)

    def __post_init__(self) -> None:
        self._table()

    def _table(self) -> tuple[Floats, Floats]:
        found = []
        for number, line in enumerate(read_text(self.path).splitlines(), start=1):
            parts = line.replace(",", " ").split()
            try:
                found += [Weighted(*map(float, parts))] if parts else []
            except (ValueError, TypeError, SpecError):
                raise SpecError(f"{self.path}, line {number}: {line[:40]!r} is no value, or value and weight") from None
        return Histogram(tuple(found))._table()


DISTRIBUTIONS = by_name(Fixed, Exponential, Uniform, Normal, Lognormal, Gamma, Pareto, Straggling, Histogram, Empirical)
