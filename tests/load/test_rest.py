"""Rests between reads: long where nobody notices, short where two tokens could be taken for one."""

from hypothesis import given
from hypothesis import strategies as st

from openloop.load.rest import LEAST_NS, MOST_NS, Rest

MS = 1_000_000


def stream_of(gaps: list[int]) -> list[int]:
    stamps = [0]
    for gap in gaps:
        stamps.append(stamps[-1] + gap)
    return stamps


def after(rest: Rest, answers: list[list[int]]) -> int:
    for gaps in answers:
        rest.learn(stream_of(gaps))
    return rest.ns


def test_it_grows_to_half_of_the_gap_and_no_further() -> None:
    assert after(Rest(MOST_NS), [[50 * MS, *[6 * MS] * 19]] * 300) == 3 * MS
    assert after(Rest(MOST_NS), [[50 * MS, *[40 * MS] * 19]] * 300) == MOST_NS
    assert after(Rest(MOST_NS), [[50 * MS]] * 300) == MOST_NS  # an answer in one piece has nothing to merge


def test_one_answer_with_a_short_gap_is_enough() -> None:
    rest = Rest(MOST_NS)
    assert after(rest, [[0, *[40 * MS] * 19]] * 300) == MOST_NS
    assert after(rest, [[0, *[40 * MS] * 9, 3 * MS, *[40 * MS] * 9]]) == 3 * MS // 2
    assert after(rest, [[0, *[40 * MS] * 19]] * 300) == MOST_NS
    assert after(rest, [[0, *[40 * MS] * 200, 3 * MS, *[40 * MS] * 200]]) == MOST_NS  # but not one in hundreds
    assert after(rest, [[0, *[40 * MS] * 19, LEAST_NS // 4]]) == MOST_NS  # what any rest may hide


def test_two_tokens_in_one_read_halve_it() -> None:
    rest = Rest(MOST_NS)
    after(rest, [[0, *[40 * MS] * 19]] * 300)
    found = []
    for _ in range(5):
        rest.shorten()
        found.append(rest.ns)
    assert found == [MOST_NS // 2, MOST_NS // 4, LEAST_NS, LEAST_NS, LEAST_NS]


@given(
    most_ns=st.sampled_from([0, LEAST_NS, MOST_NS]),
    answers=st.lists(st.lists(st.integers(-MS, 20 * MS), max_size=9) | st.none()),
)
def test_it_stays_within_its_bounds(most_ns: int, answers: list[list[int] | None]) -> None:
    rest = Rest(most_ns)
    for gaps in answers:
        rest.shorten() if gaps is None else rest.learn(stream_of(gaps))
        assert min(LEAST_NS, most_ns) <= rest.ns <= most_ns
