"""Token deadlines, the general form of a latency SLO, and smooth goodput, what a late answer is still worth.

A request meets its SLO when every token i = 1..n is there in time (smooth-goodput paper, section 3.1):

    for all i:  t_i <= d_i                                                 (eq. 1)

The familiar objectives are schedules d_i of this form, and so is how fast a person reads. What comes too late is worth
something all the same (section 4.2):

    l_r        = max_i (t_i - d_i)                  user idle latency      (eq. 6)
    benefit(r) = n_r - alpha * f(l_r)               in tokens              (eq. 7)
    smooth goodput = sum_r benefit(r) / T           in tokens per second   (eq. 8)

Where the paper leaves a choice, this is ours:

- Negative idle latency (every token early) counts as zero: nobody waits less than not at all, and an answer that came
  early is worth its n tokens, not more.
- The unit of f. The paper calls f a percentage and subtracts it from a number of tokens. Here f is a plain number and
  alpha is in tokens: with the default f(l) = l / 1 s, alpha is the number of tokens that a second of idle time costs.
- Requests without success (error, time-out, shed, cancelled, censored). The paper has none. They earn no tokens, and
  their user waited for the next token from its deadline until the end: benefit = -alpha * f(l), never better than 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from openloop.arrays import Floats, Ints
from openloop.units import LONGEST_S, check_number

DueFunction = Callable[[Ints, Floats, Floats], Floats]


@dataclass(frozen=True)
class LinearDeadlines:
    """d_1 = first;  d_i = origin + offset + pace * i  for i > 1.

    All in seconds after arrival. The origin is the arrival itself, the first token's time or the previous token's.
    This form covers every schedule of the paper and is evaluated in one compiled pass.
    """

    first: float
    offset: float
    pace: float = 0.0
    origin: Literal["arrival", "first", "previous"] = "arrival"

    def __post_init__(self) -> None:
        if self.pace < 0 or (self.pace and self.origin == "previous"):
            raise ValueError(
                f"pace {self.pace} after {self.origin}: a pace is positive and counts from arrival or first"
            )

    def due(self, i: Ints, first: Floats, previous: Floats) -> Floats:
        start = {"arrival": np.zeros_like(first), "first": first, "previous": previous}[self.origin]
        return np.where(i == 1, self.first, start + self.offset + self.pace * i)


@dataclass(frozen=True, eq=False)
class CustomDeadlines:
    """A schedule of your own: `function(i, first, previous)` gives the due time of each token.

    `i` counts tokens from 1; `first` and `previous` are when the first token and the one before came, in seconds
    after arrival (`previous` of the first token is 0). Arrays in, array of seconds after arrival out.
    """

    function: DueFunction

    def due(self, i: Ints, first: Floats, previous: Floats) -> Floats:
        return self.function(i, first, previous)


Deadlines = LinearDeadlines | CustomDeadlines


def ttft_and_tbt(ttft: float, tbt: float) -> LinearDeadlines:
    """d_1 = TTFT, d_i = t_{i-1} + TBT (eq. 2): each token by itself, however many came early."""
    return LinearDeadlines(ttft, tbt, origin="previous")


def end_to_end(e2e: float) -> LinearDeadlines:
    """d_i = E2E (eq. 3): only the last token matters."""
    return LinearDeadlines(e2e, e2e)


def reading(tokens_per_s: float) -> LinearDeadlines:
    """d_i = i / V (eq. 4): a reader of speed V, who starts on arrival and never waits.

    The paper writes d_i = V * i and calls V a speed; a deadline that grows with i needs V to be seconds per token.
    Here the speed is in tokens per second, and its inverse is the pace.
    """
    return LinearDeadlines(1 / tokens_per_s, 0.0, 1 / tokens_per_s)


def reading_from_first(tokens_per_s: float) -> LinearDeadlines:
    """d_i = t_1 + (i - 1) / V: the same reader, who starts when the first token is there."""
    return LinearDeadlines(np.inf, -1 / tokens_per_s, 1 / tokens_per_s, origin="first")


def lateness(deadlines: Deadlines, times: Floats) -> float:
    """max over i of (t_i - d_i) for one stream of tokens, in seconds; negative: how much time was to spare (eq. 6).

    `times` are seconds after arrival. The scorer computes the same over whole tables.
    """
    if not len(times):
        return np.inf
    i = np.arange(1, len(times) + 1)
    previous = np.concatenate([[0.0], times[:-1]])
    return float(np.max(times - deadlines.due(i, np.full(len(times), times[0]), previous)))


Penalty = Callable[[Floats], Floats]  # f: idle seconds to a plain number, 0 for none


@dataclass(frozen=True)
class LinearPenalty:
    """f(l) = l / 1 s."""

    def __call__(self, idle_s: Floats) -> Floats:
        return idle_s


@dataclass(frozen=True)
class StepPenalty:
    """f(l) = 1 beyond `tolerance_s`, else 0: the user does not mind, then leaves."""

    tolerance_s: float = 1.0

    def __post_init__(self) -> None:
        check_number("the tolerance of the step penalty", self.tolerance_s, 0, LONGEST_S)

    def __call__(self, idle_s: Floats) -> Floats:
        return np.where(idle_s > self.tolerance_s, 1.0, 0.0)


@dataclass(frozen=True)
class ExponentialPenalty:
    """f(l) = 1 - exp(-l / tau): the first seconds hurt most, and no wait costs more than alpha."""

    tau_s: float = 1.0

    def __post_init__(self) -> None:
        check_number("the scale of the exponential penalty", self.tau_s, 1e-9, LONGEST_S)

    def __call__(self, idle_s: Floats) -> Floats:
        return -np.expm1(-idle_s / self.tau_s)


@dataclass(frozen=True)
class Smooth:
    """The parameters of smooth goodput; the defaults are those of the paper's experiments."""

    alpha: float = 5.0  # tokens
    deadlines: Deadlines = field(default_factory=lambda: reading(20.0))
    penalty: Penalty = field(default_factory=LinearPenalty)

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, 0, 1e9)

    def benefit(self, tokens: Floats, idle_s: Floats) -> Floats:
        return tokens - self.alpha * self.penalty(np.maximum(idle_s, 0.0))


PENALTIES: dict[str, type[LinearPenalty | StepPenalty | ExponentialPenalty]] = {
    "linear": LinearPenalty,
    "step": StepPenalty,
    "exponential": ExponentialPenalty,
}
