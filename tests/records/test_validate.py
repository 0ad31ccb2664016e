"""Every rule of the table, broken one at a time."""

from typing import Any

import pytest

from openloop.errors import RecordError
from tests.runs import row, run_of

GOOD = [row(i, due=float(i), tokens=[0.1, 0.2, 0.3]) for i in range(5)]

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "negative time": ({"scheduled_ns": -1}, r"scheduled_ns is -1; times count from the run's start"),
    "negative sending": ({"sent_ns": -7}, r"sent_ns is -7"),
    "null where needed": ({"status": None}, r"status is null; every row needs it"),
    "unknown kind": ({"kind": "again"}, r"kind is 'again'; it is one of first, retry, hedge, repair"),
    "unknown status": ({"status": "fine"}, r"status is 'fine'; it is one of ok, error"),
    "sent early": ({"sent_ns": 1_999_999_999}, r"sent_ns 1999999999 is before scheduled_ns 2000000000"),
    "ended before sent": ({"ended_ns": 1, "event_ns": []}, r"ended_ns 1 is before it was sent"),
    "ok without end": ({"ended_ns": None, "event_ns": []}, r"status is ok without sent_ns and ended_ns"),
    "dropped yet sent": ({"status": "dropped"}, r"status is dropped, yet it has a sent_ns"),
    "censored yet over": ({"status": "censored"}, r"status is censored, yet it has an ended_ns"),
    "negative count": ({"prompt_tokens": -2}, r"prompt_tokens is -2; it is zero or more"),
    "negative cost": ({"cost": -0.5}, r"cost is -0.5; it is zero or more"),
    "cost not a number": ({"cost": float("nan")}, r"cost is nan; it is zero or more"),
    "event before sending": ({"event_ns": [1]}, r"event 0 at 1 is before sent_ns 2000000000"),
    "events out of order": (
        {"event_ns": [2_200_000_000, 2_100_000_000]},
        r"event 1 at 2100000000 is before event 0 at 2200000000",
    ),
    "event after the end": ({"event_ns": [9_000_000_000]}, r"its last event at 9000000000 is after ended_ns"),
    "events never sent": ({"sent_ns": None, "status": "error"}, r"tokens were delivered, yet it was never sent"),
    "more events than tokens": ({"output_tokens": 2}, r"3 tokens were delivered, more than its output_tokens 2"),
    "more than the ends": ({"ends_only": True}, r"ends_only, yet it has 3 tokens with times"),
    "tokens per event do not match": ({"event_tokens": [1, 2]}, r"it has 3 event_ns and 2 event_tokens"),
    "an event without a token": ({"event_tokens": [1, 0, 1]}, r"an event carries fewer than one token"),
    "an event of too many tokens": ({"event_tokens": [1, 2_000_000_000, 1]}, r".* or more than 1,000,000"),
    "a time beyond all times": ({"scheduled_ns": 2**62}, r"scheduled_ns is 4611686018427387904 ns, over seventy years"),
    "the most negative time": ({"scheduled_ns": -(2**63)}, r"scheduled_ns is -9223372036854775808; times count"),
    "more cached than prompted": (
        {"prompt_tokens": 5, "cached_tokens": 6},
        r"cached_tokens 6 is more than its prompt_tokens 5",
    ),
    "more drafts accepted than made": (
        {"drafted_tokens": 1, "accepted_draft_tokens": 2},
        r"accepted_draft_tokens 2 is more than its drafted_tokens 1",
    ),
    "more tokens in events than in all": (
        {"event_tokens": [4, 4, 4], "output_tokens": 11},
        r"12 tokens were delivered, more than its output_tokens 11",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("batches", [1, 3])
def test_a_broken_row_is_named_with_what_is_wrong_in_it(case: str, batches: int) -> None:
    change, sentence = BROKEN[case]
    rows = [*GOOD[:2], GOOD[2] | change, *GOOD[3:]]
    with pytest.raises(RecordError, match=r"^row 2 \(request 2\): " + sentence):
        run_of(rows, batches=batches).validate()


def test_good_rows_pass() -> None:
    run_of(GOOD, batches=2).validate()


def test_the_last_token_of_one_row_may_come_after_the_first_of_the_next() -> None:
    run_of([row(0, tokens=[5.0, 6.0]), row(1, tokens=[1.0])]).validate()


def test_the_same_attempt_twice_is_refused_with_both_rows() -> None:
    with pytest.raises(RecordError, match="rows 0 and 2 are the same attempt of request 7"):
        run_of([row(7), row(8), row(7)], batches=3).validate()


def test_attempts_that_disagree_on_when_their_request_was_due_are_refused() -> None:
    with pytest.raises(RecordError, match="rows 0 and 2 disagree on when request 7 was due"):
        run_of([row(7), row(8), row(7, due=1.0, attempt=1, kind="retry")], batches=2).validate()
