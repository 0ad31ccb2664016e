"""Every distribution has the mean and the variation that it says it has."""

import numpy as np
import pytest

from openloop.distributions import DISTRIBUTIONS, Distribution, Pareto, read_distribution
from openloop.terms import SECONDS, write_term

EXAMPLES = {
    "fixed": "fixed(3ms)",
    "exponential": "exponential(3ms)",
    "uniform": "uniform(1ms,5ms)",
    "lognormal": "lognormal(median=3ms,sigma=0.8)",
    "gamma": "gamma(mean=3ms,cv=2)",
    "pareto": "pareto(least=1ms,alpha=6)",
    "straggling": "straggling(exponential(3ms),share=10%,factor=5)",
}


def example(name: str) -> Distribution:
    return read_distribution(EXAMPLES[name], SECONDS)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_and_variation_are_as_promised(name: str) -> None:
    """Within four standard errors of 200,000 draws: one in 16,000, and the seed is fixed."""
    distribution = example(name)
    draws = distribution.draw(200_000, np.random.default_rng(1))
    error = draws.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - distribution.mean) <= 4 * error + 1e-15
    squares = draws**2
    square = distribution.mean**2 * (1 + distribution.cv**2)
    assert abs(squares.mean() - square) <= 4 * squares.std() / np.sqrt(len(draws)) + 1e-15


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_depend_on_the_generator_alone(name: str) -> None:
    first, again = (example(name).draw(100, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(first, again)
    assert (first >= 0).all()
    assert example(name).draw(0, np.random.default_rng(5)).shape == (0,)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_text_is_read_back(name: str) -> None:
    text = write_term(example(name), SECONDS, inside=True)  # type: ignore[arg-type]
    assert read_distribution(text, SECONDS) == example(name)


def test_a_tail_too_heavy_for_a_variance_says_so() -> None:
    assert Pareto(1.0, 1.5).cv == np.inf
    assert Pareto(1.0, 1.5).mean == 3.0
