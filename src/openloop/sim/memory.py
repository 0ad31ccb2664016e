"""Memory of a replica in blocks, and the names of those that others may use again. Compiled into the loop.

A block with a name is known by the hash of its contents and of all before them. It stays known when nobody uses it, and
is forgotten when its place is needed, the least recently used first. Without names `blocks` is None, and all of this
falls away.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

__all__ = ["blocks_of", "forget_all", "get_blocks", "hits_of", "inner", "leave", "name_blocks", "once", "use"]

F = TypeVar("F", bound=Callable[..., Any])


def inner(function: F) -> F:
    """For what is called from compiled code only."""
    compiled = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
    return cast("F", compiled(function))


def once(function: F) -> F:
    """For what is tiny: compiled where it is called and not by itself."""
    return cast("F", numba.njit(inline="always", error_model="numpy")(function))


@inner
def blocks_of(tokens: int, size: int) -> int:
    return (tokens + size - 1) // size


@inner
def _find(m: Any, blocks: Any, head: Any, name: int) -> int:
    block = head[m.number, name & (head.shape[1] - 1)]
    while block >= 0 and blocks[m.number, block].name != name:
        block = blocks[m.number, block].chain
    return block


@inner
def _held(m: Any, s: Any, blocks: Any, head: Any, hashes: Any, spots: Any, place: int) -> int:
    """Where a block is that a sequence holds; `spots` is a guess, because two attempts at a request share it."""
    name = hashes[place] ^ s.salt
    block = spots[place]
    if block < blocks.shape[1] and blocks[m.number, block].name == name:
        return block
    return _find(m, blocks, head, name)


@inner
def hits_of(m: Any, s: Any, blocks: Any, head: Any, hashes: Any, spots: Any, most: int) -> tuple[int, int]:
    """How many blocks of a prompt are known, and how many of these nobody uses now."""
    hits, unused = 0, 0
    while hits < most:
        block = _find(m, blocks, head, hashes[s.names + hits] ^ s.salt)
        if block < 0:
            break
        spots[s.names + hits] = block
        unused += blocks[m.number, block].users == 0
        hits += 1
    return hits, unused


@inner
def _evict(m: Any, blocks: Any, head: Any, line: Any) -> None:
    """Forget what was used the longest time ago: the first in line that nobody has used since it joined."""
    while True:
        entry = line[m.number, m.first & (line.shape[1] - 1)]
        m.first += 1
        b = blocks[m.number, entry.block]
        if b.users == 0 and b.stamp == entry.stamp:
            break
    bucket = b.name & (head.shape[1] - 1)
    above = head[m.number, bucket]
    if above == entry.block:
        head[m.number, bucket] = b.chain
    else:
        while blocks[m.number, above].chain != entry.block:
            above = blocks[m.number, above].chain
        blocks[m.number, above].chain = b.chain
    b.name = -1
    blocks[m.number, m.spares].spare = entry.block
    m.spares += 1
    m.free += 1
    m.unused -= 1


@inner
def _join_line(m: Any, blocks: Any, line: Any, block: int) -> None:
    """Nobody uses it any more: it is the last to be forgotten."""
    if m.last - m.first == line.shape[1]:  # most of those in line have been used since
        kept = m.first
        for place in range(m.first, m.last):
            entry = line[m.number, place & (line.shape[1] - 1)]
            b = blocks[m.number, entry.block]
            if b.users == 0 and b.stamp == entry.stamp:
                line[m.number, kept & (line.shape[1] - 1)] = entry
                kept += 1
        m.last = kept
    entry = line[m.number, m.last & (line.shape[1] - 1)]
    entry.block = block
    entry.stamp = blocks[m.number, block].stamp = m.last
    m.last += 1
    m.unused += 1


@inner
def get_blocks(m: Any, blocks: Any, head: Any, line: Any, count: int) -> None:
    if blocks is not None:
        while m.free < count:
            _evict(m, blocks, head, line)
    m.free -= count


@inner
def _use(m: Any, blocks: Any, block: int) -> None:
    b = blocks[m.number, block]
    m.unused -= b.users == 0
    b.users += 1


@inner
def use(m: Any, s: Any, blocks: Any, spots: Any, count: int) -> None:
    """The first blocks of a prompt, which `hits_of` has just found."""
    for place in range(s.names, s.names + count):
        _use(m, blocks, spots[place])


@inner
def name_blocks(m: Any, s: Any, blocks: Any, head: Any, hashes: Any, spots: Any, full: int) -> None:
    """Blocks that were computed become known to others; one that somebody else had computed too is given back."""
    for place in range(s.names + s.held, s.names + full):
        name = hashes[place] ^ s.salt
        block = _find(m, blocks, head, name)
        if block >= 0:
            _use(m, blocks, block)
            m.free += 1
        else:
            m.spares -= 1
            block = blocks[m.number, m.spares].spare
            bucket = name & (head.shape[1] - 1)
            b = blocks[m.number, block]
            b.name, b.chain, b.users = name, head[m.number, bucket], 1
            head[m.number, bucket] = block
        spots[place] = block
    s.held = max(s.held, full)


@inner
def leave(
    m: Any, s: Any, blocks: Any, head: Any, line: Any, hashes: Any, spots: Any, known: int, count: int
) -> None:  # fmt: skip
    """Give the `count` blocks of a sequence back. Those with a name stay known until their place is needed, of which
    the first `known` are computed; the last are the first to be forgotten, because others share what is before."""
    if blocks is not None:
        name_blocks(m, s, blocks, head, hashes, spots, min(known, s.named))
        for place in range(s.names + s.held - 1, s.names - 1, -1):
            block = _held(m, s, blocks, head, hashes, spots, place)
            b = blocks[m.number, block]
            b.users -= 1
            if b.users == 0:
                _join_line(m, blocks, line, block)
    m.free += count - s.held
    s.held = 0


@inner
def forget_all(m: Any, blocks: Any, head: Any) -> None:
    """A cold start."""
    m.free, m.unused, m.first, m.last = m.blocks, 0, 0, 0
    if blocks is not None:
        m.spares = blocks.shape[1]
        for block in range(blocks.shape[1]):
            b = blocks[m.number, block]
            b.spare, b.users, b.name = block, 0, -1
        for bucket in range(head.shape[1]):
            head[m.number, bucket] = -1
