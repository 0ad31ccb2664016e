"""What workers say is heard, also the last of it."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from openloop.clock import READ
from openloop.load.channel import Channel
from openloop.load.crew import Crew, Worker

FINISHED = (0, "done", "", 1, 0, 2, b"", b"", 0, False)


@pytest.fixture
def staffed() -> Iterator[tuple[Crew, Worker, Channel, list[Worker]]]:
    """A crew of one that is played by the test, its end of the channel, and whom the crew has lost."""
    lost: list[Worker] = []
    crew = Crew(lost.append)
    ours, theirs = socket.socketpair()
    worker = Worker(Channel(ours), cast("Any", None), range(1))
    crew.workers.append(worker)
    crew._poller.watch(worker.channel.fd, READ)
    with ours, theirs, contextlib.closing(crew._poller):
        yield crew, worker, Channel(theirs), lost


@pytest.mark.parametrize("full", [False, True])
def test_a_worker_that_said_goodbye_is_not_lost_when_it_is_told_something(
    staffed: tuple[Crew, Worker, Channel, list[Worker]], full: bool
) -> None:
    crew, worker, theirs, lost = staffed
    if full:
        crew.send(worker, ("ask", [bytes(1 << 22)]))
        assert worker.channel.full
    theirs.send(("done", [FINISHED]))
    theirs.send(("bye",))
    theirs.close()
    crew.send(worker, ("drain", 0))  # nobody reads it any more
    crew.listen(time.monotonic_ns() + 10_000_000_000)
    assert worker.over
    assert list(crew.brought) == [FINISHED]
    assert lost == []


def test_a_worker_that_is_gone_without_goodbye_is_lost_after_what_it_brought(
    staffed: tuple[Crew, Worker, Channel, list[Worker]],
) -> None:
    crew, worker, theirs, lost = staffed
    theirs.send(("done", [FINISHED]))
    theirs.close()
    crew.send(worker, ("drain", 0))
    while not worker.over:
        crew.listen(None)
    assert list(crew.brought) == [FINISHED]
    assert lost == [worker]
