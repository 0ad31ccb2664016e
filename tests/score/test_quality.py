"""Quality by slice: a failing tail is seen where there are enough answers, and where not, that is said."""

import numpy as np
import pytest

from openloop.score import needed_to_see, score
from tests.runs import row, run_of


def test_the_sample_that_it_takes_is_that_of_two_proportions() -> None:
    """1% against 3%, 5% level and 80% power: 769 in each group by the usual tables."""
    assert needed_to_see(0.01) == pytest.approx(769, abs=2)
    assert needed_to_see(0.0) == pytest.approx(388, abs=4)
    assert needed_to_see(1.0) == needed_to_see(0.0)


def test_the_sample_is_enough_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    n = needed_to_see(0.05)
    a, b = rng.binomial(n, 0.05, 4000) / n, rng.binomial(n, 0.07, 4000) / n
    error = np.sqrt(2 * ((a + b) / 2) * (1 - (a + b) / 2) / n)
    assert np.mean(np.abs(b - a) / error > 1.96) == pytest.approx(0.8, abs=0.03)


def test_a_tail_of_two_percent_hides_in_the_average_and_shows_in_its_slice() -> None:
    """3,000 answers, of which a tenth is numeric and fails in 20 of 100: the average is 98%."""
    rows = [
        row(i, i / 10, [0.1], quality=not (i % 10 == 0 and i % 50 == 0), slices="numeric" if i % 10 == 0 else None)
        for i in range(3000)
    ]
    found = score(run_of(rows), "quality").quality
    assert found is not None
    assert (found.judged, found.failed, found.pass_rate) == (3000, 60, 0.98)
    assert found.slices["numeric"].worse
    assert found.slices["numeric"].pass_rate == 0.8
    assert found.slices["numeric"].rest_pass_rate == 1.0
    assert found.slices["numeric"].interval[1] < 0.9


def test_few_answers_of_a_kind_say_that_they_are_few() -> None:
    rows = [row(i, i / 10, [0.1], quality=i != 5, turn=i % 10, session_id=i // 10) for i in range(100)]
    found = score(run_of(rows), "quality").quality
    assert found is not None
    late = found.slices["turn 5 and later"]
    assert (late.judged, late.failed) == (60, 1)
    assert not late.enough
    assert not late.worse


def test_slices_come_from_rows_turns_and_lengths() -> None:
    rows = [
        row(0, 0.0, [0.1], quality=True, slices="numeric+rare", prompt_tokens=100),
        row(1, 1.0, [0.1], quality=False, slices="rare", prompt_tokens=100),
        row(2, 2.0, [0.1], quality=True, prompt_tokens=1000),
        row(3, 3.0, [0.1], quality=None, prompt_tokens=100),
    ]
    found = score(run_of(rows), "quality").quality
    assert found is not None
    assert (found.judged, found.open) == (3, 1)
    assert {name: (each.judged, each.failed) for name, each in found.slices.items()} == {
        "numeric": (1, 0),
        "rare": (2, 1),
        "long prompts": (1, 0),
    }


def test_without_labels_there_is_no_quality() -> None:
    assert score(run_of([row(0, tokens=[0.1])]), "ttft<=1s").quality is None


def test_labels_that_the_slo_does_not_ask_for_are_a_note() -> None:
    rows = [row(i, float(i), [0.1], quality=False) for i in range(5)]
    assert any("does not ask for quality" in note for note in score(run_of(rows), "ttft<=1s").notes)
    assert not any("does not ask" in note for note in score(run_of(rows), "ttft<=1s, quality").notes)


def test_seven_good_turns_and_a_bad_one_are_no_session_and_seven_eighths_of_the_turns() -> None:
    rows = [
        row(
            s * 8 + t,
            s * 8.0 + t,
            [0.9 if (s, t) == (0, 5) else 0.1],
            session_id=s,
            turn=t,
            prompt_tokens=100 * (t + 1),
            cached_tokens=100 * t,
        )
        for s in range(2)
        for t in range(8)
    ]
    found = score(run_of(rows, window_ns=(0, 16 * 10**9)), "ttft<=500ms").sessions
    assert (found.sessions, found.accepted, found.attainment) == (2, 1, 0.5)
    assert (found.turns, found.turn_attainment) == (16, 15 / 16)
    assert found.turn_goodput_per_s == 15 / 16
    assert [each.prompt_tokens for each in found.by_turn] == [100.0 * (t + 1) for t in range(8)]
    assert [each.cache_hit_rate for each in found.by_turn] == pytest.approx([t / (t + 1) for t in range(8)])
    assert found.by_turn[5].attainment == 0.5


def test_calls_per_session_count_every_attempt_of_every_turn() -> None:
    """Eight tickets, twelve calls: one of three turns, one repaired, one asked twice outside any session."""
    told = [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, None, None), *((5 + i, 2 + i, 0) for i in range(5))]
    rows = [row(each, float(each), [0.1], session_id=session, turn=turn) for each, session, turn in told]
    rows.append(row(3, 3.0, [0.2], session_id=1, turn=0, attempt=1, kind="repair"))
    rows.append(row(4, 4.0, [0.2], attempt=1, kind="retry"))
    found = score(run_of(rows), "ttft<=1s").sessions
    assert (found.sessions, found.calls_per_session) == (8, 12 / 8)
    early = score(run_of(rows, window_ns=(0, int(0.5e9))), "ttft<=1s").sessions
    assert (early.sessions, early.turns, early.calls_per_session) == (1, 1, 3.0)  # its turns after the window count


def test_a_session_that_lacks_a_turn_is_counted_not_accepted_and_said() -> None:
    rows = [row(i, float(i), [0.1], session_id=s, turn=t) for i, (s, t) in enumerate([(0, 0), (0, 2), (1, 0), (1, 1)])]
    found = score(run_of(rows), "ttft<=1s")
    assert (found.sessions.sessions, found.sessions.accepted, found.sessions.incomplete) == (2, 1, 1)
    assert found.accepted == 4
    assert "1 sessions lack a turn between others: they are not accepted" in found.notes


def test_a_run_of_unknown_warmth_says_so() -> None:
    rows = [row(i, float(i), [0.1]) for i in range(5)]
    assert any(note.startswith("cache warmth is not known") for note in score(run_of(rows), "ttft<=1s").notes)
    told = score(run_of(rows, cache_warmth="warm-cache"), "ttft<=1s")
    assert not any("cache warmth" in note for note in told.notes)
