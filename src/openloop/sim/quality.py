"""Labels for modelled answers: most are as good as the model is, and a tail fails more often.

Answers that fail may be asked for again, with a correction. Whether one fails is a matter of chance, so it can be drawn
before anything is served. A repair is then due when the answer that it repairs is there, as the next turn of a
conversation is, and the loop serves it like any other.
"""

from dataclasses import dataclass, replace

import numpy as np

from openloop.arrays import Bools, Floats, Ints
from openloop.persistence import Repair
from openloop.seeds import chances
from openloop.terms import NUMBER, SHARE, Term, param, read_term
from openloop.workload import Demand
from openloop.workload.demand import ASSISTANT, USER, Pieces, one_after_the_other

LATE_TURN = 4  # turns count from 0
CORRECTION_TOKENS = 20
FRESH = 1 << 60  # identities that no workload has
PER_PART = 1 << 36
SLICES = ("numeric", "rare", "numeric+rare")


@dataclass(frozen=True)
class QualityModel(Term):
    """An answer fails with the chance `fail`. In the tail it fails with `tail` times `factor` instead, where that is
    more: in a share of requests that ask for something `rare`, in a share that is `numeric`, and from the fifth turn
    on. `factor` is what quantization does to the tail."""

    name = "quality"
    fail: float = param(SHARE, 0.02)
    tail: float = param(SHARE, 0.02)
    rare: float = param(SHARE, 0.02)
    numeric: float = param(SHARE, 0.05)
    factor: float = param(NUMBER, 1.0)

    def sort(self, late: Bools, first: Floats, second: Floats) -> tuple[Ints, Floats]:
        """Of each request the slices that it belongs to (1: numeric, 2: rare, 3: both), and the chance that its answer
        fails; `late`: it is a late turn; and two numbers between 0 and 1, by chance."""
        rare, numeric = first < self.rare, second < self.numeric
        in_tail = max(self.fail, min(self.tail * self.factor, 1.0))
        return numeric + 2 * rare, np.where(rare | numeric | late, in_tail, self.fail)

    def label(self, seed: int, request: Ints, late: Bools) -> tuple[Bools, Ints]:
        """Whether the answers to these requests are good, the same whenever each is answered, and by whom; and the
        slices that they belong to."""
        rare, numeric, drawn = (chances(seed, f"quality {name}", request) for name in ("rare", "numeric", "good"))
        slices, chance = self.sort(late, rare, numeric)
        return drawn >= chance, slices


def read_quality(text: str) -> QualityModel:
    found: QualityModel = read_term(text, {"quality": QualityModel}, "model of quality")
    return found


@dataclass(frozen=True, eq=False)
class Repaired:
    """A demand with its repairs behind it; by request: what it is an attempt at, the how manieth, and if it passes."""

    demand: Demand
    origin: Ints
    wave: Ints
    good: Bools
    slices: Ints  # as QualityModel draws them

    def earlier(self, tries: Ints) -> Ints:
        """Attempts at what each repairs, of which there were so many before it was asked for."""
        assert self.demand.after is not None
        found = np.zeros(len(self.demand), np.int64)
        for number in range(1, 1 + int(self.wave.max(initial=0))):
            those = np.flatnonzero(self.wave == number)
            repaired = self.demand.after[those]
            found[those] = found[repaired] + tries[repaired]
        return found


def with_repairs(
    demand: Demand, model: QualityModel, repair: Repair, rng: np.random.Generator, part: int = 0
) -> Repaired:
    """`part` tells the parts of one workload apart."""
    count = len(demand)
    late = np.zeros(count, np.bool_) if demand.turn is None else demand.turn >= LATE_TURN
    slices, chance = model.sort(late, rng.random(count), rng.random(count))
    origin, wave, good = np.arange(count), np.zeros(count, np.int64), rng.random(count) >= chance
    newest = np.arange(count)  # the last attempt at each
    failed = np.flatnonzero(~good)
    whole = replace(
        _named(demand, failed, FRESH + part * PER_PART),
        after=np.full(count, -1) if demand.after is None else demand.after,
        think_s=np.zeros(count) if demand.think_s is None else demand.think_s,
        answer=np.full(count, -1) if demand.answer is None else demand.answer,
    )
    assert whole.after is not None
    turns = np.flatnonzero(whole.after >= 0)
    for number in range(1, repair.most + 1):
        if not len(failed):
            break
        again = _asked_again(whole, newest[failed], FRESH + part * PER_PART + (number << 32))
        passed = rng.random(len(failed)) >= chance[failed]
        newest[failed] = len(whole) + np.arange(len(failed))
        whole = again
        origin, wave = np.append(origin, failed), np.append(wave, np.full(len(failed), number))
        good = np.append(good, passed)
        failed = failed[~passed]
    assert whole.after is not None
    after = whole.after.copy()
    after[turns] = newest[after[turns]]
    return Repaired(replace(whole, after=after), origin, wave, good, slices)


def _named(demand: Demand, those: Ints, first: int) -> Demand:
    """What only these ask will be asked once more, so it gets a name that a cache can know it by."""
    mine = np.zeros(len(demand), np.bool_)
    mine[those] = True
    pieces = demand.pieces
    own = mine[pieces.owner] & (pieces.identity < 0)
    identity = np.where(own, first + np.cumsum(own), pieces.identity)
    return replace(demand, pieces=replace(pieces, identity=identity))


def _asked_again(demand: Demand, those: Ints, first: int) -> Demand:
    """The demand, and behind it each of those with its answer and a correction."""
    assert demand.after is not None
    assert demand.answer is not None
    count = len(those)
    said = first + np.arange(count)
    answer = demand.answer.copy()
    answer[those] = said  # what the next turn repeats is the answer that is better
    again = demand.take(those)
    before = again.pieces
    places = np.repeat(before.starts[1:], 2)
    added = {
        "identity": np.stack([said, np.full(count, -1)], axis=1),
        "tokens": np.stack([again.output_tokens, np.full(count, CORRECTION_TOKENS)], axis=1),
        "role": np.tile(np.array([ASSISTANT, USER], np.int8), (count, 1)),
    }
    longer = {name: np.insert(getattr(before, name), places, values.ravel()) for name, values in added.items()}
    again = replace(
        again,
        due_s=np.full(count, np.nan),
        pieces=Pieces(before.starts + 2 * np.arange(count + 1), **longer),
        think_s=np.zeros(count),
        answer=np.full(count, -1),
    )
    whole = one_after_the_other(replace(demand, answer=answer), again)
    return replace(whole, after=np.append(demand.after, those))
