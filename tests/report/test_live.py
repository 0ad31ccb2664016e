"""A run while it goes on."""

import contextlib
import os
import sys
import threading
from collections import Counter
from unittest import mock

import pytest

from openloop.load.conductor import Snapshot
from openloop.load.rows import Row
from openloop.report.live import KEPT, LiveView, Tally
from openloop.said import Outcome
from openloop.slo import read_slo


def test_who_does_not_read_does_not_hold_up_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, bytes(4096))
    os.set_blocking(write, True)
    with os.fdopen(write, "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        view = LiveView(10.0, None)
        telling = threading.Thread(target=view, args=(Snapshot(seconds=1.0, due=3),), daemon=True)
        telling.start()
        telling.join(20.0)
        hangs = telling.is_alive()
        os.read(read, 1 << 20)  # now there is room again
        telling.join(20.0)
        assert not hangs
        assert os.get_blocking(write)
        view(Snapshot(seconds=2.0, due=6))
        full.flush()
        assert "2 of 10 s" in os.read(read, 1 << 20).decode()
    os.close(read)


def test_nothing_is_made_ready_for_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """As with --json: percentiles of ten thousand requests, twice a second, took as much as many requests do."""
    quiet, shown = (LiveView(10.0, None, quiet=each) for each in (True, False))
    rows = [Row(0, 0, Outcome(error="it is full", status="shed"), sent_ns=1, ended_ns=5)]
    with mock.patch.object(Tally, "line", side_effect=["now", "later"]) as line:
        for view in (quiet, shown, shown):
            with view:
                view(Snapshot(1.0, 1, 0, Counter(shed=1), rows))
        assert line.call_count == 1  # the second time it was too soon for another
    assert capsys.readouterr().err == "now\n1 requests: it is full\n2 requests: it is full\n"


def test_percentiles_are_those_of_the_latest_requests() -> None:
    tally = Tally(10.0, None)
    rows = [Row(n, 0, Outcome(), sent_ns=(n < KEPT) * 10**9 + 10**6, ended_ns=2 * 10**9) for n in range(2 * KEPT)]
    tally.add(rows[:3])
    assert "ttft - / -, tpot - / -, lag p99 1.00 s" in tally.line(Snapshot(1.0, 3, 0, Counter(ok=3)))
    tally.add(rows[3:])
    assert "lag p99 1.00 ms" in tally.line(Snapshot(1.0, 2 * KEPT, 0, Counter(ok=2 * KEPT)))


def test_a_request_that_was_tried_again_is_done_once() -> None:
    line = Tally(10.0, None).line(Snapshot(2.0, 20, 4, Counter(ok=30)))
    assert "offered 10.0/s, done 8.00/s, in flight 4" in line


def test_a_copy_that_was_not_needed_has_not_failed() -> None:
    tally = Tally(1.0, read_slo("e2e<=9s"))
    lost = Outcome(status="cancelled", error="a copy of it was answered first")
    rows = [Row(number, 0, each, sent_ns=1, ended_ns=5) for number in range(2) for each in (Outcome(), lost)]
    tally.add(rows)
    line = tally.line(Snapshot(1.0, 2, 0, Counter(ok=2, cancelled=2)))
    assert "within latency 2.00/s" in line
    assert line.endswith("failed 0")
    assert not tally.errors


def test_of_many_that_ended_those_stand_for_all_that_are_told_of() -> None:
    """As by several machines; tried again, half of the attempts are the answers."""
    tally = Tally(1.0, read_slo("e2e<=9s"))
    rows = [
        Row(number, 0, Outcome(status=each), sent_ns=1, ended_ns=5) for number in range(5) for each in ("ok", "error")
    ]
    tally.add(rows)
    line = tally.line(Snapshot(1.0, 40, 0, Counter(ok=40, error=40)))
    assert "within latency 40.0/s" in line
    assert line.endswith("failed 40")


def test_a_first_token_that_is_not_known_is_not_in_time() -> None:
    for gate, in_time in (("ttft<=9s", "0.00/s"), ("e2e<=9s", "2.00/s")):
        tally = Tally(1.0, read_slo(gate))
        rows = [Row(number, 0, Outcome(), sent_ns=1, ended_ns=5) for number in range(2)]
        tally.add(rows)
        line = tally.line(Snapshot(1.0, 2, 0, Counter(ok=2)))
        assert f"within latency {in_time}" in line
