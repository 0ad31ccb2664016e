"""The proxy itself: clients on one side, replicas on the other, one event loop."""

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
from aiohttp import web

from openloop import __version__
from openloop.clock import raise_file_limit
from openloop.errors import OpenloopError
from openloop.persistence import SPARE
from openloop.proxy.attempt import Attempt, Post
from openloop.proxy.caches import Caches
from openloop.proxy.config import ProxySpec, read_proxy
from openloop.proxy.door import BAD, Door, Refusal, said
from openloop.proxy.fleet import Fleet
from openloop.proxy.hearing import PATHS, Ask, read_ask
from openloop.proxy.ledger import Flight, Judge, Ledger, Meters
from openloop.proxy.line import KEPT_S, Lines
from openloop.records import Manifest, RunWriter
from openloop.routing import session_name
from openloop.seeds import stream
from openloop.slo import TTFT
from openloop.units import parse_seconds

CONNECT_S = 10.0
SWITCH_S = 0.0005  # so long a token may wait for the thread that writes rows
LONGEST_LABEL = 64
HOPS = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "proxy-authenticate"}
NOT_SENT = HOPS | {"host", "content-length", "expect", "accept-encoding", "cookie", "proxy-authorization"}
NOT_RETURNED = HOPS | {"set-cookie", "server", "date"}

Tell = Callable[[str], None]


class Errand(NamedTuple):
    flight: Flight
    ask: Ask
    post: Post


class Proxy:
    """Between `start` and `stop` it serves; `judge` says which answers are accepted."""

    def __init__(self, spec: ProxySpec, judge: Judge, tell: Tell = lambda _: None) -> None:
        self.spec = spec
        self.objectives = spec.objectives()
        self.door = Door(self, spec)
        self.meters = Meters(self.objectives.classes)
        writer = RunWriter(spec.run, _manifest(spec)) if spec.run else None
        self.ledger = Ledger(writer, self.meters, judge, tell)
        self.fleet = Fleet(spec, self.ledger.start_ns, self.ledger.decide if writer else None, self.ledger.event)
        self.caches = Caches(self.fleet, tell)
        self.draining = False
        self.port = 0
        self._retry, self._hedge = spec.retries(), spec.hedges()
        self._not_sent = NOT_SENT | ({"authorization"} if spec.token_env else set())
        self._timeout_s = parse_seconds(spec.timeout)
        self._random = stream(0, "retries")
        self._retried = self._copied = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        raise_file_limit()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._lines = Lines(self._session)
        self.port = await self.door.open()
        self._tasks += [asyncio.create_task(each) for each in (self.ledger.run(), self.caches.listen())]
        if self.spec.health is not None:
            checks = self.fleet.check_health(self._session, self.spec.health, parse_seconds(self.spec.health_every))
            self._tasks.append(asyncio.create_task(checks))

    async def drain(self) -> None:
        """Nothing new; what is in flight has its time."""
        self.draining = True
        until = time.monotonic() + parse_seconds(self.spec.drain)
        while self.ledger.in_flight and time.monotonic() < until:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self.draining = True
        await self.door.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lines.close()
        await self._session.close()
        await self.ledger.finish()

    def begin(self, request: web.BaseRequest) -> Errand | Exception | None:
        """What is here as a whole is sent on at once; None: that needs waiting. What goes wrong is for `handle`."""
        arrived_ns = time.monotonic_ns()
        if request.method != "POST" or request.path not in PATHS or self._hedge is not None or self.caches.heard:
            return None
        if not request.content_length or not request.content.is_eof():
            return None
        errand = None
        try:
            self.door.check(request)
            self.door.check_body(request)
            errand = self._take(request, request.content.read_nowait(), arrived_ns)
            attempt = self._send(errand.flight, errand.ask, "first")
            if attempt.ended_ns is None:
                attempt.send(self._lines, errand.post)
        except Exception as error:
            self.drop(errand)
            return error
        return errand

    def refuse(self, why: str) -> None:
        self.meters.refused[why] += 1

    def drop(self, errand: Errand | Exception | None) -> None:
        """Nobody will wait for it."""
        if isinstance(errand, Errand):
            self._end(errand.flight)

    async def handle(self, request: web.BaseRequest, errand: Errand | Exception | None) -> web.StreamResponse:
        arrived_ns = time.monotonic_ns()
        try:
            if isinstance(errand, Exception):
                raise errand
            return await (self._answer(request, arrived_ns) if errand is None else self._serve(request, errand))
        except ConnectionError:  # the client went away while it was written to: nobody is there to be told
            raise asyncio.CancelledError from None
        except Refusal as refusal:
            self.refuse(refusal.why)
            response = said(refusal.status, str(refusal))
            response.force_close()
            return response

    async def _answer(self, request: web.BaseRequest, arrived_ns: int) -> web.StreamResponse:
        if request.path == "/health":
            return said(503, "draining") if self.draining else said(200, "well", wrong=False)
        self.door.check(request)
        match request.method, request.path:
            case "GET", "/metrics":
                page = self.meters.page(self.ledger.seconds, self.fleet, self.ledger.in_flight, self.ledger.lost)
                return web.Response(text=page, content_type="text/plain")
            case "GET", "/v1/models":
                return await self._ask_anyone(request)
            case "POST", path if path in PATHS:
                self.door.check_body(request)
                errand = self._take(request, await self.door.read_body(request), arrived_ns)
                return await self._serve(request, errand)
        raise Refusal(404, "unknown path", f"there is nothing at {request.method} {request.path[:100]}")

    async def _ask_anyone(self, request: web.BaseRequest) -> web.StreamResponse:
        """Something that any replica knows."""
        replica = next((each for each, gets in zip(self.fleet.replicas, self.fleet.open, strict=True) if gets), None)
        if replica is None:
            return said(503, "no replica is open")
        timeout = aiohttp.ClientTimeout(total=CONNECT_S)
        headers = replica.signed(self._headers(request))
        try:
            async with self._session.get(replica.base + request.path, headers=headers, timeout=timeout) as reply:
                return web.Response(body=await reply.read(), status=reply.status, content_type=reply.content_type)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return said(502, "the replica does not answer")

    def _headers(self, request: web.BaseRequest) -> dict[str, str]:
        """What a replica gets to see of a client's; our own token is for us."""
        named = {each.strip().lower() for each in request.headers.get("Connection", "").split(",")}
        ours = self._not_sent | named
        kept = {name: value for name, value in request.headers.items() if name.lower() not in ours}
        return {**kept, "Accept-Encoding": "identity"}

    def _take(self, request: web.BaseRequest, body: bytes, arrived_ns: int) -> Errand:
        ask = read_ask(body)
        if ask is None:
            raise Refusal(400, BAD, "the request is no JSON that makes sense")
        names, headers = self.spec.headers, request.headers
        session = headers.get(names.session)
        flight = Flight(
            self.ledger.begin(),
            arrived_ns,
            _label(headers.get(names.workload_class)),
            session_name(session.encode(errors="replace").decode()) if session else None,
            _label(headers.get(names.tenant)),
            ask.most_tokens,
        )
        post = Post(
            request.path_qs,
            body,
            self._headers(request),
            bool(ask.stream),
            self._timeout_s,
            hold=self._retry is not None or self._hedge is not None,
            error_texts=self.spec.error_texts,
        )
        return Errand(flight, ask, post)

    async def _serve(self, request: web.BaseRequest, errand: Errand) -> web.StreamResponse:
        flight, ask, post = errand
        try:
            if not flight.attempts:
                flight.named = await self.caches.name(self._session, ask, post)
            return await self._relay(request, await self._attempt(flight, ask, post))
        finally:
            self._end(flight)

    def _end(self, flight: Flight) -> None:
        if not flight.attempts:  # who gets it was not decided yet
            flight.attempts.append(Attempt(0, "first", self.fleet, None))
        gone = ("error", "the proxy was stopped") if self.door.closing else ("cancelled", "the client went away")
        for each in flight.attempts:  # what had failed before is no less a failure
            each.close(*(gone if each.good else (each.outcome.status, each.outcome.error or "")))
        self.ledger.end(flight)

    async def _attempt(self, flight: Flight, ask: Ask, post: Post) -> Attempt:
        """Until one has begun to answer, or another is not worth it."""
        kind = "first"
        while True:
            attempt = await self._wave(flight, ask, post, kind)
            tries = sum(each.kind != "hedge" for each in flight.attempts)
            wait_s = None if attempt.good else self._wait_s(attempt, tries)
            if wait_s is None:
                return attempt
            attempt.close(attempt.outcome.status, attempt.outcome.error or "")
            kind = "retry"
            await asyncio.sleep(wait_s)

    def _wait_s(self, attempt: Attempt, tries: int) -> float | None:
        """Before another attempt; None: that was the last. Who was not even reached is passed over at once, and so is a
        connection that was closed while it rested: the next is a fresh one, which cannot be."""
        retry, outcome = self._retry, attempt.outcome
        if attempt.stale or (attempt.unreached and tries < 2 * len(self.fleet.replicas)):
            return 0.0
        if retry is None or tries > retry.most or not retry.applies(outcome.status, outcome.http_status):
            return None
        if not retry.affords(self._retried, self.ledger.due):
            return None
        self._retried += 1
        return retry.wait_s(tries, self._random)

    async def _wave(self, flight: Flight, ask: Ask, post: Post, kind: str) -> Attempt:
        """An attempt, and a copy of it where it is late: whichever begins to answer first."""
        begun = kind == "first" and flight.attempts
        attempt = flight.attempts[0] if begun else self._send(flight, ask, kind)
        after = self.fleet.hedge_after(self._hedge) if self._hedge else None
        if attempt.ended_ns is not None:
            return attempt
        if after is None:
            await attempt.begin(self._lines, post)
            return attempt
        running = {asyncio.create_task(attempt.begin(self._lines, post)): attempt}
        failed: list[Attempt] = []
        try:
            done, _ = await asyncio.wait(running, timeout=after)
            most = self._hedge.budget * self.ledger.due + SPARE if self._hedge else 0.0
            if not done and sum(self.fleet.open) > 1 and self._copied < most:
                self._copied += 1
                copy = self._send(flight, ask, "hedge")
                if copy.ended_ns is None:
                    running[asyncio.create_task(copy.begin(self._lines, post))] = copy
            while running:
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    attempt = running.pop(task)
                    if attempt.good:
                        return attempt
                    failed.append(attempt)
            return attempt
        finally:
            for other in failed:
                if other is not attempt:
                    other.close(other.outcome.status, other.outcome.error or "")
            answered = attempt.good and attempt not in running.values()
            for task, other in running.items():
                task.cancel()
                if answered:
                    other.close("cancelled", "a copy of it was answered first")

    def _send(self, flight: Flight, ask: Ask, kind: str) -> Attempt:
        """To whom the policy says, and not to whom it went before; one that nobody gets is over at once."""
        slo = self.objectives.of(flight.workload_class)
        within = next((gate.within_s for gate in slo.gates if isinstance(gate, TTFT)), float("inf"))
        last = flight.attempts[-1] if flight.attempts else None
        before, fresh = (last.routed, last.stale) if last else (None, False)
        routed, why = None, "the proxy is draining"
        if not self.draining:
            deadline = (flight.due_ns - self.ledger.start_ns) / 1e9 + within
            routed, why = self.fleet.send(ask, flight.named, flight.session, deadline, before.place if before else None)
        attempt = Attempt(len(flight.attempts), kind, self.fleet, routed, fresh)
        flight.attempts.append(attempt)
        if routed is None:
            attempt.close("shed", why)
        return attempt

    async def _relay(self, request: web.BaseRequest, attempt: Attempt) -> web.StreamResponse:
        """Pass the reply on as it comes. One that breaks off is broken off for the client, too."""
        line, outcome = attempt.line, attempt.outcome
        if (
            line is None
            or not line.status
            or (attempt.ended_ns is not None and not attempt.whole and outcome.http_status == 200)
        ):
            status = {"shed": 503 if attempt.routed is None and not any(self.fleet.open) else 429, "timeout": 504}
            return said(503 if self.draining else status.get(outcome.status, 502), outcome.error or "")
        headers = [(name, value) for name, value in line.headers.items() if name.lower() not in NOT_RETURNED]
        response = web.StreamResponse(status=line.status, headers=headers)
        if attempt.replica is not None:
            response.headers["X-Openloop-Replica"] = attempt.replica.name
        writer = await response.prepare(request)
        visitor, transport = request.protocol, request.transport
        if writer is None or transport is None:
            raise ConnectionResetError
        in_chunks = "Transfer-Encoding" in response.headers
        if not in_chunks and "Content-Length" not in response.headers:
            response.force_close()  # to a client of HTTP/1.0 nothing else says where it ends

        def pass_on(data: bytes, chunk: bytes) -> bool:
            transport.write((chunk or b"%x\r\n%b\r\n" % (len(data), data)) if in_chunks else data)
            return visitor.writing_paused

        try:
            async with asyncio.timeout_at(attempt.until):  # also for a client that does not read
                await attempt.pass_on(pass_on, writer.drain)
        except TimeoutError:
            attempt.give_up()
        if attempt.whole:
            await response.write_eof()
        elif request.transport is not None:
            request.transport.close()
        return response


def _label(text: str | None) -> str | None:
    """A header as a word in the records: short, and of plain letters."""
    return text[:LONGEST_LABEL] if text and text.isascii() and text.isprintable() else None


def _manifest(spec: ProxySpec) -> Manifest:
    policies = [str(each) for each in (spec.retries(), spec.hedges()) if each]
    flags = msgspec.structs.replace(spec, run=None)  # where it is kept is no fact of what was measured
    return Manifest(
        source="proxy",
        started_at=datetime.now(UTC).isoformat(),
        target=", ".join(each.url for each in spec.members()),
        engine="openloop proxy",
        engine_version=__version__,
        engine_flags=msgspec.json.encode(flags).decode(),  # it names variables, and holds no secret
        model=spec.model,
        hardware=spec.hardware,
        replicas=len(spec.replicas),
        workload="live traffic",
        arrivals="as they came",
        retry_policy="; ".join(policies) or None,
        slo=spec.slo,
        stamps="the proxy, when it read them",
    )


async def serve_proxy(path: Path, spec: ProxySpec, judge: Judge, tell: Tell) -> Proxy:
    """Until it is told to stop. TERM and INT drain it, a second one stops it; HUP reads again who is to be drained."""
    proxy = Proxy(spec, judge, tell)
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    ending: list[asyncio.Task[None]] = []

    def end() -> None:
        if ending:
            ending[0].cancel()
        else:
            tell("draining: what is in flight is served to its end")
            ending.append(asyncio.create_task(proxy.drain()))
            ending[0].add_done_callback(lambda _: asked.set())

    def reread() -> None:
        try:
            proxy.fleet.drain({each.called(): each.drain for each in read_proxy(path).members()})
        except OpenloopError as error:
            tell(f"nothing is changed: {error}")

    for number, act in ((signal.SIGTERM, end), (signal.SIGINT, end), (signal.SIGHUP, reread)):
        loop.add_signal_handler(number, act)
    try:
        await proxy.start()
        host, _ = spec.address()
        tell(f"listening on http://{f'[{host}]' if ':' in host else host}:{proxy.port}")
        if not proxy.door.guarded:
            tell("note: others can reach it, and it asks for no token (token_env)")
        gc.freeze()
        sys.setswitchinterval(SWITCH_S)
        await asked.wait()
    finally:
        await proxy.stop()
    return proxy
