"""What a worker remembers."""

import contextlib
import socket
from array import array
from collections.abc import Iterator

import pytest

from openloop.load import crew
from openloop.load.address import Address
from openloop.load.channel import Channel
from openloop.load.connection import Connection, Request
from openloop.load.worker import BROKEN, MANY, REST_NS, Plan, _Worker

TIMEOUT_NS = 1 << 60


@pytest.fixture(params=["machine code", "Python"])
def worker(request: pytest.FixtureRequest) -> Iterator[_Worker]:
    ours, theirs = socket.socketpair()
    code = crew.intake_code() if request.param == "machine code" else b""
    plan = Plan([Address(socket.AF_INET, "127.0.0.1", 1)], TIMEOUT_NS, spare=0, code=code)
    found = _Worker(plan, Channel(ours))
    with ours, theirs, contextlib.closing(found.poller):
        yield found


def test_deadlines_of_what_is_over_are_forgotten_and_those_of_others_kept(worker: _Worker) -> None:
    """A request that takes long stands before all that were over since."""
    for ticket in range(3 * MANY):
        request = Request(ticket, ticket, worker.pools[0], b"")
        worker._enter(request)
        if ticket not in (0, 2 * MANY):
            worker._end(request, BROKEN, "")
    worker._look_at_clock(0)
    assert sorted(ticket for _, ticket, _ in worker.deadlines) == [0, 2 * MANY]
    assert [each.ticket for each in worker._passed(worker.deadlines, TIMEOUT_NS)] == [0]
    assert [each.ticket for each in worker._passed(worker.deadlines, TIMEOUT_NS + 2 * MANY)] == [2 * MANY]


def test_a_rest_goes_by_the_times_between_reads(worker: _Worker) -> None:
    """A millisecond where tokens come every five, half of that where they come every 1.9."""
    with socket.socket() as sock:
        connection = Connection(sock, worker.pools[0], None)
        connection.request = request = Request(0, 0, worker.pools[0], b"")
        for gap_ns, rest_ns in ((5_000_000, REST_NS), (1_900_000, REST_NS // 2)):
            for _ in range(5):
                for number in range(101):
                    worker._received(connection, b"x", number * gap_ns, True)
                request.marks = array("q")
                worker._look_at_clock(0)
            assert worker.rest.ns == rest_ns
            assert worker.intake is None or worker.intake.state.rest_ns == rest_ns
