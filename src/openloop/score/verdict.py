"""Whether a run's numbers may be believed, and what makes them weaker evidence.

A check comes to a sentence that says what is wrong, or to None. Any sentence makes the run invalid.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from openloop.arrays import Bools, Floats, Ints
from openloop.records import Manifest, Run
from openloop.score.judged import Scope
from openloop.score.metrics import sessions
from openloop.score.money import lower_bound
from openloop.score.quantiles import count_by_block
from openloop.score.requests import CENSORED, DROPPED
from openloop.slo import E2E, TPOT, TTFT, Completion, LinearDeadlines, SLOGate
from openloop.slo.gates import ITL, TBT, Cost, Jitter, Quality, Retries
from openloop.units import format_seconds, format_share

MIN_REQUESTS = 100  # the article's worked example has as many; below, a single request moves attainment by over 1%
LAG_SHARE = 0.1  # of the tightest bound from arrival: more, and the client is a visible part of what it measures
LOST_SHARE = 0.01  # of requests that were dropped or censored
WINDOW_LATENCIES = 5  # a window must be this many median latencies long
SIGMAS = 4  # of sampling error, where a promise is compared with what happened
DISPERSION = (0.2, 3.0)  # of arrivals by block, over what is promised: chi-square with 19 degrees, one in a million
TREND_Z = 2.8
TREND_RATIO = 1.5  # of late to early latency
TREND_SHARE = 0.1  # of late to early attainment, in points
ALIKE = 0.5  # correlation of neighbouring blocks that is too much
MERGED_SHARE = 0.01  # of token events, above which it is worth a word
MIN_BLOCKS = 8  # it takes to speak of a trend

LEAST_NEEDED = f"at least {MIN_REQUESTS} are needed"
CLOSED_LOOP = "a closed loop: users waited for answers before they asked again, so a slow server was asked less"
LOAD_NOT_TOLD = "it is not told when requests were sent: neither the load nor a steady state can be checked"


def _client_late(scope: Scope) -> str | None:
    bounds = [bound for slo in scope.run.slos for gate in slo.gates if (bound := _bound_from_arrival(gate))]
    if not bounds or not scope.lag_s.n:
        return None
    p99, tightest = scope.lag_s.quantile(0.99), min(bounds)
    if p99 <= LAG_SHARE * tightest:
        return None
    return (
        f"the client was late: p99 of sending behind schedule is {format_seconds(p99)}, "
        f"over {format_share(LAG_SHARE)} of the tightest bound {format_seconds(tightest)}"
    )


def _bound_from_arrival(gate: SLOGate) -> float | None:
    if isinstance(gate, TTFT | E2E | Completion):
        return gate.within_s
    deadlines = getattr(gate, "deadlines", None)
    return deadlines.first if isinstance(deadlines, LinearDeadlines) and np.isfinite(deadlines.first) else None


def _lost(scope: Scope, status: int, what: str) -> str | None:
    lost = int(np.sum(scope.deliveries.of_attempt(scope.run.attempts.status) == status))
    if lost <= LOST_SHARE * scope.n:
        return None
    return f"{lost:,} of {scope.n:,} requests {what}, over {format_share(LOST_SHARE)}"


def _rate_not_as_offered(manifest: Manifest, scope: Scope) -> str | None:
    offered = manifest.offered_rps
    if offered is None:
        return None
    found = scope.n / scope.seconds
    if abs(found / offered - 1) <= 0.005 + SIGMAS * np.sqrt(max(_promised_dispersion(manifest), 0.01) / scope.n):
        return None
    return f"{found:.3g} requests per second were due where the manifest promises {offered:.3g}"


def _arrivals_not_as_promised(scope: Scope, manifest: Manifest) -> str | None:
    """Variation of single gaps, and of counts by block: repeated or drifting gaps show only in the latter."""
    cv = manifest.arrivals_cv
    if cv is None or scope.n < MIN_REQUESTS:
        return None
    gaps = np.diff(scope.due_ns)
    found = float(gaps.std() / gaps.mean()) if gaps.any() else 0.0
    if abs(found - cv) > 0.005 + SIGMAS * max(_cv_error(gaps), cv * np.sqrt((0.5 + cv**2) / scope.n)):
        return f"gaps between arrivals vary by {found:.2f} of their mean where the arrival process promises {cv:.2f}"
    counts = np.diff(scope.bounds)
    ratio = float(counts.var(ddof=1) / counts.mean()) / max(_promised_dispersion(manifest), 0.04)
    # Where gaps depend on each other, blocks vary less than the whole window does: then only too much is wrong.
    low = DISPERSION[0] if manifest.arrivals_dispersion is None and cv > 0.2 else 0.0
    if low <= ratio <= DISPERSION[1]:
        return None
    return (
        f"arrivals come in clumps that the arrival process does not promise: their number by block of the window "
        f"varies {ratio:.1f} times as much"
    )


def _cv_error(gaps: Ints) -> float:
    """Standard error of the coefficient of variation, from the sample: with heavy tails it is larger than for gamma."""
    if not gaps.any():
        return 0.0
    x = gaps / gaps.mean()
    square = float(x.var())
    influence = (x - 1) ** 2 - square - 2 * square * (x - 1)
    return float(influence.std() / np.sqrt(len(x)) / (2 * np.sqrt(square))) if square else 0.0


def _promised_dispersion(manifest: Manifest) -> float:
    if manifest.arrivals_dispersion is not None:
        return manifest.arrivals_dispersion
    return 1.0 if manifest.arrivals_cv is None else manifest.arrivals_cv**2


def _window_short(scope: Scope) -> str | None:
    batch = all(any(isinstance(gate, Completion) for gate in slo.gates) for slo in scope.run.slos)
    if batch or not scope.e2e_s.n:  # a batch is over when it is over
        return None
    median = scope.e2e_s.quantile(0.5)
    if scope.seconds >= WINDOW_LATENCIES * median:
        return None
    return (
        f"the window of {format_seconds(scope.seconds)} is shorter than "
        f"{WINDOW_LATENCIES} median latencies of {format_seconds(median)}"
    )


def _no_steady_state(scope: Scope) -> str | None:
    """A trend through the window in latency or in attainment, or a window too short to tell."""
    latency, due = scope.medians_s, np.diff(scope.bounds)
    attainment = count_by_block(scope.judgement.accepted, scope.bounds)[due > 0] / due[due > 0]
    if drift := scope.once(_latency_drifts):
        return drift
    early, late = _ends(attainment)
    if abs(late - early) >= TREND_SHARE and abs(_trend(attainment)) >= TREND_Z:
        return _drift("attainment", late > early, format_share(early), format_share(late))
    alike = _correlation(_ranks(latency))
    if len(latency) < MIN_BLOCKS or alike <= ALIKE:
        return None
    return (
        f"the window is too short for how slowly latency varies: neighbouring twentieths of it are alike "
        f"(correlation {alike:.2f}), so intervals are too narrow; run longer"
    )


def _latency_drifts(scope: Scope) -> str | None:
    early, late = _ends(scope.medians_s)
    ratio = max(early, late) / min(early, late) if min(early, late) > 0 else np.inf
    if early == late or ratio < TREND_RATIO or abs(_trend(scope.medians_s)) < TREND_Z:
        return None
    return _drift("the median latency", late > early, format_seconds(early), format_seconds(late))


def _drift(what: str, up: bool, early: str, late: str) -> str:
    return (
        f"no steady state: {what} {'rose' if up else 'fell'} from {early} to {late} through the window, "
        "so these numbers depend on how long it was"
    )


def _ends(values: Floats) -> tuple[float, float]:
    """The typical value of the first and of the last quarter."""
    quarter = max(len(values) // 4, 1)
    return float(np.sort(values[:quarter])[quarter // 2]), float(np.sort(values[-quarter:])[quarter // 2])


def _trend(values: Floats) -> float:
    """Mann-Kendall's z, with the variance enlarged by what neighbouring blocks have in common beyond the trend."""
    k = len(values)
    if k < MIN_BLOCKS:
        return 0.0
    ranks = _ranks(values)
    score = np.sum(np.sign(ranks[None, :] - ranks[:, None])[np.triu_indices(k, 1)])
    alike = float(np.clip(_correlation(ranks), 0.0, 0.9))
    return float(score / np.sqrt(k * (k - 1) * (2 * k + 5) / 18 * (1 + alike) / (1 - alike)))


def _correlation(ranks: Floats) -> float:
    """Of neighbours, after a straight line is taken out."""
    if len(ranks) < 3:
        return 0.0
    x = np.arange(len(ranks)) - (len(ranks) - 1) / 2
    rest = ranks - ranks.mean() - x * (x @ ranks) / (x @ x)
    return float(rest[1:] @ rest[:-1] / (rest @ rest)) if rest @ rest > 1e-9 * len(ranks) else 0.0


def _ranks(values: Floats) -> Floats:
    """Places in order of size; equal values share theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _label_unknown(scope: Scope) -> str | None:
    """Gates on labels that no request of the class carries: nothing could pass."""
    for index, slo in enumerate(scope.run.slos):
        mine = scope.deliveries.ok & (scope.objective == index)
        for gate in slo.gates:
            known = _known_label(gate, scope)
            if known is not None and mine.any() and not (mine & known).any():
                return f"the SLO asks for {gate} and no request tells: none can be accepted"
    return None


def _known_label(gate: SLOGate, scope: Scope) -> Bools | None:
    if isinstance(gate, Cost):
        return ~np.isnan(scope.answers.cost)
    if isinstance(gate, Quality):
        return scope.answers.quality >= 0 if gate.at_least is None else ~np.isnan(scope.answers.quality_score)
    if isinstance(gate, E2E | Completion | Retries):
        return None
    some = scope.deliveries.delivered > 0
    known = some if isinstance(gate, TTFT | TPOT) else some & scope.answers.timed
    return known | scope.deliveries.single if isinstance(gate, TPOT | TBT | Jitter | ITL) else known


def _checks(manifest: Manifest, scope: Scope) -> dict[str, str | None]:
    arrivals, n = manifest.arrivals or "", scope.n
    due = f"{n} requests were" if n != 1 else "1 request was"
    return {
        "few_requests": None if n >= MIN_REQUESTS else f"only {due} due in the window; {LEAST_NEEDED}",
        "nothing_completed": None if scope.deliveries.ok.any() else f"none of the {n:,} requests completed",
        "closed_loop": CLOSED_LOOP if arrivals.startswith("closed") else None,
        "load_not_told": LOAD_NOT_TOLD if arrivals.startswith("not told") else None,
        "client_late": _client_late(scope),
        "arrivals_dropped": _lost(scope, DROPPED, "could not be sent by the client"),
        "requests_censored": _lost(scope, CENSORED, "were still in flight when the run ended"),
        "rate_not_as_offered": _rate_not_as_offered(manifest, scope),
        "arrivals_not_as_promised": scope.once(_arrivals_not_as_promised, manifest),
        "window_short": _window_short(scope),
        "no_steady_state": _no_steady_state(scope),
        "label_unknown": _label_unknown(scope),
    }


@dataclass(frozen=True)
class Verdict:
    """`reasons` say why a run is not valid, `faults` which checks found that; `notes`, what makes a valid one weaker
    evidence."""

    valid: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    faults: tuple[str, ...] = ()


def verdict(run: Run, scope: Scope) -> Verdict:
    if scope.n:
        found = {name: why for name, why in _checks(run.manifest, scope).items() if why}
    else:
        found = {"nothing_due": "nothing was due in the window"}
    reasons = (*run.missing, *found.values())
    faults = ("incomplete", *found) if run.missing else tuple(found)
    return Verdict(not reasons, reasons, (*_notes(run, scope), *run.manifest.notes), faults)


FACTS = (
    *("model", "model_revision", "quantization", "engine", "engine_version", "engine_flags", "hardware", "workload"),
    *("lengths", "arrivals", "prices", "seed"),
)
FACTS_IN_WORDS = {"lengths": "length distribution", "arrivals": "arrival process"}  # where the name is not plain


def _notes(run: Run, scope: Scope) -> Iterator[str]:
    deliveries, ok = scope.deliveries, scope.deliveries.ok
    untimed = ok & (deliveries.delivered == 0)
    if untimed.any():
        what = "tokens" if np.any(untimed & ~deliveries.single) else "first tokens"
        yield f"{np.sum(untimed):,} completed requests have no token times: gates on {what} count them as missed"
    at_once = int(np.sum(ok & deliveries.at_once))
    if at_once:
        yield (
            f"{at_once:,} completed requests of several tokens came in one delivery: their TPOT is 0, and gates on "
            "gaps count them as missed"
        )
    ends = int(np.sum(ok & (deliveries.delivered > 0) & ~scope.answers.timed)) - at_once
    if ends:
        yield f"{ends:,} completed requests tell only their first and last token: gates on gaps count them as missed"
    labelled = int(np.sum(ok & (deliveries.quality >= 0)))
    if ok.any() and not labelled:
        yield "no quality labels: this is latency-constrained throughput, not yet goodput in the full sense"
    elif labelled < ok.sum():
        yield f"{int(ok.sum()) - labelled:,} of {int(ok.sum()):,} completed requests carry no quality label"
    if labelled and any("quality" not in {gate.name for gate in slo.gates} for slo in scope.run.slos):
        yield "there are quality labels, and the SLO does not ask for quality: bad answers count as accepted"
    incomplete = sessions(scope).incomplete if "turn" in scope.run.attempts.present else 0
    if incomplete:
        yield f"{incomplete:,} sessions lack a turn between others: they are not accepted"
    if scope.n and (caveat := lower_bound(float(np.mean(deliveries.spending.known)))):
        yield caveat
    merged = int(np.maximum(deliveries.of_attempt(scope.run.attempts.merged_events), 0).sum())
    timed = int(deliveries.delivered.sum())
    if timed and merged > MERGED_SHARE * timed:
        yield f"{format_share(merged / timed)} of token events were read together with another: gaps are not known"
    if run.server_note:
        yield run.server_note
    if run.manifest.cache_warmth is None:
        yield "cache warmth is not known: warm and disrupted caches may differ by more than what is compared"
    told = {"prices"} if scope.run.priced else set()
    absent = [name for name in FACTS if getattr(run.manifest, name) is None and name not in told]
    if absent:
        named = (FACTS_IN_WORDS.get(name, name.replace("_", " ")) for name in absent)
        yield f"not recorded, so weaker evidence: {', '.join(named)}"
