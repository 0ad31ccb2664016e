"""The compiled loops do what a slow and plain reading of the rules does."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openloop.sim.recursions import hedged_ends, multi_server, shared_clock, single_server, static_batches

Floats = NDArray[np.float64]

GAPS = st.lists(st.integers(0, 20), min_size=1, max_size=40)
WORK = st.lists(st.integers(0, 50), min_size=40, max_size=40)


def arrays(gaps: list[int], work: list[int]) -> tuple[Floats, Floats]:
    """Whole numbers, so that sums are exact and ties happen."""
    return np.cumsum(np.array(gaps, float)), np.array(work[: len(gaps)], float)


@given(gaps=GAPS, work=WORK)
@settings(deadline=None)
def test_one_server_is_the_case_of_one_among_many(gaps: list[int], work: list[int]) -> None:
    arrival, service = arrays(gaps, work)
    assert np.array_equal(single_server(arrival, service), multi_server(arrival, service, 1, 0)[1])


@given(gaps=GAPS, work=WORK, servers=st.integers(0, 4), connections=st.integers(0, 4))
@settings(deadline=None)
def test_servers_and_connections_are_taken_in_turn(
    gaps: list[int], work: list[int], servers: int, connections: int
) -> None:
    arrival, service = arrays(gaps, work)
    sent, end, server = multi_server(arrival, service, servers, connections)
    free, idle = [0.0] * servers, [0.0] * connections
    for i in range(len(arrival)):
        begin = max(arrival[i], min(idle)) if connections else arrival[i]
        assert sent[i] == begin
        if servers:
            assert free[server[i]] == min(free)
            begin = max(begin, min(free))
            free[server[i]] = begin + service[i]
        assert end[i] == begin + service[i]
        if connections:
            idle[idle.index(min(idle))] = end[i]


@given(gaps=GAPS, work=WORK, again=WORK, servers=st.integers(0, 3), delay=st.integers(0, 30))
@settings(deadline=None)
def test_second_copies_are_sent_when_the_first_is_late(
    gaps: list[int], work: list[int], again: list[int], servers: int, delay: int
) -> None:
    arrival, service = arrays(gaps, work)
    second_service = np.array(again[: len(gaps)], float)
    end, second, _, other = hedged_ends(arrival, service, second_service, servers, float(delay))
    events = sorted([(t, 0, i) for i, t in enumerate(arrival)] + [(t + delay, 1, i) for i, t in enumerate(arrival)])
    free = [0.0] * servers
    ends: dict[int, float] = {}
    for time, copy, i in events:
        if copy and ends[i] <= time:
            assert math.isinf(second[i])
            assert other[i] == -1
            continue
        begin = max(time, min(free)) if servers else time
        over = begin + (second_service if copy else service)[i]
        if servers:
            free[free.index(min(free))] = over
        if copy:
            assert second[i] == over
        else:
            ends[i] = end[i]
            assert end[i] == over


@given(gaps=GAPS, size=st.integers(1, 6), patience=st.sampled_from([0.0, 7.0, 25.0, math.inf]))
@settings(deadline=None)
def test_batches_start_full_or_after_a_while(gaps: list[int], size: int, patience: float) -> None:
    arrival = np.cumsum(np.array(gaps, float))
    end = static_batches(arrival, size, 4.0, 2.0, patience)
    waiting, free = list(range(len(arrival))), 0.0
    while waiting:
        fills = arrival[waiting[size - 1]] if len(waiting) >= size else math.inf
        begin = max(free, min(fills, arrival[waiting[0]] + patience))
        if math.isinf(begin):
            begin = max(free, arrival[-1])
        batch = [i for i in waiting[:size] if arrival[i] <= begin]
        free = begin + 4.0 + 2.0 * len(batch)
        assert (end[batch] == free).all()
        waiting = waiting[len(batch) :]


@given(gaps=GAPS, work=WORK, crowding=st.sampled_from([0.0, 0.1, 1.0]))
@settings(deadline=None)
def test_streams_share_the_clock(gaps: list[int], work: list[int], crowding: float) -> None:
    """Against a simulation that keeps what is left of each stream and serves all of them bit by bit."""
    start, amount = arrays(gaps, work)
    amount += 1.0
    began, times, clocks = shared_clock(start, amount, crowding)
    ends = np.interp(began + amount, clocks, times)
    left: dict[int, float] = {}
    now, coming = 0.0, list(range(len(start)))
    found: dict[int, float] = {}
    while coming or left:
        slowness = 1 + crowding * max(len(left) - 1, 0)
        finish = now + min(left.values()) * slowness if left else math.inf
        until = min(finish, start[coming[0]] if coming else math.inf)
        left = {i: rest - (until - now) / slowness for i, rest in left.items()}
        now = until
        found |= {i: now for i, rest in left.items() if rest <= 1e-9}
        left = {i: rest for i, rest in left.items() if rest > 1e-9}
        while coming and start[coming[0]] <= now:
            first = coming.pop(0)
            left[first] = amount[first]
    assert np.allclose(ends, [found[i] for i in range(len(start))], rtol=1e-9, atol=1e-6)
