"""Cost per accepted result: the article's numbers, and sums that add up."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import openloop as ol
from openloop.errors import SpecError
from openloop.records import TimedEvent, read_prices
from openloop.score import blended, blends, capacity_needed, score
from tests.runs import row, run_of


def test_deploying_twice_a_day_is_material_and_once_a_week_is_noise() -> None:
    """0.012 steady and 0.035 for 20 minutes: 0.012 + 0.023 * 40 / 1440, and 0.012 + 0.023 * 20 / 10080."""
    twice, weekly = (blended(0.012, 0.035, 1200, every) for every in (43_200, 604_800))
    assert twice.cost_per_accepted == pytest.approx(0.012 + 0.023 * 40 / 1440)
    assert weekly.cost_per_accepted == pytest.approx(0.012 + 0.023 * 20 / 10080)
    assert twice.extra == pytest.approx(0.0532, abs=1e-4)
    assert weekly.extra < 0.004


@given(
    *(st.floats(0.001, 10) for _ in range(2)),
    st.floats(1, 1000),
    st.floats(1.0, 50.0),
    st.floats(0.01, 2.0),
)
def test_a_blend_lies_between_and_is_all_money_over_all_results(
    steady: float, disrupted: float, length: float, times: float, ratio: float
) -> None:
    every = length * times
    found = blended(steady, disrupted, length, every, goodput_ratio=ratio)
    assert min(steady, disrupted) - 1e-9 <= found.cost_per_accepted <= max(steady, disrupted) + 1e-9
    results = (every - length) * 7.0, length * 7.0 * ratio
    assert found.cost_per_accepted == pytest.approx(
        (steady * results[0] + disrupted * results[1]) / sum(results), rel=1e-9
    )


def test_four_gpus_of_a_benchmark_are_six_to_eight_in_production() -> None:
    known = {"retries": 0.06, "quality_failures": 0.12, "cold": 0.4}
    assert math.ceil(capacity_needed(4, **known, cold_factor=1.5)) == 6
    assert math.ceil(capacity_needed(4, **known, cold_factor=2.5)) == 8
    assert capacity_needed(4) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: blended(-1, 1, 10, 100),
        lambda: blended(1, 1, 100, 10),
        lambda: blended(1, 1, 0, 10),
        lambda: capacity_needed(4, quality_failures=1.0),
        lambda: capacity_needed(4, cold_factor=0.5),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(SpecError):
        wrong()  # type: ignore[operator]


def test_a_run_with_a_marked_deployment_is_blended_by_what_it_measured() -> None:
    """Ten a second for 1 each; in the 10 s after the event half of them fail."""
    rows = [row(i, due=i / 10, tokens=[0.9 if 500 <= i < 600 and i % 2 else 0.1], cost=1.0) for i in range(1000)]
    event = TimedEvent(at_ns=50 * 10**9, kind="deploy")
    found = score(run_of(rows, window_ns=(0, 10**11), events=(event,)), "ttft<=500ms", disruption_s=10.0)
    (blend,) = blends(found, [100.0])
    assert blend.cost_per_accepted == pytest.approx(1000 / 950)
    assert blend.disrupted_share == 0.1
    assert blends(score(run_of(rows), "ttft<=500ms"), [100.0]) == []


def test_more_requests_after_an_event_do_not_make_results_cheaper() -> None:
    """Two replicas by the hour; twenty a second in place of ten, of which a tenth fails, cost a ninth more each."""
    due = [*(i / 10 for i in range(500)), *(50 + i / 20 for i in range(200)), *(60 + i / 10 for i in range(400))]
    rows = [row(i, due=at, tokens=[0.9 if 50 <= at < 60 and not i % 10 else 0.1]) for i, at in enumerate(due)]
    event = TimedEvent(at_ns=50 * 10**9, kind="deploy")
    run = run_of(rows, window_ns=(0, 10**11), events=(event,), prices=ol.Prices(per_hour=36.0))
    (blend,) = blends(score(run, "ttft<=500ms", disruption_s=10.0), [100.0])
    assert blend.cost_per_accepted == pytest.approx(1.0 / 990)


def test_a_disruption_in_which_nothing_is_accepted_still_costs() -> None:
    rows = [row(i, due=i / 10, tokens=[0.9 if 500 <= i < 600 else 0.1], cost=1.0) for i in range(1000)]
    event = TimedEvent(at_ns=50 * 10**9, kind="deploy")
    found = score(run_of(rows, window_ns=(0, 10**11), events=(event,)), "ttft<=500ms", disruption_s=10.0)
    assert blends(found, [100.0])[0].cost_per_accepted == pytest.approx(1000 / 900)


def test_a_rolling_deployment_is_one_disruption_however_many_events_it_has() -> None:
    """From 50 to 70 s every tenth fails: of what a run of 100 s costs, 1000, 980 are accepted."""
    rows = [row(i, due=i / 10, tokens=[0.9 if 500 <= i < 700 and not i % 10 else 0.1], cost=1.0) for i in range(1000)]
    events = tuple(TimedEvent(at_ns=at * 10**9, kind="deploy") for at in (50, 55, 60))
    found = score(run_of(rows, window_ns=(0, 10**11), events=events), "ttft<=500ms", disruption_s=10.0)
    (blend,) = blends(found, [100.0])
    assert blend.disrupted_share == pytest.approx(0.2)
    assert blend.cost_per_accepted == pytest.approx(1000 / 980)


def test_of_disruptions_that_lie_apart_the_mean_counts() -> None:
    """Two of 10 s in 100 s, in which half fail; one that would come more often than it lasts is left out."""
    bad = {*range(201, 300, 2), *range(601, 700, 2)}
    rows = [row(i, due=i / 10, tokens=[0.9 if i in bad else 0.1], cost=1.0) for i in range(1000)]
    events = tuple(TimedEvent(at_ns=at * 10**9, kind="deploy") for at in (20, 60))
    found = score(run_of(rows, window_ns=(0, 10**11), events=events), "ttft<=500ms", disruption_s=10.0)
    (blend,) = blends(found, [50.0, 5.0])
    assert blend.disrupted_share == pytest.approx(0.2)
    assert blend.cost_per_accepted == pytest.approx(1000 / 900)


def test_gpus_and_people_have_prices() -> None:
    """Three failed answers are reviewed, and a tenth of the other seven; two GPUs for a minute."""
    rows = [row(i, due=i * 6.0, tokens=[0.1], quality=i >= 3) for i in range(10)]
    prices = ol.Prices(per_gpu_hour=30.0, gpus=2, per_human_review=5.0, reviewed_share=0.1)
    found = score(run_of(rows, window_ns=(0, 60 * 10**9), prices=prices), "quality").cost
    assert found is not None
    assert found.hourly == pytest.approx(1.0)
    assert found.human_review == pytest.approx(3 * 5 + 7 * 0.5)
    assert found.total == found.hourly + found.serving + found.human_review
    assert found.per_accepted == pytest.approx(found.total / 7)


def test_what_is_reserved_is_borne_by_classes_for_whom_it_worked() -> None:
    rows = [row(i, due=float(i), tokens=[0.1] * (1 if i % 2 else 3), workload_class="ab"[i % 2]) for i in range(10)]
    prices = ol.Prices(per_hour=3600.0)
    found = score(run_of(rows, window_ns=(0, 10**10), prices=prices), "ttft<=1s", by=["class"])
    by_class = {name: each.cost.total for name, each in found.by["class"].items() if each.cost}
    assert by_class == {"a": pytest.approx(7.5), "b": pytest.approx(2.5)}
    assert found.cost is not None
    assert sum(by_class.values()) == pytest.approx(found.cost.total)


def test_prompts_are_work_unless_they_were_cached() -> None:
    """100 + 20 tokens, and of 12,000 + 5 all but 275 were cached: 120 and 280 of 400."""
    long: dict[str, Any] = {
        "prompt_tokens": 12000,
        "cached_tokens": 11725,
        "output_tokens": 5,
        "workload_class": "summary",
    }
    short: dict[str, Any] = {"prompt_tokens": 100, "output_tokens": 20, "workload_class": "chat"}
    rows = [row(i, due=float(i), tokens=[0.1], **(long if i % 2 else short)) for i in range(10)]
    found = score(run_of(rows, window_ns=(0, 10**10), prices=ol.Prices(per_hour=3600.0)), "ttft<=1s", by=["class"])
    by_class = {name: each.cost.hourly for name, each in found.by["class"].items() if each.cost}
    assert by_class == {"chat": pytest.approx(3.0), "summary": pytest.approx(7.0)}


@pytest.mark.parametrize("per_hour", [0.0, 360.0])
def test_what_does_not_tell_its_input_is_charged_for_the_rest(per_hour: float) -> None:
    """A request costs 1, an input token 1 and an output token 10: 1 + 5 + 10, at least 1 + 10, and 1 for nothing."""
    rows = [
        row(0, tokens=[0.1], prompt_tokens=5),
        row(1, due=1.0, tokens=[0.1]),
        row(2, due=2.0, status="shed", ended=0.1),
        row(3, due=3.0, status="dropped", sent=None),
    ]
    prices = ol.Prices(per_hour=per_hour, per_request=1.0, per_million_input_tokens=1e6, per_million_output_tokens=1e7)
    found = score(run_of(rows, window_ns=(0, 4 * 10**9), prices=prices), "ttft<=1s")
    assert found.cost is not None
    assert found.cost.serving == pytest.approx(16 + 11 + 1)
    assert found.cost.known_for == 0.5
    assert any("cost is known in full for 50.0% of requests" in note for note in found.notes)
    cheaper = score(run_of(rows, prices=ol.Prices(per_request=1.0)), "ttft<=1s").cost
    assert cheaper is not None
    assert (cheaper.serving, cheaper.known_for) == (3.0, 1.0)


def test_a_rows_own_cost_goes_before_prices_by_use_and_hours_come_on_top() -> None:
    rows = [row(i, due=float(i), tokens=[0.1], **({"cost": 5.0} if i < 2 else {})) for i in range(10)]
    run = run_of(rows, window_ns=(0, 10**10), prices=ol.Prices(per_hour=3600.0, per_request=0.5))
    by_use, hours = score(run, "ttft<=1s").cost, score(run, "ttft<=1s", prices=ol.Prices(per_hour=7200.0)).cost
    assert by_use is not None
    assert hours is not None
    assert (by_use.serving, by_use.hourly, by_use.known_for) == (2 * 5 + 8 * 0.5, 10.0, 1.0)
    assert (hours.serving, hours.hourly, hours.known_for) == (10.0, 20.0, 0.2)
    assert score(run, "cost<=5").accepted == 2  # of the others nobody can say it


@pytest.mark.parametrize("cached_price", [None, 0.1])
@pytest.mark.parametrize(("prompt", "cached"), [(None, 1000), (1000, 400), (None, None)])
def test_an_attempt_costs_while_it_runs_what_it_costs_afterwards(
    prompt: int | None, cached: int | None, cached_price: float | None
) -> None:
    prices = ol.Prices(
        per_million_input_tokens=1.0, per_million_cached_tokens=cached_price, per_million_output_tokens=2.0
    )
    rows = [row(0, tokens=[0.1], prompt_tokens=prompt, cached_tokens=cached, output_tokens=10)]
    found = score(run_of(rows, window_ns=(0, 10**9), prices=prices), "ttft<=1s").cost
    assert found is not None
    assert prices.of(prompt, cached, 10) == pytest.approx(found.serving)


def test_prices_may_be_given_instead_of_the_manifests() -> None:
    rows = [row(i, due=float(i), tokens=[0.1]) for i in range(10)]
    run = run_of(rows, prices=ol.Prices(per_request=1.0))
    assert score(run, "ttft<=1s").cost_per_accepted == 1.0
    assert score(run, "ttft<=1s", prices=read_prices({"per_request": 2.0})).cost_per_accepted == 2.0


@pytest.mark.parametrize(
    ("prices", "says"),
    [
        ({"per_request": -1}, "Expected `float` >= 0.0 at `per_request`, found -1"),
        ({"per_human_review": -0.5}, "at `per_human_review`, found -0.5"),
        ({"per_gpu_hour": 3.0}, "per_gpu_hour is 3, of how many? Give gpus as well"),
        ({"reviewed_share": 2}, "at `reviewed_share`, found 2"),
        ({"per_hours": 2}, "unknown key 'per_hours'; did you mean 'per_hour'?"),
    ],
)
def test_prices_that_are_none_are_one_sentence(prices: dict[str, float], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_prices(prices)
    assert says in str(caught.value)


def test_a_batch_is_judged_by_its_window_and_its_accepted_rows() -> None:
    """The article's: 4 hours, 99.2% of rows."""
    hour = 3600.0
    rows = [row(i, due=0.0, tokens=[4 * hour * (i + 1) / 1000], quality=i >= 8) for i in range(1000)]
    found = score(run_of(rows, window_ns=(0, int(4 * hour * 1e9))), "batch, window<=4h")
    assert found.units["all"].attainment == 0.992
    assert (found.units["all"].goodput, found.units["all"].per_s) == (248.0, 3600.0)
    assert score(run_of(rows, window_ns=(0, int(4 * hour * 1e9))), "batch, window<=2h").units["all"].accepted == 492


def test_an_accepted_session_costs_what_all_of_its_turns_do() -> None:
    rows = [
        row(i, due=i / 10, tokens=[0.1 if i else 9.0], session_id=i // 4, quality=True, cost=0.5) for i in range(40)
    ]
    found = score(run_of(rows, window_ns=(0, 4 * 10**9)), "agentic")
    assert found.cost_per_accepted == pytest.approx(20 / 39)
    assert found.units["all"].cost_per_accepted == pytest.approx(20 / 9)


def test_money_by_the_hour_is_shared_by_the_units_of_several_slos() -> None:
    rows = [row(i, due=i / 10, tokens=[0.1], session_id=i // 4, workload_class="ab"[i // 20]) for i in range(40)]
    slo = {"classes": {"a": {"gates": "ttft<=1s", "unit": "session"}, "b": "ttft<=1s"}}
    found = score(run_of(rows, window_ns=(0, 4 * 10**9), prices=ol.Prices(per_hour=3600.0)), slo)
    assert {name: each.cost_per_accepted for name, each in found.units.items()} == {"a": 2 / 5, "b": 2 / 20}


def test_a_burst_and_a_stall_is_worse_than_a_steady_pace() -> None:
    steady = row(0, tokens=[0.1 * i for i in range(1, 31)])
    burst = row(1, due=10.0, tokens=[0.1 + 0.01 * i for i in range(29)] + [3.0])
    found = score(run_of([steady, burst]), "jitter<=1s, tpot<=110ms")
    assert found.gates["tpot"].failed == 0
    assert found.gates["jitter"].failed == 1
    assert found.jitter_s is not None
    assert found.jitter_s.p99_9 == pytest.approx(2.62 - 0.01, abs=0.02)
    assert score(run_of([steady, burst]), "itl_p95<=50ms").accepted == 1


def test_the_file_in_the_docs_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()
    (tmp_path / "prices.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    assert read_prices(tmp_path / "prices.yaml").hourly == 12.0
