"""Every distribution has the mean and the variation that it says it has."""

from pathlib import Path

import numpy as np
import pytest

from openloop.distributions import DISTRIBUTIONS, Distribution, Empirical, Pareto, read_distribution
from openloop.errors import SpecError
from openloop.terms import SECONDS, write_term

EXAMPLES = {
    "fixed": "fixed(3ms)",
    "exponential": "exponential(3ms)",
    "uniform": "uniform(1ms,5ms)",
    "lognormal": "lognormal(median=3ms,sigma=0.8)",
    "gamma": "gamma(mean=3ms,cv=2)",
    "pareto": "pareto(least=1ms,alpha=6)",
    "straggling": "straggling(exponential(3ms),share=10%,factor=5)",
    "normal": "normal(center=3ms,sd=2ms)",
    "histogram": "histogram(1ms@5,20ms@2,3ms@0)",
    "empirical": f"empirical({Path(__file__).with_name('lengths.txt')})",
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


def test_a_file_of_values_has_weights_or_not() -> None:
    """1 ms once, 2 ms three times, 10 ms once."""
    assert example("empirical").mean == pytest.approx(0.017 / 5)
    path = Path(__file__).with_name("lengths.txt")
    assert read_distribution(f"empirical('{path}')", SECONDS) == read_distribution(f"empirical({path})", SECONDS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("5\nmany\n", "line 2: 'many'"), ("5 1\n6 2 3\n", "line 2: '6 2 3'"), ("", "no value has a weight")],
)
def test_a_file_that_holds_no_values_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(SpecError, match=sentence):
        Empirical(str(tmp_path / "v.txt"))
