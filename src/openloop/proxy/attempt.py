"""One attempt at a request: sent to a replica, and its reply as far as it came."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp

from openloop.proxy.fleet import Fleet, Replica
from openloop.proxy.hearing import Hearing
from openloop.proxy.line import BROKEN, Hear, Line, Lines
from openloop.routing import Routed
from openloop.said import SHED, Outcome, fail, message, without_keys, without_secrets

MOST_HELD = 256 << 10  # bytes before the first token
LARGEST_REFUSAL = 4 << 20
TROUBLE = (*BROKEN, TimeoutError, OSError, ValueError)


class Post(NamedTuple):
    """What is sent, to whichever replica, and how its reply is taken."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    streamed: bool
    timeout_s: float
    hold: bool  # nothing is passed on before the first token, so that another attempt can take over
    error_texts: bool


@dataclass(eq=False)
class Attempt:
    number: int
    kind: str
    fleet: Fleet
    routed: Routed | None
    fresh: bool = False  # it is to have a connection of its own
    outcome: Outcome = field(default_factory=Outcome)
    sent_ns: int | None = None
    ended_ns: int | None = None
    line: Line | None = None
    until: float = 0.0  # by the clock of the event loop
    whole: bool = False  # the reply came to its end
    unreached: bool = False  # there was no connection: the replica has done nothing for it
    stale: bool = False  # its connection had rested, and was closed without a byte of a reply
    _held: list[bytes] = field(default_factory=list)  # came, and is not passed on yet
    _hearing: Hearing | None = None
    _waits: bool = True
    _streams: bool = True  # so it was asked to
    _sent: Mapping[str, str] = field(default_factory=dict)  # headers

    @property
    def good(self) -> bool:
        return self.outcome.status == "ok"

    @property
    def replica(self) -> Replica | None:
        return self.fleet.replicas[self.routed.place] if self.routed else None

    def send(self, lines: Lines, post: Post) -> None:
        """At once, if a connection rests."""
        assert self.replica is not None
        self.until, self._streams = asyncio.get_running_loop().time() + post.timeout_s, post.streamed
        self.sent_ns = time.monotonic_ns()
        self.line = None if self.fresh else lines.take(self.replica.base)
        if self.line is not None:
            self._write(self.line, post)

    def _write(self, line: Line, post: Post) -> None:
        assert self.replica is not None
        self._sent = self.replica.signed(post.headers)
        try:
            line.post(post.path, self._sent, post.body)
        except ValueError as error:
            self._fail(error)

    async def begin(self, lines: Lines, post: Post) -> None:
        """Send, if that is not done, and wait for the head of the reply, or for the first token."""
        replica = self.replica
        assert replica is not None
        if self.sent_ns is None:
            self.send(lines, post)
        rested = self.line is not None
        try:
            async with asyncio.timeout_at(self.until):
                if self.line is None:
                    self.line = await lines.open(replica.base)
                    self._write(self.line, post)
                if self.ended_ns is not None:
                    return
                line = self.line
                await line.wait_for_head()
                self.outcome.http_status = line.status
                if not 200 <= line.status < 300:
                    await self._read_refusal(line, post.error_texts)
                    return
                kind = line.headers.get("Content-Type", "").lower()
                self._hearing = Hearing("event-stream" in kind, self.outcome)
                if post.streamed and not self._hearing.streamed:
                    self._held.append(self._took(await line.read()))
                if post.streamed and not self._hearing.streamed:
                    fail(self.outcome, "a streaming request was answered with no stream")
                while post.hold and self.good and not self._hearing.spoken and sum(map(len, self._held)) < MOST_HELD:
                    data = self._took(await line.read())
                    if not data:
                        break
                    self._held.append(data)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self.unreached = True
            self.fleet.note(replica, False)
            self._fail(error)
        except TROUBLE as error:
            closed = isinstance(error, aiohttp.ClientConnectionError) and self.line is not None and self.line.silent
            soon = time.monotonic_ns() - (self.sent_ns or 0) <= lines.reach_ns(replica.base)
            self.stale = rested and closed and soon
            self._fail(error)

    async def pass_on(self, pass_on: Hear, drain: Callable[[], Awaitable[None]]) -> None:
        """What is held, and then what comes, to the end."""
        for data in filter(None, self._held):
            pass_on(data, b"")
        self._held = []
        if self.line is None or self.ended_ns is not None:
            return

        def hear(data: bytes, chunk: bytes) -> bool:
            enough = pass_on(data, chunk)
            self._took(data)
            return enough

        try:
            await self.line.pour(hear, drain)
            self._took(b"")
        except TROUBLE as error:
            self._fail(error)

    def _took(self, data: bytes) -> bytes:
        """What has come since; nothing: that was all."""
        assert self._hearing is not None
        now = time.monotonic_ns()
        if data:
            self._hearing.feed(data, now)
            if self._waits and self._hearing.spoken:
                assert self.routed is not None
                assert self.sent_ns is not None
                self._waits = False
                self.fleet.answered(self.routed, (now - self.sent_ns) / 1e9)
        else:
            self.whole = True
            self.outcome = self._hearing.close()
            if self._hearing.streamed and not self._streams and self.good:
                fail(self.outcome, "a request for no stream was answered with one")
            self._end(now)
        return data

    async def _read_refusal(self, line: Line, error_texts: bool) -> None:
        body = b""
        while len(body) < LARGEST_REFUSAL and (more := await line.read()):
            self.outcome.first_any_ns = self.outcome.first_any_ns or time.monotonic_ns()
            body += more
        told = f": {without_secrets(message(body), self._sent)}" if error_texts else ""
        fail(self.outcome, f"status {line.status}{told}", "shed" if line.status in SHED else "error")
        self._held, self.whole = [body], line.over and line.error is None
        self._end(time.monotonic_ns())

    def _fail(self, error: Exception) -> None:
        if isinstance(error, TimeoutError) and not self.unreached:
            self.give_up()
            return
        what = "the stream was cut" if self.outcome.event_ns else "there was no answer"
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else type(error).__name__
        if isinstance(error, aiohttp.ServerDisconnectedError):
            why = "the replica closed the connection"
        self.close("error", f"{what}: {why}")

    def give_up(self) -> None:
        self.close("timeout", "the attempt took too long")

    def close(self, status: str, why: str) -> None:
        """Stop here; the replica notices. What was over before stays as it was."""
        if self.ended_ns is not None:
            return
        if self._hearing is not None:
            self.outcome = self._hearing.settled()
        fail(self.outcome, why, status)
        self._end(time.monotonic_ns())

    def _end(self, now_ns: int) -> None:
        self.ended_ns = now_ns
        if self.outcome.finish_reason:
            self.outcome.finish_reason = without_keys(self.outcome.finish_reason, self._sent)
        if self.line is not None:
            self.line.close()
        if self.routed is not None:
            self.fleet.ended(self.routed, self._waits)
