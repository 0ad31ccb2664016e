"""Records and an SLO in, every metric out."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from openloop.arrays import count, only
from openloop.errors import SpecError
from openloop.importers import open_any
from openloop.records import Prices, Run, TimedEvent
from openloop.records.schema import STATUSES
from openloop.score import metrics
from openloop.score.judged import GateScore, JointFailure, JudgedRun, Scope, judge_run
from openloop.score.money import Blend, CostScore, Leak, blended, cost_score, leaks, told, work
from openloop.score.quantiles import Percentiles, rate_interval, ratio, share_interval
from openloop.score.server import ServerScore, server_score
from openloop.score.streams import Progress
from openloop.score.verdict import Verdict, verdict
from openloop.slo import SLO, Objectives, parse_objectives, read_slo
from openloop.spec import plain, suggest
from openloop.units import LONGEST_S, check_number, format_seconds, to_ns

MAX_PARTS = 10_000

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
    longest_wait_s: Percentiles | None
    e2e_s: Percentiles | None
    gates: dict[str, GateScore]
    cache_hit_rate: float
    cost: CostScore | None
    cost_per_accepted: float | None


@dataclass(frozen=True)
class TimeWindow:
    start_s: float
    end_s: float
    summary: Summary


@dataclass(frozen=True)
class Disruption(TimeWindow):
    """The stretch after a timed event of the run, and before it from when the first was due that it hit in flight."""

    kind: str
    detail: str | None


@dataclass(frozen=True)
class Score(Summary):
    """A run under an SLO, whether it can be believed (`valid`, `reasons`), and parts of it (`by`, `windows`)."""

    run: str | None
    slo: str
    valid: bool
    reasons: tuple[str, ...]
    faults: tuple[str, ...]  # names of the checks that found the reasons
    notes: tuple[str, ...]
    statuses: dict[str, int]
    completed_in_window_rps: float
    completed_in_window_tokens_per_s: float  # output
    itl_s: Percentiles | None
    client_lag_s: Percentiles | None
    qoe: float
    fluidity_index: float
    units: dict[str, metrics.UnitScore]
    sessions: metrics.SessionScore
    joint_failures: list[JointFailure]
    little: metrics.LittleScore
    utilisation: float
    server: ServerScore | None  # by its own account
    preemptions: int | None  # by the rows; None: no row tells
    retries: metrics.RetryScore
    leaks: list[Leak]
    quality: metrics.QualityScore | None
    stragglers: list[metrics.Straggler]
    disruptions: list[Disruption]
    steady: Summary | None  # outside the disruptions
    by: dict[str, dict[str, Summary]]
    windows: list[TimeWindow]

    @property
    def unit_attainment(self) -> float:
        """Share accepted of what the SLO counts, which may be whole sessions; of requests, attainment."""
        return ratio(sum(each.accepted for each in self.units.values()), sum(each.due for each in self.units.values()))

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Null stands for what is not known and, inside a ladder, for what is infinite."""
        return cast(dict[str, Any], plain(self))

    def _repr_html_(self) -> str:
        """For notebooks, which ask the thing itself."""
        return str(import_module("openloop.report.notebook").score_html(self))


def score(
    run: "Run | str | Path",
    slo: "str | Path | Mapping[str, Any] | SLO | Objectives | None" = None,
    *,
    by: Sequence[str] = (),
    window_s: float | None = None,
    disruption_s: float = 60.0,
    prices: Prices | None = None,
    progress: Progress | None = None,
) -> Score:
    """Score a run, or the one in a folder or in another tool's file, against an SLO (by default its own).

    `by` also scores each replica, class, tenant or turn; `window_s` each stretch of that many seconds. `prices` stand
    in for those of the manifest.
    """
    opened = run if isinstance(run, Run) else open_any(run)
    objectives = objectives_of(opened, slo)
    for key in by:
        if key not in GROUPS:
            raise SpecError(f"cannot group by {key!r}{suggest(key, GROUPS)}")
    if window_s is not None:
        check_number("the length of windows in seconds", window_s, 1e-9, LONGEST_S)
    check_number("the length of a disruption in seconds", disruption_s, 0, LONGEST_S)
    judged = judge_run(opened, objectives, progress, prices)
    found = score_judged(opened, objectives, judged, by, window_s, disruption_s)
    return found if run is opened or opened.path else replace(found, run=str(run))  # a file of another tool


def objectives_of(run: Run, slo: "str | Path | Mapping[str, Any] | SLO | Objectives | None" = None) -> Objectives:
    """What a run is held against: the SLO given, or else the one in its manifest."""
    found = _own_objectives(run) if slo is None else read_slo(slo)
    if found is None:
        raise SpecError("there is no goodput without an SLO: give one (--slo), for example 'ttft<=500ms, tpot<=40ms'")
    return found


def blends(score: Score, every_s: Sequence[float]) -> list[Blend]:
    """Cost per accepted result if what disturbed this run did so every so often; none where nothing did.

    What is not steady is disturbed, however many events overlap in it: a rolling deployment is one. Of several
    disruptions that lie apart it is the mean. As many are taken to be due meanwhile as else, for more or fewer are no
    doing of the disruption.
    """
    calm = score.steady
    if score.cost is None or calm is None or calm.cost is None or not calm.goodput_rps:
        return []
    seconds, due = score.window_s - calm.window_s, score.requests - calm.requests
    scale = calm.offered_rps * seconds / due if due else 1.0
    accepted = scale * (score.accepted - calm.accepted)
    hourly = score.cost.hourly - calm.cost.hourly
    cost = hourly + scale * (score.cost.total - calm.cost.total - hourly)
    count = _apart(score.disruptions)
    seconds, accepted, cost = seconds / count, accepted / count, cost / count
    every_s = [every for every in every_s if every > seconds]
    if not accepted:  # all that is spent then goes to those accepted before and after
        rate = calm.cost.total / calm.window_s
        return [_all_lost(calm.cost.per_accepted, rate, cost, seconds, every) for every in every_s]
    share = accepted / seconds / calm.goodput_rps
    return [blended(calm.cost.per_accepted, cost / accepted, seconds, every, goodput_ratio=share) for every in every_s]


def _apart(disruptions: Sequence[Disruption]) -> int:
    """How many there are if those that overlap are one."""
    count, until = 0, -math.inf
    for each in sorted(disruptions, key=lambda each: each.start_s):
        count += each.start_s > until
        until = max(until, each.end_s)
    return max(count, 1)


def _all_lost(steady: float, rate: float, extra: float, length: float, every: float) -> Blend:
    calm = every - length
    found = steady * (1 + extra / (rate * calm)) if calm > 0 and rate > 0 else math.inf
    return Blend(every, length / every, found, found / steady - 1 if steady else math.nan)


def check(run: "Run | str | Path") -> Verdict:
    """The verdict on a run by itself, held against the SLO in its manifest if it has one that can be used."""
    run = run if isinstance(run, Run) else open_any(run)
    if not run.num_rows:
        return Verdict(False, (*run.missing, "the run has no rows"), ())
    try:
        return verdict(run, judge_run(run, _own_objectives(run) or Objectives(SLO(()))).whole)
    except SpecError as error:
        found = verdict(run, judge_run(run, Objectives(SLO(()))).whole)
        return replace(found, valid=False, reasons=(*found.reasons, str(error)))


def _own_objectives(run: Run) -> Objectives | None:
    """The SLO of the manifest: text or a mapping, not a file that may be anywhere."""
    slo = run.manifest.slo
    try:
        return None if slo is None else parse_objectives(slo) if isinstance(slo, str) else read_slo(slo)
    except SpecError as error:
        raise SpecError(f"the SLO in the run's own manifest cannot be used: {error}") from None


def score_judged(
    run: Run,
    objectives: Objectives,
    judged: JudgedRun,
    by: Sequence[str] = (),
    window_s: float | None = None,
    disruption_s: float = 60.0,
) -> Score:
    """The score of a run that has been judged already."""
    scope, everyone = judged.whole, judged.everyone.deliveries
    start, end = scope.window_ns
    # Whose completion fell into the window, whenever they were due: in overload, what the system really serves.
    inside = everyone.ok & (everyone.done_ns >= start) & (everyone.done_ns < end)
    unused = sorted(set(objectives.classes) - set(judged.attempts.words["workload_class"]))
    idle = [f"the SLO names workload classes that no request belongs to: {', '.join(unused)}"] if unused else []
    found = verdict(run, scope)
    server = server_score(run.server(), scope.window_ns)
    ended = scope.deliveries.of_attempt(judged.attempts.status)
    disruptions, steady = _disruptions(scope, run.manifest.events, disruption_s)
    return Score(
        **vars(_summary(scope)),
        run=str(run.path) if run.path else None,
        slo=str(objectives),
        valid=found.valid,
        reasons=found.reasons,
        faults=found.faults,
        notes=(*found.notes, *idle),
        statuses={status: count(ended == code) for code, status in enumerate(STATUSES)},
        completed_in_window_rps=count(inside) / scope.seconds,
        completed_in_window_tokens_per_s=float(only(everyone.tokens, inside).sum()) / scope.seconds,
        itl_s=judged.streams.gaps.percentiles,
        client_lag_s=scope.lag_s.percentiles,
        qoe=metrics.mean_over_due(scope, judged.streams.facts.qoe),
        fluidity_index=metrics.mean_over_due(scope, judged.streams.facts.fluidity),
        units=metrics.units(scope),
        sessions=metrics.sessions(scope),
        joint_failures=scope.judgement.joint_failures(),
        little=scope.once(metrics.little_score),
        utilisation=scope.once(metrics.utilisation, run.manifest.replicas, run.manifest.stays),
        server=server,
        preemptions=None if (counts := told(scope, "preemptions")) is None else int(counts.sum()),
        retries=scope.once(metrics.retry_score),
        leaks=leaks(scope, server),
        quality=scope.once(metrics.quality_score),
        stragglers=scope.once(metrics.stragglers),
        disruptions=disruptions,
        steady=steady,
        by={key: _groups(scope, GROUPS[key]) for key in by},
        windows=_windows(scope, window_s) if window_s else [],
    )


def _summary(scope: Scope, hourly_share: float | None = 1.0) -> Summary:
    ok, accepted, from_sent = scope.judgement.ok, scope.judgement.accepted, scope.judgement_from_sent.accepted
    tokens, seconds = scope.deliveries.tokens, scope.seconds
    slos = scope.run.slos
    smooth, around, idle_s = scope.once(_smooth, by=slos[0].smooth) if len(slos) == 1 else _smooth(scope)
    cost = cost_score(scope, hourly_share)
    attainment_interval = share_interval(accepted, scope.bounds, scope.e2e_s.independence)
    completed, good, good_from_sent = (count(each) for each in (ok, accepted, from_sent))
    return Summary(
        window_s=seconds,
        requests=scope.n,
        completed=completed,
        accepted=good,
        offered_rps=scope.n / seconds,
        throughput_rps=completed / seconds,
        goodput_rps=good / seconds,
        goodput_rps_interval=_goodput_interval(scope, attainment_interval),
        goodput_rps_from_sent=good_from_sent / seconds,
        attainment=ratio(good, scope.n),
        attainment_interval=attainment_interval,
        attainment_from_sent=ratio(good_from_sent, scope.n),
        output_tokens_per_s=float(only(tokens, ok).sum()) / seconds,
        output_token_goodput=float(only(tokens, accepted).sum()) / seconds,
        smooth_goodput=smooth,
        smooth_goodput_interval=around,
        idle_s=idle_s,
        **scope.latencies,
        gates=scope.judgement.gate_scores(seconds),
        cache_hit_rate=metrics.cache_hit_rate(scope),
        cost=cost,
        cost_per_accepted=cost.per_accepted if cost else None,
    )


def _smooth(scope: Scope) -> tuple[float, tuple[float, float], Percentiles | None]:
    """Smooth goodput, its interval, and how long readers had to wait."""
    benefit, idle_s = metrics.benefits(scope)
    interval = rate_interval(benefit, scope.bounds, scope.seconds)
    return float(benefit.sum()) / scope.seconds, interval, scope.sample(idle_s).percentiles


def _goodput_interval(scope: Scope, attainment: tuple[float, float]) -> tuple[float, float]:
    """From how goodput varies between blocks, and never narrower than the offered rate times attainment's interval."""
    offered = scope.n / scope.seconds
    low, high = rate_interval(scope.judgement.accepted, scope.bounds, scope.seconds)
    if not scope.n:
        return 0.0, math.nan
    return max(min(low, offered * attainment[0]), 0.0), max(high, offered * attainment[1])


def _groups(scope: Scope, column: str) -> dict[str, Summary]:
    """By value of a column; requests without one are a group of their own."""
    values = scope.deliveries.of_attempt(getattr(scope.run.attempts, column))
    names = scope.run.attempts.words.get(column)
    none = "(none)" if not names or "(none)" not in names else "(no value)"
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    if len(cuts) >= MAX_PARTS:
        raise SpecError(f"{column} has {len(cuts) + 1:,} different values; at most {MAX_PARTS:,} can be scored apart")
    found, total = {}, work(scope)
    for members in np.split(order, cuts):
        value = int(values[members[0]]) if len(members) else -1
        part = scope.part(members)
        # What is reserved is borne by those whom it worked for; which replica was idle for whom, nobody can say.
        share = None if column == "replica" or not total else work(part) / total
        found[none if value < 0 else names[value] if names else str(value)] = _summary(part, share)
    return found


def _windows(scope: Scope, window_s: float) -> list[TimeWindow]:
    start, end = scope.window_ns
    step = to_ns(window_s)
    if (end - start) / step > MAX_PARTS:
        raise SpecError(
            f"windows of {format_seconds(window_s)} cut {format_seconds(scope.seconds)} "
            f"into more than {MAX_PARTS:,} pieces; give a longer one"
        )
    edges = [*range(start, end, step), end]
    return [TimeWindow(a / 1e9, b / 1e9, _summary(scope.run.between(a, b))) for a, b in itertools.pairwise(edges)]


def _disruptions(
    scope: Scope, events: Sequence[TimedEvent], disruption_s: float
) -> tuple[list[Disruption], Summary | None]:
    """The stretches around timed events, and all the rest of the window together."""
    start, end = scope.window_ns
    found: list[Disruption] = []
    disturbed: list[tuple[int, int]] = []
    for event in sorted(events, key=lambda event: event.at_ns):
        at, b = max(event.at_ns, start), min(event.at_ns + to_ns(disruption_s), end)
        if at < b:
            a = _first_lost(scope, at, to_ns(disruption_s))
            summary = _summary(scope.run.between(a, b))
            found.append(Disruption(a / 1e9, b / 1e9, summary, event.kind, event.detail))
            while disturbed and disturbed[-1][1] >= a:
                before = disturbed.pop()
                a, b = min(before[0], a), max(before[1], b)
            disturbed.append((a, b))
    if not found or sum(b - a for a, b in disturbed) >= end - start:
        return found, None
    calm = np.all([(scope.due_ns < a) | (scope.due_ns >= b) for a, b in disturbed], axis=0)
    return found, _summary(Scope(scope.run, scope.places[calm], scope.window_ns, tuple(disturbed)))


def _first_lost(scope: Scope, at_ns: int, most_ns: int) -> int:
    """When the first of those was due that were in flight at an event and not accepted, for they are its victims."""
    near = slice(*np.searchsorted(scope.due_ns, (at_ns - most_ns, at_ns)))
    lost = (scope.left_ns[near] >= at_ns) & ~scope.judgement.accepted[near]
    return int(scope.due_ns[near][lost].min(initial=at_ns))
