"""Where a response ends, however it is cut into reads; and when each of its events was complete."""

import contextlib
import itertools
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.load import wire
from openloop.load.address import Address, Place
from openloop.load.exchange import exchange
from openloop.load.reply import Reply
from openloop.load.wire import _SIZE, Framing, WireError, encode_head, joined

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENTS = [b"data: {%d}\n\n" % i for i in range(6)] + [b"data: 0\n\n", b": still here\n\n", b"data: [DONE]\n\n"]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"
TRAILED = CHUNKED[:-2] + b"X-Checksum: 1\r\n\r\n"
JOINED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"".join(EVENTS)) + b"0\r\n\r\n"
LENGTH = HEAD + b"Content-Length: %d\r\n\r\n" % len(b"".join(EVENTS)) + b"".join(EVENTS)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
WHOLE = [CHUNKED, TRAILED, JOINED, LENGTH, CONTINUED, EMPTY]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("response", WHOLE)
@given(places=st.lists(st.integers(0, 10_000), max_size=30))
def test_a_response_is_complete_with_its_last_byte_and_not_before(response: bytes, places: list[int]) -> None:
    framing = Framing()
    *first, last = cut(response, places)
    assert not any(framing.feed(block) for block in first)
    assert framing.feed(last)
    assert framing.keep


@given(places=st.lists(st.integers(0, 10_000), max_size=30), response=st.sampled_from([CHUNKED, JOINED, LENGTH]))
def test_an_event_has_the_time_of_the_read_that_completed_it(response: bytes, places: list[int]) -> None:
    blocks = cut(response, places)
    reply = Reply(*joined(blocks, range(len(blocks))))
    events = reply.events()
    stamps, data = events.stamps, events.data
    assert data == [event[6:-2] for event in EVENTS if event.startswith(b"data")]
    seen = b""
    for stamp, block in enumerate(blocks):
        seen += block
        done = sum(1 for when in stamps if when <= stamp)
        body = Reply(*joined([seen], [0])).body if b"\r\n\r\n" in seen else b""
        assert done == body.count(b"\n\n") - body.count(b": still here\n\n")


@given(places=st.lists(st.integers(0, 10_000), max_size=30), sizes=st.lists(st.integers(1, 5000), max_size=9))
def test_a_read_that_is_one_chunk_need_not_be_fed(places: list[int], sizes: list[int]) -> None:
    """Cut anywhere, and between chunks of all sizes: with such reads left out, the response ends where it ended."""
    chunks = [chunk(size * b"x") for size in sizes] + [b"0\r\n\r\n"]
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    for blocks in ([head, *chunks], cut(head + b"".join(chunks), places)):
        framing, plain = Framing(), Framing()
        for block in blocks:
            between = framing._state == _SIZE and not framing._rest
            skipped = framing.is_chunk(block)
            ended = plain.feed(block)
            assert skipped == (between and block in chunks[:-1] and len(block) < 4096)
            assert ended == (not skipped and framing.feed(block))
            assert framing.size == plain.size
        assert ended
    assert not Framing().is_chunk(chunk(b"x"))


@given(size=st.integers(0, 4200), start=st.sampled_from([b"", b"\0", b"\r\n", b"0\r\n", b"1\r\n", b"F\r\n"]))
def test_what_is_no_chunk_is_not_taken_for_one(size: int, start: bytes) -> None:
    framing = Framing()
    framing.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for data in (start + bytes(size), start + size * b"\r\n"):
        assert not framing.is_chunk(data)


def test_a_response_without_length_ends_with_the_connection() -> None:
    framing = Framing()
    assert not framing.feed(HEAD + b"\r\nwords and more words")
    assert framing.until_close
    assert not framing.keep


def test_sizes_of_chunks_may_be_filled_up_with_blanks() -> None:
    response = HEAD + b"Transfer-Encoding: chunked\r\n\r\nd  \r\ndata: word 1\n\r\n1 ; x\r\n\n\r\n0   \r\n\r\n"
    framing = Framing()
    assert framing.feed(response)
    assert framing.keep
    assert Reply(*joined([response], [7])).events().data == [b"word 1"]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: Keep-Alive\r\n",
    ],
)
def test_a_connection_that_will_be_closed_is_not_kept(head: bytes) -> None:
    framing = Framing()
    assert framing.feed(head + b"Content-Length: 2\r\n\r\nhi")
    assert not framing.keep


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not speak HTTP: it said 'SSH-2.0"),
        (HEAD + b"Content-Length: many\r\n\r\n", "'many' is no content-length"),
        (HEAD + b"Content-Length: \xb2\r\n\r\n", "is no content-length"),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", "is no content-length"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-6\r\n", "b'-6' is no size of a chunk"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n+5\r\n", "b'+5' is no size of a chunk"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5_0\r\n", "b'5_0' is no size of a chunk"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "no end to its headers"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nwhat\r\n", "b'what' is no size of a chunk"),
    ],
)
def test_what_is_no_response_is_named(response: bytes, sentence: str) -> None:
    with pytest.raises(WireError) as caught:
        Framing().feed(response)
    assert sentence in str(caught.value)


def test_a_reply_that_was_cut_keeps_what_came() -> None:
    reply = Reply(*joined([CHUNKED[:-40]], [7]))
    assert len(reply.events().data) >= 6
    with pytest.raises(WireError, match="ended before its headers did"):
        Reply(*joined([HEAD], [7]))


def test_events_may_end_with_carriage_returns_and_have_several_lines() -> None:
    body = b"event: x\r\ndata: one\r\ndata: two\r\n\r\nid: 3\r\n\r\ndata:three\r\n\r\n"
    reply = Reply(*joined([HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body], [7]))
    assert reply.events().data == [b"one\ntwo", b"three"]


def body_of(body: bytes, reads: list[int] | None = None) -> Reply:
    """A body in reads that end at these places, a second apart."""
    head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    blocks = [head, *cut(body, reads or [])]
    return Reply(*joined(blocks, range(len(blocks))))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b": hello\n\n", b"\n"])
def test_lines_of_events_end_in_three_ways(end: bytes, start: bytes) -> None:
    events = [b"data: 1", b"data:2", b"event: x\ndata: 3", b"event: x\nid: 7\ndata: 4\ndata:  5", b": ping", b"data:"]
    body = start + b"".join(event + b"\n\n" for event in events)
    reply = body_of(body.replace(b"\n", end) + b"data: cut")
    assert reply.events().data == [b"1", b"2", b"3", b"4\n 5"]


def by_the_book(body: bytes) -> list[bytes]:
    """Events as the standard has them, line by line."""
    text = body.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found, data = [], []
    for line in text.split(b"\n")[:-1]:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line:
            found.append(b"\n".join(data))
            data = []
    return [each for each in found if each]


PIECES = [
    b"data: ",
    b"data:",
    b"event: x",
    b": c",
    b"\n",
    b"\n\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\r",
    b"{}",
    b" ",
    b"\xef\xbb\xbf",
]


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=30), places=st.lists(st.integers(0, 200), max_size=5))
def test_any_stream_is_read_by_the_book(pieces: list[bytes], places: list[int]) -> None:
    body = b"data: " + b"".join(pieces)
    events = body_of(body, places).events()
    stamps, data = events.stamps, events.data
    assert data == by_the_book(body)
    assert [run[-1] for run in events.runs] == list(stamps) == sorted(stamps)
    chunks = b"".join(map(chunk, cut(body, places)))
    reply = Reply(*joined([HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"], [7]))
    assert (reply.body, reply.events().data) == (body, data)


@pytest.mark.parametrize("size", [b"-6", b"what", b"", b"9" * 5000])
def test_chunks_that_break_off_keep_what_came_before(size: bytes) -> None:
    raw = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"data: 1\n\n") + size + b"\r\ndata: 2\n\n"
    assert Reply(*joined([raw], [7])).events().data[:1] == [b"1"]


def test_a_request_begins_with_where_it_goes() -> None:
    assert encode_head("GET", "", "host", {}) == b"GET / HTTP/1.1\r\nHost: host\r\n"
    data = encode_head("POST", "/v1/x", "host:80", {"A": "b"})
    assert data == b"POST /v1/x HTTP/1.1\r\nHost: host:80\r\nA: b\r\n"


def test_a_response_has_a_size_that_it_may_not_exceed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGEST", 1000)
    framing = Framing()
    for _ in range(9):
        framing.feed(b"HTTP/1.1 200 OK\r\n\r\n" if not framing.size else 100 * b"x")
    with pytest.raises(WireError, match="the response is larger than"):
        framing.feed(300 * b"x")
    chunked = Framing()
    chunked.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while chunked.is_chunk(chunk(100 * b"x")):
        assert chunked.size <= 1000
    with pytest.raises(WireError, match="the response is larger than"):
        chunked.feed(b"1\r\nx\r\n")


def test_a_question_before_a_run_ends_though_its_answer_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            sock = listener.accept()[0]
            with contextlib.suppress(OSError), sock:
                sock.sendall(HEAD + b"\r\n")
                while True:
                    sock.sendall(EVENTS[0])
                    time.sleep(0.05)

        place = Place("", "", Address(socket.AF_INET, *listener.getsockname()))
        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        with pytest.raises(WireError, match=r"no end after 0\.5 s"):
            exchange(place, b"GET / HTTP/1.1\r\n\r\n", 0.5)
        thread.join()
    assert time.monotonic() - began < 20


def test_a_question_over_tls_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[socket.socket] = []

    class Context:
        def wrap_socket(self, plain: socket.socket, server_hostname: str) -> socket.socket:
            wrapped.append(socket.socket(fileno=plain.detach()))  # as that of ssl does
            return wrapped[0]

    monkeypatch.setattr("openloop.load.exchange.tls_context", lambda _: Context())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        place = Place("", "", Address(socket.AF_INET, host, port, "name"))
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with contextlib.suppress(OSError, WireError):
            exchange(place, b"GET / HTTP/1.1\r\n\r\n", 5.0)
        thread.join()
    assert wrapped[0].fileno() == -1
