"""What a worker remembers."""

import contextlib
import socket
import ssl
import subprocess
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from openloop.load import crew, wire
from openloop.load import worker as working
from openloop.load.address import Address
from openloop.load.channel import Channel
from openloop.load.connection import Connection, Request
from openloop.load.rows import read_finished
from openloop.load.targets import Chat
from openloop.load.worker import BROKEN, DONE, HEAVY, MANY, REST_NS, Came, Plan, _Worker

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


def test_deadlines_are_in_order_whenever_they_are_told(worker: _Worker) -> None:
    """A copy goes out after requests that were due later than it."""
    for ticket, due_ns in ((0, 5), (1, 9), (2, 7), (3, 5), (4, 9)):
        worker._enter(Request(ticket, due_ns, worker.pools[0], b""))
    passed = [each.ticket for each in worker._passed(worker.deadlines, TIMEOUT_NS + 8)]
    assert (passed, [ticket for _, ticket, _ in worker.deadlines]) == ([0, 3, 2], [1, 4])


def test_what_is_called_back_goes_before_what_is_due_at_the_same_moment(worker: _Worker) -> None:
    requests = [Request(ticket, 7, worker.pools[0], b"") for ticket in range(6)]
    for each in requests[3:]:
        worker._await(each)
    worker.posted.extend(requests[:3])
    worker._recall()
    for late in (Request(9, 6, worker.pools[0], b""), Request(8, 8, worker.pools[0], b"")):
        worker._await(late)
    assert [each.ticket for each in worker.pending] == [9, 0, 1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize(("users", "pending", "kept"), [(0, 0, 1), (2, 2, 1), (2, 1, 0)])
def test_answers_are_kept_for_others_unless_users_wait_for_more_to_ask(
    worker: _Worker, users: int, pending: int, kept: int
) -> None:
    """In a closed loop the conductor gives more when it knows what is over."""
    worker.plan = replace(worker.plan, users=users)
    for ticket in range(1, 1 + pending):
        worker._await(Request(ticket, 0, worker.pools[0], b""))
    request = Request(0, 0, worker.pools[0], b"")
    worker._enter(request)
    worker._end(request, BROKEN, "")
    assert len(worker.finished) == kept


@pytest.mark.parametrize("what", [(bytes(HEAVY), b"", 0), (b"", bytes(HEAVY), 0), (b"", (b"", bytes(HEAVY)), 0)])
def test_answers_are_not_kept_where_they_are_much(worker: _Worker, what: Came) -> None:
    for ticket, came in enumerate([(b"", b"", 0), what]):
        assert len(worker.finished) == ticket
        request = Request(ticket, 0, worker.pools[0], b"")
        worker._enter(request)
        worker._end(request, DONE, "", 1, came)
    assert not worker.finished


def test_a_rest_goes_by_the_times_between_reads(worker: _Worker) -> None:
    """Four milliseconds where tokens come every ten, half of one where they come every 1.9."""
    with socket.socket() as sock:
        connection = Connection(sock, worker.pools[0], None)
        connection.request = request = Request(0, 0, worker.pools[0], b"")
        for gap_ns, rest_ns in ((10_000_000, REST_NS), (1_900_000, REST_NS // 8)):
            for _ in range(6):
                for number in range(101):
                    worker._received(connection, b"x", number * gap_ns, True)
                request.marks = array("q")
                worker._look_at_clock(0)
            assert worker.rest.ns == rest_ns
            assert worker.intake is None or worker.intake.state.rest_ns == rest_ns


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
ENDLESS = {
    "chunks of one token": (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN)),
    "chunks of many": (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n" % (1000 * len(TOKEN), 1000 * TOKEN)),
    "a chunk of an exabyte": (b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n", TOKEN * 100),
    "until it closes": (b"\r\n", TOKEN * 100),
    "a long answer": (b"Content-Length: 1073741824\r\n\r\n", b"x" * 4000),
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True, capture_output=True)
    return folder


def plain(sock: socket.socket) -> socket.socket:
    return sock


@contextlib.contextmanager
def flooding(
    first: bytes, again: bytes, wrap: Callable[[socket.socket], socket.socket]
) -> Iterator[tuple[int, threading.Event]]:
    """A server that answers without end, at a port; and whether somebody closed the connection on it."""
    closed = threading.Event()

    def flood(client: socket.socket) -> None:
        with contextlib.suppress(OSError), wrap(client) as sock:
            if sock.recv(65536):
                with contextlib.suppress(OSError):
                    sock.sendall(first)
                    while True:
                        sock.sendall(again)
                closed.set()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=flood, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], closed
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("path", ["machine code", "Python", "TLS"])
@pytest.mark.parametrize("form", ENDLESS)
def test_an_answer_without_end_is_ended(
    path: str, form: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LARGEST", 1 << 20)
    monkeypatch.setattr(working, "LARGEST", 1 << 20)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    secure = path == "TLS"
    head, again = ENDLESS[form]
    wrap = (lambda sock: context.wrap_socket(sock, server_side=True)) if secure else plain
    with flooding(STREAM + head, again, wrap) as (port, closed):
        ours, theirs = socket.socketpair()
        address = Address(socket.AF_INET, "127.0.0.1", port, "localhost" if secure else "", insecure=secure)
        code = crew.intake_code() if path == "machine code" else b""
        worker = _Worker(Plan([address], TIMEOUT_NS, spare=1, code=code), Channel(theirs))
        thread = threading.Thread(target=worker.run)
        thread.start()
        channel = Channel(ours)
        channel.send(("ask", [(0, 0, 0, b"GET / HTTP/1.1\r\n\r\n", 0, b"")]))
        channel.send(("end",))
        thread.join(60)
        assert not thread.is_alive()
        assert closed.wait(60)
        for spare in worker.connections.values():
            spare.sock.close()
        with ours, theirs, contextlib.closing(worker.poller):
            ((_, fate, why, *_, raw, marks, _, _),) = next(m[1] for m in channel.receive() if m[0] == "done")
    assert (fate, why) == (BROKEN, "the response is larger than 1 MB: it was not read to its end")
    assert raw.startswith(STREAM)
    assert len(raw) <= 1 << 16  # nobody wants to read the rest
    outcome = read_finished((0, fate, why, 0, 0, 0, raw, marks, 0, False), Chat("x", "m"), 1.0)
    assert (outcome.status, outcome.error) == ("error", why)


@pytest.mark.parametrize(
    ("skims", "running", "enough"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_events_are_handed_over_where_they_are_enough_and_less(skims: bool, running: bool, enough: bool) -> None:
    """Not where each says something new: all of them are more than the answer."""
    code = crew.intake_code()
    if not code:
        pytest.skip("no machine code of ours runs here")
    said = [TOKEN.replace(b"{", b'{"id": "%d", ' % (number if running else 0), 1) for number in range(20)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in said) + b"0\r\n\r\n"
    answer = STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + chunks

    def talk(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            while sock.recv(1 << 16):
                sock.sendall(answer)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours, theirs = socket.socketpair()
        address = Address(socket.AF_INET, "127.0.0.1", listener.getsockname()[1])
        worker = _Worker(Plan([address], TIMEOUT_NS, spare=1, code=code, skims=skims), Channel(theirs))
        threading.Thread(target=serve, daemon=True).start()
        channel = Channel(ours)
        channel.send(("ask", [(0, 0, 0, b"GET / HTTP/1.1\r\n\r\n", 0, b"")]))
        channel.send(("end",))
        worker.run()
        for each in worker.connections.values():
            each.sock.close()
        listener.shutdown(socket.SHUT_RDWR)
        with ours, theirs, contextlib.closing(worker.poller):
            ((_, fate, _, *_, raw, marks, _, _),) = next(m[1] for m in channel.receive() if m[0] == "done")
    assert (fate, isinstance(marks, tuple)) == (DONE, enough)
    assert raw == (answer[: len(answer) - len(chunks)] if enough else answer)
