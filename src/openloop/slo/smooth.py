"""Smooth goodput: what a late answer is still worth (smooth-goodput paper, section 4.2).

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

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from openloop.arrays import Floats
from openloop.slo.deadlines import Deadlines, reading
from openloop.units import LONGEST_S, check_number


class Penalty(Protocol):
    """f: idle seconds to a plain number, 0 for none."""

    def __call__(self, idle_s: Floats) -> Floats: ...


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
