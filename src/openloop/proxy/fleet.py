"""Those behind the proxy: what they have in flight, whether they are well, and which gets the next request."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp
import numpy as np

from openloop.admission import Bucket, InFlight, Queue
from openloop.errors import SpecError
from openloop.persistence import Hedge
from openloop.proxy.config import ProxySpec, ReplicaSpec
from openloop.proxy.hearing import Ask
from openloop.routing import CHUNK_TOKENS, ENTRIES, Routed, Router, prefix_names

FALLS = 2  # failures in a row after which a replica is left out
AGAIN_S = 10.0  # and tried again, where nobody asks whether it is well
ENOUGH = 20  # first tokens before a percentile of them means something
MOST_BLOCKS = 1 << 20  # of all caches together that are known


@dataclass(eq=False)
class Replica:
    spec: ReplicaSpec
    place: int
    name: str = ""
    base: str = ""
    key: str | None = field(default=None, repr=False)
    requests: int = 0  # in flight
    waiting: int = 0  # of these, without a token
    draining: bool = False
    failures: int = 0  # in a row
    blocks: int = 0  # in its cache, by its own events

    def __post_init__(self) -> None:
        self.name, self.key, self.draining = self.spec.called(), self.spec.key(), self.spec.drain
        self.base = self.spec.url.rstrip("/").removesuffix("/v1")

    @property
    def well(self) -> bool:
        return self.failures < FALLS

    def signed(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """With its own key, if it has one, in place of what the client shows."""
        if not self.key:
            return headers
        kept = {name: value for name, value in headers.items() if name.lower() != "authorization"}
        return {**kept, "Authorization": f"Bearer {self.key}"}


class Named(NamedTuple):
    """The blocks of a prompt, of so many tokens each, and how many tokens it has; 0: nobody has counted."""

    names: Sequence[int]
    each: int = CHUNK_TOKENS
    tokens: int = 0


class Fleet:
    """`tell` hears what happens to replicas; `note` gets every decision."""

    def __init__(
        self,
        spec: ProxySpec,
        start_ns: int,
        note: Callable[[Callable[[], bytes]], object] | None,
        tell: Callable[[str, str], None],
    ) -> None:
        self.replicas = [Replica(each, place) for place, each in enumerate(spec.members())]
        Router(spec.policy(), len(self.replicas)).route(0.0, 1, session=0, names=[0])  # compiled before anybody waits
        entries = MOST_BLOCKS if any(each.spec.kv_events for each in self.replicas) else ENTRIES
        self.router = Router(spec.policy(), len(self.replicas), note=note, entries=entries)
        self._limit, self._filled = spec.admits(), 0.0
        self._tokens = self._limit.burst if isinstance(self._limit, Bucket) else 0.0
        self._start_ns, self._tell, self._asked = start_ns, tell, spec.health is not None
        self._begun: deque[float] = deque(maxlen=1000)  # seconds until first tokens, of late
        self.open: list[bool] = []  # by replica, whether it gets requests
        self._look_who_is_open()

    def now(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9

    def _look_who_is_open(self) -> None:
        """Where none is well, all get requests: it may be the proxy that is not."""
        some_well = any(each.well and not each.draining for each in self.replicas)
        self.open = [not each.draining and (each.well or not some_well) for each in self.replicas]
        for place, gets in enumerate(self.open):
            self.router.set_open(place, gets)

    def send(
        self, ask: Ask, named: Named | None, session: int | None, deadline: float, avoid: int | None
    ) -> tuple[Routed | None, str]:
        """Who gets a request, which counts there from now on; or why nobody does. Where nobody has named the blocks of
        its prompt, they are pieces of its text."""
        now = self.now()
        blocks = named or Named(prefix_names(ask.text))
        try:
            routed = self.router.route(
                now,
                blocks.tokens or ask.prompt_tokens,
                output=ask.most_tokens or 0,
                session=session,
                deadline=deadline,
                names=blocks.names,
                each=blocks.each,
                avoid=avoid,
            )
        except Exception as error:  # of a policy that somebody else wrote
            return None, f"the routing policy failed: {type(error).__name__}: {error}"
        if routed is None:
            return None, "the policy sheds it" if any(self.open) else "no replica is open"
        replica = self.replicas[routed.place]
        if self._refuses(replica, now):
            self.router.ended(routed.number)
            return None, f"admission: {replica.name} has enough"
        replica.requests += 1
        replica.waiting += 1
        return routed, ""

    def _refuses(self, replica: Replica, now: float) -> bool:
        """Admission, as the simulator has it."""
        limit = self._limit
        if isinstance(limit, InFlight):
            return replica.requests >= limit.most
        if isinstance(limit, Queue):
            return replica.waiting >= limit.most
        if isinstance(limit, Bucket):
            self._tokens = min(limit.burst, self._tokens + (now - self._filled) * limit.rate)
            self._filled = now
            if self._tokens < 1.0:
                return True
            self._tokens -= 1.0
        return False

    def answered(self, routed: Routed, seconds: float) -> None:
        """Its first token has come, after so long."""
        self.replicas[routed.place].waiting -= 1
        self.router.answered(routed.number, self.now())
        self._begun.append(seconds)

    def ended(self, routed: Routed, waits: bool) -> None:
        replica = self.replicas[routed.place]
        replica.requests -= 1
        replica.waiting -= waits
        self.router.ended(routed.number)

    def hedge_after(self, hedge: Hedge) -> float | None:
        """Seconds; None: not enough is known yet."""
        if hedge.after.percentile is None:
            return hedge.after.seconds
        return float(np.percentile(self._begun, hedge.after.percentile)) if len(self._begun) >= ENOUGH else None

    def note(self, replica: Replica, well: bool) -> None:
        """A replica leaves after some failures in a row, and is back with the first success, with empty caches."""
        before = replica.well
        replica.failures = 0 if well else replica.failures + 1
        if replica.well and not before:
            self.router.forget(replica.place)
        if replica.well != before:
            self._look_who_is_open()
            self._tell("recovery" if replica.well else "failure", replica.name)
            if not replica.well and not self._asked:
                asyncio.get_running_loop().call_later(AGAIN_S, self.note, replica, True)

    def drain(self, told: Mapping[str, bool]) -> None:
        """By name, whether a replica is to drain: it finishes what it has, and gets nothing new."""
        known = {each.name: each for each in self.replicas}
        if told.keys() != known.keys():
            raise SpecError("replicas are added and removed by a new start")
        for name, drains in told.items():
            if known[name].draining != drains:
                known[name].draining = drains
                self._look_who_is_open()
                self._tell("drain" if drains else "undrain", name)

    async def check_health(self, session: aiohttp.ClientSession, path: str, every_s: float) -> None:
        """Ask each whether it is well, for as long as this runs; one that hangs holds up no other."""
        timeout = aiohttp.ClientTimeout(total=max(every_s, 1.0))

        async def watch(replica: Replica) -> None:
            headers = replica.signed({})
            while True:
                try:
                    async with session.get(replica.base + path, timeout=timeout, headers=headers) as reply:
                        well = reply.status < 400
                except (aiohttp.ClientError, TimeoutError, OSError):
                    well = False
                self.note(replica, well)
                await asyncio.sleep(every_s)

        await asyncio.gather(*map(watch, self.replicas))
