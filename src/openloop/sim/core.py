"""Replicas of a language model in virtual time, iteration by iteration, in one compiled loop.

A replica runs steps. All sequences that decode advance together, so between two events that change the batch (an
arrival that is admitted, a finish, a lack of memory) the steps form a run: with n sequences the context grows by n
tokens a step, and the time of step j is base + slope * j. A run is one record, however many tokens it makes; the times
of a request's tokens are read off these records afterwards.

The same source is plain Python where numba is switched off (NUMBA_DISABLE_JIT=1), with equal results.
"""

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AHEAD",
    "ATTENTION",
    "BEGIN",
    "BLOCKS",
    "BUSY",
    "CACHED",
    "CACHE_INTS",
    "CENSORED",
    "CHUNKED",
    "CONTEXT",
    "DEADLINE",
    "DRAFT",
    "DRAFTS",
    "DRAFT_STEP",
    "DUE",
    "ENDED",
    "FILLING",
    "FIRST",
    "FIRST_TOKEN",
    "FLOOR",
    "FOLLOWER",
    "FREE",
    "FROM",
    "GAIN",
    "GOODPUT",
    "LEFT",
    "LONGEST",
    "NAMED",
    "NAMED_PROMPT",
    "NAMES",
    "NEWEST",
    "NEXT",
    "OK",
    "OLDEST",
    "ORDER",
    "OUTPUT",
    "POLICY",
    "PREEMPTIONS",
    "PREFILL_FIRST",
    "PREPONE",
    "PREPONED",
    "PROMPT",
    "RAN",
    "READING",
    "RECOMPUTED",
    "REPLICA",
    "REPLICA_FLOATS",
    "REPLICA_INTS",
    "REQUEST_FLOATS",
    "REQUEST_INTS",
    "RIGHT",
    "ROOT",
    "RUNNING",
    "SEQUENCE",
    "SEQUENCES",
    "SHED",
    "SHEDS",
    "SHORTEST",
    "SIZE",
    "SLOTS",
    "SPARE",
    "SPARES",
    "STARTED",
    "STATIC",
    "STATUS",
    "STEP",
    "SWAP",
    "THINK",
    "TOKEN",
    "TOKENS",
    "UNUSED",
    "USERS",
    "WAITING",
    "WATERMARK",
    "WITHIN",
    "serve",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# How a batch is put together, and in which order requests are taken into it.
STATIC, PREFILL_FIRST, CHUNKED, PREPONE = range(4)
FIRST, SHORTEST, DEADLINE, GOODPUT = range(4)

NEVER = np.inf
NONE: Any = np.int64(0)  # typed, or else functions would be compiled for the literal as well
ONE: Any = np.int64(1)
IDLE, PREFILLING, DECODING = range(3)
NOT_YET, UNDER_WAY = -1, -2  # of steps before a prefill
OK, SHED, CENSORED = range(3)
LATER = 1e12  # added to the key of what is put off

# For what is called from compiled code only.
inner = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]

# Columns. Arrays are few and wide because each one that is handed to a compiled function costs time.
# q: whole numbers of requests.
(
    PROMPT,  # tokens
    OUTPUT,
    FOLLOWER,  # the request that comes after its answer, or -1
    NAMES,  # where the hashes of its blocks begin,
    NAMED,  # how many there are,
    NAMED_PROMPT,  # and how many of these are of the prompt
    LEFT,  # in the heap of those that wait
    RIGHT,
    MADE,  # tokens so far
    NEED,  # tokens to prefill,
    DONE,  # of which these are,
    CHUNK,  # and these will be by the end of the step
    HELD,  # blocks with a name
    BEFORE,  # context when it began to decode,
    BEGIN,  # at which decode step of its replica that was,
    END,  # and at which it will be done
    AWAY,  # its memory is swapped out
    STATUS,
    REPLICA,
    CACHED,
    RECOMPUTED,
    PREEMPTIONS,
    FROM,  # the last segment of its tokens: from which decode step on,
    RAN,  # for how many
    REQUEST_INTS,
) = range(25)

# x: times of requests, in seconds.
(
    DUE,  # NaN: `THINK` after the answer to the one before
    THINK,
    WITHIN,  # the first token is wanted
    KEY,  # who is first in the queue
    STARTED,
    ENDED,
    FIRST_TOKEN,  # of the last segment: the one that a prefill made; NaN: none
    REQUEST_FLOATS,
) = range(8)

# f: whole numbers of replicas.
(
    POLICY,
    ORDER,
    SHEDS,  # whether what cannot be in time is refused
    SEQUENCES,  # at most in a batch
    TOKENS,  # at most in a step
    SIZE,  # tokens in a block of memory
    BLOCKS,
    WATERMARK,  # blocks that admission leaves free
    AHEAD,  # decode steps before a prefill
    LONGEST,  # run of steps; 1: one by one, which is slow and gives the same
    DRAFTS,  # tokens that are proposed per step
    ROOT,  # of the heap of those that wait
    WAITING,
    RUNNING,  # how many decode,
    FILLING,  # and how many are prefilled
    SLOTS,  # sequences that a step pays for
    FREE,  # blocks
    STEP,  # decode steps so far,
    SOONEST,  # and at which the first that decodes is done
    PHASE,
    STEPS,  # that are under way
    PREPONED,  # record of the steps that were run before a prefill
    NEWEST,  # of the named blocks that nobody uses
    OLDEST,
    UNUSED,
    SPARES,  # places for names
    REPLICA_INTS,
) = range(27)

# y: other numbers of replicas, most of them seconds. A step lasts max(FLOOR, TOKEN * tokens)
# + READING * sum of contexts + ATTENTION * sum of chunk * (context + chunk / 2) + SEQUENCE * sequences.
(
    FLOOR,
    TOKEN,
    READING,
    ATTENTION,
    SEQUENCE,
    SWAP,  # per token, out and in again; below zero: it is computed again
    DRAFT,  # to propose a token for a sequence,
    DRAFT_STEP,  # and for any number of them
    GAIN,  # tokens that a step makes, for each sequence
    CONTEXT,  # tokens of all sequences that a step pays for
    START,  # of the steps that are under way,
    BASE,
    SLOPE,
    NEXT,  # and their end
    BUSY,
    REPLICA_FLOATS,
) = range(16)

# cache: named blocks of replicas.
CHAIN, NAME, USERS, NEWER, OLDER, SPARE, CACHE_INTS = range(7)


@inner
def _grown(old: Any) -> Any:
    new = np.empty(2 * len(old), old.dtype)
    for place in range(len(old)):
        new[place] = old[place]
    return new


@inner
def _push(heap: Floats, size: int, time: float, number: int) -> int:
    """A binary heap of (time, number) in a matrix of two columns."""
    place = size
    while place > 0:
        above = (place - 1) // 2
        if heap[above, 0] < time or (heap[above, 0] == time and heap[above, 1] < number):
            break
        heap[place, 0], heap[place, 1] = heap[above, 0], heap[above, 1]
        place = above
    heap[place, 0] = time
    heap[place, 1] = number
    return size + 1


@inner
def _pop(heap: Floats, size: int) -> int:
    """Take the first off; the caller has read it."""
    size -= 1
    time, number = heap[size, 0], heap[size, 1]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and (
            heap[below + 1, 0] < heap[below, 0]
            or (heap[below + 1, 0] == heap[below, 0] and heap[below + 1, 1] < heap[below, 1])
        ):
            below += 1
        if time < heap[below, 0] or (time == heap[below, 0] and number < heap[below, 1]):
            break
        heap[place, 0], heap[place, 1] = heap[below, 0], heap[below, 1]
        place = below
    if size > 0:
        heap[place, 0] = time
        heap[place, 1] = number
    return size


@inner
def _lasting(base: float, slope: float, steps: int) -> float:
    return steps * base + slope * (steps * (steps - 1) / 2)


@inner
def _steps_by(base: float, slope: float, elapsed: float, most: int) -> int:
    """The least number of steps that last as long, so the end of the step that is under way; at least one."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if _lasting(base, slope, middle) >= elapsed:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def _meld(q: Ints, x: Floats, a: int, b: int) -> int:
    """Two skew heaps as one; the least key on top, and of equal keys the least number."""
    if a < 0:
        return b
    if b < 0:
        return a
    if x[b, KEY] < x[a, KEY] or (x[b, KEY] == x[a, KEY] and b < a):
        a, b = b, a
    root = a
    while True:
        rest = q[a, RIGHT]
        q[a, RIGHT] = q[a, LEFT]
        if rest < 0:
            q[a, LEFT] = b
            return root
        if x[b, KEY] < x[rest, KEY] or (x[b, KEY] == x[rest, KEY] and b < rest):
            q[a, LEFT] = b
            a, b = b, rest
        else:
            q[a, LEFT] = rest
            a = rest


@inner
def _wait(q: Ints, x: Floats, f: Ints, r: int, i: int) -> None:
    q[i, LEFT] = q[i, RIGHT] = -1
    f[r, ROOT] = _meld(q, x, f[r, ROOT], i)
    f[r, WAITING] += 1


@inner
def _take(q: Ints, x: Floats, f: Ints, r: int) -> int:
    i = f[r, ROOT]
    f[r, ROOT] = _meld(q, x, q[i, LEFT], q[i, RIGHT])
    f[r, WAITING] -= 1
    return i


@inner
def _find(cache: Ints, head: Ints, r: int, name: int) -> int:
    block = head[r, name % head.shape[1]]
    while block >= 0 and cache[r, block, NAME] != name:
        block = cache[r, block, CHAIN]
    return block


@inner
def _unlist(f: Ints, cache: Ints, r: int, block: int) -> None:
    """Somebody uses it again, or it is gone."""
    older, newer = cache[r, block, OLDER], cache[r, block, NEWER]
    if older >= 0:
        cache[r, older, NEWER] = newer
    else:
        f[r, OLDEST] = newer
    if newer >= 0:
        cache[r, newer, OLDER] = older
    else:
        f[r, NEWEST] = older
    f[r, UNUSED] -= 1


@inner
def _evict(f: Ints, cache: Ints, head: Ints, r: int) -> None:
    """Forget what was used the longest time ago."""
    block = f[r, OLDEST]
    _unlist(f, cache, r, block)
    bucket = cache[r, block, NAME] % head.shape[1]
    above = head[r, bucket]
    if above == block:
        head[r, bucket] = cache[r, block, CHAIN]
    else:
        while cache[r, above, CHAIN] != block:
            above = cache[r, above, CHAIN]
        cache[r, above, CHAIN] = cache[r, block, CHAIN]
    cache[r, f[r, SPARES], SPARE] = block
    f[r, SPARES] += 1
    f[r, FREE] += 1


@inner
def _use(f: Ints, cache: Ints, r: int, block: int) -> None:
    if cache[r, block, USERS] == 0:
        _unlist(f, cache, r, block)
    cache[r, block, USERS] += 1


@inner
def _release(f: Ints, cache: Ints, head: Ints, hashes: Ints, r: int, first: int, count: int) -> None:
    """The last first, so that what others share is forgotten last."""
    for place in range(first + count - 1, first - 1, -1):
        block = _find(cache, head, r, hashes[place])
        cache[r, block, USERS] -= 1
        if cache[r, block, USERS] == 0:
            newest = f[r, NEWEST]
            cache[r, block, OLDER], cache[r, block, NEWER] = newest, -1
            if newest >= 0:
                cache[r, newest, NEWER] = block
            else:
                f[r, OLDEST] = block
            f[r, NEWEST] = block
            f[r, UNUSED] += 1


@inner
def _name_blocks(f: Ints, cache: Ints, head: Ints, hashes: Ints, r: int, first: int, last: int) -> None:
    """Blocks that were computed become known to others; one that somebody else had computed too is given back."""
    for place in range(first, last):
        name = hashes[place]
        block = _find(cache, head, r, name)
        if block >= 0:
            _use(f, cache, r, block)
            f[r, FREE] += 1
        else:
            f[r, SPARES] -= 1
            block = cache[r, f[r, SPARES], SPARE]
            bucket = name % head.shape[1]
            cache[r, block, NAME], cache[r, block, CHAIN] = name, head[r, bucket]
            head[r, bucket] = block
            cache[r, block, USERS] = 1


@inner
def _blocks_of(tokens: int, size: int) -> int:
    return (tokens + size - 1) // size


@inner
def _get_blocks(f: Ints, cache: Ints, head: Ints, r: int, count: int) -> None:
    while f[r, FREE] < count:
        _evict(f, cache, head, r)
    f[r, FREE] -= count


@inner
def _needed(f: Ints, residue: Ints, r: int, steps: int) -> int:
    """Blocks that so many decode steps will take."""
    size = f[r, SIZE]
    found = steps // size * f[r, RUNNING]
    for j in range(steps % size):
        found += residue[r, (-(f[r, STEP] + j)) % size]
    return found


@inner
def _leave(q: Ints, f: Ints, hashes: Ints, cache: Ints, head: Ints, r: int, i: int, context: int, blocks: int) -> None:
    """Give the memory of a request back; what is named stays known until its place is needed."""
    size = f[r, SIZE]
    first, last = q[i, NAMES], q[i, NAMES] + q[i, NAMED]
    full = min(context // size, last - first)
    if full > q[i, HELD]:
        _name_blocks(f, cache, head, hashes, r, first + q[i, HELD], first + full)
        q[i, HELD] = full
    _release(f, cache, head, hashes, r, first, q[i, HELD])
    f[r, FREE] += blocks - q[i, HELD]
    q[i, HELD] = 0


@inner
def _context(q: Ints, f: Ints, y: Floats, r: int, i: int) -> int:
    """Tokens of a running sequence that are in memory."""
    return q[i, BEFORE] + int((f[r, STEP] - q[i, BEGIN]) * y[r, GAIN])


@inner
def _reserved(q: Ints, f: Ints, r: int, i: int, context: int) -> int:
    """Blocks that a sequence has. Where a step makes several tokens, and in a static batch, the whole of it from the
    start; otherwise what its context takes."""
    if f[r, DRAFTS] > 0 or f[r, POLICY] == STATIC:
        return _blocks_of(q[i, PROMPT] + q[i, OUTPUT], f[r, SIZE])
    return _blocks_of(context, f[r, SIZE])


@inner
def _admit(
    q: Ints, x: Floats, f: Ints, y: Floats, fill: Ints, hashes: Ints, cache: Ints, head: Ints, r: int, now: float
) -> None:
    """Take from those who wait as many as may join the next step."""
    size = f[r, SIZE]
    policy = f[r, POLICY]
    if policy == STATIC and (f[r, RUNNING] > 0 or f[r, FILLING] > 0):
        return
    budget = f[r, TOKENS]
    if policy == CHUNKED:
        budget -= f[r, RUNNING] * (1 + f[r, DRAFTS])
    for n in range(f[r, FILLING]):
        i = fill[r, n]
        budget -= q[i, NEED] - q[i, DONE]
    while f[r, ROOT] >= 0 and f[r, RUNNING] + f[r, FILLING] < f[r, SEQUENCES]:
        if budget <= 0:
            return
        i = f[r, ROOT]
        context = q[i, PROMPT] + q[i, MADE] - q[i, AWAY]
        first = q[i, NAMES]
        hits = 0
        if q[i, AWAY] == 0:
            while (
                hits < min(q[i, NAMED_PROMPT], (context - 1) // size)
                and _find(cache, head, r, hashes[first + hits]) >= 0
            ):
                hits += 1
        todo = 0 if q[i, AWAY] else context - hits * size
        if policy != CHUNKED and policy != STATIC and f[r, FILLING] > 0 and todo > budget:
            return
        idle_hits = 0
        for n in range(hits):
            idle_hits += cache[r, _find(cache, head, r, hashes[first + n]), USERS] == 0
        wanted = _reserved(q, f, r, i, context) - hits
        spare = f[r, FREE] + f[r, UNUSED] - idle_hits - wanted
        if spare < f[r, WATERMARK] and f[r, RUNNING] + f[r, FILLING] > 0:
            return
        if f[r, ORDER] == GOODPUT and x[i, KEY] < LATER and q[i, MADE] == 0:
            alone = _prefill_s(y, r, todo, hits * size)
            if now + alone > x[i, DUE] + x[i, WITHIN]:
                _take(q, x, f, r)
                if f[r, SHEDS]:
                    q[i, STATUS] = SHED
                    x[i, ENDED] = now
                    q[i, REPLICA] = r
                else:
                    x[i, KEY] += LATER
                    _wait(q, x, f, r, i)
                continue
        _take(q, x, f, r)
        for n in range(hits):
            _use(f, cache, r, _find(cache, head, r, hashes[first + n]))
        q[i, HELD] = hits
        _get_blocks(f, cache, head, r, wanted)
        q[i, NEED], q[i, DONE] = context, context - todo
        if x[i, STARTED] != x[i, STARTED]:
            x[i, STARTED] = now
            q[i, CACHED] = hits * size
        elif q[i, AWAY] == 0:
            q[i, RECOMPUTED] += todo
        fill[r, f[r, FILLING]] = i
        f[r, FILLING] += 1
        budget -= todo


@inner
def _prefill_s(y: Floats, r: int, chunk: int, context: int) -> float:
    """A step of one prompt, if it were alone."""
    attention = y[r, ATTENTION] * chunk * (context + chunk / 2)
    return max(y[r, FLOOR], y[r, TOKEN] * chunk) + attention + y[r, SEQUENCE]


@inner
def _begin_prefill(q: Ints, f: Ints, y: Floats, fill: Ints, r: int, now: float) -> None:
    """One step: chunks of those that are prefilled, first come first, and a token of everybody else if mixed."""
    mixed = f[r, POLICY] == CHUNKED
    decoding = f[r, RUNNING] if mixed else 0
    budget = f[r, TOKENS] - decoding * (1 + f[r, DRAFTS])
    tokens, attention, count, swap = decoding * (1 + f[r, DRAFTS]), 0.0, 0, 0.0
    for n in range(f[r, FILLING]):
        i = fill[r, n]
        if q[i, AWAY]:
            swap += y[r, SWAP] * q[i, NEED]
            q[i, CHUNK] = 0
            continue
        chunk = min(q[i, NEED] - q[i, DONE], max(budget, 1 if n == 0 else 0))
        q[i, CHUNK] = chunk
        budget -= chunk
        tokens += chunk
        attention += chunk * (q[i, DONE] + chunk / 2)
        count += chunk > 0
    step = max(y[r, FLOOR], y[r, TOKEN] * tokens) + y[r, ATTENTION] * attention
    step += y[r, SEQUENCE] * (decoding + count) + swap
    if decoding:
        step += y[r, READING] * y[r, CONTEXT] + _drafting(f, y, r, decoding)
    f[r, PHASE] = PREFILLING
    y[r, START], y[r, BASE], y[r, SLOPE] = now, step, 0.0
    f[r, STEPS] = 1 if decoding else 0
    y[r, NEXT] = now + step


@inner
def _drafting(f: Ints, y: Floats, r: int, decoding: int) -> float:
    return f[r, DRAFTS] * (y[r, DRAFT_STEP] + y[r, DRAFT] * decoding)


@inner
def _begin_decode(f: Ints, y: Floats, r: int, now: float, steps: int) -> None:
    slots = f[r, SLOTS]
    tokens = slots * (1 + f[r, DRAFTS])
    base = max(y[r, FLOOR], y[r, TOKEN] * tokens) + y[r, SEQUENCE] * slots
    base += y[r, READING] * y[r, CONTEXT] + _drafting(f, y, r, slots)
    slope = y[r, READING] * slots * y[r, GAIN]
    f[r, PHASE] = DECODING
    y[r, START], y[r, BASE], y[r, SLOPE], f[r, STEPS] = now, base, slope, steps
    y[r, NEXT] = now + _lasting(base, slope, steps)


@inner
def _affordable(f: Ints, residue: Ints, r: int) -> int:
    """Decode steps until the first is done, or until memory is short."""
    steps = f[r, SOONEST] - f[r, STEP]
    if f[r, DRAFTS] > 0 or f[r, POLICY] == STATIC:
        return steps
    room = f[r, FREE] + f[r, UNUSED]
    if (steps // f[r, SIZE] + 1) * f[r, RUNNING] <= room or _needed(f, residue, r, steps) <= room:
        return steps
    low, high = 0, steps  # the most that fit
    while low < high:
        middle = (low + high + 1) // 2
        if _needed(f, residue, r, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


@inner
def _join(q: Ints, f: Ints, y: Floats, run: Ints, residue: Ints, r: int, i: int) -> None:
    """From now on it decodes."""
    size = f[r, SIZE]
    q[i, BEFORE] = q[i, NEED]
    q[i, BEGIN] = f[r, STEP]
    left = q[i, OUTPUT] - q[i, MADE]
    q[i, END] = f[r, STEP] + math.ceil(left / y[r, GAIN] - 1e-9)
    residue[r, (q[i, BEFORE] - f[r, STEP]) % size] += 1
    f[r, SOONEST] = q[i, END] if f[r, RUNNING] == 0 else min(f[r, SOONEST], q[i, END])
    run[r, f[r, RUNNING]] = i
    f[r, RUNNING] += 1
    f[r, SLOTS] += 1
    y[r, CONTEXT] += q[i, BEFORE]


@inner
def _part(
    q: Ints, f: Ints, y: Floats, run: Ints, residue: Ints, hashes: Ints, cache: Ints, head: Ints, r: int, n: int
) -> None:
    """The n-th of those that decode stops: it is done, or has to make room."""
    size = f[r, SIZE]
    i = run[r, n]
    context = _context(q, f, y, r, i)
    steps = f[r, STEP] - q[i, BEGIN]
    q[i, RAN] = steps
    q[i, MADE] = min(q[i, MADE] + int(steps * y[r, GAIN] + 1e-9), q[i, OUTPUT])
    residue[r, (q[i, BEFORE] - q[i, BEGIN]) % size] -= 1
    f[r, RUNNING] -= 1
    run[r, n] = run[r, f[r, RUNNING]]
    if q[i, END] == f[r, SOONEST] and f[r, RUNNING] > 0:
        soonest = q[run[r, 0], END]
        for other in range(1, f[r, RUNNING]):
            soonest = min(soonest, q[run[r, other], END])
        f[r, SOONEST] = soonest
    if f[r, POLICY] != STATIC:
        f[r, SLOTS] -= 1
        y[r, CONTEXT] -= q[i, BEFORE] + steps * y[r, GAIN]
    if f[r, RUNNING] == 0:  # in a static batch, until then those that are done are computed on
        f[r, SLOTS], y[r, CONTEXT] = 0, 0.0
    _leave(q, f, hashes, cache, head, r, i, context, _reserved(q, f, r, i, context))


@inner
def _make_room(
    q: Ints, x: Floats, f: Ints, y: Floats, run: Ints, residue: Ints, hashes: Ints, cache: Ints, head: Ints, r: int
) -> None:
    """Who came last goes back to those who wait; its tokens are computed again, or brought back."""
    last = NONE
    for n in range(1, f[r, RUNNING]):
        i, j = run[r, n], run[r, last]
        if x[i, KEY] > x[j, KEY] or (x[i, KEY] == x[j, KEY] and i > j):
            last = n
    i = run[r, last]
    _part(q, f, y, run, residue, hashes, cache, head, r, last)
    q[i, PREEMPTIONS] += 1
    q[i, AWAY] = 1 if y[r, SWAP] >= 0 else 0
    _wait(q, x, f, r, i)


@inner
def _plan(
    q: Ints,
    x: Floats,
    f: Ints,
    y: Floats,
    run: Ints,
    fill: Ints,
    residue: Ints,
    hashes: Ints,
    cache: Ints,
    head: Ints,
    r: int,
    now: float,
) -> None:
    """What the replica does next."""
    _admit(q, x, f, y, fill, hashes, cache, head, r, now)
    if f[r, FILLING] > 0:
        if f[r, POLICY] == PREPONE and f[r, RUNNING] > 0 and f[r, PREPONED] == NOT_YET:
            steps = min(f[r, AHEAD], _affordable(f, residue, r))
            if steps > 0:
                f[r, PREPONED] = UNDER_WAY
                _begin_decode(f, y, r, now, steps)
                return
        while f[r, POLICY] == CHUNKED and f[r, RUNNING] > 0 and not _fits(f, residue, r):
            _make_room(q, x, f, y, run, residue, hashes, cache, head, r)
        _begin_prefill(q, f, y, fill, r, now)
    elif f[r, RUNNING] > 0:
        steps = _affordable(f, residue, r)
        while steps == 0:
            _make_room(q, x, f, y, run, residue, hashes, cache, head, r)
            steps = _affordable(f, residue, r)
        _begin_decode(f, y, r, now, min(steps, f[r, LONGEST]))
    else:
        f[r, PHASE] = IDLE
        y[r, NEXT] = NEVER


@inner
def _fits(f: Ints, residue: Ints, r: int) -> bool:
    """Whether there is memory for one more token of everybody."""
    return f[r, DRAFTS] > 0 or _needed(f, residue, r, ONE) <= f[r, FREE] + f[r, UNUSED]


@inner
def _route(f: Ints, routing: int, turn: int) -> int:
    """In turn, or to whom has the least to do."""
    count = len(f)
    if routing == 0 or count == 1:
        return turn % count
    best = NONE
    for r in range(1, count):
        if f[r, WAITING] + f[r, RUNNING] + f[r, FILLING] < (f[best, WAITING] + f[best, RUNNING] + f[best, FILLING]):
            best = r
    return best


@inner
def _key(q: Ints, x: Floats, f: Ints, r: int, i: int, due_s: float) -> float:
    if f[r, ORDER] == SHORTEST:
        return float(q[i, PROMPT] + q[i, OUTPUT])
    if f[r, ORDER] == FIRST:
        return due_s
    return due_s + x[i, WITHIN]


@numba.njit(cache=True)
def serve(
    q: Ints,
    x: Floats,
    f: Ints,
    y: Floats,
    run: Ints,
    fill: Ints,
    residue: Ints,
    hashes: Ints,
    cache: Ints,
    head: Ints,
    routing: int,
    stop_s: float,
) -> Any:
    """Run until everything is done, or until it is time to stop; the records of steps, and of tokens."""
    count = len(q)
    scheduled = count
    while scheduled > 0 and x[scheduled - 1, DUE] != x[scheduled - 1, DUE]:
        scheduled -= 1
    later = np.empty((max(count - scheduled, 1), 2))
    waits = NONE
    arrived = 0
    run_replica, run_step = np.empty(1024, np.int64), np.empty(1024, np.int64)
    run_start, run_base, run_slope = np.empty(1024), np.empty(1024), np.empty(1024)
    runs = 0
    old_request, old_replica = np.empty(1024, np.int64), np.empty(1024, np.int64)
    old_step, old_steps, old_first = np.empty(1024, np.int64), np.empty(1024, np.int64), np.empty(1024)
    olds = 0  # segments before the last one, of requests that had to make room
    while True:
        r = NONE
        for other in range(1, len(f)):
            if y[other, NEXT] < y[r, NEXT]:
                r = other
        due = x[arrived, DUE] if arrived < scheduled else NEVER
        follow = later[0, 0] if waits > 0 else NEVER
        now = y[r, NEXT]
        if now <= due and now <= follow:
            if now == NEVER or now > stop_s:
                break
            y[r, BUSY] += now - y[r, START]
            if f[r, STEPS] > 0:
                if runs == len(run_step):
                    run_replica, run_step = _grown(run_replica), _grown(run_step)
                    run_start, run_base, run_slope = _grown(run_start), _grown(run_base), _grown(run_slope)
                run_replica[runs], run_step[runs] = r, f[r, STEP]
                run_start[runs], run_base[runs], run_slope[runs] = y[r, START], y[r, BASE], y[r, SLOPE]
                runs += 1
                steps = f[r, STEPS]
                if f[r, DRAFTS] == 0 and f[r, POLICY] != STATIC:
                    _get_blocks(f, cache, head, r, _needed(f, residue, r, steps))
                y[r, CONTEXT] += f[r, SLOTS] * steps * y[r, GAIN]
                f[r, STEP] += steps
                n = NONE
                while n < f[r, RUNNING] and f[r, SOONEST] <= f[r, STEP]:
                    i = run[r, n]
                    if q[i, END] > f[r, STEP]:
                        n += 1
                        continue
                    _part(q, f, y, run, residue, hashes, cache, head, r, n)
                    x[i, ENDED], q[i, STATUS] = now, OK
                    if q[i, FOLLOWER] >= 0:
                        waits = _push(later, waits, now + x[q[i, FOLLOWER], THINK], q[i, FOLLOWER])
            if f[r, PREPONED] == UNDER_WAY and f[r, PHASE] == DECODING:
                f[r, PREPONED] = runs - 1
            if f[r, PHASE] == PREFILLING:
                if f[r, PREPONED] >= 0:  # spread over the time that the prefill took
                    record = f[r, PREPONED]
                    first = run_start[record] + run_base[record]
                    delay = (now - first) / (f[r, STEP] - run_step[record])
                    run_start[record], run_base[record], run_slope[record] = first - delay, delay, 0.0
                f[r, PREPONED] = NOT_YET
                kept = 0
                for n in range(f[r, FILLING]):
                    i = fill[r, n]
                    q[i, DONE] += q[i, CHUNK]
                    if q[i, DONE] < q[i, NEED]:
                        fill[r, kept] = i
                        kept += 1
                        continue
                    first = q[i, NAMES]
                    full = min(q[i, NAMED_PROMPT], q[i, NEED] // f[r, SIZE])
                    if full > q[i, HELD]:
                        _name_blocks(f, cache, head, hashes, r, first + q[i, HELD], first + full)
                        q[i, HELD] = full
                    if q[i, PREEMPTIONS] > 0:
                        if olds == len(old_first):
                            old_request, old_replica = _grown(old_request), _grown(old_replica)
                            old_step, old_steps, old_first = _grown(old_step), _grown(old_steps), _grown(old_first)
                        old_request[olds], old_replica[olds], old_first[olds] = i, q[i, REPLICA], x[i, FIRST_TOKEN]
                        old_step[olds], old_steps[olds] = q[i, FROM], q[i, RAN]
                        olds += 1
                    back = q[i, AWAY] == 1
                    q[i, AWAY] = 0
                    q[i, REPLICA], x[i, FIRST_TOKEN] = r, np.nan if back else now
                    q[i, FROM], q[i, RAN] = f[r, STEP], 0
                    q[i, MADE] += 0 if back else 1
                    if q[i, MADE] >= q[i, OUTPUT]:
                        held = _reserved(q, f, r, i, q[i, NEED])
                        _leave(q, f, hashes, cache, head, r, i, q[i, NEED], held)
                        x[i, ENDED], q[i, STATUS] = now, OK
                        if q[i, FOLLOWER] >= 0:
                            waits = _push(later, waits, now + x[q[i, FOLLOWER], THINK], q[i, FOLLOWER])
                    else:
                        _join(q, f, y, run, residue, r, i)
                f[r, FILLING] = kept
            _plan(q, x, f, y, run, fill, residue, hashes, cache, head, r, now)
            continue
        if due <= follow:
            now, i = due, arrived
            arrived += 1
        else:
            now, i = follow, int(later[0, 1])
            waits = _pop(later, waits)
            x[i, DUE] = now
        if now > stop_s:
            break
        r = _route(f, routing, i)
        alone = f[r, ROOT] < 0
        x[i, KEY] = _key(q, x, f, r, i, now)
        _wait(q, x, f, r, i)
        if f[r, PHASE] == IDLE:  # as if a step ended now: what is next is planned in one place
            y[r, START] = y[r, NEXT] = now
            f[r, STEPS] = 0
        elif (
            f[r, PHASE] == DECODING
            and f[r, POLICY] != STATIC
            and f[r, PREPONED] == NOT_YET
            and f[r, RUNNING] < f[r, SEQUENCES]
            and (alone or f[r, ORDER] != FIRST)
        ):
            steps = _steps_by(y[r, BASE], y[r, SLOPE], now - y[r, START], f[r, STEPS])
            f[r, STEPS] = steps
            y[r, NEXT] = y[r, START] + _lasting(y[r, BASE], y[r, SLOPE], steps)
    made = run_replica[:runs], run_step[:runs], run_start[:runs], run_base[:runs], run_slope[:runs]
    before = old_request[:olds], old_replica[:olds], old_first[:olds], old_step[:olds], old_steps[:olds]
    return made, before
