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

from openloop.sim import tables
from openloop.sim.memory import blocks_of, get_blocks, hits_of, leave, use

NEVER = np.inf
LATER = 1e12  # added to the key of what is put off


def lasting(pace: float, slope: float, steps: int) -> float:
    return steps * pace + slope * (steps * (steps - 1) / 2)


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


def cut(m: Any, now: float) -> None:
    """Something changes: the run ends with the step that is under way."""
    if m.phase == tables.DECODING and m.preponed == tables.NOT_YET:
        m.steps = steps_by(m.pace, m.slope, now - m.start, m.steps)
        m.next = m.start + lasting(m.pace, m.slope, m.steps)


def _before(one: Any, other: Any) -> bool:
    """By key, and of equal keys who came first."""
    return bool(one.key < other.key or (one.key == other.key and one.serial < other.serial))


def _meld(t: Any, one: int, other: int) -> int:
    """Two skew heaps as one."""
    if one < 0:
        return other
    if other < 0:
        return one
    if _before(t.attempts[other], t.attempts[one]):
        one, other = other, one
    root = one
    while True:
        rest = t.attempts[one].right
        t.attempts[one].right = t.attempts[one].left
        if rest < 0:
            t.attempts[one].left = other
            return root
        if _before(t.attempts[other], t.attempts[rest]):
            t.attempts[one].left = other
            one, other = other, rest
        else:
            t.attempts[one].left = rest
            one = rest


def wait(t: Any, m: Any, i: int) -> None:
    s = t.attempts[i]
    s.left = s.right = -1
    s.where = tables.WAITING
    m.root = _meld(t, m.root, i)
    if m.waiting == 0:  # the time without a queue says nothing about how fast it moves
        m.admitted = np.nan
    m.waiting += 1
    m.backlog += s.prompt + s.made - s.known


def take(t: Any, m: Any) -> int:
    i = m.root
    s = t.attempts[i]
    m.root = _meld(t, s.left, s.right)
    if s.where == tables.WAITING:
        m.waiting -= 1
        m.backlog -= s.prompt + s.made - s.known
    return i


def _needed(t: Any, m: Any, steps: int) -> int:
    """Blocks that so many decode steps will take."""
    found = steps // m.page * m.running
    for j in range(steps % m.page):
        found += t.residue[m.number, (-(m.step + j)) % m.page]
    return found


def reserved(m: Any, s: Any, context: int) -> int:
    """Blocks that a sequence has. Where a step makes several tokens, and in a static batch, the whole of it from the
    start; otherwise what its context takes."""
    if m.drafts > 0 or m.batching == tables.STATIC:
        return blocks_of(s.prompt + s.output, m.page)
    return blocks_of(context, m.page)


def _prefill_s(m: Any, chunk: int, context: int) -> float:
    """A step of one prompt, if it were alone."""
    step = m.fixed + max(m.floor, m.token * chunk) + m.attention * chunk * (context + chunk / 2) + m.sequence
    return m.slow * (step + m.packed * chunk * (context + chunk))


def predicted_s(m: Any, prompt: int, now: float) -> float:
    """Until the first token of one that would come now: a guess, as a router makes it, by the prompts that wait and by
    how long it took lately to take one from the queue."""
    left = max(m.next - now, 0.0) if m.phase == tables.PREFILLING else 0.0
    return left + max(m.slow * m.token * m.backlog, m.gap * m.waiting) + _prefill_s(m, prompt, 0)


def _admit(t: Any, m: Any, now: float) -> None:
    """Take from those who wait as many as may join the next step."""
    if m.batching == tables.STATIC:
        if m.running > 0 or m.filling > 0:
            return
        m.slots, m.context = 0, 0.0  # until now those that were done were computed on
    budget = m.tokens if m.batching != tables.STATIC else 1 << 40  # a static batch is filled, and read in several steps
    if m.batching == tables.CHUNKED:
        budget -= m.running * (1 + m.drafts)
    for n in range(m.filling):
        s = t.attempts[t.seats[m.number, n].filling]
        budget -= s.need - s.done
    while m.root >= 0 and m.running + m.filling < m.sequences and budget > 0:
        i = m.root
        s = t.attempts[i]
        if s.where == tables.GONE:  # it left while it waited
            take(t, m)
            s.where = tables.FREE
            m.freed += 1
            continue
        context = s.prompt + s.made - (s.away > 0)
        hits, unused = 0, 0
        if t.blocks is not None and s.away == 0:
            s.salt = m.salt
            hits, unused = hits_of(t, m, s, min(s.named_prompt, (context - 1) // m.page))
        todo = 0 if s.away > 0 else context - hits * m.page
        if m.batching != tables.CHUNKED and m.batching != tables.STATIC and m.filling > 0 and todo > budget:
            return
        wanted = reserved(m, s, context) - hits
        if m.free + m.unused - unused - wanted < m.watermark and m.running + m.filling > 0:
            return
        if m.order == tables.GOODPUT and s.key < LATER and s.made == 0:
            if now + _prefill_s(m, todo, hits * m.page) > s.due + s.within:
                take(t, m)
                if m.sheds:
                    s.where, s.left, m.refused = tables.REFUSED, m.refused, i
                else:
                    s.key += LATER
                    wait(t, m, i)
                continue
        take(t, m)
        if t.blocks is not None:
            use(t, m, s, hits)
            s.held = hits
        get_blocks(t, m, wanted)
        if m.admitted == m.admitted:
            m.gap = 0.95 * m.gap + 0.05 * (now - m.admitted)
        m.admitted = now if m.waiting > 0 else np.nan
        s.need, s.done = context, context - todo
        if s.started != s.started:
            s.started = now
            s.cached = hits * m.page
        elif s.away == 0:
            s.recomputed += todo
        if s.away == tables.MOVED:
            s.away = 0
            s.open, s.replica, s.step, s.ran, s.first = 1, m.number, m.step, 0, np.nan
            join(t, m, s, i)
            continue
        s.where = tables.FILLING
        t.seats[m.number, m.filling].filling = i
        m.filling += 1
        budget -= todo


def _padded(m: Any, held: float) -> float:
    """Tokens in memory as the engine reads them."""
    return math.ceil(held / m.padding) * m.padding


def _begin_prefill(t: Any, m: Any, now: float) -> None:
    """One step: chunks of those that are prefilled, first come first, and a token of everybody else if mixed."""
    decoding = m.running if m.batching == tables.CHUNKED else 0
    tokens, attention, count, swap = decoding * (1 + m.drafts), 0.0, 0, 0.0
    held = m.context if decoding else 0.0
    budget = m.tokens - tokens
    for n in range(m.filling):
        s = t.attempts[t.seats[m.number, n].filling]
        if s.away == tables.SWAPPED:
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
    m.phase = tables.PREFILLING
    m.start, m.pace, m.slope = now, m.slow * step, 0.0
    m.steps = 1 if decoding else 0
    m.next = now + m.pace


def _drafting(m: Any, decoding: int) -> float:
    return m.drafts * (m.draft_step + m.draft * decoding)


def _begin_decode(m: Any, now: float, steps: int) -> None:
    tokens = m.slots * (1 + m.drafts)
    each = m.reading + m.packed * tokens  # for a token in memory
    pace = m.fixed + max(m.floor, m.token * tokens) + m.sequence * m.slots
    held, growth = m.context, m.slots * m.gain
    if m.padding > 1:  # the same for all steps until the next multiple
        held = _padded(m, m.context)
        steps, growth = min(steps, int((held - m.context) / growth) + 1), 0.0
    pace += each * held + _drafting(m, m.slots)
    m.phase = tables.DECODING
    m.start, m.pace, m.slope, m.steps = now, m.slow * pace, m.slow * (each * growth), steps
    m.next = now + lasting(m.pace, m.slope, steps)


def _affordable(t: Any, m: Any) -> int:
    """Decode steps until the first is done, or until memory is short."""
    steps = m.soonest - m.step
    if m.drafts > 0 or m.batching == tables.STATIC:
        return steps
    room = m.free + m.unused
    if (steps // m.page + 1) * m.running <= room or _needed(t, m, steps) <= room:
        return steps
    low, high = 0, steps  # the most that fit
    while low < high:
        middle = (low + high + 1) // 2
        if _needed(t, m, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def tokens_held(t: Any, m: Any, now: float) -> int:
    """Room in memory that is taken, with what the steps took that are over of those under way."""
    blocks = m.blocks - m.free - m.unused
    if m.phase == tables.DECODING and m.drafts == 0 and m.batching != tables.STATIC:
        elapsed, first = now - m.start, m.pace - m.slope / 2
        done = int(2 * elapsed / (first + math.sqrt(first * first + 2 * m.slope * elapsed)) + 1e-9)
        blocks += _needed(t, m, min(done, m.steps))
    return blocks * m.page


def grow(t: Any, m: Any, steps: int) -> None:
    """Memory and contexts after so many decode steps."""
    if m.drafts == 0 and m.batching != tables.STATIC:
        get_blocks(t, m, _needed(t, m, steps))
    m.context += m.slots * steps * m.gain
    m.step += steps


def join(t: Any, m: Any, s: Any, i: int) -> None:
    """From now on it decodes."""
    s.where = tables.RUNNING
    s.before = s.need
    s.begin = m.step
    s.end = m.step + math.ceil((s.output - s.made) / m.gain - 1e-9)
    t.residue[m.number, (s.before - m.step) % m.page] += 1
    m.soonest = s.end if m.running == 0 else min(m.soonest, s.end)
    seat = t.seats[m.number, m.running]
    seat.attempt, seat.end = i, s.end
    m.running += 1
    m.slots += 1
    m.context += s.before


def part(t: Any, m: Any, s: Any, n: int) -> None:
    """The n-th of those that decode stops: it is done, has to make room, or has left."""
    steps = m.step - s.begin
    context = s.before + int(steps * m.gain)  # tokens in memory
    s.ran = steps
    s.made = min(s.made + int(steps * m.gain + 1e-9), s.output)
    t.residue[m.number, (s.before - s.begin) % m.page] -= 1
    m.running -= 1
    seat, last = t.seats[m.number, n], t.seats[m.number, m.running]
    seat.attempt, seat.end = last.attempt, last.end
    if s.end == m.soonest and m.running > 0:
        soonest = t.seats[m.number, 0].end
        for other in range(1, m.running):
            soonest = min(soonest, t.seats[m.number, other].end)
        m.soonest = soonest
    if m.batching != tables.STATIC:
        m.slots -= 1
        m.context = m.context - s.before - steps * m.gain if m.running > 0 else 0.0
    leave(t, m, s, context // m.page, reserved(m, s, context))


def _make_room(t: Any, m: Any) -> None:
    """Who came last goes back to those who wait; its tokens are computed again, or brought back."""
    last = 0
    for n in range(1, m.running):
        if _before(t.attempts[t.seats[m.number, last].attempt], t.attempts[t.seats[m.number, n].attempt]):
            last = n
    i = t.seats[m.number, last].attempt
    s = t.attempts[i]
    part(t, m, s, last)
    s.preemptions += 1
    s.away = tables.SWAPPED if m.swap >= 0 else 0
    wait(t, m, i)


def purge(t: Any, m: Any) -> None:
    """Those whose client has left, now that the step is over."""
    n = 0
    while n < m.running:
        s = t.attempts[t.seats[m.number, n].attempt]
        if s.where == tables.GONE:
            part(t, m, s, n)
            s.where = tables.FREE
            m.freed += 1
        else:
            n += 1
    kept = 0
    for n in range(m.filling):
        i = t.seats[m.number, n].filling
        s = t.attempts[i]
        if s.where == tables.GONE:
            leave(t, m, s, s.done // m.page, reserved(m, s, s.need))
            s.where = tables.FREE
            m.freed += 1
        else:
            t.seats[m.number, kept].filling = i
            kept += 1
    m.filling = kept
    m.leaving = 0


def plan_step(t: Any, m: Any, now: float) -> None:
    """What the replica does next."""
    _admit(t, m, now)
    if m.running == 0 and m.filling == 0:
        m.phase = tables.IDLE
        m.next = NEVER
        return
    mixed = m.batching == tables.CHUNKED or m.filling == 0  # whether those that decode go on
    steps = _affordable(t, m) if m.running > 0 else 0
    while steps == 0 and m.running > 0 and mixed:
        _make_room(t, m)
        steps = min(_affordable(t, m), 1) if m.running > 0 else 0  # whoever waits may have room after it
    if m.filling == 0:
        _begin_decode(m, now, min(steps, m.longest))
    elif m.batching == tables.PREPONE and steps > 0 and m.preponed == tables.NOT_YET:
        m.preponed = tables.UNDER_WAY
        _begin_decode(m, now, min(m.ahead, steps))
    else:
        _begin_prefill(t, m, now)


def key_of(m: Any, s: Any) -> float:
    if m.order == tables.SHORTEST:
        return float(s.prompt + s.output)
    if m.order == tables.FIRST:
        return s.due
    return s.due + s.within
