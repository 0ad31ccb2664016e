"""Memory of a replica in blocks, and the names of those that others may use again. Compiled into the loop.

A block with a name is known by the hash of its contents and of all before them. It stays known when nobody uses it, and
is forgotten when its place is needed, the least recently used first. Without names `blocks` is None, and all of this
falls away. `t` has all tables, `m` is the replica, `s` a sequence.
"""

from typing import Any


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
