"""Replies, however they are cut and wherever they end, and connections that are used again only when they may be."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from openloop.proxy import line
from openloop.proxy.line import BROKEN, Line, Lines
from tests.proxy.fakes import CHAT, DONE, Fake, closed, last, token, until, world

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
BODY = b"one, two, three, four"


def heard(blocks: list[bytes], *, closes: bool = False) -> tuple[bytes, bytes, Exception | None, Mock]:
    """The body as it was heard, and as a client gets it in chunks; what went wrong; what became of the connection."""
    body, passed, connection = [], [], Mock()

    def hear(data: bytes, chunk: bytes) -> bool:
        body.append(data)
        passed.append(chunk or b"%x\r\n%b\r\n" % (len(data), data))
        return False

    async def main() -> Exception | None:
        connection.transport.is_closing.return_value = False
        connection.transport.get_write_buffer_size.return_value = 0
        line = Line(connection, URL("http://replica"), lambda _: connection.release())

        async def ask() -> None:
            line.post("/", {}, b"")
            await line.wait_for_head()
            await line.pour(hear, Mock())

        asking = asyncio.create_task(ask())
        for block in blocks:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if not line.over:
                line.data_received(block)
        if closes:
            line.connection_lost(None)
        try:
            await asyncio.wait_for(asking, 5)
        except BROKEN as error:
            return error
        return None

    error = asyncio.run(main())
    return b"".join(body), b"".join(passed), error, connection


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(each % len(data) for each in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


CHUNKS = b"5\r\none, \r\n0A;name=value\r\ntwo, three\r\n6 \r\n, four\r\n0\r\nTrailer: x\r\n\r\n"
WHOLE = {
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "a length": HEAD + b"Content-Length: 21\r\n\r\n" + BODY,
    "another before it": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 21\r\n\r\n" + BODY,
    "plain line ends": HEAD.replace(b"\r", b"") + b"Content-Length: 21\n\n" + BODY,
}


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_however_a_reply_is_cut_it_is_heard_whole_and_its_connection_is_kept(data: bytes, cuts: list[int]) -> None:
    body, _, error, connection = heard(cut(data, cuts))
    assert (body, error) == (BODY, None)
    assert (connection.release.call_count, connection.close.call_count) == (1, 0)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12), parts=st.lists(st.binary(min_size=1, max_size=40)))
def test_what_a_client_gets_is_in_chunks_again(cuts: list[int], parts: list[bytes]) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in parts)
    start = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    body, passed, error, _ = heard(cut(start + chunks + b"0\r\n\r\n", cuts))
    assert (body, error) == (b"".join(parts), None)
    again, _, error, _ = heard([start + passed + b"0\r\n\r\n"])
    assert (again, error) == (b"".join(parts), None)


def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    body, _, error, connection = heard([HEAD + b"\r\n" + BODY], closes=True)
    assert (body, error) == (BODY, None)
    assert not connection.release.called


@pytest.mark.parametrize(
    "data",
    [
        WHOLE["chunks"] + b"HTTP/1.1 200 OK\r\n\r\n",
        WHOLE["a length"] + b"!",
        WHOLE["a length"].replace(b"HTTP/1.1", b"HTTP/1.0"),
        WHOLE["a length"].replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n"),
    ],
)
def test_a_connection_that_says_more_or_closes_is_not_kept(data: bytes) -> None:
    body, _, error, connection = heard([data])
    assert (body, error) == (BODY, None)
    assert (connection.release.called, connection.close.called) == (False, True)


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN_OFF = {
    "no HTTP": [b"nonsense"],
    "an endless head": [b"HTTP/1.1 200 OK\r\n", *[b"x" * 8000] * 10],
    "an endless line": [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 9000 + b"\r\n\r\n"],
    "two lengths": [HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n"],
    "a length and chunks": [HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"],
    "another protocol": [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
    "a size with a sign": [CHUNKED + b"+5\r\nhello\r\n"],
    "an endless size": [CHUNKED + b"5;" + b"x" * 5000],
    "a chunk that is longer": [CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n"],
    "a chunk inside another": [CHUNKED + b"9\r\n", b"1\r\na\r\n", b"1\r\na\r\n"],
}


@pytest.mark.parametrize("blocks", BROKEN_OFF.values(), ids=BROKEN_OFF)
def test_what_is_no_reply_is_broken_off(blocks: list[bytes]) -> None:
    *_, error, connection = heard(blocks)
    assert error is not None
    assert (connection.release.called, connection.close.called) == (False, True)


@pytest.mark.parametrize("data", [HEAD, CHUNKED, CHUNKED + b"5\r\nhel", CHUNKED + b"0\r\n", WHOLE["a length"][:-1]])
def test_a_connection_that_is_lost_is_no_end(data: bytes) -> None:
    assert heard([data], closes=True)[2] is not None


async def floods(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    """Twenty megabytes, as fast as they are taken."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(2000):
        await response.write(token(f"{number} " + "x" * 10_000))
        fake.left = -number
    await response.write(last(2000) + DONE)
    return response


def test_a_client_that_does_not_read_holds_up_its_replica_and_then_gets_everything(tmp_path: Path) -> None:
    async def main() -> dict[str, Any]:
        async with world(tmp_path, floods) as w:
            reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port, limit=1 << 16)
            body = b'{"stream": true, "messages": []}'
            head = f"POST {CHAT} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await until(lambda: w.fakes[0].left < 0)
            stood = 1
            while stood != (stood := w.fakes[0].left):
                await asyncio.sleep(0.3)
            assert stood > -1900  # what is under way is in buffers of sockets and of ours
            got = await reader.read(-1)
            await closed(writer)
            _, _, stream = got.partition(b"\r\n\r\n")
            assert stream == b"".join(token(f"{n} " + "x" * 10_000) for n in range(2000)) + last(2000) + DONE
            (row,) = [row for batch in (await w.run()).batches() for row in batch.to_pylist()]
            return dict(row)

    row = asyncio.run(main())
    assert (row["status"], row["output_tokens"]) == ("ok", 2000)


def test_connections_are_used_again_unless_they_spoke_unasked(tmp_path: Path) -> None:
    """And a key of the replica's stands in place of the client's, however that spells it."""
    seen: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                seen.append(await reader.readuntil(b"\r\n\r\n"))
                await reader.readuntil(b"]}")
                events = token("one") + last(1) + DONE
                writer.write(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        other: Callable[..., Awaitable[Any]] = floods
        async with world(tmp_path, other, extra_replicas=[{"url": url, "name": "z"}], health=None) as w:
            w.proxy.fleet.drain({"a": True, "z": False})
            w.proxy.fleet.replicas[1].key = "secret"
            for _ in range(3):
                assert (await w.ask(authorization="Bearer mine"))[0] == 200
            assert len(writers) == 1
            assert all(head.lower().count(b"authorization") == 1 and b"Bearer secret" in head for head in seen)
            writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray")
            await asyncio.sleep(0.1)
            assert b"stray" not in (await w.ask())[1]
            assert len(writers) == 2
        for each in writers:
            await closed(each)
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("answered", [1, 0])
def test_a_connection_that_was_closed_while_it_rested_costs_an_attempt_and_not_the_request(
    answered: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many requests of a connection are answered, and the next is not; a fresh one that is closed is a refusal."""
    monkeypatch.setattr(line, "STALE_NS", 20_000_000_000)  # this machine may be busy
    monkeypatch.setattr(line, "KEPT_S", 3600.0)
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        for _ in range(answered):
            await reader.readuntil(b"]}")
            events = token("one") + last(1) + DONE
            writer.write(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(events), events))
        await reader.readuntil(b"]}")
        writer.close()

    async def main() -> list[tuple[int, str, str]]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with world(tmp_path, extra_replicas=[url], health=None) as w:
            for _ in range(2):
                assert (await w.ask())[0] == (200 if answered else 502)
            rows = [row for batch in (await w.run()).batches() for row in batch.to_pylist()]
        for each in writers:
            await closed(each)
        server.close()
        whys = {row["error"] for row in rows if row["status"] == "error"}
        assert whys == {"there was no answer: the replica closed the connection"}
        return [(row["request_id"], row["kind"], row["status"]) for row in rows]

    asked = [(0, "first", "ok"), (1, "first", "error"), (1, "retry", "ok")]
    assert asyncio.run(main()) == (asked if answered else [(0, "first", "error"), (1, "first", "error")])


def test_far_away_a_closed_connection_shows_later() -> None:
    async def main() -> list[int]:
        async def connect(*_: object) -> Mock:
            await asyncio.sleep(0.05)
            return Mock(protocol=Mock(should_close=False))

        session = Mock()
        session.connector.connect = connect
        lines = Lines(session)
        before = lines.reach_ns("http://replica")
        lines._requests["http://replica"] = Mock()
        await lines.open("http://replica")
        return [before, lines.reach_ns("http://replica")]

    before, after = asyncio.run(main())
    assert before == line.STALE_NS
    assert after >= 100_000_000
