"""Memory of a replica in blocks, and the names of those that others may use again. Compiled into the loop.

A block with a name is known by the hash of its contents and of all before them. It stays known when nobody uses it, and
is forgotten when its place is needed, the least recently used first. Without names `blocks` is None, and all of this
falls away. `t` has all tables, `m` is the replica, `s` a sequence.
"""

from typing import Any

import numpy as np

from openloop.arrays import Ints
from openloop.native.build import native
from openloop.workload import Demand


def blocks_of(tokens: int, size: int) -> int:
    return (tokens + size - 1) // size


def _find(t: Any, m: Any, name: int) -> int:
    block = t.head[m.number, name & (t.head.shape[1] - 1)]
    while block >= 0 and t.blocks[m.number, block].name != name:
        block = t.blocks[m.number, block].chain
    return block


def _held(t: Any, m: Any, s: Any, place: int) -> int:
    """Where a block is that a sequence holds; `spots` is a guess, because two attempts at a request share it."""
    name = t.hashes[place] ^ s.salt
    block = t.spots[place]
    if block < t.blocks.shape[1] and t.blocks[m.number, block].name == name:
        return block
    return _find(t, m, name)


def hits_of(t: Any, m: Any, s: Any, most: int) -> tuple[int, int]:
    """How many blocks of a prompt are known, and how many of these nobody uses now."""
    hits, unused = 0, 0
    while hits < most:
        block = _find(t, m, t.hashes[s.names + hits] ^ s.salt)
        if block < 0:
            break
        t.spots[s.names + hits] = block
        unused += t.blocks[m.number, block].users == 0
        hits += 1
    return hits, unused


def _evict(t: Any, m: Any) -> None:
    """Forget what was used the longest time ago: the first in line that nobody has used since it joined."""
    while True:
        entry = t.line[m.number, m.first & (t.line.shape[1] - 1)]
        m.first += 1
        b = t.blocks[m.number, entry.block]
        if b.users == 0 and b.stamp == entry.stamp:
            break
    bucket = b.name & (t.head.shape[1] - 1)
    above = t.head[m.number, bucket]
    if above == entry.block:
        t.head[m.number, bucket] = b.chain
    else:
        while t.blocks[m.number, above].chain != entry.block:
            above = t.blocks[m.number, above].chain
        t.blocks[m.number, above].chain = b.chain
    b.name = -1
    t.blocks[m.number, m.spares].spare = entry.block
    m.spares += 1
    m.free += 1
    m.unused -= 1


def _join_line(t: Any, m: Any, block: int) -> None:
    """Nobody uses it any more: it is the last to be forgotten."""
    if m.last - m.first == t.line.shape[1]:  # most of those in line have been used since
        kept = m.first
        for place in range(m.first, m.last):
            entry = t.line[m.number, place & (t.line.shape[1] - 1)]
            b = t.blocks[m.number, entry.block]
            if b.users == 0 and b.stamp == entry.stamp:
                t.line[m.number, kept & (t.line.shape[1] - 1)] = entry
                kept += 1
        m.last = kept
    entry = t.line[m.number, m.last & (t.line.shape[1] - 1)]
    entry.block = block
    entry.stamp = t.blocks[m.number, block].stamp = m.last
    m.last += 1
    m.unused += 1


def get_blocks(t: Any, m: Any, count: int) -> None:
    if t.blocks is not None:
        while m.free < count:
            _evict(t, m)
    m.free -= count


def _use(t: Any, m: Any, block: int) -> None:
    b = t.blocks[m.number, block]
    m.unused -= b.users == 0
    b.users += 1


def use(t: Any, m: Any, s: Any, count: int) -> None:
    """The first blocks of a prompt, which `hits_of` has just found."""
    for place in range(s.names, s.names + count):
        _use(t, m, t.spots[place])


def name_blocks(t: Any, m: Any, s: Any, full: int) -> None:
    """Blocks that were computed become known to others; one that somebody else had computed too is given back."""
    for place in range(s.names + s.held, s.names + full):
        name = t.hashes[place] ^ s.salt
        block = _find(t, m, name)
        if block >= 0:
            _use(t, m, block)
            m.free += 1
        else:
            m.spares -= 1
            block = t.blocks[m.number, m.spares].spare
            bucket = name & (t.head.shape[1] - 1)
            b = t.blocks[m.number, block]
            b.name, b.chain, b.users = name, t.head[m.number, bucket], 1
            t.head[m.number, bucket] = block
        t.spots[place] = block
    s.held = max(s.held, full)


def leave(t: Any, m: Any, s: Any, known: int, count: int) -> None:
    """Give the `count` blocks of a sequence back. Those with a name stay known until their place is needed, of which
    the first `known` are computed; the last are the first to be forgotten, because others share what is before."""
    if t.blocks is not None:
        name_blocks(t, m, s, min(known, s.named))
        for place in range(s.names + s.held - 1, s.names - 1, -1):
            block = _held(t, m, s, place)
            b = t.blocks[m.number, block]
            b.users -= 1
            if b.users == 0:
                _join_line(t, m, block)
    m.free += count - s.held
    s.held = 0


def forget_all(t: Any, m: Any) -> None:
    """A cold start."""
    m.free, m.unused, m.first, m.last = m.blocks, 0, 0, 0
    if t.blocks is not None:
        m.spares = t.blocks.shape[1]
        for block in range(t.blocks.shape[1]):
            b = t.blocks[m.number, block]
            b.spare, b.users, b.name = block, 0, -1
        for bucket in range(t.head.shape[1]):
            t.head[m.number, bucket] = -1


def block_names(demand: Demand, size: int, salt: Ints | None) -> tuple[Ints, Ints, Ints, Ints]:
    """Of the blocks of prompts, names end to end: the same name is the same tokens after the same tokens. And for each
    request where its names begin, how many there are, and how many are its prompt's. Only blocks that somebody else may
    have are named: from the first piece of a prompt that nobody shares, none is. `salt` keeps tenants apart."""
    pieces = demand.pieces
    count = len(demand)
    answers = np.full(count, -1) if demand.answer is None else np.asarray(demand.answer, np.int64)
    owned = np.zeros(count, np.int64) if demand.answer is None else np.asarray(demand.output_tokens, np.int64)
    most = (demand.prompt_tokens + owned) // size
    starts = np.concatenate([[0], np.cumsum(most)])
    names = np.empty(int(starts[-1]), np.int64)
    named, of_prompt = np.zeros(count, np.int64), np.zeros(count, np.int64)
    salted = np.zeros(count, np.int64) if salt is None else np.asarray(salt, np.int64)
    _name(
        pieces.starts, pieces.identity, pieces.tokens, answers, owned, salted, starts, size, names, named, of_prompt
    )  # fmt: skip
    return names, starts[:-1], named, of_prompt


@native
def _name(
    piece_starts: Any, identity: Any, tokens: Any, answers: Any, owned: Any, salt: Any, starts: Any, size: int,
    names: Any, named: Any, of_prompt: Any,
) -> None:  # fmt: skip
    for i in range(len(named)):
        chain = np.uint64(salt[i]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        filled = 0  # tokens of the block that is being named
        place = starts[i]
        last = piece_starts[i + 1] + (1 if owned[i] > 0 and answers[i] >= 0 else 0)
        for n in range(piece_starts[i], last):
            answer = n == piece_starts[i + 1]
            who = answers[i] if answer else identity[n]
            left = owned[i] if answer else tokens[n]
            if who < 0:
                break
            at = 0
            while left > 0:
                step = min(left, size - filled)
                chain = _mixed(chain, who, at, step)
                filled += step
                at += step
                left -= step
                if filled == size:
                    names[place] = np.int64(chain >> np.uint64(1))
                    place += 1
                    filled = 0
                    if not answer:
                        of_prompt[i] += 1
        named[i] = place - starts[i]


def _mixed(chain: Any, who: int, at: int, step: int) -> Any:
    """A number of 64 bits that looks random, from what was before and what comes (as splitmix64 does)."""
    value = chain ^ (np.uint64(who) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(at) * np.uint64(0xD1B54A32D192ED03))
    value = (value + np.uint64(step)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
