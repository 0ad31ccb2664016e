"""The loops of the queue models, compiled. Times are seconds; arrivals are sorted."""

import heapq

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["hedged_ends", "multi_server", "shared_clock", "single_server", "static_batches"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def single_server(arrival: Floats, service: Floats) -> Floats:
    """end_i = max(arrival_i, end_{i-1}) + service_i."""
    end = np.empty(arrival.size)
    free = 0.0
    for i in range(arrival.size):
        free = max(arrival[i], free) + service[i]
        end[i] = free
    return end


@njit(cache=True, nogil=True)
def multi_server(arrival: Floats, service: Floats, servers: int, connections: int) -> tuple[Floats, Floats, Ints]:
    """First come, first served by whoever is free first: when each was sent, when it ended, and by which server.

    A request is sent when one of the client's `connections` is free, and keeps it until its end. Zero servers or
    connections: as many as it takes.
    """
    sent, end, server = np.empty(arrival.size), np.empty(arrival.size), np.zeros(arrival.size, np.int64)
    free = [(0.0, each) for each in range(max(servers, 1))]
    idle = [0.0] * max(connections, 1)
    for i in range(arrival.size):
        sent[i] = begin = max(arrival[i], idle[0]) if connections else arrival[i]
        if servers:
            begin = max(begin, free[0][0])
            server[i] = free[0][1]
        end[i] = begin + service[i]
        if servers:
            heapq.heapreplace(free, (end[i], server[i]))
        if connections:
            heapq.heapreplace(idle, end[i])
    return sent, end, server


@njit(cache=True, nogil=True)
def hedged_ends(
    arrival: Floats, service: Floats, again: Floats, servers: int, delay: float
) -> tuple[Floats, Floats, Ints, Ints]:
    """Ends of first and second copies, and their servers: the second is sent if the first takes longer than `delay`.

    First copies come at `arrival` and second ones at `arrival` + `delay`, so two pointers walk through both in order.
    Both run to their end on the servers that they share. No second copy: infinite, and no server.
    """
    n = arrival.size
    end, second = np.empty(n), np.full(n, np.inf)
    server, other = np.zeros(n, np.int64), np.full(n, -1, np.int64)
    free = [(0.0, each) for each in range(max(servers, 1))]
    i = j = 0
    while j < n:
        if i < n and arrival[i] <= arrival[j] + delay:
            begin = max(arrival[i], free[0][0]) if servers else arrival[i]
            end[i], server[i] = begin + service[i], free[0][1]
            if servers:
                heapq.heapreplace(free, (end[i], server[i]))
            i += 1
            continue
        sent = arrival[j] + delay
        if end[j] > sent + 5e-10:  # a nanosecond is the grain of records
            begin = max(sent, free[0][0]) if servers else sent
            second[j], other[j] = begin + again[j], free[0][1]
            if servers:
                heapq.heapreplace(free, (second[j], other[j]))
        j += 1
    return end, second, server, other


@njit(cache=True, nogil=True)
def static_batches(arrival: Floats, size: int, fixed: float, each: float, patience: float) -> Floats:
    """When each request's batch ends.

    A batch starts when the server is free and the batch is full, or its oldest request has waited for `patience`; it
    takes whoever has come by then, up to `size`. Those left over at the end, whose batch never fills, would wait for
    ever if `patience` is infinite: then they start when the last of them has come.
    """
    end = np.empty(arrival.size)
    free = 0.0
    first = 0
    while first < arrival.size:
        full = min(first + size, arrival.size)
        fills = arrival[full - 1] if full - first == size or patience == np.inf else np.inf
        begin = max(min(fills, arrival[first] + patience), free)
        stop = first + 1
        while stop < full and arrival[stop] <= begin:
            stop += 1
        free = begin + fixed + each * (stop - first)
        end[first:stop] = free
        first = stop
    return end


@njit(cache=True, nogil=True)
def shared_clock(start: Floats, work: Floats, crowding: float) -> tuple[Floats, Floats, Floats]:
    """A clock of work that all streams share: k of them advance it at 1 / (1 + crowding * (k - 1)) per second.

    A stream that starts when the clock shows v has done w of its work when it shows v + w. Returns the clock at each
    start, and pairs of (time, clock) between which it runs evenly. Starts are sorted.
    """
    n = start.size
    clock_at_start = np.empty(n)
    times, clocks = np.zeros(2 * n + 1), np.zeros(2 * n + 1)
    leaving = [np.inf]  # clock at which streams end
    now = clock = 0.0
    i = 0
    for event in range(1, 2 * n + 1):
        slowness = 1.0 + crowding * max(len(leaving) - 2, 0)
        departs = now + (leaving[0] - clock) * slowness
        if i < n and start[i] <= departs:
            clock += max(start[i] - now, 0.0) / slowness
            now = max(start[i], now)
            clock_at_start[i] = clock
            heapq.heappush(leaving, clock + work[i])
            i += 1
        else:
            now, clock = departs, heapq.heappop(leaving)
        times[event], clocks[event] = now, clock
    return clock_at_start, times, clocks
