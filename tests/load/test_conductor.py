"""Runs against a real endpoint over real sockets: everything that was due is a row, whatever happens."""

import contextlib
import gc
import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openloop as ol
from openloop.arrivals import Constant, Poisson, read_arrivals
from openloop.distributions import Fixed
from openloop.errors import SpecError
from openloop.load.address import Address, Place, find_place
from openloop.load.conductor import HALT_S, RARELY, TICKETS, Conductor, Snapshot, _Request, drive, politeness_pays
from openloop.load.plan import Load
from openloop.load.targets import Chat, Function
from openloop.persistence import After, Hedge, Retry
from openloop.records import read_now
from openloop.seeds import stream
from openloop.serve.process import RunningEndpoint, endpoint_process
from openloop.workload import Synthetic, Workload, read_source
from openloop.workload.mix import Class

TCP_REPAIR = 19
ENGINE = "slots:count=10000,prefill=0s,overhead=20ms,gap=5ms"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningEndpoint]:
    with endpoint_process(ENGINE) as served:
        yield served


def load_of(server: RunningEndpoint, rate: float = 100.0, seconds: float = 1.0, **more: Any) -> Load:
    server.behave()
    place = find_place(server.url)
    target = Chat(place.host, "openloop", place.base)
    return replace(
        Load(
            [(place, target)],
            Workload.of(Synthetic(Fixed(10), Fixed(8))),
            Poisson(rate),
            seconds,
            timeout_s=5.0,
            drain_s=2.0,
        ),
        **more,
    )


def rows_of(run: ol.Run) -> list[dict[str, Any]]:
    return run.head(1_000_000)


@pytest.mark.usefixtures("either_way")
def test_every_arrival_is_a_row_with_its_tokens(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, 200.0), tmp_path / "run")
    run.validate()
    due = Poisson(200.0).times(1.0, stream(0, "arrivals"))
    rows = sorted(rows_of(run), key=lambda row: row["request_id"])
    assert np.allclose([row["scheduled_ns"] / 1e9 for row in rows], due, atol=1e-8)
    assert {row["status"] for row in rows} == {"ok"}
    assert {len(row["event_ns"]) for row in rows} == {8}
    assert {(row["prompt_tokens"], row["output_tokens"], row["requested_tokens"]) for row in rows} == {(10, 8, 8)}
    score = ol.score(run, "ttft<=100ms, tpot<=20ms")
    assert score.ttft_s is not None
    assert 0.02 <= score.ttft_s.p50 < 0.05
    assert score.tpot_s is not None
    assert 0.004 < score.tpot_s.p50 < 0.02


@pytest.mark.usefixtures("either_way")
def test_times_agree_with_the_truth(server: RunningEndpoint, tmp_path: Path) -> None:
    server.truth()
    run = drive(load_of(server, 100.0), tmp_path / "run")
    truth = server.truth()
    errors = []
    for row in rows_of(run):
        arrived, written = truth[row["request_id"]]
        errors.append((row["event_ns"][0] - row["sent_ns"]) - (written[0] - arrived))
    assert np.median(np.abs(errors)) < 2_000_000
    if sys.platform == "linux":
        assert run.manifest.stamps == "the kernel's, on receiving"


def test_workers_share_one_schedule_exactly(server: RunningEndpoint, tmp_path: Path) -> None:
    runs = [drive(load_of(server, 150.0, workers=n), tmp_path / str(n)) for n in (1, 3)]
    due = [sorted((row["request_id"], row["scheduled_ns"]) for row in rows_of(run)) for run in runs]
    assert due[0] == due[1]


@pytest.mark.parametrize(
    ("fault", "status", "sentence"),
    [
        ("error", "error", "status 500: error, as commanded"),
        ("unauthorized", "error", "status 401: unauthorized, as commanded"),
        ("overloaded", "shed", "status 503: overloaded, as commanded"),
        ("refuse", "error", "there was no answer: the server closed the connection"),
        ("cut", "error", "the stream ended without a finish reason"),
        ("reset", "error", "the stream was cut: connection reset by peer"),
        ("garbage", "error", "an event is not JSON that makes sense: {{"),
        ("whole", "error", "a streaming request was answered with application/json"),
        ("late", "error", "an error in the stream: it broke, as commanded"),
    ],
)
def test_a_failure_is_a_row_that_says_why(
    server: RunningEndpoint, tmp_path: Path, fault: str, status: str, sentence: str
) -> None:
    load = load_of(server, 50.0, 0.5)
    server.behave(fault=fault, share=0.5)
    run = drive(load, tmp_path / "run")
    run.validate()
    rows = rows_of(run)
    failed = [row for row in rows if row["status"] != "ok"]
    assert 0 < len(failed) < len(rows)
    assert {row["status"] for row in failed} == {status}
    assert all(row["error"].startswith(sentence) for row in failed), failed[0]["error"]
    assert load.arrivals is not None
    assert len(rows) == len(load.arrivals.times(0.5, stream(0, "arrivals")))


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_server_that_keeps_one_waiting_is_given_up(server: RunningEndpoint, tmp_path: Path, fault: str) -> None:
    load = load_of(server, 20.0, 0.5, timeout_s=0.7)
    server.behave(fault=fault)
    run = drive(load, tmp_path / "run")
    rows = rows_of(run)
    assert {row["status"] for row in rows} == {"timeout"}
    assert {row["error"] for row in rows} == {"gave up after 0.7 s, without a token"}
    assert all(0.7e9 <= row["ended_ns"] - row["scheduled_ns"] < 1.2e9 for row in rows)


def test_what_is_in_flight_at_the_end_is_censored(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 20.0, 0.5, drain_s=0.2)
    server.behave(fault="hang", share=0.5)
    run = drive(load, tmp_path / "run")
    counts = Counter(row["status"] for row in rows_of(run))
    assert set(counts) == {"ok", "censored"}
    assert all(row["ended_ns"] is None for row in rows_of(run) if row["status"] == "censored")
    assert not ol.check(run).valid


def test_nobody_at_the_address(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = find_place(f"http://127.0.0.1:{port}")
    load = Load(
        [(place, Chat(place.host, "m"))], Workload.of(Synthetic(Fixed(5), Fixed(5))), Constant(20), 0.5, drain_s=1.0
    )
    rows = rows_of(drive(load, tmp_path / "run"))
    assert len(rows) == 10
    assert {(row["status"], row["error"]) for row in rows} == {("error", "no connection: connection refused")}
    assert {row["sent_ns"] for row in rows} == {None}


def test_a_host_that_does_not_answer(tmp_path: Path) -> None:
    """A listener whose backlog is full drops what comes: as a firewall does."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        place = Place("x", "", Address(int(socket.AF_INET), *full.getsockname()))
        load = Load(
            [(place, Chat("x", "m"))],
            Workload.of(Synthetic(Fixed(5), Fixed(5))),
            Constant(10),
            0.3,
            timeout_s=0.5,
            drain_s=2.0,
        )
        rows = rows_of(drive(load, tmp_path / "run"))
        for each in waiting:
            each.close()
    assert {(row["status"], row["sent_ns"]) for row in rows} == {("timeout", None)}


def answering(answers: list[bytes], seen: list[int], *, wait_s: float = 0.0, once: bool = False) -> socket.socket:
    """A server that gives these answers in turn; after an empty one, or after any if `once`, it closes."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    counting = threading.Lock()

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(sock,), daemon=True).start()

    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                with counting:
                    number = seen[0] = seen[0] + 1
                time.sleep(wait_s)
                answer = answers[number % len(answers)]
                if not answer:
                    return
                sock.sendall(answer)
                if once:
                    return

    threading.Thread(target=serve, daemon=True).start()
    return listener


GOOD = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(GOOD) + GOOD


def driven(listener: socket.socket, folder: Path, **more: Any) -> list[dict[str, Any]]:
    place = find_place(f"http://127.0.0.1:{listener.getsockname()[1]}")
    load = Load(
        [(place, Chat("x", "m", stream=False))],
        Workload.of(Synthetic(Fixed(5), Fixed(5))),
        Constant(50),
        1.0,
        drain_s=1.0,
    )
    with listener:
        run = drive(replace(load, **more), folder)
    run.validate()
    return rows_of(run)


@pytest.mark.usefixtures("either_way")
def test_something_that_is_no_web_server(tmp_path: Path) -> None:
    rows = driven(answering([b"SSH-2.0-Odd\r\n\r\n"], [0]), tmp_path / "run")
    assert {row["status"] for row in rows} == {"error"}
    assert all("does not speak HTTP: it said 'SSH-2.0-Odd'" in row["error"] for row in rows)


@pytest.mark.usefixtures("either_way")
def test_a_stale_connection_is_replaced_without_a_failed_request(tmp_path: Path) -> None:
    """A server that closes every connection right after its answer, though it promised to keep it."""
    rows = driven(answering([OK], [0], once=True), tmp_path / "run", arrivals=Constant(200))
    counts = Counter(row["status"] for row in rows)
    assert sum(counts.values()) == 200
    assert counts["ok"] >= 198  # on a busy machine a loss may show too late to be told from a failure


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "poison",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-6\r\nabcdef\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b"[" * 20000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n" + b'{"usage": {"prompt_tokens": 1' + b"0" * 11,
    ],
)
def test_a_poisonous_answer_costs_its_own_request_and_no_other(poison: bytes, tmp_path: Path) -> None:
    rows = driven(answering([OK, OK, poison], [0]), tmp_path / "run")
    counts = Counter(row["status"] for row in rows)
    assert set(counts) == {"ok", "error"}
    assert counts["error"] == pytest.approx(50 / 3, abs=3)


@pytest.mark.usefixtures("either_way")
def test_a_connection_that_a_balancer_forgot_costs_no_request(tmp_path: Path) -> None:
    """Whatever rested for 0.15 s is forgotten without a word: only asking again on a fresh one helps."""
    forgetful = socket.create_server(("127.0.0.1", 0), backlog=1000)
    forgotten = [0]

    def serve() -> None:
        while True:
            try:
                sock, _ = forgetful.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(sock,), daemon=True).start()

    def talk(sock: socket.socket) -> None:
        sock.settimeout(0.15)
        with sock, contextlib.suppress(OSError):
            try:
                while sock.recv(1 << 20):
                    sock.sendall(OK)
            except TimeoutError:
                sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)  # so that closing it says nothing
                forgotten[0] += 1

    with socket.socket() as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        except PermissionError:
            pytest.skip("only the administrator may forget connections")
    threading.Thread(target=serve, daemon=True).start()
    rows = driven(forgetful, tmp_path / "run", arrivals=Constant(4), seconds=2.0)
    assert forgotten[0] > 0
    assert {row["status"] for row in rows} == {"ok"}
    assert any(row["connect_ns"] > 0 for row in rows)


@pytest.mark.usefixtures("either_way")
def test_a_server_that_hangs_up_on_what_it_has_read_is_not_asked_again(tmp_path: Path) -> None:
    """However soon it does: users would see that, and another attempt would be load that nobody counts."""
    seen = [0]
    rows = driven(answering([OK, b""], seen), tmp_path / "run")
    counts = Counter(row["status"] for row in rows)
    assert seen[0] == 50
    assert 15 < counts["error"] == 50 - counts["ok"]


def test_a_server_that_fails_after_a_while_is_not_asked_again(tmp_path: Path) -> None:
    seen = [0]
    rows = driven(answering([OK, OK, b""], seen, wait_s=0.05), tmp_path / "run")
    counts = Counter(row["status"] for row in rows)
    assert seen[0] == 50
    assert counts["error"] == 50 - counts["ok"] > 10
    assert {row["error"] for row in rows if row["error"]} == {"there was no answer: the server closed the connection"}


def test_a_server_that_wants_no_spare_connections_is_not_flooded(tmp_path: Path) -> None:
    refusing = socket.create_server(("127.0.0.1", 0), backlog=1000)
    opened = [0]

    def shut() -> None:
        while True:
            try:
                refusing.accept()[0].close()
            except OSError:
                return
            opened[0] += 1

    threading.Thread(target=shut, daemon=True).start()
    rows = driven(refusing, tmp_path / "run", arrivals=Constant(5), seconds=2.0)
    assert {row["status"] for row in rows} == {"error"}
    assert opened[0] < 200


def test_a_capped_client_goes_on_after_a_request_is_given_up(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, arrivals=Constant(10), seconds=1.0, connections=1, timeout_s=0.4, drain_s=3.0)
    server.behave(fault="hang", share=0.3)
    counts = Counter(row["status"] for row in rows_of(drive(load, tmp_path / "run")))
    server.behave()
    assert counts["ok"] >= 2
    assert counts["timeout"] >= 1


def test_a_conductor_that_others_leave_no_processor_goes_on_without_politeness(
    server: RunningEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed_by: list[threading.Thread] = []
    feed = Conductor._feed

    def watched(self: Conductor, now: int) -> None:
        fed_by.append(threading.current_thread())
        feed(self, now)

    monkeypatch.setattr("openloop.load.conductor.politeness_pays", lambda: True)
    monkeypatch.setattr(Conductor, "_starved", lambda self, now: now > self.start_ns + 200_000_000)
    monkeypatch.setattr(Conductor, "_feed", watched)
    rows = rows_of(drive(load_of(server, arrivals=Constant(100), drain_s=20.0), tmp_path / "run"))
    assert Counter(row["status"] for row in rows) == {"ok": 100}
    assert fed_by[0] is not threading.main_thread()
    assert fed_by[-1] is threading.main_thread()


@pytest.mark.parametrize("pays", [True, False])
def test_a_conductor_is_polite_only_where_that_leaves_it_time(
    server: RunningEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pays: bool
) -> None:
    polite: list[bool] = []
    monkeypatch.setattr("openloop.load.conductor.politeness_pays", lambda: pays)
    monkeypatch.setattr("openloop.load.conductor.be_polite", lambda: polite.append(True))
    drive(load_of(server, arrivals=Constant(20), seconds=0.5), tmp_path / "run")
    assert bool(polite) == pays


@pytest.mark.parametrize("runs", [True, False])
def test_politeness_pays_where_who_is_polite_gets_to_run(monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    if not runs:
        monkeypatch.setattr("openloop.load.conductor.POLITE_WORK", "import time; time.sleep(60)")
    monkeypatch.setattr("openloop.load.conductor.SOON_S", 20.0 if runs else 0.01)
    assert politeness_pays() == runs


def test_limits_are_shared_exactly_and_not_below_one_each(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, seconds=1.0, users=5, workers=2), tmp_path / "run")
    starts = sorted([(row["sent_ns"], 1) for row in rows_of(run)] + [(row["ended_ns"], -1) for row in rows_of(run)])
    assert max(np.cumsum([step for _, step in starts])) == 5
    with pytest.raises(SpecError, match="3 cannot be shared by 4 workers"):
        drive(load_of(server, connections=3, workers=4), tmp_path / "none")


def test_a_display_that_breaks_does_not_stop_the_run(server: RunningEndpoint, tmp_path: Path) -> None:
    def broken(_: Snapshot) -> None:
        raise BrokenPipeError

    run = drive(load_of(server), tmp_path / "run", broken)
    assert run.manifest.finished
    assert any("the display failed" in note for note in run.manifest.notes)


def test_a_cap_on_connections_counts_as_latency_and_is_named(server: RunningEndpoint, tmp_path: Path) -> None:
    """Each takes 55 ms on one of two connections, so 36 a second are all that can be sent of 100."""
    run = drive(load_of(server, connections=2, arrivals=Constant(100), seconds=1.0, drain_s=5.0), tmp_path / "run")
    score = ol.score(run, "ttft<=100ms")
    assert score.ttft_s is not None
    assert score.ttft_s.from_sent is not None
    assert score.ttft_s.from_sent.p50 < 0.05
    assert score.ttft_s.p99 > 1.0
    assert any("the client was late" in reason for reason in score.reasons)


def test_a_client_that_was_held_up_forfeits_nothing(server: RunningEndpoint, tmp_path: Path) -> None:
    """A worker that stands still for half a second sends all that was due then, late, and that shows."""

    def hold_up(_: Snapshot) -> None:
        if not held:
            held.append(True)
            worker = workers()[0]
            os.kill(worker, signal.SIGSTOP)
            threading.Timer(0.5, os.kill, (worker, signal.SIGCONT)).start()

    held: list[bool] = []
    load = load_of(server, arrivals=Constant(100), seconds=3.0, timeout_s=30.0, drain_s=30.0)
    run = drive(load, tmp_path / "run", hold_up)
    rows = rows_of(run)
    assert Counter(row["status"] for row in rows) == {"ok": 300}
    late = np.array([row["sent_ns"] - row["scheduled_ns"] for row in rows]) / 1e9
    assert late.max() > 0.4
    assert np.sum(late > 0.05) > 25
    assert any("the client was late" in reason for reason in ol.score(run, "ttft<=100ms").reasons)


def workers() -> list[int]:
    """Of this process; by /proc, for small machines have no pgrep."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"openloop.load.worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


class KillOne:
    """Kills a worker of a run once there are so many answers."""

    def __init__(self, answers: int = 20) -> None:
        self.answers: float = answers

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.statuses["ok"] >= self.answers:
            self.answers = np.inf
            os.kill(workers()[0], signal.SIGKILL)


def test_a_worker_that_dies_leaves_dropped_rows(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, arrivals=Constant(50), seconds=4.0, workers=2, timeout_s=30.0, drain_s=30.0)
    run = drive(load, tmp_path / "run", KillOne())
    run.validate()
    counts = Counter(row["status"] for row in rows_of(run))
    assert sum(counts.values()) == 200
    assert 0 < counts["dropped"] < 100
    assert counts["ok"] >= 100
    verdict = ol.check(run)
    assert any("could not be sent by the client" in reason for reason in verdict.reasons)
    assert any("a worker died" in note for note in verdict.notes)


def test_dropped_rows_keep_their_class(server: RunningEndpoint, tmp_path: Path) -> None:
    classes = tuple(Class(name, 0.5, read_source("synthetic:prompt=9,output=2")) for name in ("a", "b"))
    run = drive(load_of(server, 100.0, 2.0, workload=Workload(classes), workers=2), tmp_path / "run", KillOne())
    dropped = [row["workload_class"] for row in rows_of(run) if row["status"] == "dropped"]
    assert set(dropped) == {"a", "b"}


def test_nothing_that_was_due_disappears_when_all_workers_die(server: RunningEndpoint, tmp_path: Path) -> None:
    def kill_all(snapshot: Snapshot) -> None:
        if snapshot.statuses["ok"] > 5:
            for worker in workers():
                os.kill(worker, signal.SIGKILL)

    run = drive(load_of(server, arrivals=Constant(100), seconds=5.0), tmp_path / "run", kill_all)
    run.validate()
    counts = Counter(row["status"] for row in rows_of(run))
    assert sum(counts.values()) == 500
    assert counts["dropped"] > 0
    assert counts["ok"] > 5


def test_a_stalling_server_looks_as_bad_as_it_is(server: RunningEndpoint, tmp_path: Path) -> None:
    """Frozen 0.2 s in every 1 s: of 100/s a fifth waits, evenly up to the whole stall."""
    load = load_of(server, arrivals=Constant(100), seconds=4.0)
    server.behave(stall_s=0.2, every_s=1.0)
    score = ol.score(drive(load, tmp_path / "run"), "ttft<=100ms")
    server.behave()
    assert score.ttft_s is not None
    assert 0.08 < 1 - score.attainment < 0.35  # 12%, and what a busy machine adds
    assert 0.17 < score.ttft_s.p99 < 0.5


def test_bursts_and_replays_are_driven_too(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, arrivals=read_arrivals("onoff:high=200,on=200ms,off=200ms")), tmp_path / "run")
    assert run.num_rows > 20
    assert run.manifest.arrivals_dispersion is not None


def test_a_schedule_with_nothing_in_it_is_refused(server: RunningEndpoint, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nothing is due in 1 s of poisson:rate=1e-06"):
        drive(load_of(server, 1e-6), tmp_path / "run")


@pytest.mark.parametrize(("interrupts", "most_s"), [(1, 25.0), (2, 20.0)])
def test_an_interrupt_leaves_a_run(server: RunningEndpoint, tmp_path: Path, interrupts: int, most_s: float) -> None:
    server.behave(fault="hang", share=0.2)
    command = [sys.executable, "-m", "openloop", "run", "--target", server.url, "--rate", "50", "--for", "60s"]
    command += ["--output", "4", "--slo", "ttft<=1s", "--tokens-per-word", "1", "-o", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while time.monotonic() < until and not (tmp_path / "run" / "now.json").exists():
        time.sleep(0.1)
    time.sleep(3.0)
    began = time.monotonic()
    for _ in range(interrupts):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    out, err = process.communicate(timeout=40)
    server.behave()
    assert time.monotonic() - began < most_s, out + err
    assert "Traceback" not in err
    run = ol.open_run(tmp_path / "run")
    assert run.manifest.finished
    assert run.manifest.window_ns is not None
    assert 1e9 < run.manifest.window_ns[1] < 12e9
    counts = Counter(row["status"] for row in rows_of(run))
    assert counts["ok"] > 20
    assert counts["censored"] > 0
    assert any("interrupted after" in note for note in run.manifest.notes)
    due = Poisson(50.0).times(60.0, stream(0, "arrivals"))
    assert run.num_rows == np.sum(due * 1e9 < run.manifest.window_ns[1])


def test_an_interrupt_after_the_last_arrival_leaves_the_window_as_it_was(
    server: RunningEndpoint, tmp_path: Path
) -> None:
    server.behave(fault="hang")
    command = [sys.executable, "-m", "openloop", "run", "--target", server.url, "--rate", "50", "--for", "1s"]
    command += ["--slo", "ttft<=1s", "--tokens-per-word", "1", "--no-metrics", "-o", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    patience = time.monotonic() + 60
    while time.monotonic() < patience and not ((now := read_now(tmp_path / "run")) and now.seconds > 1.5):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    server.behave()
    run = ol.open_run(tmp_path / "run")
    assert any("interrupted after" in note for note in run.manifest.notes)
    assert run.manifest.window_ns == (0, 1_000_000_000)


def test_a_closed_loop_hides_a_stall_and_is_not_valid(server: RunningEndpoint, tmp_path: Path) -> None:
    """Frozen 0.3 s in every 1 s: a third of the time is lost, and only a few requests of five users notice."""
    load = load_of(server, seconds=4.0, users=5)
    server.behave(stall_s=0.3, every_s=1.0)
    run = drive(load, tmp_path / "run")
    server.behave()
    run.validate()
    score = ol.score(run, "ttft<=50ms")
    assert 100 < score.requests < 400
    assert {row["status"] for row in rows_of(run)} == {"ok"}
    assert score.attainment > 0.85  # of requests; of the time, three tenths were lost
    assert score.client_lag_s is not None
    assert score.client_lag_s.p99 == 0
    assert any("a closed loop" in reason for reason in score.reasons)
    assert run.manifest.window_ns is not None
    assert sum(row["sent_ns"] > run.manifest.window_ns[1] for row in rows_of(run)) < 20  # until the worker has heard


def test_tls_is_spoken_and_certificates_are_checked(tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    answer = (
        b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}'
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(sock,), daemon=True).start()

        def talk(sock: socket.socket) -> None:
            with sock, contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as tls:
                while tls.recv(65536):
                    tls.sendall(head + answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"https://localhost:{listener.getsockname()[1]}"
        trusted = find_place(url, str(tmp_path / "cert.pem"))
        chat = Chat("x", "m", stream=False)
        base = Load([(trusted, chat)], Workload.of(Synthetic(Fixed(5), Fixed(5))), Constant(50), 1.0, drain_s=1.0)
        good = rows_of(drive(base, tmp_path / "good"))
        insecure = rows_of(drive(replace(base, sites=[(find_place(url, insecure=True), chat)]), tmp_path / "insecure"))
        bad = rows_of(drive(replace(base, sites=[(find_place(url), chat)]), tmp_path / "bad"))
    assert Counter(row["status"] for row in good) == Counter(row["status"] for row in insecure) == {"ok": 50}
    assert {row["status"] for row in bad} == {"error"}
    assert all("TLS failed: CERTIFICATE_VERIFY_FAILED" in row["error"] for row in bad), bad[0]["error"]


def attempts(run: ol.Run) -> dict[int, list[dict[str, Any]]]:
    """Rows of each request, in the order of its attempts."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows_of(run), key=lambda row: (row["request_id"], row["attempt"])):
        found.setdefault(row["request_id"], []).append(row)
    return found


def test_what_is_shed_is_asked_again_and_each_attempt_is_a_row(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 60.0, 2.0, retry=Retry(most=3, base=0.02, factor=1.0, jitter=0.5))
    server.behave(fault="overloaded", share=0.4)
    run = drive(load, tmp_path / "run")
    run.validate()
    found = attempts(run)
    assert any(len(tries) > 1 for tries in found.values())
    for tries in found.values():
        assert [row["kind"] for row in tries] == ["first", *["retry"] * (len(tries) - 1)]
        assert [row["attempt"] for row in tries] == list(range(len(tries)))
        assert len({row["scheduled_ns"] for row in tries}) == 1
        assert all(row["status"] == "shed" for row in tries[:-1])
        assert tries[-1]["status"] == "ok" or len(tries) == 4
        for before, after in itertools.pairwise(tries):
            assert 0.01e9 <= after["sent_ns"] - before["ended_ns"] <= 1e9
    score = ol.score(run, "ttft<=1s")
    assert score.retries.retries == run.num_rows - len(found) > 20
    assert score.requests == len(found) == sum(load.arrivals.times(2.0, stream(0, "arrivals")) < 2.0)  # type: ignore[union-attr]


def test_a_retry_budget_is_kept(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 100.0, 2.0, retry=Retry(most=3, base=0.01, budget=0.1))
    server.behave(fault="overloaded", share=0.9)
    run = drive(load, tmp_path / "run")
    requests = len(attempts(run))
    assert 10 <= run.num_rows - requests <= 0.1 * requests + 11


def test_mistakes_of_ours_are_not_repeated(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 50.0, 1.0, retry=Retry(most=3, base=0.01))
    server.behave(fault="unauthorized", share=1.0)
    run = drive(load, tmp_path / "run")
    assert {row["attempt"] for row in rows_of(run)} == {0}


@pytest.mark.parametrize("after", [After(seconds=0.1), After(percentile=90)])
def test_a_copy_answers_where_the_first_is_stuck(server: RunningEndpoint, tmp_path: Path, after: After) -> None:
    load = load_of(server, 100.0, 4.0, hedge=Hedge(after), timeout_s=3.0)
    server.behave(fault="hang", share=0.2)
    run = drive(load, tmp_path / "run")
    run.validate()
    found = attempts(run)
    copied = [tries for tries in found.values() if len(tries) > 1]
    rescued = [tries for tries in copied if tries[1]["status"] == "ok"]
    assert len(rescued) > (20 if after.seconds else 0)  # a percentile is not known at first
    for tries in rescued:
        assert [row["kind"] for row in tries] == ["first", "hedge"]
        assert tries[0]["status"] == "cancelled"
        assert tries[1]["sent_ns"] - tries[1]["scheduled_ns"] >= (0.1e9 if after.seconds else 0)
    assert all(tries[0]["status"] in ("ok", "cancelled", "timeout", "censored") for tries in found.values())
    firsts = sum(tries[0]["status"] == "ok" for tries in found.values())
    assert ol.score(run, "ttft<=3s").accepted == firsts + len(rescued)


def test_a_copy_that_comes_second_is_cancelled(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 50.0, 2.0, hedge=Hedge(After(seconds=0.001)))
    run = drive(load, tmp_path / "run")
    copied = [tries for tries in attempts(run).values() if len(tries) > 1]
    assert len(copied) > 50
    assert all(Counter(row["status"] for row in tries) == {"ok": 1, "cancelled": 1} for tries in copied)


EVENT = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVENT), EVENT)


def hedged(
    folder: Path, speak: Callable[[int], Iterator[bytes | float]], after_s: float = 0.02
) -> list[list[dict[str, Any]]]:
    """Attempts at each request, copied after a while; a server says, and waits for, what `speak` has for each time
    that it is asked the same."""
    times: Counter[bytes] = Counter()

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while asked := client.recv(65536):
                times[asked] += 1
                for each in speak(times[asked] - 1):
                    time.sleep(each) if isinstance(each, float) else client.sendall(each)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        place = find_place(f"http://127.0.0.1:{listener.getsockname()[1]}")
        workload = Workload.of(Synthetic(Fixed(10), Fixed(8)))
        hedge = Hedge(After(seconds=after_s))
        load = Load([(place, Chat(place.host, "m"))], workload, Constant(5), 2.0, hedge=hedge, drain_s=3.0)
        return list(attempts(drive(load, folder)).values())


@pytest.mark.usefixtures("either_way")
def test_an_answer_that_begins_in_pieces_cancels_its_copy_too(tmp_path: Path) -> None:
    """Whatever comes before the answer itself."""

    def speak(number: int) -> Iterator[bytes | float]:
        yield 0.08
        if number:
            yield b"HTTP/1.1 100 Continue\r\n\r\n"
            yield 0.02
        yield CHUNKED[:8]
        yield 0.02
        yield CHUNKED[8:] + STREAM

    for rows in hedged(tmp_path / "run", speak):
        assert sorted(row["status"] for row in rows) == ["cancelled", "ok"]


@pytest.mark.usefixtures("either_way")
def test_a_head_without_an_answer_is_copied(tmp_path: Path) -> None:
    """Servers send it at once, and then wait for the first token."""

    def speak(number: int) -> Iterator[bytes | float]:
        yield CHUNKED
        yield 0.03 if number else 2.0
        yield STREAM

    ended = [[row["status"] for row in rows] for rows in hedged(tmp_path / "run", speak, after_s=0.2)]
    assert ended.count(["cancelled", "ok"]) >= 0.7 * len(ended)  # all, unless this machine is held up


def test_a_share_bounds_how_many_are_copied(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, 200.0, 2.0, hedge=Hedge(After(seconds=0.001), budget=0.05)), tmp_path / "run")
    requests = len(attempts(run))
    assert 10 <= run.num_rows - requests <= 0.05 * requests + 11


def test_servers_are_asked_in_turn_and_named(server: RunningEndpoint, tmp_path: Path) -> None:
    with endpoint_process(ENGINE) as second:
        first, other = find_place(server.url), find_place(second.url)
        sites = [(place, Chat(place.host, "openloop", place.base)) for place in (first, other)]
        server.behave()
        second.behave(fault="overloaded", share=1.0)
        run = drive(load_of(server, 50.0, 1.0, sites=sites, retry=Retry(most=1, base=0.01)), tmp_path / "run")
        hedged = drive(load_of(server, 50.0, 1.0, sites=sites, hedge=Hedge(After(seconds=0.05))), tmp_path / "hedged")
    names = {first.host, other.host}
    for tries in attempts(run).values():
        assert tries[0]["replica"] in names
        if len(tries) > 1:
            assert {row["replica"] for row in tries} == names
            assert tries[0]["replica"] == other.host
            assert tries[1]["status"] == "ok"
    assert Counter(row["replica"] for row in rows_of(run) if row["attempt"] == 0)[first.host] in range(20, 31)
    assert run.manifest.replicas == 2
    assert {row["replica"] for row in rows_of(hedged)} == names


def test_a_header_says_who_served(tmp_path: Path) -> None:
    listener = answering([OK.replace(b"\r\n", b"\r\nX-Served-By: r7\r\n", 1)], [0])
    place = find_place(f"http://127.0.0.1:{listener.getsockname()[1]}")
    sites = [(place, Chat("x", "m", stream=False, replica_header="x-served-by"))]
    rows = driven(listener, tmp_path / "run", sites=sites)
    assert {row["replica"] for row in rows} == {"r7"}


def test_conversations_go_on_after_each_answer(server: RunningEndpoint, tmp_path: Path) -> None:
    workload = Workload.of(read_source("sessions:turns=3,think=100ms,prompt=10,output=4,system=20"))
    run = drive(load_of(server, 10.0, 3.0, workload=workload), tmp_path / "run")
    run.validate()
    sessions: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows_of(run), key=lambda row: (row["session_id"], row["turn"])):
        sessions.setdefault(row["session_id"], []).append(row)
    whole = [turns for turns in sessions.values() if len(turns) == 3]
    assert len(whole) > 15
    for turns in whole:
        assert [row["turn"] for row in turns] == [0, 1, 2]
        assert [row["prompt_tokens"] for row in turns] == [30, 44, 58]  # and 4 that were answered, and 10 more
        for before, after in itertools.pairwise(turns):
            assert after["scheduled_ns"] - before["ended_ns"] == 100_000_000
    late = [row["sent_ns"] - row["scheduled_ns"] for row in rows_of(run) if row["turn"]]
    assert np.median(late) < 50e6


def test_a_user_whose_turn_fails_leaves(server: RunningEndpoint, tmp_path: Path) -> None:
    workload = Workload.of(read_source("sessions:turns=4,think=10ms,prompt=5,output=2"))
    load = load_of(server, 20.0, 2.0, workload=workload)
    server.behave(fault="error", share=0.5)
    rows = rows_of(drive(load, tmp_path / "run"))
    last = {row["session_id"]: row for row in sorted(rows, key=lambda row: row["turn"])}
    assert all(row["status"] == "error" or row["turn"] == 3 or row["ended_ns"] > 1.9e9 for row in last.values())
    assert all(row["status"] == "ok" for row in rows if row is not last[row["session_id"]])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_requests_do_not_depend_on_the_number_of_workers(server: RunningEndpoint, tmp_path: Path, workers: int) -> None:
    spec = "synthetic:prompt=uniform(5,50),output=uniform(1,5),prefixes=2,prefix=10,reuse=50%"
    load = load_of(server, 60.0, 1.0, workload=Workload.of(read_source(spec)), workers=workers)
    rows = sorted(rows_of(drive(load, tmp_path / "run")), key=lambda row: row["request_id"])
    demand = load.workload.demand(load.arrivals, 1.0, 0)
    assert [row["prompt_tokens"] for row in rows] == demand.prompt_tokens.tolist()
    assert [row["output_tokens"] for row in rows] == demand.output_tokens.tolist()


def test_a_limit_on_requests_ends_the_run_cleanly(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, 100.0, 30.0, most_requests=40), tmp_path / "run")
    run.validate()
    assert run.num_rows == 40
    assert {row["status"] for row in rows_of(run)} == {"ok"}
    assert run.manifest.finished
    assert run.manifest.window_ns is not None
    due = Poisson(100.0).times(30.0, stream(0, "arrivals"))
    assert run.manifest.window_ns[1] == pytest.approx(due[40] * 1e9, abs=2)
    assert any("stopped after 40 requests" in note for note in run.manifest.notes)


def test_requests_within_a_limit_are_asked_again_too(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 100.0, 30.0, most_requests=40, retry=Retry(most=9, base=0.01))
    server.behave(fault="overloaded", share=0.2)
    run = drive(load, tmp_path / "run")
    run.validate()
    found = attempts(run)
    assert len(found) == 40
    assert {rows[-1]["status"] for rows in found.values()} == {"ok"}


@pytest.mark.parametrize(("most", "end_s"), [(10, 1.0), (30, 2.0), (45, 3.0)])
def test_a_limit_on_requests_counts_those_that_are_due_at_once(
    server: RunningEndpoint, tmp_path: Path, most: int, end_s: float
) -> None:
    """Twenty at once in each of three seconds."""
    rows = [f'{{"timestamp": {n // 20 * 1000}, "input_length": 9, "output_length": 2}}' for n in range(60)]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    workload = Workload.of(read_source(f"trace:{tmp_path / 't.jsonl'}"))
    run = drive(load_of(server, 1.0, 3.0, workload=workload, arrivals=None, most_requests=most), tmp_path / "run")
    run.validate()
    assert Counter(row["status"] for row in rows_of(run)) == {"ok": most}
    assert run.manifest.window_ns == (0, int(end_s * 1e9))
    assert run.manifest.offered_rps == most / end_s


def test_a_window_that_ends_early_promises_what_was_due_in_it(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, arrivals=read_arrivals("ramp:start=50,end=500"), seconds=3.0, most_requests=150)
    run = drive(load, tmp_path / "run")
    assert run.manifest.window_ns is not None
    assert run.manifest.offered_rps == pytest.approx(150 / run.manifest.window_ns[1] * 1e9)
    assert not any("promises" in reason for reason in ol.check(run).reasons)


def test_a_limit_on_requests_holds_for_conversations(server: RunningEndpoint, tmp_path: Path) -> None:
    workload = Workload.of(read_source("sessions:turns=5,think=20ms,prompt=9,output=2"))
    run = drive(load_of(server, 20.0, 5.0, workload=workload, most_requests=60, workers=2), tmp_path / "run")
    run.validate()
    rows = rows_of(run)
    assert Counter(row["status"] for row in rows) == {"ok": 60}
    assert run.manifest.window_ns is not None
    ends = {row["session_id"]: row["ended_ns"] for row in rows if row["turn"] < 4}
    left = [row for row in rows if row["turn"] < 4 and row["ended_ns"] == ends[row["session_id"]]]
    assert min(row["ended_ns"] for row in left) + 20_000_000 >= run.manifest.window_ns[1]


def test_who_watches_is_told_up_to_when_all_is_read(server: RunningEndpoint, tmp_path: Path) -> None:
    seen: list[Snapshot] = []
    drive(load_of(server, 20.0, 3.0), tmp_path / "run", seen.append)
    assert all(now.read_s <= max(now.seconds, 0.0) for now in seen)
    assert max(now.read_s for now in seen) > 1.0


def test_a_limit_on_money_ends_the_run_cleanly(server: RunningEndpoint, tmp_path: Path) -> None:
    """A request costs 10 + 8 * 1 = 0.018; so 0.9 is spent by 50 of them."""
    prices = ol.Prices(per_million_input_tokens=1000.0, per_million_output_tokens=1000.0)
    run = drive(load_of(server, 50.0, 30.0, most_spend=0.9, facts={"prices": prices}), tmp_path / "run")
    run.validate()
    assert 45 <= run.num_rows <= 150  # of 1,500; a busy machine takes a moment to notice
    assert {row["status"] for row in rows_of(run)} == {"ok"}
    spent = 0.018 * run.num_rows
    assert f"stopped by the limit on spending: it came to {spent:.4g} in the end, of 0.9 allowed" in run.manifest.notes


def test_a_limit_on_money_takes_all_that_are_due_at_once(server: RunningEndpoint, tmp_path: Path) -> None:
    """Twenty at once in each of three seconds: nothing that was due before the end of the window is missing."""
    rows = [f'{{"timestamp": {n // 20 * 1000}, "input_length": 9, "output_length": 2}}' for n in range(60)]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    workload = Workload.of(read_source(f"trace:{tmp_path / 't.jsonl'}"))
    money = {"most_spend": 0.3, "facts": {"prices": ol.Prices(per_request=0.01)}}
    run = drive(load_of(server, 1.0, 3.0, workload=workload, arrivals=None, **money), tmp_path / "run")
    run.validate()
    assert Counter(row["status"] for row in rows_of(run)) == {"ok": 40}
    assert run.manifest.window_ns == (0, 2_000_000_000)


def test_prompts_may_be_cached_and_what_was_never_sent_costs_nothing(server: RunningEndpoint, tmp_path: Path) -> None:
    """So neither ends a run before the money is spent."""
    prices = ol.Prices(per_million_input_tokens=1000.0, per_million_cached_tokens=0.0)
    run = drive(load_of(server, 50.0, 1.0, most_spend=0.6, facts={"prices": prices}), tmp_path / "run")
    assert run.num_rows > 30
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = find_place(f"http://127.0.0.1:{listener.getsockname()[1]}")
    facts = {"prices": ol.Prices(per_request=0.01)}
    nobody = load_of(server, 50.0, 1.0, sites=[(place, Chat("x", "m"))], most_spend=0.3, facts=facts)
    unsent = drive(nobody, tmp_path / "unsent")
    assert unsent.manifest.cut_short is None
    assert unsent.num_rows > 30


def test_users_of_a_closed_loop_ask_no_more_once_the_money_is_spent(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 1.0, 30.0, users=5, most_spend=0.2, facts={"prices": ol.Prices(per_request=0.01)})
    run = drive(load, tmp_path / "run")
    run.validate()
    assert run.num_rows < 60  # that is how many a worker has at hand
    assert run.manifest.cut_short == "spend"


def test_what_is_in_flight_counts_for_a_limit_on_money(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 50.0, 30.0, most_spend=0.2, facts={"prices": ol.Prices(per_request=0.01)})
    server.behave(fault="hang")  # no answer tells for five seconds, in which 250 are due
    run = drive(load, tmp_path / "run")
    server.behave()
    run.validate()
    assert run.manifest.cut_short == "spend"
    assert 20 <= run.num_rows <= 100  # just 20, where the machine is not too busy
    assert any(f"it came to {0.01 * run.num_rows:.4g} in the end, of 0.2" in note for note in run.manifest.notes)


def test_what_is_in_flight_counts_with_all_the_tokens_that_it_asks_for(server: RunningEndpoint, tmp_path: Path) -> None:
    """Answers take two seconds: twenty are paid for, and a hundred would be asked before the first ends."""
    prices = ol.Prices(per_million_output_tokens=1000.0)
    workload = Workload.of(Synthetic(Fixed(10), Fixed(400)))
    load = load_of(server, 50.0, 30.0, workload=workload, drain_s=30.0, most_spend=8.0, facts={"prices": prices})
    run = drive(replace(load, timeout_s=30.0), tmp_path / "run")
    run.validate()
    assert run.manifest.cut_short == "spend"
    assert 20 <= run.num_rows <= 80  # just 20, where the machine is not too busy


def test_a_worker_that_dies_takes_its_retries_with_it(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, 60.0, 3.0, retry=Retry(most=5, base=0.3, factor=1.0, jitter=0.0), workers=2)
    server.behave(fault="overloaded", share=0.5)
    run = drive(load, tmp_path / "run", KillOne(30))
    run.validate()
    assert len(attempts(run)) == len(Poisson(60.0).times(3.0, stream(0, "arrivals")))
    assert any(row["status"] == "dropped" for row in rows_of(run))


def test_workers_are_of_our_session_and_not_of_our_group(server: RunningEndpoint, tmp_path: Path) -> None:
    """An interrupt at the terminal is not for them; and where sessions share processors, they go before us."""
    seen: set[tuple[bool, bool]] = set()

    def look(_: Snapshot) -> None:
        for pid in [worker.process.pid for worker in conductor.crew.workers]:
            with contextlib.suppress(ProcessLookupError):
                seen.add((os.getsid(pid) == os.getsid(0), os.getpgid(pid) == os.getpgid(0)))

    conductor = Conductor(load_of(server), tmp_path / "run", look)
    conductor.run()
    assert seen == {(True, False)}


@pytest.mark.parametrize(("before", "during"), [(700, RARELY), (2 * RARELY, 2 * RARELY), (0, 0)])
def test_cycles_are_looked_for_rarely_during_a_run_and_as_before_after_it(
    monkeypatch: pytest.MonkeyPatch, before: int, during: int
) -> None:
    seen: list[int] = []

    def fail(_: Conductor) -> None:
        seen.append(gc.get_threshold()[0])
        raise OSError

    monkeypatch.setattr(Conductor, "_run", fail)
    usual = gc.get_threshold()
    try:
        gc.set_threshold(before)
        with pytest.raises(OSError):  # noqa: PT011  whatever it is
            Conductor.__new__(Conductor).run()
        assert (seen, gc.get_threshold()) == ([during], (before, *usual[1:]))
    finally:
        gc.set_threshold(*usual)


def test_copies_that_are_free_are_so_many_however_many_workers_there_are(
    server: RunningEndpoint, tmp_path: Path
) -> None:
    load = load_of(server, 100.0, 1.0, hedge=Hedge(After(seconds=0.001), budget=0.0), workers=4)
    rows = rows_of(drive(load, tmp_path / "run"))
    assert sum(row["kind"] == "hedge" for row in rows) == 10


def test_a_run_whose_window_opened_late_is_cut_short_until_that_is_over(
    server: RunningEndpoint, tmp_path: Path
) -> None:
    conductor = Conductor(load_of(server, 100.0, 8.0), tmp_path / "run", lambda _: None)
    conductor.start_ns = 1
    conductor.schedule.end_at(14_000_000_000, ())
    conductor._halt(11_000_000_000, 11_000_000_000, "interrupted", cut_short="interrupt")
    conductor.writer.close()
    conductor.crew.close()
    assert conductor.cut_short == "interrupt"


def test_a_closed_loop_that_ran_out_of_requests_says_so(
    server: RunningEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openloop.load.plan.MOST_IN_CLOSED_LOOP", 60)
    run = drive(load_of(server, 100.0, 20.0, users=10), tmp_path / "run")
    assert run.manifest.window_ns is not None
    assert run.manifest.window_ns[1] < 15e9
    assert run.manifest.cut_short == "requests"
    assert any("the most of a closed loop" in note for note in run.manifest.notes)


def test_users_who_get_no_connection_asked_when_they_did(server: RunningEndpoint, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    load = load_of(server, 100.0, 1.0, users=2)
    place = find_place(f"http://127.0.0.1:{port}")
    rows = rows_of(drive(replace(load, sites=[(place, load.sites[0][1])]), tmp_path / "run"))
    due = [row["scheduled_ns"] for row in rows]
    assert {row["status"] for row in rows} == {"error"}
    assert max(due) > 500_000_000
    assert sum(each == 0 for each in due) <= 2


@pytest.mark.usefixtures("either_way")
def test_who_is_refused_before_all_was_sent_is_refused_and_not_broken(tmp_path: Path) -> None:
    body = b'{"error": {"message": "too many"}}'
    said = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body

    def refuse(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if connection.recv(4096):
                connection.sendall(said)

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=refuse, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        place = find_place(f"http://127.0.0.1:{listening.getsockname()[1]}")
        workload = Workload.of(Synthetic(Fixed(700_000), Fixed(1)))
        load = Load([(place, Chat(place.host, "m"))], workload, Constant(3), 1.0, drain_s=30.0)
        rows = rows_of(drive(load, tmp_path / "run"))
    assert {(row["status"], row["http_status"]) for row in rows} == {("shed", 429)}


def test_an_interrupt_shortens_the_wait_for_the_last_answers(
    server: RunningEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conductor = Conductor(load_of(server, users=2, drain_s=40.0), tmp_path / "run", lambda _: None)
    told: list[Any] = []
    monkeypatch.setattr(conductor.crew, "tell", told.append)
    second = 1_000_000_000
    conductor._halt(0, 0, None)
    for now in (second, 2 * second):
        conductor._halt(now, now, "interrupted", HALT_S, cut_short="interrupt")
    conductor.writer.close()
    conductor.crew.close()
    assert [until for _, _, until in told] == [40 * second, second + int(HALT_S * 1e9)]


def test_a_retry_goes_to_another_server_and_so_does_its_copy(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, hedge=Hedge(After(seconds=0.1)), retry=Retry())
    conductor = Conductor(replace(load, sites=[*load.sites] * 2), tmp_path / "run", lambda _: None)
    conductor.writer.close()
    conductor.crew.close()
    assert [conductor._where(0, attempt) for attempt in range(4)] == [0, 1, 1, 0]


def test_a_closed_loop_waits_for_its_last_answers_as_long_as_was_asked_for(
    server: RunningEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openloop.load.conductor.HALT_S", 0.0)
    load = load_of(server, seconds=0.5, users=3, arrivals=None, drain_s=20.0)
    server.behave(slowness=10.0)
    assert {row["status"] for row in rows_of(drive(load, tmp_path / "run"))} == {"ok"}


def test_an_interrupt_before_anybody_is_ready_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(3600)\n\ndef ask(ask):\n    return 'yes'\n")
    name = f"{tmp_path}/slow.py:ask"
    load = Load(
        [(Place(name, "", Address(0, name, 0)), Function(name))],
        Workload.of(Synthetic(Fixed(10), Fixed(8))),
        Constant(5),
        1.0,
    )
    conductor = Conductor(load, tmp_path / "run", None)
    thread = threading.Thread(target=conductor.run, daemon=True)
    thread.start()
    conductor.interrupt()
    conductor.interrupt()
    thread.join(30)
    assert not thread.is_alive()
    assert ol.open_run(tmp_path / "run").manifest.notes == ("interrupted after 0.0 s",)


def test_an_interrupt_before_the_first_moment_sends_nothing(server: RunningEndpoint, tmp_path: Path) -> None:
    server.truth()
    conductor = Conductor(load_of(server, arrivals=Constant(5)), tmp_path / "run", None)
    conductor.interrupt()
    conductor.run()
    assert server.truth() == {}
    run = ol.open_run(tmp_path / "run")
    assert rows_of(run) == []
    assert (run.manifest.window_ns, run.manifest.offered_rps) == ((0, 1), None)


def test_a_hedge_goes_by_answers_to_the_first_attempt(server: RunningEndpoint, tmp_path: Path) -> None:
    """Those that were asked for again count from when they were due at first, and so with all the waiting."""
    hedged = load_of(server, 5.0, retry=Retry(1), hedge=Hedge(After(percentile=95)))
    conductor = Conductor(hedged, tmp_path / "run", None)
    said = b'data: {"choices": [{"text": "x", "finish_reason": "stop"}]}\n\n'
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + said
    try:
        for number, waves in enumerate((("first",), ("first", "retry"))):
            conductor.asked[number] = _Request(conductor.prompts.ask(number), waves)
            ticket, sent = number * TICKETS + 2 * (len(waves) - 1), conductor.schedule.due_ns[number] + 1
            marks = array("q", [len(raw), sent + 10**9 * number + 7]).tobytes()
            conductor._take((ticket, "done", "", sent, 0, sent + 2 * 10**9, raw, marks, 1, False))
        assert list(conductor.begun) == [8]
        assert conductor.statuses == {"ok": 2}
    finally:
        conductor.writer.close()
        conductor.crew.close()
