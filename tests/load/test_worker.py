"""What a worker remembers."""

import contextlib
import socket

from openloop.load.address import Address
from openloop.load.channel import Channel
from openloop.load.worker import BROKEN, MANY, Plan, _Request, _Worker

TIMEOUT_NS = 1 << 60


def test_deadlines_of_what_is_over_are_forgotten_and_those_of_others_kept() -> None:
    """A request that takes long stands before all that were over since."""
    ours, theirs = socket.socketpair()
    plan = Plan([Address(socket.AF_INET, "127.0.0.1", 1)], TIMEOUT_NS, spare=0)
    worker = _Worker(plan, Channel(ours))
    with ours, theirs, contextlib.closing(worker.poller):
        for ticket in range(3 * MANY):
            request = _Request(ticket, ticket, worker.pools[0], b"")
            worker._enter(request)
            if ticket not in (0, 2 * MANY):
                worker._end(request, BROKEN, "")
        worker._look_at_clock(0)
        assert sorted(ticket for _, ticket, _ in worker.deadlines) == [0, 2 * MANY]
        assert [each.ticket for each in worker._passed(worker.deadlines, TIMEOUT_NS)] == [0]
        assert [each.ticket for each in worker._passed(worker.deadlines, TIMEOUT_NS + 2 * MANY)] == [2 * MANY]
