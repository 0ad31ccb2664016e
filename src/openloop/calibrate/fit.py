"""From traces to a model: limits and batching by what predicts best, times by least squares, intervals by blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from openloop.arrays import Floats
from openloop.calibrate.match import PARAMETERS, BatchLimits, Fitted, TraceReplay, fit, loss, read_known, residuals
from openloop.calibrate.start import OPTIONAL, TERMS, first_guess
from openloop.calibrate.trace import MeasuredTrace, crowd, held, read_traces
from openloop.errors import RunError, SpecError
from openloop.records import Run

LEAST_REQUESTS = 30  # that tell something, in all runs together
LEAST_SPREAD = 1.5  # between busy and quiet moments: of how many decode at once
BUDGETS = tuple(1 << n for n in range(7, 15))  # tokens of a step
GAIN = 0.98  # a further limit or term must lower the loss on what it was not fitted to at least to this share
# Where single steps are seen so clearly (what is left unexplained of them), they count so many times as much as whole
# requests: a stall that everybody waits for is one slow step among thousands, and a hundred slow requests.
CLEAR, TRUST = 0.15, 30.0
STALL = 3.0  # times what a step should take: a longer one counts as one of this length
NEEDED = {"max_sequences": GAIN, "memory_tokens": 0.9}  # memory fits too well whatever it is put to
CHANCE = 0.01  # of the loss: so much is gained by queues that happen to move alike
ALMOST = 0.9  # of the KV cache: what servers fill at most before they put requests back
FULL = 0.05  # of the time at a limit: so much shows that there is one
QUEUE = 3  # who wait together: more than come at once by chance
SHOWN = 1.05  # a limit that shows itself may cost so much, where the loss does not tell it
BRIEF, LONG, ALONE = 3, 12, 30  # turns of a fit; of one to single steps alone
BESIDE = (64, 512)  # tokens that are read while the weights are: where a fit begins
MOST_JITTER = 1.5
LEAST_FORM, MOST_FORM = 0.01, 1.0  # of a step: what the form leaves open
UNHELD = 0.03  # where no rate was held out
DRAWS, BLOCKS = 40, 10
QUANTILES = (0.5, 0.99)


@dataclass(frozen=True)
class Tried:
    """A way to put batches together, fitted to the first half of each run."""

    limits: BatchLimits
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
    limits: BatchLimits
    theta: Floats  # as PARAMETERS has them
    draws: Floats  # a row for each: parameters that the data allow as well
    loss: float
    tried: tuple[Tried, ...]
    held: tuple[Held, ...]
    traces: tuple[MeasuredTrace, ...] = field(repr=False)
    saturated: tuple[str, ...] = ()  # limits that were reached
    jitter: float = 0.0  # of the overhead: the standard deviation of its logarithm

    def interval(self, name: str) -> tuple[float, float]:
        """90%, and what was found."""
        low, high = np.quantile(self.draws[:, PARAMETERS.index(name)], [0.05, 0.95])
        return min(float(low), self.value(name)), max(float(high), self.value(name))

    def value(self, name: str) -> float:
        return float(self.theta[PARAMETERS.index(name)])


Tell = Callable[[str], None]


def calibrate(runs: Sequence[str | Path | Run], known: str = "", tell: Tell = lambda _: None) -> Calibration:
    """Fit a model to runs, or to folders of them. `known` are limits that need not be found, as `max_tokens=2048`."""
    limits, given = read_known(known)
    traces = read_traces(runs)
    _check_known(limits, traces)
    return calibrate_traces(traces, limits, given, tell)


def _check_known(limits: BatchLimits, traces: Sequence[MeasuredTrace]) -> None:
    """Whoever was put back for want of memory seems to hold some, and what is shared counts for each."""
    for trace in traces:
        peak = float(np.quantile(trace.crowd, 0.99)) / trace.replicas
        if limits.max_sequences is not None and limits.max_sequences < 0.75 * peak:
            raise SpecError(
                f"max_sequences={limits.max_sequences} cannot be: in {trace.name} {peak:.0f} answers came at once;"
                " give the limit of a replica, or leave it out to find it"
            )
        full = float(np.quantile(held(trace, trace.sent_s), 0.5)) / trace.replicas
        if limits.memory_tokens is not None and limits.memory_tokens < 0.5 * full and not np.any(trace.cached > 0):
            raise SpecError(
                f"memory_tokens={limits.memory_tokens} cannot be: in {trace.name} answers held about {full:,.0f} tokens"
                " at once, half of the time; give the limit of a replica, or leave it out to find it"
            )


def calibrate_traces(
    traces: Sequence[MeasuredTrace], known: BatchLimits, given: frozenset[str], tell: Tell
) -> Calibration:
    """`given` are the names of limits that are `known` and not looked for."""
    _check(traces)
    search = _Search(traces, known, given, tell)
    best = search.run()
    tell(f"fitting {best.limits}")
    replays = [TraceReplay(trace) for trace in traces]
    found = _fit(replays, best.limits, search.thetas[best], LONG, _free(best.terms), search.steps)
    held = _hold_out(replays, found, _free(best.terms), search.steps, tell)
    form = float(np.median([abs(np.log1p(each.tpot[0])) for each in held])) if held else UNHELD
    return Calibration(
        limits=best.limits,
        theta=found.theta,
        draws=_draws(replays, found, form, *_hidden(replays, found)),
        loss=found.loss,
        tried=tuple(sorted(search.losses, key=lambda each: each.loss)),
        held=held,
        traces=tuple(traces),
        jitter=_jitter(replays, found),
        saturated=tuple(name for name in ("max_sequences", "memory_tokens") if getattr(best.limits, name) is not None),
    )


def _check(traces: Sequence[MeasuredTrace]) -> None:
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


def _crowds(trace: MeasuredTrace) -> tuple[Floats, Floats, Floats]:
    """How many decode in a replica, how much they hold, and how many wait, at even moments while anything goes on."""
    at = np.linspace(trace.sent_s[0], np.nanmax(trace.last_s), 2000)
    several = crowd(trace, at)
    ends = np.nan_to_num(trace.first_s, nan=np.inf)
    waiting = np.searchsorted(trace.sent_s, at, "right") - np.searchsorted(np.sort(ends), at, "right")
    some = (several > 0) | (waiting > 0)
    share = 1 / trace.replicas
    return share * several[some], share * held(trace, at[some]), waiting[some].astype(np.float64)


def _free(terms: frozenset[str]) -> list[bool]:
    return [name in terms or name not in OPTIONAL for name in PARAMETERS]


def _may_be_full(traces: Sequence[MeasuredTrace], memory: Floats, room: float, waiting: Floats) -> bool:
    """Who was put back for want of memory seems to hold some, too; where nobody was, there was enough."""
    return any(trace.put_back for trace in traces) and _reached(memory, 0.7 * room, waiting)


def _reached(values: Floats, near: float, waiting: Floats) -> bool:
    """Whether something was at its most for a while, and somebody waited meanwhile."""
    return bool(np.mean((values >= near) & (waiting > 0)) > FULL)


def _piled(several: Floats, peak: int, waiting: Floats) -> bool:
    """Whether whoever queues does so while all places are taken: then their number shows itself."""
    queue = several[waiting >= QUEUE]
    return bool(len(queue) and np.median(queue) >= peak - 1)


class _Search:
    """Which limits, batching and terms predict the second half of each run best, fitted to the first."""

    def __init__(self, traces: Sequence[MeasuredTrace], known: BatchLimits, given: frozenset[str], tell: Tell) -> None:
        self.known, self.given, self.tell, self.traces = known, given, tell, traces
        middle = [float(np.median(trace.sent_s[trace.used])) for trace in traces]
        self.early, self.late = (
            [TraceReplay(trace.between(*(ends(half)))) for trace, half in zip(traces, middle, strict=True)]
            for ends in (lambda half: (-np.inf, half), lambda half: (half, np.inf))
        )
        self.guess, self.apart = first_guess(traces), first_guess(traces, mixed=False)
        self.steps = TRUST if self.guess.left < CLEAR else 1.0
        self.losses: list[Tried] = []
        self.thetas: dict[Tried, Floats] = {}

    def run(self) -> Tried:
        """From the guess, the same for every limit; then from what was found."""
        padding = self.known.padding if "padding" in self.given else self.guess.padding
        best = self._try(replace(self.known, padding=padding), self.guess.theta, self.guess.terms)
        best = self._caps(best)
        best = self._batching(best)
        best = self._terms(best)
        best = self._caps(best)
        budget = best.limits.max_tokens
        return self._better(best, "max_tokens", [max(budget // 2, BUDGETS[0]), 2 * budget])

    def _try(self, limits: BatchLimits, start: Floats, terms: frozenset[str], again: bool = False) -> Tried:
        """`again`: from another start, too; the better one counts."""
        before = next((each for each in self.losses if each.limits == limits and each.terms == terms), None)
        if before and not again:
            return before
        self.tell(f"trying {limits}")
        free = _free(terms)
        start = _begin(self.early, limits, np.where(free, start, 0.0), free, self.steps)
        found = fit(self.early, limits, start, BRIEF, free, self.steps)
        tried = Tried(limits, terms, loss(residuals(self.late, limits, found.theta)))
        if before and before.loss <= tried.loss:
            return before
        self.losses = [each for each in self.losses if each is not before] + [tried]
        self.thetas[tried] = found.theta
        return tried

    def _better(
        self, best: Tried, name: str, values: Sequence[object], gain: float = GAIN, start: Floats | None = None
    ) -> Tried:
        """The best of these values of a limit, if it gains enough; nothing where the limit is given."""
        if name in self.given:
            return best
        began = self.thetas[best] if start is None else start
        others = [self._try(replace(best.limits, **{name: value}), began, best.terms) for value in values]  # type: ignore[arg-type]
        found = min(others, key=lambda each: each.loss, default=best)
        if start is not None and found.loss < gain * best.loss and gain < 1:  # and not by where its fit began
            best = self._try(best.limits, self.thetas[found], best.terms, again=True)
        return found if found.loss < gain * best.loss else best

    def _caps(self, best: Tried) -> Tried:
        """Limits that were reached, near to what was reached: either, and then the other if it is needed too."""
        several, memory, waiting = (np.concatenate(each) for each in zip(*map(_crowds, self.traces), strict=True))
        peak, room = max(int(np.quantile(several, 0.999)), 1), float(np.quantile(memory, 0.999))
        told = [trace.running_peak for trace in self.traces if trace.running_peak >= peak - 2]
        values: dict[str, list[int]] = {"max_sequences": [], "memory_tokens": []}
        if _reached(several, 0.95 * peak - 1, waiting):
            values["max_sequences"] = sorted({peak - 1, peak, peak + 1, *map(int, told)} - {0})
            if _piled(several, peak, waiting):
                shown = [each for each in values.pop("max_sequences") if each >= peak]
                best = self._better(best, "max_sequences", shown, SHOWN, self.guess.theta)
        told = [trace.memory_tokens for trace in self.traces if trace.memory_tokens == trace.memory_tokens]
        use = [trace.kv_peak for trace in self.traces if trace.kv_peak == trace.kv_peak]
        if use:  # by the server's own account
            values["memory_tokens"] = [int(np.median(told))] if told and max(use) > ALMOST else []
        elif _may_be_full(self.traces, memory, room, waiting):
            full = np.quantile(memory[waiting > 0], [0.5, 0.75, 0.9])
            values["memory_tokens"] = [int(each) for each in (*full, room)]

        def needed(name: str) -> float:
            return min(NEEDED[name], 1 - CHANCE / best.loss) if name == "memory_tokens" else NEEDED[name]

        single = [self._better(best, name, each, needed(name), self.guess.theta) for name, each in values.items()]
        best = min(single, key=lambda each: each.loss)
        for name, each in values.items():
            if getattr(best.limits, name) is None:
                best = self._better(best, name, each, needed(name))
        if best.limits.memory_tokens is not None:  # with a number of sequences beside it, it may not be needed
            best = self._better(best, "memory_tokens", [None], 1 / NEEDED["memory_tokens"])
        if best.limits.memory_tokens is not None and "memory_tokens" not in self.given:
            for factor in (0.95, 1.05, 0.975, 1.025):
                best = self._better(best, "memory_tokens", [int(factor * best.limits.memory_tokens)], 0.995)
        return best

    def _batching(self, best: Tried) -> Tried:
        """With the memory that was found and without: it may have stood for what was wrong with the batching."""
        found = self._policies(best)
        if best.limits.memory_tokens is None or "memory_tokens" in self.given:
            return found
        bare = self._try(replace(best.limits, memory_tokens=None), self.thetas[best], best.terms)
        bare = self._policies(bare)
        return found if found.loss < NEEDED["memory_tokens"] * bare.loss else bare

    def _policies(self, best: Tried) -> Tried:
        found = best
        for batching in ("chunked", "prefill-first", "static"):
            if "batching" in self.given and batching != self.known.batching:
                continue
            start = self.guess.theta if batching == "chunked" else self.apart.theta
            tried = self._better(best, "batching", [batching], np.inf, start)
            tried = self._better(tried, "max_tokens", BUDGETS[3::2] if batching == "static" else BUDGETS, 1.0)
            found = tried if tried.loss < GAIN * found.loss else found
        return found

    def _terms(self, best: Tried) -> Tried:
        """One more or one fewer, and memory read in large pieces: only where they help. Where single steps are seen
        clearly they have chosen already."""
        if self.steps > 1:
            return best
        for terms in TERMS:
            if terms != best.terms:
                other = self._try(best.limits, self.thetas[best], terms)
                needed = 1.0 if len(terms) == len(best.terms) else GAIN if terms else 1 / GAIN
                best = other if other.loss < needed * best.loss else best
        if best.limits.padding > 1:
            best = self._better(best, "padding", [1], 1 / GAIN)
        return best


def _begin(
    replays: Sequence[TraceReplay], limits: BatchLimits, start: Floats, free: list[bool], steps: float
) -> Floats:
    """What single steps tell alone, where there are some, and then the overhead, which they do not tell."""
    if not any(len(replay.amounts) for replay in replays):
        return start
    floor, token, fixed = (PARAMETERS.index(name) for name in ("floor", "token", "fixed"))
    starts = []
    for beside in BESIDE:  # a floor that no step reaches would stay there, and so would a token below every floor
        starts.append(start.copy())
        starts[-1][floor], starts[-1][fixed] = start[floor] + start[fixed], 0.0
        starts[-1][token] = starts[-1][floor] / beside
    several = [fit(replays, limits, each, ALONE, free, steps, alone=True) for each in (start, *starts)]
    start = min(several, key=lambda each: each.loss).theta
    return fit(replays, limits, start, BRIEF, [name == "overhead" for name in PARAMETERS], steps).theta


def _fit(
    replays: Sequence[TraceReplay], limits: BatchLimits, start: Floats, turns: int, free: list[bool], steps: float
) -> Fitted:
    """Where a fit goes by single steps, it finds how long most of them take. Some stall, and requests wait for these
    too: so all are made longer, until together they take as long as was measured; by runs, as far as their steps are
    known."""
    found = fit(replays, limits, _begin(replays, limits, start, free, steps), turns, free, steps)
    if steps == 1.0:
        return found
    shares, known = [], []
    for replay in replays:
        off = replay.steps(limits, found.theta)
        known.append(float(np.mean(np.isfinite(off))) if len(off) else 0.0)
        measured, made = replay.amounts[:, 0], replay.amounts[:, 0] * np.exp(off)
        shares.append(np.nansum(np.minimum(measured, STALL * made)) / max(np.nansum(made), 1e-9))
    longer = float(np.average(shares, weights=known)) if any(known) else 1.0
    # An overhead may have stood for what is longer now.
    tried = [np.append(overhead, longer * found.theta[1:]) for overhead in (0.0, found.theta[0])]
    return replace(found, theta=min(tried, key=lambda theta: loss(residuals(replays, limits, theta))))


def _hidden(replays: Sequence[TraceReplay], found: Fitted) -> tuple[float, float]:
    """The least and most that a token may take: where prompts are read while weights are, others explain as much."""
    prompt = float(np.median(np.concatenate([replay.trace.prompt - replay.trace.cached for replay in replays])))
    floor, token, fixed = (PARAMETERS.index(name) for name in ("floor", "token", "fixed"))

    def off(theta: Floats) -> float:
        """A first token waits until a step ends, and in a model that may be another one: so TTFT by its middle."""
        several = [each for run in residuals(replays, found.limits, theta) for each in run.items()]
        return float(
            np.mean([
                abs(np.nanmedian(each)) if name == "ttft" else np.nanmean(np.minimum(abs(each), 1.0))
                for name, each in several
                if np.isfinite(each).any()
            ])
        )  # fmt: skip

    fewest = most = float(found.theta[token])
    least = off(found.theta)
    for share in (0.75, 0.5, 0.25, 0.0):
        theta = found.theta.copy()
        theta[token] *= share
        if off(theta) >= least + LEAST_FORM:
            break
        fewest = float(theta[token])
    for share in (0.125, 0.25, 0.5, 1.0):  # of a step that has one prompt
        theta = found.theta.copy()
        theta[floor], theta[fixed] = theta[floor] + theta[fixed], 0.0
        theta[token] = share * theta[floor] / max(prompt, 1.0)
        if theta[token] > most and off(theta) < least + LEAST_FORM:
            most = float(theta[token])
    return fewest, most


def _draws(replays: Sequence[TraceReplay], found: Fitted, form: float, fewest: float, most: float) -> Floats:
    """Parameters from blocks of the runs drawn anew: one step of the fit each, around what was found. All steps
    together are drawn faster or slower as well, by what rates were off that were predicted from others. A token takes
    anything from `fewest` over what was found to `most`; as much more as it then takes, a step hides."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(DRAWS):
        counts = []
        for replay in replays:
            drawn = np.bincount(rng.integers(0, BLOCKS, BLOCKS), minlength=BLOCKS)
            sizes = (*[len(replay.trace)] * 3, len(replay.amounts))  # of the residuals, by kind
            counts += [drawn[np.arange(size) * BLOCKS // max(size, 1)] for size in sizes]
        rows.append(found.solve(np.concatenate(counts).astype(np.float64)))
    middle = np.median(rows, axis=0)
    draws = np.maximum(np.array(rows) + found.theta - middle, 0.0)
    draws[:, 1:] *= np.exp(rng.normal(0.0, min(max(form, LEAST_FORM), MOST_FORM), (DRAWS, 1)))
    floor, token, fixed = (PARAMETERS.index(name) for name in ("floor", "token", "fixed"))
    way = rng.uniform(-1.0, 1.0, DRAWS)  # from what was found, to the fewest or to the most
    up, down = np.maximum(way, 0.0), np.maximum(-way, 0.0)
    moved = up * (most - found.theta[token]) - down * (found.theta[token] - fewest)
    draws[:, token] = np.maximum(draws[:, token] + moved, 0.0)
    if most > found.theta[token]:
        draws[:, floor] += up * draws[:, fixed]
        draws[:, fixed] *= 1 - up
    if middle[0] == 0:  # the overhead may as well be nothing
        draws[:, 0] = rng.uniform(0.0, found.theta[0], DRAWS)
    return draws


def _jitter(replays: Sequence[TraceReplay], found: Fitted) -> float:
    """How the overhead varies: what first tokens are late by, of requests that came when little else went on; nothing
    where that does not bring the tails of TTFT nearer to the measured ones."""
    rng, late, pairs = np.random.default_rng(0), [], []
    for replay in replays:
        made, several = replay.serve(found.limits, found.theta).ttft, replay.trace.crowd
        calm = replay.trace.used & (several <= np.quantile(several, 1 / 3))
        late.append((replay.seen.ttft - made)[calm] + found.theta[0])
        some = replay.trace.used & np.isfinite(replay.seen.ttft)
        pairs.append((replay.seen.ttft[some], made[some]))
    values = np.concatenate(late)
    middle, high = np.nanquantile(values, [0.5, 0.95])
    if not high > middle > 0:
        return 0.0
    sigma = min(float(np.log(high / middle) / 1.645), MOST_JITTER)

    def off(sigma: float) -> float:
        total = 0.0
        for seen, made in pairs:
            more = found.theta[0] * (np.exp(sigma * rng.standard_normal(len(made))) - 1)
            one, other = (np.quantile(each, [0.9, 0.95, 0.99]) for each in (made + more, seen))
            total += float(np.sum(abs(np.log(one / other))))
        return total

    return sigma if off(sigma) < off(0.0) else 0.0


def _hold_out(
    replays: Sequence[TraceReplay], found: Fitted, free: list[bool], steps: float, tell: Tell
) -> tuple[Held, ...]:
    """Each rate predicted from the others; nothing where there is only one."""
    by_rate: dict[float, list[TraceReplay]] = {}
    for replay in replays:
        if np.any(replay.trace.used & (replay.trace.came > 1)):
            by_rate.setdefault(float(f"{replay.trace.offered:.3g}"), []).append(replay)
    if len(by_rate) < 2:
        return ()
    result = []
    for rate, mine in sorted(by_rate.items()):
        tell(f"predicting {rate:g}/s from the other rates")
        others = [replay for replay in replays if replay not in mine]
        refitted = _fit(others, found.limits, found.theta, BRIEF, free, steps)
        result.append(_held_out(mine, found.limits, refitted.theta, rate))
    return tuple(result)


def _held_out(replays: Sequence[TraceReplay], limits: BatchLimits, theta: Floats, rate: float) -> Held:
    """How far quantiles are off where nothing was fitted."""
    made = np.concatenate([replay.whole_times(replay.serve(limits, theta)) for replay in replays], axis=1)
    seen = np.concatenate([replay.whole_times(replay.seen) for replay in replays], axis=1)
    off = np.nanquantile(made, QUANTILES, axis=1) / np.nanquantile(seen, QUANTILES, axis=1) - 1
    return Held(rate, sum(int(replay.trace.used.sum()) for replay in replays), *map(tuple, off.T.tolist()))
