import numpy as np
import pytest

from openloop.slo import Smooth
from openloop.slo.deadlines import PENALTIES, ExponentialPenalty, StepPenalty, reading


def test_the_defaults_are_those_of_the_papers_experiments() -> None:
    assert Smooth().alpha == 5
    assert Smooth().deadlines == reading(20)


def test_a_second_of_idle_time_costs_alpha_tokens() -> None:
    """Equation 7 with the linear f."""
    benefit = Smooth(alpha=5).benefit(np.array([100.0, 100.0, 100.0]), np.array([0.0, 1.0, 30.0]))
    assert benefit.tolist() == [100, 95, -50]


def test_being_early_earns_nothing() -> None:
    assert Smooth().benefit(np.array([10.0]), np.array([-3.0])).tolist() == [10]


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_is_zero_without_idle_time_and_never_falls(name: str) -> None:
    f = PENALTIES[name]()
    values = f(np.linspace(0, 20, 200))
    assert values[0] == 0
    assert np.all(np.diff(values) >= 0)
    assert values[-1] > 0


def test_step_and_exponential_cost_at_most_alpha() -> None:
    long = np.array([1e6])
    assert StepPenalty(2.0)(np.array([2.0, 2.001])).tolist() == [0, 1]
    assert ExponentialPenalty(1.0)(np.array([1.0]))[0] == pytest.approx(1 - np.exp(-1))
    assert Smooth(alpha=7, penalty=ExponentialPenalty()).benefit(np.array([10.0]), long)[0] == pytest.approx(3)
