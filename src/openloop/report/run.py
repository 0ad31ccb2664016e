"""The report of a run: a list of small functions, each from the run to a section of it."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from openloop.audit import Audit, audit_run
from openloop.errors import SpecError
from openloop.records import Manifest, Run
from openloop.report import tables
from openloop.report.figures import (
    TOKEN_RATES,
    WAITS,
    distribution_figure,
    gates_figure,
    leaks_figure,
    replicas_figure,
    timeline_figure,
    token_figures,
)
from openloop.report.marks import MOST_NAMES
from openloop.report.page import (
    Number,
    Report,
    Section,
    Table,
    number,
    own_units,
    span,
    unit_costs,
    written,
)
from openloop.score import Score
from openloop.score.judged import JudgedRun, judge_run
from openloop.score.metrics import LEAST_EACH, LEAST_REPLICAS
from openloop.score.scorer import objectives_of, score_judged
from openloop.score.streams import Progress
from openloop.slo import Objectives
from openloop.units import format_count, format_money, format_rate, format_seconds, format_share

MOST_GROUPS = 200  # that are scored apart
MOST_ERRORS = 8  # that are listed


@dataclass(frozen=True)
class RunSubject:
    """A run, judged and scored."""

    run: Run
    objectives: Objectives
    judged: JudgedRun
    score: Score
    request: int | None = None  # whose tokens somebody would like to see
    asked: tuple[str, ...] = ()  # the command that makes this report, where one is known


def command_of(
    path: str | Path, slo: object = None, request: int | None = None, point: float | None = None
) -> tuple[str, ...]:
    flags = {"--slo": slo, "--request": request, "--point": point}
    given = [(flag, str(value)) for flag, value in flags.items() if value is not None]
    return ("openloop", "report", str(path), *(part for each in given for part in each))


def read_run_subject(
    run: Run,
    slo: "str | Path | Objectives | None" = None,
    request: int | None = None,
    progress: Progress | None = None,
    before: JudgedRun | None = None,
) -> RunSubject:
    """`before`: the same run as it was judged against another SLO."""
    objectives = objectives_of(run, slo)
    judged = judge_run(run, objectives, progress, before=before)
    words = judged.attempts.words
    groups = {"replica": words["replica"], "class": words["workload_class"]}
    by = [key for key, names in groups.items() if 1 < len(names) <= MOST_GROUPS]
    if request is not None and request not in judged.attempts.request_id:
        raise SpecError(f"the run has no request {request}; its numbers are those of the column request_id")
    return RunSubject(run, objectives, judged, score_judged(run, objectives, judged, by), request)


def run_report(subject: RunSubject) -> Report:
    score, run = subject.score, subject.run
    headline, sentences = run_headline(score)
    sentences += [f"{format_count(count)} attempts failed with: {error}." for error, count in _errors(subject)[:1]]
    facts = (run.manifest.source, run.manifest.model, run.manifest.target or run.manifest.engine)
    when = (run.manifest.started_at or "")[:16].replace("T", " ")
    return Report(
        title=run.path.resolve().name if run.path else "run",
        subtitle=" · ".join([*dict.fromkeys(fact for fact in facts if fact), *([when] if when else [])]),
        verdict="good" if score.valid else "invalid",
        headline=headline,
        sentences=sentences,
        numbers=list(_numbers(score)),
        sections=[section for make in RUN_SECTIONS if (section := make(subject))],
        data=score.to_dict(),
    )


def run_headline(score: Score) -> tuple[str, list[str]]:
    """The verdict in plain words: one line, and a few sentences."""
    goodput, offered = (format_rate(each).removesuffix("/s") for each in (score.goodput_rps, score.offered_rps))
    headline = f"Users accepted {goodput} of {offered} requests per second"
    sentences = [f"Not valid: {reason}." for reason in score.reasons]
    sentences.append(
        f"{format_share(score.attainment)} of {format_count(score.requests)} requests met {score.slo} "
        f"(95% interval {span(score.attainment_interval, 'share')})."
    )
    sentences += [
        f"{format_share(unit.attainment)} of {format_count(unit.due)} {name} were accepted: {rate}."
        for _, unit, name, rate in own_units(score.units)
    ]
    sentences += _stopped(score)
    if score.completed > score.accepted:
        wasted = 1 - score.accepted / score.completed
        sentences.append(
            f"{format_rate(score.throughput_rps)} were answered; {format_share(wasted)} of those answers did not count."
        )
    if score.cost and score.accepted:
        each, accepted = format_money(score.cost.per_request), format_money(score.cost.per_accepted)
        sentences.append(f"A request cost {each}, an accepted one {accepted}.")
    return headline, sentences


def _stopped(score: Score) -> Iterator[str]:
    """What stopped most of those that were not accepted."""
    failed = {name: gate for name, gate in score.gates.items() if gate.failed}
    if not failed:
        return
    name = max(failed, key=lambda each: failed[each].failed)
    gate = failed[name]
    if name == "success":
        yield f"{format_count(gate.failed)} requests were not answered."
    else:
        alone = "all" if gate.failed_alone == gate.failed else format_count(gate.failed_alone)
        yield f"{name} stopped most of the rest: {format_count(gate.failed)} missed it, {alone} of them nothing else."


def _numbers(score: Score) -> Iterator[tuple[str, Number, str]]:
    yield "goodput", number(score, "goodput_rps", "rate"), span(score.goodput_rps_interval, "rate")
    yield "attainment", number(score, "attainment", "share"), span(score.attainment_interval, "share")
    for key, unit, name, rate in own_units(score.units):
        about = f"of {format_count(unit.due)}; {rate}"
        yield f"accepted {name}", number(unit, "attainment", "share", f"units.{key}."), about
    yield "throughput", number(score, "throughput_rps", "rate"), "answered, accepted or not"
    key, found = ("ttft_s", score.ttft_s) if score.ttft_s else ("e2e_s", score.e2e_s)
    if found:
        told = span(found.intervals["p99"], "seconds")
        yield f"p99 {WAITS[key][0]}", number(score, f"{key}.p99", "seconds"), told
    if score.cost:
        per_request = f"{format_money(score.cost.per_request)} per request"
        yield "cost per accepted", number(score, "cost_per_accepted", "money"), per_request
        yield from ((name, cost, "of all its turns") for name, cost in unit_costs("cost per accepted", score.units))
    elif score.output_tokens_per_s:
        yield "smooth goodput", number(score, "smooth_goodput", "rate"), "tokens, less for late ones"


def _errors(subject: RunSubject) -> list[tuple[str, int]]:
    """What attempts that failed say of themselves, the most common first; a copy that was not needed did not fail."""
    counts: Counter[str] = Counter()
    if subject.score.completed < subject.score.requests:
        for batch in subject.run.batches(["status", "error"]):
            found = pa.Table.from_batches([batch]).filter(pc.field("status") != "cancelled").column("error")
            counts.update({each["values"]: each["counts"] for each in found.drop_null().value_counts().to_pylist()})
    return counts.most_common(MOST_ERRORS)


def distribution(subject: RunSubject) -> Section | None:
    if not any(getattr(subject.score, key) for key in WAITS):
        return None
    return Section(
        "latency",
        "How long users waited",
        "Each line reads: this share of requests waited no longer than this. The axis is stretched "
        "towards the slowest few, which decide what people think of a service.",
        [distribution_figure(subject.judged.whole, subject.score, subject.objectives), tables.latencies(subject.score)],
        "From when a request was due, over completed requests; failed ones are counted in the gates below. Dots are "
        "exact percentiles, whiskers their 95% intervals from batch means over 20 blocks of the window. "
        "Nothing is smoothed: a line joins order statistics.",
    )


def gates(subject: RunSubject) -> Section | None:
    score = subject.score
    told = [(error, Number(count, "count")) for error, count in _errors(subject)]
    return Section(
        "gates",
        "What stopped the others",
        f"A request is accepted when it passes every gate of {score.slo}.",
        [
            *([gates_figure(score)] if score.accepted < score.requests else []),
            *tables.gates(score),
            *([Table(("what attempts that failed say", "attempts"), told)] if told else []),
        ],
        "Gates judge completed requests; one that did not complete has failed 'success' and nothing else. What the run "
        "does not tell is not passed.",
    )


def timeline(subject: RunSubject) -> Section | None:
    return Section(
        "timeline",
        "The run as it went",
        "From top to bottom: what was asked, what was in flight, how long the first token (or the answer) took, and "
        "what the server said of itself.",
        [timeline_figure(subject.run, subject.judged)],
        "Rates are counts per slot over its length. A request is in flight from when it was due until it left. Server "
        "figures are its own, as read during the run: gauges are summed over replicas, shares averaged.",
    )


def tokens(subject: RunSubject) -> Section | None:
    figures = token_figures(subject.run, subject.judged, subject.request)
    if not figures:
        return None
    return Section(
        "tokens",
        "Token by token",
        "What one user saw: the steps are tokens as they came, the dashed line is where a reader would like to be, "
        "and in the shaded time that reader had nothing to read.",
        figures,
        "Requests are ranked by user idle latency, max over i of (t_i - d_i), and where that is equal by E2E; the "
        "shaded times add up to it. Openloop can show any other: openloop report RUN --request NUMBER.",
    )


def smooth(subject: RunSubject) -> Section | None:
    score = subject.score
    if not score.output_tokens_per_s:
        return None
    alpha = subject.judged.slos[0].smooth.alpha
    told = {"smooth_goodput": span(score.smooth_goodput_interval, "rate")}
    rows = [(words, number(score, key, "rate"), told.get(key, "")) for key, words in TOKEN_RATES.items()]
    return Section(
        "smooth",
        "Smooth goodput beside goodput",
        "Goodput takes an answer or leaves it. Smooth goodput keeps all its tokens and takes some off for every second "
        "in which the reader had to wait.",
        [Table(("tokens per second", "", "95% interval"), rows)],
        f"benefit = n - alpha * f(l) per request, alpha {alpha:g} tokens, l the user idle latency; docs/slo.md.",
    )


def replicas(subject: RunSubject) -> Section | None:
    names = subject.judged.attempts.words["replica"]
    if len(names) < 2:
        return None
    if len(names) > MOST_GROUPS:
        what = f"The run names {len(names):,} replicas; up to {MOST_GROUPS} are shown apart."
        return Section("replicas", "Replica by replica", what, [])
    slow = {each.replica: each for each in subject.score.stragglers}
    found = [
        f"{name} stands out: p95 of {each.metric.removesuffix('_s').upper()} is {format_seconds(each.p95_s)} where the "
        f"fleet's is {format_seconds(each.fleet_p95_s)}."
        for name, each in slow.items()
    ]
    groups = subject.score.by["replica"]
    if sum(part.completed >= LEAST_EACH for part in groups.values()) < LEAST_REPLICAS:
        takes = f"that takes {LEAST_REPLICAS} replicas with {LEAST_EACH} completed requests each"
        found = [f"Whether one stands out was not judged: {takes}."]
    return Section(
        "replicas",
        "Replica by replica",
        "A mean over replicas hides the slow ones; their tails do not.",
        [
            *(found or ["No replica stands out."]),
            replicas_figure(subject.score),
            tables.group("replica", groups),
        ],
        "A straggler's p95 is at least 1.5 times the median replica's and further from it than 3.5 robust standard "
        f"deviations. The {MOST_NAMES} with the longest p99 are drawn.",
    )


def classes(subject: RunSubject) -> Section | None:
    groups = subject.score.by.get("class")
    if not groups:
        return None
    lead = "Each class of work is held against its own objectives."
    return Section("classes", "Class by class", lead, [tables.group("class", groups)])


def disruptions(subject: RunSubject) -> Section | None:
    if not subject.score.disruptions:
        return None
    lead = "What was done to the system during the run, and what users got just after."
    return Section("disruptions", "Disruptions", lead, [tables.disruptions(subject.score)])


def money(subject: RunSubject) -> Section | None:
    cost = subject.score.cost
    if cost is None:
        return None
    lead = "Everything that failed is in the numerator: it was paid for too."
    return Section("money", "What it cost", lead, [tables.money(cost, subject.score.units)])


def leaks(subject: RunSubject) -> Section | None:
    score = subject.score
    if not any(leak.share is not None and np.isfinite(leak.share) for leak in score.leaks):
        return None
    return Section(
        "leaks",
        "Where the work went",
        "Throughput down to goodput: what was computed and did not reach anybody who accepted it.",
        [leaks_figure(score), tables.leaks(score.leaks)],
        "The steps add up to all that was computed; some are told by the server's counters, or not told.",
    )


def evidence(subject: RunSubject) -> Section | None:
    return missing(audit_run(subject.run, subject.score), "the run")


def missing(found: Audit, where: str) -> Section:
    return Section(
        "evidence",
        "What is missing before this is evidence",
        f"{len(found.missing)} of {len(found.facts)} facts that a reader needs are not in {where}.",
        tables.audited(found),
        "openloop audit tells the same.",
    )


def validity(subject: RunSubject) -> Section | None:
    score = subject.score
    lead = (
        "All checks passed: the numbers describe a steady state, and the client kept its schedule."
        if score.valid
        else "These numbers must not be quoted, for:"
    )
    parts: list[str | Table] = [*score.reasons]
    if score.notes:
        parts.append(Table(("what makes it weaker evidence",), [(note,) for note in score.notes]))
    parts.append(tables.checks(score))
    return Section(
        "validity",
        "Can it be believed?",
        lead,
        parts,
        "Checks: enough requests, the client on time, nothing dropped or cut off, arrivals as promised, a window long "
        "enough, no trend through it (Mann-Kendall over 20 blocks); docs/metrics.md.",
    )


def manifest(subject: RunSubject) -> Section | None:
    facts = msgspec.to_builtins(subject.run.manifest)
    known = [(name, written(value)) for name, value in facts.items() if value not in (None, [], ())]
    absent = [name for name, value in facts.items() if value is None]
    lead = "What makes the number reusable." + (f" Not recorded: {', '.join(absent)}." if absent else "")
    return Section("manifest", "The manifest", lead, [Table(("fact", "value"), known)], folded=True)


def reproduce(subject: RunSubject) -> Section | None:
    facts = subject.run.manifest
    lead = (
        "The same seed gives the same schedule and the same requests."
        if facts.seed is not None
        else "No seed was recorded, so these requests cannot be asked again; their report can be made again."
    )
    return Section("reproduce", "Do it again", lead, [how(facts, facts.seed, subject.asked)])


def how(facts: Manifest, seed: int | None, asked: Sequence[str]) -> Table:
    rows = [
        ("command", shlex.join(facts.command) if facts.command else "not recorded"),
        ("seed", "not recorded" if seed is None else str(seed)),
        ("openloop", facts.openloop_version or "not recorded"),
        *([("this report", shlex.join(asked))] if asked else []),
    ]
    return Table(("", ""), rows)


RUN_SECTIONS: tuple[Callable[[RunSubject], Section | None], ...] = (
    *(distribution, gates, timeline, tokens, smooth, replicas, classes, disruptions, money, leaks),
    *(validity, evidence, manifest, reproduce),
)
