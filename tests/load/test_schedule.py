"""What is due next, with answers that bring about more."""

from hypothesis import given
from hypothesis import strategies as st

from openloop.load.schedule import Schedule
from openloop.load.worker import NEVER

END = 100
MOMENTS = st.lists(st.integers(0, END - 1), max_size=20)


def take_all(schedule: Schedule) -> list[tuple[int, int]]:
    found = []
    while schedule.next_ns != NEVER:
        due = schedule.next_ns
        found.append(schedule.take())
        assert found[-1][0] == due
    return found


@given(MOMENTS, MOMENTS, MOMENTS)
def test_everything_is_taken_once_in_the_order_in_which_it_is_due(
    planned: list[int], turns: list[int], again: list[int]
) -> None:
    schedule = Schedule(sorted(planned) + [NEVER] * len(turns), END)
    for number, due in enumerate(turns, len(planned)):
        schedule.follow(due, number)
    for due in again:
        schedule.again(due, -1)
    found = take_all(schedule)
    assert [due for due, _ in found] == sorted([*planned, *turns, *again])
    assert sorted(number for _, number in found if number >= 0) == list(range(len(planned) + len(turns)))


@given(MOMENTS, MOMENTS, MOMENTS, st.integers(0, END))
def test_what_is_tried_again_was_due_once(planned: list[int], turns: list[int], again: list[int], by: int) -> None:
    schedule = Schedule(sorted(planned) + [NEVER] * len(turns), END)
    for number, due in enumerate(turns, len(planned)):
        schedule.follow(due, number)
    for due in again:
        schedule.again(due, 0)
    assert schedule.planned_by(by) == sum(due < by for due in planned)
    assert schedule.due_by(by) == sum(due < by for due in [*planned, *turns])
    assert schedule.after(by) == min((due for due in planned if due > by), default=END)


def test_a_schedule_that_ends_sooner_keeps_what_was_taken_and_what_has_begun() -> None:
    schedule = Schedule([10, 20, 30, 40, NEVER, NEVER], END)
    schedule.take(), schedule.take(), schedule.take()
    schedule.follow(15, 4)
    schedule.follow(35, 5)
    schedule.again(50, 0)
    schedule.end_at(25, begun={0})
    assert schedule.end_ns == 25
    assert take_all(schedule) == [(15, 4), (50, 0)]


def test_a_schedule_that_is_full_goes_on_with_what_has_begun() -> None:
    schedule = Schedule([10, 20, 30, NEVER], END)
    schedule.take(), schedule.take()
    schedule.follow(15, 3)
    schedule.again(25, 0)
    schedule.end_before(1, begun={0})
    assert (schedule.taken, schedule.planned) == (1, 1)
    assert take_all(schedule) == [(25, 0)]


def test_what_is_forgotten_is_not_due_again() -> None:
    schedule = Schedule([10, 20], END)
    schedule.take(), schedule.take()
    for due, number in ((50, 0), (40, 1), (30, 0)):
        schedule.again(due, number)
    schedule.forget({0})
    assert take_all(schedule) == [(40, 1)]
