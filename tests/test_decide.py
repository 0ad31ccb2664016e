"""Three decisions: what to do, what it saves, how sure, and what was not measured."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from openloop.compare import compare
from openloop.decide import decide
from openloop.errors import SpecError
from openloop.frontier import open_frontier
from openloop.importers import open_any
from openloop.records import Prices
from openloop.records.manifest import Stay
from openloop.report.decision import decision_report
from openloop.score import score
from tests.report.test_report import check_numbers
from tests.reports import write_frontier
from tests.runs import steady_run


def choice(a: dict[str, Any], b: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"decision": "migration", "options": {"A": a, "B": b}, **more}


FOREIGN = Path(__file__).parent / "importers" / "files" / "vllm.json"
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


def test_what_costs_nothing_is_compared() -> None:
    found = decide(choice({"knee": "8/s", "price": "0/h"}, {"knee": "9/s", "price": "0/h"}))
    assert found.choose is None
    assert "An accepted result costs 0 with B and 0 with A." in found.sentences


def test_only_a_smaller_number_is_held_against_the_one_that_is_needed() -> None:
    """460/s is not so much more than 450/s that throughput would suggest fewer."""
    option = {"knee": "450/s", "throughput": "460/s", "price": "3/h"}
    found = decide({"decision": "capacity", "demand": "900/s", "options": {"A": option}})
    assert found.headline == "Deploy 2 replicas"
    assert not any("a month" in sentence or "Throughput" in sentence for sentence in found.sentences)


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
    (measured / "slo.yaml").write_text("default: ttft<=1ms")  # beside the question, as all that it names
    (measured / "strict.yaml").write_text((measured / "ask.yaml").read_text() + "slo: slo.yaml\n")
    with pytest.raises(SpecError, match="ttft<=1ms was never met"):
        decide(measured / "strict.yaml")
    (case,) = found.cases
    assert case.plan is not None
    assert case.plan.raw is not None
    assert case.plan.raw.value < case.plan.replicas
    assert case.attainment is not None
    assert case.plan.peak_rate == pytest.approx(120 / case.attainment.value, rel=1e-3)
    assert case.replicas is not None
    assert case.replicas.interval is not None
    assert case.replicas.interval[0] < case.replicas.value <= case.replicas.interval[1]
    assert found.headline == f"Deploy {case.plan.replicas} replicas, not {case.plan.raw.value:.0f}"
    facts = {gap.fact for gap in found.gaps}
    assert "hardware" not in facts or "cache warmth" in facts
    assert "quality gate" not in facts  # it was given
    assert check_numbers(decision_report(found)) > 25


@pytest.mark.parametrize("demand", [100.0, 1.0])
def test_what_is_late_is_asked_for_again(measured: Path, tmp_path: Path, demand: float) -> None:
    """A sweep whose target is lax: up to a third of the requests at its knee are late."""
    lax = shutil.copytree(measured / "sweep", tmp_path / "lax")
    asked = (lax / "frontier.json").read_text()
    (lax / "frontier.json").write_text(asked.replace('"target":0.95', '"target":0.7'))
    option = {"from": str(lax), "price": "3/h"}
    found = decide({"decision": "capacity", "demand": f"{demand}/s", "options": {"A": option}})
    (case,) = found.cases
    assert case.plan and case.attainment and case.goodput_each and case.cost_per_accepted  # noqa: PT018
    share = case.attainment.value
    assert share == case.plan.system.attainment_at(case.plan.needs.demand / case.plan.replicas).value
    assert (share < 0.95) == (demand == 100)  # that of the load of the plan
    assert case.plan.needs.demand * share == pytest.approx(demand, rel=0.02)
    assert any(f"{100 * (1 - share):.1f}% of answers are not" in each for each in found.sentences) == (share < 0.9995)
    assert case.cost_per_accepted.value == pytest.approx(3 * case.plan.replicas / 3600 / demand)
    assert demand / case.plan.replicas < case.goodput_each.value < 0.95 * case.plan.knee


def test_what_is_paid_by_use_counts_also_with_a_frontier(measured: Path) -> None:
    own = {"from": str(measured / "sweep")}
    dear = {**own, "prices": {"per_hour": 3.0, "per_request": 0.01}}
    point = {"from": str(measured / "sweep/points/6-1"), "prices": dear["prices"]}
    for demand in ("100/s", None):
        found = decide(choice(own, dear, demand=demand))
        hours, both = (case.cost_per_accepted for case in found.cases)
        share = found.cases[1].attainment
        assert hours and both and share  # noqa: PT018
        assert both.value - hours.value == pytest.approx(0.01 / share.value)
    assert decide(choice(dear, point, demand="100/s")).choose is None


def test_without_a_demand_the_interval_is_that_of_the_knee(measured: Path) -> None:
    """Of hours alone: what is paid by use is paid at any rate."""
    option = {"from": str(measured / "sweep"), "prices": {"per_hour": 3.0, "per_request": 0.01}}
    knee = open_frontier(measured / "sweep").knee
    assert knee.rate and knee.interval  # noqa: PT018
    for case in decide(choice(option, option)).cases:
        assert case.goodput_each and case.goodput_each.interval and case.attainment  # noqa: PT018
        share = case.goodput_each.value / knee.rate
        assert case.goodput_each.interval == pytest.approx([share * end for end in knee.interval])
        assert case.cost_per_accepted and case.cost_per_accepted.interval  # noqa: PT018
        used = 0.01 / case.attainment.value
        hours = [3 / 3600 / end for end in reversed(case.goodput_each.interval)]
        assert case.cost_per_accepted.interval == pytest.approx([each + used for each in hours])


@pytest.mark.parametrize("prices", [None, Prices(per_hour=7.0), Prices(per_gpu_hour=2.0, gpus=4)])
def test_a_price_stands_in_place_of_what_the_run_was_charged_by_the_hour(tmp_path: Path, prices: Prices | None) -> None:
    steady_run(400, replicas=2, prices=prices).save(tmp_path / "run")
    option = {"from": str(tmp_path / "run"), "price": "3/h"}
    (case, _) = decide(choice(option, option, slo="ttft<=500ms")).cases
    assert case.cost_per_accepted and case.goodput_each  # noqa: PT018
    assert case.cost_per_accepted.value == pytest.approx(3 / 3600 / case.goodput_each.value)


def test_a_price_is_paid_for_as_many_replicas_as_were_there(tmp_path: Path) -> None:
    """Two, and a third one from the middle on."""
    stays = [Stay(str(number), begin, 3 * 10**10) for number, begin in enumerate((0, 0, 10**10))]
    run = steady_run(400, replicas=2, window_ns=(0, 2 * 10**10), stays=tuple(stays))
    run.save(tmp_path / "run")
    option = {"from": str(tmp_path / "run"), "price": "3/h"}
    (case, _) = decide(choice(option, option, slo="ttft<=500ms")).cases
    found = score(run, "ttft<=500ms", prices=Prices(per_hour=2.5 * 3))
    assert case.cost_per_accepted and case.goodput_each  # noqa: PT018
    assert case.cost_per_accepted.value == pytest.approx(found.cost_per_accepted)
    assert case.goodput_each.value == pytest.approx(found.goodput_rps / 2.5)


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


def test_options_that_were_asked_different_things_are_told_as_in_a_comparison(measured: Path, tmp_path: Path) -> None:
    asked = {"toy": "prompt 100, output 20 tokens", "real": "prompt 900, output 150 tokens"}
    for name, lengths in asked.items():
        steady_run(400, lengths=lengths, arrivals="poisson:rate=20", slo=f"ttft<={len(name)}s").save(tmp_path / name)
    options = [{"from": str(tmp_path / name), "price": "3/h"} for name in asked]
    told = [
        f"{each[0].upper()}{each[1:]}." for each in compare(tmp_path / "toy", tmp_path / "real", "ttft<=1s").warnings
    ]
    found = decide(choice(*options))
    assert f"Not the same workload: lengths: {asked['toy']} and {asked['real']}." in found.sentences
    assert [each for each in found.sentences if each.startswith("Not the same")] == told
    common = decide(choice(*options, slo="ttft<=1s")).sentences  # one SLO for both is no difference
    assert [each for each in common if each.startswith("Not the same")] == [
        each for each in told if ": slo:" not in each
    ]
    assert not any("workload" in each for each in decide(choice(options[0], options[0])).sentences)
    sweep = {"from": str(measured / "sweep"), "price": "3/h"}
    mixed = decide(choice(sweep, {**sweep, "from": str(measured / "sweep/points/6-1")}, demand="10/s"))
    assert not any("Not the same" in each for each in mixed.sentences)  # a frontier has no rate of its own


def test_throughput_is_told_of_a_replica(tmp_path: Path) -> None:
    """Four replicas stream more tokens than one that is faster."""
    for name, count, rate in (("four", 4, 20.0), ("one", 1, 8.0)):
        steady_run(400, rate, replicas=count).save(tmp_path / name)
    options = [{"from": str(tmp_path / name), "price": "3/h"} for name in ("four", "one")]
    found = decide(choice(*options, slo="ttft<=500ms"))
    assert found.by_throughput == "B"
    for case in found.cases:
        assert case.tokens_per_s == pytest.approx(20 * (case.throughput_each or 0.0), rel=0.02)


def test_a_cost_that_is_not_known_in_full_is_told_as_a_lower_bound(tmp_path: Path) -> None:
    steady_run(400, prices=Prices(per_million_input_tokens=1.0, per_request=0.1)).save(tmp_path / "run")
    option = {"from": str(tmp_path / "run")}
    found = decide(choice(option, option, slo="ttft<=500ms"))
    assert sum("cost per accepted is a lower bound" in each for each in found.sentences) == 2


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
        (choice({"from": "x", "knee": "9/s"}, ROUTE_B), "A: knee is not used beside from: leave out one"),
        (choice(ROUTE_A, {"knee": "9/s", "attainment": "50%"}), "B: attainment is not used beside knee"),
        (choice(ROUTE_A, {"knee": "9/s", "cost_per_request": 0.01}), "B: cost_per_request is not used beside knee"),
        (choice({**ROUTE_A, "prices": {"per_request": 0.01}}, ROUTE_B), "A: prices is not used beside attainment"),
        (choice({**ROUTE_A, "accepted": "50%"}, ROUTE_B), "A: accepted is not used beside attainment"),
        (choice({**ROUTE_A, "price": "3/h"}, ROUTE_B), "price and cost_per_request are two costs"),
        (
            choice({**ROUTE_A, "cost_per_request": -0.011}, ROUTE_B),
            r">= 0.0 at `options\[\.\.\.\]\.cost_per_request`",
        ),
        (choice(ROUTE_A, ROUTE_B, peak="2x"), "peak is of a demand, and there is none"),
        (choice(ROUTE_A, ROUTE_B, headroom="20%"), "headroom is of a demand"),
        (choice(ROUTE_A, ROUTE_B, failures=1), "failures is of a demand"),
        (choice(ROUTE_A, {"knee": "9/s"}, demand="9/s", peak="2x"), "A: peak is of replicas, .* needs a knee"),
        (choice(ROUTE_A, ROUTE_B, demand="9/s", failures=1), "A: failures is of replicas, .* or leave it out"),
        (choice(ROUTE_A, {"from": str(FOREIGN)}), "vllm.json says nothing of what is accepted"),
        (choice(ROUTE_A, ROUTE_B, one_time=-500), ">= 0.0 at `one_time`, found -500"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(question: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        decide(question)


def test_a_file_of_another_tool_is_an_option_like_a_run() -> None:
    found = decide(choice({"from": str(FOREIGN)}, {"knee": "9/s"}, slo="ttft<=1s"))
    (case, _), run = found.cases, score(open_any(FOREIGN), "ttft<=1s")
    assert case.goodput_each is not None
    assert case.goodput_each.value == run.goodput_rps > 0


def test_answers_that_are_hardly_ever_good_take_as_many_more_requests(measured: Path) -> None:
    option = {"from": str(measured / "sweep"), "quality": "1% of 100"}
    (case,) = decide({"decision": "capacity", "demand": "5/s", "options": {"a": option}}).cases
    assert case.replicas is not None
    assert case.replicas.value > 50
