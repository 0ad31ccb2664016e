"""Exact moments, and stamps that agree with the clock."""

import socket
import time

import pytest

from openloop.clock import READ, WRITE, Poller, Receiver, Rest, stolen_s


def test_it_wakes_at_the_moment_and_not_before() -> None:
    poller = Poller()
    for _ in range(5):
        moment = time.monotonic_ns() + 3_000_000
        poller.wait(moment)
        assert 0 <= time.monotonic_ns() - moment < 200_000_000
    poller.wait(0)
    poller.close()


def test_it_tells_what_can_be_read_and_written() -> None:
    poller = Poller()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poller.watch(ours.fileno(), READ | WRITE)
        assert dict(poller.wait(0)) == {ours.fileno(): WRITE}
        theirs.send(b"x")
        poller.change(ours.fileno(), READ)
        assert dict(poller.wait(time.monotonic_ns() + 1_000_000_000)) == {ours.fileno(): READ}
        poller.forget(ours.fileno())
        assert poller.wait(time.monotonic_ns() + 1_000_000) in ([], [(poller._timer.fd, READ)])
    poller.close()


def test_a_stamp_says_when_bytes_arrived_and_not_when_they_were_read() -> None:
    receiver = Receiver()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        receiver.prepare(ours)
        with theirs:
            theirs.send(b"first")  # the kernel may still be getting ready to stamp
            time.sleep(0.05)
            receiver.read(ours)
            before = time.monotonic_ns()
            theirs.send(b"second")
            sent = time.monotonic_ns()
            time.sleep(0.05)
            receiver.refresh()
            data, stamp, kernel = receiver.read(ours)
    assert data == b"second"
    if kernel:
        assert before - 100_000 < stamp < sent + 40_000_000


@pytest.mark.parametrize("step_s", [-3600, 3600, 0.5])
def test_a_wall_clock_that_is_set_does_not_show_in_stamps(step_s: float) -> None:
    receiver = Receiver()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        receiver.prepare(ours)
        with theirs:
            theirs.send(b"first")
            receiver.read(ours)
            receiver.offset_ns -= int(step_s * 1e9)  # as it is between the step and the next look at the clock
            before = time.monotonic_ns()
            theirs.send(b"second")
            _, stamp, _ = receiver.read(ours)
    assert before - 1_000_000 < stamp < time.monotonic_ns() + 1_000_000


def test_stolen_time_never_runs_backwards() -> None:
    first = stolen_s()
    assert 0 <= first <= stolen_s()


def rested(rest: Rest, gaps_ns: list[int], times: int = 5) -> int:
    for _ in range(times):
        for gap_ns in gaps_ns:
            rest.note(gap_ns)
        rest.adapt()
    return rest.ns


def test_a_rest_is_half_of_what_is_between_two_tokens_at_most() -> None:
    rest = Rest(1_000_000)
    assert 0 < rested(rest, [5_000_000] * 99, 1) < 1_000_000  # too few to go by
    assert rested(rest, [5_000_000] * 200) == 1_000_000
    assert rested(rest, [500_000] * 200) == 250_000
    assert rested(rest, [300_000] * 200) == rested(rest, [300_000] * 200) == 125_000
    assert rested(rest, [5_000_000] * 200) == 1_000_000
    assert rested(rest, [5_000_000] * 199 + [500_000]) == 1_000_000  # few are few
    assert rested(rest, [5_000_000] * 200 + [200_000] * 100) == 1_000_000  # sent at once
    assert rested(rest, [1_900_000] * 20 + [5_000_000] * 180) == 500_000


def test_a_long_rest_wants_hardly_any_tokens_that_are_close() -> None:
    rest = Rest(4_000_000)
    assert rested(rest, [10_000_000] * 200) == 4_000_000
    assert rested(rest, [10_000_000] * 199 + [3_000_000]) == 4_000_000
    assert rested(rest, [10_000_000] * 195 + [1_500_000] * 5) == 1_000_000
    assert rested(rest, [7_900_000] * 200) == 2_000_000


def test_where_nobody_is_to_rest_nobody_does() -> None:
    assert rested(Rest(0), [5_000_000] * 200) == 0
