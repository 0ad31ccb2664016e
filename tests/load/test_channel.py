"""What one end of a channel says, the other hears: whole, in order, however long, and before the end of it."""

import contextlib
import select
import socket
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openloop.load.channel import ROOM, Channel, GoneError

SIZES = st.one_of(st.integers(0, 100), st.integers(ROOM - 100, ROOM + 100), st.just(3 * ROOM))


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(SIZES, max_size=12), pauses=st.lists(st.booleans(), min_size=12, max_size=12))
def test_messages_come_whole_and_in_order(sizes: list[int], pauses: list[bool]) -> None:
    here, there = map(Channel, socket.socketpair())
    messages = [("done", number, bytes([number]) * size) for number, size in enumerate(sizes)]
    heard: list[Any] = []
    for message, pause in zip(messages, pauses, strict=False):
        here.send(message)
        if not pause:
            heard += there.receive()
    while here.full:
        heard += there.receive()
        here.flush()
    here.close()
    with contextlib.suppress(GoneError):
        while True:
            for message in there.receive():
                heard.append(message)
    there.close()
    assert heard == messages


def test_nothing_to_hear_is_nothing_heard() -> None:
    here, there = map(Channel, socket.socketpair())
    assert list(there.receive()) == []
    here.close()
    with pytest.raises(GoneError):
        list(there.receive())
    with pytest.raises(GoneError):
        there.send(("late",))
    there.close()


def test_what_follows_the_first_message_is_heard_of() -> None:
    here, there = map(Channel, socket.socketpair())
    here.send(("plan",))
    here.send(("end",))
    assert there.first() == ("plan",)
    assert select.select([there.sock], [], [], 0)[0]
    assert list(there.receive()) == [("end",)]
    here.close()
    there.close()


def test_the_first_message_may_be_long() -> None:
    here, there = map(Channel, socket.socketpair())
    asked: list[Any] = []
    thread = threading.Thread(target=lambda: asked.append(there.first()))
    thread.start()
    here.send(("plan", b"x" * (8 * ROOM)))
    while here.full:
        here.flush()
    thread.join()
    here.close()
    there.close()
    assert asked == [("plan", b"x" * (8 * ROOM))]
