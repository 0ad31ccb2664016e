"""The figures of a run. Large runs are thinned so that the tail survives, and the figure says so."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from openloop.arrays import Floats, Ints
from openloop.records import MEASURES, Run
from openloop.report.marks import MOST_NAMES, Axis, Bars, Curve, Figure, Mark, Panel, Rule, Stretch, names_figure
from openloop.report.page import LEAST
from openloop.score import Percentiles, Score
from openloop.score.judged import JudgedRun, Scope
from openloop.score.metrics import benefits
from openloop.score.quantiles import LADDER
from openloop.score.server import by_replica, summed
from openloop.slo import E2E, SLO, TPOT, TTFT, LinearDeadlines, Objectives
from openloop.units import format_count, format_seconds

DRAWN = 240  # points of a distribution, evenly along its stretched axis, and as many of the largest
LARGEST = 60
SLOTS, IN_SLOT = 120, 40  # over time: at most so many, of about so many requests or more
DOT_SLOTS = 300  # of dots over time: the slowest, the fastest and the middle one of each
FEW = 20  # in a slot
BESIDE = 0.1  # of the time that is drawn: so much before and after it events are marked too
MOST_EVENTS, NAMED_EVENTS = 200, 20  # of a run that are marked, and of which the names are written
TOKENS = 600  # of one answer that are drawn before it is thinned
GAPS = 200  # its longest, which are always drawn

WAITS = {"ttft_s": ("TTFT", "blue", TTFT), "tpot_s": ("TPOT", "orange", TPOT), "e2e_s": ("E2E", "green", E2E)}

TOKEN_RATES = {
    "output_tokens_per_s": "output tokens",
    "output_token_goodput": "of accepted answers",
    "smooth_goodput": "smooth goodput",
}


def waits_of(scope: Scope) -> tuple[str, Floats, type[TTFT | E2E]]:
    """How long users waited for the first token or, where nothing was streamed, for the answer; and the gate on it."""
    if (scope.deliveries.delivered > 0).any():
        return "TTFT", scope.answers.ttft_s, TTFT
    return "E2E", scope.answers.e2e_s, E2E


def gate_rules(slos: Iterable[SLO], kind: type[Any], color: str = "grey") -> list[Rule]:
    """Where gates of a kind lie, each once."""
    gates = dict.fromkeys(gate for slo in slos for gate in slo.gates if isinstance(gate, kind))
    return [Rule(gate.within_s, f"SLO: {gate}", "y", color) for gate in gates]


def distribution_figure(scope: Scope, score: Score, objectives: Objectives) -> Figure:
    marks: list[Mark] = []
    drawn, n = 0, int(scope.deliveries.ok.sum())
    for key, (name, color, kind) in WAITS.items():
        found = getattr(score, key)
        if found is None:
            continue
        line = tail_curve(scope, key, f"{name} (n = {format_count(found.n)})", color)
        drawn = max(drawn, len(line.x))
        marks += [line, _ladder_curve(key, line.name, color, found)]
        if key != "tpot_s" and found.from_sent and abs(found.from_sent.p99 / max(found.p99, 1e-12) - 1) > 0.01:
            marks.append(tail_curve(scope, key, f"{name} from sending", color, from_sent=True))
        marks += gate_rules(objectives.slos, kind, color)
    thinned = f"; {drawn} points of each line are drawn, the {LARGEST} largest among them" if drawn < n else ""
    return Figure(
        "distribution",
        "Latency by percentile",
        Axis("share of completed requests that waited no longer", "share", "tail", low=0.0),
        [Panel(Axis("waiting time (logarithmic)", "seconds", "log"), marks, 300)],
        f"{format_count(n)} completed requests{thinned}.",
    )


def tail_curve(scope: Scope, key: str, name: str, color: str, *, from_sent: bool = False) -> Curve:
    """A latency of completed requests over the share that waited no longer."""
    values = getattr(scope.answers_from_sent if from_sent else scope.answers, key)
    values = np.sort(values[scope.deliveries.ok & ~np.isnan(values)])
    places = tail_places(len(values))
    shares = np.minimum(places / max(len(values) - 1, 1), 1 - 0.5 / max(len(values), 1))
    return Curve(name, shares, values[places], color, "dashed" if from_sent else "line")


def tail_places(n: int) -> Ints:
    """Which of n sorted values to draw: evenly along an axis that is stretched to the right, and all of the last."""
    if n <= DRAWN + LARGEST:
        return np.arange(n)
    even = (n - 1) * (1 - 10 ** -np.linspace(0, np.log10(n), DRAWN))
    return np.unique(np.concatenate([even.astype(np.int64), np.arange(n - LARGEST, n)]))


def _ladder_curve(key: str, name: str, color: str, found: Percentiles) -> Curve:
    steps = {step: share for step, share in LADDER.items() if found.n * (1 - share) >= 0.5}
    edges = np.array([found.intervals[step] for step in steps]).reshape(-1, 2)
    return Curve(
        name,
        np.array(list(steps.values())),
        np.array([getattr(found, step) for step in steps]),
        color,
        "dots",
        edges[:, 0],
        edges[:, 1],
        few=np.array([found.n * (1 - share) < 1 for share in steps.values()], np.bool_),
        keys=[f"{key}.{step}" for step in steps],
    )


def gates_figure(score: Score) -> Figure:
    names = [name for name, gate in score.gates.items() if gate.failed]
    alone = np.array([score.gates[name].failed_alone for name in names], float)
    failed = np.array([score.gates[name].failed for name in names], float)
    keys = [f"gates.{name}.failed_alone" for name in names]
    bars = [
        Bars("failed this and nothing else", np.zeros(len(names)), alone, "red", keys),
        Bars("failed this and something else", alone, failed, "grey"),
    ]
    return names_figure(
        "gates",
        "Requests that failed each gate",
        Axis("requests", "count", low=0.0),
        names,
        bars,
        f"{score.requests - score.accepted:,} of {score.requests:,} requests were not accepted.",
    )


def leaks_figure(score: Score) -> Figure:
    """From all the work that was done down to what was accepted: each bar ends where the next begins."""
    known = [leak for leak in score.leaks if leak.share is not None and np.isfinite(leak.share)]
    shares = np.array([leak.share for leak in known], float)
    ends = 1.0 - np.concatenate([[0.0], np.cumsum(shares)[:-1]])
    lost = np.array([leak.name != "accepted" for leak in known])
    starts = np.where(lost, ends - shares, 0.0)
    bars = [
        Bars("lost", np.where(lost, starts, 0.0), np.where(lost, ends, 0.0), "red"),
        Bars("accepted", np.zeros(len(ends)), np.where(lost, 0.0, ends), "green"),
    ]
    return names_figure(
        "leaks",
        "From all the work down to what was accepted",
        Axis("share of the work", "share", low=0.0, high=1.0),
        [leak.name.replace("_", " ") for leak in known],
        bars,
        "Work is tokens of answers, rejected drafts and what was computed again; reading prompts is not in it.",
    )


def replicas_figure(score: Score) -> Figure:
    groups = score.by["replica"]
    field = "ttft_s" if any(part.ttft_s for part in groups.values()) else "e2e_s"
    found = {name: getattr(part, field) for name, part in groups.items() if getattr(part, field)}
    names = sorted(found, key=lambda name: -found[name].p99)[:MOST_NAMES]
    places = np.arange(len(names), dtype=float)
    marks = []
    for step, color in (("p50", "grey"), ("p95", "blue"), ("p99", "red")):
        x = np.array([getattr(found[name], step) for name in names])
        few = np.array([found[name].n < LEAST[step] for name in names], np.bool_)
        keys = [f"by.replica.{name}.{field}.{step}" for name in names]
        marks.append(Curve(step, x, places, color, "dots", few=few, keys=keys))
    what = field.removesuffix("_s").upper()
    return names_figure(
        "replicas",
        f"Tails of {what} by replica",
        Axis(f"{what} (logarithmic)", "seconds", "log"),
        names,
        marks,
        f"{len(names)} of {len(found)} replicas, the longest p99 first. Hollow: fewer requests than it takes to have "
        "one beyond this percentile.",
    )


def timeline_figure(run: Run, judged: JudgedRun) -> Figure:
    everyone = judged.everyone
    due, window = everyone.due_ns, judged.window_ns
    start, end = min(int(due[0]), window[0]), max(int(due[-1]) + 1, window[1])
    slots = int(np.clip(len(due) // IN_SLOT, 12, SLOTS))
    edges = np.linspace(start, end, slots + 1)
    width_s = (end - start) / 1e9 / slots
    arrivals = np.histogram(due, edges)[0] / width_s
    beside = (end - start) * BESIDE
    inside = [each for each in run.manifest.events if start - beside <= each.at_ns <= end + beside]
    told = sorted(inside, key=lambda event: event.at_ns)[:MOST_EVENTS]
    shown = [each.at_ns for each in told]
    names = [event.kind if place < NAMED_EVENTS else "" for place, event in enumerate(told)]
    events: list[Mark] = [Rule(e.at_ns / 1e9, n, "x", "purple") for e, n in zip(told, names, strict=True)]
    if (window[1] - window[0]) < 0.99 * (end - start):
        events.append(Stretch(window[0] / 1e9, window[1] / 1e9, "measured", "grey"))
    most = _most_in_flight(everyone, edges)
    asked = Curve("arrivals", edges / 1e9, np.append(arrivals, arrivals[-1]), "blue", "steps")
    in_flight = Curve("in flight", edges / 1e9, np.append(most, most[-1]), "purple", "steps")
    latency, answered = _latency_panel(everyone, edges)
    panels = [
        Panel(Axis("requests due per second", "rate", low=0.0), [*events, asked], 90),
        Panel(Axis("in flight, most in each slot", "count", low=0.0), [in_flight], 90),
        *([latency] if answered else []),
        *_server_panels(run.server(), start, end),
    ]
    known = "" if answered == everyone.deliveries.ok.sum() else " of which it is known"
    dots = (
        f"Dots are all {answered:,} completed requests{known}."
        if answered
        else "Of no request it is known when it was answered."
    )
    if answered > 3 * DOT_SLOTS:
        most_of = f"the slowest, the fastest and the middle one of each of {DOT_SLOTS} slots"
        dots = f"Of {answered:,} completed requests{known}, {most_of} are dots."
    return Figure(
        "timeline",
        "The run over time",
        Axis("time since the run began", "seconds", low=min([start, *shown]) / 1e9, high=max([end, *shown]) / 1e9),
        panels,
        f"Slots of {format_seconds(width_s)}. {dots}{_left_out(len(inside))}",
    )


def _left_out(events: int) -> str:
    if events <= NAMED_EVENTS:
        return ""
    marked = f"{MOST_EVENTS} are marked and the first " if events > MOST_EVENTS else ""
    return f" Of {events:,} events the first {marked}{NAMED_EVENTS} are named."


def _most_in_flight(scope: Scope, edges: Floats) -> Floats:
    """The largest number of requests in the system in each slot."""
    came, left = np.sort(scope.due_ns), np.sort(scope.left_ns)
    level = np.arange(1, len(came) + 1) - np.searchsorted(left, came, side="right")
    slot = np.clip(np.searchsorted(edges, came, side="right") - 1, 0, len(edges) - 2)
    most = (np.searchsorted(came, edges[:-1]) - np.searchsorted(left, edges[:-1])).astype(float)
    np.maximum.at(most, slot, level)
    return most


def _latency_panel(scope: Scope, edges: Floats) -> tuple[Panel, int]:
    """How long users waited, and of how many requests this is known."""
    ok, accepted = scope.deliveries.ok, scope.judgement.accepted
    _, waits, gate = waits_of(scope)
    values = np.where(ok, waits, np.nan)
    seconds = scope.due_ns / 1e9
    known = np.flatnonzero(~np.isnan(values))
    drawn = _thinned(seconds[known], values[known])
    places = known[drawn]
    good, bad = places[accepted[places]], places[~accepted[places]]
    groups = np.split(values[known], np.searchsorted(seconds[known], edges[1:-1] / 1e9))  # in order of due times
    medians = np.array([np.median(each) if len(each) else np.nan for each in groups])
    few = np.array([len(each) < FEW for each in groups], np.bool_)
    middle = (edges[:-1] + edges[1:]) / 2e9
    marks = [
        Curve("accepted", seconds[good], values[good], "green", "dots"),
        Curve("answered, not accepted", seconds[bad], values[bad], "red", "dots"),
        Curve("median of each slot", middle, np.where(few, np.nan, medians), "ink"),
        Curve(f"median of fewer than {FEW}", middle[few], medians[few], "ink", "dots", few=few[few]),
    ]
    shown: list[Mark] = [*(each for each in marks if len(each.x)), *gate_rules(scope.run.slos, gate)]
    name = "first token after" if gate is TTFT else "answer after"
    return Panel(Axis(f"{name} (logarithmic)", "seconds", "log"), shown, 200), len(known)


def _thinned(x: Floats, y: Floats) -> Ints:
    """Of each slot of x: the largest, the smallest and the middle one."""
    if len(x) <= 3 * DOT_SLOTS:
        return np.arange(len(x))
    slot = np.minimum((x - x[0]) / ((x[-1] - x[0]) or 1.0) * DOT_SLOTS, DOT_SLOTS - 1).astype(np.int64)
    order = np.lexsort((y, slot))
    starts = np.flatnonzero(np.diff(slot[order], prepend=-1))
    ends = np.append(starts[1:], len(order)) - 1
    return np.unique(order[np.concatenate([starts, (starts + ends) // 2, ends])])


SERVER_PANELS = {
    "requests at the server": {"queue": ("waiting", "orange"), "running": ("running", "blue")},
    "KV cache and GPU in use": {"kv_use": ("KV cache", "purple"), "gpu_use": ("GPU", "sky")},
}


def _server_panels(table: pa.Table | None, start: int, end: int) -> list[Panel]:
    if table is None:
        return []
    at = table.column("time_ns").to_numpy()
    table = table.filter(pa.array((at >= start) & (at < end)))
    replicas = by_replica(table).values() if table.num_rows else ()
    panels = []
    for label, wanted in SERVER_PANELS.items():
        marks = []
        for name, (words, color) in wanted.items():
            told = [each[name] for each in replicas if name in each]
            if told:
                x, y = summed(told)
                y /= len(told) if MEASURES[name].kind == "share" else 1
                chosen = _thinned(x / 1e9, y)
                marks.append(Curve(words, x[chosen] / 1e9, y[chosen], color, "steps"))
        if marks:
            share = "kv_use" in wanted
            panels.append(
                Panel(Axis(label, "share" if share else "count", low=0.0, high=1.0 if share else None), marks, 80)
            )
    return panels


def token_figures(run: Run, judged: JudgedRun, request: int | None) -> list[Figure]:
    """The worst, the median and the chosen request."""
    scope = judged.whole
    whole = np.flatnonzero(scope.deliveries.ok & (scope.deliveries.delivered > 1))
    if not len(whole) and request is None:
        return []
    places: dict[str, int] = {}
    if len(whole):
        order = whole[np.lexsort((scope.answers.e2e_s[whole], benefits(scope)[1][whole]))]
        offset = int(scope.places[0])
        places = {"worst": int(order[-1]) + offset, "median": int(order[(len(order) - 1) // 2]) + offset}
    rows = judged.deliveries.requests.rows
    ids = judged.attempts.request_id[rows]
    if request is not None:
        places["chosen"] = int(np.flatnonzero(ids == request)[0])
    answered = np.arange(len(ids)) + rows.start if isinstance(rows, slice) else rows
    times = token_times(run, [int(answered[place]) for place in places.values()])
    return [
        figure
        for (name, place), ns in zip(places.items(), times, strict=True)
        if (figure := _token_figure(name, place, int(ids[place]), ns, judged))
    ]


def token_times(run: Run, rows: Sequence[int]) -> list[Ints]:
    """When each token of these rows came."""
    found: dict[int, Ints] = {}
    start = 0
    for batch in run.batches(["event_ns", "event_tokens"]):
        for row in rows:
            if start <= row < start + batch.num_rows and row not in found:
                ns, counts = (batch.column(name)[row - start].values for name in ("event_ns", "event_tokens"))
                times = np.asarray(ns.to_numpy() if ns is not None else (), np.int64)
                found[row] = times if counts is None else np.repeat(times, counts.to_numpy())
        start += batch.num_rows
        if len(found) == len(set(rows)):
            break
    return [found[row] for row in rows]


def _token_figure(name: str, place: int, request: int, ns: Ints, judged: JudgedRun) -> Figure | None:
    if not len(ns):
        return None
    smooth = judged.slos[judged.objective[place]].smooth
    t = (ns - judged.deliveries.requests.due_ns[place]) / 1e9
    i = np.arange(1, len(t) + 1)
    due = smooth.deadlines.due(i, np.full(len(t), t[0]), np.concatenate([[0.0], t[:-1]]))
    idle = np.maximum.accumulate(np.maximum(t - np.where(np.isfinite(due), due, t), 0.0))
    waits = np.diff(idle, prepend=0.0)
    some = np.flatnonzero(waits > 0)
    kept = _drawn_tokens(t)
    count = i.astype(float)
    x, y = np.concatenate([[0.0], t[kept]]), np.concatenate([[0.0], count[kept]])
    reader = np.isfinite(due) & (due <= 1.5 * t[-1])
    pace = smooth.deadlines.pace if isinstance(smooth.deadlines, LinearDeadlines) else 0.0
    wanted = f"reading at {1 / pace:.3g} tokens/s" if pace else "when each token was due"
    a, b, top = t[some] - waits[some], t[some], np.full(len(some), float(len(t)))
    zero = np.zeros(len(some))
    band = np.stack([zero, top, top, zero], axis=1).ravel()
    at = np.stack([a, a, b, b], axis=1).ravel()
    return Figure(
        f"tokens-{name}",
        f"The {name} request (number {request})",
        Axis("time since it was due", "seconds", low=0.0),
        [
            Panel(
                Axis("tokens", "count", low=0.0),
                [
                    *([Curve("nothing to read", at, band, "red", "area", np.zeros(len(at)), band)] if len(at) else []),
                    Curve(wanted, due[reader], count[reader], "grey", "dashed"),
                    Curve("tokens as they came", x, y, "blue", "steps"),
                ],
                170,
            )
        ],
        f"{len(t):,} tokens, first after {format_seconds(float(t[0]))}, last after {format_seconds(float(t[-1]))}; its "
        f"reader waited {format_seconds(float(idle[-1]))} in all."
        + (
            f" {len(kept):,} tokens are drawn, both sides of the longest gaps among them." if len(kept) < len(t) else ""
        ),
    )


def _drawn_tokens(t: Floats) -> Ints:
    if len(t) <= TOKENS:
        return np.arange(len(t))
    longest = np.argsort(np.diff(t))[-GAPS:]
    return np.unique(np.concatenate([np.linspace(0, len(t) - 1, TOKENS).astype(np.int64), longest, longest + 1]))
