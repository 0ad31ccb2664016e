"""Prompts are as long as they should be, and the same for the same seed."""

from collections import Counter

from openloop.distributions import Fixed, Uniform
from openloop.workload import Synthetic


def test_lengths_are_as_asked() -> None:
    asks = list(Synthetic(Uniform(5, 50), Fixed(9)).asks(2000, seed=1))
    lengths = Counter(len(ask.text.split()) for ask in asks)
    assert min(lengths) == 5
    assert max(lengths) == 50
    assert {ask.output_tokens for ask in asks} == {9}


def test_the_same_seed_asks_the_same_however_many_are_asked() -> None:
    workload = Synthetic(Uniform(5, 50), Uniform(1, 99))
    few, many = list(workload.asks(600, seed=1)), list(workload.asks(1500, seed=1))
    assert few == many[:600]
    assert few != list(workload.asks(600, seed=2))


def test_no_two_prompts_begin_alike() -> None:
    """A cache of prefixes must not be measured by accident."""
    asks = list(Synthetic(Fixed(3), Fixed(1)).asks(3000, seed=0))
    assert len({ask.text.split()[0] for ask in asks}) == 3000
