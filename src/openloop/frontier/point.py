"""Runs at one offered rate, scored and put together."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from openloop.arrays import Bools, Floats
from openloop.frontier.steady import Flow, flow_of, growth, settled_from
from openloop.records import Prices, Run
from openloop.score import Percentiles, Score
from openloop.score.judged import JudgedRun, Scope, judge_run
from openloop.score.quantiles import Sample, independent_hits, pooled, wilson
from openloop.score.scorer import score_judged
from openloop.slo import SLO, Objectives, SLOGate
from openloop.units import NS_PER_S, to_ns

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
MOST = 4.0  # times stricter, and times laxer: as far as it is looked for
SCALES = np.geomspace(1 / MOST, MOST, 25)  # of all bounds on time
GROUPS = (1, 2, 4)  # blocks to leave out together

Slack = tuple[float, float]  # and its standard error

# What the client did wrong says nothing about the server.
CLIENT_FAULTS = {
    *("arrivals_dropped", "arrivals_not_as_promised", "client_late", "closed_loop", "incomplete", "label_unknown"),
    *("nothing_due", "rate_not_as_offered"),
}


@dataclass(frozen=True)
class PointRun:
    """One run of a point."""

    run: Run = field(repr=False)  # its window begins after the warm-up
    score: Score  # of that
    warm_up_s: float
    growth_rps: float  # of the backlog; 0.0 where it did not grow beyond chance
    independent: float  # requests that attainment is worth
    took_s: float  # all of it, with warm-up and drain
    spent: float  # all of it
    cut_short: str | None
    slack: Slack
    labels: tuple[int, int]  # requests whose quality is known, and those of them that are good
    latencies: dict[str, Sample] = field(repr=False)  # of completed requests

    @property
    def overloaded(self) -> bool:
        return self.growth_rps > 0 or self.cut_short == "overload"


@dataclass(frozen=True)
class Point:
    """All that was measured at one offered rate. Intervals are 95%; what is not known is NaN or None."""

    rate: float  # asked for: users per second
    name: str | None  # comfortable, moderate, busy, stressed, overloaded; None: there is no knee to say it by
    repeats: int
    seconds: float  # measured, without warm-up
    warm_up_s: tuple[float, ...]  # by run
    requests: int  # due
    requests_per_user: float  # 1.0 unless users come back, as in conversations
    independent: float  # requests that attainment is worth
    offered_rps: float
    throughput_rps: float  # of what was due, what completed at all
    completed_in_window_rps: float  # completed inside the window: levels off at capacity
    goodput_rps: float
    goodput_rps_interval: tuple[float, float]
    attainment: float
    attainment_interval: tuple[float, float]
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    e2e_s: Percentiles | None
    output_tokens_per_s: float
    output_token_goodput: float
    error_rate: float  # of requests: whatever did not complete
    retry_rate: float  # further attempts per request
    quality_rate: float  # of those with a label
    cache_hit_rate: float
    utilisation: float
    cost: float | None
    cost_per_accepted: float | None
    statuses: dict[str, int]
    overloaded: bool  # the backlog grew
    growth_rps: float
    steady: bool
    valid: bool
    usable: bool  # says something about the server: the client did its part
    cut_short: str | None
    reasons: tuple[str, ...]
    slack: tuple[Slack, ...]  # by run: how much stricter bounds could be before the target is missed, and its error
    scores: tuple[Score, ...] = field(repr=False)  # by run

    @property
    def why_unusable(self) -> str:
        """The first of its reasons: faults of the client stand before others."""
        return self.reasons[0] if self.reasons else "nothing was due"


def read_trial(
    run: Run,
    objectives: Objectives,
    target: float,
    warm_up_s: float | None = None,
    prices: Prices | None = None,
) -> PointRun:
    """Score what came after the warm-up of a run, by default as long as it seems to be; `target` is the share that its
    slack is about."""
    return judge_trial(run, objectives, target, warm_up_s, prices)[0]


def judge_trial(
    run: Run,
    objectives: Objectives,
    target: float,
    warm_up_s: float | None = None,
    prices: Prices | None = None,
) -> tuple[PointRun, JudgedRun]:
    """The same, and the run as it was judged."""
    flow = flow_of(run)
    end_s = _end_ns(run, flow) / NS_PER_S
    warm_s = settled_from(run, flow, end_s) if warm_up_s is None else warm_up_s
    late = from_second(run, warm_s, flow)
    judged = judge_run(late, objectives, prices=prices)
    scope = judged.whole
    stopped_s = judged.stopped_ns / NS_PER_S
    used = float((judged.spent - judged.human_review).sum())  # nobody reviews what a sweep asked
    labels = scope.deliveries.quality
    found = PointRun(
        run=late,
        **_held(late, objectives, judged, target),
        warm_up_s=warm_s,
        growth_rps=growth(flow, end_s),
        took_s=max(stopped_s, end_s),
        spent=used + judged.per_hour * stopped_s / 3600,
        cut_short=run.manifest.cut_short,
        labels=(int(np.sum(labels >= 0)), int(np.sum(labels > 0))),
        latencies={name: scope.sample(getattr(scope.answers, name)) for name in LATENCIES},
    )
    return found, judged


def from_second(run: Run, warm_up_s: float, flow: Flow | None = None) -> Run:
    """The run as a point counts it: what was due from then on."""
    window = to_ns(warm_up_s), _end_ns(run, flow)
    return replace(run, manifest=msgspec.structs.replace(run.manifest, window_ns=window))


def _end_ns(run: Run, flow: Flow | None) -> int:
    """Of its window; without one, with the last that was due."""
    if run.manifest.window_ns:
        return run.manifest.window_ns[1]
    due_s = (flow or flow_of(run)).due_s
    return to_ns(float(due_s[-1])) + 1 if len(due_s) else 1


def judge_again(trial: PointRun, objectives: Objectives, target: float, judged: JudgedRun) -> PointRun:
    """The same run as it was judged against another SLO."""
    return replace(trial, **_held(trial.run, objectives, judged, target))


def _held(run: Run, objectives: Objectives, judged: JudgedRun, target: float) -> dict[str, Any]:
    """What depends on the SLO."""
    scope = judged.whole
    return {
        "score": score_judged(run, objectives, judged),
        "independent": independent_hits(scope.judgement.accepted, scope.bounds, scope.e2e_s.independence),
        "slack": slack(scope, target),
    }


def make_point(rate: float, trials: Sequence[PointRun]) -> Point:
    scores = tuple(trial.score for trial in trials)
    seconds = sum(score.window_s for score in scores)
    requests = sum(score.requests for score in scores)
    accepted = sum(score.accepted for score in scores)
    users = sum(score.sessions.sessions for score in scores)
    independent = sum(trial.independent for trial in trials)
    statuses: Counter[str] = sum((Counter(score.statuses) for score in scores), Counter())
    goodput = accepted / seconds
    attainment = accepted / requests if requests else np.nan
    costs = [score.cost.total for score in scores if score.cost]
    cost = sum(costs) if len(costs) == len(scores) else None
    known, good = (sum(trial.labels[place] for trial in trials) for place in (0, 1))
    overloaded = 2 * sum(trial.overloaded for trial in trials) > len(trials)
    found = [each for score in scores for each in zip(score.faults, score.reasons, strict=False)]
    faults = {fault for fault, _ in found}
    return Point(
        rate=rate,
        name=None,
        repeats=len(scores),
        seconds=seconds,
        warm_up_s=tuple(trial.warm_up_s for trial in trials),
        requests=requests,
        requests_per_user=requests / users if users else 1.0,
        independent=independent,
        offered_rps=requests / seconds,
        throughput_rps=sum(score.completed for score in scores) / seconds,
        completed_in_window_rps=_by_time(scores, lambda score: score.completed_in_window_rps),
        goodput_rps=goodput,
        goodput_rps_interval=_spread(goodput, scores, seconds),
        attainment=attainment,
        attainment_interval=wilson(attainment, independent) if requests else (np.nan, np.nan),
        **{name: pooled(*(trial.latencies[name] for trial in trials)) for name in LATENCIES},
        output_tokens_per_s=_by_time(scores, lambda score: score.output_tokens_per_s),
        output_token_goodput=_by_time(scores, lambda score: score.output_token_goodput),
        error_rate=1 - sum(score.completed for score in scores) / requests if requests else np.nan,
        retry_rate=sum(score.retries.attempts - score.requests for score in scores) / requests if requests else np.nan,
        quality_rate=good / known if known else np.nan,
        cache_hit_rate=_by_time(scores, lambda score: score.cache_hit_rate),
        utilisation=_by_time(scores, lambda score: score.utilisation),
        cost=cost,
        cost_per_accepted=None if cost is None else cost / accepted if accepted else np.inf,
        statuses=dict(statuses),
        overloaded=overloaded,
        growth_rps=float(np.mean([trial.growth_rps for trial in trials])),
        steady=not overloaded and "no_steady_state" not in faults,
        valid=all(score.valid for score in scores),
        usable=requests > 0 and not faults & CLIENT_FAULTS,
        cut_short=next((trial.cut_short for trial in trials if trial.cut_short), None),
        reasons=tuple(
            dict.fromkeys(reason for _, reason in sorted(found, key=lambda each: each[0] not in CLIENT_FAULTS))
        ),
        slack=tuple(trial.slack for trial in trials),
        scores=scores,
    )


def _by_time(scores: Sequence[Score], value: Callable[[Score], float]) -> float:
    """The mean over all the time of several runs."""
    return float(np.average([value(score) for score in scores], weights=[score.window_s for score in scores]))


def _spread(goodput: float, scores: Sequence[Score], seconds: float) -> tuple[float, float]:
    """The interval of a mean over runs, of which each has one of its own."""
    shares = np.array([score.window_s for score in scores]) / seconds
    below, above = (
        np.array([abs(score.goodput_rps_interval[end] - score.goodput_rps) for score in scores]) for end in (0, 1)
    )
    low, high = (float(np.sqrt(np.nansum((shares * each) ** 2))) for each in (below, above))
    return max(goodput - low, 0.0), goodput + high


def slack(scope: Scope, target: float) -> Slack:
    """Of the requests of a run: 1 / u, where u times the bounds on time is what a share of `target` just meets.

    Unlike attainment it tells how far from its bounds a run is that meets all or none of them. The error is that of a
    jackknife over blocks of the run, taken alone, in pairs and in fours: the largest counts.
    """
    due, count = np.diff(scope.bounds), len(SCALES)
    first = count - np.sum(_met(scope), axis=0, dtype=np.uint8)  # by request: the scale from which on it is met
    places = np.repeat(np.arange(len(due)) * (count + 1), due) + first
    met = np.bincount(places, minlength=len(due) * (count + 1)).reshape(len(due), -1)[:, :count]
    return slack_of(np.cumsum(met, axis=1).astype(float), due.astype(float), target)


def _met(scope: Scope) -> Bools:
    """By scale and request: what would be accepted."""
    found = np.tile(scope.deliveries.ok, (len(SCALES), 1))
    for index, slo in enumerate(scope.run.slos):
        others = scope.objective != index
        for row, gates in zip(found, _scaled(slo), strict=True):
            for gate in gates:
                row &= others | gate.met(scope.answers)
    return found


@lru_cache
def _scaled(slo: SLO) -> list[list[SLOGate]]:
    """Its gates, with the bounds on time times each of SCALES."""

    def scaled(gate: SLOGate, scale: float) -> SLOGate:
        return replace(gate, within_s=gate.within_s * scale) if hasattr(gate, "within_s") else gate  # type: ignore[type-var]

    return [[scaled(gate, scale) for gate in slo.gates] for scale in SCALES]


def slack_of(accepted: Floats, due: Floats, target: float) -> Slack:
    """From counts by block: accepted at each of SCALES, and due."""
    shares = [accepted.sum(axis=0, keepdims=True) / max(due.sum(), 1.0)]
    for size in GROUPS:
        count = len(due) // size
        blocks, sizes = (each[: count * size].reshape(count, size, -1).sum(axis=1) for each in (accepted, due[:, None]))
        shares.append((blocks.sum(axis=0) - blocks) / np.maximum(sizes.sum() - sizes, 1.0))
    whole, *left = np.split(_at(np.concatenate(shares), target), np.cumsum([len(each) for each in shares])[:-1])
    return float(whole[0]), max(float(np.sqrt((len(each) - 1) * np.var(each))) for each in left)


def _at(shares: Floats, target: float) -> Floats:
    """1 / u where the share that rises with the scale u, which is the last axis, reaches the target."""
    reached = shares >= target
    place = np.argmax(reached, axis=-1)
    before = np.maximum(place - 1, 0)
    low, high = (np.take_along_axis(shares, each[..., None], -1)[..., 0] for each in (before, place))
    part = (target - low) / np.where(place > 0, high - low, 1.0)
    found = np.exp(-np.log(SCALES[before]) * (1 - part) - np.log(SCALES[place]) * part)
    return np.where(reached[..., -1], np.where(place > 0, found, MOST), 0.0)
