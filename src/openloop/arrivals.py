"""When requests are due. Processes are pure: a horizon and a generator in, sorted seconds out.

Poisson, gamma, Weibull and the bursts are stationary from time 0 on: the expected number of arrivals in any stretch is
its length times the rate, also right at the start.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from openloop.arrays import Floats
from openloop.errors import SpecError
from openloop.records import ints, open_run
from openloop.spec import read_text
from openloop.terms import NUMBER, RATE, RATE_OR_NONE, SECONDS, SHARE, TEXT, Codec, Term, by_name, param, read_term
from openloop.units import LONGEST_S, check_number, parse_rate, parse_seconds, write_seconds

MOST_ARRIVALS = 20_000_000  # in one schedule: as a run, about 250 bytes each


class Arrivals(Protocol):
    """`cv` is the variation of gaps over their mean, `dispersion` the variance of the number in the horizon over its
    mean; None where the process promises no such number, or nothing beyond what the gaps say."""

    @property
    def cv(self) -> float | None: ...

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        """Sorted, from 0 to before the horizon."""

    def expected(self, horizon_s: float) -> float:
        """The mean number of arrivals."""

    def dispersion(self, horizon_s: float) -> float | None: ...


@dataclass(frozen=True)
class _Steady(Term):
    """One rate throughout, and gaps that do not depend on each other."""

    rate: float = param(RATE)

    def expected(self, horizon_s: float) -> float:
        return self.rate * horizon_s

    def dispersion(self, horizon_s: float) -> float | None:
        return None


@dataclass(frozen=True)
class Constant(_Steady):
    """Evenly spaced, the first at once."""

    name = "constant"
    cv = 0.0

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        times = np.arange(math.ceil(self.rate * horizon_s)) / self.rate
        return times[times < horizon_s]


@dataclass(frozen=True)
class Poisson(_Steady):
    """Independent users: given their number, arrivals lie anywhere alike."""

    name = "poisson"
    cv = 1.0

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        return _poisson(self.rate, horizon_s, rng)


@dataclass(frozen=True)
class GammaArrivals(_Steady):
    """Gaps of any variation: `cv` 1 is Poisson, more is burstier, less more regular (burstiness 1/cv**2 elsewhere)."""

    name = "gamma"
    cv: float = param(NUMBER, least=0.001, most=100.0)

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        shape, scale = 1 / self.cv**2, self.cv**2 / self.rate
        # The gap that covers time 0 is long in proportion to its length: a gamma of one more.
        first = rng.random() * rng.gamma(shape + 1, scale)
        return _renewals(first, lambda n: rng.gamma(shape, scale, n), self.rate, horizon_s)


@dataclass(frozen=True)
class Weibull(_Steady):
    """Gaps with a stretched (`shape` below 1) or compact (above) tail, as fitted to production traffic."""

    name = "weibull"
    shape: float = param(NUMBER, above=0.1, most=100.0)

    @property
    def cv(self) -> float:
        return math.sqrt(math.gamma(1 + 2 / self.shape) / math.gamma(1 + 1 / self.shape) ** 2 - 1)

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        scale = 1 / (self.rate * math.gamma(1 + 1 / self.shape))
        first = rng.random() * scale * rng.gamma(1 + 1 / self.shape) ** (1 / self.shape)
        return _renewals(first, lambda n: scale * rng.weibull(self.shape, n), self.rate, horizon_s)


@dataclass(frozen=True)
class OnOff(Term):
    """Bursts: Poisson at the rate `high` for a random time with mean `on`, then at `low` for one with mean `off`.

    Both times are exponential: a Markov-modulated Poisson process of two states.
    """

    name = "onoff"
    high: float = param(RATE)
    on: float = param(SECONDS, least=1e-6)
    off: float = param(SECONDS, least=1e-6)
    low: float = param(RATE_OR_NONE, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise SpecError(f"onoff: low is {self.low:g}, above high, which is {self.high:g}")

    @property
    def rate(self) -> float:
        return (self.high * self.on + self.low * self.off) / (self.on + self.off)

    @property
    def cv(self) -> float:
        """c**2 = 1 + 2 a b (h - l)**2 / ((a + b)**2 (h l + h b + l a)), where a and b are the rates of leaving."""
        a, b, h, low = 1 / self.on, 1 / self.off, self.high, self.low
        return math.sqrt(1 + 2 * a * b * (h - low) ** 2 / ((a + b) ** 2 * (h * low + h * b + low * a)))

    def expected(self, horizon_s: float) -> float:
        return self.rate * horizon_s

    def dispersion(self, horizon_s: float) -> float:
        """1 + 2 a b (h - l)**2 / ((a + b)**3 rate) * (1 - (1 - exp(-x)) / x), where x = (a + b) horizon."""
        a, b = 1 / self.on, 1 / self.off
        x = (a + b) * horizon_s
        most = 2 * a * b * (self.high - self.low) ** 2 / ((a + b) ** 3 * self.rate)
        return 1 + most * (1 + math.expm1(-x) / x)

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        _check_number_of("changes between on and off", 2 * horizon_s / (self.on + self.off))
        on = bool(rng.random() < self.on / (self.on + self.off))
        edges = [np.zeros(1)]
        while edges[-1][-1] < horizon_s:
            pairs = 16 + int(horizon_s / (self.on + self.off))
            means = [self.on, self.off] if on else [self.off, self.on]
            edges.append(edges[-1][-1] + np.cumsum(rng.exponential(np.tile(means, pairs))))
        edge = np.minimum(np.concatenate(edges), horizon_s)
        lengths = np.diff(edge)
        rates = np.where((np.arange(len(lengths)) % 2 == 0) == on, self.high, self.low)
        _check_number_of("arrivals", float(rates @ lengths))
        counts = rng.poisson(rates * lengths)
        return _before(
            np.sort(np.repeat(edge[:-1], counts) + rng.random(counts.sum()) * np.repeat(lengths, counts)), horizon_s
        )


class _Varying(Term):
    """A Poisson process whose rate changes."""

    cv = None

    def dispersion(self, horizon_s: float) -> float | None:
        return None


@dataclass(frozen=True)
class Ramp(_Varying):
    """The rate moves in a straight line from `start` to `end`, over the whole horizon or over a time, and stays."""

    name = "ramp"
    start: float = param(RATE_OR_NONE)
    end: float = param(RATE_OR_NONE)
    over: float | None = param(SECONDS, None, above=0.0)

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        def rate_at(times: Floats) -> Floats:
            return np.interp(times, [0.0, self.over or horizon_s], [self.start, self.end])

        return _thinned(rate_at, float(rate_at(np.array([0.0, horizon_s])).max()), horizon_s, rng)

    def expected(self, horizon_s: float) -> float:
        ramp = min(self.over or horizon_s, horizon_s)
        at_end = self.start + (self.end - self.start) * ramp / (self.over or horizon_s)
        return (self.start + at_end) / 2 * ramp + self.end * (horizon_s - ramp)


@dataclass(frozen=True)
class RateStep:
    rate: float
    at_s: float

    def __post_init__(self) -> None:
        check_number("the rate of a step", self.rate, 0.0, 1e9)
        check_number("the beginning of a step", self.at_s, 0.0, LONGEST_S)


def _read_step(text: str) -> RateStep:
    rate, at, time = text.partition("@")
    if not at:
        raise SpecError(f"{text!r} is no step; write a rate and when it begins, such as 20@60s")
    return RateStep(parse_rate(rate), parse_seconds(time))


STEP = Codec(_read_step, lambda step: f"{NUMBER.write(step.rate)}@{write_seconds(step.at_s)}")


@dataclass(frozen=True)
class Piecewise(_Varying):
    """The rate jumps: `5@0s,50@60s,5@90s` is a spike of half a minute."""

    name = "piecewise"
    steps: tuple[RateStep, ...] = param(STEP, rest=True)

    def __post_init__(self) -> None:
        starts = [step.at_s for step in self.steps]
        if starts[:1] != [0.0] or sorted(set(starts)) != starts:
            raise SpecError("piecewise: the first step begins at 0s and each further one later than the one before")

    def _edges(self, horizon_s: float) -> tuple[Floats, Floats]:
        inside = [step for step in self.steps if step.at_s < horizon_s]
        return np.array([step.at_s for step in inside]), np.array([step.rate for step in inside])

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        starts, rates = self._edges(horizon_s)
        return _thinned(
            lambda times: rates[np.searchsorted(starts, times, side="right") - 1], float(rates.max()), horizon_s, rng
        )

    def expected(self, horizon_s: float) -> float:
        starts, rates = self._edges(horizon_s)
        return float(np.diff(starts, append=horizon_s) @ rates)


@dataclass(frozen=True)
class Sine(_Varying):
    """A day: the rate swings about its mean by a share of it, upwards first."""

    name = "sine"
    rate: float = param(RATE)
    swing: float = param(SHARE)
    period: float = param(SECONDS, 86400.0, least=1e-6)
    shift: float = param(SECONDS, 0.0)  # how far into the period time 0 is

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        def rate_at(times: Floats) -> Floats:
            return self.rate * (1 + self.swing * np.sin(2 * np.pi * (times + self.shift) / self.period))

        return _thinned(rate_at, self.rate * (1 + self.swing), horizon_s, rng)

    def expected(self, horizon_s: float) -> float:
        turn = 2 * math.pi / self.period
        swung = math.cos(turn * self.shift) - math.cos(turn * (horizon_s + self.shift))
        return self.rate * (horizon_s + self.swing * swung / turn)


@dataclass(frozen=True, eq=False)
class Recording:
    """Times that were recorded, sorted, and where."""

    path: str
    times_s: Floats

    def __post_init__(self) -> None:
        if not np.isfinite(self.times_s).all() or (np.diff(self.times_s) < 0).any() or np.any(self.times_s < 0):
            raise SpecError(f"the recorded times of {self.path} are not sorted numbers of zero or more")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recording) and np.array_equal(self.times_s, other.times_s)

    def __hash__(self) -> int:
        return hash(self.times_s.tobytes())


def _read_recording(text: str) -> Recording:
    path = Path(text)
    times = np.sort(_run_times(path) if path.is_dir() else _listed_times(path))
    if not len(times):
        raise SpecError(f"{path} holds no times")
    return Recording(text, times - times[0])


def _run_times(folder: Path) -> Floats:
    batches = open_run(folder).batches(["scheduled_ns", "attempt"])
    return np.concatenate([np.empty(0), *(ints(b, "scheduled_ns")[ints(b, "attempt") == 0] / 1e9 for b in batches)])


def _listed_times(path: Path) -> Floats:
    if path.exists() and not path.is_file():
        raise SpecError(f"{path} is neither a run folder nor a file of seconds")
    lines = read_text(path, "give a run folder or a file of seconds, one to a line").split()
    for number, line in enumerate(lines, start=1):
        try:
            finite = abs(float(line)) <= LONGEST_S
        except ValueError:
            finite = False
        if not finite:
            raise SpecError(f"{path}: entry {number}, {line[:20]!r}, is not a time in seconds")
    return np.array(lines, np.float64)


@dataclass(frozen=True)
class Replay(Term):
    """Recorded times: those of a run folder, or of a file of seconds, one to a line; `speed` 2 is twice as fast, and a
    run ends with them."""

    name = "replay"
    recorded: Recording = param(
        Codec(lambda text: _read_recording(TEXT.read(text)), lambda recording: TEXT.write(recording.path))
    )
    speed: float = param(NUMBER, 1.0, above=0.0)
    cv = None

    def times(self, horizon_s: float, rng: np.random.Generator) -> Floats:
        return _before(self.recorded.times_s / self.speed, horizon_s)

    def expected(self, horizon_s: float) -> float:
        return float(np.sum(self.recorded.times_s / self.speed < horizon_s))

    def dispersion(self, horizon_s: float) -> float:
        return 0.0

    def lasts_s(self) -> float:
        """Until a mean gap after the last."""
        last, count = float(self.recorded.times_s[-1]), len(self.recorded.times_s)
        return last * count / (count - 1) / self.speed if last > 0 else math.inf


def lasts_s(arrivals: Arrivals) -> float:
    """How long there is somebody to come: recorded times have an end."""
    return arrivals.lasts_s() if isinstance(arrivals, Replay) else math.inf


def read_arrivals(text: str) -> Arrivals:
    found: Arrivals = read_term(text, ARRIVALS, "arrival process")
    return found


def _check_number_of(what: str, number: float) -> None:
    if number > MOST_ARRIVALS:
        raise SpecError(f"{number:,.0f} {what} are too many for one run; at most {MOST_ARRIVALS:,} are")


def _poisson(rate: float, horizon_s: float, rng: np.random.Generator) -> Floats:
    _check_number_of("arrivals, at the highest rate all the time,", rate * horizon_s)
    return _before(np.sort(rng.uniform(0.0, horizon_s, rng.poisson(rate * horizon_s))), horizon_s)


def _thinned(rate_at: Callable[[Floats], Floats], peak: float, horizon_s: float, rng: np.random.Generator) -> Floats:
    """Arrivals at the peak rate, each kept with the probability rate / peak."""
    times = _poisson(peak, horizon_s, rng)
    return times[rng.random(len(times)) * peak < rate_at(times)]


def _renewals(first: float, gaps: Callable[[int], Floats], rate: float, horizon_s: float) -> Floats:
    found = [np.array([first])]
    while found[-1][-1] < horizon_s:
        found.append(found[-1][-1] + np.cumsum(gaps(16 + int(1.05 * rate * (horizon_s - found[-1][-1])))))
    return _before(np.concatenate(found), horizon_s)


def _before(times: Floats, horizon_s: float) -> Floats:
    """Sorted times up to the horizon, which rounding may reach."""
    return times[: np.searchsorted(times, horizon_s)]


ARRIVALS = by_name(Constant, Poisson, GammaArrivals, Weibull, OnOff, Ramp, Piecewise, Sine, Replay)
