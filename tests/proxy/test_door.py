"""Whom the proxy refuses, and that others do not notice."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from openloop.errors import SpecError
from openloop.proxy import Proxy, door, read_proxy
from openloop.records import Run
from tests.proxy.fakes import DONE, Fake, World, closed, last, three_tokens, token, until, world

WHOLE = token("one") + token("two") + token("three") + last(3) + DONE


async def raw(w: World, *pieces: bytes, wait_s: float = 0.0) -> bytes:
    """What comes back for bytes that are sent as they are."""
    reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(wait_s)
    async with asyncio.timeout(20):
        found = await reader.read()
    await closed(writer)
    return found


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BAD: dict[str, tuple[list[bytes], bytes]] = {
    "a head that never ends": ([b"POST /v1/chat", b"/completions HTTP/1.1\r\nHost: x"], b"408"),
    "a body that never ends": ([HEAD + b"Content-Length: 100\r\n\r\n{"], b"408"),
    "a body that says it is too large": ([HEAD + b"Content-Length: 99999999\r\n\r\n"], b"413"),
    "a body that is too large": ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n2000\r\n" + b"x" * 8192], b"413"),
    "a header that is too large": ([HEAD + b"X-Long: " + b"x" * 5000 + b"\r\n\r\n"], b"400"),
    "too many headers": ([HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(500)) + b"\r\n"], b"400"),
    "a header with a control character": ([HEAD + b"X-Prompt: my secret\x00prompt\r\n\r\n"], b"400"),
    "a length that is none": ([HEAD + b"Content-Length: abc\r\n\r\n"], b"400"),
    "no HTTP": ([b"\x16\x03\x01 hello\r\n\r\n"], b"400"),
    "no JSON": ([HEAD + b"Connection: close\r\nContent-Length: 3\r\n\r\n{{{"], b"400"),
    "a foreign name": ([HEAD.replace(b"localhost", b"evil.example") + b"Content-Length: 2\r\n\r\n{}"], b"403"),
    "an unknown path": ([b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n"], b"404"),
    "a packed body": ([HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"], b"415"),
}


def test_bad_requests_get_a_status_and_are_counted_while_other_traffic_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        limits = {"largest_body": 4096, "largest_header": 2048, "slowest": "300ms"}
        async with world(tmp_path, three_tokens, **limits) as w:
            good = asyncio.create_task(w.ask())
            await until(lambda: w.proxy.fleet.replicas[0].requests == 1)
            found = await asyncio.gather(*(raw(w, *pieces) for pieces, _ in BAD.values()))
            for what, reply, (_, status) in zip(BAD, found, BAD.values(), strict=True):
                assert reply.split(b" ")[1:2] == [status], what
            w.fakes[0].go.set()
            assert await good == (200, WHOLE)
            assert await w.ask() == (200, WHOLE)
            assert len(w.fakes[0].asked) == 2
            assert sum(w.proxy.meters.refused.values()) == len(BAD)

    asyncio.run(main())
    assert caplog.text == ""


def test_what_fails_in_the_proxy_is_a_line_without_the_words_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("Bearer sk-verysecret")

    monkeypatch.setattr(Proxy, "_take", fail)

    async def main() -> None:
        async with world(tmp_path, three_tokens) as w:
            status, body = await w.ask()
            assert (status, b"the proxy failed" in body) == (500, True)

    asyncio.run(main())
    (record,) = caplog.records
    assert record.getMessage().startswith("a request failed in the proxy: ValueError in test_door.py, line ")
    assert "sk-verysecret" not in caplog.text


def asked(number: int, body: bytes = b'{"stream":true,"messages":[]}', more: bytes = b"") -> bytes:
    return HEAD + b"X-Number: %d\r\n%bContent-Length: %d\r\n\r\n%b" % (number, more, len(body), body)


def test_requests_that_do_not_wait_for_answers_are_answered_in_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            found = await raw(w, asked(0) + asked(1), asked(2), asked(3, more=b"Connection: close\r\n"))
            assert found.count(b"HTTP/1.1 200 OK") == found.count(b"[DONE]") == 4
            assert [head["X-Number"] for head in w.fakes[0].asked] == ["0", "1", "2", "3"]
            assert w.proxy.ledger.due == 4

    asyncio.run(main())


def test_what_comes_after_a_refusal_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = door._Visitor.finish_response

    async def finish_late(self: door._Visitor, *given: Any) -> Any:
        self.data_received(asked(1))
        return await finish(self, *given)

    monkeypatch.setattr(door._Visitor, "finish_response", finish_late)

    async def main() -> None:
        async with world(tmp_path, three_tokens) as w:
            assert (await raw(w, asked(0, body=b"{{{"))).count(b"HTTP/1.1") == 1
            assert (w.proxy.ledger.due, w.fakes[0].asked) == (0, [])

    asyncio.run(main())


def test_who_says_nothing_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "IDLE_S", 0.1)

    async def main() -> None:
        async with world(tmp_path, three_tokens) as w:
            w.fakes[0].go.set()
            assert await raw(w) == b""
            assert await w.ask() == (200, WHOLE)

    asyncio.run(main())


def test_an_address_that_is_taken_leaves_no_run_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = {"replicas": ["http://127.0.0.1:9"], "listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(SpecError, match="already in use; choose another address"):
            Proxy(read_proxy({**spec, "run": str(tmp_path / "run")}), lambda _: ([], []))  # type: ignore[arg-type,return-value]
    assert not (tmp_path / "run").exists()


def test_a_request_that_comes_in_pieces_but_in_time_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, three_tokens, slowest="10s") as w:
            w.fakes[0].go.set()
            body = b'{"stream": true, "messages": []}'
            request = (
                HEAD + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            found = await raw(w, *(request[n : n + 20] for n in range(0, len(request), 20)), wait_s=0.001)
            assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")

    asyncio.run(main())


def test_a_token_is_asked_for_and_stays_here_and_keys_go_to_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_TOKEN", "sesame-opens")
    monkeypatch.setenv("REPLICA_KEY", "upstream-key")

    async def main() -> None:
        async with world(tmp_path, three_tokens, token_env="PROXY_TOKEN") as w:
            w.fakes[0].go.set()
            assert (await w.ask())[0] == 401
            assert (await w.ask(Authorization="Bearer sesame-opent"))[0] == 401
            async with w.session.get(w.url + "/metrics") as reply:
                assert reply.status == 401
            async with w.session.get(w.url + "/health") as reply:
                assert reply.status == 200
            assert (await w.ask(Authorization="Bearer sesame-opens"))[0] == 200
            assert "Authorization" not in w.fakes[0].asked[0]
            w.proxy.fleet.replicas[0].key = os.environ["REPLICA_KEY"]
            assert (await w.ask(Authorization="Bearer sesame-opens"))[0] == 200
            assert w.fakes[0].asked[1]["Authorization"] == "Bearer upstream-key"
            await w.proxy.stop()

    asyncio.run(main())
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert b"sesame" not in kept
    assert b"upstream-key" not in kept


def test_a_key_that_a_replica_repeats_is_not_kept_with_its_words(tmp_path: Path) -> None:
    async def repeats(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=401, text=f"{'p' * 190} {request.headers['Authorization']}")

    async def main() -> Run:
        async with world(tmp_path, repeats, error_texts=True) as w:
            assert (await w.ask(Authorization="Bearer sk-verysecret-0123456789"))[0] == 401
            return await w.run()

    (row,) = [row for batch in asyncio.run(main()).batches() for row in batch.to_pylist()]
    assert row["error"] == f"status 401: {'p' * 190} ..."


def test_nor_in_a_finish_reason(tmp_path: Path) -> None:
    async def repeats(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
        choice = {"message": {"content": "hi"}, "finish_reason": f"stop {request.headers['Authorization']}"}
        return web.json_response({"choices": [choice]})

    async def main() -> Run:
        async with world(tmp_path, repeats) as w:
            assert (await w.ask(stream=False, Authorization="Bearer sk-verysecret-0123456789"))[0] == 200
            return await w.run()

    (row,) = [row for batch in asyncio.run(main()).batches() for row in batch.to_pylist()]
    assert row["finish_reason"] == "stop Bearer ..."


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


MALFORMED: dict[str, bytes] = {
    "no HTTP at all": b"\x00\x01\x02 nonsense\r\n\r\n" + b"z" * 100_000,
    "a chunk without a length": STREAM + chunk(token("one")) + b"zz\r\n" + token("two"),
    "a stream that stops": STREAM + chunk(token("one")),
    "events that are no JSON": STREAM + chunk(b"data: {{garbage\n\n") * 3 + b"0\r\n\r\n",
    "another reply behind the first": STREAM + chunk(WHOLE) + b"0\r\n\r\n" + STREAM + chunk(token("stray")),
    "an event that never ends": STREAM + chunk(b"data: " + b"x" * (5 << 20)) + b"0\r\n\r\n",
    "half an event": STREAM + chunk(token("one")[:-9]) + b"0\r\n\r\n",
    "headers of a smuggler": b"HTTP/1.1 200 OK\r\nX-A: b\r\n\x0b: c\r\nContent-Length: 0\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("how", [{}, {"retry": "retry:most=1,base=1ms"}], ids=["plain", "held"])
def test_a_malformed_stream_never_reaches_another_client(how: dict[str, str], tmp_path: Path) -> None:
    """Good and bad ones at the same time, over connections that are kept."""

    def bad(data: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(data)
                await writer.drain()
            await closed(writer)

        return answer

    async def main() -> list[str]:
        servers = [await asyncio.start_server(bad(data), "127.0.0.1", 0) for data in MALFORMED.values()]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        others = [{"url": f"http://127.0.0.1:{port}", "name": f"bad{n}"} for n, port in enumerate(ports)]
        async with world(tmp_path, three_tokens, extra_replicas=others, routing="round-robin", health=None, **how) as w:
            w.fakes[0].go.set()

            async def ask() -> tuple[str, bytes]:
                try:
                    async with w.post() as reply:
                        return reply.headers.get("X-Openloop-Replica", ""), await reply.read()
                except aiohttp.ClientError:
                    return "broken", b""

            found = await asyncio.gather(*(ask() for _ in range(5 * (1 + len(MALFORMED)))))
            good = [body for who, body in found if who == "a"]
            assert len(good) >= 5
            assert set(good) == {WHOLE}
            assert not any(b"stray" in body for _, body in found)
            run = await w.run()
        for server in servers:
            server.close()
        return [row["status"] for batch in run.batches() for row in batch.to_pylist()]

    found = asyncio.run(main())
    assert set(found) == {"ok", "error"}
    assert found.count("error") >= 5 * (len(MALFORMED) - 1)
