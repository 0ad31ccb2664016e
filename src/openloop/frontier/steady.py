"""Whether a run settled: how much of its start to leave out, and whether its backlog grew without end."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from openloop.arrays import Floats, Ints
from openloop.errors import SpecError
from openloop.load.conductor import Snapshot
from openloop.records import MISSING, Run, ints
from openloop.units import NS_PER_S, format_seconds, to_ns

BLOCKS = 20  # of a run, by schedule time
GRID = 40  # moments at which a backlog is looked at
STEPS = 10  # in which its growth is watched
CHECKS = 8  # of a live backlog, in the time of a run; the first two parts are too early to tell
LEAST_BLOCKS = 2
SIGMAS = 2.6  # of the mean: one in a hundred by chance, if backlogs were aimless
LEAST_SHARE = 0.01  # of arrivals that must be left over
LEAST_DUE = 50
QUICK_SHARE = 0.1  # of requests, which must have left
FILLED_SHARE = 0.15  # within so much of the time: else it is filling


@dataclass(frozen=True)
class Flow:
    """Who came and who left, in seconds from the start of the run: `due_s` in order, `left_s` infinite if never."""

    due_s: Floats
    left_s: Floats


def flow_of(run: Run) -> Flow:
    """By attempt: what is tried again comes again."""
    names = ("scheduled_ns", "ended_ns")
    rows = [[ints(batch, name) for name in names] for batch in run.batches(names, rows=100_000)]
    due, left = (np.concatenate([np.empty(0, np.int64), *(row[place] for row in rows)]) for place in (0, 1))
    order = np.argsort(due, kind="stable")
    return Flow(due[order] / 1e9, np.where(left == MISSING, np.inf, left / 1e9)[order])


def warm_up(flow: Flow, end_s: float) -> float:
    """Seconds at the start to leave out: a tenth, and blocks whose mean stay is not like any of the second half.

    An empty system is quicker than it will be, a cold one slower; at most half of the run is left out.
    """
    inside = flow.due_s < end_s
    stay = np.where(np.isfinite(flow.left_s), flow.left_s, end_s)[inside] - flow.due_s[inside]
    place = np.minimum((flow.due_s[inside] / end_s * BLOCKS).astype(int), BLOCKS - 1)
    counts = np.bincount(place, minlength=BLOCKS)
    means = np.bincount(place, stay, BLOCKS) / np.maximum(counts, 1)
    half = BLOCKS // 2
    later = means[half:][counts[half:] > 0]
    settled = (means >= later.min()) & (means <= later.max()) if len(later) else np.ones(BLOCKS, bool)
    first = int(np.argmax([*settled[:half], True]))
    return max(first, LEAST_BLOCKS) / BLOCKS * end_s


def settled_from(run: Run, flow: Flow, end_s: float) -> float:
    """From when to measure: after the warm-up of its window, and no later than its first event, which is none of it."""
    start_s = run.manifest.window_ns[0] / 1e9 if run.manifest.window_ns else 0.0
    later = flow.due_s >= start_s
    found = start_s + warm_up(Flow(flow.due_s[later] - start_s, flow.left_s[later] - start_s), end_s - start_s)
    events = [event.at_ns / 1e9 for event in run.manifest.events if event.at_ns / 1e9 < end_s]
    return min([found, *(max(at, start_s) for at in events)])


def after_warm_up(run: Run, warm_up_s: float | None = None) -> Run:
    """What was due after the first so many seconds of the window; None: after as many as it takes to settle."""
    start, end = run.manifest.window_ns or (0, 0)
    if warm_up_s is None:
        warm_up_s = settled_from(run, flow_of(run), end / NS_PER_S) - start / NS_PER_S if end else 0.0
    if not 0 <= to_ns(warm_up_s) < end - start:
        told = f"its window is {format_seconds((end - start) / NS_PER_S)} long" if end else "it has no window"
        raise SpecError(f"{run.path or 'the run'} cannot do without its first {format_seconds(warm_up_s)}: {told}")
    note = f"warm-up: the first {format_seconds(warm_up_s)} of the window are left out"
    promised = None if run.manifest.arrivals_cv is None else run.manifest.offered_rps  # unless rates change
    kept = {"window_ns": (start + to_ns(warm_up_s), end), "notes": (*run.manifest.notes, note), "offered_rps": promised}
    return replace(run, manifest=msgspec.structs.replace(run.manifest, **kept))


def growth(flow: Flow, now_s: float) -> float:
    """By how many requests per second the backlog grows; 0.0 where that may be chance."""
    edges = np.linspace(0.0, now_s, GRID + 1)
    due, left = np.searchsorted(flow.due_s, edges), np.searchsorted(np.sort(flow.left_s), edges)
    gone = flow.left_s <= now_s
    return _backlog_growth(due, left, now_s, (flow.left_s - flow.due_s)[gone])


def _backlog_growth(due: Ints, left: Ints, now_s: float, stays_s: Floats) -> float:
    """The same from how many had come and left at GRID + 1 equally spaced moments.

    All but the first quarter is cut into steps. In a steady state what a step adds another takes away, so the mean of
    what they add is compared with how much it varies. A system that is still filling grows too: where not even the
    quickest tenth of the requests was quick against the time so far, nothing is said.
    """
    steps = (due - left)[GRID // 4 :: GRID * 3 // 4 // STEPS]
    added = np.diff(steps)
    came = int(due[-1] - due[GRID // 4])
    quick_s = float(np.quantile(stays_s, QUICK_SHARE)) if len(stays_s) else np.inf
    filling = quick_s > FILLED_SHARE * now_s
    material = added.sum() >= max(LEAST_SHARE * came, 1) and due[-1] >= LEAST_DUE
    sure = added.mean() > SIGMAS * added.std(ddof=1) / np.sqrt(STEPS)
    return float(added.sum() / (0.75 * now_s)) if material and sure and not filling else 0.0


class BacklogWatch:
    """Watches a live run, and ends it when its backlog grows beyond chance.

    Where this machine is busy, answers are read long after they came: so who had left when is known only up to when
    all that came is read, or to the end of the last answer that was, and the backlog is looked at up to there.
    """

    def __init__(self, seconds: float, view: Callable[[Snapshot], None] | None) -> None:
        self.seconds, self.view = seconds, view
        self.due = [(0.0, 0)]  # by when, how many
        self.left = [(0.0, 0)]
        self.stays_s: list[float] = []
        self.next_s = 2 * seconds / CHECKS

    def __call__(self, now: Snapshot) -> str | None:
        if self.view is not None:
            self.view(now)
        ended = [(row.due_ns, row.ended_ns) for row in now.finished if row.ended_ns is not None]
        self.stays_s += [(end - due) / 1e9 for due, end in ended]
        known_s = max([self.left[-1][0], now.read_s, *(end / 1e9 for _, end in ended)])
        if now.seconds > 0:
            self.due.append((now.seconds, now.due))
            self.left.append((known_s, now.due - now.in_flight))
        if not self.next_s <= known_s or now.seconds >= self.seconds:
            return None
        self.next_s += self.seconds / CHECKS
        edges = np.linspace(0.0, known_s, GRID + 1)
        came, gone = (np.rint(np.interp(edges, *np.array(each).T)).astype(np.int64) for each in (self.due, self.left))
        rate = _backlog_growth(came, gone, known_s, np.array(self.stays_s))
        return ended_early(now.seconds, self.seconds, rate) if rate else None


def ended_early(after_s: float, of_s: float, rate: float) -> str:
    return (
        f"ended after {format_seconds(after_s)} of {format_seconds(of_s)}: overloaded, "
        f"the backlog grows by {rate:.3g} requests per second"
    )
