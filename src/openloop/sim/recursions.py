"""The loops of the queue models, compiled. Times are seconds; arrivals are sorted."""

from typing import Any

import numpy as np

from openloop.arrays import Floats, Ints
from openloop.native.build import native


def single_server(arrival: Floats, service: Floats) -> Floats:
    """end_i = max(arrival_i, end_{i-1}) + service_i."""
    end = np.empty(arrival.size)
    _serve_one(arrival, service, end)
    return end


@native
def _serve_one(arrival: Any, service: Any, end: Any) -> None:
    free = 0.0
    for i in range(len(arrival)):
        free = max(arrival[i], free) + service[i]
        end[i] = free


def multi_server(arrival: Floats, service: Floats, servers: int, connections: int) -> tuple[Floats, Floats, Ints]:
    """First come, first served by whoever is free first: when each was sent, when it ended, and by which server.

    A request is sent when one of the client's `connections` is free, and keeps it until its end. Zero servers or
    connections: as many as it takes.
    """
    sent, end, server = np.empty(arrival.size), np.empty(arrival.size), np.zeros(arrival.size, np.int64)
    _serve_many(arrival, service, _heap(servers), _heap(connections), sent, end, server)
    return sent, end, server


@native
def _serve_many(arrival: Any, service: Any, free: Any, idle: Any, sent: Any, end: Any, server: Any) -> None:
    for i in range(len(arrival)):
        sent[i] = max(arrival[i], idle[0].time) if len(idle) > 0 else arrival[i]
        end[i], server[i] = _serve(free, sent[i], service[i])
        _put_first(idle, len(idle), end[i])


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
    _hedge(arrival, service, again, _heap(servers), float(delay), end, second, server, other)
    return end, second, server, other


@native
def _hedge(
    arrival: Any, service: Any, again: Any, free: Any, delay: float, end: Any, second: Any, server: Any, other: Any
) -> None:
    n = len(arrival)
    i = j = 0
    while j < n:
        if i < n and arrival[i] <= arrival[j] + delay:
            end[i], server[i] = _serve(free, arrival[i], service[i])
            i += 1
            continue
        sent = arrival[j] + delay
        if end[j] > sent + 5e-10:  # a nanosecond is the grain of records
            second[j], other[j] = _serve(free, sent, again[j])
        j += 1


def _serve(free: Any, sent: float, service: float) -> tuple[float, int]:
    """When it ends, and by whom; with no servers at all, at once."""
    if len(free) == 0:
        return sent + service, 0
    end = max(sent, free[0].time) + service
    who = free[0].who
    _put_first(free, len(free), end)
    return end, who


def static_batches(arrival: Floats, size: int, fixed: float, each: float, patience: float) -> Floats:
    """When each request's batch ends.

    A batch starts when the server is free and the batch is full, or its oldest request has waited for `patience`; it
    takes whoever has come by then, up to `size`. Those left over at the end, whose batch never fills, would wait for
    ever if `patience` is infinite: then they start when the last of them has come.
    """
    end = np.empty(arrival.size)
    _serve_batches(arrival, size, float(fixed), float(each), float(patience), end)
    return end


@native
def _serve_batches(arrival: Any, size: int, fixed: float, each: float, patience: float, end: Any) -> None:
    free = 0.0
    first = 0
    while first < len(arrival):
        full = min(first + size, len(arrival))
        fills = arrival[full - 1] if full - first == size or patience == np.inf else np.inf
        begin = max(min(fills, arrival[first] + patience), free)
        stop = first + 1
        while stop < full and arrival[stop] <= begin:
            stop += 1
        free = begin + fixed + each * (stop - first)
        for i in range(first, stop):
            end[i] = free
        first = stop


def shared_clock(start: Floats, work: Floats, crowding: float) -> tuple[Floats, Floats, Floats]:
    """A clock of work that all streams share: k of them advance it at 1 / (1 + crowding * (k - 1)) per second.

    A stream that starts when the clock shows v has done w of its work when it shows v + w. Returns the clock at each
    start, and pairs of (time, clock) between which it runs evenly. Starts are sorted.
    """
    clock_at_start = np.empty(start.size)
    times, clocks = np.zeros(2 * start.size + 1), np.zeros(2 * start.size + 1)
    _run_clock(start, work, float(crowding), _heap(start.size), clock_at_start, times, clocks)
    return clock_at_start, times, clocks


@native
def _run_clock(start: Any, work: Any, crowding: float, leaving: Any, at_start: Any, times: Any, clocks: Any) -> None:
    now = clock = 0.0
    i = active = 0
    for event in range(1, len(times)):
        slowness = 1.0 + crowding * max(active - 1, 0)
        departs = now + (leaving[0].time - clock) * slowness if active > 0 else np.inf
        if i < len(start) and start[i] <= departs:
            clock += max(start[i] - now, 0.0) / slowness
            now = max(start[i], now)
            at_start[i] = clock
            _put_last(leaving, active, clock + work[i])
            active += 1
            i += 1
        else:
            active -= 1
            now, clock = departs, leaving[0].time
            _put_first(leaving, active, leaving[active].time)
        times[event], clocks[event] = now, clock


def _heap(size: int) -> Any:
    """By time, and of equal times by who."""
    heap = np.zeros(size, [("time", np.float64), ("who", np.int64)]).view(np.recarray)
    heap.who = np.arange(size)
    return heap


def _put_first(heap: Any, size: int, time: float) -> None:
    """Whoever is first gets another time, and with it another place."""
    if size == 0:
        return
    who, place = heap[0].who, 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _before(heap[below + 1], heap[below].time, heap[below].who):
            below += 1
        if not _before(heap[below], time, who):
            break
        heap[place] = heap[below]
        place = below
    heap[place].time, heap[place].who = time, who


def _put_last(heap: Any, size: int, time: float) -> None:
    """One more, after `size` others."""
    place = size
    while place > 0 and time < heap[(place - 1) // 2].time:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place].time = time


def _before(one: Any, time: float, who: int) -> bool:
    return bool(one.time < time or (one.time == time and one.who < who))
