"""From traces to a model: limits and policy by what predicts best, times by least squares, intervals by blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from openloop.calibrate.match import MANY, PARAMETERS, Fitted, Limits, Replay, fit, loss, residuals, sizes, solve
from openloop.calibrate.start import OPTIONAL, TERMS, Guess, first_guess, guess_again
from openloop.calibrate.trace import Trace, crowd, held
from openloop.errors import RunError

__all__ = ["Calibration", "Held", "Tried", "calibrate_traces"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEAST_REQUESTS = 30  # that tell something, in all runs together
LEAST_SPREAD = 1.5  # between busy and quiet moments: of how many decode at once
BUDGETS = tuple(1 << n for n in range(7, 15))  # tokens of a step
GAIN = 0.98  # a further limit or term must lower the loss on what it was not fitted to at least to this share
CLEAR = 0.1  # unexplained share of single steps, up to which they are trusted
BRIEF, LONG = 3, 12  # turns of a fit
DRAWS, BLOCKS = 40, 10
QUANTILES = (0.5, 0.99)


@dataclass(frozen=True)
class Tried:
    """A way to put batches together, fitted to the first half of each run."""

    limits: Limits
    terms: frozenset[str]  # of those that a step need not have
    loss: float  # on the second half: mean size of log(modelled / measured)


@dataclass(frozen=True)
class Held:
    """A rate predicted from the others: modelled over measured, less one, of the quantiles 50% and 99%."""

    rate: float
    requests: int
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    e2e: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Calibration:
    limits: Limits
    theta: Floats  # as PARAMETERS has them
    draws: Floats  # a row for each: parameters that the data allow as well
    loss: float
    tried: tuple[Tried, ...]
    held: tuple[Held, ...]
    traces: tuple[Trace, ...] = field(repr=False)
    saturated: tuple[str, ...] = ()  # limits that were reached

    def interval(self, name: str) -> tuple[float, float]:
        """90%."""
        low, high = np.quantile(self.draws[:, PARAMETERS.index(name)], [0.05, 0.95])
        return float(low), float(high)

    def value(self, name: str) -> float:
        return float(self.theta[PARAMETERS.index(name)])


Tell = Callable[[str], None]


def calibrate_traces(
    traces: Sequence[Trace], known: Limits | None = None, given: frozenset[str] = frozenset(), tell: Tell = lambda _: None
) -> Calibration:
    """`given` are the names of limits that are `known` and not looked for."""
    _check(traces)
    search = _Search(traces, known or Limits(), given, tell)
    best = search.run()
    tell(f"fitting {best.limits}")
    replays = [Replay(trace) for trace in traces]
    found = fit(replays, best.limits, search.thetas[best], LONG, _free(best.terms, search.clear))
    tried = tuple(sorted(search.losses, key=lambda each: each.loss))
    return Calibration(
        limits=best.limits,
        theta=found.theta,
        draws=_draws(found, traces, search.guess if search.clear else None),
        loss=found.loss,
        tried=tried,
        held=_hold_out(replays, found, _free(best.terms, search.clear), tell),
        traces=tuple(traces),
        saturated=tuple(name for name in ("max_sequences", "memory_tokens") if getattr(best.limits, name) is not None),
    )


def _check(traces: Sequence[Trace]) -> None:
    told = sum(int(np.count_nonzero(trace.used & ~np.isnan(trace.tpot_s))) for trace in traces)
    if told < LEAST_REQUESTS:
        raise RunError(
            f"{told} requests with tokens are too few to tell anything apart: measure longer, until there are some"
            " hundreds"
        )
    several = np.concatenate([_crowds(trace)[0] for trace in traces])
    busy, calm = (float(np.quantile(several, share)) for share in (0.95, 0.05))
    if busy < LEAST_SPREAD * max(calm, 1.0):
        raise RunError(
            f"all was measured at one concurrency (about {busy:.0f} at once): what a step costs and what a further"
            " sequence costs cannot be told apart; add a run at another rate, several times as high or as low"
        )


def _crowds(trace: Trace) -> tuple[Floats, Floats, Floats]:
    """How many decode, how much they hold, and how many wait, at even moments while anything goes on."""
    at = np.linspace(trace.sent_s[0], np.nanmax(trace.last_s), 2000)
    several = crowd(trace, at)
    ends = np.nan_to_num(trace.first_s, nan=np.inf)
    waiting = np.searchsorted(trace.sent_s, at, "right") - np.searchsorted(np.sort(ends), at, "right")
    some = (several > 0) | (waiting > 0)
    return several[some], held(trace, at[some]), waiting[some].astype(np.float64)


def _free(terms: frozenset[str], clear: bool) -> list[bool]:
    """What is fitted to whole requests: all of it, or what single steps do not show where they are seen clearly. A
    stall that everybody waits for is one slow step among thousands, and a hundred slow requests."""
    if clear:
        return [name in ("overhead", "token") for name in PARAMETERS]
    return [name in terms or name not in OPTIONAL for name in PARAMETERS]


class _Search:
    """Which limits, policy and terms predict the second half of each run best, fitted to the first."""

    def __init__(self, traces: Sequence[Trace], known: Limits, given: frozenset[str], tell: Tell) -> None:
        self.known, self.given, self.tell, self.traces = known, given, tell, traces
        middle = [float(np.median(trace.sent_s)) for trace in traces]
        self.early, self.late = (
            [Replay(trace.between(*(ends(half)))) for trace, half in zip(traces, middle, strict=True)]
            for ends in (lambda half: (-np.inf, half), lambda half: (half, np.inf))
        )
        self.guess = first_guess(traces)
        self.clear = self.guess.left < CLEAR
        self.losses: list[Tried] = []
        self.thetas: dict[Tried, Floats] = {}

    def run(self) -> Tried:
        padding = self.known.padding if "padding" in self.given else self.guess.padding
        best = self._try(replace(self.known, padding=padding), self.guess.theta, self.guess.terms)
        best = self._caps(best)
        best = self._policies(best)
        best = self._terms(best)
        best = self._caps(best)
        return self._policies(best, near=True)

    def _try(self, limits: Limits, start: Floats, terms: frozenset[str]) -> Tried:
        for each in self.losses:
            if each.limits == limits and each.terms == terms:
                return each
        self.tell(f"trying {limits}")
        free = _free(terms, self.clear)
        start = start if self.clear else np.where(free, start, 0.0)
        found = fit(self.early, limits, start, BRIEF, free)
        tried = Tried(limits, terms, loss(residuals(self.late, limits, found.theta)))
        self.losses.append(tried)
        self.thetas[tried] = found.theta
        return tried

    def _better(self, best: Tried, name: str, values: Sequence[object], gain: float = 0.99) -> Tried:
        """The best of these values of a limit, if it gains anything; nothing where the limit is given."""
        if name in self.given:
            return best
        start = self.thetas[best]
        others = [self._try(replace(best.limits, **{name: value}), start, best.terms) for value in values]  # type: ignore[arg-type]
        found = min(others, key=lambda each: each.loss, default=best)
        return found if found.loss < gain * best.loss else best

    def _caps(self, best: Tried) -> Tried:
        """Limits that were reached, near to what was reached."""
        several, memory, _ = (np.concatenate(each) for each in zip(*map(_crowds, self.traces), strict=True))
        peak = max(int(np.quantile(several, 0.999)), 1)
        told = [trace.running_peak for trace in self.traces if trace.running_peak == trace.running_peak]
        counts = {peak - 1, peak, peak + 1, *(int(each) for each in told if each >= peak - 2)}
        if best.limits.max_sequences is None:
            best = self._better(best, "max_sequences", sorted(each for each in counts if each > 0), GAIN)
        room = float(np.quantile(memory, 0.999))
        if best.limits.memory_tokens is None:
            rooms = [room, 1.05 * room, *(trace.memory_tokens for trace in self.traces if trace.memory_tokens > room)]
            tried = self._better(best, "memory_tokens", [int(each) for each in rooms], GAIN)
            if tried.limits.max_sequences is not None and tried is not best:  # is the other one still needed?
                tried = self._better(tried, "max_sequences", [None], 1 / GAIN)
            best = tried
        if best.limits.memory_tokens is not None and "memory_tokens" not in self.given:
            for factor in (0.9, 0.95, 1.05, 1.1, 0.975, 1.025):
                best = self._better(best, "memory_tokens", [int(factor * best.limits.memory_tokens)])
        if best.limits.max_sequences is not None:
            best = self._better(best, "max_sequences", [None], GAIN)  # a cap that explains nothing is none
        return best

    def _policies(self, best: Tried, near: bool = False) -> Tried:
        if near:
            budget = best.limits.max_tokens
            return self._better(best, "max_tokens", [budget // 2, 2 * budget])
        found = best
        for policy in ("chunked", "prefill-first", "static"):
            if "policy" in self.given and policy != self.known.policy:
                continue
            tried = self._better(best, "policy", [policy], np.inf) if policy != best.limits.policy else best
            tried = self._better(tried, "max_tokens", BUDGETS if policy == "chunked" else BUDGETS[3::2])
            found = min(found, tried, key=lambda each: each.loss)
        return found

    def _terms(self, best: Tried) -> Tried:
        """One more or one fewer, and memory read in large pieces: only where they help."""
        if self.clear:
            return best
        for terms in TERMS:
            if terms != best.terms:
                other = self._try(best.limits, self.thetas[best], terms)
                needed = 1.0 if len(terms) == len(best.terms) else GAIN if terms else 1 / GAIN
                best = other if other.loss < needed * best.loss else best
        if best.limits.padding > 1:
            best = self._better(best, "padding", [1], 1 / GAIN)
        return best


def _draws(found: Fitted, traces: Sequence[Trace], clear: Guess | None) -> Floats:
    """Parameters from blocks of the runs drawn anew: one step of the fit each, around what was found."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(DRAWS):
        drawn = [np.bincount(rng.integers(0, BLOCKS, BLOCKS), minlength=BLOCKS) for _ in traces]
        counts = [
            each[np.arange(size) * BLOCKS // max(size, 1)]
            for trace, each in zip(traces, drawn, strict=True)
            for size in sizes(trace)
        ]
        row = solve(found, np.concatenate(counts).astype(np.float64))
        rows.append(row if clear is None else np.where(found.moving, row, guess_again(traces, clear, drawn)))
    centred = np.array(rows) + found.theta - np.median(rows, axis=0)
    return np.maximum(centred, 0.0)


def _hold_out(replays: Sequence[Replay], found: Fitted, free: list[bool], tell: Tell) -> tuple[Held, ...]:
    """Each rate predicted from the others; nothing where there is only one."""
    rates = [float(f"{replay.trace.offered:.3g}") for replay in replays]
    if len(set(rates)) < 2:
        return ()
    result = []
    for rate in sorted(set(rates)):
        tell(f"predicting {rate:g}/s from the other rates")
        others = [replay for replay, each in zip(replays, rates, strict=True) if each != rate]
        mine = [replay for replay, each in zip(replays, rates, strict=True) if each == rate]
        refitted = fit(others, found.limits, found.theta, BRIEF, free)
        result.append(held_out(mine, found.limits, refitted.theta, rate))
    return tuple(result)


def held_out(replays: Sequence[Replay], limits: Limits, theta: Floats, rate: float) -> Held:
    """How far quantiles are off where nothing was fitted."""
    kinds: dict[str, tuple[list[Floats], list[Floats]]] = {name: ([], []) for name in ("ttft", "tpot", "e2e")}
    for replay in replays:
        made, seen, trace = replay.serve(limits, theta), replay.seen, replay.trace
        for name, (one, other) in kinds.items():
            for found, kept in ((made, one), (seen, other)):
                whole = found.ttft + np.nan_to_num(found.tpot) * (trace.came - 1)
                values = whole if name == "e2e" else getattr(found, name)
                kept.append(values[trace.used & (trace.came > 1)])
    off = {
        name: tuple(
            float(np.nanquantile(np.concatenate(one), share) / np.nanquantile(np.concatenate(other), share) - 1)
            for share in QUANTILES
        )
        for name, (one, other) in kinds.items()
    }
    return Held(rate, sum(int(replay.trace.used.sum()) for replay in replays), **off)
