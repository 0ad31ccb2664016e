"""The waterfall adds up, in attempts, tokens and money, whoever tells."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import openloop as ol
from openloop.arrivals import Poisson
from openloop.records import SERVER, Run
from openloop.score import score
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.workload import Workload, read_source
from tests.runs import row, run_of

ATTEMPT = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 5),
        "status": st.sampled_from(["ok", "ok", "error", "timeout"]),
        "quality": st.sampled_from([True, False, None]),
        "recomputed_tokens": st.integers(0, 9),
        "drafted_tokens": st.integers(3, 9),
        "accepted_draft_tokens": st.integers(0, 3),
        "cost": st.floats(0, 1),
        "review_cost": st.floats(0, 1),
    }
)


def rows_of(requests: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    kinds = ("first", "retry", "repair")
    return [
        row(
            i,
            float(i),
            [0.1] * told["tokens"],
            attempt=n,
            kind=kinds[n],
            **{k: v for k, v in told.items() if k != "tokens"},
        )
        for i, attempts in enumerate(requests)
        for n, told in enumerate(attempts)
    ]


@given(st.lists(st.lists(ATTEMPT, min_size=1, max_size=3), min_size=1, max_size=8), st.sampled_from([0.0, 2.0]))
def test_steps_add_up_to_all_attempts_all_work_and_all_money(
    requests: list[list[dict[str, Any]]], review: float
) -> None:
    prices = ol.Prices(per_human_review=review)
    found = score(run_of(rows_of(requests), window_ns=(0, 10**10), prices=prices), "ttft<=1s, quality")
    flat = [told for attempts in requests for told in attempts]
    assert sum(leak.requests_per_s for leak in found.leaks) == pytest.approx(len(flat) / 10)
    work = sum(t["tokens"] + t["recomputed_tokens"] + t["drafted_tokens"] - t["accepted_draft_tokens"] for t in flat)
    assert sum(leak.tokens_per_s or 0.0 for leak in found.leaks) == pytest.approx(work / 10)
    assert found.cost is not None
    assert sum(leak.cost or 0.0 for leak in found.leaks) == pytest.approx(found.cost.total)
    accepted = next(leak for leak in found.leaks if leak.name == "accepted")
    assert accepted.requests_per_s == pytest.approx(found.goodput_rps)
    assert accepted.tokens_per_s == pytest.approx(found.output_token_goodput)


def test_each_mechanism_by_hand() -> None:
    rows = [
        row(0, 0.0, [0.1] * 10, quality=True),
        row(1, 1.0, [0.1] * 10, quality=False),
        row(2, 2.0, [2.0] * 10, quality=True),
        row(3, 3.0, [0.1] * 10, quality=False),
        row(3, 3.0, [0.5] * 10, sent=0.2, attempt=1, kind="repair", quality=True),
        row(4, 4.0, [0.1] * 4, status="error", ended=0.2, recomputed_tokens=6),
        row(5, 5.0, [0.1] * 10, quality=True, drafted_tokens=12, accepted_draft_tokens=7),
    ]
    found = score(run_of(rows, window_ns=(0, 10**10)), "ttft<=1s, quality")
    told: dict[str, Any] = {
        leak.name: (leak.requests_per_s * 10, (leak.tokens_per_s or 0.0) * 10) for leak in found.leaks
    }
    assert told == {
        "kv_recompute": (0, pytest.approx(6)),
        "rejected_drafts": (0, pytest.approx(5)),
        "retries_and_repairs": (1, pytest.approx(10)),
        "unsuccessful": (1, pytest.approx(4)),
        "quality_failures": (1, pytest.approx(10)),
        "slo_misses": (1, pytest.approx(10)),
        "accepted": (3, pytest.approx(30)),
    }


def test_hours_are_borne_by_attempts_where_no_tokens_are_told() -> None:
    rows = [row(0, ended=0.1), row(1, 1.0, ended=0.1), row(2, 2.0, ended=0.1, status="error"), row(3, 3.0, ended=5.0)]
    found = score(run_of(rows, window_ns=(0, 10**10), prices=ol.Prices(per_hour=3600.0)), "e2e<=1s")
    costs = {leak.name: leak.cost for leak in found.leaks if leak.cost}
    assert costs == {"unsuccessful": 2.5, "slo_misses": 2.5, "accepted": 5.0}


def test_what_rows_do_not_tell_the_server_may() -> None:
    """300 drafted and 200 accepted; 4 preemptions, of contexts of 95 and half of 10 tokens."""
    rows = [row(i, float(i), [0.1] * 10, prompt_tokens=95) for i in range(10)]
    totals = {"drafted": 300.0, "accepted": 200.0, "preemptions": 4.0}
    readings = [(at * 10**9, "a", name, grown * at / 10) for at in (0, 10) for name, grown in totals.items()]
    base = run_of(rows, window_ns=(0, 10**10 + 1), prices=ol.Prices(per_hour=3600.0))
    run = Run.of(base.manifest, list(base.batches()), SERVER.of(readings))
    leaks = {leak.name: leak for leak in score(run, "ttft<=1s").leaks}
    assert (leaks["rejected_drafts"].told_by, leaks["kv_recompute"].told_by) == ("server", "estimate")
    assert leaks["rejected_drafts"].tokens_per_s == pytest.approx(10.0)
    assert leaks["kv_recompute"].tokens_per_s == pytest.approx(4 * 100 / 10)
    assert sum(leak.share or 0.0 for leak in leaks.values()) == pytest.approx(1.0)
    assert sum(leak.cost or 0.0 for leak in leaks.values()) == pytest.approx(10.0)
    assert score(base, "ttft<=1s").leaks[0].told_by is None


@pytest.mark.parametrize("more", [{"memory_tokens": 2000}, {"drafts": {"tokens": 3, "acceptance": 0.5}}])
def test_a_modelled_fleet_tells_all_of_it(more: dict[str, Any]) -> None:
    """Little memory, so that it preempts, or drafts of which some are rejected: the sums are those of its rows."""
    fleet = read_fleet({"model": "8b", "gpu": "h100", "quality": "quality:fail=10%", **more})
    asked = Workload.of(read_source("synthetic:prompt=100,output=300"))
    run = simulate_fleet(fleet, asked, Poisson(8.0), 60.0)
    found = score(run, "ttft<=2s, quality")
    told = {leak.name: leak for leak in found.leaks}
    rows = run.head(100_000)
    recomputed = sum(r["recomputed_tokens"] for r in rows)
    rejected = sum(r["drafted_tokens"] - r["accepted_draft_tokens"] for r in rows)  # also where there are no drafts
    bad = sum(r["output_tokens"] for r in rows if r["quality"] is False)
    assert recomputed or rejected
    assert told["kv_recompute"].tokens_per_s == pytest.approx(recomputed / 60)
    assert told["rejected_drafts"].tokens_per_s == pytest.approx(rejected / 60)
    assert told["quality_failures"].tokens_per_s == pytest.approx(bad / 60)
    assert sum(leak.share for leak in found.leaks if leak.share) == pytest.approx(1.0)
    assert told["accepted"].tokens_per_s == pytest.approx(found.output_token_goodput)
