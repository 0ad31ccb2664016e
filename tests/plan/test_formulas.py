"""The laws of capacity, against theory and by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.distributions import Exponential, read_distribution
from openloop.errors import SpecError
from openloop.plan.formulas import (
    all_up,
    any_slow,
    batch_p99,
    batch_size,
    cost_each,
    diluted,
    fan_width,
    hedging,
    little,
    machines_for,
    needed_share,
    rounded_up,
    some_up,
)
from openloop.sim.recursions import static_batches
from openloop.terms import SECONDS

RATES = st.floats(0.01, 1e5)


@given(RATES, RATES)
def test_littles_law_gives_the_third_of_any_two(rate: float, latency: float) -> None:
    held = rate * latency
    for given_two in ((None, rate, latency), (held, None, latency), (held, rate, None)):
        assert little(*given_two) == pytest.approx((held, rate, latency))


def test_littles_law_needs_two() -> None:
    with pytest.raises(SpecError, match="give two of"):
        little(None, 5.0, None)
    with pytest.raises(SpecError, match="latency is 0"):
        little(None, 5.0, 0.0)


@pytest.mark.parametrize("each", [1e-17, 1e-10])
def test_a_share_too_small_to_be_taken_from_one_counts(each: float) -> None:
    assert any_slow(each, 1000) == pytest.approx(1000 * each)


@given(st.floats(1e-6, 0.5), st.integers(1, 500))
def test_fan_out_is_undone_by_its_inverses(each: float, n: int) -> None:
    slow = any_slow(each, n)
    if 1e-9 < slow < 1 - 1e-6:
        assert needed_share(slow, n) == pytest.approx(each, rel=1e-6)
        width = fan_width(slow + 1e-9 * min(slow, 1 - slow), each)  # less than one more of them would add
        assert width == n
        assert any_slow(each, width + 1) > slow


@given(st.integers(1, 12), st.integers(0, 6), st.integers(1, 99))
def test_enough_are_up_as_the_binomial_distribution_says(needed: int, spare: int, percent: int) -> None:
    machines, up = needed + spare, Fraction(percent, 100)
    exact = sum(math.comb(machines, n) * up**n * (1 - up) ** (machines - n) for n in range(needed, machines + 1))
    assert some_up(needed, machines, percent / 100) == pytest.approx(float(exact), rel=1e-9)


def test_all_up_is_all_of_them() -> None:
    assert [round(all_up(0.999, m), 3) for m in (10, 100, 1000)] == [0.99, 0.905, 0.368]
    assert some_up(1000, 1000, 0.999) == pytest.approx(all_up(0.999, 1000))


@given(st.integers(1, 300), st.floats(0.5, 0.9999), st.floats(0.5, 0.999999))
def test_no_fewer_machines_would_do(needed: int, up: float, availability: float) -> None:
    machines = machines_for(needed, up, availability)
    assert some_up(needed, machines, up) >= availability
    assert machines == needed or some_up(needed, machines - 1, up) < availability


def test_perfect_availability_is_refused_with_what_is_possible() -> None:
    with pytest.raises(SpecError, match=r"100% cannot be reached.*99\.999%, which takes 22 of which 20 must be up"):
        machines_for(20, 0.999, 1.0)
    assert machines_for(20, 1.0, 1.0) == 20


def test_hedging_of_exponential_answers_is_as_theory_says() -> None:
    mean, after = 0.01, 0.01 * math.log(20)
    found = hedging(Exponential(mean), 0.95, load=0.5)
    assert found.after_s == pytest.approx(after, rel=0.02)
    assert found.extra == pytest.approx(0.05, abs=1e-4)
    assert found.p99_s[0] == pytest.approx(mean * math.log(100), rel=0.02)
    assert found.p99_s[1] == pytest.approx((mean * math.log(100) + after) / 2, rel=0.02)
    assert found.mean_s[1] == pytest.approx(mean * (1 - 0.05) + 0.05 * mean / 2, rel=0.02)
    assert found.load == pytest.approx(0.5 * 1.05, rel=0.02)


@pytest.mark.parametrize("always", ["5ms", "0ms"])
def test_answers_that_are_never_late_have_no_copies(always: str) -> None:
    found = hedging(read_distribution(always, SECONDS), 0.95, load=0.5)
    assert (found.extra, found.load) == (0.0, 0.5)


@given(st.floats(0, 0.1), st.floats(1e-4, 0.01), st.floats(0.001, 1.0))
def test_no_larger_batch_keeps_the_bound(fixed: float, each: float, within: float) -> None:
    if fixed + each > within:
        with pytest.raises(SpecError, match="even a batch of one"):
            batch_size(fixed, each, within)
        return
    size = batch_size(fixed, each, within)
    assert fixed + each * size <= within * (1 + 1e-9)
    assert fixed + each * (size + 1) > within * (1 - 1e-9)


@pytest.mark.parametrize(("within", "rate"), [(0.050, 600.0), (0.065, 800.0), (0.020, 50.0)])
def test_a_batch_named_for_a_rate_keeps_its_p99_in_other_draws_and_a_larger_one_does_not(
    within: float, rate: float
) -> None:
    size = batch_size(0.004, 0.0009, within, rate)
    due = np.cumsum(np.random.default_rng(3).exponential(1 / rate, 400_000))
    tails = [np.quantile(static_batches(due, each, 0.004, 0.0009, np.inf) - due, 0.99) for each in (size, size + 2)]
    assert tails[0] <= within < tails[1]
    assert batch_p99(size, 0.004, 0.0009, rate)[0] == pytest.approx(tails[0], rel=0.03)


def test_where_no_batch_keeps_the_bound_at_a_rate_the_best_is_named() -> None:
    with pytest.raises(SpecError, match=r"no batch size keeps a p99 of 50 ms at 800/s.* with batches of 1[89]"):
        batch_size(0.004, 0.0009, 0.050, 800.0)
    with pytest.raises(SpecError, match=r"more than batches of any size can do, 1111/s"):
        batch_size(0.004, 0.0009, 0.050, 1200.0)
    with pytest.raises(SpecError, match="--rate is 0/s"):
        batch_size(0.004, 0.0009, 0.050, 0.0)
    assert batch_p99(8, 0.004, 0.0009, 800.0)[0] == np.inf


def test_a_cache_is_diluted_as_drawn_uses_show() -> None:
    """A prefix used at Poisson moments, spread over replicas whose entries live for a time after their last use."""
    rng = np.random.default_rng(5)
    lifetime, rate = 1.0, 4.0

    def hits(replicas: int) -> float:
        moments = np.cumsum(rng.exponential(1 / rate, 200_000))
        where = rng.integers(replicas, size=len(moments))
        found = [np.diff(moments[where == each]) <= lifetime for each in range(replicas)]
        return float(np.mean(np.concatenate(found)))

    four = hits(4)
    assert hits(8) == pytest.approx(diluted(four, 4, 8), abs=0.01)
    assert diluted(0.85, 4, 8) == pytest.approx(0.61, abs=0.005)
    assert diluted(1.0, 4, 8) == 1.0


def test_cost_and_rounding_by_hand() -> None:
    assert cost_each(3.0, 0.7, 40 / 0.12) * 1e6 == pytest.approx(3.5714, abs=1e-4)
    assert rounded_up(8000 / (40 / 0.12)) == 24
    assert rounded_up(24.01) == 25
