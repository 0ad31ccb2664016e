"""Three decisions: what to do, what it saves, how sure, and what was not measured."""

from pathlib import Path
from typing import Any

import pytest

from openloop.decide import decide
from openloop.errors import SpecError
from openloop.report.decision import decision_report
from tests.report.test_report import check_numbers
from tests.reports import write_frontier
from tests.runs import steady_run


def choice(a: dict[str, Any], b: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"decision": "migration", "options": {"A": a, "B": b}, **more}


ROUTE_A = {"attainment": "58% of 10000", "cost_per_request": 0.011, "throughput": "1200tok/s"}
ROUTE_B = {"attainment": "85% of 10000", "cost_per_request": 0.0145, "throughput": "800tok/s"}


def test_the_cheaper_accepted_result_wins_against_throughput() -> None:
    found = decide(choice(ROUTE_A, ROUTE_B, demand="10/s", one_time=25_000))
    assert (found.choose, found.by_throughput, found.headline) == ("B", "A", "Move to B")
    costs = [case.cost_per_accepted.value for case in found.cases if case.cost_per_accepted]
    assert costs == pytest.approx([0.011 / 0.58, 0.0145 / 0.85])
    assert found.sure is not None
    assert found.sure > 0.99
    assert found.saves is not None
    assert found.saves.value == pytest.approx((costs[0] - costs[1]) * 10 * 3600 * 730)
    assert found.saves.interval is not None
    assert found.saves.interval[0] < found.saves.value < found.saves.interval[1]
    told = f"95% interval {found.saves.interval[0]:,.0f} to {found.saves.interval[1]:,.0f}"
    assert any(f" a month ({told})." in sentence for sentence in found.sentences)
    assert found.payback_months == pytest.approx(25_000 / found.saves.value)
    assert check_numbers(decision_report(found)) > 8


def test_who_is_sure_saves_something_also_at_the_low_end() -> None:
    """Errors of shares lean to one side. Draws of both shares (Jeffreys) give 98.9%, and 11,700 to 191,900."""
    cheap = {"attainment": "58% of 100", "cost_per_request": 0.011}
    found = decide(choice(cheap, {"attainment": "90% of 100", "cost_per_request": 0.014}, demand="10/s"))
    assert found.sure == pytest.approx(0.989, abs=0.002)
    assert found.saves is not None
    assert found.saves.interval == pytest.approx((11_700, 191_900), abs=1500)


def test_few_requests_show_no_difference() -> None:
    few = [{**each, "attainment": each["attainment"].replace("10000", "100")} for each in (ROUTE_A, ROUTE_B)]  # type: ignore[attr-defined]
    found = decide(choice(*few, demand="10/s"))
    assert found.choose is None
    assert found.headline == "No difference in cost is shown between A and B"  # 58% against 85% is one
    assert found.saves is None
    assert found.sure is not None
    assert 0.5 < found.sure < 0.95
    assert any("measure for longer" in sentence for sentence in found.sentences)


def test_typed_numbers_decide_without_saying_how_sure() -> None:
    today = {"accepted": "78%", "cost_per_request": 0.04}  # attainment, as it was called before
    found = decide(choice(today, {"attainment": "91%", "cost_per_request": 0.035}))
    assert found.choose == "B"
    assert found.sure is None
    assert [gap.fact for gap in found.gaps] == ["everything", "everything"]


def test_without_prices_goodput_decides_and_what_is_missing_is_said() -> None:
    slow, quick = ({"attainment": "90% of 1000", "throughput": f"{rate}/s"} for rate in (10, 14))
    found = decide(choice(slow, quick))
    assert found.choose == "B"
    assert found.saves is None
    assert any("give both a price" in sentence for sentence in found.sentences)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decide")
    write_frontier(folder / "sweep", (2, 5, 6, 7, 9, 30), 120.0)
    return folder


def test_capacity_goes_by_goodput(measured: Path) -> None:
    (measured / "ask.yaml").write_text(
        "decision: capacity\ndemand: 100/s\npeak: 1.2x\noptions:\n"
        "  model: {from: sweep, price: 3/h, quality: 90% of 400}\n"
    )
    found = decide(measured / "ask.yaml")
    (case,) = found.cases
    assert case.plan is not None
    assert case.plan.raw is not None
    assert case.plan.raw.value < case.plan.replicas
    assert case.plan.peak_rate == pytest.approx(120 / 0.9)
    assert case.replicas is not None
    assert case.replicas.interval is not None
    assert case.replicas.interval[0] < case.replicas.value <= case.replicas.interval[1]
    assert found.headline == f"Deploy {case.plan.replicas} replicas, not {case.plan.raw.value:.0f}"
    facts = {gap.fact for gap in found.gaps}
    assert "hardware" not in facts or "cache warmth" in facts
    assert "quality gate" not in facts  # it was given
    assert check_numbers(decision_report(found)) > 25


def test_a_knee_beyond_the_sweep_lets_fewer_do(tmp_path: Path) -> None:
    sweep = write_frontier(tmp_path / "sweep", (2, 3), 60.0)
    found = decide({"decision": "capacity", "demand": "40/s", "options": {"A": {"from": str(sweep)}}})
    assert found.by_throughput is None
    assert "Fewer may do: the knee lies beyond what was measured." in found.sentences
    assert found.cases[0].replicas is not None
    assert found.cases[0].replicas.interval is None
    option = {"from": str(sweep), "price": "3/h"}
    both = decide(choice(option, {**option, "price": "1/h"}, demand="40/s"))
    assert [each for each in both.sentences if "it may do more" in each] == [
        f"The knee of {name} lies beyond what was measured: it may do more." for name in "AB"
    ]


def test_two_frontiers_are_compared_for_the_demand(measured: Path) -> None:
    option = {"from": str(measured / "sweep"), "quality": "90% of 2000"}
    found = decide(choice({**option, "price": "3/h"}, {**option, "price": "1.5/h"}, demand="100/s"))
    assert found.choose == "B"
    assert found.saves is not None
    for case in found.cases:  # an answer has 64 tokens; those that came after the window are no throughput
        assert case.tokens_per_s == pytest.approx(64 * (case.throughput_each or 0.0), rel=0.02)
    same = decide(choice({**option, "price": "3/h"}, {**option, "price": "3/h"}, demand="100/s"))
    assert same.choose is None


def test_a_run_that_is_not_valid_makes_a_decision_that_is_not(tmp_path: Path) -> None:
    for name, count in (("a", 20), ("b", 400)):
        steady_run(count).save(tmp_path / name)
    options = [{"from": str(tmp_path / name), "price": "3/h"} for name in "ab"]
    found = decide(choice(*options, slo="ttft<=500ms", demand="1/s"))
    report = decision_report(found)
    assert not found.valid
    assert report.verdict == "invalid"
    assert any("A is not valid" in sentence for sentence in report.sentences)
    assert {"other rates", "quality gate"} <= {gap.fact for gap in found.gaps}


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"decision": "model", "options": {"A": {}}}, "takes two options"),
        ({"decision": "capacity", "options": {"A": {"knee": "5/s"}}}, "depends on the demand"),
        ({"decision": "capacity", "demand": "0/s", "options": {"A": {"knee": "5/s"}}}, "the demand is 0/s"),
        ({"decision": "capacity", "demand": "5/s", "options": {"A": {"attainment": "50%"}}}, "needs a knee"),
        ({"decision": "where", "options": {}}, "Invalid enum value"),
        (choice({}, {}), "say what is known of it"),
        (choice({"attainment": "0%"}, ROUTE_B), "where nothing is accepted"),
        (choice({"attainment": "much"}, ROUTE_B), "not a number"),
        (choice({"attainment": "50%"}, {"attainment": "60%"}), "give both a price"),
        (choice({"form": "x"}, {}), "unknown key 'form'"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(question: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        decide(question)
