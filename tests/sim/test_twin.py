"""A replica written a second time, as plainly as it goes: lists, one step at a time, tokens as they are made. The same
requests have the same tokens at the same times as in the compiled loop."""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from openloop.sim.fleet import FleetSpec
from openloop.workload import Demand
from tests.sim.test_fleet import WORKLOADS, demand, fleet, served

CASES: list[dict[str, Any]] = [
    {},
    {"max_tokens": 64},
    {"max_sequences": 3},
    {"memory_tokens": 2_000},
    {"memory_tokens": 2_000, "block": 7, "watermark": "0%"},
    {"memory_tokens": 3_000, "order": "shortest"},
]


@dataclass
class Sequence:
    number: int
    key: float
    prompt: int
    output: int
    names: list[int]  # of the blocks of its prompt that others may have, each of all before it
    times: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)  # blocks with a name
    own: int = 0  # and without
    need: int = 0  # tokens to read before it decodes
    done: int = 0
    cached: int | None = None

    @property
    def context(self) -> int:
        """What of it is in memory: the newest token is not."""
        return self.prompt + len(self.times) - 1


class Twin:
    def __init__(self, spec: FleetSpec) -> None:
        self.spec, self.step, self.free = spec, spec.step_time(), spec.memory_blocks
        self.spared = int(0.01 * float(spec.watermark.rstrip("%")) * spec.memory_blocks)
        self.waiting: list[Sequence] = []
        self.filling: list[Sequence] = []
        self.running: list[Sequence] = []
        self.users: dict[int, int] = {}  # of each name
        self.unused: OrderedDict[int, None] = OrderedDict()  # names, the least recently used first

    def blocks(self, tokens: int) -> int:
        return math.ceil(tokens / self.spec.block)

    def take(self, s: Sequence) -> None:
        """A block."""
        if not self.free:
            del self.users[self.unused.popitem(last=False)[0]]
            self.free += 1
        self.free -= 1
        s.own += 1

    def hold(self, s: Sequence, name: int) -> None:
        self.users[name] = self.users.get(name, 0) + 1
        self.unused.pop(name, None)
        s.held.append(name)

    def name(self, s: Sequence, tokens: int) -> None:
        """What was computed is known from now on; what somebody else had computed too is given back."""
        for name in s.names[len(s.held) : tokens // self.spec.block]:
            self.free += name in self.users
            s.own -= 1
            self.hold(s, name)

    def leave(self, s: Sequence, tokens: int) -> None:
        self.name(s, tokens)
        for name in reversed(s.held):
            self.users[name] -= 1
            if not self.users[name]:
                self.unused[name] = None
        self.free += s.own
        s.held, s.own = [], 0

    def admit(self) -> None:
        self.waiting.sort(key=lambda s: (s.key, s.number))
        budget = self.spec.max_tokens - sum(s.need - s.done for s in self.filling)
        budget -= len(self.running) if self.spec.batching == "chunked" else 0
        while self.waiting and len(self.running) + len(self.filling) < self.spec.max_sequences and budget > 0:
            s, others = self.waiting[0], self.running or self.filling
            need, found = s.prompt + len(s.times), []
            for name in s.names[: (need - 1) // self.spec.block]:
                if name not in self.users:
                    break
                found.append(name)
            todo, wanted = need - len(found) * self.spec.block, self.blocks(need) - len(found)
            room = self.free + len(self.unused) - sum(name in self.unused for name in found)
            if others and (room - wanted < self.spared):
                return
            if self.spec.batching == "prefill-first" and self.filling and todo > budget:
                return
            self.filling.append(self.waiting.pop(0))
            for name in found:
                self.hold(s, name)
            for _ in range(wanted):
                self.take(s)
            s.need, s.done, budget = need, need - todo, budget - todo
            s.cached = len(found) * self.spec.block if s.cached is None else s.cached

    def make_room(self) -> None:
        """Who came last is put back."""
        while self.running and sum(s.context % self.spec.block == 0 for s in self.running) > self.free + len(
            self.unused
        ):
            last = max(self.running, key=lambda s: (s.key, s.number))
            self.part(last)
            self.waiting.append(last)

    def part(self, s: Sequence) -> None:
        place = self.running.index(s)
        self.running[place] = self.running[-1]
        self.running.pop()
        self.leave(s, s.context)

    def run(self, now: float) -> float | None:
        """One step, and when it ends; None: there is nothing to do."""
        self.admit()
        if not self.running and not self.filling:
            return None
        mixed = self.spec.batching == "chunked" or not self.filling
        if mixed:
            self.make_room()
        decoding = list(self.running) if mixed else []
        budget, attention, chunks = self.spec.max_tokens - len(decoding), 0.0, list[int]()
        for s in self.filling:
            chunks.append(min(s.need - s.done, max(budget, 0 if chunks else 1)))
            budget -= chunks[-1]
            attention += chunks[-1] * (s.done + chunks[-1] / 2)
        lasts = max(self.step.floor, self.step.token * (len(decoding) + sum(chunks))) + self.step.attention * attention
        lasts += self.step.context * sum(s.context for s in decoding)
        lasts += self.step.sequence * (len(decoding) + np.count_nonzero(chunks))
        now += lasts
        for s in decoding:
            if s.context % self.spec.block == 0:
                self.take(s)
            s.times.append(now)
        place = 0
        while place < len(self.running):  # whoever is done makes way for the last
            s = self.running[place]
            if len(s.times) == s.output:
                self.part(s)
            else:
                place += 1
        for s, chunk in zip(list(self.filling), chunks, strict=True):
            s.done += chunk
            if s.done == s.need:
                self.filling.remove(s)
                self.name(s, s.need)
                s.times.append(now)
                if len(s.times) < s.output:
                    self.running.append(s)
                else:
                    self.leave(s, s.need)
        return now


def shared(asked: Demand, number: int, block: int) -> list[int]:
    """Names of the blocks of a prompt, as far as others may have them."""
    pieces, said = asked.pieces, list[tuple[int, int]]()
    for place in range(pieces.starts[number], pieces.starts[number + 1]):
        if pieces.identity[place] < 0:
            break
        said += [(int(pieces.identity[place]), n) for n in range(pieces.tokens[place])]
    return [hash(tuple(said[: end + 1])) for end in range(block - 1, len(said), block)]


@pytest.mark.parametrize("batching", ["chunked", "prefill-first"])
@pytest.mark.parametrize("more", CASES, ids=str)
@pytest.mark.parametrize("spec", WORKLOADS[:2])
def test_the_same_tokens_at_the_same_times(spec: str, more: dict[str, Any], batching: str) -> None:
    found, asked = fleet(batching=batching, **more), demand(spec, rate=14.0)
    twin, now = Twin(found), 0.0
    due = asked.due_s.tolist()
    everyone = [
        Sequence(n, float(p + o) if found.order == "shortest" else due[n], p, o, shared(asked, n, found.block))
        for n, (p, o) in enumerate(zip(asked.prompt_tokens.tolist(), asked.output_tokens.tolist(), strict=True))
    ]
    left = list(everyone)
    while left or twin.waiting or twin.filling or twin.running:
        while left and due[left[0].number] < now:
            twin.waiting.append(left.pop(0))
        ended = twin.run(now)
        if ended is None and left:
            now = due[left[0].number]
            twin.waiting.append(left.pop(0))
        else:
            now = now if ended is None else ended
    outcome = served(found, asked)
    assert outcome.rows.cached.tolist() == [s.cached for s in everyone]
    assert np.allclose(outcome.times, 1e9 * np.concatenate([s.times for s in everyone]), rtol=0, atol=50)
    assert twin.free + len(twin.unused) == found.memory_blocks
