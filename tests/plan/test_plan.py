"""Plans: enough, no more than that, with intervals that follow the knee's, and told as they are."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from openloop.cli import cli
from openloop.errors import RunError, SpecError
from openloop.frontier import Knee, open_frontier
from openloop.frontier.knee import find_knee
from openloop.load.scenario import read_scenario
from openloop.plan import CapacityPlan, Needs, frontier_system, make_plan, read_plan, typed_system
from openloop.plan.formulas import some_up
from openloop.plan.simulated import model_error, plan_fleet, widened
from openloop.plan.system import mean_replicas
from openloop.records import Prices
from openloop.report.marks import Figure
from openloop.report.page import Table
from openloop.report.plan import plan_report
from openloop.report.read import read_report
from openloop.sim.fleet import read_fleet, simulate_fleet
from tests.report.test_report import check_numbers
from tests.reports import write_frontier


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_frontier(tmp_path_factory.mktemp("plan") / "frontier")


@given(
    st.floats(0.1, 1e4),
    st.floats(0.5, 1e3),
    st.floats(1, 4),
    st.floats(0, 1),
    st.integers(0, 3),
    st.sampled_from([None, 0.99, 0.9999]),
)
def test_a_plan_carries_the_peak_and_one_replica_less_would_not(
    demand: float, knee: float, peak: float, headroom: float, failures: int, availability: float | None
) -> None:
    needs = Needs(demand, peak, headroom, failures, availability, 0.99, price=2.0)
    plan = make_plan(typed_system([knee]), needs)
    wanted = demand * peak * (1 + headroom)
    assert plan.sized * knee >= wanted * (1 - 1e-6)
    assert (plan.sized - 1) * knee < wanted
    assert plan.replicas >= plan.sized + failures
    assert availability is None or some_up(plan.sized, plan.replicas, 0.99) >= availability
    less = plan.replicas - 1
    enough = less >= plan.sized + failures and (availability is None or some_up(plan.sized, less, 0.99) >= availability)
    assert not enough
    assert plan.cost_per_million is not None
    assert plan.cost_per_million.value == pytest.approx(2.0 * plan.replicas / 3600 / demand * 1e6)


def test_intervals_follow_the_knee() -> None:
    system = typed_system([400.0, 450.0, 500.0])
    careful, bold = (make_plan(system, Needs(9000.0, price=3.0, by=by)) for by in ("low", "middle"))
    assert (careful.replicas, bold.replicas) == (23, 20)
    assert careful.replicas_interval == bold.replicas_interval == (18, 23)
    assert bold.cost_per_hour is not None
    assert bold.cost_per_hour.interval == (54.0, 69.0)
    assert bold.utilisation.interval == pytest.approx((0.9, 1.125))


def test_a_colder_cache_takes_more_replicas() -> None:
    cache = "cache:hit=85%,replicas=4,saves=60%"
    warm, cold, aware = (
        make_plan(typed_system([100.0]), Needs(800.0, cache=each)) for each in (None, cache, f"{cache},aware=yes")
    )
    assert warm.replicas == aware.replicas == 8
    work = (1 - 0.6 * (1 - 0.15 ** (4 / cold.replicas))) / (1 - 0.6 * 0.85)
    assert cold.replicas == pytest.approx(8 * work, abs=1)
    assert cold.replicas > 10
    assert cold.knee == pytest.approx(100 / work, rel=0.01)
    assert cold.diluted_hit_rate == pytest.approx(1 - 0.15 ** (4 / cold.replicas))


def test_a_replica_with_a_colder_cache_does_less_in_full_use_too(sweep: Path) -> None:
    """Its use, what a result costs by a use that is given, and attainment go by what it can still do."""
    needs = Needs(9000.0, price=3.0, utilisation=0.7, cache="cache:hit=85%,replicas=4,saves=60%")
    plan = make_plan(typed_system([450.0], capacity=500.0), needs)
    work = (1 - 0.6 * (1 - 0.15 ** (4 / plan.replicas))) / (1 - 0.6 * 0.85)
    assert plan.cost_per_million is not None
    assert plan.cost_per_million.value == pytest.approx(1e6 * 3 / (3600 * 0.7 * 500 / work))
    busy = make_plan(typed_system([450.0], capacity=500.0), replace(needs, utilisation=None)).busy
    assert busy is not None
    assert busy.value == pytest.approx(9000 / plan.replicas / (500 / work))
    little = make_plan(
        typed_system(None, in_flight=40, latency_s=0.12), Needs(8000.0, cache="cache:hit=85%,replicas=4,saves=60%")
    )
    assert little.in_flight_each == pytest.approx(40 * little.utilisation.value, rel=0.001)
    measured = frontier_system(open_frontier(sweep))
    found = make_plan(measured, Needs(500.0, cache="cache:hit=85%,saves=60%", by="middle"))
    assert found.attainment == measured.attainment_at(500 / found.replicas * measured.knee / found.knee)


def test_a_day_is_short_by_what_its_colder_replicas_do() -> None:
    needs = Needs(1.0, day="piecewise:180@0s,300@8h,180@16h", scale_delay_s=1800.0, cache="cache:hit=85%,saves=60%")
    day = make_plan(typed_system([100.0]), needs).day
    assert day is not None
    assert max(day.late[96:102]) >= 3  # those of the night: enough, if caches were as warm as that of one
    assert day.short == pytest.approx(0.5 * 300 / (16 * 180 + 8 * 300))


def test_a_day_is_served_by_no_more_than_it_needs() -> None:
    flat = make_plan(typed_system([10.0]), Needs(1.0, day="constant:rate=95"))
    assert flat.day is not None
    assert (flat.replicas, flat.day.saved, flat.day.short) == (10, 0.0, 0.0)
    plan = make_plan(typed_system([10.0]), Needs(1.0, day="piecewise:20@0s,80@8h,20@16h", scale_delay_s=1800.0))
    day = plan.day
    assert day is not None
    assert plan.replicas == 8
    assert plan.needs.demand == pytest.approx(40.0)
    assert day.fixed_hours == 8 * 24
    assert day.late_hours == pytest.approx(2 * 16 + 8 * 8)
    assert day.ahead_hours == pytest.approx(2 * 15.5 + 8 * 8.5)
    assert day.short == pytest.approx(0.5 * 80 / (16 * 20 + 8 * 80))
    assert all(have * 10 >= rate * (1 - 1e-9) for have, rate in zip(day.ahead, day.rate, strict=True))


def test_a_tenth_better_is_worth_what_the_plan_says_with_it() -> None:
    needs = Needs(8000.0, failures=1, price=3.0)
    plan = make_plan(typed_system(None, 40, 0.12), needs)
    faster = make_plan(typed_system(None, 40, 0.108), needs)
    assert plan.cost_per_million is not None
    assert faster.cost_per_million is not None
    gain = next(each for each in plan.gains if each.name.startswith("latency"))
    assert gain.replicas == faster.replicas == 23
    assert gain.worth == pytest.approx(1 - faster.cost_per_million.value / plan.cost_per_million.value)
    assert any(
        each.startswith("Improve first, besides the price: latency (s). A") for each in plan_report(plan).sentences
    )
    assert [each.worth for each in plan.gains] == sorted((each.worth for each in plan.gains), reverse=True)


def test_a_frontier_is_planned_by_its_knee_and_shown(sweep: Path, tmp_path: Path) -> None:
    found = open_frontier(sweep)
    assert found.knee.interval is not None
    plan = make_plan(frontier_system(found), Needs(100.0, 1.5, availability=0.999))
    assert plan.sized == -(-150 // found.knee.interval[0])
    assert plan.needs.price == 3.0
    assert plan.raw is not None
    assert plan.raw.value < plan.replicas
    for each in (plan.cost_per_hour, plan.cost_per_million, plan.cost_per_million_tokens, plan.utilisation, plan.raw):
        assert each is not None
        assert each.interval is not None
        assert each.interval[0] <= each.value <= each.interval[1]
    assert plan.attainment.value > 0.95
    assert plan.in_flight_each == pytest.approx(plan.rate_each * found.points[2].e2e_s.mean, rel=0.5)  # type: ignore[union-attr]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_dict()))
    assert read_plan(path) == plan
    path.write_text(path.read_text().replace('"attainment": {"value"', '"accepted": {"value"'))  # its earlier name
    assert '"accepted"' in path.read_text()
    assert read_plan(path) == plan
    report = read_report(path)
    assert check_numbers(report) > 20
    assert report.headline.startswith(f"Deploy {plan.replicas} replicas for ")


def test_what_is_paid_by_use_is_in_the_bill(sweep: Path) -> None:
    """Of answers of 64 tokens, beside the hours of replicas or without any."""
    by_use = Prices(per_request=0.01, per_million_output_tokens=5.0)
    each = 0.01 + 64 * 5e-6
    prices = (None, msgspec.structs.replace(by_use, per_hour=3.0), by_use)
    plans = [make_plan(frontier_system(open_frontier(sweep, prices=each)), Needs(100.0)) for each in prices]
    hours = 3.0 * plans[0].replicas
    bills = [plan.cost_per_hour.value for plan in plans if plan.cost_per_hour]
    assert bills == pytest.approx([hours, hours + 360_000 * each, 360_000 * each])
    million = [plan.cost_per_million.value * plan.attainment.value for plan in plans if plan.cost_per_million]
    assert million == pytest.approx([bill / 0.36 for bill in bills])
    assert plans[2].needs.price == 0


def test_a_cost_that_is_not_known_in_full_is_a_note(sweep: Path) -> None:
    found = open_frontier(sweep, prices=Prices(per_hour=3.0, per_request=0.01))
    (first, *others) = found.points
    (score, *more) = first.scores
    assert score.cost is not None
    vague = replace(score, cost=replace(score.cost, known_for=0.5))
    points = (replace(first, scores=(vague, *more)), *others)
    for points_of, told in ((found.points, False), (points, True)):
        notes = frontier_system(replace(found, points=points_of)).notes
        assert any("50.0% of requests" in note and "lower bound" in note for note in notes) == told


def test_every_section_of_a_plan_has_its_numbers() -> None:
    system = typed_system([430.0, 450.0, 470.0], 64, 0.12, capacity=500.0, tokens=200.0)
    cache = "cache:hit=85%,replicas=4,saves=30%"
    needs = Needs(1.0, headroom=0.2, availability=0.9995, price=3.0, cache=cache, day="sine:rate=6000,swing=50%")
    report = plan_report(make_plan(system, needs))
    assert check_numbers(report) > 30
    keys = [section.key for section in report.sections]
    assert keys == ["size", "gains", "money", "availability", "little", "day", "cache", "basis"]
    assert all(isinstance(part, Figure) for part in report.figures)


def test_an_slo_that_was_never_met_says_what_would_be_possible(sweep: Path) -> None:
    with pytest.raises(
        SpecError, match=r"was never met.*at 2\.00/s only .* no number of replicas.*times [\d.]+ as long"
    ):
        frontier_system(open_frontier(sweep, "ttft<=1s, tpot<=19ms"))


def test_a_knee_that_is_not_known_is_not_called_an_slo_that_was_never_met(sweep: Path) -> None:
    found = open_frontier(sweep)
    unknown = Knee(
        0.9, None, None, None, 3.0, "below 3.00/s: attainment is not shown to reach 90.0%; sweep lower rates"
    )
    with pytest.raises(
        SpecError, match=r"has no knee: below 3.00/s: .* not shown .*; sweep lower rates, or for longer$"
    ):
        frontier_system(replace(found, knee=unknown))


def test_a_knee_beyond_the_sweep_is_planned_by_what_is_shown(sweep: Path) -> None:
    found = frontier_system(open_frontier(sweep, "e2e<=1h"))
    assert found.knee <= 12
    assert "beyond" in found.notes[0]
    plan = make_plan(found, Needs(100.0, price=3.0))
    assert plan.raw is None  # nothing shows that fewer would miss the SLO
    assert plan.replicas_interval is None
    assert not any("knee" in gain.name for gain in plan.gains)
    report = plan_report(plan)
    assert report.headline.endswith(", or fewer: the knee was not reached")
    assert any(sentence.startswith("The knee lies beyond ") for sentence in report.sentences)
    assert "miss" not in " ".join(report.sentences)


def test_a_modelled_fleet_is_planned_and_its_size_confirmed(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "step: {floor: 10ms, token: 100us}\nmax_sequences: 4\nrouting: least-requests\nprice_per_hour: 2\n"
    )
    flags = {"arrivals": "poisson:rate=1", "for": "60s", "slo": "ttft<=200ms", "prompt": "20", "output": "10"}
    scenario = read_scenario(None, flags, live=False)
    plan: CapacityPlan = plan_fleet(fleet, scenario, Needs(150.0, headroom=0.1), tmp_path / "sweep", 0.95)
    assert 15 < plan.system.knee < 45  # four at a time, a tenth of a second each: at most 40 a second
    assert plan.confirmed is not None
    assert plan.confirmed.enough
    assert plan.confirmed.replicas == plan.sized
    assert plan.needs.price == 2.0
    worse = replace(plan, confirmed=replace(plan.confirmed, enough=False))
    assert plan_report(worse).verdict == "invalid"


def test_a_target_that_is_not_shown_to_be_missed_is_not_said_to_be(sweep: Path) -> None:
    found = open_frontier(sweep)
    vague = replace(found.points[0], slack=((0.8, 0.7),), attainment=0.85, independent=4.0)
    knee = find_knee([vague], found.knee.target)
    with pytest.raises(SpecError, match="has no knee: attainment is shown neither to reach .* measure for longer"):
        frontier_system(replace(found, points=(vague,), knee=knee))


SCALED = {"on": "queue", "target": 2, "idle": 2, "most": 6, "every": "5s", "delay": "10s"}


def test_a_fleet_without_a_knee_is_called_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("model: 8b\ngpu: h100\n")
    given = [str(tmp_path / "fleet.yaml"), "--demand", "5/s", "--slo", "ttft<=1s, quality", "--for", "20s"]
    found = CliRunner().invoke(cli, ["plan", *given])
    assert str(found.exception).startswith(
        f"{given[0]} has no knee: no point can be used, for the SLO asks for quality"
    )


def test_a_fleet_that_scales_is_planned_by_replicas_of_a_fixed_number(tmp_path: Path) -> None:
    """Its own sweep says nothing of a replica: how many there were depends on the rate."""
    fixed = {"step": {"floor": "10ms", "token": "100us"}, "max_sequences": 4, "replicas": 2, "price_per_hour": 2}
    flags = {"arrivals": "poisson:rate=1", "for": "30s", "slo": "ttft<=200ms", "prompt": "20", "output": "10"}
    scenario, plans = read_scenario(None, flags, live=False), []
    for name, fleet in {"fixed": fixed, "scaled": {**fixed, "scale": SCALED}}.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(fleet))
        plans.append(plan_fleet(tmp_path / f"{name}.yaml", scenario, Needs(150.0), tmp_path / name, 0.95))
    assert plans[0].system.knee == plans[1].system.knee
    assert plans[0].cost_per_hour == plans[1].cost_per_hour
    assert "scales itself" in plans[1].notes[-1]
    path = tmp_path / "fixed" / "frontier.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fleet": {**fixed, "scale": SCALED}}))
    with pytest.raises(SpecError, match="nobody can say what one replica does; leave out scale"):
        frontier_system(open_frontier(tmp_path / "fixed"))


def test_replicas_of_a_fleet_that_scales_are_those_that_were_paid_for() -> None:
    fleet = read_fleet(
        {"step": {"floor": "10ms", "token": "100us"}, "max_sequences": 4, "scale": SCALED, "price_per_hour": 2}
    )
    asked = read_scenario(None, {"arrivals": "piecewise:90@0s,5@60s", "prompt": "20", "output": "10"}, live=False)
    manifest = simulate_fleet(fleet, asked.read_workload(), asked.read_arrivals(), 300.0).manifest
    assert {"scale-out", "scale-in"} <= {event.kind for event in manifest.events}
    assert manifest.prices is not None
    assert 2 * mean_replicas(manifest) == pytest.approx(manifest.prices.hourly, rel=0.01)
    assert mean_replicas(manifest) > 1.2


def test_a_planned_fleet_that_is_simulated_for_less_than_until_its_event_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openloop.plan.simulated.MOST_REQUESTS", 40 * 150)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text('step: {floor: 10ms, token: 100us}\nmax_sequences: 4\nevents: ["slow:at=50s,factor=1.01"]\n')
    flags = {"arrivals": "poisson:rate=1", "for": "60s", "slo": "ttft<=200ms", "prompt": "20", "output": "10"}
    plan = plan_fleet(fleet, read_scenario(None, flags, live=False), Needs(150.0), tmp_path / "sweep", 0.95)
    assert plan.confirmed is None
    assert "nothing confirms it" in plan.notes[-1]


def test_a_model_that_is_not_known_exactly_widens_the_knee() -> None:
    fleet = read_fleet({"step": {"floor": "10ms", "token": "10us"}})
    assert model_error(fleet, {}) == 0.0
    exact = model_error(fleet, {"floor": ("10ms", "10ms"), "overhead": ("1ms", "9ms")})
    assert exact == 0.0
    off = model_error(fleet, {"floor": ("9ms", "11ms")})
    assert off == pytest.approx(0.1 * 1.96 / 1.645, rel=0.02)  # steps are all floor here
    system = widened(typed_system([90.0, 100.0, 110.0]), off)
    assert system.knee_interval == pytest.approx(
        (100 - 100 * (0.01 + off**2) ** 0.5, 100 + 100 * (0.01 + off**2) ** 0.5)
    )


@pytest.mark.parametrize(
    ("needs", "sentence"),
    [
        (Needs(0.0), "the demand is 0/s, for which no replica is needed"),
        (Needs(5.0, availability=1.0), "100% cannot be reached"),
        (Needs(5.0, peak=0.5), "the peak is 0.5 times"),
        (Needs(5.0, machine_up=0.0), "machine-up is 0"),
        (Needs(5.0, utilisation=0.0), "utilisation is 0"),
        (Needs(5.0, cache="cache:hit=2"), "not a share"),
        (Needs(1e12), "more than 1,000,000"),
        (Needs(1.0, day="constant:rate=0"), "rate"),
        (Needs(1.0, peak=1.5, day="constant:rate=100"), "a day has a peak of its own, and 1.5 times more"),
    ],
)
def test_what_cannot_be_planned_is_said(needs: Needs, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        make_plan(typed_system([450.0]), needs)


def test_a_day_without_hours_is_no_plan(tmp_path: Path) -> None:
    plan = make_plan(typed_system([450.0]), Needs(1.0, day="sine:rate=6000,swing=50%")).to_dict()
    path = tmp_path / "plan.json"
    for names in (("rate",), ("hours", "rate", "ahead", "late")):
        path.write_text(json.dumps(plan | {"day": plan["day"] | {name: [] for name in names}}))
        with pytest.raises(RunError, match="the day has not as many"):
            read_plan(path)


def test_a_plan_without_a_price_says_so() -> None:
    plan = make_plan(typed_system([450.0]), Needs(9000.0))
    assert plan.cost_per_hour is None
    assert any("give --price" in note for note in plan.notes)


def test_what_a_tenth_saves_in_a_month_is_of_the_bill() -> None:
    plan = make_plan(typed_system([450.0]), Needs(9000.0, price=3.0, utilisation=0.2))
    (section,) = [each for each in plan_report(plan).sections if each.key == "gains"]
    (table,) = [each for each in section.parts if isinstance(each, Table)]
    saved = {row[0]: row[-1] for row in table.rows}
    assert saved["price of a replica"] == "4,380"  # a tenth of 20 replicas at 3 an hour, for 730 hours
    assert saved["knee (rate of a replica)"] == "2,190"  # one of the 20
    assert saved["utilisation"] == "0.00"  # cheaper results, and as many replicas at the same price
    assert any("that was given, 20.0%; the demand alone makes it 100.0%" in note for note in plan.notes)


def test_where_nothing_costs_anything_replicas_are_what_is_saved() -> None:
    free, unknown = (make_plan(typed_system([450.0]), Needs(9000.0, price=price)) for price in (0.0, None))
    assert [gain.worth for gain in free.gains] == [gain.worth for gain in unknown.gains]
    assert free.gains[0].worth == pytest.approx(0.05)


def test_a_knee_is_within_raw_capacity() -> None:
    with pytest.raises(SpecError, match="cannot do 450/s in time and 400/s in all"):
        typed_system([450.0], capacity=400.0)
    with pytest.raises(SpecError, match="cannot do 333.333/s in time and 0/s in all"):
        typed_system(None, 40, 0.12, capacity=0.0)
    assert typed_system(None, 40, 0.1, capacity=400.0).knee == pytest.approx(400.0)


def test_a_capacity_that_is_typed_has_no_interval_and_is_at_least_the_knee(sweep: Path) -> None:
    args = ["plan", str(sweep), "--demand", "500/s", "--json", "--capacity"]
    plan = json.loads(CliRunner().invoke(cli, [*args, "500/s"]).output)
    assert plan["raw"] == {"value": 1, "interval": None}
    assert plan["busy"] == {"value": pytest.approx(1 / plan["replicas"]), "interval": None}
    refused = CliRunner().invoke(cli, [*args, "1/s"])
    assert refused.exit_code != 0
    assert "and 1/s in all: --capacity is at least the knee" in str(refused.exception)


def test_conversations_are_planned_by_their_requests(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "step: {floor: 10ms, token: 100us}\nmax_sequences: 4\nprefix_cache: false\nrouting: least-requests\n"
    )
    talk = "sessions:turns=3,think=100ms,prompt=20,output=10"
    flags = {"arrivals": "poisson:rate=1", "for": "60s", "slo": "ttft<=200ms", "workload": talk}
    scenario = read_scenario(None, flags, live=False)
    plan: CapacityPlan = plan_fleet(fleet, scenario, Needs(150.0, headroom=0.1), tmp_path / "sweep", 0.95)
    users = open_frontier(tmp_path / "sweep")
    assert users.knee.rate is not None
    assert any("users per second, of 3" in note for note in users.notes)
    assert plan.system.requests_per_user == pytest.approx(3, rel=0.05)
    assert 15 < plan.system.knee < 45  # requests: four at a time, a tenth of a second each
    assert plan.system.knee > 2 * users.knee.rate
    assert plan.confirmed is not None
    assert plan.confirmed.enough
    assert any("requests per second" in each for each in plan_report(plan).sentences)
