"""Step times straight from the records, without a simulation.

The time between two tokens of a request is a step. How many sequences decode meanwhile, how much they hold in memory
and which prompts are read is known from the other requests, so a step is a sum of costs times known amounts. Where only
first and last tokens are known, the steps of a request are taken together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openloop.calibrate.match import PARAMETERS
from openloop.calibrate.trace import Trace

__all__ = ["OPTIONAL", "TERMS", "Guess", "first_guess", "guess_again"]

Floats = NDArray[np.float64]

MOST = 1500  # stretches of a run: more tell no more
LEAST_STEPS = 4
LEAST_GAPS = 200
PADDINGS = (1, *(1 << n for n in range(10, 17)))
OPTIONAL = ("attention", "packed")  # either: the second has the pairs of the first
TERMS = (frozenset[str](), frozenset({"attention"}), frozenset({"packed"}))
GAIN = 0.95  # a padding or an optional term must lower what is left of the second half to this share


@dataclass(frozen=True, eq=False)
class Guess:
    theta: Floats  # as PARAMETERS has them
    padding: int = 1
    terms: frozenset[str] = frozenset()  # of OPTIONAL, those that help
    left: float = np.inf  # mean size of what is left unexplained of single steps, relative to them


def first_guess(traces: Sequence[Trace]) -> Guess:
    gaps = [trace.amounts() for trace in traces]
    if sum(len(each) for each in gaps) >= LEAST_GAPS:
        padding, terms, left = _best_form(gaps)
        both = np.concatenate(gaps)
        costs = _costs(_amounts(both, padding, terms), both[:, 0])
        return Guess(_theta(traces, costs), padding, terms, left)
    rows = [_stretches(trace) for trace in traces]
    amounts, took = np.concatenate([each[0] for each in rows]), np.concatenate([each[1] for each in rows])
    return Guess(_theta(traces, np.append(_costs(amounts, took), 0.0)), 1, TERMS[1])


def guess_again(traces: Sequence[Trace], found: Guess, counts: Sequence[Floats]) -> Floats:
    """The values if the blocks of each run, of equal numbers of gaps, had been there so many times."""
    parts = []
    for trace, each in zip(traces, counts, strict=True):
        gaps = trace.amounts()
        times = each[np.arange(len(gaps)) * len(each) // max(len(gaps), 1)]
        parts.append(np.repeat(gaps, times.astype(np.int64), axis=0))
    both = np.concatenate(parts)
    return _theta(traces, _costs(_amounts(both, found.padding, found.terms), both[:, 0]))


def _theta(traces: Sequence[Trace], costs: Floats) -> Floats:
    """Costs of a step, a sequence, a token in memory, one of a prompt, a pair of them, and a token with memory; as
    PARAMETERS has them."""
    several = max(float(np.quantile(trace.crowd, 0.95)) for trace in traces)
    step, sequence, context, token, attention, packed = costs
    ttft, prompt = (
        np.concatenate([getattr(trace, name)[trace.used & (trace.came > 0)] for trace in traces])
        for name in ("ttft_s", "prompt")
    )
    if token + attention + packed <= 0:  # by the shortest waits
        token = max(float(np.quantile((ttft - step) / prompt, 0.25)), 1e-3 * step / float(prompt.mean()))
    floor = 0.0
    if token > sequence:  # as if tokens of decoding were free: hidden behind reading the weights
        floor = min(step, token * several)
    else:
        sequence -= token
    overhead = max(float(np.quantile(ttft - step - token * prompt - attention * prompt**2 / 2, 0.1)), 0.0)
    guess = {"overhead": overhead, "fixed": step - floor, "floor": floor, "token": token, "context": context}
    guess |= {"attention": attention, "sequence": sequence, "packed": packed}
    return np.array([guess[name] for name in PARAMETERS])


def _best_form(gaps: Sequence[Floats]) -> tuple[int, frozenset[str], float]:
    """Padding and terms by what explains the second half of each run, and what they leave of it."""
    early, late = (np.concatenate([each[part(len(each))] for each in gaps]) for part in (_first_half, _second_half))
    best, best_left = (1, TERMS[0]), np.inf
    for padding in PADDINGS:
        for terms in TERMS:
            costs = _costs(_amounts(early, padding, terms), early[:, 0])
            left = float(np.mean(np.minimum(abs(_amounts(late, padding, terms) @ costs / late[:, 0] - 1), 1.0)))
            if left < (1.0 if best_left == np.inf else GAIN) * best_left:
                best, best_left = (padding, terms), left
    return *best, best_left


def _first_half(count: int) -> slice:
    return slice(0, count // 2)


def _second_half(count: int) -> slice:
    return slice(count // 2, count)


def _amounts(gaps: Floats, padding: int, terms: frozenset[str]) -> Floats:
    _, several, memory, tokens, pairs = gaps.T
    if padding > 1:
        memory = np.ceil(np.maximum(memory + tokens, 1) / padding) * padding
    both = (several + tokens) * (memory if padding > 1 else memory + tokens)
    columns = [np.ones(len(gaps)), several, memory, tokens, pairs * ("attention" in terms), both * ("packed" in terms)]
    return np.column_stack(columns)


def _stretches(trace: Trace) -> tuple[Floats, Floats]:
    """Of each request that decodes for a while: steps, sequences, contexts, prompt tokens, pairs of them; and its time."""
    long = np.flatnonzero(trace.used & (trace.came > LEAST_STEPS) & (trace.last_s > trace.first_s))
    long = long[:: max(1, len(long) // MOST)]
    first, last = np.nan_to_num(trace.first_s, nan=np.inf), np.nan_to_num(trace.last_s, nan=np.inf)
    came, prompt, cached = trace.came, trace.prompt.astype(np.float64), trace.cached.astype(np.float64)
    order = np.argsort(first)
    tokens, pairs = (
        np.concatenate([[0.0], np.cumsum(each[order])]) for each in (prompt - cached, (prompt**2 - cached**2) / 2)
    )
    length = np.maximum(last - first, 1e-9)
    found = np.empty((len(long), 5))
    for row, i in enumerate(long):
        begin, end = np.maximum(first, first[i]), np.minimum(last, last[i])
        share = np.maximum(end - begin, 0.0) / (last[i] - first[i])
        middle = np.clip(((begin + end) / 2 - first) / length, 0.0, 1.0)
        steps = came[i] - 1
        low, high = np.searchsorted(first[order], [first[i], last[i]], "right")
        memory = np.sum(share * (prompt + came * middle))
        found[row] = steps, steps * np.sum(share), steps * memory, tokens[high] - tokens[low], pairs[high] - pairs[low]
    return found, last[long] - first[long]


def _costs(amounts: Floats, took: Floats) -> Floats:
    """Least absolute deviations relative to `took`, none below zero: squares, weighed anew by what is left."""
    scaled = amounts / took[:, None]
    units = np.maximum(scaled.mean(axis=0), 1e-300)
    scaled = scaled / units
    found = np.full(amounts.shape[1], 1.0 / amounts.shape[1])
    weights = np.ones(len(took))
    for _ in range(15):
        normal = (scaled * weights[:, None]).T @ scaled
        aims = (scaled * weights[:, None]).sum(axis=0)
        for _ in range(60):
            for k in range(len(found)):
                rest = aims[k] - normal[k] @ found + normal[k, k] * found[k]
                found[k] = max(rest / max(normal[k, k], 1e-300), 0.0)
        weights = 1 / np.maximum(abs(scaled @ found - 1), 0.02)
    return np.asarray(found / units, np.float64)
