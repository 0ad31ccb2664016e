"""Two runs or two frontiers: which one, by how much, how sure, and what else could explain it."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from openloop.compare.change import METRICS, Change, change_of, changes, mean_change, same_schedule
from openloop.errors import RunError, SpecError
from openloop.frontier import Frontier, open_frontier
from openloop.frontier.folder import FRONTIER_FILE, lasting, read_asked, trials_in
from openloop.frontier.steady import after_warm_up
from openloop.importers import open_any
from openloop.records import Manifest, Run, locate, open_run
from openloop.score.judged import Scope, judge_run
from openloop.score.money import lower_bound
from openloop.score.verdict import verdict
from openloop.slo import Objectives, read_slo
from openloop.spec import plain, suggest

OTHER = {"A": "B", "B": "A"}
ONE_SIDED = 1.645 / 1.96
TELL = 0.05  # a difference that is worth telling apart
POWER = (1.96 + 0.84) / 1.96  # errors that it takes to find such a difference four times in five

# What could explain a difference. Those of the first kind make it a comparison of two workloads.
SAME_WORK = ("workload", "lengths", "arrivals", "offered_rps", "retry_policy", "cache_warmth", "slo", "quality_gate")
SAME_SYSTEM = (
    *("source", "target", "engine", "engine_version", "engine_flags", "model", "model_revision", "quantization"),
    *("hardware", "replicas", "prices", "stamps", "openloop_version", "cut_short"),
)


@dataclass(frozen=True)
class RegressionGate:
    """A change of a metric that must not be: `goodput < -5%`."""

    metric: str
    below: bool
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {'<' if self.below else '>'} {100 * self.limit:g}%"

    def fails(self, change: Change) -> bool | None:
        """Beyond the limit with 95% confidence: at the limit itself, one time in twenty. None: nobody can say."""
        if np.inf in (change.a, change.b) and change.a != change.b:  # a cost of nothing accepted
            return (change.b < change.a) == self.below
        near, far = (change.at_most, change.at_least)[:: 1 if self.below else -1]
        if near is not None and self._beyond(near):
            return True
        return None if far is None or (near is None and self._beyond(far)) else False

    def _beyond(self, change: float) -> bool:
        return change < self.limit if self.below else change > self.limit


def read_regression_gate(text: str) -> RegressionGate:
    match = re.fullmatch(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        raise SpecError(f"{text!r} is no gate; write a change that must not be, such as 'goodput < -5%'")
    if match[1] not in METRICS:
        raise SpecError(f"{text!r}: unknown metric {match[1]!r}{suggest(match[1], METRICS)}")
    return RegressionGate(match[1], match[2] == "<", float(match[3]) / 100)


@dataclass(frozen=True)
class Comparison:
    """Of A, the baseline, and B, the candidate. `sentence` is the verdict; `winner` is A, B or None.

    It is `valid` if both runs are, or both frontiers have a point that is.
    """

    a: str
    b: str
    valid: bool
    kind: str  # runs or frontiers
    slo: str
    paired: bool
    winner: str | None
    winner_by_throughput: str | None
    sentence: str
    changes: dict[str, Change]
    by_rate: dict[float, dict[str, Change]] = field(default_factory=dict)  # of frontiers: at the rates that both have
    knees: tuple[str, str] | None = None
    more_minutes: float | None = None  # of each, until a difference of 5% would be found
    warnings: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # gates
    unjudged: dict[str, str] = field(default_factory=dict)  # gates, and why nobody can say

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        found["by_rate"] = {f"{rate:g}": each for rate, each in found["by_rate"].items()}
        return found


class UnjudgedError(SpecError):
    """Gates that nobody can judge; all else was `found`."""

    def __init__(self, found: Comparison) -> None:
        told = [f"{gate} cannot be judged, for {why}" for gate, why in found.unjudged.items()]
        super().__init__("; ".join([*told, *(f"failed is {gate}" for gate in found.failed)]))
        self.found = found


def compare(
    a: str | Path | Run, b: str | Path | Run, slo: Any = None, fail_if: Sequence[str | RegressionGate] = ()
) -> Comparison:
    """Compare two runs, or the sweeps in two folders, under one SLO."""
    gates = [read_regression_gate(each) if isinstance(each, str) else each for each in fail_if]
    kinds = [not isinstance(each, Run) and (locate(each) / FRONTIER_FILE).exists() for each in (a, b)]
    names = [str((each.path if isinstance(each, Run) else each) or place) for place, each in (("A", a), ("B", b))]
    if all(kinds):
        found = _frontiers(locate(str(a)), locate(str(b)), slo)
    elif any(kinds):
        other = b if kinds[0] else a
        if not isinstance(other, Run):
            open_any(other)  # says so, if it is no run either
        told = "a run and a frontier: compare two of a kind, or a run inside of the frontier"
        raise RunError(f"{names[0]} and {names[1]} are {told}")
    else:
        first, second = (each if isinstance(each, Run) else open_any(each) for each in (a, b))
        found = _runs(first, second, names, slo)
    fails = {gate: gate.fails(found.changes[gate.metric]) if gate.metric in found.changes else None for gate in gates}
    failed = tuple(str(gate) for gate, wrong in fails.items() if wrong)
    unjudged = {str(gate): _why_unjudged(found, gate) for gate, wrong in fails.items() if wrong is None}
    found = replace(found, failed=failed, unjudged=unjudged)
    if unjudged:
        raise UnjudgedError(found)
    return found


def _why_unjudged(found: Comparison, gate: RegressionGate) -> str:
    if gate.metric not in found.changes:
        return f"{gate.metric} is not known of both; known is {', '.join(found.changes) or 'nothing'}"
    if found.knees:
        knees = "; ".join(f"knee of {name}: {knee}" for name, knee in zip("AB", found.knees, strict=True))
        return f"goodput may be higher than what was measured where a knee is not shown ({knees})"
    if found.changes[gate.metric].a == 0:
        return "the baseline has none of it"
    return "too few requests, or all in one stretch of the run, show it: measure longer"


def _one_slo(slos: Sequence[Any], slo: Any, names: Sequence[str]) -> Objectives:
    if slo is not None:
        return read_slo(slo)
    if any(each is None for each in slos):
        raise SpecError(
            "there is no goodput without an SLO: give one with --slo, for example 'ttft<=500ms, tpot<=40ms'"
        )
    first, second = (read_slo(each) for each in slos)
    if str(first) != str(second):
        raise SpecError(f"{names[0]} is held to {first} and {names[1]} to {second}: give one for both with --slo")
    return first


def _settled(run: Run, objectives: Objectives) -> Scope:
    """The requests of a point of a frontier, without its warm-up."""
    return judge_run(after_warm_up(run) if run.manifest.window_ns else run, objectives).whole


def _runs(a: Run, b: Run, names: Sequence[str], slo: Any) -> Comparison:
    objectives = _one_slo([a.manifest.slo, b.manifest.slo], slo, names)
    first, second = (judge_run(each, objectives).whole for each in (a, b))
    warnings = list(_differences(a.manifest, b.manifest))
    if max(first.seconds, second.seconds) > 1.2 * min(first.seconds, second.seconds):
        warnings.append(f"they took different times: {first.seconds:.4g} s and {second.seconds:.4g} s")
    reasons = []
    for run, scope, name in zip((a, b), (first, second), names, strict=True):
        if not scope.n:
            raise RunError(f"{name} has nothing due in its window: there is nothing to compare")
        reasons += [f"{name} is not valid: {reason}" for reason in verdict(run, scope).reasons]
        if caveat := lower_bound(float(np.mean(scope.deliveries.spending.known))):
            warnings.append(f"{name}: {caveat}")
    found = changes(first, second)
    minutes = _more_minutes(found["goodput"], min(first.seconds, second.seconds))
    winner, by_throughput, sentence = _verdict(found, minutes)
    return Comparison(
        a=names[0],
        b=names[1],
        valid=not reasons,
        kind="runs",
        slo=str(objectives),
        paired=same_schedule(first, second),
        winner=winner,
        winner_by_throughput=by_throughput,
        sentence=sentence,
        changes=found,
        more_minutes=minutes,
        warnings=(*reasons, *warnings),
    )


def _differences(a: Manifest, b: Manifest) -> Iterator[str]:
    yield from other_work(a, b)
    yield from _differ(a, b, SAME_SYSTEM, "they differ in ")


def other_work(a: Manifest, b: Manifest, leave: Collection[str] = ()) -> Iterator[str]:
    """What was asked of one and not of the other; of what is left out nothing is said."""
    return _differ(a, b, [name for name in SAME_WORK if name not in leave], "not the same workload: ")


def _differ(a: Manifest, b: Manifest, names: Sequence[str], what: str) -> Iterator[str]:
    anew = any(getattr(a, name) != getattr(b, name) for name in ("seed", "arrivals", "window_ns"))
    by_chance = a.workload is not None and a.workload == b.workload and anew
    for name in names:
        first, second = (_keys(msgspec.to_builtins(getattr(each, name))) for each in (a, b))
        if name == "lengths" and by_chance and first and second:  # but for what a prompt is made of
            first, second = (each.partition("; ")[2] for each in (first, second))
        close = name == "offered_rps" and first and second and abs(first / second - 1) < 0.01
        if first != second and not close:
            yield f"{what}{name.replace('_', ' ')}: {_told(first, second)} and {_told(second, first)}"


def _keys(value: Any) -> Any:
    """A table that is written as text, such as the flags of a fleet or a proxy, as a table."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) and value.startswith("{") else value
    except msgspec.DecodeError:
        return value


def _told(value: Any, other: Any) -> str:
    """In words; of tables only what is different."""
    if isinstance(value, dict):
        others = other if isinstance(other, dict) else {}
        told = {key: value.get(key, "left out") for key in (value | others)}
        return ", ".join(f"{key} {told[key]}" for key in told if others.get(key, "left out") != told[key]) or "nothing"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not recorded" if value is None else str(value)


def _more_minutes(change: Change, seconds: float) -> float | None:
    """Of each, until a difference of TELL would be found four times in five: errors fall with the root of time."""
    if change.half is None:
        return None
    times = (change.half * POWER / np.log1p(TELL)) ** 2
    return max(float(times - 1) * seconds / 60, 0.0)


def _verdict(found: Mapping[str, Change], minutes: float | None) -> tuple[str | None, str | None, str]:
    goodput = found["goodput"]
    raw = found["tokens"] if "tokens" in found and found["tokens"].a else found["throughput"]
    if not goodput.a and not goodput.b:
        return None, raw.winner, "neither has any goodput: nothing to choose between"
    if not goodput.a or not goodput.b:
        winner = "A" if goodput.a else "B"
        return winner, raw.winner, f"{winner}: {OTHER[winner]} has no goodput at all"
    if goodput.change is None or goodput.interval is None:
        return None, raw.winner, "goodput cannot be compared: there are too few requests"
    if goodput.winner is None:
        more = "a difference of 5% would have shown"
        if minutes:
            about = "1 minute" if minutes <= 1 else f"{np.ceil(minutes):,.0f} minutes"
            more = f"telling {TELL:.0%} apart takes about {about} more of each"
        return None, raw.winner, f"no difference shown in goodput: {_percent(goodput)}; {more}"
    return goodput.winner, raw.winner, f"{_ahead(goodput)} in goodput{_only_raw(goodput.winner, raw.winner)}"


def _only_raw(winner: str, by_throughput: str | None) -> str:
    other = OTHER[winner]
    return f"; {other} wins only on raw throughput" if by_throughput == other else ""


def _ahead(change: Change) -> str:
    """Who, and by how much."""
    size, (low, high) = change.change or 0.0, change.interval or (0.0, 0.0)
    if change.winner == "A":
        size, low, high = (1 / (1 + each) - 1 for each in (size, high, low))
    if size >= 1:
        return f"{change.winner}, by a factor of {_three(1 + size)} [{_three(1 + low)}, {_three(1 + high)}]"
    return f"{change.winner}, by {_three(100 * size)}% [{_three(100 * low)}, {_three(100 * high)}]"


def _three(value: float, sign: str = "-") -> str:
    """Three figures, and none of them an exponent."""
    return f"{value:{sign}{',.0f' if abs(value) >= 999.5 else '.3g'}}"


def _percent(change: Change) -> str:
    if change.change is None or change.interval is None:
        return "-"
    each, low, high = (_three(100 * value, "+") for value in (change.change, *change.interval))
    return f"{each}% [{low}, {high}]"


def _frontiers(a: Path, b: Path, slo: Any) -> Comparison:
    asked = [read_asked(each) for each in (a, b)]
    objectives = _one_slo([each.slo for each in asked], slo, [str(a), str(b)])
    first, second = (open_frontier(each, objectives) for each in (a, b))
    for each in (first, second):
        if not each.points:
            raise RunError(f"{each.path} has no finished run: there is nothing to compare")
    by_rate, warnings, paired, seconds = _common(a, b, objectives)
    if asked[0].target != asked[1].target:
        warnings += (f"not the same target: {asked[0].target:g} and {asked[1].target:g} of requests at the knee",)
    warnings += tuple(_cannot_be_concluded(first)) + tuple(_cannot_be_concluded(second))
    best = _best(first, second)
    winner, sentence = _by_knee(first, second, best.get("knee"))
    busiest = max(by_rate, key=lambda rate: by_rate[rate]["goodput"].a + by_rate[rate]["goodput"].b, default=None)
    minutes = None
    if winner is None and busiest is not None:
        minutes = _more_minutes(by_rate[busiest]["goodput"], seconds[busiest])
        winner, _, at_rate = _verdict(by_rate[busiest], minutes)
        sentence = f"{sentence}; offered {busiest:g}/s: {at_rate}"
    return Comparison(
        a=str(a),
        b=str(b),
        valid=all(any(point.usable for point in each.points) for each in (first, second)),
        kind="frontiers",
        slo=str(objectives),
        paired=paired,
        winner=winner,
        winner_by_throughput=_most_throughput(first, second),
        sentence=sentence,
        changes=best,
        by_rate=by_rate,
        knees=(first.knee.sentence, second.knee.sentence),
        more_minutes=minutes,
        warnings=warnings,
    )


def _cannot_be_concluded(found: Frontier) -> Iterator[str]:
    if found.knee.rate is None:
        least = "" if _shows_its_best(found) else "; its goodput may be higher than at the rates that were measured"
        yield f"{found.path} has no knee: {found.knee.sentence}{least}"
    if all(point.overloaded for point in found.points):
        yield f"{found.path} is overloaded at every rate: what it can do is not shown"
    if len(found.points) == 1:
        yield f"{found.path} has one point: there is no curve, and it can be compared at that rate only"


def _most_throughput(a: Frontier, b: Frontier) -> str | None:
    """Who completes more at their best, goodput or not; None where they are within 2%."""
    most = [max(point.completed_in_window_rps for point in lasting(each.points)) for each in (a, b)]
    return None if abs(most[1] - most[0]) <= 0.02 * max(most) else "B" if most[1] > most[0] else "A"


def _common(
    a: Path, b: Path, objectives: Objectives
) -> tuple[dict[float, dict[str, Change]], tuple[str, ...], bool, dict[float, float]]:
    """Changes at the rates that both have, run by run; what their manifests differ in; whether all are pairs."""
    first, second = (dict(trials_in(each)) for each in (a, b))
    found: dict[float, dict[str, list[Change]]] = {}
    warnings: dict[str, None] = {}
    seconds: dict[float, float] = {}
    pairs = []
    for key in sorted(first.keys() & second.keys()):
        runs = [open_run(each[key]) for each in (first, second)]
        scopes = [_settled(each, objectives) for each in runs]
        start = max(scope.window_ns[0] for scope in scopes)
        scopes = [scope.run.between(start, scope.window_ns[1]) for scope in scopes]
        if not all(scope.n for scope in scopes):
            continue
        pairs.append(same_schedule(*scopes))
        seconds[key[0]] = seconds.get(key[0], 0.0) + min(scope.seconds for scope in scopes)
        warnings |= dict.fromkeys(_differences(runs[0].manifest, runs[1].manifest))
        for name, change in changes(*scopes).items():
            found.setdefault(key[0], {}).setdefault(name, []).append(change)
    if not pairs:
        warnings["they have no rate in common: only their knees can be compared"] = None
    by_rate = {rate: {name: mean_change(each) for name, each in all_of.items()} for rate, all_of in found.items()}
    return by_rate, tuple(warnings), bool(pairs) and all(pairs), seconds


def _by_knee(a: Frontier, b: Frontier, change: Change | None) -> tuple[str | None, str]:
    if change is not None and change.interval is not None:
        if change.winner is None:
            return None, f"no difference shown between the knees: {_percent(change)}"
        return change.winner, f"{_ahead(change)} at the knee{_only_raw(change.winner, _most_throughput(a, b))}"
    ends = [each.knee.interval or (each.knee.above or 0.0, each.knee.below or np.inf) for each in (a, b)]
    for winner, mine, theirs in (("A", ends[0], ends[1]), ("B", ends[1], ends[0])):
        if mine[0] > theirs[1]:
            return winner, f"{winner}, by at least {_three(100 * (mine[0] / theirs[1] - 1))}% at the knee"
    return None, "the knees cannot be compared, for not both are shown"


def _best(a: Frontier, b: Frontier) -> dict[str, Change]:
    """Changes of the knee, and of the highest goodput, where both frontiers show them."""
    peaks = [each.peak for each in (a, b)]
    shown = {
        "knee": [(each.knee.rate or 0.0, each.knee.interval or (0.0, 0.0)) for each in (a, b)],
        "goodput": [(each.goodput_rps, each.goodput_rps_interval) if each else (0.0, (0.0, 0.0)) for each in peaks],
    }
    found = {}
    for name, pair in shown.items():
        known = [(middle, low, high) for middle, (low, high) in pair if low > 0]
        if len(known) == 2:
            half = float(np.hypot(*(np.log(high / low) / 2 for _, low, high in known)))
            middle = float(np.log(known[1][0] / known[0][0]))
            found[name] = change_of(name, known[0][0], known[1][0], middle, half, half * ONE_SIDED)
    shown_best = [_shows_its_best(each) for each in (a, b)]
    if "goodput" in found and not all(shown_best):
        most = found["goodput"].at_most if shown_best[1] else None
        least = found["goodput"].at_least if shown_best[0] else None
        found["goodput"] = replace(found["goodput"], change=None, interval=None, at_most=most, at_least=least)
    return found


def _shows_its_best(found: Frontier) -> bool:
    """Whether more rates could not show more goodput; else what was measured is a lower bound."""
    peak = found.peak
    return found.knee.rate is not None or (
        peak is not None
        and found.points[0].rate < peak.rate < found.points[-1].rate
        and (found.knee.below is not None or found.knee.quality is not None)
    )
