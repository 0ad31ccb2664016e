"""One attempt at a request: sent to a replica, and its reply as far as it came."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from openloop.proxy.fleet import Fleet, Replica
from openloop.proxy.hearing import Hearing
from openloop.routing import Routed
from openloop.said import SHED, Outcome, fail, message

MOST_HELD = 256 << 10  # bytes before the first token
LARGEST_REFUSAL = 64 << 10
TROUBLE = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


@dataclass(frozen=True)
class Post:
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
    outcome: Outcome = field(default_factory=Outcome)
    sent_ns: int | None = None
    ended_ns: int | None = None
    reply: aiohttp.ClientResponse | None = None
    until: float = 0.0  # by the clock of the event loop
    whole: bool = False  # the reply came to its end
    unreached: bool = False  # there was no connection: the replica has done nothing for it
    _held: list[bytes] = field(default_factory=list)  # came, and is not passed on yet
    _hearing: Hearing | None = None
    _waits: bool = True

    @property
    def good(self) -> bool:
        return self.outcome.status == "ok"

    @property
    def replica(self) -> Replica | None:
        return self.fleet.replicas[self.routed.place] if self.routed else None

    async def begin(self, session: aiohttp.ClientSession, post: Post) -> None:
        """Send, and wait for the head of the reply, or for the first token."""
        replica = self.replica
        assert replica is not None
        key = {"Authorization": f"Bearer {replica.key}"} if replica.key else {}
        self.until = asyncio.get_running_loop().time() + post.timeout_s
        self.sent_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout_at(self.until):
                self.reply = await session.post(
                    replica.base + post.path, data=post.body, headers={**post.headers, **key}, allow_redirects=False
                )
                self.outcome.http_status = self.reply.status
                if not 200 <= self.reply.status < 300:
                    await self._read_refusal(post.error_texts)
                    return
                kind = self.reply.headers.get("Content-Type", "").lower()
                self._hearing = Hearing("event-stream" in kind, self.outcome)
                if post.streamed and not self._hearing.streamed:
                    fail(self.outcome, "a streaming request was answered with no stream")
                while post.hold and self.good and not self._hearing.spoken and sum(map(len, self._held)) < MOST_HELD:
                    data = self._took(await self.reply.content.readany())
                    if not data:
                        break
                    self._held.append(data)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self.unreached = True
            self.fleet.note(replica, False)
            self._fail(error)
        except TROUBLE as error:
            self._fail(error)

    async def more(self) -> bytes:
        """What is held, and then what comes; nothing: it is over."""
        if self._held:
            return self._held.pop(0)
        if self.reply is None or self.ended_ns is not None:
            return b""
        try:
            return self._took(await self.reply.content.readany())
        except TROUBLE as error:
            self._fail(error)
            return b""

    def _took(self, data: bytes) -> bytes:
        """What has come since; nothing: that was all."""
        assert self._hearing is not None
        now = time.monotonic_ns()
        if data:
            self._hearing.feed(data, now)
            if self._waits and self._hearing.spoken:
                self._answered(now)
        else:
            self.whole = True
            self.outcome = self._hearing.close(now)
            self._end(now)
        return data

    async def _read_refusal(self, error_texts: bool) -> None:
        assert self.reply is not None
        body = b""
        while len(body) < LARGEST_REFUSAL and (more := await self.reply.content.read(LARGEST_REFUSAL - len(body))):
            body += more
        status, told = self.reply.status, f": {message(body)}" if error_texts else ""
        fail(self.outcome, f"status {status}{told}", "shed" if status in SHED else "error")
        self._held, self.whole = [body], self.reply.content.at_eof()
        self._end(time.monotonic_ns())

    def _fail(self, error: Exception) -> None:
        if isinstance(error, TimeoutError) and not self.unreached:
            self.give_up()
            return
        what = "the stream was cut" if self.outcome.event_ns else "there was no answer"
        why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
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

    def _answered(self, now_ns: int) -> None:
        assert self.routed is not None
        assert self.sent_ns is not None
        self._waits = False
        self.fleet.answered(self.routed, (now_ns - self.sent_ns) / 1e9)

    def _end(self, now_ns: int) -> None:
        self.ended_ns = now_ns
        if self.reply is not None:
            self.reply.release() if self.whole else self.reply.close()
        if self.routed is not None:
            self.fleet.ended(self.routed, self._waits)
