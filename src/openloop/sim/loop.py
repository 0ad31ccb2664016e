"""A fleet in virtual time: what happens next, until there is nothing left or it is time to stop.

Three kinds of things happen: a replica ends its steps, a request arrives, or something that was put off is due (the
next turn of a conversation, a retry, a copy, a client who gives up, tokens that reach their client, memory that has
been handed over, an event of the plan). The earliest comes first; of equal times replicas come before arrivals, and
otherwise who was put off first.

Everything is in tables, so the loop can stop anywhere and go on: it returns when a table is full, or at `until`. What
is not used is None, and its part of the code is not compiled.

`t` has all tables; `w` are the counters of the loop.
"""

import math
from typing import Any

import numpy as np

from openloop.native.build import native
from openloop.persistence import SPARE
from openloop.routing import find_home, forget, learn, learn_home, look
from openloop.sim import replica, tables
from openloop.sim.memory import forget_all, get_blocks, hits_of, leave, name_blocks, use

FULL, REACHED, ENDED = range(3)  # why the loop returned
SPARE_ROWS = 8
FOLLOW, AGAIN, COPY, GIVE_UP, LOSE_PATIENCE, ARRIVE, HAPPEN, LOOK, SEE, RECEIVE = range(10)  # what was put off
QUEUES, TAIL, GOODPUT = range(3)  # what a scaler looks at
SHORTEST_S, BINS_PER_OCTAVE = 1e-4, 16  # of the histogram of times to first token


def push(t: Any, time: float, kind: int, number: int, serial: int) -> None:
    """A binary heap by time, and by who was first."""
    w = t.world[0]
    place = w.waits
    w.waits += 1
    w.order += 1
    while place > 0:
        above = t.later[(place - 1) // 2]
        if above.time <= time:
            break
        t.later[place] = above
        place = (place - 1) // 2
    row = t.later[place]
    row.time, row.order, row.kind, row.number, row.serial = time, w.order, kind, number, serial


def _sooner(one: Any, other: Any) -> bool:
    return bool(one.time < other.time or (one.time == other.time and one.order < other.order))


def _pop(t: Any) -> None:
    """Take the first off; the caller has read it."""
    w = t.world[0]
    w.waits -= 1
    size = w.waits
    if size == 0:
        return
    last = t.later[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _sooner(t.later[below + 1], t.later[below]):
            below += 1
        if _sooner(last, t.later[below]):
            break
        t.later[place] = t.later[below]
        place = below
    t.later[place] = last


def _chance(seed: int, number: int, tries: int) -> float:
    """Between 0 and 1, the same for the same arguments on every machine (as splitmix64 does)."""
    value = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(number) * np.uint64(0xBF58476D1CE4E5B9)
    value = value + np.uint64(tries) * np.uint64(0xD1B54A32D192ED03)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((value ^ (value >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


def _new_attempt(t: Any, request: int, kind: int, now: float) -> int:
    w = t.world[0]
    while t.attempts[w.spare].where != tables.FREE:
        w.spare = (w.spare + 1) % len(t.attempts)
    i = w.spare
    s, q = t.attempts[i], t.requests[request]
    w.serial += 1
    w.live += 1
    w.taken += 1
    s.serial, s.request, s.kind, s.attempt = w.serial, request, kind, q.tries
    s.replica, s.where = -1, tables.MOVING
    s.prompt, s.output, s.names, s.named, s.named_prompt = q.prompt, q.output, q.names, q.named, q.named_prompt
    s.made = s.need = s.done = s.held = s.away = s.cached = s.recomputed = s.preemptions = s.open = s.ran = 0
    s.step = s.known = 0
    s.due, s.within, s.sent = q.due, q.within, now
    s.started = s.ended = s.answered = s.first = np.nan
    s.handed = -replica.NEVER
    q.tries += 1
    q.live += 1
    if kind == tables.HEDGE:
        q.second = i
        q.copies += 1
    else:
        q.first = i
    return i


def _end(t: Any, s: Any, status: int, now: float) -> None:
    """The client has its answer, or none; what it does then."""
    w = t.world[0]
    s.status, s.ended = status, now
    t.ended[w.ended] = s
    w.ended += 1
    w.live -= 1
    q = t.requests[s.request]
    q.live -= 1
    if status == tables.OK:
        q.done = 1
        if t.later is not None and q.follower >= 0:
            push(t, now + t.requests[q.follower].think, FOLLOW, q.follower, 0)
    if t.client is not None:
        if q.live == 1 and s.kind != tables.HEDGE:
            q.first = q.second
        if q.live == 0:  # otherwise the other copy will tell
            w.ends += 1
            w.good += status == tables.OK and s.answered - s.due <= s.within
        c = t.client[0]
        waves = q.tries - q.copies
        wanted = (
            (status == tables.ERROR and c.on_error)
            or (status == tables.TIMEOUT and c.on_timeout)
            or (status == tables.SHED and c.on_shed)
        )
        if wanted and q.done == 0 and q.live == 0 and waves <= c.tries:
            if w.retries < c.budget * w.requests + SPARE:
                w.retries += 1
                longest = min(c.pause * c.factor ** (waves - 1), c.cap)
                pause = longest * (1 - c.jitter * _chance(w.seed, s.request, q.tries))
                push(t, now + pause, AGAIN, s.request, 0)


def _finish(t: Any, s: Any, status: int, now: float) -> None:
    """No replica has it any more. Its client hears of that, unless it has left."""
    if s.where != tables.GONE:
        _end(t, s, status, now)
    s.where = tables.FREE
    t.world[0].taken -= 1


def _deliver(t: Any, i: int, now: float) -> None:
    """Its last token is made, and its client has it a little later."""
    s = t.attempts[i]
    late = t.requests[s.request].late + max(s.handed + t.world[0].delay * (s.output - 1) - now, 0.0)
    if t.later is not None and late > 0 and s.where != tables.GONE:
        s.where = tables.MOVING
        push(t, now + late, RECEIVE, i, s.serial)
    else:
        _finish(t, s, tables.OK, now)


def _withdraw(t: Any, s: Any, status: int, now: float) -> None:
    """The client leaves; the replica notices at the end of its step."""
    where = s.where
    if where == tables.MOVING:
        _finish(t, s, status, now)
        return
    m = t.replicas[s.replica]
    if where == tables.WAITING:
        m.waiting -= 1
        m.backlog -= s.prompt + s.made - s.known
        if m.batching != tables.STATIC and m.running < m.sequences and t.attempts[m.root].serial == s.serial:
            replica.cut(m, now)  # there may be room for who was behind it
    else:
        replica.cut(m, now)
        m.leaving += 1
        if where == tables.RUNNING:
            s.ran = m.step - s.begin + (m.steps if m.phase == tables.DECODING else 0)
    _end(t, s, status, now)
    s.where = tables.GONE


def _answer(t: Any, s: Any, now: float) -> None:
    """Its first token has come: the other copy is not needed any more."""
    w = t.world[0]
    s.answered = now
    c = t.client[0]
    w.answers += 1
    w.slow += now - s.due > c.tail
    q = t.requests[s.request]
    sent = s.sent
    if q.live > 1:
        other = t.attempts[q.first if s.kind == tables.HEDGE else q.second]
        sent = min(sent, other.sent)  # how late the first one is, or copies would make more of themselves
        _withdraw(t, other, tables.CANCELLED, now)
    if c.hedge_percentile > 0:
        spot = int(BINS_PER_OCTAVE * math.log2(max((now - sent) / SHORTEST_S, 1.0)))
        t.waits[min(spot, len(t.waits) - 1)] += 1
        w.answered += 1
        if w.answered % 64 == 0:
            so_far, place = 0, 0
            while so_far < c.hedge_percentile * w.answered:
                so_far += t.waits[place]
                place += 1
            w.hedge_after = SHORTEST_S * 2 ** (place / BINS_PER_OCTAVE)


def _count(t: Any, m: Any, now: float) -> tuple[int, int, int]:
    """Requests, tokens of prompts to read, and all tokens."""
    prefill = m.backlog
    for n in range(m.filling):
        s = t.attempts[t.seats[m.number, n].filling]
        prefill += s.need - s.done
    held = replica.tokens_held(t, m, now) if t.world[0].weighs else (m.blocks - m.free - m.unused) * m.page
    return m.waiting + m.running + m.filling, prefill, held + m.backlog


def _see(t: Any, m: Any, v: Any, now: float) -> None:
    """What a replica says of itself."""
    v.requests, v.prefill, v.tokens = v.sent, v.sent_prefill, v.sent_tokens = _count(t, m, now)
    v.waiting, v.used = m.waiting, v.tokens - m.backlog
    v.capacity, v.memory, v.pace, v.gap = m.sequences, m.blocks * m.page, m.slow * m.token, m.gap


def _look_up(t: Any, s: Any, session: int) -> None:
    """Where this prompt is known: by what caches say, or by what was sent where."""
    w = t.world[0]
    home = find_home(t.index, session)
    for r in range(len(t.views)):
        t.views[r].home = t.held[home, r] if home > 0 else 0
    if t.blocks is not None:
        most = min(s.named_prompt, (s.prompt - 1) // t.replicas[0].page)
        if w.exact == 0:
            names = t.hashes[s.names + w.stride - 1 : s.names + most : w.stride]
            look(t.index, t.held, names, t.views, w.stride * t.replicas[0].page)
            return
        for r in range(len(t.views)):
            m, v = t.replicas[r], t.views[r]
            s.salt = m.salt
            hits, _ = hits_of(t, m, s, most)
            v.cached, v.known = hits * m.page, (t.blocks.shape[1] - m.spares) * m.page


def _route(t: Any, s: Any, session: int, now: float, avoid: int) -> int:
    """Where it goes; -1: nobody should have it, -2: there is nobody."""
    w = t.world[0]
    some = 0
    for r in range(len(t.replicas)):
        m, v = t.replicas[r], t.views[r]
        v.open = m.up == 1 and m.draining == 0 and m.role != tables.DECODE
        some += v.open
        if w.view_every == 0:
            _see(t, m, v, now)
        else:
            v.age = now - w.viewed
            v.sent, v.sent_prefill, v.sent_tokens = _count(t, m, now)
    if some == 0:
        return -2
    if some > 1 and avoid >= 0:
        t.views[avoid].open = 0
    k = t.ask[0]
    k.number, k.prompt, k.output, k.session, k.deadline = s.request, s.prompt, s.output, session, s.due + s.within
    k.prefix = -1
    if t.blocks is not None and s.named_prompt > 0:
        k.prefix = t.hashes[s.names + min(s.named_prompt, w.stride) - 1]
    if t.index is not None:
        _look_up(t, s, session)
    found = t.choose(t.ask, t.views, t.state, t.knobs, now)
    if found < 0 or found >= len(t.views) or t.views[found].open == 0:
        return -1
    if t.index is not None:
        s.known = min(t.views[found].cached, s.prompt - 1)
        learn_home(t.index, t.held, session, found)
        if t.blocks is not None and w.exact == 0:
            learn(t.index, t.held, t.hashes[s.names + w.stride - 1 : s.names + s.named_prompt : w.stride], found)
    return found


def _refuses(t: Any, m: Any, s: Any, now: float) -> bool:
    """Admission, before anything is queued."""
    w = t.world[0]
    if m.limited == tables.IN_FLIGHT:
        return m.waiting + m.running + m.filling >= m.limit
    if m.limited == tables.QUEUE:
        return m.waiting >= m.limit
    if m.limited == tables.LIKELY_LATE:
        return now + replica.predicted_s(m, s.prompt, now) > s.due + s.within
    if t.client is not None and m.limited == tables.BUCKET:
        c = t.client[0]
        w.bucket = min(c.bucket_burst, w.bucket + (now - w.bucket_time) * c.bucket_rate)
        w.bucket_time = now
        if w.bucket < 1.0:
            return True
        w.bucket -= 1.0
    return False


def _enqueue(t: Any, m: Any, i: int, now: float) -> None:
    s = t.attempts[i]
    s.replica = m.number
    s.key = replica.key_of(m, s)
    replica.wait(t, m, i)
    if m.phase == tables.IDLE:  # as if a step ended now: what is next is planned in one place
        m.start = m.next = now
        m.steps = 0
    elif m.batching != tables.STATIC and m.running < m.sequences and m.root == i:  # others wait for who is before them
        replica.cut(m, now)


def _send(t: Any, request: int, kind: int, now: float) -> None:
    """A new attempt, to whom the routing policy says."""
    w = t.world[0]
    avoid = t.attempts[t.requests[request].first].replica if kind == tables.HEDGE else -1
    i = _new_attempt(t, request, kind, now)
    s = t.attempts[i]
    r = 0
    if t.choose is not None:
        r = _route(t, s, t.requests[request].session, now, avoid)
    if t.client is not None:
        c = t.client[0]
        if c.timeout < replica.NEVER:
            push(t, now + c.timeout, GIVE_UP, i, s.serial)
        if kind == tables.FIRST_TRY:
            w.requests += 1
            if c.patience < replica.NEVER:
                push(t, now + c.patience, LOSE_PATIENCE, request, 0)
            if w.hedge_after < replica.NEVER:
                push(t, now + w.hedge_after, COPY, request, 0)
    if r < 0 or _refuses(t, t.replicas[r], s, now):
        s.replica = r if r >= 0 else -1
        _finish(t, s, tables.ERROR if r == -2 else tables.SHED, now)
    else:
        _enqueue(t, t.replicas[r], i, now)


def write_run(t: Any, m: Any, step: int, start: float, pace: float, slope: float) -> None:
    w = t.world[0]
    row = t.runs[w.runs]
    row.replica, row.step, row.start, row.pace, row.slope = m.number, step, start, pace, slope
    w.runs += 1


def _close(t: Any, s: Any) -> None:
    """The stretch of tokens before this one."""
    w = t.world[0]
    if s.open:
        row = t.segments[w.segments]
        row.serial, row.replica, row.step, row.steps, row.first = s.serial, s.replica, s.step, s.ran, s.first
        w.segments += 1
        s.open = 0


def _hand_out(t: Any, m: Any) -> None:
    """Between two tokens that are handed out is a delay: steps that took longer than it can have put all of them off,
    most at the first or the last of a run; with drafts, whose steps do not all make as many, at any."""
    delay, gap = t.world[0].delay, 1 if m.drafts > 0 else max(m.steps - 1, 1)
    for n in range(m.running):
        s = t.attempts[t.seats[m.number, n].attempt]
        steps = m.step - s.begin
        for j in range(0, m.steps, gap):
            at = m.start + replica.lasting(m.pace, m.slope, j + 1)
            s.handed = max(s.handed, at - delay * (s.made + int((steps + j) * m.gain + 1e-9)))


def _end_steps(t: Any, m: Any, now: float) -> None:
    """Decode steps are over: everybody has so many more tokens, and some are done."""
    if m.preponed == tables.UNDER_WAY:
        m.preponed = tables.DONE
        m.kept_step, m.kept_start, m.kept_pace = m.step, m.start, m.pace
    else:
        write_run(t, m, m.step, m.start, m.pace, m.slope)
    if t.later is not None and t.world[0].delay > 0:
        _hand_out(t, m)
    replica.grow(t, m, m.steps)
    n = 0
    while n < m.running and m.soonest <= m.step:
        seat = t.seats[m.number, n]
        if seat.end > m.step:
            n += 1
            continue
        i = seat.attempt
        s = t.attempts[i]
        replica.part(t, m, s, n)
        m.leaving -= s.where == tables.GONE
        _deliver(t, i, now)


def _end_prefill(t: Any, m: Any, now: float) -> None:
    """Whose prompt is read has its first token, and decodes from now on, here or elsewhere."""
    if m.preponed == tables.DONE:  # the tokens made ahead are spread over the time that the prefill took
        first = m.kept_start + m.kept_pace
        delay = (now - first) / (m.step - m.kept_step)
        write_run(t, m, m.kept_step, first - delay, delay, 0.0)
    m.preponed = tables.NOT_YET
    kept = 0
    for n in range(m.filling):
        i = t.seats[m.number, n].filling
        s = t.attempts[i]
        s.done += s.chunk
        if s.done < s.need or s.where == tables.GONE:
            t.seats[m.number, kept].filling = i
            kept += 1
            continue
        if t.blocks is not None:
            name_blocks(t, m, s, min(s.named_prompt, s.need // m.page))
        _close(t, s)
        back = s.away == tables.SWAPPED
        s.away = 0
        s.open, s.replica, s.step, s.ran, s.first = 1, m.number, m.step, 0, np.nan if back else now
        if not back:
            s.handed = max(s.handed, now - t.world[0].delay * s.made)
            s.made += 1
        if t.client is not None and s.answered != s.answered:
            late = t.requests[s.request].late
            if late > 0:
                push(t, now + late, SEE, i, s.serial)
            else:
                _answer(t, s, now)
        if s.made < s.output and m.role != tables.PREFILL:
            replica.join(t, m, s, i)
            continue
        leave(t, m, s, s.need // m.page, replica.reserved(m, s, s.need))
        if s.made >= s.output:
            _deliver(t, i, now)
        elif t.later is not None:
            _close(t, s)
            s.where, s.away = tables.MOVING, tables.MOVED
            push(t, now + m.transfer + m.transfer_token * s.need, ARRIVE, i, s.serial)
    m.filling = kept


def _crash(t: Any, m: Any, now: float) -> None:
    """All that is under way is lost, and so is what was known."""
    if m.phase != tables.IDLE:
        m.busy += now - m.start
    if m.preponed == tables.DONE:
        write_run(t, m, m.kept_step, m.kept_start, m.kept_pace, 0.0)
    if m.phase == tables.DECODING:
        done = replica.steps_by(m.pace, m.slope, now - m.start, m.steps)
        done -= replica.lasting(m.pace, m.slope, done) > now - m.start
        if done > 0:
            write_run(t, m, m.step, m.start, m.pace, m.slope)
            m.step += done
    for n in range(m.running):
        s = t.attempts[t.seats[m.number, n].attempt]
        s.ran = m.step - s.begin
        _finish(t, s, tables.ERROR, now)
    for n in range(m.filling):
        _finish(t, t.attempts[t.seats[m.number, n].filling], tables.ERROR, now)
    while m.root >= 0:
        _finish(t, t.attempts[replica.take(t, m)], tables.ERROR, now)
    for n in range(t.residue.shape[1]):
        t.residue[m.number, n] = 0
    m.running = m.filling = m.slots = m.leaving = m.waiting = m.backlog = 0
    m.context, m.phase, m.next, m.preponed = 0.0, tables.IDLE, replica.NEVER, tables.NOT_YET
    forget_all(t, m)
    if t.held is not None:
        forget(t.held, m.number)
    _stop(t, m, now)


def _stop(t: Any, m: Any, now: float) -> None:
    """It serves nobody any more. What crashed comes back, so it stays reserved, and is paid for."""
    if t.log is not None and m.up and not m.crashed:
        _note(t, tables.LEFT, m.number, now, m.up_since)
    m.up = m.draining = 0


def _note(t: Any, kind: int, number: int, now: float, value: float) -> None:
    w = t.world[0]
    row = t.log[w.events]
    row.kind, row.replica, row.time, row.value = kind, number, now, value
    w.events += 1


def _happen(t: Any, number: int, now: float) -> None:
    w = t.world[0]
    e = t.events[number]
    if now + e.every < e.until:
        push(t, now + e.every, HAPPEN, number, 0)
    m = t.replicas[e.replica]
    if e.kind == tables.CRASH and (m.up != 1 or (e.value > 0 and m.draining == 0)):
        return  # it had been taken away, is being replaced, or is new
    if e.kind == tables.DRAIN and m.up != 1 and (m.crashed == 0 or e.value == 0):
        return
    if e.kind == tables.START and (m.up == 1 or (m.crashed == 0 and e.value == 0)):
        return  # it is back already, or had been taken away before it was to be replaced
    _note(t, e.kind, e.replica, now, e.value)
    if e.kind == tables.ROTATE:
        for r in range(len(t.replicas)):
            t.replicas[r].salt = int(_chance(w.seed, number, w.order) * (1 << 52))
    elif e.kind == tables.SLOW:
        m.slow = e.value
        replica.cut(m, now)
    elif e.kind == tables.CRASH:
        m.crashed = m.draining != 2
        _crash(t, m, now)
    elif e.kind == tables.START:
        m.up_since = now if m.up == 0 and not m.crashed else m.up_since
        m.up, m.draining, m.crashed = 1, 0, 0
        forget_all(t, m)
        if t.held is not None:
            forget(t.held, m.number)
    elif e.kind == tables.DRAIN:
        m.up, m.crashed = 1, 0  # one that is down will not come back
        m.draining = max(m.draining, 2 if e.value > 0 else 1)
        if m.draining == 2 and m.phase == tables.IDLE:
            _stop(t, m, now)


def _look(t: Any, now: float) -> None:
    """Whether the fleet has the right size; one replica more or less at a time."""
    w = t.world[0]
    c = t.scaler[0]
    ready, coming, waiting, requests = 0, 0, 0, 0
    down, last = -1, -1
    for r in range(len(t.replicas)):
        m = t.replicas[r]
        if m.up == 1 and m.draining == 0:
            ready += 1
            last = r
            waiting += m.waiting
            requests += m.waiting + m.running + m.filling
        coming += m.up == 2
        to_come = r >= c.most and m.up_since == 0  # an event is to add it
        if m.up == 0 and not to_come and (down < 0 or (t.replicas[down].crashed and not m.crashed)):
            down = r  # one that crashed comes back anyway
    more = False
    if c.signal == QUEUES:
        more = waiting > c.target * ready
    elif c.signal == TAIL:
        more = w.slow > 0.01 * w.answers
    else:
        more = w.good < c.target * w.ends
    w.answers = w.slow = w.ends = w.good = 0
    if more and down >= 0 and ready + coming < c.most and coming == 0:
        m = t.replicas[down]
        m.up_since = m.up_since if m.crashed else now
        m.up, m.slow = 2, 1.0
        push(t, now + c.delay, HAPPEN, len(t.events) - len(t.replicas) + down, 0)
        _note(t, tables.SCALE_OUT, down, now, 0.0)
    elif not more and ready > c.least and requests < c.idle * ready and coming == 0:
        m = t.replicas[last]
        m.draining = 2
        _note(t, tables.SCALE_IN, last, now, 0.0)
        if m.phase == tables.IDLE:
            _stop(t, m, now)
    if w.live > 0 or w.waits > 0 or w.arrived < w.scheduled:
        push(t, now + c.every, LOOK, 0, 0)


def _put_off(t: Any, now: float) -> None:
    """The first of those that were put off is due."""
    w = t.world[0]
    kind, number, serial = t.later[0].kind, t.later[0].number, t.later[0].serial
    _pop(t)
    if kind == FOLLOW or kind == AGAIN:
        if kind == FOLLOW:
            t.requests[number].due = now
        elif t.requests[number].done == 1:
            return  # who would have asked again has left
        _send(t, number, tables.FIRST_TRY if kind == FOLLOW else tables.RETRY, now)
    elif kind == ARRIVE:
        s = t.attempts[number]
        if s.serial == serial and s.where == tables.MOVING:
            best = -1
            for r in range(len(t.replicas)):
                m = t.replicas[r]
                if m.role == tables.DECODE and m.up == 1 and m.draining == 0:
                    if best < 0 or m.waiting + m.running < t.replicas[best].waiting + t.replicas[best].running:
                        best = r
            if best < 0:
                _finish(t, s, tables.ERROR, now)
            else:
                _enqueue(t, t.replicas[best], number, now)
    elif kind == RECEIVE:
        s = t.attempts[number]
        if s.serial == serial and s.where == tables.MOVING:
            _finish(t, s, tables.OK, now)
    elif t.client is not None:
        if kind == GIVE_UP or kind == SEE:
            s = t.attempts[number]
            if s.serial == serial and s.where != tables.FREE and s.where != tables.GONE:
                if kind == GIVE_UP:
                    _withdraw(t, s, tables.TIMEOUT, now)
                elif s.answered != s.answered:
                    _answer(t, s, now)
        elif kind == LOSE_PATIENCE or kind == COPY:
            q = t.requests[number]
            s = t.attempts[q.first]
            waiting = q.live > 0 and q.done == 0 and s.answered != s.answered
            if kind == COPY:  # of a first attempt only
                if waiting and s.kind == tables.FIRST_TRY and w.hedges < t.client[0].hedge_budget * w.requests + SPARE:
                    w.hedges += 1
                    _send(t, number, tables.HEDGE, now)
            elif waiting:
                q.done = 1
                if q.live > 1:
                    _withdraw(t, t.attempts[q.second], tables.CANCELLED, now)
                _withdraw(t, s, tables.CANCELLED, now)
            elif q.live == 0:
                q.done = 1
        elif kind == HAPPEN:
            _happen(t, number, now)
        else:
            _look(t, now)


@native
def prime(t: Any) -> None:
    """What the requests ask becomes known to every cache, without a routing policy that sent it there."""
    s = t.attempts[0]
    for r in range(len(t.replicas)):
        m = t.replicas[r]
        if m.up == 0 or m.role == tables.DECODE:
            continue
        for n in range(len(t.requests)):
            q = t.requests[n]
            s.names, s.named, s.salt = q.names, q.named_prompt, m.salt
            s.held, _ = hits_of(t, m, s, s.named)
            use(t, m, s, s.held)
            get_blocks(t, m, s.named - s.held)
            leave(t, m, s, s.named, s.named)


@native
def advance(t: Any, until: float) -> int:
    """Until a table is full, or it is time, or nothing is left."""
    w = t.world[0]
    while True:
        room = w.live + SPARE_ROWS
        if (
            w.ended + room > len(t.ended)
            or w.segments + room > len(t.segments)
            or w.runs + SPARE_ROWS > len(t.runs)
            or 2 * w.taken + SPARE_ROWS > len(t.attempts)
        ):
            return FULL
        if t.log is not None and w.events + SPARE_ROWS > len(t.log):
            return FULL
        put_off = replica.NEVER
        if t.later is not None:
            if w.waits + 3 * room > len(t.later):
                return FULL
            if w.waits > 0:
                put_off = t.later[0].time
        r = 0
        for other in range(1, len(t.replicas)):
            if t.replicas[other].next < t.replicas[r].next:
                r = other
        m = t.replicas[r]
        due = t.requests[w.arrived].due if w.arrived < w.scheduled else replica.NEVER
        now = min(m.next, due, put_off)
        if now > until or now == replica.NEVER:
            return REACHED if now > until else ENDED
        w.now = now
        if t.choose is not None and w.view_every > 0 and now >= w.viewed + w.view_every:
            for each in range(len(t.replicas)):
                _see(t, t.replicas[each], t.views[each], now)
            w.viewed = now - now % w.view_every
        if m.next == now:
            m.busy += now - m.start
            if m.steps > 0:
                _end_steps(t, m, now)
            if m.phase == tables.PREFILLING:
                _end_prefill(t, m, now)
            if t.client is not None:
                if m.leaving > 0:
                    replica.purge(t, m)
                if m.preponed == tables.DONE and m.filling == 0:  # who was to be prefilled has left
                    write_run(t, m, m.kept_step, m.kept_start, m.kept_pace, 0.0)
                    m.preponed = tables.NOT_YET
            replica.plan_step(t, m, now)
            w.taken -= m.freed
            m.freed = 0
            while m.refused >= 0:
                s = t.attempts[m.refused]
                m.refused = s.left
                _finish(t, s, tables.SHED, now)
            if m.draining == 2 and m.phase == tables.IDLE:
                _stop(t, m, now)
        elif due == now:
            w.arrived += 1
            _send(t, w.arrived - 1, tables.FIRST_TRY, now)
        elif t.later is not None:
            _put_off(t, now)
