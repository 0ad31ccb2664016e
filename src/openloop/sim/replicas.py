"""From a demand and a fleet of modelled replicas to what their users got."""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from openloop.sim import core

__all__ = ["Outcome", "run_replicas", "token_times", "tokens_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of the requests of a demand, by replicas that ran in steps."""

    q: Ints
    x: Floats
    f: Ints
    y: Floats
    segments: tuple[Ints, Ints, Floats, Ints, Ints]  # request, replica, first_s, step, steps; by request
    clock: tuple[Ints, Ints, Floats, Floats, Floats]  # replica, step, start_s, base_s, slope_s; by replica


def run_replicas(
    q: Ints, x: Floats, f: Ints, y: Floats, hashes: Ints | None = None, *, routing: int = 0, stop_s: float = np.inf
) -> Outcome:
    fleet, widest, size = len(f), int(f[:, core.SEQUENCES].max()), int(f[:, core.SIZE].max())
    hashes = np.empty(0, np.int64) if hashes is None else hashes
    known = int(f[:, core.BLOCKS].max()) if len(hashes) else 1
    cache = np.full((fleet, known, core.CACHE_INTS), -1)
    cache[:, :, core.SPARE] = np.arange(known)
    cache[:, :, core.USERS] = 0
    f[:, core.SPARES] = known
    head = np.full((fleet, 2 * known), -1)
    lists = [np.zeros((fleet, widest), np.int64) for _ in range(2)]
    clock, before = core.serve(
        q, x, f, y, lists[0], lists[1], np.zeros((fleet, size), np.int64), hashes, cache, head, routing, stop_s
    )
    for r in range(fleet):  # those that still decode when it is time to stop
        mine = lists[0][r, : f[r, core.RUNNING]]
        q[mine, core.RAN] = f[r, core.STEP] - q[mine, core.BEGIN]
    by_replica = np.argsort(clock[0], kind="stable") if fleet > 1 else slice(None)
    ordered = tuple(column[by_replica] for column in clock)
    return Outcome(q, x, f, y, _segments(q, x, before), ordered)


def _segments(q: Ints, x: Floats, before: Any) -> tuple[Ints, Ints, Floats, Ints, Ints]:
    """All of them, those of a request in their order."""
    mine = np.flatnonzero((q[:, core.REPLICA] >= 0) & (q[:, core.STATUS] != core.SHED))
    last = (mine, q[mine, core.REPLICA], x[mine, core.FIRST_TOKEN], q[mine, core.FROM], q[mine, core.RAN])
    if not len(before[0]):
        return last
    joined = tuple(np.concatenate(pair) for pair in zip(before, last, strict=True))
    order = np.argsort(joined[0], kind="stable")
    return tuple(column[order] for column in joined)  # type: ignore[return-value]


def token_times(outcome: Outcome) -> tuple[Floats, Ints]:
    """When tokens came, all requests end to end, and how many times each has."""
    request, replica, first, step, steps = outcome.segments
    counts = steps + ~np.isnan(first)
    totals = np.bincount(request, counts, len(outcome.q)).astype(np.int64)
    places = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.empty(0, np.int64)
    run_replica, run_step, start, base, slope = outcome.clock
    edges = np.searchsorted(run_replica, np.arange(len(outcome.f) + 1))
    times = np.empty(int(totals.sum()))
    _read_clock(replica, first, step, steps, places, edges, run_step, start, base, slope, times)
    return times, totals


def tokens_of(outcome: Outcome) -> Ints | None:
    """How many tokens came each time; None: one. In the n-th step of a segment floor(n * gain) have come."""
    request, replica, first, _, steps = outcome.segments
    gain = outcome.y[:, core.GAIN]
    if np.all(gain == 1.0):
        return None
    has_first = ~np.isnan(first)
    counts = steps + has_first
    step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(1 - has_first, counts)
    each = np.repeat(gain[replica], counts)
    made = np.floor(step * each + 1e-9) - np.floor((step - 1) * each + 1e-9)
    made = np.where(step == 0, 1, made).astype(np.int64)
    owner = np.repeat(request, counts)
    so_far = np.cumsum(made)
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    so_far -= np.repeat((so_far - made)[starts], np.diff(starts, append=len(owner)))
    return np.minimum(so_far, outcome.q[owner, core.OUTPUT]) - np.minimum(so_far - made, outcome.q[owner, core.OUTPUT])


@numba.njit(cache=True)
def _read_clock(
    replica: Any, first: Any, step: Any, steps: Any, places: Any, edges: Any, run_step: Any, start: Any, base: Any,
    slope: Any, times: Any,
) -> None:  # fmt: skip
    for n in range(len(replica)):
        place = places[n]
        if first[n] == first[n]:  # it is no NaN
            times[place] = first[n]
            place += 1
        low, high = edges[replica[n]], edges[replica[n] + 1]
        run, above = low, high  # the last that begins at this step or before
        while above - run > 1:
            middle = (run + above) // 2
            if run_step[middle] <= step[n]:
                run = middle
            else:
                above = middle
        at, end = step[n], step[n] + steps[n]
        while at < end:
            last = min(run_step[run + 1], end) if run + 1 < high else end
            began, each, more = start[run], base[run], slope[run]
            j = at - run_step[run]
            for _ in range(last - at):
                j += 1
                times[place] = began + j * each + more * (j * (j - 1) / 2)
                place += 1
            at = last
            run += 1
