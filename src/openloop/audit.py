"""What is missing before a number is evidence, and which claims a run could support.

The claims are those that "Goodput or it didn't happen" warns of, each with what it takes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from openloop.errors import RunError, SpecError
from openloop.frontier import Frontier, open_frontier
from openloop.frontier.folder import FRONTIER_FILE, read_asked
from openloop.importers import open_any, tool_of
from openloop.records import Run, locate, open_run
from openloop.score import Score, check
from openloop.score import score as score_run
from openloop.slo import Completion
from openloop.spec import read_json, read_yaml, suggest
from openloop.units import NS_PER_S, format_seconds, format_share

ENOUGH = 100  # requests, to have one beyond p99
WHOLE = 0.99  # of the time that was asked for: what is shorter was a probe
RATES = 5  # comfortable, moderate, busy, stressed, overloaded

# Without these no number is evidence; what each is for.
FACTS: Mapping[str, str] = {
    "slo": "without one there is no goodput, only throughput",
    "lengths": "the same server is another one with other prompts and outputs",
    "cache_warmth": "warm and disrupted caches differ by more than most comparisons",
    "quality_gate": "without labels goodput is latency-constrained throughput",
    "cost": "a rate says nothing of what a result costs",
    "arrivals": "a closed loop or even gaps hide queues",
    "model_revision": "the name of a model is not the model",
    "quantization": "it trades quality in the tail for speed",
    "hardware": "a number belongs to what it ran on",
    "engine_flags": "batching and caching are flags",
    "interval": "a point without an interval cannot be compared",
    "client_lag": "a late client measures itself",
}

# What claims need besides.
MORE: Mapping[str, str] = {
    "tail": f"p95 and p99 of at least {ENOUGH} requests",
    "retries": "attempts that are counted",
    "engine": "engine and version",
    "sweep": f"at least {RATES} rates, from comfortable to overloaded",
    "hit_rate": "prompt tokens that were found in a cache",
    "cacheable_share": "prompt tokens that could have been",
    "lifetime": "pauses between uses of a prefix, as production has them",
    "tenants": "whose requests may share a cache",
    "eviction": "a run with disrupted caches",
    "completion_window": "how long a batch may take (a gate window<=...)",
    "failed_rows": "rows that failed or expired, in the denominator",
    "delay": "when results were delivered",
    "acceptance": "drafted and accepted tokens",
    "batch_size": "how many were computed at once",
    "goodput": "accepted results, with latency and quality in the SLO",
    "utilisation": "busy share of the replicas",
}

CLAIMS: Mapping[str, tuple[str, ...]] = {
    "X tokens/s, therefore X is cheaper": ("slo", "lengths", "cache_warmth", "quality_gate", "cost"),
    "p50 latency improved, so users will feel it": ("tail", "interval", "cache_warmth", "retries", "client_lag"),
    "this engine is faster than that engine": (
        *("model_revision", "quantization", "hardware", "engine", "engine_flags"),
        *("lengths", "arrivals", "sweep", "cache_warmth"),
    ),
    "prompt caching saves N percent": ("cacheable_share", "hit_rate", "lifetime", "tenants", "eviction", "cost"),
    "the batch API is 50% cheaper, so move to batch": ("completion_window", "failed_rows", "delay", "cost"),
    "speculative decoding improves latency": ("acceptance", "batch_size", "quality_gate", "goodput", "tail"),
    "GPU utilisation is 78%, so the cluster is efficient": ("utilisation", "goodput", "cost"),
}


@dataclass(frozen=True)
class Fact:
    """Something that ought to be known; `found` is null where it is not."""

    name: str
    found: str | None
    why: str


@dataclass(frozen=True)
class Claim:
    claim: str
    supported: bool
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    subject: str
    kind: Literal["run", "sweep", "file"]
    runs: int
    reasons: tuple[str, ...]  # why the runs are not valid
    facts: list[Fact]
    claims: list[Claim]

    @property
    def missing(self) -> list[str]:
        return [fact.name for fact in self.facts if fact.found is None]


def audit(what: "str | Path | Run", slo: Any = None) -> Audit:
    """Audit a run, a folder of runs, or a file that states what is known of a benchmark."""
    if isinstance(what, Run):
        return _of_runs(str(what.path or "the run"), "run", _with_scores([what], slo))
    path = locate(what)
    if path.name == "run.json":
        path = path.parent
    if path.is_file() and tool_of(path) is None:
        return _of_file(path)
    if (path / FRONTIER_FILE).exists():
        return _of_frontier(path, slo)
    if path.is_dir() and not (path / "run.json").exists():
        inner = sorted(each.parent for each in path.rglob("run.json"))
        if not inner:
            raise RunError(f"{path} is no run and holds none: give a run, a folder of runs, or a file of facts")
        return _of_runs(str(path), "sweep", _with_scores([open_run(each) for each in inner], slo))
    return _of_runs(str(path), "run", _with_scores([open_any(path)], slo))


def audit_run(run: Run, score: Score) -> Audit:
    """As it was scored."""
    return _of_runs(str(run.path or "the run"), "run", [(run, score)])


def _of_frontier(path: Path, slo: Any) -> Audit:
    """By the runs that are as long as was asked, up to the knee: probes and what lies beyond only show on which side it
    is. What is to be compared is the knee."""
    found, seconds = open_frontier(path, slo), read_asked(path).seconds
    top = found.knee.interval[1] if found.knee.interval else math.inf
    counted = [point for point in found.points if not point.overloaded and point.rate <= top] or found.points
    runs = [(open_run(str(score.run)), score) for point in counted for score in point.scores]
    if not runs:
        raise RunError(f"{path} has no finished run: there is nothing to audit")
    ends_s = [(run.manifest.window_ns or (0, 0))[1] / NS_PER_S for run, _ in runs]
    whole = [each for each, end_s in zip(runs, ends_s, strict=True) if end_s >= WHOLE * seconds]
    return audit_sweep(found, whole or runs)


def audit_sweep(found: Frontier, runs: Sequence[tuple[Run, Score]]) -> Audit:
    """By some of its runs, as they were scored without their warm-up, and by what it shows as a whole."""
    known: dict[str, str | None] = {"sweep": f"{len(found.points)} rates" if len(found.points) >= RATES else None}
    if found.knee.interval:
        known["interval"] = found.knee.sentence
    audited = _of_runs(str(found.path), "sweep", runs, known)
    return replace(audited, runs=sum(point.repeats for point in found.points))


def _with_scores(runs: list[Run], slo: Any) -> list[tuple[Run, Score | None]]:
    return [(run, None if slo is None and run.manifest.slo is None else score_run(run, slo)) for run in runs]


def _of_runs(
    subject: str,
    kind: Literal["run", "sweep"],
    scored: Sequence[tuple[Run, Score | None]],
    together: Mapping[str, str | None] = MappingProxyType({}),  # what is known of all of them at once
) -> Audit:
    told, reasons = [], []
    for run, score in scored:
        verdict = score or check(run)
        reasons += [f"{run.path}: {reason}" if len(scored) > 1 else reason for reason in verdict.reasons]
        told.append(_told(run, score))
    known = {name: _in_all([each.get(name) for each in told]) for name in (*FACTS, *MORE)}
    manifests = [run.manifest for run, _ in scored]
    if any(each.cache_warmth == "disrupted" or each.events for each in manifests):
        known["eviction"] = "a disrupted run is among them"
    rates = {round(each.offered_rps, 6) for each in manifests if each.offered_rps}
    known["sweep"] = f"{len(rates)} rates" if len(rates) >= RATES else None
    return _audit(subject, kind, len(scored), tuple(reasons), {**known, **together})


def _of_file(path: Path) -> Audit:
    raw = read_json(path) if path.suffix == ".json" else read_yaml(path)
    if not isinstance(raw, dict):
        raise SpecError(
            f"{path} states no facts; write keys such as slo, lengths and hardware, each with what is known"
        )
    names = (*FACTS, *MORE)
    for key in raw:
        if key not in names:
            raise SpecError(f"{path}: unknown fact {key!r}{suggest(str(key), names, both=True)}")
    known = {name: None if (value := raw.get(name)) in (None, "") or value is False else str(value) for name in names}
    return _audit(str(path), "file", 0, (), known)


def _audit(subject: str, kind: Any, runs: int, reasons: tuple[str, ...], known: Mapping[str, str | None]) -> Audit:
    facts = [Fact(name, known[name], why) for name, why in FACTS.items()]
    claims = [
        Claim(claim, not lacks and not reasons, lacks)
        for claim, needs in CLAIMS.items()
        for lacks in [tuple(name for name in needs if known[name] is None)]
    ]
    return Audit(subject, kind, runs, reasons, facts, claims)


def _in_all(values: list[str | None]) -> str | None:
    """What all runs tell: one value, or that they differ."""
    if None in values or not values:
        return None
    return values[0] if len(set(values)) == 1 else f"{len(set(values))} values, as {values[0]}"


def _told(run: Run, score: Score | None) -> dict[str, str | None]:
    """What a run tells, in words."""
    manifest = run.manifest
    names = ("lengths", "cache_warmth", "model_revision", "quantization", "hardware", "engine_flags")
    found: dict[str, str | None] = {name: getattr(manifest, name) for name in names}
    if manifest.arrivals and not manifest.arrivals.startswith("closed"):
        found["arrivals"] = manifest.arrivals
    if manifest.engine and manifest.engine_version:
        found["engine"] = f"{manifest.engine} {manifest.engine_version}"
    workload = manifest.workload or ""
    recorded = manifest.source == "proxy" or "trace:" in workload or "servegen:" in workload
    if recorded:  # requests come as they came somewhere
        found["lifetime"] = str(manifest.workload)
    if recorded or any(each in workload for each in ("prefix=", "sessions", "corpus")):
        found["cacheable_share"] = str(manifest.workload)  # it says what prompts have in common
    return found | (_scored(run, score) if score else {})


def _scored(run: Run, score: Score) -> dict[str, str | None]:
    manifest, lag, quality, server = run.manifest, score.client_lag_s, score.quality, score.server
    labelled = quality is not None and quality.judged > 0 and "quality" in score.gates
    told = [leak for leak in score.leaks if leak.name == "rejected_drafts" and leak.told_by in ("rows", "server")]
    drafts = any(leak.tokens_per_s for leak in told)  # a fleet without them rejects none
    batches = manifest.source == "sim" or (server is not None and server.running_mean >= 0)
    in_flight = score.little.L_measured / (manifest.replicas or 1)
    low, high = map(format_share, score.attainment_interval)
    first = next(iter(run.batches(["tenant"])), None)
    tenants = first is not None and first.column("tenant").null_count < first.num_rows
    return {
        "slo": score.slo,
        "quality_gate": (manifest.quality_gate or f"{quality.judged:,} labels") if quality and labelled else None,
        "cost": f"{score.cost_per_accepted:.3g} per accepted result" if score.cost else None,
        "interval": f"attainment {low} to {high}" if score.valid else None,
        "client_lag": f"p99 {format_seconds(lag.p99)}" if lag else None,
        "tail": f"{score.completed:,} requests" if score.completed >= ENOUGH else None,
        "retries": f"{score.retries.amplification:.2f} attempts per request",
        "hit_rate": format_share(score.cache_hit_rate) if score.cache_hit_rate >= 0 else None,
        "tenants": "rows name them" if tenants else None,
        "completion_window": score.slo if Completion.name in score.gates else None,
        "failed_rows": "every row that was due is counted",
        "delay": f"p99 {format_seconds(score.e2e_s.p99)}" if score.e2e_s else None,
        "acceptance": "drafts are told" if drafts else None,
        "batch_size": f"{in_flight:.3g} in flight per replica" if batches else None,
        "goodput": f"{score.goodput_rps:.3g}/s" if labelled else None,
        "utilisation": format_share(score.utilisation) if score.utilisation >= 0 else None,
    }
