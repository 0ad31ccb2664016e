"""Records and an SLO in, every metric out."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openloop.errors import SpecError
from openloop.records import STATUSES, Prices, Run, TimedEvent, open_run
from openloop.score import metrics
from openloop.score.judge import GateScore, JointFailure
from openloop.score.quantiles import Ladder, Percentiles, Sample, ladder, percentiles, rate_interval, share_interval
from openloop.score.read import judge_run
from openloop.score.scope import JudgedRun, Scope
from openloop.score.streams import Progress
from openloop.score.verdict import Verdict, verdict
from openloop.slo import SLO, Objectives, read_slo
from openloop.spec import suggest
from openloop.units import to_ns

__all__ = ["GROUPS", "Disruption", "Score", "Summary", "TimeWindow", "check", "score"]

Floats = NDArray[np.float64]

GROUPS = {"replica": "replica", "class": "workload_class", "tenant": "tenant", "turn": "turn"}


@dataclass(frozen=True)
class Summary:
    """What is said of any set of requests. Intervals are 95%."""

    window_s: float
    requests: int  # due
    completed: int
    accepted: int
    offered_rps: float
    throughput_rps: float
    goodput_rps: float
    goodput_rps_interval: tuple[float, float]
    goodput_rps_from_sent: float
    attainment: float
    attainment_interval: tuple[float, float]
    attainment_from_sent: float
    output_tokens_per_s: float
    output_token_goodput: float
    smooth_goodput: float
    smooth_goodput_interval: tuple[float, float]
    idle_s: Percentiles | None
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    tbt_s: Percentiles | None
    jitter_s: Percentiles | None
    e2e_s: Percentiles | None
    gates: dict[str, GateScore]
    cost_per_accepted: float | None


@dataclass(frozen=True)
class TimeWindow:
    start_s: float
    end_s: float
    summary: Summary


@dataclass(frozen=True)
class Disruption:
    """The stretch after a timed event of the run."""

    kind: str
    detail: str | None
    start_s: float
    end_s: float
    summary: Summary


@dataclass(frozen=True)
class Score(Summary):
    run: str | None
    slo: str
    valid: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    statuses: dict[str, int]
    completed_in_window_rps: float
    itl_s: Percentiles | None
    client_lag_s: Percentiles | None
    qoe: float
    fluidity_index: float
    unit: metrics.UnitScore | None
    sessions: metrics.SessionScore
    joint_failures: list[JointFailure]
    little: metrics.LittleScore
    utilisation: float
    cache_hit_rate: float
    retries: metrics.RetryScore
    cost: metrics.CostScore | None
    leaks: list[metrics.Leak]
    stragglers: list[metrics.Straggler]
    disruptions: list[Disruption]
    steady: Summary | None  # outside the disruptions
    by: dict[str, dict[str, Summary]]
    windows: list[TimeWindow]

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Null stands for what is not known and, inside a ladder, for what is infinite."""
        plain: dict[str, Any] = _plain(self)
        return plain


def score(
    run: "Run | str | Path",
    slo: "str | Path | Mapping[str, Any] | SLO | Objectives | None" = None,
    *,
    by: Sequence[str] = (),
    window_s: float | None = None,
    disruption_s: float = 60.0,
    progress: Progress | None = None,
) -> Score:
    """Score a run, or the run in a folder, against an SLO (by default the one in its manifest).

    `by` also scores each replica, class, tenant or turn; `window_s` each stretch of that many seconds.
    """
    run = run if isinstance(run, Run) else open_run(run)
    slo = run.manifest.slo if slo is None else slo
    if slo is None:
        raise SpecError("there is no goodput without an SLO: give one, for example --slo 'ttft<=500ms, tpot<=40ms'")
    for key in by:
        if key not in GROUPS:
            raise SpecError(f"cannot group by {key!r}{suggest(key, GROUPS)}")
    if window_s is not None and window_s <= 0:
        raise SpecError(f"a window of {window_s} s is no window; give a duration such as 60s")
    objectives = read_slo(slo)
    judged = judge_run(run, objectives, progress)
    return _score(run, objectives, judged, by, window_s, disruption_s)


def check(run: Run) -> Verdict:
    """The verdict on a run by itself, held against the SLO in its manifest if it has one."""
    if not run.num_rows:
        return Verdict(False, (*run.missing, "the run has no rows"), ())
    objectives = Objectives(SLO(())) if run.manifest.slo is None else read_slo(run.manifest.slo)
    return verdict(run, judge_run(run, objectives).whole)


def _score(
    run: Run,
    objectives: Objectives,
    judged: JudgedRun,
    by: Sequence[str],
    window_s: float | None,
    disruption_s: float,
) -> Score:
    scope, prices = judged.whole, run.manifest.prices
    found = verdict(run, scope)
    cost = metrics.cost_score(scope, prices)
    disruptions, steady = _disruptions(scope, run.manifest.events, disruption_s, prices)
    return Score(
        **_fields(_summary(scope, prices)),
        run=str(run.path) if run.path else None,
        slo=str(objectives),
        valid=found.valid,
        reasons=found.reasons,
        notes=found.notes,
        statuses=_statuses(scope),
        completed_in_window_rps=_completed_inside(scope) / scope.seconds,
        itl_s=_token_gaps(judged),
        client_lag_s=percentiles(scope.lag_s),
        qoe=metrics.mean_over_due(scope, scope.deliveries.qoe),
        fluidity_index=metrics.mean_over_due(scope, scope.deliveries.fluidity),
        unit=metrics.unit_score(scope, judged.slos[0]) if len({slo.unit for slo in judged.slos}) == 1 else None,
        sessions=metrics.sessions(scope),
        joint_failures=scope.judgement.joint_failures(),
        little=metrics.little(scope),
        utilisation=metrics.utilisation(scope),
        cache_hit_rate=metrics.cache_hit_rate(scope),
        retries=metrics.retry_score(scope),
        cost=cost,
        leaks=metrics.leaks(scope, cost),
        stragglers=metrics.stragglers(scope),
        disruptions=disruptions,
        steady=steady,
        by={key: _groups(scope, GROUPS[key]) for key in by},
        windows=_windows(scope, window_s, prices) if window_s else [],
    )


def _summary(scope: Scope, prices: Prices | None) -> Summary:
    judged, from_sent = scope.judgement, scope.judgement_from_sent
    answers, sent, tokens, seconds = (
        scope.answers,
        scope.answers_from_sent,
        scope.deliveries.tokens,
        scope.seconds,
    )
    ok, accepted, due = judged.ok, judged.accepted, scope.requests
    cost = metrics.cost_score(scope, prices)
    benefit, idle_s = metrics.benefits(scope)
    return Summary(
        window_s=seconds,
        requests=due,
        completed=int(ok.sum()),
        accepted=int(accepted.sum()),
        offered_rps=due / seconds,
        throughput_rps=float(ok.sum()) / seconds,
        goodput_rps=float(accepted.sum()) / seconds,
        goodput_rps_interval=rate_interval(accepted, scope.bounds, seconds),
        goodput_rps_from_sent=float(from_sent.accepted.sum()) / seconds,
        attainment=float(accepted.mean()) if due else math.nan,
        attainment_interval=share_interval(accepted, scope.bounds),
        attainment_from_sent=float(from_sent.accepted.mean()) if due else math.nan,
        output_tokens_per_s=float(tokens[ok].sum()) / seconds,
        output_token_goodput=float(tokens[accepted].sum()) / seconds,
        smooth_goodput=float(benefit.sum()) / seconds,
        smooth_goodput_interval=rate_interval(benefit, scope.bounds, seconds),
        idle_s=percentiles(Sample(idle_s, ok, scope.bounds)),
        ttft_s=_percentiles(scope, Sample(answers.ttft_s, ok, scope.bounds), sent.ttft_s),
        tpot_s=_percentiles(scope, Sample(answers.tpot_s, ok, scope.bounds)),
        tbt_s=_percentiles(scope, Sample(answers.tbt_s, ok, scope.bounds)),
        jitter_s=_percentiles(scope, Sample(answers.jitter_s, ok, scope.bounds)),
        e2e_s=_percentiles(scope, scope.e2e_s, sent.e2e_s),
        gates=judged.gate_scores(seconds),
        cost_per_accepted=cost.per_accepted if cost else None,
    )


def _percentiles(scope: Scope, sample: Sample, from_sent: Floats | None = None) -> Percentiles | None:
    """Over completed requests; beside it, with failures as infinite, and from when requests were sent.

    Times between tokens are the same by either clock.
    """
    found = percentiles(sample)
    if found is None:
        return None
    ok = scope.judgement.ok
    sent = sample if from_sent is None else Sample(from_sent, ok, scope.bounds)
    return dataclasses.replace(found, failures_as_inf=ladder(sample, int(np.sum(~ok))), from_sent=ladder(sent))


def _token_gaps(judged: JudgedRun) -> Percentiles | None:
    """Pooled over the tokens of completed requests."""
    found = percentiles(judged.gaps)
    if found is None:
        return None
    steps = {field.name: getattr(found, field.name) for field in dataclasses.fields(Ladder)}
    return dataclasses.replace(found, from_sent=Ladder(**steps))


def _statuses(scope: Scope) -> dict[str, int]:
    counts = np.bincount(scope.deliveries.of_attempt(scope.run.attempts.status), minlength=len(STATUSES))
    return {status: int(count) for status, count in zip(STATUSES, counts, strict=True)}


def _completed_inside(scope: Scope) -> float:
    """Completions that fell into the window, whenever they were due: in overload, what the system really serves."""
    everyone, (start, end) = scope.run.everyone.deliveries, scope.window_ns
    return float(np.sum(everyone.ok & (everyone.done_ns >= start) & (everyone.done_ns < end)))


def _groups(scope: Scope, column: str) -> dict[str, Summary]:
    """By value of a column. Prices per hour are the whole fleet's, so only what attempts cost is divided up."""
    values = scope.deliveries.of_attempt(getattr(scope.run.attempts, column))
    names = scope.run.attempts.words.get(column)
    return {
        "(none)" if value < 0 else names[value] if names else str(value): _summary(scope.part(values == value), None)
        for value in np.unique(values).tolist()
    }


def _windows(scope: Scope, window_s: float, prices: Prices | None) -> list[TimeWindow]:
    start, end = scope.window_ns
    edges = [*range(start, end, max(to_ns(window_s), 1)), end]
    return [TimeWindow(a / 1e9, b / 1e9, _summary(_between(scope, a, b), prices)) for a, b in itertools.pairwise(edges)]


def _disruptions(
    scope: Scope, events: Sequence[TimedEvent], disruption_s: float, prices: Prices | None
) -> tuple[list[Disruption], Summary | None]:
    """The stretches after timed events, and all the rest of the window together."""
    start, end = scope.window_ns
    found = []
    due = scope.due_ns
    disturbed, disturbed_ns, free_from = np.zeros(len(due), np.bool_), 0, start
    for event in sorted(events, key=lambda event: event.at_ns):
        a, b = max(event.at_ns, start), min(event.at_ns + to_ns(disruption_s), end)
        if a >= b:
            continue
        summary = _summary(_between(scope, a, b), prices)
        found.append(Disruption(event.kind, event.detail, a / 1e9, b / 1e9, summary))
        disturbed |= (due >= a) & (due < b)
        disturbed_ns += max(b - max(a, free_from), 0)
        free_from = max(free_from, b)
    if not found or disturbed_ns >= end - start:
        return found, None
    # Rates outside refer to the time outside: as if the window were that much shorter.
    return found, _summary(scope.part(~disturbed, (start, end - disturbed_ns)), prices)


def _between(scope: Scope, start: int, end: int) -> Scope:
    due = scope.due_ns
    return scope.part((due >= start) & (due < end), (start, end))


def _fields(summary: Summary) -> dict[str, Any]:
    return {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
