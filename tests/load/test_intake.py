"""Machine code and Python read the same, however an answer comes."""

import contextlib
import itertools
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openloop.arrivals import Constant
from openloop.clock import READ, Poller, Rest
from openloop.distributions import Fixed
from openloop.load import crew
from openloop.load.address import find_place
from openloop.load.conductor import drive
from openloop.load.intake import NEVER, SECOND, SIZE, Intake
from openloop.load.plan import Load
from openloop.load.reply import skimmer
from openloop.load.skim import NOTES, SAID, reads_of
from openloop.load.targets import Chat
from openloop.persistence import After, Hedge
from openloop.workload import Synthetic, Workload

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
SHORT = ["one", " two", " 3\r\n0\r\n\r\n", " four"]
LONG = [f" word{n}" for n in range(1200)]

Wired = tuple[Intake, socket.socket, socket.socket]


def events(words: list[str]) -> list[bytes]:
    said = [{"delta": {"content": word}, "finish_reason": None} for word in words]
    data = [msgspec.json.encode({"choices": [each]}) for each in [*said, {"delta": {}, "finish_reason": "stop"}]]
    return [b"data: %b\n\n" % each for each in [*data, b"[DONE]"]]


def chunked(words: list[str]) -> bytes:
    chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in events(words)]
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


def measured(words: list[str]) -> bytes:
    body = b"".join(events(words))
    return HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def until_close(words: list[str]) -> bytes:
    return HEAD + b"\r\n" + b"".join(events(words))


@contextlib.contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def in_pieces(answers: list[bytes], cuts: int) -> Callable[[socket.socket], None]:
    """Answers in turn, cut anywhere into pieces that come one by one; one without an end is followed by a close."""
    chance, turns = random.Random(cuts), itertools.count()

    def talk(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock, contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                answer = answers[next(turns) % len(answers)]
                for start, stop in itertools.pairwise(
                    [0, *sorted(chance.sample(range(len(answer)), cuts)), len(answer)]
                ):
                    sock.sendall(answer[start:stop])
                    time.sleep(0.002)
                if answer.startswith(HEAD + b"\r\n"):
                    return

    return talk


def drive_short(url: str, folder: Path, seconds: float = 0.6) -> Counter[tuple[str, int, bool]]:
    place = find_place(url)
    workload = Workload.of(Synthetic(Fixed(5), Fixed(5)))
    run = drive(Load([(place, Chat("x", "m"))], workload, Constant(100), seconds, drain_s=8.0, timeout_s=8.0), folder)
    run.validate()
    rows = run.head(1000)
    return Counter((row["status"], len(row["event_ns"]), row["event_ns"] == sorted(row["event_ns"])) for row in rows)


def ask_each(url: str, folder: Path, rate: float) -> list[dict[str, Any]]:
    """What became of the requests of half a second."""
    workload = Workload.of(Synthetic(Fixed(5), Fixed(5)))
    load = Load([(find_place(url), Chat("x", "m"))], workload, Constant(rate), 0.5, drain_s=8.0, timeout_s=8.0)
    return drive(load, folder).head(1000)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("cuts", [0, 1, 9])
def test_however_an_answer_is_cut_it_is_read_whole(tmp_path: Path, cuts: int) -> None:
    """In chunks, with a length, until the connection closes; short, and longer than what is kept of a connection."""
    answers = [chunked(SHORT), measured(SHORT), chunked(LONG), until_close(SHORT), chunked(SHORT), measured(LONG)]
    assert len(chunked(LONG)) > 2 * SIZE
    with serving(in_pieces(answers, cuts)) as url:
        found = drive_short(url, tmp_path / "run")
    assert found == {("ok", len(SHORT), True): 40, ("ok", len(LONG), True): 20}


@pytest.mark.usefixtures("either_way")
def test_a_request_that_a_socket_does_not_take_at_once_is_sent_whole(tmp_path: Path) -> None:
    sizes: list[int] = []

    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if not (head := sock.recv(1 << 12)):
                return
            time.sleep(0.3)  # meanwhile the sender's room is full
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            left = length - len(head.partition(b"\r\n\r\n")[2])
            while left and (data := sock.recv(1 << 20)):
                left -= len(data)
            sizes.append(length - left)
            sock.sendall(chunked(SHORT))

    with serving(talk) as url:
        place = find_place(url)
        workload = Workload.of(Synthetic(Fixed(2_000_000), Fixed(5)))
        load = Load([(place, Chat("x", "m"))], workload, Constant(4), 0.5, drain_s=8.0)
        rows = drive(load, tmp_path / "run").head(1000)
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert min(sizes) > 8_000_000


@pytest.mark.usefixtures("either_way")
def test_the_rest_of_a_request_is_sent_however_much_comes_before(tmp_path: Path) -> None:
    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if not (head := sock.recv(1 << 12)):
                return
            time.sleep(0.3)  # meanwhile the sender's room is full
            sock.sendall(b"HTTP/1.1 100 Continue\r\nX: %b\r\n\r\n" % bytes(2 * SIZE))
            time.sleep(0.1)
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            left = length - len(head.partition(b"\r\n\r\n")[2])
            while left and (data := sock.recv(1 << 20)):
                left -= len(data)
            sock.sendall(chunked(SHORT))

    with serving(talk) as url:
        workload = Workload.of(Synthetic(Fixed(2_000_000), Fixed(5)))
        load = Load([(find_place(url), Chat("x", "m"))], workload, Constant(4), 0.5, drain_s=8.0)
        rows = drive(load, tmp_path / "run").head(1000)
    assert [row["status"] for row in rows] == ["ok", "ok"]


@pytest.mark.usefixtures("either_way")
def test_a_byte_out_of_turn_hides_nothing_that_follows(tmp_path: Path) -> None:
    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                answer = chunked(SHORT)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                sock.sendall(answer[:200])
                sock.send(b"!", socket.MSG_OOB)
                sock.sendall(answer[200:])
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    with serving(talk) as url:
        assert drive_short(url, tmp_path / "run") == {("ok", len(SHORT), True): 60}


@pytest.mark.usefixtures("either_way")
def test_no_copy_is_sent_once_an_answer_has_begun(tmp_path: Path) -> None:
    """Its head and first word come together, the rest of its words much later."""
    seen = itertools.count()

    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                next(seen)
                answer = chunked(SHORT)
                first = answer.index(b"two")
                first = answer.rindex(b"\r\n", 0, answer.rindex(b"\r\n", 0, first)) + 2
                sock.sendall(answer[:first])
                time.sleep(0.4)
                sock.sendall(answer[first:])

    with serving(talk) as url:
        place = find_place(url)
        load = Load(
            [(place, Chat("x", "m"))],
            Workload.of(Synthetic(Fixed(5), Fixed(5))),
            Constant(40),
            0.5,
            drain_s=8.0,
            hedge=Hedge(After(seconds=0.2), 1.0),
        )
        rows = drive(load, tmp_path / "run").head(1000)
    assert [(row["status"], row["kind"]) for row in rows] == [("ok", "first")] * 20
    assert next(seen) == 20


@pytest.mark.usefixtures("either_way")
def test_a_body_that_looks_like_chunks_and_is_none_ends_where_its_length_says(tmp_path: Path) -> None:
    answer = HEAD + b"X-Note: not chunked\r\nContent-Length: 10\r\n\r\n5\r\nhello\r\n"
    with serving(in_pieces([answer], 0)) as url:
        rows = ask_each(url, tmp_path / "run", 20)
    assert {row["status"] for row in rows} == {"error"}
    assert all(row["ended_ns"] - row["sent_ns"] < 2e9 for row in rows)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("answer", [chunked(SHORT), measured(SHORT)])
def test_what_comes_after_an_answer_does_not_move_its_end(tmp_path: Path, answer: bytes) -> None:
    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                sock.sendall(answer)
                time.sleep(0.005)
                sock.sendall(b"more")

    with serving(talk) as url:
        rows = ask_each(url, tmp_path / "run", 7)  # out of step with whoever follows what machine code has read
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert [row["ended_ns"] for row in rows] == [row["event_ns"][-1] for row in rows]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "answer", [chunked(SHORT), measured(SHORT), HEAD + b"Content-Length: 0\r\n\r\n", b"HTTP/1.1 204 None\r\n\r\n"]
)
def test_a_connection_on_which_more_comes_than_an_answer_is_not_used_again(tmp_path: Path, answer: bytes) -> None:
    turns: list[int] = []

    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            for turn in itertools.count():
                if not sock.recv(1 << 20):
                    return
                turns.append(turn)
                sock.sendall(answer + b"more")

    with serving(talk) as url:
        ask_each(url, tmp_path / "run", 20)
    assert turns == [0] * 10


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("codings", "status"),
    [
        (["identity", "chunked"], "ok"),
        (["identity, Chunked"], "ok"),
        (["chunked", "chunked"], "ok"),
        (["chunked", ""], "ok"),
        (["chunked", "identity"], "ok"),
        (["chunked, identity"], "ok"),
        (["not-chunked"], "the response is sent as 'not-chunked', which nobody asked for: only chunked is read"),
        (["gzip, chunked"], "the response is sent as 'gzip, chunked', which nobody asked for: only chunked is read"),
        (["chunked, gzip"], "the response is sent as 'chunked, gzip', which nobody asked for: only chunked is read"),
    ],
)
def test_a_body_is_in_chunks_if_that_is_all_that_was_done_to_it(
    tmp_path: Path, codings: list[str], status: str
) -> None:
    body = b"".join(events(SHORT))
    chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:20], body[20:], b"")]
    named = [b"Transfer-Encoding: %b\r\n" % each.encode() for each in codings]

    def talk(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            if sock.recv(1 << 20):
                sock.sendall(HEAD + b"".join([*named, b"\r\n", *chunks]))

    with serving(talk) as url:
        rows = ask_each(url, tmp_path / "run", 20)
    assert {row["error"] or row["status"] for row in rows} == {status}


@pytest.fixture
def wired(request: pytest.FixtureRequest) -> Iterator[Wired]:
    """Machine code that reads one of two sockets, and maybe notes events."""
    code = crew.intake_code()
    if not code:
        pytest.skip("no machine code of ours runs here")
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(Poller()) as poller:
        ours.setblocking(False)
        poller.watch(ours.fileno(), READ)
        yield Intake(code, poller, notes=getattr(request, "param", False)), ours, theirs


def test_machine_code_keeps_what_comes_tells_of_its_end_and_sends_what_is_due(wired: Wired) -> None:
    intake, ours, theirs = wired
    line, now = intake.lines[ours.fileno()], time.monotonic_ns()
    payload = b"GET / HTTP/1.1\r\n\r\n"
    intake.post(now + 20_000_000, payload)
    intake.offer([ours.fileno()])
    answer = chunked(SHORT)
    threading.Timer(0.05, theirs.sendall, [answer[:-5]]).start()
    threading.Timer(0.10, theirs.sendall, [answer[-5:]]).start()
    intake.state.next_ns, intake.state.check_ns, intake.state.eager = NEVER, now + 5 * SECOND, 0
    while not intake.state.told and time.monotonic_ns() < now + 5 * SECOND:
        intake.state.check_ns = time.monotonic_ns() + SECOND // 20
        intake.gather()
    assert theirs.recv(100) == payload
    (post,) = intake.gone(0)
    fd, sent_ns, sent = post
    assert now + 20_000_000 <= sent_ns < time.monotonic_ns()
    assert (fd, sent) == (ours.fileno(), len(payload))
    assert (intake.told(), line.followed) == ([ours.fileno()], len(answer) - 5)
    data, marks = bytes(intake.data(fd, line.used)), intake.marks(fd, line.reads)
    assert (data, list(marks[::2])) == (answer, [len(answer) - 5, len(answer)])
    assert sent_ns < marks[1] < marks[3] <= time.monotonic_ns()


def test_an_end_is_none_if_more_comes_before_anybody_looks(wired: Wired) -> None:
    intake, ours, theirs = wired
    line, intake.state.next_ns, intake.state.check_ns = intake.lines[ours.fileno()], 1, 1
    line.ours = 1
    for more, over in ((chunked(SHORT), 1), (b"x", 0)):
        theirs.sendall(more)
        while line.reads < 2 - over:
            intake.gather()
        assert (line.told, line.over) == (1, over)


@pytest.mark.parametrize("wired", [True], indirect=True)
def test_events_of_a_whole_answer_are_noted_and_of_no_other(wired: Wired) -> None:
    intake, ours, theirs = wired
    fd, state, code = ours.fileno(), intake.state, skimmer()
    assert code is not None
    intake.lines[fd].ours, state.next_ns, state.check_ns = 1, 1, 1
    answer = chunked(SHORT)

    def read(*pieces: bytes) -> int:
        intake.clear(fd)
        intake.lines[fd].chunked = 0
        for count, piece in enumerate(pieces, 1):
            theirs.sendall(piece)
            while intake.lines[fd].reads < count:
                intake.gather()
        intake.told()
        return int(intake.lines[fd].noted)

    cut = answer.rindex(b"\r\n", 0, answer.index(b"data", 300) - 4) + 2  # between two chunks
    first, second = read(answer), read(answer[:cut], answer[cut:])
    assert first == 1 < second  # behind the first, which may not have been looked at yet
    marks = bytes(intake.marks(fd, 2))
    assert intake.events(second) == code.find(answer, answer.index(b"\r\n\r\n") + 4, marks)
    for place, reads in ((first, 1), (second, 2)):
        assert (reads_of(intake.events(place)), intake.events(place)[1].count(b"\n")) == (reads, 2)
    assert read(answer[:300], answer[300:]) == 0  # in the middle of a chunk: Python is to follow it
    assert read(measured(SHORT)) == 0
    assert read(HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n0\r\n\r\n") == 0
    state.noted = NOTES - 10
    assert read(answer) == 0  # there is no room
    intake.begin_notes()
    assert read(answer) == 1
    state.said = SAID - 10
    assert read(answer) == 0
    state.notes = 0
    intake.begin_notes()
    assert read(answer) == 0


@pytest.mark.usefixtures("either_way")
def test_a_refusal_in_the_form_of_events_is_told_in_its_own_words(tmp_path: Path) -> None:
    """Of a success, events are enough; of anything else, all is wanted."""
    said = b'data: {"error":{"message":"out of luck"}}\n\n'
    refused = chunked([]).replace(b"200 OK", b"500 No")
    refused = refused[: refused.index(b"\r\n\r\n") + 4] + b"%x\r\n%b\r\n0\r\n\r\n" % (len(said), said)
    with serving(in_pieces([refused], 0)) as url:
        rows = ask_each(url, tmp_path / "run", 20)
    assert [(row["status"], row["http_status"]) for row in rows] == [("error", 500)] * 10
    assert all("out of luck" in row["error"] for row in rows)


def test_times_between_reads_are_counted_and_a_rest_goes_by_them(wired: Wired) -> None:
    intake, ours, theirs = wired
    line, state, rest = intake.lines[ours.fileno()], intake.state, Rest(SECOND // 1000)
    line.ours, state.next_ns, state.check_ns = 1, 1, 1
    state.brisk_ns, state.lively_ns = SECOND // 200, 60 * SECOND
    for count in (1, 2, 3):
        time.sleep(0.01)
        theirs.sendall(b"x")
        while line.reads < count:
            intake.gather()
    assert (state.gaps, state.brisk, state.lively) == (2, 0, 2)
    rest.gaps = 98
    before = rest.ns
    intake.note_gaps(rest)
    assert state.rest_ns == rest.ns == 2 * before
    assert (state.brisk_ns, state.lively_ns) == (2 * rest.ns, 4 * rest.ns)
    assert state.gaps == state.brisk == state.lively == 0


def test_a_worker_needs_no_compiler_and_no_arrays() -> None:
    """It starts quickly, and there may be many."""
    listed = "import sys, openloop.load.worker; print({'numpy', 'llvmlite', 'numba'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", listed], text=True) == "set()\n"
