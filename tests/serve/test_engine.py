"""Engines are pure: requests and moments in, tokens out."""

import pytest

from openloop.distributions import Fixed
from openloop.errors import SpecError
from openloop.serve import ENGINES, Slots, read_engine

MS = 1_000_000


def test_a_slot_reads_and_then_streams() -> None:
    engine = Slots(count=1, prefill=0.002, overhead=0.001, gap=Fixed(0.010)).start()
    engine.submit(5, prompt_tokens=3, output_tokens=3, now_ns=100 * MS)
    assert engine.next_ns() == 107 * MS
    assert engine.advance(106 * MS) == []
    assert engine.advance(107 * MS) == [5]
    assert engine.advance(126 * MS) == [5]
    assert engine.advance(200 * MS) == [5]
    assert engine.next_ns() is None
    assert engine.running == 0


def test_the_next_takes_the_slot_when_it_is_free_and_not_when_it_is_noticed() -> None:
    engine = Slots(count=1, prefill=0.0, overhead=0.005, gap=Fixed(0.010)).start()
    for key in (1, 2):
        engine.submit(key, 1, 2, 0)
    assert (engine.running, engine.waiting) == (1, 1)
    assert engine.advance(1000 * MS) == [1, 1, 2, 2]


def test_a_slow_engine_takes_longer_over_everything() -> None:
    engine = Slots(count=1, prefill=0.002, gap=Fixed(0.010)).start()
    engine.slowness = 3.0
    engine.submit(1, prompt_tokens=5, output_tokens=2, now_ns=0)
    assert engine.next_ns() == 30 * MS
    engine.advance(30 * MS)
    assert engine.next_ns() == 60 * MS


def test_a_request_that_is_given_up_frees_its_slot() -> None:
    engine = Slots(count=1, prefill=0.0, overhead=0.005, gap=Fixed(0.010)).start()
    for key in (1, 2, 3):
        engine.submit(key, 1, 100, 0)
    engine.cancel(2)
    engine.advance(5 * MS)
    engine.cancel(1)
    assert engine.advance(20 * MS) == [3]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_serves_everybody(name: str) -> None:
    engine = read_engine(name).start(0)
    for key in range(200):
        engine.submit(key, 10, 5, key * MS)
    found: list[int] = []
    while (moment := engine.next_ns()) is not None:
        found += engine.advance(moment)
    assert sorted(found) == sorted(list(range(200)) * 5)


def test_an_engine_that_is_none_is_named() -> None:
    with pytest.raises(SpecError, match="unknown engine 'slot'; did you mean 'slots'"):
        read_engine("slot")
