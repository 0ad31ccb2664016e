"""The whole score: against a case worked out by hand, against the slow oracle, and as properties."""

import gc
import json
import math
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import openloop
from openloop.errors import RecordError, RunError, SpecError
from openloop.records import Manifest, Run, RunWriter, Stay, TimedEvent, open_run
from openloop.score import Score, score
from openloop.score.judged import judge_run
from openloop.score.scorer import score_judged
from openloop.slo import SLO, CustomDeadlines, TokenDeadlines, read_slo
from tests.runs import batch, row, run_of, steady_run, write_run
from tests.score import oracle

# Four requests in a window of 4 s, against ttft<=500ms and tpot<=100ms:
#   0 is in time; 1 starts late; 2 crawls (0.15 s per token); 3 fails.
HAND = [
    row(0, due=0.0, tokens=[0.3, 0.4, 0.5]),
    row(1, due=1.0, tokens=[0.6, 0.7], sent=0.2),
    row(2, due=2.0, tokens=[0.1, 0.25, 0.4]),
    row(3, due=3.0, tokens=[], status="error", ended=0.5),
]


@pytest.fixture(scope="module")
def hand() -> Score:
    return score(run_of(HAND, window_ns=(0, 4 * 10**9)), "ttft<=500ms, tpot<=100ms")


def test_rates_count_everything_that_was_due(hand: Score) -> None:
    assert (hand.requests, hand.completed, hand.accepted) == (4, 3, 1)
    assert (hand.offered_rps, hand.throughput_rps, hand.goodput_rps) == (1.0, 0.75, 0.25)
    assert hand.attainment == 0.25
    assert hand.output_tokens_per_s == 8 / 4
    assert hand.output_token_goodput == 3 / 4


def test_both_clocks_stand_side_by_side(hand: Score) -> None:
    """Request 1 was sent 0.2 s late: from sending its first token took 0.4 s and it is accepted."""
    assert hand.attainment_from_sent == 0.5
    assert hand.goodput_rps_from_sent == 0.5
    assert hand.ttft_s is not None
    assert hand.ttft_s.from_sent is not None
    assert hand.ttft_s.mean == pytest.approx((0.3 + 0.6 + 0.1) / 3)
    assert hand.ttft_s.from_sent.mean == pytest.approx((0.3 + 0.4 + 0.1) / 3)


def test_latencies_are_those_worked_out_by_hand(hand: Score) -> None:
    assert hand.tpot_s is not None
    assert hand.e2e_s is not None
    assert hand.itl_s is not None
    assert hand.tpot_s.p50 == pytest.approx(0.1)
    assert hand.e2e_s.p50 == pytest.approx(0.5)
    assert hand.e2e_s.failures_as_inf is not None
    assert hand.e2e_s.failures_as_inf.p50 == pytest.approx(0.6)
    assert hand.e2e_s.failures_as_inf.p99 == math.inf
    assert hand.itl_s.mean == pytest.approx((0.1 + 0.1 + 0.1 + 0.15 + 0.15) / 5)
    assert hand.jitter_s is not None
    assert hand.jitter_s.p99_9 == pytest.approx(0.0)


def test_gates_that_failed_alone_and_together(hand: Score) -> None:
    assert (hand.gates["success"].failed, hand.gates["success"].failed_alone) == (1, 1)
    assert (hand.gates["ttft"].failed, hand.gates["ttft"].failed_alone) == (1, 1)
    assert (hand.gates["tpot"].failed, hand.gates["tpot"].failed_alone) == (1, 1)
    assert hand.gates["ttft"].attainment == 0.5
    assert hand.gates["tpot"].goodput_rps == 0.5
    both = score(run_of(HAND), "ttft<=50ms, tpot<=10ms")
    assert [(j.gates, j.requests) for j in both.joint_failures] == [(("ttft", "tpot"), 3)]
    assert both.gates["ttft"].failed_alone == 0


def test_smooth_goodput_is_that_of_the_papers_equations(hand: Score) -> None:
    """Reading at 20 tokens/s from arrival, alpha 5: each request waits for its worst token; the failed one 0.45 s."""
    idle = [0.5 - 0.15, 0.6 - 0.05, 0.4 - 0.15, 0.5 - 0.05]
    idle[0] = max(0.3 - 0.05, 0.4 - 0.1, 0.5 - 0.15)
    benefit = [3 - 5 * idle[0], 2 - 5 * max(0.6 - 0.05, 0.7 - 0.1), 3 - 5 * max(0.1 - 0.05, 0.25 - 0.1, 0.4 - 0.15)]
    assert hand.smooth_goodput == pytest.approx((sum(benefit) - 5 * idle[3]) / 4)


def test_littles_law_over_the_window(hand: Score) -> None:
    """All requests stay inside the window, so the law holds exactly: 0.5 + 0.7 + 0.4 + 0.5 request-seconds in 4 s."""
    assert hand.little.L_measured == pytest.approx(2.1 / 4)
    assert hand.little.L_law == pytest.approx(2.1 / 4)
    assert hand.little.residual == pytest.approx(0, abs=1e-12)


def test_the_memory_of_a_judged_run_is_free_when_nobody_holds_it() -> None:
    run, objectives = run_of([row(i, 0.1 * i, [0.2, 0.3]) for i in range(9)]), read_slo("ttft<=1s")
    gc.disable()
    try:
        judged = judge_run(run, objectives)
        score_judged(run, objectives, judged)
        gone = weakref.ref(judged.deliveries)
        del judged
        assert gone() is None
    finally:
        gc.enable()


def test_waits_of_a_large_batch_are_not_too_long_for_a_number() -> None:
    """All due at once and worked off in days; ten rows of a lifetime wait as long as a million of six hours."""
    year = 365.25 * 86400
    rows = [row(i, 0.0, (year, 35 * year, 69 * year)) for i in range(10)]
    found = score(run_of(rows, window_ns=(0, 10**9)), "window<=24h")
    assert found.little.L_law == pytest.approx(10 * 69 * year)
    assert found.itl_s is not None
    assert found.itl_s.mean == pytest.approx(34 * year)


def test_little_notices_that_work_is_left_over() -> None:
    """Half of every stay lies beyond the end of the window."""
    run = run_of([row(i, due=0.9, tokens=[0.2]) for i in range(10)], window_ns=(0, 10**9))
    law = score(run, "ttft<=1s").little
    assert law.L_law == pytest.approx(2.0)
    assert law.L_measured == pytest.approx(1.0)
    assert law.residual == pytest.approx(-1.0)


def test_the_leak_waterfall_adds_up(hand: Score) -> None:
    shares = {leak.name: leak for leak in hand.leaks}
    assert shares["slo_misses"].tokens_per_s == 5 / 4
    assert shares["accepted"].tokens_per_s == 3 / 4
    assert shares["kv_recompute"].tokens_per_s is None
    assert sum(leak.share for leak in hand.leaks if leak.share is not None) == pytest.approx(1.0)


def test_json_has_every_key_that_machines_rely_on(hand: Score) -> None:
    found = json.loads(json.dumps(hand.to_dict(), allow_nan=False))
    for key in (
        *("requests", "offered_rps", "throughput_rps", "goodput_rps", "attainment", "output_tokens_per_s"),
        *("output_token_goodput", "smooth_goodput", "gates", "little", "cost_per_accepted", "valid", "reasons"),
        *("goodput_rps_from_sent", "attainment_from_sent"),
    ):
        assert key in found
    for metric in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        for step in ("p50", "p90", "p95", "p99", "p99_9", "mean"):
            assert step in found[metric]
            assert step in found[metric]["from_sent"]
    assert set(found["gates"]["ttft"]) >= {"failed", "failed_alone"}
    assert set(found["little"]) == {"L_measured", "L_law", "residual"}
    assert found["e2e_s"]["failures_as_inf"]["p99"] is None


# Random runs, against the oracle.

BOUNDS: dict[str, float] = {
    "ttft": 0.5,
    "tpot": 0.1,
    "tbt": 0.3,
    "jitter": 0.25,
    "e2e": 2.0,
    "read": 8.0,
    "quality": 1,
    "retries": 1,
}
TEXT = "ttft<=500ms, tpot<=100ms, tbt<=300ms, jitter<=250ms, e2e<=2s, read>=8tok/s, quality, retries<=1"


@st.composite
def attempts(draw: st.DrawFn, request: int, attempt: int, due: float) -> dict[str, Any]:
    status = draw(st.sampled_from(["ok"] * 6 + ["error", "timeout", "censored", "dropped", "shed"]))
    sent = None if status in ("dropped", "shed") else draw(st.sampled_from([0.0, 0.001, 0.2])) + attempt
    gaps = [] if sent is None else draw(st.lists(st.sampled_from([0.0, 0.01, 0.1, 0.125, 0.3, 0.7]), max_size=6))
    times = [round((sent or 0) + t, 6) for t in np.cumsum(gaps)]
    several = draw(st.booleans()) and bool(times)
    counts = draw(st.lists(st.integers(1, 3), min_size=len(times), max_size=len(times))) if several else None
    known = draw(st.booleans())
    extra: dict[str, Any] = (
        {"output_tokens": sum(counts or [1] * len(times)) + draw(st.integers(0, 2))} if known else {}
    )
    ended = (
        None if status in ("censored", "dropped") else max([*times, sent or 0.0]) + draw(st.sampled_from([0.0, 0.05]))
    )
    return row(
        request,
        due,
        times,
        sent=sent,
        ended=ended,
        attempt=attempt,
        kind="first" if attempt == 0 else draw(st.sampled_from(["retry", "hedge", "repair"])),
        status=status,
        event_tokens=counts,
        quality=draw(st.sampled_from([None, True, True, False])),
        session_id=draw(st.sampled_from([None, 1, 2, 3])),
        cost=draw(st.sampled_from([None, 0.25, 1.0])),
        **extra,
    )


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    rows = []
    for request in range(draw(st.integers(1, 8))):
        due = draw(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.5]))
        rows += [draw(attempts(request, attempt, due)) for attempt in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    return rows


def approx(value: float | None) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@settings(max_examples=300)
@given(rows=runs(), batches=st.integers(1, 4), shuffle=st.randoms(use_true_random=False))
def test_the_score_is_what_the_definitions_say(
    rows: list[dict[str, Any]], batches: int, shuffle: random.Random
) -> None:
    shuffle.shuffle(rows)
    stopped = 20 * 10**9
    found = score(run_of(rows, batches=batches, window_ns=(0, 4 * 10**9), stopped_ns=stopped), TEXT)
    requests = oracle.group(rows)
    completed = [r for r in requests if r.ok]
    passed = [r for r in completed if all(oracle.meets(r, BOUNDS).values())]
    assert (found.requests, found.completed, found.accepted) == (len(requests), len(completed), len(passed))
    assert found.goodput_rps == approx(len(passed) / 4)
    sent = [r for r in completed if all(oracle.meets(r, BOUNDS, from_sent=True).values())]
    assert found.goodput_rps_from_sent == approx(len(sent) / 4)
    assert found.output_tokens_per_s == approx(sum(r.tokens for r in completed) / 4)
    assert found.output_token_goodput == approx(sum(r.tokens for r in passed) / 4)

    for name in BOUNDS:
        missing = [{g for g, met in oracle.meets(r, BOUNDS).items() if not met} for r in completed]
        assert found.gates[name].failed == sum(name in m for m in missing)
        assert found.gates[name].failed_alone == sum(m == {name} for m in missing)

    ladders: dict[str, list[float | None]] = {
        "ttft_s": [r.ttft() for r in completed],
        "tpot_s": [r.tpot for r in completed],
        "e2e_s": [r.e2e() for r in completed],
        "tbt_s": [max(r.gaps) if r.gaps else None for r in completed],
        "jitter_s": [max(r.gaps) - min(r.gaps) if r.gaps else None for r in completed],
        "longest_wait_s": [
            max([first, *r.gaps]) if (first := r.ttft()) is not None and (r.gaps or r.tokens <= 1) else None
            for r in completed
        ],
        "itl_s": [gap for r in completed for gap in r.gaps],
    }
    for metric, values in ladders.items():
        known = [v for v in values if v is not None]
        ladder = getattr(found, metric)
        assert (ladder is None) == (not known)
        if ladder is not None:
            assert ladder.n == len(known)
            assert ladder.mean == approx(float(np.mean(known)))
            assert [ladder.p50, ladder.p99] == approx(np.percentile(known, [50, 99]).tolist())

    benefit = [(r.tokens if r.ok else 0) - 5 * r.idle(20.0, stopped) for r in requests]
    assert found.smooth_goodput == approx(sum(benefit) / 4)

    bad_sessions: dict[object, bool] = {}
    for index, r in enumerate(requests):
        session = r.answer["session_id"]
        key = ("alone", index) if session is None else session
        bad_sessions[key] = bad_sessions.get(key, False) or not any(r is p for p in passed)
    assert (found.sessions.sessions, found.sessions.accepted) == (
        len(bad_sessions),
        sum(not b for b in bad_sessions.values()),
    )

    costs = [r["cost"] for r in rows if r["cost"] is not None]
    assert (found.cost is None) == (not costs)
    if found.cost is not None:
        assert found.cost.total == approx(sum(costs))
    work = sum(oracle.tokens_of(r) for r in rows)
    known_work = sum(leak.tokens_per_s for leak in found.leaks if leak.tokens_per_s is not None)
    assert known_work == approx(work / 4)
    assert found.retries.attempts == len(rows)
    assert found.retries.wasted_output_tokens == work - sum(r.tokens for r in requests)


@settings(max_examples=50)
@given(rows=runs(), batches=st.integers(1, 4))
def test_a_run_scores_alike_in_memory_on_disk_and_after_a_crash(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], batches: int
) -> None:
    facts: dict[str, Any] = {"window_ns": (0, 4 * 10**9), "stopped_ns": 10**10}
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "closed", rows, **facts)
    with RunWriter(folder / "crashed", Manifest(source="test", **facts)) as writer:
        for cut in np.array_split(np.arange(len(rows)), batches):
            if len(cut):
                writer.append(batch([rows[i] for i in cut]))
        writer.close()
    memory, closed, crashed = (
        score(run, TEXT, by=["replica"], window_s=1.0).to_dict()
        for run in (run_of(rows, batches=batches, **facts), open_run(folder / "closed"), open_run(folder / "crashed"))
    )
    for other in (closed, crashed):
        for key in ("run", "valid", "reasons"):
            other[key] = memory[key]
    assert closed == memory
    # A crashed run is measured only until its last arrival, so its rates differ, not its counts.
    for key in ("requests", "completed", "accepted", "statuses", "joint_failures"):
        assert crashed[key] == memory[key]


@pytest.mark.parametrize("multiple", [1, 3])
def test_tokens_that_come_together_count_one_by_one(multiple: int) -> None:
    """An event of several tokens is several tokens at one instant."""
    times = [0.1, 0.4, 0.6]
    together = row(0, tokens=times, event_tokens=[multiple] * 3)
    apart = row(0, tokens=[t for t in times for _ in range(multiple)])
    first, second = (score(run_of([each]), "ttft<=1s, read>=2tok/s").to_dict() for each in (together, apart))
    assert first == second


def test_a_usage_chunk_after_the_last_token_does_not_lengthen_the_answer() -> None:
    found = score(run_of([row(0, tokens=[0.1, 0.2], ended=5.0)]), "e2e<=1s")
    assert found.accepted == 1


def test_an_answer_that_was_not_streamed_ends_when_it_ends() -> None:
    found = score(run_of([row(0, tokens=[], ended=0.7, output_tokens=5)]), "e2e<=1s")
    assert found.accepted == 1
    assert found.ttft_s is None
    assert any("no token times" in note for note in found.notes)
    assert score(run_of([row(0, tokens=[], ended=0.7, output_tokens=5)]), "ttft<=1s").accepted == 0


def test_a_deadline_function_of_your_own_judges_by_both_clocks() -> None:
    def generous_start(i: np.ndarray, first: np.ndarray, previous: np.ndarray) -> np.ndarray:
        return np.where(i == 1, 0.5, first + 0.2 * (i - 1))

    rows = [
        row(0, tokens=[0.4, 0.6, 0.7]),
        row(1, tokens=[0.4, 0.7]),
        row(2, tokens=[0.6], sent=0.2),
        row(3, tokens=[]),
    ]
    slo = SLO((TokenDeadlines(CustomDeadlines(generous_start), "mine"),))
    found = score(run_of(rows, batches=2), slo)
    assert found.gates["mine"].failed == 3
    assert found.accepted == 1
    assert found.attainment_from_sent == 0.5


def test_a_deadline_function_that_returns_nonsense_is_refused() -> None:
    slo = SLO((TokenDeadlines(CustomDeadlines(lambda i, first, previous: np.zeros(1))),))
    with pytest.raises(SpecError, match="must return a due time per token"):
        score(run_of([row(0, tokens=[0.1, 0.2])]), slo)


def test_classes_are_held_against_their_own_slo() -> None:
    rows = [row(i, due=i / 10, tokens=[0.4], workload_class=name) for i, name in enumerate(["chat", "batch", None] * 5)]
    slo = {"default": "ttft<=1s", "classes": {"chat": "ttft<=300ms", "batch": {"gates": "window<=1s", "unit": "row"}}}
    found = score(run_of(rows, window_ns=(0, 2 * 10**9)), slo, by=["class"])
    assert {name: group.accepted for name, group in found.by["class"].items()} == {"(none)": 5, "chat": 0, "batch": 2}
    assert {name: (unit.unit, unit.accepted) for name, unit in found.units.items()} == {
        "(none)": ("request", 5),
        "chat": ("request", 0),
        "batch": ("row", 2),
    }
    assert found.gates["window"].failed == 3
    again = run_of(rows, window_ns=(0, 2 * 10**9), slo=found.slo)  # as it was printed
    assert score(again).accepted == score(again, found.slo).accepted == found.accepted


def test_a_group_looks_only_at_its_own_requests() -> None:
    rows = [row(i, due=i / 100, tokens=[0.1 if i % 4 else 0.9], replica=f"r{i % 4}", turn=i % 2) for i in range(200)]
    found = score(run_of(rows), "ttft<=500ms", by=["replica", "turn", "tenant"])
    assert [group.attainment for group in found.by["replica"].values()] == [0.0, 1.0, 1.0, 1.0]
    assert {name: group.requests for name, group in found.by["turn"].items()} == {"0": 100, "1": 100}
    assert list(found.by["tenant"]) == ["(none)"]
    assert sum(group.goodput_rps for group in found.by["replica"].values()) == pytest.approx(found.goodput_rps)


def test_time_windows_cover_the_run_without_overlap() -> None:
    found = score(steady_run(), "ttft<=200ms", window_s=6.0)
    assert sum(window.summary.requests for window in found.windows) == found.requests
    assert sum(window.summary.accepted for window in found.windows) == found.accepted
    assert found.windows[-1].end_s == pytest.approx(found.windows[0].start_s + found.window_s)


def test_only_what_was_due_inside_the_window_counts() -> None:
    rows = [row(i, due=float(i), tokens=[0.1]) for i in range(10)]
    found = score(run_of(rows, window_ns=(2 * 10**9, 5 * 10**9)), "ttft<=1s")
    assert (found.requests, found.offered_rps) == (3, 1.0)


def test_without_a_window_each_request_stands_for_one_gap() -> None:
    assert score(run_of([row(i, due=i / 4, tokens=[0.1]) for i in range(9)]), "ttft<=1s").offered_rps == pytest.approx(
        4.0
    )


def test_a_batch_that_starts_all_at_once_is_measured_to_its_end() -> None:
    rows = [row(i, tokens=[], ended=1.0 + i) for i in range(4)]
    found = score(run_of(rows), "window<=3s")
    assert found.window_s == 4.0
    assert found.accepted == 3


def test_units_other_than_requests_have_their_own_goodput() -> None:
    rows = [row(i, due=i / 10, tokens=[0.1 if i else 0.9], session_id=i // 4, quality=True) for i in range(40)]
    found = score(run_of(rows, window_ns=(0, 4 * 10**9)), "conversational")
    unit = found.units["all"]
    assert (unit.name, unit.due, unit.accepted) == ("resolution", 10, 9)
    assert unit.goodput == pytest.approx(9 / 4)
    assert found.attainment == pytest.approx(39 / 40)
    assert found.unit_attainment == unit.attainment == 0.9
    assert unit.cost_per_accepted is None
    hourly = score(run_of(rows, window_ns=(0, 4 * 10**9)), "batch")
    assert hourly.units["all"].goodput == pytest.approx(10 * 3600)


def test_a_failed_first_try_costs_money_and_time_and_the_retry_counts() -> None:
    rows = [
        row(0, tokens=[], status="timeout", ended=1.0, cost=0.5, output_tokens=10),
        row(0, tokens=[1.2, 1.3], sent=1.1, attempt=1, kind="retry", cost=0.5),
        row(1, due=1.0, tokens=[0.2], cost=0.5),
    ]
    found = score(run_of(rows, window_ns=(0, 2 * 10**9)), "ttft<=500ms, retries<=0")
    assert (found.requests, found.completed, found.accepted) == (2, 2, 1)
    assert found.cost_per_accepted == 1.5
    assert found.retries.amplification == 1.5
    assert found.retries.wasted_output_tokens == 10
    assert found.ttft_s is not None
    assert found.ttft_s.mean == pytest.approx((1.2 + 0.2) / 2)


def test_the_first_hedge_to_answer_wins() -> None:
    rows = [row(0, tokens=[2.0]), row(0, tokens=[0.6], sent=0.5, attempt=1, kind="hedge")]
    found = score(run_of(rows), "ttft<=1s, retries<=0")
    assert found.accepted == 1
    assert (found.retries.hedges, found.retries.retries) == (1, 0)


def test_a_repair_replaces_the_answer_that_was_refused() -> None:
    rows = [
        row(0, tokens=[0.1], quality=False),
        row(0, tokens=[0.5], sent=0.2, attempt=1, kind="repair", quality=True),
    ]
    assert score(run_of(rows), "quality, ttft<=400ms").gates["ttft"].failed == 1
    assert score(run_of(rows), "quality, ttft<=1s").accepted == 1


@pytest.mark.parametrize(("last", "ttft_s"), [({"quality": False}, 0.9), ({"status": "error"}, 0.5)])
def test_a_repair_is_what_the_user_has_in_the_end_also_if_it_is_bad_but_not_if_it_never_came(
    last: dict[str, Any], ttft_s: float
) -> None:
    rows = [
        row(0, tokens=[0.1], quality=False),
        row(0, tokens=[0.5], sent=0.2, attempt=1, kind="repair", quality=False),
        row(0, tokens=[0.9], sent=0.6, attempt=2, kind="repair", **last),
    ]
    found = score(run_of(rows), "quality").ttft_s
    assert found is not None
    assert found.mean == pytest.approx(ttft_s)


def test_prices_apply_where_attempts_have_no_cost_of_their_own() -> None:
    prices = {
        "per_hour": 3600.0,
        "per_request": 1.0,
        "per_million_input_tokens": 1e6,
        "per_million_cached_tokens": 0.5e6,
        "per_million_output_tokens": 2e6,
    }
    rows = [row(i, due=float(i), tokens=[0.1, 0.2], prompt_tokens=10, cached_tokens=4) for i in range(2)]
    manifest = openloop.Prices(**prices)
    found = score(run_of(rows, window_ns=(0, 2 * 10**9), prices=manifest), "ttft<=1s")
    assert found.cost is not None
    assert found.cost.total == pytest.approx(2 * 1 + 2 * 1 + 12 * 1 + 8 * 0.5 + 4 * 2)
    assert found.cost.per_accepted == found.cost_per_accepted == pytest.approx(found.cost.total / 2)
    assert found.cost.per_million_output_tokens == pytest.approx(found.cost.total / 4e-6)


def test_nothing_accepted_costs_infinitely_much_for_each() -> None:
    found = score(run_of([row(0, tokens=[9.0], cost=1.0)]), "ttft<=1s")
    assert found.cost_per_accepted == math.inf
    assert found.to_dict()["cost_per_accepted"] is None


def test_utilisation_is_the_busy_share_of_each_replica() -> None:
    rows = [
        row(0, due=0.0, tokens=[1.0], replica="a"),
        row(1, due=0.5, tokens=[1.0], replica="a"),
        row(2, due=0.0, tokens=[0.5], replica="b"),
    ]
    assert score(run_of(rows, window_ns=(0, 2 * 10**9)), "ttft<=1s").utilisation == pytest.approx((0.75 + 0.25) / 2)


def test_events_open_disruption_windows_and_the_rest_is_steady() -> None:
    rows = [row(i, due=i / 10, tokens=[0.9 if 50 <= i < 60 else 0.1], cost=1.0) for i in range(100)]
    events = (TimedEvent(at_ns=5 * 10**9, kind="deploy"), TimedEvent(at_ns=99 * 10**9, kind="too late"))
    found = score(run_of(rows, window_ns=(0, 10**10), events=events), "ttft<=500ms", disruption_s=2.0)
    (disruption,) = found.disruptions
    assert (disruption.kind, disruption.summary.requests, disruption.summary.accepted) == ("deploy", 20, 10)
    assert disruption.summary.goodput_rps == 5.0
    assert disruption.summary.cost_per_accepted == 2.0
    assert found.steady is not None
    assert (found.steady.requests, found.steady.accepted) == (80, 80)
    assert found.steady.goodput_rps == pytest.approx(10.0)


def test_who_is_in_flight_at_an_event_and_lost_belongs_to_it() -> None:
    """It is what a crash costs first. Who was in flight and accepted, or lost long before, does not."""
    rows = [row(i, due=i / 10, tokens=[0.1, 0.6], cost=1.0) for i in range(100)]
    for i in (10, 47, 49):  # the first is over before the crash
        rows[i] = row(i, due=i / 10, status="error", ended=5.0 - i / 10 if i > 40 else 0.2, cost=1.0)
    rows[46] = row(46, due=4.6, tokens=[0.1, 0.5], cost=1.0)
    crash = TimedEvent(at_ns=5 * 10**9, kind="crash")
    run = run_of(rows, window_ns=(0, 10**10), events=(crash, TimedEvent(at_ns=6 * 10**9, kind="start")))
    found = score(run, "ttft<=500ms", disruption_s=2.0)
    first, second = found.disruptions
    assert (first.start_s, first.end_s, first.summary.requests, first.summary.accepted) == (4.7, 7.0, 23, 21)
    assert (second.start_s, second.summary.requests) == (6.0, 20)
    assert found.steady is not None
    assert (found.steady.requests, found.steady.accepted) == (100 - 33, 100 - 33 - 1)
    assert found.steady.window_s == pytest.approx(10 - 3.3)
    assert score(run, "ttft<=500ms", disruption_s=0.2).disruptions[0].start_s == 4.9


def test_cached_share_of_prompts() -> None:
    rows = [row(0, tokens=[0.1], prompt_tokens=100, cached_tokens=75), row(1, tokens=[0.1], prompt_tokens=100)]
    assert score(run_of(rows), "ttft<=1s").cache_hit_rate == 0.75


def test_stragglers_are_found_and_healthy_fleets_have_none() -> None:
    rng = np.random.default_rng(0)

    def fleet(slow: dict[int, float]) -> Run:
        first = rng.lognormal(np.log(0.1), 0.2, 1200)
        return run_of(
            [row(i, due=i / 50, tokens=[first[i] * slow.get(i % 12, 1.0)], replica=f"r{i % 12}") for i in range(1200)]
        )

    assert score(fleet({}), "ttft<=1s").stragglers == []
    found = score(fleet({3: 2.0, 7: 12.0}), "ttft<=1s").stragglers
    assert {each.replica for each in found if each.metric == "ttft_s"} == {"r3", "r7"}


def test_preemptions_are_counted_where_rows_tell() -> None:
    rows = [row(i, due=i / 10, preemptions=i % 2) for i in range(10)]
    assert score(run_of(rows), "ttft<=1s").preemptions == 5
    assert score(run_of([row(0)]), "ttft<=1s").preemptions is None


def test_overload_shows_in_what_was_completed_inside_the_window() -> None:
    """Cohort throughput counts what was due; the completion rate shows the capacity."""
    rows = [row(i, due=i / 100, tokens=[i / 100] * 3) for i in range(1000)]
    found = score(run_of(rows, window_ns=(0, 10**10)), "ttft<=1s")
    assert found.throughput_rps == 100
    assert found.completed_in_window_rps == pytest.approx(50, rel=0.02)
    assert found.output_tokens_per_s == 300
    assert found.completed_in_window_tokens_per_s == 3 * found.completed_in_window_rps


def test_a_failed_request_that_sent_a_token_first_is_no_better_than_one_that_sent_none() -> None:
    """The user waited a minute either way."""
    good = [row(i, due=i / 10, tokens=[0.05]) for i in range(20)]
    bare, partial = (
        score(
            run_of([*good, *(row(i, due=i / 10, tokens=tokens, status="timeout", ended=60.0) for i in range(20, 40))]),
            "ttft<=1s",
        )
        for tokens in ([], [0.05])
    )
    assert partial.smooth_goodput == pytest.approx(bare.smooth_goodput, rel=0.01)
    assert partial.smooth_goodput < -1000
    assert partial.little.L_law == pytest.approx(bare.little.L_law)


def test_a_request_that_failed_is_over_when_its_last_attempt_is() -> None:
    rows = [
        row(0, status="timeout", ended=6.0),
        row(0, status="error", sent=1.0, ended=2.0, attempt=1, kind="hedge"),
    ]
    assert score(run_of(rows, window_ns=(0, 10**10)), "ttft<=1s").little.L_law == pytest.approx(0.6)


def test_a_cost_that_is_not_known_in_full_does_not_pass() -> None:
    rows = [row(0, status="timeout", ended=1.0), row(0, tokens=[1.2], sent=1.1, attempt=1, kind="retry", cost=0.001)]
    found = score(run_of(rows), "cost<=0.002")
    assert found.accepted == 0
    assert found.cost is not None
    assert found.cost.known_for == 0.0
    assert any("cost per accepted is a lower bound" in note for note in found.notes)


def test_prices_by_use_are_costs_of_single_requests_and_prices_by_the_hour_are_not() -> None:
    rows = [row(i, due=float(i), tokens=[0.1] * (1 + i), replica=f"r{i}") for i in range(4)]
    by_use = run_of(rows, prices=openloop.Prices(per_million_output_tokens=1e6))
    found = score(by_use, "cost<=2", by=["replica"])
    assert found.accepted == 2
    assert [group.cost.total for group in found.by["replica"].values() if group.cost] == [1, 2, 3, 4]
    by_hour = score(run_of(rows, prices=openloop.Prices(per_hour=1.0)), "cost<=2", by=["replica"])
    assert by_hour.accepted == 0
    assert by_hour.cost is not None
    assert all(group.cost is None for group in by_hour.by["replica"].values())


def test_a_repair_counts_by_its_score_too() -> None:
    rows = [
        row(0, tokens=[0.1], quality_score=0.2),
        row(0, tokens=[0.5], sent=0.2, attempt=1, kind="repair", quality_score=0.9),
    ]
    assert score(run_of(rows), "quality>=0.8").accepted == 1


def test_a_session_is_judged_by_its_turns_outside_the_window_too() -> None:
    early_miss = [row(i, due=4.0 + i, tokens=[0.9 if i == 3 else 0.1], session_id=1, turn=i) for i in range(4)]
    found = score(run_of(early_miss, window_ns=(3 * 10**9, 6 * 10**9)), "ttft<=500ms").sessions
    assert (found.sessions, found.accepted) == (1, 0)
    later = score(run_of(early_miss, window_ns=(5 * 10**9, 9 * 10**9)), "ttft<=500ms").sessions
    assert later.sessions == 0


def test_what_is_left_between_disruptions_is_as_steady_as_it_was() -> None:
    rows = [row(i, due=i / 10, tokens=[0.1]) for i in range(6000)]
    events = tuple(TimedEvent(at_ns=at * 10**9, kind="deploy") for at in (60, 90, 300, 500))
    found = score(run_of(rows, window_ns=(0, 600 * 10**9), events=events), "ttft<=500ms")
    assert found.steady is not None
    assert found.steady.window_s == pytest.approx(600 - 90 - 60 - 60)
    assert found.steady.goodput_rps == pytest.approx(10.0)
    assert found.steady.goodput_rps_interval == pytest.approx((10.0, 10.0), abs=0.02)


@pytest.mark.parametrize("gap", [0.020, 0.020001])
def test_intervals_of_token_gaps_do_not_depend_on_where_a_bin_begins(gap: float) -> None:
    """Half of the window has one gap, half another: the median could be either."""
    rows = [row(i, due=float(i), tokens=[k * (gap if i < 110 else 0.1) for k in range(1, 11)]) for i in range(200)]
    found = score(run_of(rows), "ttft<=1s")
    assert found.itl_s is not None
    low, high = found.itl_s.intervals["p50"]
    assert (low, high) == pytest.approx((gap, 0.1))


def test_money_in_the_waterfall_follows_the_attempt_it_was_spent_on() -> None:
    rows = [row(i, due=i / 10, tokens=[0.1], cost=0.001) for i in range(20)]
    rows += [row(i, due=i / 10, status="timeout", ended=1.0, cost=0.01) for i in range(20, 40)]
    rows += [row(40, due=4.0, tokens=[0.1] * 3, cost=0.04, recomputed_tokens=1)]
    money = {leak.name: leak.cost for leak in score(run_of(rows), "ttft<=1s").leaks}
    assert money["unsuccessful"] == pytest.approx(0.2)
    assert money["accepted"] == pytest.approx(0.02 + 0.03)
    assert money["kv_recompute"] == pytest.approx(0.01)


@pytest.mark.parametrize("speed", [3, 7, 12, 30, 60])
def test_tokens_at_exactly_the_reading_pace_are_in_time(speed: int) -> None:
    times = [math.floor(i * 1e9 / speed) / 1e9 for i in range(1, 200)]
    found = score(run_of([row(0, tokens=times)]), f"read>={speed}tok/s, read_from_first>={speed}tok/s")
    assert found.accepted == 1
    late = score(run_of([row(0, tokens=[t + 1e-5 for t in times])]), f"read>={speed}tok/s")
    assert late.accepted == 0


def test_one_event_says_nothing_of_the_tokens_that_it_does_not_carry() -> None:
    for slo in ("tbt<=1s", "read>=1tok/s", "read_from_first>=1tok/s"):
        assert score(run_of([row(0, tokens=[0.1], output_tokens=100)]), slo).accepted == 0
        assert score(run_of([row(0, tokens=[0.1], event_tokens=[100])]), slo).accepted == 1


def test_a_stream_in_one_delivery_took_no_time_per_token_and_a_note_counts_such() -> None:
    streamed, first_only = row(0, tokens=[0.1], output_tokens=5), row(1, tokens=[0.1], output_tokens=5, ends_only=True)
    one_token, whole = row(2, tokens=[0.1], output_tokens=1), row(3, tokens=[], ended=0.1, output_tokens=5)
    found = score(run_of([streamed, first_only, one_token, whole]), "tpot<=1ms")
    assert found.tpot_s is not None
    assert (found.tpot_s.n, found.tpot_s.p50) == (1, 0.0)
    assert (found.accepted, found.gates["tpot"].failed) == (2, 2)  # one token waits for no other
    for told in ("1 completed requests of several tokens came in one delivery", "1 completed requests tell only their"):
        assert any(note.startswith(told) for note in found.notes)


def test_first_and_last_token_alone_give_ttft_tpot_and_e2e_and_no_gaps() -> None:
    """Due at 0, tokens at 0.2 and 1.2 s of 11 in all: TPOT is 0.1 s; how the others came is not known."""
    rows = [row(0, tokens=[0.2, 1.2], output_tokens=11, ends_only=True)]
    found = score(run_of(rows, window_ns=(0, 10**9)), "ttft<=200ms, tpot<=100ms, e2e<=1.2s")
    assert found.accepted == 1
    assert found.tpot_s is not None
    assert found.tpot_s.p50 == pytest.approx(0.1)
    assert (found.itl_s, found.tbt_s, found.jitter_s) == (None, None, None)
    assert math.isnan(found.qoe)
    assert math.isnan(found.fluidity_index)
    # A reader of 20 tok/s from arrival is idle longest for the second token, if it came with the last: 1.2 - 0.1 s.
    assert found.idle_s is not None
    assert found.idle_s.p50 == pytest.approx(1.1)
    assert any("tell only their first and last token" in note for note in found.notes)


@pytest.mark.parametrize("gate", ["tbt<=9s", "jitter<=9s", "itl_p50<=9s", "read>=1tok/s", "read_from_first>=1tok/s"])
def test_gates_on_gaps_that_are_not_told_are_missed(gate: str) -> None:
    rows = [row(0, tokens=[0.2, 1.2], output_tokens=11, ends_only=True), row(1, 1.0, [0.1, 0.2])]
    found = score(run_of(rows), gate)
    assert found.accepted == 1
    own = TokenDeadlines(CustomDeadlines(lambda i, first, previous: np.full(len(i), 9.0)))
    assert score(run_of(rows), SLO((own,))).accepted == 1


@pytest.mark.parametrize("gate", ["tpot<=9s", "tbt<=9s", "jitter<=9s", "itl_p50<=9s"])
def test_an_answer_of_nobody_knows_how_many_tokens_is_none_of_one_token(gate: str) -> None:
    """Neither tokens nor their number: one that is told to have none, or one, has no gaps to wait for."""
    unknown, first_only = row(0, ended=1.0), row(1, tokens=[0.1], ended=1.0, ends_only=True)
    known = [row(2, ended=1.0, output_tokens=0), row(3, ended=1.0, output_tokens=1), row(4, tokens=[0.1])]
    found = score(run_of([unknown, first_only, *known]), gate)
    assert (found.completed, found.accepted) == (5, 3)
    assert not [why for why in score(run_of(known[:2]), gate).reasons if "none can be accepted" in why]
    assert math.isnan(score(run_of([first_only]), gate).qoe)  # how its other tokens came is not told


def test_where_all_failed_no_reader_was_served_well() -> None:
    found = score(run_of([row(i, i / 10, None, status="error") for i in range(3)]), "ttft<=1s")
    assert (found.qoe, found.fluidity_index) == (0.0, 0.0)


def test_tpot_of_ends_without_a_count_is_not_known() -> None:
    found = score(run_of([row(0, tokens=[0.2, 1.2], ends_only=True), row(1, 1.0, [0.1, 0.2])]), "tpot<=9s")
    assert found.accepted == 1


def test_a_lone_retry_is_a_retry_in_any_order() -> None:
    rows = [row(i, tokens=[0.1], kind="retry", attempt=1) for i in range(3)]
    assert score(run_of(rows), "retries<=0").accepted == score(run_of(rows[::-1]), "retries<=0").accepted == 0


def test_a_tenant_with_an_odd_name_hides_nobody() -> None:
    rows = [row(i, tokens=[0.1], tenant="(none)" if i % 2 else None) for i in range(10)]
    assert sum(group.requests for group in score(run_of(rows), "ttft<=1s", by=["tenant"]).by["tenant"].values()) == 10


def test_replicas_that_the_manifest_counts_and_nobody_used_were_idle() -> None:
    run = run_of([row(0, tokens=[1.0], replica="a")], window_ns=(0, 10**9), replicas=4)
    assert score(run, "ttft<=2s").utilisation == pytest.approx(0.25)


def test_replicas_that_were_not_there_yet_were_not_idle_and_nobody_is_no_replica() -> None:
    rows = [row(0, tokens=[1.0], replica="a"), row(1, due=1.0, tokens=[1.0], replica="b"), row(2, tokens=[0.5])]
    run = run_of(rows, window_ns=(0, 4 * 10**9), replicas=1)
    assert score(run, "ttft<=2s").utilisation == pytest.approx(0.25)
    stays = (Stay("a", 0, 4 * 10**9), Stay("b", 3 * 10**9, 9 * 10**9))
    assert score(run_of(rows, window_ns=(0, 4 * 10**9), stays=stays), "ttft<=2s").utilisation == pytest.approx(2 / 5)


def test_event_tokens_that_belong_to_another_row_are_refused() -> None:
    rows = [row(0, tokens=[0.1, 0.2], event_tokens=[1]), row(1, tokens=[0.3], event_tokens=[1, 1])]
    with pytest.raises(RecordError, match="it has 2 event_ns and 1 event_tokens"):
        score(run_of(rows), "ttft<=1s")


def test_too_many_groups_are_refused() -> None:
    run = run_of([row(i, ended=0.1, tenant=f"t{i}") for i in range(10_001)])
    with pytest.raises(SpecError, match="tenant has 10,001 different values; at most 10,000"):
        score(run, "e2e<=1s", by=["tenant"])


def test_the_same_attempt_twice_is_refused_when_it_is_scored() -> None:
    with pytest.raises(RecordError, match="rows 0 and 1 are the same attempt of request 7"):
        score(run_of([row(7), row(7)]), "e2e<=1s")


def test_classes_of_the_slo_that_no_request_belongs_to_are_noted() -> None:
    found = score(steady_run(), {"default": "ttft<=1s", "classes": {"chta": "ttft<=500ms"}})
    assert "the SLO names workload classes that no request belongs to: chta" in found.notes


def test_a_class_of_which_nothing_was_due_in_the_window_keeps_its_name() -> None:
    rows = [row(0, ended=0.1, workload_class="chat"), row(1, 2.0, ended=0.1, workload_class="nightly")]
    found = score(run_of(rows, window_ns=(0, 10**9)), "chat: e2e<=1s; nightly: e2e<=9s")
    assert {name: unit.due for name, unit in found.units.items()} == {"chat": 1, "nightly": 0}


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0])
def test_a_length_of_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(SpecError, match="the length of windows"):
        score(steady_run(), "ttft<=1s", window_s=seconds)
    with pytest.raises(SpecError, match="the length of a disruption"):
        score(steady_run(events=(TimedEvent(at_ns=0, kind="deploy"),)), "ttft<=1s", disruption_s=seconds)


def test_too_many_windows_are_refused() -> None:
    with pytest.raises(SpecError, match=r"windows of 1.00 µs cut .* into more than 10,000 pieces"):
        score(steady_run(), "ttft<=1s", window_s=1e-6)


def test_the_load_test_of_the_goodput_chapter_at_480_requests_per_second() -> None:
    """Code 5.3.1, the sixth row as printed: throughput 483, goodput 448, p50 64, p95 212, p99 249 ms."""
    rng = np.random.default_rng(7)
    for rate in (100, 200, 300, 400, 450, 480):
        n = rng.poisson(rate * 20.0)
        arrivals = np.sort(rng.uniform(0.0, 20.0, n))
        service = rng.exponential(1 / 500, n)
        finish, free = np.empty(n), 0.0
        for i in range(n):
            free = finish[i] = max(arrivals[i], free) + service[i]
    due, ended = (arrivals * 1e9).astype(np.int64), np.ceil(finish * 1e9).astype(np.int64)
    columns = {"request_id": np.arange(n), "scheduled_ns": due, "sent_ns": due, "ended_ns": ended}
    run = Run.of(Manifest(source="test", window_ns=(0, 20 * 10**9)), [openloop.make_batch(columns)])
    found = score(run, "e2e<=200ms")
    assert found.e2e_s is not None
    assert (round(found.throughput_rps), round(found.goodput_rps)) == (483, 448)
    assert [round(1000 * p) for p in (found.e2e_s.p50, found.e2e_s.p95, found.e2e_s.p99)] == [64, 212, 249]


def test_a_run_needs_an_slo_or_brings_its_own() -> None:
    rows = [row(0, tokens=[0.1])]
    with pytest.raises(SpecError, match="no goodput without an SLO"):
        score(run_of(rows))
    assert score(run_of(rows, slo="ttft<=50ms")).accepted == 0
    assert score(run_of(rows, slo={"default": "ttft<=150ms"})).accepted == 1


def test_what_cannot_be_scored_says_why(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot group by 'model'; known are replica"):
        score(steady_run(), "ttft<=1s", by=["model"])
    with pytest.raises(SpecError, match="the length of windows in seconds is "):
        score(steady_run(), "ttft<=1s", window_s=0)
    RunWriter(tmp_path / "empty", Manifest(source="test")).finish()
    with pytest.raises(RunError, match="empty has no rows"):
        score(tmp_path / "empty", "ttft<=1s")


def test_a_damaged_row_is_named_when_it_is_scored(tmp_path: Path) -> None:
    rows = [row(i, due=float(i), tokens=[0.1, 0.2]) for i in range(5)]
    for change, sentence in (
        ({"event_ns": [3_200_000_000, 3_100_000_000]}, "event 1 at 3100000000 is before event 0"),
        ({"event_ns": [1]}, "event 0 at 1 is before sent_ns"),
        ({"output_tokens": 1}, "2 tokens were delivered, more than its output_tokens 1"),
        ({"event_tokens": [1, 1, 1]}, "it has 2 event_ns and 3 event_tokens"),
        ({"scheduled_ns": -5}, "scheduled_ns is -5"),
    ):
        with pytest.raises(RecordError, match=r"row 3 \(request 3\): " + sentence):
            score(run_of([*rows[:3], rows[3] | change, rows[4]], batches=2), "ttft<=1s")


def test_progress_is_reported_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    score(
        run_of([row(i) for i in range(10)], batches=3),
        "e2e<=1s",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(4, 10), (7, 10), (10, 10)]


def test_the_module_can_be_called_like_the_function() -> None:
    run = run_of([row(0, tokens=[0.1])])
    assert repr(openloop.score(run, "ttft<=1s")) == repr(score(run, "ttft<=1s"))  # what is not known is not equal


def test_a_folder_can_be_scored_by_its_path(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [row(0, tokens=[0.1])])
    assert score(folder, "ttft<=1s").accepted == score(str(folder), "ttft<=1s").accepted == 1


@pytest.mark.parametrize(
    "slo", ["ttft<=120ms", "ttft<=90ms, tpot<=20ms", "read>=60tok/s", "itl_p90<=40ms", "e2e<=600ms"]
)
def test_a_run_that_was_judged_before_is_scored_as_if_it_had_not_been(slo: str) -> None:
    run = steady_run(slo="ttft<=300ms")
    before = judge_run(run, read_slo("ttft<=300ms, read>=30tok/s"))
    score_judged(run, read_slo("ttft<=300ms"), before)  # which works out what the other may use
    again = judge_run(run, read_slo(slo), before=before)
    assert score_judged(run, read_slo(slo), again).to_dict() == score(run, slo).to_dict()


def test_a_judged_run_that_was_scored_keeps_no_gaps_between_tokens() -> None:
    run = steady_run(slo="ttft<=300ms")
    judged = judge_run(run, read_slo("ttft<=300ms"))
    first = score_judged(run, read_slo("ttft<=300ms"), judged)
    assert sum(each.nbytes for each in vars(judged.streams.gaps).values() if isinstance(each, np.ndarray)) == 0
    assert score_judged(run, read_slo("ttft<=300ms"), judged).itl_s == first.itl_s
