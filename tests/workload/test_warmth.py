"""Warmth changes what prompts have in common, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.arrivals import Poisson
from openloop.errors import SpecError
from openloop.workload import (
    WARMTHS,
    Workload,
    describe,
    known_tokens,
    priming,
    read_source,
    read_warming,
    salted,
    steady,
)
from openloop.workload.demand import one_after_the_other
from openloop.workload.warmth import split_states

PREFIXED = "synthetic:prompt=10,output=5,prefixes=4,prefix=100"


@pytest.mark.parametrize("name", WARMTHS)
def test_it_reads_back_as_it_is_written_and_by_the_manifests_name(name: str) -> None:
    found = read_warming(name)
    assert read_warming(str(found)) == found
    assert read_warming(found.state) == found


def test_what_cannot_be_brought_about_is_one_sentence() -> None:
    with pytest.raises(SpecError, match="unknown cache warmth 'warm'; known are cold, cold-cache, warm-cache"):
        read_warming("warm")
    with pytest.raises(SpecError, match="disrupted: at is 90 s, and the run is over after 60 s"):
        read_warming("disrupted:at=90s").events(60.0)


def test_states_in_a_row_are_taken_apart() -> None:
    assert split_states("warm-cache, disrupted:at=30s,hot:most=60s") == [
        "warm-cache",
        "disrupted:at=30s",
        "hot:most=60s",
    ]
    assert split_states("hot steady state") == ["hot steady state"]
    assert split_states("warm-cache,nonsense") == ["warm-cache", "nonsense"]


def test_prompts_with_salts_of_their_own_have_nothing_in_common() -> None:
    demand = Workload.of(read_source(PREFIXED)).demand(Poisson(10.0), 20.0, 0)
    assert describe(demand, 20.0).reuse > 0.8
    apart = salted(demand, np.arange(1, len(demand) + 1))
    assert known_tokens(apart).sum() == 0
    assert np.array_equal(apart.prompt_tokens, demand.prompt_tokens)
    same = salted(demand, np.zeros(len(demand), np.int64))
    assert np.array_equal(same.pieces.identity, demand.pieces.identity)


def test_a_primed_demand_knows_every_prefix_from_its_first_request() -> None:
    demand = Workload.of(read_source(PREFIXED)).demand(Poisson(10.0), 20.0, 0)
    primes = priming(demand)
    assert len(primes) == 4
    assert set(primes.prompt_tokens.tolist()) == {100}
    assert set(known_tokens(one_after_the_other(primes, demand))[4:].tolist()) == {100}


def test_of_conversations_only_what_all_begin_with_is_primed() -> None:
    demand = Workload.of(read_source("sessions:turns=3,system=50,prompt=10,output=5")).demand(Poisson(5.0), 10.0, 0)
    primes = priming(demand)
    assert primes.prompt_tokens.tolist() == [50]


def test_prompts_that_share_nothing_need_no_priming() -> None:
    assert len(priming(Workload.of(read_source("synthetic:prompt=10")).demand(Poisson(10.0), 10.0, 0))) == 0


@given(st.floats(0.0, 1.0), st.integers(60, 400))
def test_a_constant_hit_rate_is_steady(rate: float, count: int) -> None:
    assert steady([(rate * 100, 100.0)] * count)


def test_a_hit_rate_that_still_rises_is_not_steady_and_neither_is_a_short_one() -> None:
    assert not steady([(float(i), 200.0) for i in range(150)])
    assert not steady([(50.0, 100.0)] * 59)
    settled = [(float(min(i, 90)), 100.0) for i in range(400)]
    assert steady(settled)
