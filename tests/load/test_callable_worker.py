"""Functions in place of a server: called when they are due, and left behind when they take too long."""

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openloop.load.channel import Channel, GoneError
from openloop.load.rows import Row, read_finished
from openloop.load.targets import Function
from openloop.load.worker import CENSORED, TIMEOUT, Finished
from openloop.workload import Ask

FUNCTIONS = """
import asyncio, threading, time

def text(ask):
    return f"{ask.text} {ask.output_tokens}"

def pieces(ask):
    for piece in ("one", "", "two"):
        yield piece
        time.sleep(0.05)

async def later(ask):
    await asyncio.sleep(0.05)
    return "one"

async def pieces_later(ask):
    for piece in ("one", "", "two"):
        yield piece
        await asyncio.sleep(0.05)

async def found_later(ask):
    return pieces_later(ask)

class Asker:
    async def __call__(self, ask):
        return "one"

asker = Asker()

def nothing(ask):
    return ""

def broken(ask):
    raise ValueError("so it is")

def cut(ask):
    yield "one"
    raise ValueError("so it is")

def odd(ask):
    return 3

def leaves(ask):
    raise SystemExit

def stuck(ask):
    if ask.text == "0":
        yield "one"
        threading.Event().wait()
    yield "two"

async def stuck_later(ask):
    if ask.text == "0":
        yield "one"
        await asyncio.sleep(1000)
    yield "two"

def busy(ask):
    started = time.monotonic()
    while time.monotonic() - started < 0.3:
        pass
    return "done"
"""


class Driver:
    """The other end of a worker's channel."""

    def __init__(self, name: str, timeout_s: float, users: int) -> None:
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        with theirs:
            call = [sys.executable, "-m", "openloop.load.callable_worker", str(theirs.fileno())]
            self.process = subprocess.Popen(call, pass_fds=[theirs.fileno()])
        self.channel = Channel(ours)
        self.channel.send(([(0, name, 0)], int(timeout_s * 1e9), 4, 0, users, False, 0, 0.0))
        self.start_ns = 0

    def start(self) -> None:
        assert self.hear() == [("ready",)]
        self.start_ns = time.monotonic_ns() + 50_000_000

    def ask(self, *due_s: float) -> None:
        target = Function("any")
        asks = [Ask((("user", str(number)),), 7) for number in range(len(due_s))]
        told = [
            (n, self.start_ns + int(due_s[n] * 1e9), 0, target.encode(ask, n), 0, b"") for n, ask in enumerate(asks)
        ]
        self.channel.send(("ask", told))

    def hear(self) -> list[Any]:
        assert select.select([self.channel.sock], [], [], 20)[0], "the worker says nothing"
        return list(self.channel.receive())

    def finish(self) -> dict[int, Finished]:
        """Everything up to the goodbye, after which the process is soon over."""
        messages: list[Any] = []
        while ("bye",) not in messages:
            messages += self.hear()
        assert self.process.wait(10) == 0
        return {each[0]: each for message in messages if message[0] == "done" for each in message[1]}


@contextlib.contextmanager
def driven(folder: Path, function: str, timeout_s: float = 5.0, users: int = 0) -> Iterator[Driver]:
    (folder / "functions.py").write_text(FUNCTIONS)
    driver = Driver(f"{folder}/functions.py:{function}", timeout_s, users)
    try:
        driver.start()
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()
        driver.channel.close()


def row_of(driver: Driver, finished: Finished, due_s: float = 0.0) -> Row:
    outcome = read_finished(finished, Function("any", keep_text=True), 5.0)
    row = Row(finished[0], int(due_s * 1e9), outcome, ask=Ask((("user", ""),), 7))
    row.set_times(finished, driver.start_ns)
    return row


@pytest.mark.parametrize(
    ("function", "text", "events"),
    [
        ("text", "0 7", 1),
        ("pieces", "onetwo", 2),
        ("later", "one", 1),
        ("pieces_later", "onetwo", 2),
        ("found_later", "onetwo", 2),
        ("asker", "one", 1),
    ],
)
def test_functions_of_every_kind_are_called_on_time(tmp_path: Path, function: str, text: str, events: int) -> None:
    due_s = [0.0, 0.1, 0.1, 0.25]
    with driven(tmp_path, function) as driver:
        driver.ask(*due_s)
        driver.channel.send(("end",))
        found = driver.finish()
    rows = [row_of(driver, found[number], due_s[number]) for number in range(4)]
    assert {row.outcome.status for row in rows} == {"ok"}
    assert rows[0].outcome.text == text
    assert all(len(row.outcome.event_ns) == events and row.kernel_stamps == 0 for row in rows)
    assert all((row.sent_ns or 0) - row.due_ns < 500_000_000 for row in rows)
    if events == 2:
        assert all(40_000_000 < (row.last_ns or 0) - (row.first_ns or 0) < 1_000_000_000 for row in rows)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("broken", "there was no answer: ValueError: so it is"),
        ("cut", "the stream was cut: ValueError: so it is"),
        ("odd", "there was no answer: TypeError: the function gave int where it gives text"),
        ("leaves", "there was no answer: SystemExit: "),
        ("nothing", None),
    ],
)
def test_a_function_that_fails_is_a_row_that_says_why(tmp_path: Path, function: str, error: str | None) -> None:
    with driven(tmp_path, function) as driver:
        driver.ask(0.0)
        driver.channel.send(("end",))
        row = row_of(driver, driver.finish()[0])
    assert (row.outcome.status, row.outcome.error) == ("error" if error else "ok", error)


@pytest.mark.parametrize("function", ["stuck", "stuck_later"])
def test_a_function_that_takes_too_long_is_left_behind(tmp_path: Path, function: str) -> None:
    with driven(tmp_path, function, timeout_s=0.3) as driver:
        driver.ask(0.0, 0.1)
        driver.channel.send(("end",))
        found = driver.finish()
    assert (found[0][1], found[0][6]) == (TIMEOUT, b"one")
    assert 0.3e9 <= found[0][5] - driver.start_ns < 0.6e9
    assert row_of(driver, found[1], 0.1).outcome.status == "ok"


@pytest.mark.parametrize("function", ["stuck", "stuck_later"])
@pytest.mark.parametrize("word", ["drain", "halt"])
def test_what_is_in_flight_at_the_end_is_censored(tmp_path: Path, function: str, word: str) -> None:
    with driven(tmp_path, function) as driver:
        driver.ask(0.0, 0.1, 60.0)
        time.sleep(max(0.0, driver.start_ns / 1e9 + 0.2 - time.monotonic()))
        until = driver.start_ns + 400_000_000
        driver.channel.send(("drain", until) if word == "drain" else ("halt", time.monotonic_ns(), until))
        found = driver.finish()
    assert sorted(found) == [0, 1]  # what was not due is not called
    assert (found[0][1], found[0][5]) == (CENSORED, 0)
    assert row_of(driver, found[0]).ended_ns is None
    assert row_of(driver, found[1], 0.1).outcome.status == "ok"


def test_functions_that_compute_do_not_hold_up_the_schedule(tmp_path: Path) -> None:
    with driven(tmp_path, "busy") as driver:
        driver.ask(0.0, 0.05, 0.1)
        driver.channel.send(("end",))
        found = driver.finish()
    rows = [row_of(driver, found[number], number * 0.05) for number in range(3)]
    assert all((row.sent_ns or 0) - row.due_ns < 500_000_000 for row in rows)
    assert {row.outcome.text for row in rows} == {"done"}


def test_users_of_a_closed_loop_wait_for_their_answers(tmp_path: Path) -> None:
    with driven(tmp_path, "later", users=1) as driver:
        driver.ask(0.0, 0.0, 0.0)
        driver.channel.send(("end",))
        found = driver.finish()
    assert all(found[number + 1][3] >= found[number][5] for number in range(2))


def test_a_worker_whose_conductor_is_gone_ends(tmp_path: Path) -> None:
    with driven(tmp_path, "stuck") as driver:
        driver.ask(0.0)
        driver.channel.close()
        assert driver.process.wait(10) == 0


def test_a_function_that_is_not_there_stops_the_worker_with_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(GoneError), driven(tmp_path, "none"):
        pass
    assert "cannot be loaded: AttributeError" in capfd.readouterr().err


def test_whoever_was_due_first_is_given_up_first_in_whatever_order_they_were_called(tmp_path: Path) -> None:
    with driven(tmp_path, "stuck", timeout_s=1.0) as driver:
        payload = Function("any").encode(Ask((("user", "0"),), 7), 0)
        for ticket, due_s in ((0, 0.5), (1, 0.0)):
            driver.channel.send(("ask", [(ticket, driver.start_ns + int(due_s * 1e9), 0, payload, 0, b"")]))
            time.sleep(max(0.0, driver.start_ns / 1e9 + 0.6 - time.monotonic()))
        driver.channel.send(("end",))
        found = driver.finish()
    assert [found[ticket][1] for ticket in (0, 1)] == [TIMEOUT, TIMEOUT]
    assert found[1][5] < found[0][5]
