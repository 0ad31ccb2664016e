import numpy as np
import pytest

from openloop.errors import RecordError
from openloop.records import COLUMNS, make_batch, make_lists
from openloop.records.schema import SCHEMA


def test_a_batch_needs_only_requests_and_their_due_times() -> None:
    batch = make_batch({"request_id": [1, 2], "scheduled_ns": [0, 5]})
    assert batch.schema.equals(SCHEMA)
    assert batch.column("kind").to_pylist() == ["first", "first"]
    assert batch.column("event_ns").to_pylist() == [[], []]
    assert batch.column("quality").to_pylist() == [None, None]


def test_lists_are_built_from_items_end_to_end() -> None:
    assert make_lists("event_ns", np.array([1, 2, 3]), np.array([2, 0, 1])).to_pylist() == [[1, 2], [], [3]]


@pytest.mark.parametrize("lengths", [[3, -1], [1, 0], [2, 1]])
def test_lists_whose_lengths_do_not_fit_their_items_are_refused(lengths: list[int]) -> None:
    with pytest.raises(RecordError, match="the rows' lengths add up to"):
        make_lists("event_ns", np.array([1, 2]), np.array(lengths))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"scheduled_ns": [0]}, "'request_id' is missing"),
        ({"request_id": [0]}, "'scheduled_ns' is missing"),
        ({"request_id": [0], "scheduled_ns": [0], "latency": [1]}, "unknown column 'latency'"),
        ({"request_id": [0], "scheduled_ns": [0, 1]}, "'scheduled_ns' has 2 rows where 'request_id' has 1"),
        ({"request_id": [0], "scheduled_ns": ["soon"]}, "'scheduled_ns' is not int64"),
        ({"request_id": [0], "scheduled_ns": [0], "turn": [2**40]}, "'turn' is not int32"),
        ({"request_id": [0], "scheduled_ns": [0.05]}, "'scheduled_ns' is not int64: Float value 0.05"),
        ({"request_id": [0], "scheduled_ns": [0], "event_ns": [[1, 1.5]]}, "'event_ns' is not list.*: Float value 1.5"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(columns: dict[str, list[object]], sentence: str) -> None:
    with pytest.raises(RecordError, match=sentence):
        make_batch(columns)


def test_whole_numbers_are_taken_whatever_their_type() -> None:
    batch = make_batch({"request_id": [0, 1], "scheduled_ns": [0, 7.0], "event_ns": [[], [9.0]], "turn": [None, 2.0]})
    assert batch.to_pylist()[1]["scheduled_ns"] == 7
    assert batch.column("event_ns").to_pylist() == [[], [9]]
    assert batch.column("turn").to_pylist() == [None, 2]


def test_every_column_says_what_it_means() -> None:
    assert all(column.meaning for column in COLUMNS.values())
