"""Step times straight from the records, without a simulation.

The time between two tokens of a request is a step. How many sequences decode meanwhile, how much they hold in memory
and which prompts are read is known from the other requests, so a step is a sum of costs times known amounts. Where only
first and last tokens are known, the steps of a request are taken together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openloop.arrays import Floats
from openloop.calibrate.match import PARAMETERS, bounded
from openloop.calibrate.trace import MeasuredTrace

MOST = 1500  # stretches of a run: more tell no more
LEAST_STEPS = 4
LEAST_GAPS = 200
HIDDEN = (0, 32, 64, 128, 192, 256, 384, 512)
PADDINGS = (1, *(1 << n for n in range(10, 17)))
OPTIONAL = ("attention", "packed")  # either: the second has the pairs of the first
TERMS = (frozenset[str](), frozenset({"attention"}), frozenset({"packed"}))
GAIN = 0.98  # a padding or an optional term must lower what is left of the second half to this share
NEGLIGIBLE = 1e-4  # of a step: where so little is left, nothing more is to be explained


@dataclass(frozen=True, eq=False)
class Guess:
    theta: Floats  # as PARAMETERS has them
    padding: int = 1
    terms: frozenset[str] = frozenset()  # of OPTIONAL, those that help
    left: float = np.inf  # mean size of what is left unexplained of single steps, relative to them


def first_guess(traces: Sequence[MeasuredTrace], mixed: bool = True) -> Guess:
    """`mixed`: prompts are read in the steps of those that decode, and not while these stand still; then gaps in which
    several came one after another are not looked at."""
    gaps = [trace.amounts() for trace in traces]
    single = [each[each[:, -1] <= 1] for each in gaps]
    if not mixed and sum(len(each) for each in single) >= LEAST_GAPS:
        gaps = single
    if sum(len(each) for each in gaps) >= LEAST_GAPS:
        padding, terms, hidden, left = _best_form(gaps, mixed)
        both = np.concatenate(gaps)
        costs = _costs(_amounts(both, padding, terms, hidden, mixed), both[:, 0])
        return Guess(_theta(traces, costs, hidden), padding, terms, left)
    rows = [_stretches(trace) for trace in traces]
    amounts, took = np.concatenate([each[0] for each in rows]), np.concatenate([each[1] for each in rows])
    return Guess(_theta(traces, np.append(_costs(amounts, took), 0.0)), 1, TERMS[1])


def _theta(traces: Sequence[MeasuredTrace], costs: Floats, hidden: int = 0) -> Floats:
    """Costs of a step, a sequence, a token in memory, one of a prompt, a pair of them, and a token with memory; as
    PARAMETERS has them. `hidden` tokens of a step cost nothing, because the weights must be read anyway."""
    several = max(float(np.quantile(trace.crowd, 0.95)) for trace in traces)
    step, sequence, context, token, attention, packed = costs
    ttft, prompt = (
        np.concatenate([getattr(trace, name)[trace.used & (trace.came > 0)] for trace in traces])
        for name in ("ttft_s", "prompt")
    )
    if token + attention + packed <= 0:  # by the shortest waits
        token = max(float(np.quantile((ttft - step) / prompt, 0.25)), 1e-3 * step / float(prompt.mean()))
    floor = min(step, token * hidden)
    if not hidden and token > sequence:  # at least those that decode
        floor = min(step, token * several)
    elif not hidden:
        sequence -= token
    overhead = max(float(np.quantile(ttft - step - token * prompt - attention * prompt**2 / 2, 0.1)), 0.0)
    guess = {"overhead": overhead, "fixed": step - floor, "floor": floor, "token": token, "context": context}
    guess |= {"attention": attention, "sequence": sequence, "packed": packed}
    return np.array([guess[name] for name in PARAMETERS])


def _best_form(gaps: Sequence[Floats], mixed: bool) -> tuple[int, frozenset[str], int, float]:
    """Padding, terms and hidden tokens by what explains the second half of each run, and what they leave of it."""
    halves = [np.split(each, [len(each) // 2]) for each in gaps]
    early, late = (np.concatenate(each) for each in zip(*halves, strict=True))
    best = (1, TERMS[1], 0)

    def left(padding: int, terms: frozenset[str], hidden: int) -> float:
        costs = _costs(_amounts(early, padding, terms, hidden, mixed), early[:, 0])
        off = np.log(np.maximum(_amounts(late, padding, terms, hidden, mixed) @ costs, 1e-12) / late[:, 0])
        return float(np.mean(np.minimum(abs(off), 1.0)))

    least = left(*best)
    for stage in range(3):  # what is hidden, then the form, then what is hidden in that form
        hidden = [(*best[:2], each) for each in HIDDEN]
        others = [(padding, terms, best[2]) for padding in PADDINGS for terms in TERMS]
        for form in others if stage == 1 else hidden:
            reached = left(*form)
            if reached < min(GAIN * least, least - NEGLIGIBLE):
                best, least = form, reached
    return *best, least


def _amounts(gaps: Floats, padding: int, terms: frozenset[str], hidden: int, mixed: bool) -> Floats:
    _, several, memory, tokens, pairs = gaps.T[:5]
    if padding > 1:
        memory = np.ceil(np.maximum(memory + tokens, 1) / padding) * padding
    both = (several + tokens) * (memory if padding > 1 else memory + tokens)
    steps = np.ones(len(gaps)) if mixed else 1.0 + (tokens > 0)
    if hidden:
        tokens = np.maximum((several if mixed else 0.0) + tokens - hidden, 0.0)
    columns = [steps, several, memory, tokens, pairs * ("attention" in terms), both * ("packed" in terms)]
    return np.column_stack(columns)


def _stretches(trace: MeasuredTrace) -> tuple[Floats, Floats]:
    """Of each request that decodes for a while: steps, sequences, contexts, prompt tokens, pairs of them; its time."""
    long = np.flatnonzero(trace.used & (trace.came > LEAST_STEPS) & (trace.last_s > trace.first_s))
    long = long[:: max(1, len(long) // MOST)]
    first, last = np.nan_to_num(trace.first_s, nan=np.inf), np.nan_to_num(trace.last_s, nan=np.inf)
    came, order = trace.came, np.argsort(first)
    tokens, pairs = (np.concatenate([[0.0], np.cumsum(each[order])]) for each in trace.to_read)
    length = np.maximum(last - first, 1e-9)
    found = np.empty((len(long), 5))
    for row, i in enumerate(long):
        begin, end = np.maximum(first, first[i]), np.minimum(last, last[i])
        share = np.maximum(end - begin, 0.0) / (last[i] - first[i])
        middle = np.clip(((begin + end) / 2 - first) / length, 0.0, 1.0)
        steps = came[i] - 1
        low, high = np.searchsorted(first[order], [first[i], last[i]], "right")
        memory = np.sum(share * (trace.prompt + came * middle))
        found[row] = steps, steps * np.sum(share), steps * memory, tokens[high] - tokens[low], pairs[high] - pairs[low]
    return found, last[long] - first[long]


def _costs(amounts: Floats, took: Floats) -> Floats:
    """None below zero, and least absolute log(sum / took), nearly: squares, weighed anew by what is left."""
    units = np.maximum((amounts / took[:, None]).mean(axis=0), 1e-300)
    scaled = amounts / units
    found = np.full(amounts.shape[1], 1.0 / amounts.shape[1])
    for _ in range(30):
        made = np.maximum(scaled @ found, 1e-3 * took)
        size = np.sqrt(made * took)
        rows, weights = scaled / size[:, None], 1 / np.maximum(abs(made - took) / size, 0.01)
        normal = (rows * weights[:, None]).T @ rows
        found = bounded(normal, (rows * (weights * took / size)[:, None]).sum(axis=0), np.zeros(len(found)))
    return np.asarray(found / units, np.float64)
