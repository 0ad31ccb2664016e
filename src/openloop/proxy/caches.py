"""What replicas publish of their caches, as it comes; and the tokens of a prompt, as a replica reads it."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import aiohttp
import msgspec

from openloop.proxy.attempt import Post
from openloop.proxy.fleet import Fleet, Named, Replica
from openloop.proxy.hearing import Ask
from openloop.routing import Blocks, Router, read_events, token_names

try:
    import zmq
    import zmq.asyncio
except ImportError:
    zmq = None  # type: ignore[assignment]

LARGEST = 64 << 20  # bytes of a message
PATIENCE_S = 1.0  # until a replica has said what the tokens of a prompt are
REPLAY_S = 10.0
END = b"\xff" * 8
NONSENSE = (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError)


class _Batch(NamedTuple):
    number: int
    at: float
    events: list[dict[str, Any]]


class _Tokens(msgspec.Struct):
    tokens: list[int]


_DECODER = msgspec.json.Decoder(_Tokens)


class Caches:
    """Listens to those that publish, where the policy looks at caches at all. `name` then asks one of them, in turn,
    for the tokens of a prompt: without them nobody can tell which blocks it is made of."""

    def __init__(self, fleet: Fleet, tell: Callable[[str], None]) -> None:
        publish = [each for each in fleet.replicas if each.spec.kv_events and "cache" in fleet.router.policy.sees]
        self.heard = [_Heard(fleet.router, each, tell) for each in publish]
        self._turn = count()

    async def listen(self) -> None:
        """For as long as this runs."""
        if self.heard:
            with zmq.asyncio.Context() as context:
                await asyncio.gather(*(each.listen(context) for each in self.heard))

    async def name(self, session: aiohttp.ClientSession, ask: Ask, post: Post) -> Named | None:
        """The blocks of a prompt; None: nobody publishes."""
        asked = [each for each in self.heard if each.blocks.size and each.replica.well]
        if not asked:
            return None
        if ask.cache_salt:
            return Named(())
        who = asked[next(self._turn) % len(asked)]
        headers, timeout = who.replica.signed(post.headers), aiohttp.ClientTimeout(total=PATIENCE_S)
        try:
            url = who.replica.base + "/tokenize"
            async with session.post(url, data=post.body, headers=headers, timeout=timeout) as reply:
                tokens = _DECODER.decode(await reply.read()).tokens if reply.status == 200 else []
                return Named(token_names(tokens, who.blocks.size), who.blocks.size, len(tokens))
        except (aiohttp.ClientError, TimeoutError, OSError, *NONSENSE):
            return Named(())


class _Heard:
    """One replica: its batches by number. Those that were missed are asked for again, or all is forgotten."""

    def __init__(self, router: Router, replica: Replica, tell: Callable[[str], None]) -> None:
        self.replica, self.blocks = replica, Blocks()
        self._router, self._tell = router, tell
        self._next: int | None = None  # number of the batch that is to come
        self._at = 0.0  # when the last was, by the clock of the replica

    async def listen(self, context: "zmq.asyncio.Context") -> None:
        with context.socket(zmq.SUB) as socket:
            socket.set(zmq.MAXMSGSIZE, LARGEST)
            socket.connect(str(self.replica.spec.kv_events))
            socket.subscribe(b"")
            await self._apply(await self._ask(context, 0))
            while True:
                if (batch := await _next_batch(socket)) is not None:
                    await self._take(context, batch)

    async def _take(self, context: "zmq.asyncio.Context", batch: _Batch) -> None:
        expected = batch.number if self._next is None else self._next
        if batch.number < expected and batch.at <= self._at:
            return  # it came again
        if batch.number != expected:
            anew = batch.number < expected  # the replica was started again
            past = await self._ask(context, 0 if anew else expected)
            if anew or not past or past[0].number != expected:
                self._forget()
            await self._apply(past)
        if self._next is None or batch.number >= self._next:
            await self._apply([batch])

    async def _apply(self, batches: Sequence[_Batch]) -> None:
        for batch in batches:
            self._next, self._at = batch.number + 1, batch.at
            try:
                for event in batch.events:
                    self._router.cache_event(self.replica.place, *self.blocks.take(event))
            except NONSENSE:
                self._forget()
            self.replica.blocks = len(self.blocks)
            await asyncio.sleep(0)  # others wait

    def _forget(self) -> None:
        if self.blocks:
            self._tell(f"what {self.replica.name} has cached is learned anew: it was started again, or events are lost")
        self.blocks.clear()
        self._router.forget_cache(self.replica.place)
        self._next = None

    async def _ask(self, context: "zmq.asyncio.Context", start: int) -> list[_Batch]:
        """What was published from this number on, as far as the replica has kept it."""
        found: list[_Batch] = []
        if self.replica.spec.kv_replay is not None:
            with context.socket(zmq.DEALER) as socket, contextlib.suppress(TimeoutError):
                socket.set(zmq.LINGER, 0)
                socket.set(zmq.MAXMSGSIZE, LARGEST)
                socket.connect(self.replica.spec.kv_replay)
                async with asyncio.timeout(REPLAY_S):
                    await socket.send_multipart([b"", start.to_bytes(8, "big")])
                    while (batch := await _next_batch(socket)) is not None:
                        found.append(batch)
        return found


async def _next_batch(socket: "zmq.asyncio.Socket") -> _Batch | None:
    """None: there is no sense in it, or it was the last of those that are kept."""
    *_, number, payload = [b"", *await socket.recv_multipart()]
    try:
        return _Batch(int.from_bytes(number, "big"), *read_events(payload)) if number != END else None
    except NONSENSE:
        return None
