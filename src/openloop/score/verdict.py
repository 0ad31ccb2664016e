"""Whether a run's numbers may be believed, and what makes them weaker evidence.

A check returns a sentence that says what is wrong, or None. Any sentence from CHECKS makes the run invalid.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from openloop.records import Manifest, Run
from openloop.score.attempts import CENSORED, DROPPED
from openloop.score.scope import Scope
from openloop.slo import E2E, TTFT, Quality
from openloop.units import format_seconds, format_share

__all__ = ["CHECKS", "Verdict", "verdict"]

MIN_REQUESTS = 100  # the article's worked example has as many; below, a single request moves attainment by over 1%
LAG_SHARE = 0.1  # of the tightest bound from arrival: more, and the client is a visible part of what it measures
LOST_SHARE = 0.01  # of requests that were dropped or censored
WINDOW_LATENCIES = 5  # a window must be this many median latencies long
DRIFT_RATIO = 1.5
DRIFT_Z = 3.3  # one false alarm in a thousand runs


def few_requests(_: Manifest, scope: Scope) -> str | None:
    if scope.requests >= MIN_REQUESTS:
        return None
    return f"only {scope.requests} requests were due in the window; at least {MIN_REQUESTS} are needed"


def client_late(_: Manifest, scope: Scope) -> str | None:
    bounds = [gate.within_s for slo in scope.run.slos for gate in slo.gates if isinstance(gate, TTFT | E2E)]
    if not bounds or not scope.lag_s.n:
        return None
    p99, tightest = scope.lag_s.quantile(0.99), min(bounds)
    if p99 <= LAG_SHARE * tightest:
        return None
    return (
        f"the client was late: p99 of sending behind schedule is {format_seconds(p99)}, "
        f"over {format_share(LAG_SHARE)} of the tightest bound {format_seconds(tightest)}"
    )


def arrivals_dropped(_: Manifest, scope: Scope) -> str | None:
    return _lost(scope, DROPPED, "could not be sent by the client")


def requests_censored(_: Manifest, scope: Scope) -> str | None:
    return _lost(scope, CENSORED, "were still in flight when the run ended")


def _lost(scope: Scope, status: int, what: str) -> str | None:
    lost = int(np.sum(scope.deliveries.of_attempt(scope.run.attempts.status) == status))
    if lost <= LOST_SHARE * scope.requests:
        return None
    return f"{lost:,} of {scope.requests:,} requests {what}, over {format_share(LOST_SHARE)}"


def rate_not_as_offered(manifest: Manifest, scope: Scope) -> str | None:
    offered = manifest.offered_rps
    if offered is None or not scope.requests:
        return None
    cv = 1.0 if manifest.arrivals_cv is None else manifest.arrivals_cv
    found = scope.requests / scope.seconds
    if abs(found / offered - 1) <= 0.01 + 5 * max(cv, 0.2) / np.sqrt(scope.requests):
        return None
    return f"{found:.3g} requests per second were due where the manifest promises {offered:.3g}"


def arrivals_not_as_promised(manifest: Manifest, scope: Scope) -> str | None:
    cv = manifest.arrivals_cv
    if cv is None or scope.requests < MIN_REQUESTS:
        return None
    gaps = np.diff(scope.due_ns)
    found = float(gaps.std() / gaps.mean()) if gaps.any() else 0.0
    # Sampling error of a coefficient of variation, as for gamma gaps, five times over.
    if abs(found - cv) <= 0.02 + 5 * cv * np.sqrt((0.5 + cv**2) / scope.requests):
        return None
    return f"gaps between arrivals vary by {found:.2f} of their mean where the arrival process promises {cv:.2f}"


def window_short(_: Manifest, scope: Scope) -> str | None:
    if not scope.e2e_s.n:
        return None
    median = scope.e2e_s.quantile(0.5)
    if scope.seconds >= WINDOW_LATENCIES * median:
        return None
    return (
        f"the window of {format_seconds(scope.seconds)} is shorter than "
        f"{WINDOW_LATENCIES} median latencies of {format_seconds(median)}"
    )


def latency_drifts(_: Manifest, scope: Scope) -> str | None:
    """Mann-Kendall test of a trend in the slices' median latencies, and a visible size."""
    medians = np.array([np.median(each) for each in scope.e2e_s.slices() if len(each)])
    k = len(medians)
    if k < 8:
        return None
    trend = np.sum(np.sign(medians[None, :] - medians[:, None])[np.triu_indices(k, 1)])
    z = abs(trend) / np.sqrt(k * (k - 1) * (2 * k + 5) / 18)
    early, late = float(np.median(medians[: k // 4])), float(np.median(medians[-(k // 4) :]))
    ratio = max(early, late) / min(early, late) if min(early, late) > 0 else np.inf
    if z < DRIFT_Z or ratio < DRIFT_RATIO:
        return None
    way = "rose" if late > early else "fell"
    return (
        f"no steady state: the median latency {way} from {format_seconds(early)} to {format_seconds(late)} "
        "through the window, so these numbers depend on how long it was"
    )


def quality_unknown(_: Manifest, scope: Scope) -> str | None:
    if (
        not any(isinstance(gate, Quality) for slo in scope.run.slos for gate in slo.gates)
        or not scope.deliveries.ok.any()
    ):
        return None
    labelled = (scope.deliveries.quality >= 0) | ~np.isnan(scope.deliveries.quality_score)
    if (labelled & scope.deliveries.ok).any():
        return None
    return "the SLO asks for quality and no request carries a label: none can be accepted"


CHECKS: tuple[Callable[[Manifest, Scope], str | None], ...] = (
    few_requests,
    client_late,
    arrivals_dropped,
    requests_censored,
    rate_not_as_offered,
    arrivals_not_as_promised,
    window_short,
    latency_drifts,
    quality_unknown,
)


@dataclass(frozen=True)
class Verdict:
    """`reasons` say why a run is not valid; `notes`, what makes a valid one weaker evidence."""

    valid: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


def verdict(run: Run, scope: Scope) -> Verdict:
    found = [check(run.manifest, scope) for check in CHECKS] if scope.requests else ["nothing was due in the window"]
    reasons = (*run.missing, *(sentence for sentence in found if sentence))
    return Verdict(not reasons, reasons, (*_notes(run, scope), *run.manifest.notes))


FACTS = {
    "model": "model",
    "model_revision": "model revision",
    "quantization": "quantization",
    "engine": "engine",
    "engine_version": "engine version",
    "engine_flags": "engine flags",
    "hardware": "hardware",
    "workload": "workload",
    "lengths": "length distribution",
    "arrivals": "arrival process",
    "cache_warmth": "cache warmth",
    "prices": "prices",
    "seed": "seed",
}


def _notes(run: Run, scope: Scope) -> Iterator[str]:
    deliveries, ok = scope.deliveries, scope.deliveries.ok
    untimed = int(np.sum(ok & (deliveries.delivered == 0)))
    if untimed:
        yield f"{untimed:,} completed requests have no token times: gates on tokens count them as missed"
    labelled = int(np.sum(ok & (deliveries.quality >= 0)))
    if ok.any() and not labelled:
        yield "no quality labels: this is latency-constrained throughput, not yet goodput in the full sense"
    elif labelled < ok.sum():
        yield f"{int(ok.sum()) - labelled:,} of {int(ok.sum()):,} completed requests carry no quality label"
    absent = [words for name, words in FACTS.items() if getattr(run.manifest, name) is None]
    if absent:
        yield f"not recorded, so weaker evidence: {', '.join(absent)}"
