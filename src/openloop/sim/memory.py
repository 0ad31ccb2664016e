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
def hits_of(m: Any, s: Any, blocks: Any, head: Any, hashes: Any, most: int) -> tuple[int, int]:
    """How many blocks of a prompt are known, and how many of these nobody uses now."""
    hits, unused = 0, 0
    while hits < most:
        block = _find(m, blocks, head, hashes[s.names + hits] ^ s.salt)
        if block < 0:
            break
        unused += blocks[m.number, block].users == 0
        hits += 1
    return hits, unused


@inner
def _unlist(m: Any, blocks: Any, block: int) -> None:
    """Somebody uses it again, or it is gone."""
    b = blocks[m.number, block]
    if b.older >= 0:
        blocks[m.number, b.older].newer = b.newer
    else:
        m.oldest = b.newer
    if b.newer >= 0:
        blocks[m.number, b.newer].older = b.older
    else:
        m.newest = b.older
    m.unused -= 1


@inner
def _evict(m: Any, blocks: Any, head: Any) -> None:
    """Forget what was used the longest time ago."""
    block = m.oldest
    _unlist(m, blocks, block)
    bucket = blocks[m.number, block].name & (head.shape[1] - 1)
    above = head[m.number, bucket]
    if above == block:
        head[m.number, bucket] = blocks[m.number, block].chain
    else:
        while blocks[m.number, above].chain != block:
            above = blocks[m.number, above].chain
        blocks[m.number, above].chain = blocks[m.number, block].chain
    blocks[m.number, m.spares].spare = block
    m.spares += 1
    m.free += 1


@inner
def get_blocks(m: Any, blocks: Any, head: Any, count: int) -> None:
    if blocks is not None:
        while m.free < count:
            _evict(m, blocks, head)
    m.free -= count


@inner
def use(m: Any, s: Any, blocks: Any, head: Any, hashes: Any, count: int) -> None:
    for place in range(s.names, s.names + count):
        _use(m, blocks, _find(m, blocks, head, hashes[place] ^ s.salt))


@inner
def _use(m: Any, blocks: Any, block: int) -> None:
    if blocks[m.number, block].users == 0:
        _unlist(m, blocks, block)
    blocks[m.number, block].users += 1


@inner
def name_blocks(m: Any, s: Any, blocks: Any, head: Any, hashes: Any, full: int) -> None:
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
    s.held = max(s.held, full)


@inner
def leave(m: Any, s: Any, blocks: Any, head: Any, hashes: Any, known: int, count: int) -> None:
    """Give the `count` blocks of a sequence back. Those with a name stay known until their place is needed, of which
    the first `known` are computed; the last are the first to be forgotten, because others share what is before."""
    if blocks is not None:
        name_blocks(m, s, blocks, head, hashes, min(known, s.named))
        for place in range(s.names + s.held - 1, s.names - 1, -1):
            block = _find(m, blocks, head, hashes[place] ^ s.salt)
            b = blocks[m.number, block]
            b.users -= 1
            if b.users == 0:
                b.older, b.newer = m.newest, -1
                if m.newest >= 0:
                    blocks[m.number, m.newest].newer = block
                else:
                    m.oldest = block
                m.newest = block
                m.unused += 1
    m.free += count - s.held
    s.held = 0


@inner
def forget_all(m: Any, blocks: Any, head: Any) -> None:
    """A cold start."""
    m.free, m.unused, m.newest, m.oldest = m.blocks, 0, -1, -1
    if blocks is not None:
        m.spares = blocks.shape[1]
        for block in range(blocks.shape[1]):
            blocks[m.number, block].spare = block
            blocks[m.number, block].users = 0
        for bucket in range(head.shape[1]):
            head[m.number, bucket] = -1
