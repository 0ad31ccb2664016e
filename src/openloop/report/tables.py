"""The tables of a score, for its page and for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openloop.report.page import Columns, Number, Table, columns, numbers, unit_costs
from openloop.score import CostScore, Leak, Score, Summary, UnitScore
from openloop.units import format_seconds

if TYPE_CHECKING:  # an audit reads frontiers, and they simulate: most tables have nothing to do with that
    from openloop.audit import Audit

LATENCIES = {
    "ttft_s": "first token (TTFT)",
    "tpot_s": "each further token (TPOT)",
    "itl_s": "gaps between tokens (ITL)",
    "tbt_s": "longest gap (TBT)",
    "jitter_s": "longest minus shortest gap (jitter)",
    "e2e_s": "whole answer (E2E)",
    "idle_s": "reader had to wait (user idle)",
    "client_lag_s": "client behind schedule (client lag)",
}
LADDER: Columns = {
    "n": ("n", "count"),
    "p50": ("p50", "seconds"),
    "p90": ("p90", "seconds"),
    "p95": ("p95", "seconds"),
    "p99": ("p99", "seconds"),
    "intervals.p99": ("p99, 95% interval", "seconds"),
    "p99_9": ("p99.9", "seconds"),
    "mean": ("mean", "seconds"),
}
GATE: Columns = {
    "failed": ("failed", "count"),
    "failed_alone": ("of these, nothing else", "count"),
    "attainment": ("would be accepted by it alone", "share"),
}
PART = columns(  # a replica, a class, a stretch of time
    "requests goodput_rps attainment attainment_interval ttft_s.p50 ttft_s.p99 tpot_s.p99 e2e_s.p99 cache_hit_rate "
    "cost_per_accepted"
)
LEAK: Columns = {
    "requests_per_s": ("attempts", "rate"),
    "tokens_per_s": ("tokens", "rate"),
    "share": ("share", "share"),
    "cost": ("cost", "money"),
    "told_by": ("told by", "count"),
}
COST: Columns = {
    "total": ("all of it", "money"),
    "hourly": ("by the hour", "money"),
    "serving": ("by request and token", "money"),
    "judging": ("judging", "money"),
    "human_review": ("human review", "money"),
    "per_request": ("per request", "money"),
    "per_accepted": ("per accepted request", "money"),
    "per_million_output_tokens": ("per million output tokens", "money"),
    "per_million_accepted_output_tokens": ("per million accepted output tokens", "money"),
    "known_for": ("requests of which the cost is known", "share"),
}
OTHERWISE: Columns = {
    "failures_as_inf.p50": ("p50, failures as never", "seconds"),
    "failures_as_inf.p99": ("p99, failures as never", "seconds"),
    "from_sent.p50": ("p50 from send", "seconds"),
    "from_sent.p99": ("p99 from send", "seconds"),
}
TURN = columns("requests attainment prompt_tokens cache_hit_rate")
STRAGGLER: Columns = {
    "metric": ("metric", "count"),
    "p95_s": ("p95", "seconds"),
    "fleet_p95_s": ("fleet's p95", "seconds"),
}
CHECKS: Columns = {
    "little.L_measured": ("in flight, measured", "number"),
    "little.L_law": ("in flight, by Little's law", "number"),
    "completed_in_window_rps": ("completed inside the window", "rate"),
    "completed_in_window_tokens_per_s": ("their output tokens", "rate"),
    "goodput_rps_from_sent": ("goodput if the clock started at sending", "rate"),
    "utilisation": ("busy (which is not productive)", "share"),
    "qoe": ("QoE", "share"),
    "fluidity_index": ("fluidity index", "share"),
    "cache_hit_rate": ("cached share of prompts", "share"),
    "preemptions": ("preemptions", "count"),
    "retries.amplification": ("attempts per request", "number"),
    "retries.retries": ("retries", "count"),
    "retries.hedges": ("hedges", "count"),
    "retries.repairs": ("repairs", "count"),
    "server.queue_mean": ("waiting at the server, mean", "number"),
    "server.queue_peak": ("waiting at the server, peak", "number"),
    "server.running_mean": ("running at the server, mean", "number"),
    "server.running_peak": ("running at the server, peak", "number"),
    "server.kv_use_mean": ("its KV cache, mean", "share"),
    "server.kv_use_peak": ("its KV cache, peak", "share"),
    "server.preemptions": ("its preemptions", "count"),
    "server.prefix_hit_rate": ("its prefix hits", "share"),
    "server.draft_acceptance": ("its drafts accepted", "share"),
    "server.gpu_use": ("its GPU", "share"),
}
MOST_TOGETHER = 8
FEW = "* fewer values than it takes to have one beyond this percentile"
OPEN = "? the run is too short, or varies too much, to bound it from above"


def field_table(title: str, things: Sequence[tuple[str, Any, str]], columns: Columns) -> Table:
    """A row of its fields for each thing, which comes with its name and its key in the JSON; without empty columns."""
    made = [numbers(thing, columns, f"{key}.") for _, thing, key in things]
    kept = [i for i in range(len(columns)) if any(str(cells[i]) != "-" for cells in made)]
    rows = [[name, *(cells[i] for i in kept)] for (name, *_), cells in zip(things, made, strict=True)]
    shown = [str(cell) for row in rows for cell in row[1:]]
    notes = [note for note in (FEW, OPEN) if any(cell.endswith(note[0]) for cell in shown)]
    words = [each for each, _ in columns.values()]
    return Table((title, *(words[i] for i in kept)), rows, "; ".join(notes))


def latencies(score: Score) -> Table:
    known = [
        (words, found, key)
        for key, words in LATENCIES.items()
        if (found := getattr(score, key)) and (key != "idle_s" or score.output_tokens_per_s)
    ]
    return field_table("latency", known, LADDER)


def gates(score: Score) -> list[Table]:
    """What was failed, what was failed together, and how requests ended."""
    gates = [(_gate_name(name, score), gate, f"gates.{name}") for name, gate in score.gates.items()]
    joint = [(" + ".join(each.gates), each.requests) for each in score.joint_failures if len(each.gates) > 1]
    together = [(names, Number(count, "count")) for names, count in joint[:MOST_TOGETHER]]
    ended = [(name, Number(count, "count", f"statuses.{name}")) for name, count in score.statuses.items() if count]
    found = [field_table("gate", gates, GATE), Table(("missed together", "requests"), together)]
    return [table for table in (*found, Table(("ended as", "requests"), ended)) if table.rows]


def _gate_name(name: str, score: Score) -> str:
    if name == "success":
        return "success (it was answered)"
    return next((text for text in score.slo.split(", ") if text.startswith(name) and ";" not in score.slo), name)


def group(by: str, groups: Mapping[str, Summary]) -> Table:
    return field_table(f"by {by}", [(name, part, f"by.{by}.{name}") for name, part in groups.items()], PART)


def disruptions(score: Score) -> Table:
    found = [
        (
            f"{each.kind}{f' ({each.detail})' if each.detail else ''}, {format_seconds(each.start_s)} to "
            f"{format_seconds(each.end_s)}",
            each.summary,
            f"disruptions.{i}.summary",
        )
        for i, each in enumerate(score.disruptions)
    ]
    calm = [("outside of these", score.steady, "steady")] if score.steady else []
    return field_table("disruption", [*found, *calm], PART)


def leaks(found: Iterable[Leak]) -> Table:
    named = [(leak.name.replace("_", " "), leak, f"leaks.{i}") for i, leak in enumerate(found)]
    return field_table("where the work went", named, LEAK)


def checks(score: Score) -> Table:
    """What is known of these."""
    cells = zip(CHECKS, numbers(score, CHECKS), strict=True)
    left_out = set() if score.output_tokens_per_s else {"completed_in_window_tokens_per_s"}
    if score.retries.attempts == score.requests:
        left_out |= {path for path in CHECKS if path.startswith("retries.")}
    rows = [(CHECKS[path][0], cell) for path, cell in cells if path not in left_out and str(cell) != "-"]
    return Table(("cross-checks", ""), rows)


def money(cost: CostScore, units: Mapping[str, UnitScore]) -> Table:
    cells = zip(COST.values(), numbers(cost, COST, "cost."), strict=True)
    rows = [*((words, cell) for (words, _), cell in cells), *unit_costs("per accepted", units)]
    return Table(("cost", "in the manifest's currency"), rows)


def further(score: Score) -> list[Table]:
    """What is told on the terminal only."""
    both = [
        (name, found, "")
        for name in ("TTFT", "TPOT", "E2E")
        if (found := getattr(score, f"{name.lower()}_s")) and found.from_sent and found.failures_as_inf
    ]
    windows = [(f"{each.start_s:.6g} s to {each.end_s:.6g} s", each.summary, "") for each in score.windows]
    return [
        field_table("latency seen otherwise", both, OTHERWISE),
        field_table("turn", [(str(each.turn + 1), each, "") for each in score.sessions.by_turn], TURN),
        field_table("straggler", [(each.replica, each, "") for each in score.stragglers], STRAGGLER),
        *(group(key, groups) for key, groups in score.by.items()),
        field_table("by time", windows, PART),
    ]


def audited(found: "Audit") -> list[Table]:
    facts = [(fact.name, fact.found or "missing", "" if fact.found else fact.why) for fact in found.facts]
    claims = [
        (each.claim, *(("could be", "") if each.supported else ("no", ", ".join(each.lacks) or "a valid run")))
        for each in found.claims
    ]
    return [
        Table(("fact", "found", "why it matters"), facts),
        Table(("claim", "supported by these data", "lacks"), claims),
    ]
