"""Finished requests as rows: their times, and whose they are."""

from array import array

from openloop.load.rows import Row, batch_of
from openloop.load.targets import Outcome
from openloop.load.worker import DONE
from openloop.workload import Ask


def test_no_time_is_before_the_one_that_it_follows() -> None:
    row = Row(0, 100, Outcome(event_ns=array("q", [1_150, 1_230, 1_240]), first_any_ns=1_110))
    row.set_times((0, DONE, "", 1_200, 5, 1_225, b"", bytes(48), 3, False), 1_000)
    assert (row.sent_ns, row.connect_ns, row.first_ns, row.last_ns, row.ended_ns) == (200, 5, 200, 240, 240)
    assert batch_of([row])["event_ns"].to_pylist() == [[200, 230, 240]]
    assert (row.outcome.first_any_ns, row.kernel_stamps, row.stamps) == (200, 3, 3)
    row = Row(0, 100, Outcome())
    row.set_times((0, DONE, "", 1_050, 5, 1_080, b"", b"", 0, False), 1_000)
    assert (row.sent_ns, row.first_ns, row.last_ns, row.ended_ns) == (100, None, None, 100)


def test_a_start_that_is_better_known_moves_all_times_of_a_row_or_none() -> None:
    """As of another machine's clock while a run goes on: rows that were read before are as they are."""
    rows = [Row(number, 100, Outcome(event_ns=array("q", [1_150, 1_160]))) for number in range(2)]
    for row, start in zip(rows, (1_000, 1_040), strict=True):
        row.set_times((0, DONE, "", 1_145, 0, 1_170, b"", bytes(32), 0, False), start)
    found = batch_of(rows).to_pylist()
    assert [(row["sent_ns"], row["event_ns"], row["ended_ns"]) for row in found] == [
        (145, [150, 160], 170),
        (105, [110, 120], 130),
    ]


def test_a_row_says_whose_it_is_if_it_is_somebodys() -> None:
    ask = Ask((), 7, "chat", "ann", 3, 1)
    rows = batch_of([Row(0, 5, Outcome(), ask=ask), Row(1, 6, Outcome("dropped"))]).to_pylist()
    names = ("request_id", "status", "requested_tokens", "workload_class", "tenant", "session_id", "turn")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, "ok", 7, "chat", "ann", 3, 1),
        (1, "dropped", None, None, None, None, None),
    ]
    assert batch_of([]).num_rows == 0
