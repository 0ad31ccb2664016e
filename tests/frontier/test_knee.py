"""The knee lies where theory puts it, and is refused where the points do not show it."""

import dataclasses

import numpy as np
import pytest

from openloop.frontier.knee import NextRun, _rising, find_knee, next_run
from openloop.frontier.point import Point, PointRun, make_point, read_trial
from openloop.score.quantiles import wilson
from openloop.sim import simulate
from openloop.slo import read_slo

# M/M/1, 20 ms: the time in the system is exponential, so P(T > 0.3 s) = exp(-(50 - rate) * 0.3).
SLO, TARGET = "e2e<=300ms", 0.95
KNEE = 50.0 + np.log(1 - TARGET) / 0.3


def point(rate: float, seconds: float = 60.0, repeats: int = 1, slo: str = SLO) -> Point:
    runs = [
        simulate("fcfs:service=exponential(20ms)", f"poisson:rate={rate}", seconds, 100 * each + round(rate))
        for each in range(repeats)
    ]
    return make_point(rate, [read_trial(run, read_slo(slo), TARGET) for run in runs])


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return [point(rate, 200.0) for rate in (10.0, 20.0, 30.0, 35.0, 40.0, 45.0, 60.0)]


def test_the_interval_holds_the_knee_of_theory(points: list[Point]) -> None:
    found = find_knee(points, TARGET)
    assert found.rate is not None
    assert found.interval is not None
    assert found.interval[0] <= KNEE <= found.interval[1]
    assert found.rate == pytest.approx(KNEE, rel=0.1)
    assert found.interval[1] / found.interval[0] < 1.4
    room = found.headroom(20.0)
    assert room is not None
    assert room[0] == pytest.approx(found.rate / 20 - 1)


def test_more_time_makes_a_narrower_interval() -> None:
    rates = (30.0, 37.0, 40.0, 43.0, 60.0)
    widths = []
    for seconds in (30.0, 1000.0):
        found = find_knee([point(rate, seconds) for rate in rates], TARGET)
        assert found.interval is not None
        widths.append(found.interval[1] - found.interval[0])
    assert widths[1] < widths[0] / 2


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        ((5.0, 10.0, 20.0), "beyond"),
        ((60.0, 70.0, 80.0), "below"),
        ((20.0,), "beyond"),
        ((70.0,), "below"),
        ((), "there are no points"),
    ],
)
def test_a_knee_that_the_points_do_not_show_is_not_named(rates: tuple[float, ...], sentence: str) -> None:
    found = find_knee([point(rate) for rate in rates], TARGET)
    assert found.rate is None
    assert found.sentence.startswith(sentence)
    if sentence == "beyond":
        assert found.above is not None
        assert "widen the sweep" in found.sentence
        assert found.above <= max(rates)
    elif rates:
        assert found.below is not None
        assert found.below <= min(rates)


def test_points_that_show_nothing_claim_nothing(points: list[Point]) -> None:
    """Such a knee was said to be beyond the lowest rate that is looked at, half of the first measured."""
    vague = dataclasses.replace(points[0], rate=0.5, slack=((0.8, 0.7),), attainment=0.85, independent=4.0)
    found = find_knee([vague], TARGET)
    assert (found.rate, found.above, found.below) == (None, None, None)
    assert found.sentence == ("attainment is shown neither to reach 95.0% at 0.50/s nor to miss it; measure for longer")


def test_points_at_which_the_client_was_at_fault_do_not_count(points: list[Point]) -> None:
    wrong = dataclasses.replace(points[0], rate=41.0, usable=False, slack=((0.1, 0.01),), reasons=("it was late",))
    assert find_knee([*points, wrong], TARGET) == find_knee(points, TARGET)
    assert find_knee([wrong], TARGET).sentence == "no point can be used, for it was late"


def test_far_apart_points_leave_the_gap_open() -> None:
    found = find_knee([point(20.0, 500.0), point(100.0, 500.0)], TARGET)
    assert found.interval is not None
    assert found.interval[0] < 30.0
    assert found.interval[1] > 80.0


# Rate, attainment and how many independent requests it is of, slack and its error: hours of a fleet held to TTFT and
# TPOT. TPOT is near its bound for long, then TTFT takes over, and no straight line fits.
BENT = (
    (45.0, 0.9989, 28_000, (1.129, 0.003)),
    (48.0, 0.9975, 15_600, (1.061, 0.008)),
    (51.0, 0.9947, 7_000, (1.019, 0.003)),
    (54.0, 0.9892, 2_700, (0.989, 0.019)),
    (57.0, 0.9652, 2_000, (0.779, 0.042)),
    (60.0, 0.8716, 1_070, (0.367, 0.057)),
)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_knee_between_rates_that_surely_meet_and_miss_the_target_is_named(points: list[Point], first: int) -> None:
    bent = [
        dataclasses.replace(points[0], rate=rate, attainment=share, independent=count, slack=(slack,))
        for rate, share, count, slack in BENT[first:]
    ]
    found = find_knee(bent, 0.99)
    assert found.interval is not None
    assert 50.5 <= found.interval[0] <= 53.5 <= found.interval[1] <= 57.0


def test_a_rate_that_surely_misses_the_target_bounds_the_knee(points: list[Point]) -> None:
    """However wide the interval of its attainment is."""
    fine = [point(rate) for rate in (20.0, 30.0)]
    broken = dataclasses.replace(points[0], rate=60.0, attainment=0.78, independent=30.0, slack=((0.6, 0.5),))
    assert wilson(0.78, 30.0)[1] > 0.85
    assert find_knee([*fine, broken], TARGET).interval is not None


def test_a_probe_counts_for_as_long_as_it_took() -> None:
    """A few requests that were all lucky say little beside a minute of runs."""
    runs = [point(rate, 60.0) for rate in (25.0, 30.0, 36.0, 42.0, 48.0)]
    lucky = dataclasses.replace(point(41.0, 2.0), slack=((1.8, 0.6),))
    with_it, without = (find_knee(each, TARGET) for each in ([*runs, lucky], runs))
    assert with_it.interval is not None
    assert without.interval is not None
    assert with_it.rate == pytest.approx(without.rate, rel=0.03)
    assert np.ptp(with_it.interval) < 1.3 * np.ptp(without.interval)


def test_repeats_of_a_rate_are_put_together() -> None:
    one, three = point(40.0), point(40.0, repeats=3)
    assert three.repeats == 3
    assert three.requests == sum(score.requests for score in three.scores)
    assert three.attainment == sum(score.accepted for score in three.scores) / three.requests
    assert three.goodput_rps == pytest.approx(np.mean([score.goodput_rps for score in three.scores]))
    assert np.diff(three.attainment_interval) < np.diff(one.attainment_interval) * 1.2
    assert three.e2e_s is not None
    assert min(s.e2e_s.p50 for s in three.scores if s.e2e_s) <= three.e2e_s.p50
    assert three.e2e_s.n == sum(score.completed for score in three.scores)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 3.0, 2.0, 2.0, 5.0], []])
def test_isotonic_regression_keeps_the_mean_and_never_falls(values: list[float]) -> None:
    weights = np.arange(1.0, len(values) + 1)
    found = _rising(np.array(values), weights)
    assert np.all(np.diff(found) >= 0)
    assert found @ weights == pytest.approx(np.array(values) @ weights)


def walk(start: float, slo: str = SLO) -> tuple[list[Point], NextRun]:
    """The search by itself, against queues."""
    trials: dict[float, list[PointRun]] = {}
    points: list[Point] = []
    for number in range(60):
        found = find_knee(points, TARGET)
        points = [dataclasses.replace(each, name=_named(each, found.rate)) for each in points]
        step = next_run(points, found, 60.0, 0.1, start=start)
        if step.rate is None:
            break
        run = simulate("fcfs:service=exponential(20ms)", f"poisson:rate={step.rate}", step.seconds, number)
        trials.setdefault(step.rate, []).append(read_trial(run, read_slo(slo), TARGET))
        points = [make_point(rate, each) for rate, each in sorted(trials.items())]
    return points, step


def _named(point: Point, knee: float | None) -> str | None:
    shares = {"comfortable": 0.6, "moderate": 0.85, "busy": 1.0, "stressed": 1.25}
    return None if knee is None else next((n for n, s in shares.items() if point.rate <= s * knee), "overloaded")


@pytest.mark.parametrize("start", [1.0, 500.0])
def test_the_search_comes_to_the_knee_from_below_and_from_above(start: float) -> None:
    points, step = walk(start)
    assert step.why == "done"
    found = find_knee(points, TARGET)
    assert found.rate == pytest.approx(KNEE, rel=0.2)
    assert {each.name for each in points} >= {"comfortable", "moderate", "busy", "stressed"}


def test_of_the_rates_with_a_name_the_one_that_is_aimed_at_is_measured_for_longer(points: list[Point]) -> None:
    found = find_knee(points, TARGET)
    short = {10.0, 20.0}  # probes, and both comfortable: half of the knee is 20/s
    named = [
        dataclasses.replace(each, name=_named(each, found.rate), seconds=6.0 if each.rate in short else 200.0)
        for each in points
    ]
    assert next_run(named, found, 200.0, 0.2) == NextRun(20.0, 200.0, "comfortable")


def test_the_search_gives_up_where_nothing_breaks_or_too_little_is_asked() -> None:
    assert "nothing breaks" in walk(400_000.0, slo="e2e<=1h")[1].why
    assert "run for longer" in walk(1.0, slo="e2e<=0.1ms")[1].why


def test_the_search_stops_where_the_client_is_not_up_to_it(points: list[Point]) -> None:
    bad = dataclasses.replace(points[-1], usable=False)
    assert "the client is not up to" in next_run([bad], find_knee([bad], TARGET), 60.0, 0.1).why
