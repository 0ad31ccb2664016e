"""What a workload is, in numbers, before anything is sent."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openloop.arrays import Ints
from openloop.workload.demand import ASSISTANT, Demand

Hashes = NDArray[np.uint64]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Description:
    """`reuse` is the share of prompt tokens that a prefix cache without limits would know."""

    requests: int
    scheduled: int  # those whose time is known beforehand
    sessions: int
    classes: dict[str, int]
    tenants: int
    span_s: float
    rate: float
    gaps_cv: float
    dispersion: float  # of the numbers in each second, variance over mean
    busiest_second: int
    prompt_tokens: dict[str, float]
    output_tokens: dict[str, float]
    reuse: float
    notes: tuple[str, ...]


def describe(demand: Demand, horizon_s: float) -> Description:
    due = demand.due_s[~np.isnan(demand.due_s)]
    gaps = np.diff(np.sort(due))
    counts = np.bincount(due.astype(int), minlength=max(int(horizon_s), 1))
    prompts = demand.prompt_tokens
    codes = demand.workload_class
    return Description(
        len(demand),
        len(due),
        0 if demand.session is None else len(np.unique(demand.session[demand.session >= 0])),
        {} if codes is None else {name: int(np.sum(codes == place)) for place, name in enumerate(demand.classes)},
        0 if demand.tenant is None else len(np.unique(demand.tenant[demand.tenant >= 0])),
        horizon_s,
        len(due) / horizon_s,
        float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else float("nan"),
        float(counts.var() / counts.mean()) if counts.mean() > 0 else float("nan"),
        int(counts.max()),
        _percentiles(prompts),
        _percentiles(demand.output_tokens),
        float(known_tokens(demand).sum() / max(prompts.sum(), 1)),
        demand.notes,
    )


def _percentiles(values: Ints) -> dict[str, float]:
    names = {"p1": 1, "p10": 10, "p50": 50, "p90": 90, "p99": 99}
    found = {name: float(np.percentile(values, at)) for name, at in names.items()}
    return {"mean": float(values.mean()), **found, "max": float(values.max())}


def chains(demand: Demand) -> Hashes:
    """Of each piece a number for it and all before it in its prompt: where it is the same, so is the text so far."""
    pieces = demand.pieces
    lengths = np.diff(pieces.starts)
    chain = np.zeros(len(demand), np.uint64)
    hashes = np.zeros(len(pieces.identity), np.uint64)
    with np.errstate(over="ignore"):
        for level in range(int(lengths.max(initial=0))):
            mine = np.flatnonzero(lengths > level)
            at = pieces.starts[mine] + level
            chain[mine] = _mixed(chain[mine], pieces.identity[at], pieces.tokens[at])
            hashes[at] = chain[mine]
    return hashes


def known_tokens(demand: Demand) -> Ints:
    """How much of each prompt, from its start, was in a prompt or an answer before it."""
    pieces, hashes = demand.pieces, chains(demand)
    _, firsts, which = np.unique(hashes, return_index=True, return_inverse=True)
    owner = pieces.owner
    known = owner[firsts][which] < owner
    made = np.isin(pieces.identity, () if demand.answer is None else demand.answer)  # by whoever was asked
    answers = np.flatnonzero((pieces.role == ASSISTANT) & made & ~known)
    known[answers] = known[answers - 1]
    tokens = np.where(known, pieces.tokens, 0)
    found: Ints = np.add.reduceat(np.append(tokens, 0), pieces.starts[:-1])
    return found


def _mixed(chain: Hashes, identity: Ints, tokens: Ints) -> Hashes:
    value = (chain ^ identity.astype(np.uint64)) * MULTIPLIER + tokens.astype(np.uint64)
    value = (value ^ (value >> np.uint64(29))) * MULTIPLIER
    return value ^ (value >> np.uint64(32))
