"""Token deadlines against the paper's equations, token by token."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.slo import CustomDeadlines, LinearDeadlines
from openloop.slo.deadlines import end_to_end, lateness, reading, reading_from_first, ttft_and_tbt

streams = st.lists(st.floats(0, 5), min_size=1, max_size=30).map(lambda gaps: np.cumsum(gaps))
seconds = st.floats(0.001, 10)


@given(times=streams, ttft=seconds, tbt=seconds)
def test_equation_2_is_each_token_against_the_one_before(times: np.ndarray, ttft: float, tbt: float) -> None:
    expected = max([times[0] - ttft, *(times[i] - (times[i - 1] + tbt) for i in range(1, len(times)))])
    assert lateness(ttft_and_tbt(ttft, tbt), times) == pytest.approx(expected)


@given(times=streams, e2e=seconds)
def test_equation_3_is_the_last_token(times: np.ndarray, e2e: float) -> None:
    assert lateness(end_to_end(e2e), times) == pytest.approx(times[-1] - e2e)


@given(times=streams, speed=st.floats(0.1, 100))
def test_equation_4_is_a_reader_who_starts_on_arrival(times: np.ndarray, speed: float) -> None:
    expected = max(times[i - 1] - i / speed for i in range(1, len(times) + 1))
    assert lateness(reading(speed), times) == pytest.approx(expected)


@given(times=streams, speed=st.floats(0.1, 100))
def test_a_reader_who_starts_with_the_first_token_does_not_mind_waiting_for_it(times: np.ndarray, speed: float) -> None:
    expected = max(
        [-math.inf, *(times[i - 1] - (times[0] + (i - 1) / speed) for i in range(2, len(times) + 1))],
    )
    assert lateness(reading_from_first(speed), times) == pytest.approx(expected)
    later = lateness(reading_from_first(speed), times + 100)
    assert later == pytest.approx(expected, abs=1e-6)


def test_the_papers_example_of_a_stall_that_nobody_notices() -> None:
    """Ten tokens at once, then a stall of a second: the longest gap is 1 s, and a reader of 10 tokens/s never waits."""
    stall = np.array([0.1] * 10 + [1.05, 1.1])
    assert lateness(ttft_and_tbt(0.5, 0.2), stall) > 0
    assert lateness(reading_from_first(10), stall) <= 0
    early_stall = np.array([0.1, 0.1, 1.1, 1.2])
    assert lateness(reading_from_first(10), early_stall) == pytest.approx(0.8)


def test_holding_tokens_back_helps_the_gap_and_not_the_reader() -> None:
    """The output delay trick: evenly released tokens have shorter gaps, and leave the reader idle just as long."""
    bursty = np.array([0.2, 0.21, 0.22, 0.23, 1.0, 1.01])
    delayed = np.linspace(0.2, 1.01, 6)
    assert np.diff(delayed).max() < np.diff(bursty).max()
    assert lateness(reading(5), delayed) >= lateness(reading(5), bursty)


def test_a_function_of_your_own_sees_index_first_and_previous_token() -> None:
    seen = []

    def due(i: np.ndarray, first: np.ndarray, previous: np.ndarray) -> np.ndarray:
        seen.append((i.tolist(), first.tolist(), previous.tolist()))
        return np.asarray(0.5 + 0.1 * np.sqrt(i))

    times = np.array([0.3, 0.4, 0.9])
    assert lateness(CustomDeadlines(due), times) == pytest.approx(
        max(t - 0.5 - 0.1 * k**0.5 for k, t in enumerate(times, 1))
    )
    assert seen == [([1, 2, 3], [0.3] * 3, [0.0, 0.3, 0.4])]


def test_no_token_at_all_is_never_in_time() -> None:
    assert lateness(reading(20), np.array([])) == math.inf


def test_a_pace_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="pace"):
        LinearDeadlines(1.0, 1.0, -0.1)
    with pytest.raises(ValueError, match="pace"):
        LinearDeadlines(1.0, 1.0, 0.1, origin="previous")
