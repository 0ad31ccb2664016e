"""One replica: whom it takes into its batch, and how long its steps last. Compiled into the loop.

All sequences that decode advance together, so between two events that change the batch (an arrival that is admitted, a
finish, a lack of memory) the steps form a run: with n sequences the context grows by n tokens a step, and the time of
step j is pace + slope * j. A run is one record, however many tokens it makes; the times of a request's tokens are read
off these records afterwards.

`m` is the replica, `s` a sequence, `a` all sequences, `seats` who decodes and who is prefilled in each replica.
"""

import math
from typing import Any

import numpy as np

from openloop.sim.memory import blocks_of, get_blocks, hits_of, inner, leave, once, use
from openloop.sim.tables import (
    CHUNKED,
    DECODING,
    FILLING,
    FIRST,
    FREE,
    GONE,
    GOODPUT,
    IDLE,
    MOVED,
    NOT_YET,
    PREFILLING,
    PREPONE,
    REFUSED,
    RUNNING,
    SHORTEST,
    STATIC,
    SWAPPED,
    UNDER_WAY,
    WAITING,
)

__all__ = [
    "NEVER", "NONE", "cut", "forget", "grow", "join", "key_of", "lasting", "part", "plan", "predicted_s", "purge",
    "reserved", "steps_by", "take", "wait",
]  # fmt: skip

NEVER = np.inf
NONE: Any = np.int64(0)  # typed, or else functions would be compiled for the literal as well
LATER = 1e12  # added to the key of what is put off


@inner
def lasting(pace: float, slope: float, steps: int) -> float:
    return steps * pace + slope * (steps * (steps - 1) / 2)


@inner
def steps_by(pace: float, slope: float, elapsed: float, most: int) -> int:
    """The least number of steps that last as long, so the end of the step that is under way; at least one."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if lasting(pace, slope, middle) >= elapsed:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def cut(m: Any, now: float) -> None:
    """Something changes: the run ends with the step that is under way."""
    if m.phase == DECODING and m.preponed == NOT_YET:
        m.steps = steps_by(m.pace, m.slope, now - m.start, m.steps)
        m.next = m.start + lasting(m.pace, m.slope, m.steps)


@inner
def _meld(a: Any, one: int, other: int) -> int:
    """Two skew heaps as one; the least key on top, and of equal keys who came first."""
    if one < 0:
        return other
    if other < 0:
        return one
    if a[other].key < a[one].key or (a[other].key == a[one].key and a[other].serial < a[one].serial):
        one, other = other, one
    root = one
    while True:
        rest = a[one].right
        a[one].right = a[one].left
        if rest < 0:
            a[one].left = other
            return root
        if a[other].key < a[rest].key or (a[other].key == a[rest].key and a[other].serial < a[rest].serial):
            a[one].left = other
            one, other = other, rest
        else:
            a[one].left = rest
            one = rest


@inner
def wait(m: Any, a: Any, i: int) -> None:
    s = a[i]
    s.left = s.right = -1
    s.where = WAITING
    m.root = _meld(a, m.root, i)
    m.waiting += 1
    m.backlog += s.prompt + s.made - s.known


@inner
def take(m: Any, a: Any) -> int:
    i = m.root
    s = a[i]
    m.root = _meld(a, s.left, s.right)
    if s.where == WAITING:
        m.waiting -= 1
        m.backlog -= s.prompt + s.made - s.known
    return i


@once
def forget(m: Any, a: Any) -> None:
    """Those who left while they waited."""
    while m.root >= 0 and a[m.root].where == GONE:
        a[take(m, a)].where = FREE
        m.freed += 1


@inner
def _needed(m: Any, residue: Any, steps: int) -> int:
    """Blocks that so many decode steps will take."""
    found = steps // m.page * m.running
    for j in range(steps % m.page):
        found += residue[m.number, (-(m.step + j)) % m.page]
    return found


@once
def _context(m: Any, s: Any) -> int:
    """Tokens of a running sequence that are in memory."""
    return s.before + int((m.step - s.begin) * m.gain)


@once
def reserved(m: Any, s: Any, context: int) -> int:
    """Blocks that a sequence has. Where a step makes several tokens, and in a static batch, the whole of it from the
    start; otherwise what its context takes."""
    if m.drafts > 0 or m.policy == STATIC:
        return blocks_of(s.prompt + s.output, m.page)
    return blocks_of(context, m.page)


@once
def _prefill_s(m: Any, chunk: int, context: int) -> float:
    """A step of one prompt, if it were alone."""
    step = m.fixed + max(m.floor, m.token * chunk) + m.attention * chunk * (context + chunk / 2) + m.sequence
    return m.slow * (step + m.packed * chunk * (context + chunk))


@inner
def predicted_s(m: Any, prompt: int, now: float) -> float:
    """Until the first token of one that would come now: a guess, as a router makes it, by the prompts that wait and by
    how long it took lately to take one from the queue."""
    left = max(m.next - now, 0.0) if m.phase == PREFILLING else 0.0
    return left + max(m.slow * m.token * m.backlog, m.gap * m.waiting) + _prefill_s(m, prompt, NONE)


@inner
def _admit(
    m: Any, a: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any, line: Any, now: float
) -> None:
    """Take from those who wait as many as may join the next step."""
    if m.policy == STATIC and (m.running > 0 or m.filling > 0):
        return
    budget = m.tokens
    if m.policy == CHUNKED:
        budget -= m.running * (1 + m.drafts)
    for n in range(m.filling):
        s = a[seats[m.number, n].filling]
        budget -= s.need - s.done
    while m.root >= 0 and m.running + m.filling < m.sequences and budget > 0:
        i = m.root
        s = a[i]
        if s.where == GONE:
            forget(m, a)
            continue
        context = s.prompt + s.made - (s.away > 0)
        hits, unused = 0, 0
        if blocks is not None and s.away == 0:
            s.salt = m.salt
            hits, unused = hits_of(m, s, blocks, head, hashes, spots, min(s.named_prompt, (context - 1) // m.page))
        todo = 0 if s.away > 0 else context - hits * m.page
        if m.policy != CHUNKED and m.policy != STATIC and m.filling > 0 and todo > budget:
            return
        wanted = reserved(m, s, context) - hits
        if m.free + m.unused - unused - wanted < m.watermark and m.running + m.filling > 0:
            return
        if m.order == GOODPUT and s.key < LATER and s.made == 0:
            if now + _prefill_s(m, todo, hits * m.page) > s.due + s.within:
                take(m, a)
                if m.sheds:
                    s.where, s.left, m.refused = REFUSED, m.refused, i
                else:
                    s.key += LATER
                    wait(m, a, i)
                continue
        take(m, a)
        if blocks is not None:
            use(m, s, blocks, spots, hits)
            s.held = hits
        get_blocks(m, blocks, head, line, wanted)
        if m.admitted == m.admitted:
            m.gap = 0.95 * m.gap + 0.05 * (now - m.admitted)
        m.admitted = now if m.waiting > 0 else np.nan
        s.need, s.done = context, context - todo
        if s.started != s.started:
            s.started = now
            s.cached = hits * m.page
        elif s.away == 0:
            s.recomputed += todo
        if s.away == MOVED:
            s.away = 0
            s.open, s.replica, s.step, s.ran, s.first = 1, m.number, m.step, 0, np.nan
            join(m, s, i, seats, residue)
            continue
        s.where = FILLING
        seats[m.number, m.filling].filling = i
        m.filling += 1
        budget -= todo


@once
def _padded(m: Any, held: float) -> float:
    """Tokens in memory as the engine reads them."""
    return math.ceil(held / m.padding) * m.padding


@inner
def _begin_prefill(m: Any, a: Any, seats: Any, now: float) -> None:
    """One step: chunks of those that are prefilled, first come first, and a token of everybody else if mixed."""
    decoding = m.running if m.policy == CHUNKED else 0
    tokens, attention, count, swap = decoding * (1 + m.drafts), 0.0, 0, 0.0
    held = m.context if decoding else 0.0
    budget = m.tokens - tokens
    for n in range(m.filling):
        s = a[seats[m.number, n].filling]
        if s.away == SWAPPED:
            swap += m.swap * s.need
            s.chunk = 0
            continue
        chunk = min(s.need - s.done, max(budget, 1 if n == 0 else 0))
        s.chunk = chunk
        budget -= chunk
        tokens += chunk
        attention += chunk * (s.done + chunk / 2)
        count += chunk > 0
        held += s.done + chunk
    step = m.fixed + max(m.floor, m.token * tokens) + m.attention * attention + m.sequence * (decoding + count) + swap
    if m.padding > 1:
        held = _padded(m, held)
    step += m.packed * tokens * held + m.reading * (held if m.padding > 1 else m.context if decoding else 0.0)
    if decoding:
        step += _drafting(m, decoding)
    m.phase = PREFILLING
    m.start, m.pace, m.slope = now, m.slow * step, 0.0
    m.steps = 1 if decoding else 0
    m.next = now + m.pace


@once
def _drafting(m: Any, decoding: int) -> float:
    return m.drafts * (m.draft_step + m.draft * decoding)


@once
def _begin_decode(m: Any, now: float, steps: int) -> None:
    tokens = m.slots * (1 + m.drafts)
    each = m.reading + m.packed * tokens  # for a token in memory
    pace = m.fixed + max(m.floor, m.token * tokens) + m.sequence * m.slots
    held, growth = m.context, m.slots * m.gain
    if m.padding > 1:  # the same for all steps until the next multiple
        held = _padded(m, m.context)
        steps, growth = min(steps, int((held - m.context) / growth) + 1), 0.0
    pace += each * held + _drafting(m, m.slots)
    m.phase = DECODING
    m.start, m.pace, m.slope, m.steps = now, m.slow * pace, m.slow * (each * growth), steps
    m.next = now + lasting(m.pace, m.slope, steps)


@inner
def _affordable(m: Any, residue: Any) -> int:
    """Decode steps until the first is done, or until memory is short."""
    steps = m.soonest - m.step
    if m.drafts > 0 or m.policy == STATIC:
        return steps
    room = m.free + m.unused
    if (steps // m.page + 1) * m.running <= room or _needed(m, residue, steps) <= room:
        return steps
    low, high = 0, steps  # the most that fit
    while low < high:
        middle = (low + high + 1) // 2
        if _needed(m, residue, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


@once
def grow(m: Any, residue: Any, blocks: Any, head: Any, line: Any, steps: int) -> None:
    """Memory and contexts after so many decode steps."""
    if m.drafts == 0 and m.policy != STATIC:
        get_blocks(m, blocks, head, line, _needed(m, residue, steps))
    m.context += m.slots * steps * m.gain
    m.step += steps


@inner
def join(m: Any, s: Any, i: int, seats: Any, residue: Any) -> None:
    """From now on it decodes."""
    s.where = RUNNING
    s.before = s.need
    s.begin = m.step
    s.end = m.step + math.ceil((s.output - s.made) / m.gain - 1e-9)
    residue[m.number, (s.before - m.step) % m.page] += 1
    m.soonest = s.end if m.running == 0 else min(m.soonest, s.end)
    seat = seats[m.number, m.running]
    seat.attempt, seat.end = i, s.end
    m.running += 1
    m.slots += 1
    m.context += s.before


@inner
def part(
    m: Any, s: Any, n: int, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any, line: Any
) -> None:
    """The n-th of those that decode stops: it is done, has to make room, or has left."""
    context = _context(m, s)
    steps = m.step - s.begin
    s.ran = steps
    s.made = min(s.made + int(steps * m.gain + 1e-9), s.output)
    residue[m.number, (s.before - s.begin) % m.page] -= 1
    m.running -= 1
    seat, last = seats[m.number, n], seats[m.number, m.running]
    seat.attempt, seat.end = last.attempt, last.end
    if s.end == m.soonest and m.running > 0:
        soonest = seats[m.number, 0].end
        for other in range(1, m.running):
            soonest = min(soonest, seats[m.number, other].end)
        m.soonest = soonest
    if m.policy != STATIC:
        m.slots -= 1
        m.context -= s.before + steps * m.gain
    if m.running == 0:  # in a static batch, until then those that are done are computed on
        m.slots, m.context = 0, 0.0
    leave(m, s, blocks, head, line, hashes, spots, context // m.page, reserved(m, s, context))


@inner
def _make_room(
    m: Any, a: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any, line: Any
) -> None:
    """Who came last goes back to those who wait; its tokens are computed again, or brought back."""
    last = NONE
    for n in range(1, m.running):
        s, t = a[seats[m.number, n].attempt], a[seats[m.number, last].attempt]
        if s.key > t.key or (s.key == t.key and s.serial > t.serial):
            last = n
    i = seats[m.number, last].attempt
    s = a[i]
    part(m, s, last, seats, residue, hashes, spots, blocks, head, line)
    s.preemptions += 1
    s.away = SWAPPED if m.swap >= 0 else 0
    wait(m, a, i)


@inner
def purge(m: Any, a: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any, line: Any) -> None:
    """Those whose client has left, now that the step is over."""
    n = NONE
    while n < m.running:
        s = a[seats[m.number, n].attempt]
        if s.where == GONE:
            part(m, s, n, seats, residue, hashes, spots, blocks, head, line)
            s.where = FREE
            m.freed += 1
        else:
            n += 1
    kept = NONE
    for n in range(m.filling):
        i = seats[m.number, n].filling
        s = a[i]
        if s.where == GONE:
            leave(m, s, blocks, head, line, hashes, spots, s.done // m.page, reserved(m, s, s.need))
            s.where = FREE
            m.freed += 1
        else:
            seats[m.number, kept].filling = i
            kept += 1
    m.filling = kept
    m.leaving = 0


@inner
def plan(
    m: Any, a: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any, line: Any, now: float
) -> None:
    """What the replica does next."""
    _admit(m, a, seats, residue, hashes, spots, blocks, head, line, now)
    if m.running == 0 and m.filling == 0:
        m.phase = IDLE
        m.next = NEVER
        return
    mixed = m.policy == CHUNKED or m.filling == 0  # whether those that decode go on
    steps = _affordable(m, residue) if m.running > 0 else NONE
    while steps == 0 and m.running > 0 and mixed:
        _make_room(m, a, seats, residue, hashes, spots, blocks, head, line)
        steps = _affordable(m, residue) if m.running > 0 else NONE
    if m.filling == 0:
        _begin_decode(m, now, min(steps, m.longest))
    elif m.policy == PREPONE and steps > 0 and m.preponed == NOT_YET:
        m.preponed = UNDER_WAY
        _begin_decode(m, now, min(m.ahead, steps))
    else:
        _begin_prefill(m, a, seats, now)


@once
def key_of(m: Any, s: Any) -> float:
    if m.order == SHORTEST:
        return float(s.prompt + s.output)
    if m.order == FIRST:
        return s.due
    return s.due + s.within
