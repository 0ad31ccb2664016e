"""When a run has settled, and when it never will."""

import numpy as np
import pytest

from openloop.frontier.point import MOST, SCALES, slack, slack_of
from openloop.frontier.steady import Flow, flow_of, growth, warm_up
from openloop.score.judged import judge_run
from openloop.sim import simulate
from openloop.slo import read_slo


def queue_run(rate: float, seconds: float = 60.0, seed: int = 0, service: str = "exponential(20ms)") -> Flow:
    return flow_of(simulate(f"fcfs:service={service}", f"poisson:rate={rate}", seconds, seed))


def test_a_backlog_grows_at_the_rate_that_cannot_be_served() -> None:
    found = [growth(queue_run(75.0, seed=seed), 60.0) for seed in range(20)]
    assert all(found)
    assert np.mean(found) == pytest.approx(25.0, rel=0.1)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_a_queue_that_keeps_up_is_seldom_called_overloaded(load: float) -> None:
    alarms = [growth(queue_run(50.0 * load, seed=seed), 60.0) > 0 for seed in range(100)]
    assert np.mean(alarms) <= 0.04


def test_a_system_that_is_still_filling_is_not_called_overloaded() -> None:
    due = np.arange(0.0, 60.0, 0.1)
    assert growth(Flow(due, due + 50.0), 60.0) == 0.0
    assert growth(Flow(due, np.full_like(due, np.inf)), 60.0) == 0.0


def test_a_cold_start_is_left_out_and_a_tenth_in_any_case() -> None:
    due = np.arange(0.0, 100.0, 0.05)
    jitter = np.random.default_rng(0).uniform(0.0, 0.2, len(due))
    assert warm_up(Flow(due, due + 1.0), 100.0) == 10.0
    cold = np.where(due < 22.0, 5.0, 0.0)
    assert warm_up(Flow(due, due + 1.0 + jitter + cold), 100.0) in (25.0, 30.0)
    assert warm_up(Flow(due, due + 1.0 + 0.1 * due), 100.0) == 50.0
    assert warm_up(Flow(np.empty(0), np.empty(0)), 100.0) == 10.0


def test_slack_is_how_much_stricter_an_slo_could_be() -> None:
    """In M/M/1 a stay is exponential with mean 1 / (mu - lambda): its 99% quantile is ln(100) times that."""
    run = simulate("fcfs:service=exponential(20ms)", "poisson:rate=30", 4000.0, 1)
    scope = judge_run(run, read_slo("e2e<=400ms")).whole
    found, error = slack(scope, 0.99)
    assert found == pytest.approx(0.4 * 20.0 / np.log(100.0), abs=4 * error)
    assert error < 0.1


def test_slack_has_its_ends_where_nothing_or_everything_is_met() -> None:
    due = np.full(20, 10.0)
    assert slack_of(np.full((20, len(SCALES)), 10.0), due, 0.99) == (MOST, 0.0)
    assert slack_of(np.zeros((20, len(SCALES))), due, 0.99) == (0.0, 0.0)


def test_gates_without_a_bound_on_time_are_not_scaled() -> None:
    run = simulate("fcfs:service=exponential(20ms)", "poisson:rate=30", 60.0, 1)
    assert slack(judge_run(run, read_slo("quality")).whole, 0.9)[0] == 0.0
    assert slack(judge_run(run, read_slo("retries<=0")).whole, 0.9)[0] == MOST
