"""A good run is valid; each thing that can go wrong makes it invalid, and is said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openloop.records import Manifest, Run, RunWriter, open_run
from openloop.score import check, score
from openloop.score.judged import judge_run
from openloop.score.verdict import _checks
from openloop.slo import read_slo
from tests.runs import batch, row, run_of, steady_run

SLO = "ttft<=500ms, tpot<=40ms"


def rows(n: int = 200, **columns: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    due = np.cumsum(rng.exponential(0.05, n))
    return [row(i, due=round(float(due[i]), 9), tokens=[0.1, 0.12], **columns) for i in range(n)]


def late_client() -> Run:
    return run_of([r | {"sent_ns": r["scheduled_ns"] + 60_000_000} for r in rows()])


def few() -> Run:
    return run_of(rows(50))


def all_failed() -> Run:
    return run_of([row(i, due=i / 20, status="error", error="no") for i in range(200)])


def dropped() -> Run:
    lost = [row(i, due=10 + i / 1000, sent=None, status="dropped") for i in range(1000, 1004)]
    return run_of([*rows(), *lost])


def censored() -> Run:
    return run_of([*rows(), *(row(i, due=10 + i / 1000, status="censored") for i in range(1000, 1004))])


def other_rate() -> Run:
    return run_of(rows(), offered_rps=40.0, arrivals_cv=1.0)


def not_poisson() -> Run:
    return run_of([row(i, due=i / 20, tokens=[0.1]) for i in range(200)], arrivals_cv=1.0)


def short_window() -> Run:
    return run_of([row(i, due=i / 100, tokens=[0.2, 9.0]) for i in range(200)])


def overload() -> Run:
    return run_of([row(i, due=i / 100, tokens=[0.02 + i / 1000]) for i in range(1000)])


def unlabelled() -> Run:
    return run_of(rows())


CASES: dict[str, tuple[Callable[[], Run], str, str]] = {
    "few_requests": (few, SLO, "only 50 requests were due in the window; at least 100 are needed"),
    "nothing_completed": (all_failed, SLO, "none of the 200 requests completed"),
    "closed_loop": (lambda: run_of(rows(), arrivals="closed:users=5"), SLO, "a closed loop: users waited for answers"),
    "load_not_told": (
        lambda: run_of(rows(), arrivals="not told: the file has no send times"),
        SLO,
        "it is not told when requests were sent",
    ),
    "client_late": (late_client, SLO, "behind schedule is 60.0 ms, over 10.0% of the tightest bound 500 ms"),
    "arrivals_dropped": (dropped, SLO, "4 of 204 requests could not be sent by the client"),
    "requests_censored": (censored, SLO, "4 of 204 requests were still in flight when the run ended"),
    "rate_not_as_offered": (other_rate, SLO, "requests per second were due where the manifest promises 40"),
    "arrivals_not_as_promised": (
        not_poisson,
        SLO,
        "vary by 0.00 of their mean where the arrival process promises 1.00",
    ),
    "window_short": (short_window, SLO, "is shorter than 5 median latencies of 9.00 s"),
    "no_steady_state": (overload, SLO, "no steady state: the median latency rose from"),
    "label_unknown": (unlabelled, "ttft<=1s, quality", "asks for quality and no request tells: none can be accepted"),
}


def test_there_is_a_case_for_each_check() -> None:
    run = steady_run()
    assert list(_checks(run.manifest, judge_run(run, read_slo(SLO)).whole)) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_what_can_go_wrong_is_noticed_and_nothing_else_is_blamed(name: str) -> None:
    make, slo, sentence = CASES[name]
    found = score(make(), slo)
    assert not found.valid
    assert found.faults == (name,)
    assert len(found.reasons) == 1
    assert sentence in found.reasons[0]


def test_one_request_is_one() -> None:
    assert any(each.startswith("only 1 request was due in the window") for each in score(run_of(rows(1)), SLO).reasons)


def test_a_good_run_is_valid() -> None:
    found = score(steady_run(arrivals_cv=1.0, offered_rps=20.0), SLO)
    assert found.valid
    assert found.reasons == ()


def test_a_window_too_short_for_how_slowly_latency_varies_is_noticed() -> None:
    """Latency wanders up and down twice in the window: no trend, and nothing to average over."""
    rng = np.random.default_rng(1)
    wave = 0.2 + 0.15 * np.sin(np.linspace(0, 4 * np.pi, 2000)) + rng.exponential(0.01, 2000)
    (reason,) = score(run_of([row(i, due=i / 100, tokens=[wave[i]]) for i in range(2000)]), SLO).reasons
    assert "too short for how slowly latency varies" in reason


def test_requests_that_time_out_more_and_more_are_no_steady_state() -> None:
    """Those that complete are as fast as ever: the failures tell."""
    rng = np.random.default_rng(0)
    failing = rng.random(2000) < np.linspace(0.0, 0.9, 2000)
    rows = [
        row(i, due=i / 100, tokens=[] if failing[i] else [0.1], status="timeout" if failing[i] else "ok", ended=0.1)
        for i in range(2000)
    ]
    (reason,) = score(run_of(rows), SLO).reasons
    assert "no steady state" in reason


def test_arrivals_whose_gaps_are_repeated_are_not_poisson() -> None:
    """Workers that share a seed: every gap comes ten times, so single gaps look right and counts do not."""
    due = np.cumsum(np.repeat(np.random.default_rng(0).exponential(0.01, 300), 10))
    run = run_of([row(i, due=float(due[i]), tokens=[0.1]) for i in range(3000)], arrivals_cv=1.0)
    assert any("arrivals come in clumps" in reason for reason in score(run, SLO).reasons)


def test_poisson_arrivals_whose_gaps_are_cut_off_are_noticed() -> None:
    """Gaps clipped at three times the mean have a coefficient of variation of 0.88."""
    due = np.cumsum(np.minimum(np.random.default_rng(0).exponential(0.01, 20_000), 0.03))
    run = run_of([row(i, due=float(due[i]), ended=0.1) for i in range(20_000)], arrivals_cv=1.0)
    (reason,) = score(run, "e2e<=1s").reasons
    assert "where the arrival process promises 1.00" in reason


@pytest.mark.parametrize("slo", ["read>=0.4tok/s", "window<=19s", "e2e<=5s"])
def test_a_late_client_is_noticed_under_every_bound_from_arrival(slo: str) -> None:
    late = [row(i, due=i / 20, sent=2.0, ended=2.1) for i in range(200)]
    assert any("the client was late" in reason for reason in score(run_of(late), slo).reasons)


def test_a_batch_may_take_as_long_as_its_window() -> None:
    run = run_of([row(i, tokens=[], ended=60.0 * i + 1, quality=True) for i in range(240)])
    found = score(run, "batch")
    assert found.valid, found.reasons
    assert found.units["all"].goodput == pytest.approx(60, rel=0.01)


@pytest.mark.parametrize("slo", ["quality>=0.8", "cost<=0.1"])
def test_a_gate_on_what_nobody_tells_makes_the_run_invalid(slo: str) -> None:
    found = score(run_of([r | {"quality": True} for r in rows()]), slo)
    assert found.accepted == 0
    assert f"the SLO asks for {slo} and no request tells" in found.reasons[0]


def test_a_class_without_labels_is_noticed_beside_one_that_has_them() -> None:
    mixed = [r | {"workload_class": "ab"[i % 2], "quality": True if i % 2 else None} for i, r in enumerate(rows())]
    slo = {"classes": {"a": "quality, ttft<=1s", "b": "quality"}}
    assert any("asks for quality" in reason for reason in score(run_of(mixed), slo).reasons)


def test_a_steady_queue_is_rarely_taken_for_a_drifting_one() -> None:
    """M/M/1 at 70% load wanders, yet has a steady state."""
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        gap, service = rng.exponential(1 / 70, 4000), rng.exponential(1 / 100, 4000)
        walk = np.concatenate([[0.0], np.cumsum(service[:-1] - gap[1:])])
        latency = walk - np.minimum.accumulate(walk) + service
        due = np.cumsum(gap)
        alarms += not score(run_of([row(i, due=due[i], ended=latency[i]) for i in range(4000)]), "e2e<=1s").valid
    assert alarms <= 2


def test_notes_name_every_fact_that_is_missing() -> None:
    known = steady_run(model="llama", hardware="H200", cache_warmth="cold")
    (missing,) = [note for note in score(known, SLO).notes if note.startswith("not recorded")]
    assert "quantization" in missing
    assert "model revision" in missing
    assert "hardware" not in missing


def test_without_labels_goodput_is_only_latency_constrained_throughput() -> None:
    assert any("latency-constrained throughput" in note for note in score(steady_run(), SLO).notes)
    some = run_of([r | {"quality": True if i else None} for i, r in enumerate(rows())])
    assert any("1 of 200 completed requests carry no quality label" in note for note in score(some, SLO).notes)


def test_a_run_that_was_cut_short_is_not_valid(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test", window_ns=(0, 60 * 10**9)))
    writer.append(batch(rows()))
    writer.close()
    found = score(tmp_path / "run", SLO)
    assert not found.valid
    assert "the run was not closed" in found.reasons[0]
    assert found.window_s < 15


def test_a_run_can_be_checked_without_an_slo(tmp_path: Path) -> None:
    assert check(steady_run()).valid
    assert not check(few()).valid
    RunWriter(tmp_path / "empty", Manifest(source="test")).close()
    verdict = check(open_run(tmp_path / "empty"))
    assert "the run has no rows" in verdict.reasons


def test_a_path_is_checked_as_its_run_is(tmp_path: Path) -> None:
    steady_run().save(tmp_path / "run")
    assert check(str(tmp_path / "run")) == check(open_run(tmp_path / "run"))
