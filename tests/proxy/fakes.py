"""Replicas that do as they are told, and a proxy in front of them, all in one event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from openloop.proxy import Proxy, read_proxy
from openloop.records import Run, open_run
from openloop.score.judged import judge_batch

Handler = Callable[["Fake", web.BaseRequest], Awaitable[web.StreamResponse]]
CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"


def token(word: str) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [{"index": 0, "delta": {"content": word}}]}) + b"\n\n"


def last(tokens: int) -> bytes:
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 4}}
    said = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    return b"data: " + msgspec.json.encode(said) + b"\n\n"


class Fake:
    """A replica; `handler` answers, and what came is remembered."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.well = True
        self.asked: list[dict[str, str]] = []
        self.left = 0  # who went before they had it all
        self.go = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response(status=200 if self.well else 500)
        self.asked.append(dict(request.headers))
        await request.read()
        try:
            return await self.handler(self, request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise


async def three_tokens(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    """The first at once, the others when `go` is set."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(token("one"))
    await fake.go.wait()
    await response.write(token("two") + token("three") + last(3) + DONE)
    return response


async def refuses(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    return web.json_response({"error": {"message": "busy: 'the secret prompt'"}}, status=503)


async def hangs(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def breaks(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    """After the first token."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(token("one"))
    assert request.transport is not None
    request.transport.abort()
    return response


async def fails_and_hangs(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"error": {"message": "out of memory"}}\n\n')
    return await hangs(fake, request)


async def fails_later(fake: Fake, request: web.BaseRequest) -> web.StreamResponse:
    await fake.go.wait()
    return await fails_and_hangs(fake, request)


class World:
    def __init__(self, proxy: Proxy, fakes: list[Fake], session: aiohttp.ClientSession, run: Path) -> None:
        self.proxy, self.fakes, self.session, self.folder = proxy, fakes, session, run
        self.url = f"http://127.0.0.1:{proxy.port}"

    def post(self, prompt: str = "hello", *, stream: bool = True, **headers: Any) -> Any:
        body = {"model": "m", "stream": stream, "max_tokens": 3, "messages": [{"role": "user", "content": prompt}]}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.post(self.url + CHAT, json=body, headers=names)

    async def ask(self, prompt: str = "hello", *, stream: bool = True, **headers: Any) -> tuple[int, bytes]:
        async with self.post(prompt, stream=stream, **headers) as reply:
            return reply.status, await reply.read()

    async def metrics(self) -> str:
        await self.proxy.ledger.flush()
        async with self.session.get(self.url + "/metrics") as reply:
            return await reply.text()

    async def run(self) -> Run:
        """Stop, and read what was kept."""
        await self.proxy.stop()
        return open_run(self.folder)


@contextlib.asynccontextmanager
async def world(folder: Path, *handlers: Handler, **keys: Any) -> AsyncIterator[World]:
    fakes, runners = [Fake(each) for each in handlers], []
    for fake in fakes:
        runner = web.ServerRunner(web.Server(fake.answer, handler_cancellation=True))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=60.0)
        await site.start()
        fake.port = site.port
        runners.append(runner)
    told = keys.pop("replica_keys", [{}] * len(fakes))
    members = [{"url": fake.url, "name": name, **more} for fake, name, more in zip(fakes, "abcdef", told, strict=False)]
    more = keys.pop("extra_replicas", [])
    spec = read_proxy({"replicas": [*members, *more], "listen": "127.0.0.1:0", "run": str(folder / "run"), **keys})
    proxy = Proxy(spec, partial(judge_batch, objectives=spec.objectives()))
    await proxy.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield World(proxy, fakes, session, folder / "run")
    finally:
        for runner in runners:
            await runner.cleanup()
        with contextlib.suppress(Exception):
            await proxy.stop()


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that will be."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection before the loop is over: one that is left open is told of in whatever test comes next."""
    writer.close()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            await writer.wait_closed()
