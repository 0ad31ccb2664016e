"""The same requests at the same times through a modelled replica, and how far its times are from the measured ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openloop.arrays import Bools, Floats
from openloop.calibrate.trace import MeasuredTrace
from openloop.errors import SpecError
from openloop.sim.fleet import FleetSpec, engine_of
from openloop.sim.spec import MOST_BLOCKS
from openloop.sim.steps import StepTime
from openloop.spec import suggest
from openloop.workload import Demand
from openloop.workload.demand import Pieces, one_piece

PARAMETERS = ("overhead", *StepTime.__dataclass_fields__)  # seconds, none below zero
UNLIMITED = 1 << 34
MANY = 1024  # sequences
LEAST_SCALE = 0.02  # of a residual: what is nearer counts as equally near
HUBER = 1.5  # scales: from there on a residual counts by its size and not by its square
MOST_SCALE = 0.1  # and what is further off is not yet at its place
WEIGHTS = {"ttft": 1.0, "tpot": 1.0, "gap": 0.25, "step": 1.0}


@dataclass(frozen=True)
class BatchLimits:
    """What is not a time: how a batch is put together, and what fits into it."""

    batching: str = "chunked"
    max_tokens: int = 2048
    max_sequences: int | None = None  # None: more than there ever were
    memory_tokens: int | None = None
    padding: int = 1

    def __str__(self) -> str:
        parts = [self.batching, f"{self.max_tokens:,} tokens a step"]
        parts += [] if self.max_sequences is None else [f"{self.max_sequences:,} sequences"]
        parts += [] if self.memory_tokens is None else [f"memory for {self.memory_tokens:,} tokens"]
        parts += [] if self.padding == 1 else [f"padded to {self.padding:,}"]
        return ", ".join(parts)


def read_known(text: str) -> tuple[BatchLimits, frozenset[str]]:
    """`batching=chunked,max_tokens=2048` as limits, and which of them are given."""
    given: dict[str, Any] = {}
    names = list(BatchLimits.__dataclass_fields__)
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, value = (side.strip() for side in (each.partition("=")[::2]))
        if name not in names:
            raise SpecError(f"{name!r} is no limit that can be known{suggest(name, names)}")
        if name != "batching" and not (value.isdecimal() and len(value) < 16 and 0 < int(value) <= UNLIMITED):
            raise SpecError(f"{each!r}: {name} is a number of tokens or sequences, as {name}=2048")
        if name == "batching" and value not in ("chunked", "prefill-first", "static"):
            raise SpecError(f"{each!r}: batching is chunked, prefill-first or static")
        given[name] = value if name == "batching" else int(value)
    return BatchLimits(**given), frozenset(given)


@dataclass(frozen=True, eq=False)
class Seen:
    """Times by request, of a trace or of its replay."""

    ttft: Floats
    tpot: Floats
    gap: Floats


def enough_memory(traces: Sequence[MeasuredTrace]) -> int | None:
    """Tokens that no trace fills, where prompts were cached: a cache has an entry for each block."""
    if not any(bool(np.any(trace.cached > 0)) for trace in traces):
        return None
    longest = max(int((trace.prompt + trace.output).max()) for trace in traces)
    return min(2 * MANY * longest, MOST_BLOCKS * FleetSpec().block // max(trace.replicas for trace in traces))


class TraceReplay:
    """A trace, ready to be served by any replica."""

    def __init__(self, trace: MeasuredTrace) -> None:
        self.trace = trace
        self.demand = Demand(trace.sent_s - trace.sent_s[0], _pieces(trace), trace.output)
        longest = int((trace.prompt + trace.output).max())
        self.least_memory, self.endless = 2 * longest, enough_memory([trace]) or UNLIMITED
        self.amounts = trace.amounts()
        self.seen = Seen(trace.ttft_s, trace.tpot_s, trace.gap_s)

    def serve(self, limits: BatchLimits, theta: Floats) -> Seen:
        """`theta` as PARAMETERS has it."""
        fleet = FleetSpec(
            replicas=self.trace.replicas, model="8b", gpu="h100", batching=limits.batching,
            max_tokens=limits.max_tokens, max_sequences=limits.max_sequences or MANY, padding=limits.padding,
            memory_tokens=max(limits.memory_tokens or self.endless, self.least_memory),
        )  # fmt: skip
        engine = engine_of(fleet, self.demand)
        reps = engine.replicas
        for name, value in zip(StepTime.__dataclass_fields__, theta[1:], strict=True):
            reps["reading" if name == "context" else name] = value
        first, last, gap = (np.full(len(self.trace), np.nan) for _ in range(3))
        came = np.maximum(self.trace.came, 1)  # so many tokens of each
        for served in engine.run():
            some = served.counts > 0
            if not some.any():
                continue
            who, counts = served.rows.request[some], served.counts[some]
            begin, times = np.cumsum(counts) - counts, served.times / 1e9
            first[who], last[who] = times[begin], times[begin + np.minimum(came[who], counts) - 1]
            gaps = np.diff(times, prepend=times[:1])
            gaps[begin] = 0.0
            place = np.arange(len(times)) - np.repeat(begin, counts)
            gaps[place >= np.repeat(came[who], counts)] = 0.0
            gap[who] = np.maximum.reduceat(gaps, begin)
        ttft = first - self.demand.due_s + float(theta[0])
        return Seen(ttft, np.where(came > 1, (last - first) / np.maximum(came - 1, 1), np.nan), gap)

    def whole_times(self, found: Seen) -> Floats:
        """TTFT, TPOT and E2E of the requests that tell them."""
        e2e = found.ttft + np.nan_to_num(found.tpot) * (self.trace.came - 1)
        return np.stack([found.ttft, found.tpot, e2e])[:, self.trace.used & (self.trace.came > 1)]

    def steps(self, limits: BatchLimits, theta: Floats) -> Floats:
        """log(modelled / measured) of the steps that the gaps between tokens show; NaN where that is not known."""
        took, several, memory = self.amounts.T[:3]
        _, floor, token, context, attention, sequence, fixed, packed = theta
        tokens, pairs, known = self._read(limits)
        whole = memory + tokens
        if limits.padding > 1:
            memory = whole = np.ceil(whole / limits.padding) * limits.padding
        if limits.batching == "chunked":
            made = fixed + np.maximum(floor, token * (several + tokens)) + packed * (several + tokens) * whole
        else:  # steps of prompts, while the others stand still, and one of the others
            made = fixed + np.maximum(floor, token * several) + packed * several * memory
            last, full = tokens > 0, np.maximum(np.ceil(tokens / limits.max_tokens) - 1, 0)
            made += full * np.maximum(floor, token * limits.max_tokens) + (full + last) * (fixed + sequence)
            made += last * np.maximum(floor, token * (tokens - full * limits.max_tokens)) + packed * tokens**2
        found: Floats = np.log((made + context * memory + attention * pairs + sequence * several) / took)
        return np.where(known, found, np.nan)

    def _read(self, limits: BatchLimits) -> tuple[Floats, Floats, Bools]:
        """Tokens of prompts that were read in each gap, pairs of them, and whether that is known. What does not fit
        into one step is read in several: in full ones as long as somebody is not done, and then it is not known how
        much was left. Where the others stand still meanwhile, all of it is read in one gap."""
        _, several, memory, tokens, pairs, around, behind, left, done, moments = self.amounts.T
        if limits.batching != "chunked":
            return tokens, pairs, moments <= 1
        room = limits.max_tokens - several
        free = several + done < (limits.max_sequences or MANY)
        free &= memory + tokens + behind < (limits.memory_tokens or UNLIMITED)
        full = (behind > 0) & (around > room) & (room > 0) & free
        full &= left * room <= tokens + behind + 2 * room  # who waits longer waits for something else
        return np.where(full, room, tokens), np.where(full, room * behind / 2, pairs), full | (around <= room)


def _pieces(trace: MeasuredTrace) -> Pieces:
    """What was found in a cache is the beginning of one text that all share."""
    if not np.any(trace.cached > 0):
        return one_piece(trace.prompt)
    count = len(trace)
    own = one_piece(trace.prompt - trace.cached)
    block = 16
    return Pieces(
        2 * np.arange(count + 1),
        np.column_stack([np.where(trace.cached >= block, 1, -1), own.identity]).ravel(),
        np.column_stack([trace.cached, own.tokens]).ravel(),
        np.zeros(2 * count, np.int8),
    )


def residuals(
    replays: Sequence[TraceReplay], limits: BatchLimits, theta: Floats, alone: bool = False
) -> list[dict[str, Floats]]:
    """log(modelled / measured) of every request that counts, by run and kind; NaN where one is not known. `alone`: of
    single steps only, which needs no simulation."""
    found = []
    for replay in replays:
        if alone:
            unknown = np.full(len(replay.trace), np.nan)
            found.append({**dict.fromkeys(WEIGHTS, unknown), "step": replay.steps(limits, theta)})
            continue
        made = replay.serve(limits, theta)
        each, waited = {}, replay.trace.waited_s
        for name in ("ttft", "tpot", "gap"):
            with np.errstate(divide="ignore", invalid="ignore"):
                off = np.log(getattr(made, name) / getattr(replay.seen, name))
                if name == "ttft":  # who waited in vain would have waited at least so long
                    off = np.where(np.isnan(waited), off, np.minimum(np.log(made.ttft / waited), 0.0))
            each[name] = np.where(replay.trace.used & np.isfinite(off), off, np.nan)
        each["step"] = replay.steps(limits, theta)
        found.append(each)
    return found


def _flat(found: Sequence[dict[str, Floats]]) -> Floats:
    return np.concatenate([each[name] for each in found for name in WEIGHTS])


def _shares(found: Sequence[dict[str, Floats]], steps: float = 1.0) -> Floats:
    """How much each residual counts: runs alike, and kinds by WEIGHTS; single steps so many times that, and less where
    few of them are known."""
    parts = []
    for each in found:
        for name, weight in WEIGHTS.items():
            known = np.isfinite(each[name])
            weight *= steps * float(np.mean(known)) if name == "step" and len(known) else 1.0
            parts.append(np.where(known, weight / max(int(np.count_nonzero(known)), 1), 0.0))
    return np.concatenate(parts) / len(found)


def _scales(found: Sequence[dict[str, Floats]]) -> Floats:
    """The spread of each kind in each run."""
    parts = []
    for each in found:
        for name in WEIGHTS:
            known = each[name][np.isfinite(each[name])]
            spread = 1.4826 * float(np.median(abs(known))) if len(known) else 1.0
            parts.append(np.full(len(each[name]), min(max(spread, LEAST_SCALE), MOST_SCALE)))
    return np.concatenate(parts)


def _cost(off: Floats, scales: Floats, shares: Floats) -> float:
    """What a fit lowers: squares of small residuals, sizes of large ones, each in its scale."""
    size = abs(np.nan_to_num(off)) / scales
    return float(np.sum(shares * np.where(size < HUBER, size**2 / 2, HUBER * (size - HUBER / 2))))


def loss(found: Sequence[dict[str, Floats]]) -> float:
    """Mean size of a residual, large ones cut: what models are compared by."""
    off, shares = _flat(found), _shares(found)
    return float(np.sum(shares * np.minimum(abs(np.nan_to_num(off)), 1.0)) / np.sum(shares))


@dataclass(frozen=True, eq=False)
class Fitted:
    limits: BatchLimits
    theta: Floats
    loss: float
    jacobian: Floats  # of the residuals, end to end as `off` has them
    off: Floats
    weights: Floats
    units: Floats
    moving: Bools

    def solve(self, counts: Floats) -> Floats:
        """The parameters if each residual had counted so many times, as far as one step tells."""
        return _step(self.jacobian, self.off, self.weights * counts, self.theta, self.units, 1e-6, self.moving)


def fit(
    replays: Sequence[TraceReplay],
    limits: BatchLimits,
    start: Floats,
    turns: int,
    free: Sequence[bool],
    steps: float,
    alone: bool = False,
) -> Fitted:
    """Least squares with outliers held down, by Gauss-Newton steps among values that are not below zero. `alone`: of
    single steps only."""
    theta, units = start.copy(), _units(replays)
    moving, found = np.array(free), residuals(replays, limits, theta, alone)
    damping = 1e-3
    jacobian = weights = off = np.empty(0)
    for turn in range(turns + 1):
        off = _flat(found)
        scales, shares = _scales(found), _shares(found, steps)
        best = _cost(off, scales, shares)
        huber = np.minimum(1.0, HUBER * scales / np.maximum(abs(np.nan_to_num(off)), 1e-12))
        weights = shares * huber / scales**2  # nothing where a residual is not known, as the shares have it
        jacobian = np.zeros((len(off), len(theta)))
        for k in np.flatnonzero(moving):
            moved = theta.copy()
            moved[k] += max(0.03 * theta[k], units[k])
            change = _flat(residuals(replays, limits, moved, alone)) - off
            jacobian[:, k] = np.nan_to_num(change) / (moved[k] - theta[k])
        if turn == turns:
            break
        better = False
        for _ in range(4):
            tried = _step(jacobian, np.nan_to_num(off), weights, theta, np.maximum(theta, units), damping, moving)
            attempt = residuals(replays, limits, tried, alone)
            reached = _cost(_flat(attempt), scales, shares)
            if reached < best:
                gain = (best - reached) / best
                theta, found, best, better = tried, attempt, reached, gain > 1e-3
                damping = max(damping / 10, 1e-6)
                break
            damping *= 10
        if not better:
            turns = turn + 1
    return Fitted(limits, theta, loss(found), jacobian, np.nan_to_num(off), weights, np.maximum(theta, units), moving)


def _units(replays: Sequence[TraceReplay]) -> Floats:
    """A change of each parameter that matters little: one percent of a typical step, by what multiplies it."""
    traces = [replay.trace for replay in replays]
    step = float(np.nanmedian(np.concatenate([trace.tpot_s[trace.used] for trace in traces])))
    prompt = float(np.mean(np.concatenate([trace.prompt for trace in traces])))
    crowds = float(np.mean([max(trace.crowd.mean(), 1.0) for trace in traces]))
    context = prompt * crowds
    sizes = {
        "overhead": 1.0, "floor": 1.0, "token": prompt, "context": context, "attention": prompt**2,
        "sequence": crowds, "fixed": 1.0, "packed": crowds * context,
    }  # fmt: skip
    return np.array([0.01 * step / sizes[name] for name in PARAMETERS])


def _step(
    jacobian: Floats, off: Floats, weights: Floats, theta: Floats, units: Floats, damping: float, moving: Bools
) -> Floats:
    """The values not below zero that would leave the least, if everything were linear; by turns, one after another."""
    scaled = jacobian * units
    normal = (scaled * weights[:, None]).T @ scaled
    normal += damping * np.diag(np.maximum(np.diag(normal), 1e-9 * max(np.trace(normal), 1e-12)))
    slope = (scaled * weights[:, None]).T @ off
    least = np.where(moving, -theta / units, 0.0)
    change = bounded(normal, -slope, least, moving)
    return np.maximum(theta + change * units, 0.0)


def bounded(normal: Floats, aims: Floats, least: Floats, free: Bools | None = None) -> Floats:
    """x that solves normal @ x = aims, as nearly as x >= least allows: what would go below is put there."""
    moving = np.diag(normal) > 0 if free is None else free & (np.diag(normal) > 0)
    found = least.copy()
    while moving.any():
        rest = aims[moving] - normal[np.ix_(moving, ~moving)] @ found[~moving]
        found[moving] = np.linalg.lstsq(normal[np.ix_(moving, moving)], rest, rcond=None)[0]
        below = np.where(moving, found - least, np.inf)
        if below.min() >= -1e-12:
            break
        worst = int(np.argmin(below))
        found[worst], moving[worst] = least[worst], False
    return found
