"""Whether a run settled: how much of its start to leave out, and whether its backlog grew without end."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openloop.records import MISSING, Run, ints

__all__ = ["Flow", "flow_of", "growth", "warm_up"]

Floats = NDArray[np.float64]

SLICES = 20  # of a run, by schedule time
STEPS = 10  # of the second half, in which the backlog is watched
SIGMAS = 3.25  # Student's t with 9 degrees: one in two hundred by chance
LEAST_SHARE = 0.05  # of arrivals that must be left over
LEAST_DUE = 50
QUICK_SHARE = 0.1  # of requests that must have left within this share of the time: else it is still filling


@dataclass(frozen=True)
class Flow:
    """Who came and who left, in seconds from the start of the run: `due_s` in order, `left_s` infinite if never."""

    due_s: Floats
    left_s: Floats


def flow_of(run: Run) -> Flow:
    """By attempt: what is tried again comes again."""
    columns = [run.batches(["scheduled_ns", "ended_ns"], rows=100_000)]
    rows = [(ints(batch, "scheduled_ns"), ints(batch, "ended_ns")) for each in columns for batch in each]
    due, left = (np.concatenate([row[place] for row in rows]) for place in (0, 1))
    order = np.argsort(due, kind="stable")
    return Flow(due[order] / 1e9, np.where(left == MISSING, np.inf, left / 1e9)[order])


def warm_up(flow: Flow, end_s: float) -> float:
    """Seconds at the start to leave out: slices whose mean stay lies outside of whatever the second half shows.

    An empty system is quicker than it will be, a cold one slower; at most the first half is left out.
    """
    inside = flow.due_s < end_s
    stay = np.minimum(flow.left_s, end_s)[inside] - flow.due_s[inside]
    place = np.minimum((flow.due_s[inside] / end_s * SLICES).astype(int), SLICES - 1)
    counts = np.bincount(place, minlength=SLICES)
    means = np.bincount(place, stay, SLICES) / np.maximum(counts, 1)
    later = means[SLICES // 2 :][counts[SLICES // 2 :] > 0]
    if not len(later):
        return 0.0
    settled = (means >= later.min()) & (means <= later.max())
    return float(np.argmax([*settled[: SLICES // 2], True])) / SLICES * end_s


def growth(flow: Flow, now_s: float) -> float:
    """By how many requests per second the backlog grows; 0.0 where that may be chance.

    The second half of the time so far is cut into steps. In a steady state what a step adds another takes away, so the
    mean of what they add is compared with how much it varies.
    """
    edges = np.linspace(now_s / 2, now_s, STEPS + 1)
    due, left = np.searchsorted(flow.due_s, edges), np.searchsorted(np.sort(flow.left_s), edges)
    added = np.diff(due - left)
    gone = (flow.left_s <= now_s) & (flow.due_s <= now_s)
    quick = gone.any() and np.quantile((flow.left_s - flow.due_s)[gone], QUICK_SHARE) <= QUICK_SHARE * now_s
    stuck = not gone.any() and due[-1] >= 2 * LEAST_DUE
    material = added.sum() >= max(LEAST_SHARE * (due[-1] - due[0]), 1) and due[-1] >= LEAST_DUE
    sure = added.mean() > SIGMAS * added.std(ddof=1) / np.sqrt(STEPS)
    return float(added.sum() / (now_s / 2)) if (quick or stuck) and material and sure else 0.0
