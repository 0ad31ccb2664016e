"""Quality by itself and by slice, and how many answers it takes to see a tail fail."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from openloop.arrays import Bools
from openloop.score.quantiles import share_interval
from openloop.score.scope import Scope

RISE = 0.02  # of failures, that a slice is to show
LATE_TURN = 4  # turns count from 0: the fifth and later
LONG = 2.0  # medians of prompt tokens


@dataclass(frozen=True)
class SliceScore:
    """Judged answers of one kind, beside all others. `needed` are those it takes to see two points more failing."""

    judged: int
    failed: int
    pass_rate: float
    interval: tuple[float, float]
    rest_pass_rate: float
    rest_interval: tuple[float, float]
    needed: int

    @property
    def enough(self) -> bool:
        return self.judged >= self.needed

    @property
    def worse(self) -> bool:
        """Surely: its interval ends below where that of the others begins."""
        return self.interval[1] < self.rest_interval[0]


@dataclass(frozen=True)
class QualityScore:
    judged: int
    open: int  # completed, and not judged
    failed: int
    pass_rate: float
    interval: tuple[float, float]
    needed: int
    slices: dict[str, SliceScore]


def quality_score(scope: Scope) -> QualityScore | None:
    """Of completed requests, their answers; None where none is judged."""
    quality = scope.deliveries.quality
    completed = scope.deliveries.ok
    known = completed & (quality >= 0)
    if not known.any():
        return None
    good = quality == 1
    members = {name: mask for name, mask in _slices(scope).items() if (mask & known).any() and not mask[known].all()}
    whole = scope.part(known)
    rate = float(good[known].mean())
    return QualityScore(
        int(known.sum()),
        int(np.sum(completed & ~known)),
        int(np.sum(known & ~good)),
        rate,
        share_interval(good[known], whole.bounds),
        needed_to_see(1 - rate),
        {name: _slice(scope, known & mask, known & ~mask, good) for name, mask in members.items()},
    )


def _slice(scope: Scope, mine: Bools, others: Bools, good: Bools) -> SliceScore:
    rest = float(good[others].mean())
    return SliceScore(
        int(mine.sum()),
        int(np.sum(mine & ~good)),
        float(good[mine].mean()),
        share_interval(good[mine], scope.part(mine).bounds),
        rest,
        share_interval(good[others], scope.part(others).bounds),
        needed_to_see(1 - rest),
    )


def _slices(scope: Scope) -> dict[str, Bools]:
    """As rows name them, and those that records show by themselves."""
    attempts, deliveries = scope.run.attempts, scope.deliveries
    names = attempts.words["slices"]
    codes = deliveries.of_attempt(attempts.slices)
    found: dict[str, Bools] = {}
    for name in sorted({each for joined in names for each in joined.split("+")}):
        holding = [code for code, joined in enumerate(names) if name in joined.split("+")]
        found[name] = np.isin(codes, holding)
    turn, prompt = (deliveries.of_attempt(each) for each in (attempts.turn, attempts.prompt_tokens))
    found["turn 5 and later"] = turn >= LATE_TURN
    if np.any(prompt > 0):
        found["long prompts"] = prompt >= LONG * np.median(prompt[prompt > 0])
    return found


def needed_to_see(base: float, rise: float = RISE) -> int:
    """Answers of each kind it takes to tell a failure rate of base + rise from one of base: 5% level, 80% power.

    n = (z_a sqrt(2 m (1 - m)) + z_b sqrt(p (1 - p) + q (1 - q)))**2 / (q - p)**2,  m = (p + q) / 2
    """
    p, q = base, min(base + rise, 1.0)
    if not p < q:
        p, q = max(base - rise, 0.0), base
    m = (p + q) / 2
    z_a, z_b = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)
    root = z_a * math.sqrt(2 * m * (1 - m)) + z_b * math.sqrt(p * (1 - p) + q * (1 - q))
    return math.ceil(root**2 / (q - p) ** 2)
