"""A fleet in virtual time: what happens next, until there is nothing left or it is time to stop.

Three kinds of things happen: a replica ends its steps, a request arrives, or something that was put off is due (the
next turn of a conversation, a retry, a copy, a client who gives up, memory that has been handed over, an event of the
plan). The earliest comes first; of equal times replicas come before arrivals, and otherwise who was put off first.

Everything is in tables, so the loop can stop anywhere and go on: it returns when a table is full, or at `until`. What
is not used is None, and its part of the code is not compiled. The same source is plain Python where numba is switched
off (NUMBA_DISABLE_JIT=1), with equal results.

`w` are the counters of the loop, `d` the requests that are asked, `a` the attempts that are under way.
"""

import hashlib
from pathlib import Path
from typing import Any

import numba
import numpy as np

from openloop.routing import find_home, forget, learn, learn_home, look
from openloop.routing import index as prefixes
from openloop.sim import memory, replica, tables
from openloop.sim.memory import forget_all, hits_of, inner, leave, name_blocks, once
from openloop.sim.replica import (
    NEVER,
    NONE,
    cut,
    grow,
    join,
    key_of,
    lasting,
    part,
    plan,
    predicted_s,
    purge,
    reserved,
    steps_by,
    take,
    wait,
)
from openloop.sim.tables import (
    BUCKET,
    CANCELLED,
    CENSORED,
    CRASH,
    DECODE,
    DECODING,
    DONE,
    DRAIN,
    ERROR,
    FIRST,
    FIRST_TRY,
    FREE,
    GONE,
    HEDGE,
    IDLE,
    IN_FLIGHT,
    LIKELY_LATE,
    MOVED,
    MOVING,
    NOT_YET,
    OK,
    PREFILL,
    PREFILLING,
    QUEUE,
    RETRY,
    ROTATE,
    RUNNING,
    SCALE_IN,
    SCALE_OUT,
    SHED,
    SLOW,
    START,
    STATIC,
    SWAPPED,
    TIMEOUT,
    UNDER_WAY,
    WAITING,
    codes,
)

__all__ = ["ENDED", "FULL", "REACHED", "advance"]

FULL, REACHED, ENDED = range(3)  # why the loop returned
SPARE_ROWS = 8
FOLLOW, AGAIN, COPY, GIVE_UP, LOSE_PATIENCE, ARRIVE, HAPPEN, LOOK = codes(8)  # what was put off
QUEUES, TAIL, GOODPUT = range(3)  # what a scaler looks at
NOBODY: Any = np.int64(-1)
BUDGET_SPARE = 10  # what a budget allows in any case, for a share of little is nothing
SHORTEST_S, BINS_PER_OCTAVE = 1e-4, 16  # of the histogram of times to first token


@inner
def _push(w: Any, later: Any, time: float, kind: int, number: int, serial: int) -> None:
    """A binary heap by time, and by who was first."""
    place = w.waits
    w.waits += 1
    w.order += 1
    while place > 0:
        above = later[(place - 1) // 2]
        if above.time <= time:
            break
        later[place] = above
        place = (place - 1) // 2
    row = later[place]
    row.time, row.order, row.kind, row.number, row.serial = time, w.order, kind, number, serial


@inner
def _pop(w: Any, later: Any) -> None:
    """Take the first off; the caller has read it."""
    w.waits -= 1
    size = w.waits
    if size == 0:
        return
    last = later[size]
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and (
            later[below + 1].time < later[below].time
            or (later[below + 1].time == later[below].time and later[below + 1].order < later[below].order)
        ):
            below += 1
        if last.time < later[below].time or (last.time == later[below].time and last.order < later[below].order):
            break
        later[place] = later[below]
        place = below
    later[place] = last


@inner
def _chance(seed: int, number: int, tries: int) -> float:
    """Between 0 and 1, the same for the same arguments on every machine (as splitmix64 does)."""
    value = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(number) * np.uint64(0xBF58476D1CE4E5B9)
    value = value + np.uint64(tries) * np.uint64(0xD1B54A32D192ED03)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((value ^ (value >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@inner
def _new_attempt(w: Any, d: Any, a: Any, request: int, kind: int, now: float) -> int:
    while a[w.spare].where != FREE:
        w.spare = (w.spare + 1) % len(a)
    i = w.spare
    s, q = a[i], d[request]
    w.serial += 1
    w.live += 1
    w.taken += 1
    s.serial, s.request, s.kind, s.attempt = w.serial, request, kind, q.tries
    s.replica, s.status, s.where = -1, CENSORED, MOVING
    s.prompt, s.output, s.names, s.named, s.named_prompt = q.prompt, q.output, q.names, q.named, q.named_prompt
    s.made = s.need = s.done = s.held = s.away = s.cached = s.recomputed = s.preemptions = s.open = s.ran = 0
    s.step = s.known = 0
    s.due, s.within, s.sent = q.due, q.within, now
    s.started = s.ended = s.answered = s.first = np.nan
    q.tries += 1
    q.live += 1
    if kind == HEDGE:
        q.second = i
        q.copies += 1
    else:
        q.first = i
    return i


@once
def _free(w: Any, s: Any) -> None:
    s.where = FREE
    w.taken -= 1


@inner
def _end(w: Any, d: Any, s: Any, later: Any, ended: Any, client: Any, status: int, now: float) -> None:
    """The client has its answer, or none; what it does then."""
    s.status, s.ended = status, now
    ended[w.ended] = s
    w.ended += 1
    w.live -= 1
    q = d[s.request]
    q.live -= 1
    if status == OK:
        q.done = 1
        if later is not None:
            if q.follower >= 0:
                _push(w, later, now + d[q.follower].think, FOLLOW, q.follower, NONE)
    if client is not None:
        if q.live == 1 and s.kind != HEDGE:
            q.first = q.second
        if q.live == 0:  # otherwise the other copy will tell
            w.ends += 1
            w.good += status == OK and s.answered - s.due <= s.within
        c = client[0]
        waves = q.tries - q.copies
        wanted = (
            (status == ERROR and c.on_error) or (status == TIMEOUT and c.on_timeout) or (status == SHED and c.on_shed)
        )
        if wanted and q.done == 0 and q.live == 0 and waves <= c.tries:
            if w.retries < c.budget * w.requests + BUDGET_SPARE:
                w.retries += 1
                longest = min(c.pause * c.factor ** (waves - 1), c.cap)
                pause = longest * (1 - c.jitter * _chance(w.seed, s.request, q.tries))
                _push(w, later, now + pause, AGAIN, s.request, NONE)


@inner
def _withdraw(w: Any, d: Any, s: Any, reps: Any, later: Any, ended: Any, client: Any, status: int, now: float) -> None:
    """The client leaves; the replica notices at the end of its step."""
    where = s.where
    if where == MOVING:
        _end(w, d, s, later, ended, client, status, now)
        _free(w, s)
        return
    m = reps[s.replica]
    if where == WAITING:
        m.waiting -= 1
        m.backlog -= s.prompt + s.made - s.known
    else:
        cut(m, now)
        m.leaving += 1
        if where == RUNNING:
            s.ran = m.step - s.begin + (m.steps if m.phase == DECODING else 0)
    _end(w, d, s, later, ended, client, status, now)
    s.where = GONE


@inner
def _answer(
    w: Any, d: Any, a: Any, reps: Any, later: Any, ended: Any, client: Any, waits: Any, s: Any, now: float,
) -> None:  # fmt: skip
    """Its first token has come: the other copy is not needed any more."""
    s.answered = now
    c = client[0]
    w.answers += 1
    w.slow += now - s.due > c.tail
    q = d[s.request]
    sent = s.sent
    if q.live > 1:
        other = a[q.first if s.kind == HEDGE else q.second]
        sent = min(sent, other.sent)  # how late the first one is, or copies would make more of themselves
        _withdraw(w, d, other, reps, later, ended, client, CANCELLED, now)
    if c.hedge_percentile > 0:
        spot = int(BINS_PER_OCTAVE * np.log2(max((now - sent) / SHORTEST_S, 1.0)))
        waits[min(spot, len(waits) - 1)] += 1
        w.answered += 1
        if w.answered % 64 == 0:
            so_far, place = 0, 0
            while so_far < c.hedge_percentile * w.answered:
                so_far += waits[place]
                place += 1
            w.hedge_after = SHORTEST_S * 2 ** (place / BINS_PER_OCTAVE)


@inner
def _count(m: Any, a: Any, seats: Any) -> tuple[int, int, int]:
    """Requests, tokens of prompts to read, and all tokens."""
    prefill = m.backlog
    for n in range(m.filling):
        s = a[seats[m.number, n].filling]
        prefill += s.need - s.done
    return m.waiting + m.running + m.filling, prefill, (m.blocks - m.free - m.unused) * m.page + m.backlog


@inner
def _see(m: Any, v: Any, a: Any, seats: Any) -> None:
    """What a replica says of itself."""
    v.requests, v.prefill, v.tokens = v.sent, v.sent_prefill, v.sent_tokens = _count(m, a, seats)
    v.waiting, v.used = m.waiting, (m.blocks - m.free - m.unused) * m.page
    v.capacity, v.memory, v.pace, v.gap = m.sequences, m.blocks * m.page, m.slow * m.token, m.gap


@inner
def _see_all(w: Any, a: Any, reps: Any, seats: Any, views: Any, now: float) -> None:
    """All replicas, at the last of the moments at which they are looked at."""
    for r in range(len(reps)):
        _see(reps[r], views[r], a, seats)
    w.viewed = now - now % w.view_every


@inner
def _look_up(
    w: Any, s: Any, session: int, reps: Any, hashes: Any, spots: Any, blocks: Any, head: Any, views: Any, index: Any,
    held: Any,
) -> None:  # fmt: skip
    """Where this prompt is known: by what caches say, or by what was sent where."""
    home = find_home(index, session)
    for r in range(len(views)):
        views[r].home = held[home, r] if home > 0 else 0
    if blocks is not None:
        most = min(s.named_prompt, (s.prompt - 1) // reps[0].page)
        if w.exact == 0:
            names = hashes[s.names + w.stride - 1 : s.names + most : w.stride]
            look(index, held, names, views, w.stride * reps[0].page)
            return
        for r in range(len(views)):
            m, v = reps[r], views[r]
            s.salt = m.salt
            hits, _ = hits_of(m, s, blocks, head, hashes, spots, most)
            v.cached, v.known = hits * m.page, (blocks.shape[1] - m.spares) * m.page


@inner
def _route(
    w: Any, s: Any, session: int, a: Any, reps: Any, seats: Any, hashes: Any, spots: Any, blocks: Any, head: Any,
    views: Any, ask: Any, choose: Any, state: Any, knobs: Any, index: Any, held: Any, now: float, avoid: int,
) -> int:  # fmt: skip
    """Where it goes; -1: nobody should have it, -2: there is nobody."""
    some = 0
    for r in range(len(reps)):
        m, v = reps[r], views[r]
        v.open = m.up == 1 and m.draining == 0 and m.role != DECODE
        some += v.open
        if w.view_every == 0:
            _see(m, v, a, seats)
        else:
            v.age = now - w.viewed
            v.sent, v.sent_prefill, v.sent_tokens = _count(m, a, seats)
    if some == 0:
        return -2
    if some > 1 and avoid >= 0:
        views[avoid].open = 0
    k = ask[0]
    k.number, k.prompt, k.output, k.session, k.deadline = s.request, s.prompt, s.output, session, s.due + s.within
    k.prefix = -1
    if blocks is not None:
        if s.named_prompt > 0:
            k.prefix = hashes[s.names + min(s.named_prompt, w.stride) - 1]
    if index is not None:
        _look_up(w, s, session, reps, hashes, spots, blocks, head, views, index, held)
    found = choose(ask, views, state, knobs, now)
    if found < 0 or found >= len(views) or views[found].open == 0:
        return -1
    if index is not None:
        s.known = min(views[found].cached, s.prompt - 1)
        learn_home(index, held, session, found)
        if blocks is not None:
            if w.exact == 0:
                learn(index, held, hashes[s.names + w.stride - 1 : s.names + s.named_prompt : w.stride], found)
    return found


@once
def _refuses(w: Any, m: Any, s: Any, client: Any, now: float) -> bool:
    """Admission, before anything is queued."""
    if m.limited == IN_FLIGHT:
        return m.waiting + m.running + m.filling >= m.limit
    if m.limited == QUEUE:
        return m.waiting >= m.limit
    if m.limited == LIKELY_LATE:
        return now + predicted_s(m, s.prompt, now) > s.due + s.within
    if client is not None:
        if m.limited == BUCKET:
            c = client[0]
            w.bucket = min(c.bucket_burst, w.bucket + (now - w.bucket_time) * c.bucket_rate)
            w.bucket_time = now
            if w.bucket < 1.0:
                return True
            w.bucket -= 1.0
    return False


@inner
def _enqueue(m: Any, a: Any, i: int, now: float) -> None:
    s = a[i]
    s.replica = m.number
    s.key = key_of(m, s)
    alone = m.root < 0
    wait(m, a, i)
    if m.phase == IDLE:  # as if a step ended now: what is next is planned in one place
        m.start = m.next = now
        m.steps = 0
    elif m.policy != STATIC and m.running < m.sequences and (alone or m.order != FIRST):
        cut(m, now)


@inner
def _send(
    w: Any, d: Any, a: Any, reps: Any, seats: Any, hashes: Any, spots: Any, blocks: Any, head: Any, later: Any,
    ended: Any, client: Any, views: Any, ask: Any, choose: Any, state: Any, knobs: Any, index: Any, held: Any,
    request: int, kind: int, now: float,
) -> None:  # fmt: skip
    """A new attempt, to whom the policy says."""
    avoid = a[d[request].first].replica if kind == HEDGE else NOBODY
    i = _new_attempt(w, d, a, request, kind, now)
    s = a[i]
    r = NONE
    if choose is not None:
        r = _route(w, s, d[request].session, a, reps, seats, hashes, spots, blocks, head, views, ask, choose, state,
                   knobs, index, held, now, avoid)  # fmt: skip
    if client is not None:
        c = client[0]
        if c.timeout < NEVER:
            _push(w, later, now + c.timeout, GIVE_UP, i, s.serial)
        if kind == FIRST_TRY:
            w.requests += 1
            if c.patience < NEVER:
                _push(w, later, now + c.patience, LOSE_PATIENCE, request, NONE)
            if w.hedge_after < NEVER:
                _push(w, later, now + w.hedge_after, COPY, request, NONE)
    if r < 0 or _refuses(w, reps[r], s, client, now):
        s.replica = r if r >= 0 else -1
        _end(w, d, s, later, ended, client, ERROR if r == -2 else SHED, now)
        _free(w, s)
    else:
        _enqueue(reps[r], a, i, now)


@once
def _write_run(w: Any, m: Any, runs: Any, step: int, start: float, pace: float, slope: float) -> None:
    row = runs[w.runs]
    row.replica, row.step, row.start, row.pace, row.slope = m.number, step, start, pace, slope
    w.runs += 1


@once
def _close(w: Any, s: Any, segments: Any) -> None:
    """The stretch of tokens before this one."""
    if s.open:
        row = segments[w.segments]
        row.serial, row.replica, row.step, row.steps, row.first = s.serial, s.replica, s.step, s.ran, s.first
        w.segments += 1
        s.open = 0


@inner
def _end_steps(
    w: Any, d: Any, a: Any, m: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any,
    line: Any, later: Any, runs: Any, ended: Any, client: Any, now: float,
) -> None:  # fmt: skip
    """Decode steps are over: everybody has so many more tokens, and some are done."""
    if m.preponed == UNDER_WAY:
        m.preponed = DONE
        m.kept_step, m.kept_start, m.kept_pace = m.step, m.start, m.pace
    else:
        _write_run(w, m, runs, m.step, m.start, m.pace, m.slope)
    grow(m, residue, blocks, head, line, m.steps)
    n = NONE
    while n < m.running and m.soonest <= m.step:
        seat = seats[m.number, n]
        if seat.end > m.step:
            n += 1
            continue
        s = a[seat.attempt]
        part(m, s, n, seats, residue, hashes, spots, blocks, head, line)
        if s.where != GONE:
            _end(w, d, s, later, ended, client, OK, now)
        else:
            m.leaving -= 1
        _free(w, s)


@inner
def _end_prefill(
    w: Any, d: Any, a: Any, reps: Any, m: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any,
    head: Any, line: Any, later: Any, runs: Any, segments: Any, ended: Any, client: Any, waits: Any, now: float,
) -> None:  # fmt: skip
    """Whose prompt is read has its first token, and decodes from now on, here or elsewhere."""
    if m.preponed == DONE:  # the tokens made ahead are spread over the time that the prefill took
        first = m.kept_start + m.kept_pace
        delay = (now - first) / (m.step - m.kept_step)
        _write_run(w, m, runs, m.kept_step, first - delay, delay, 0.0)
    m.preponed = NOT_YET
    kept = NONE
    for n in range(m.filling):
        i = seats[m.number, n].filling
        s = a[i]
        s.done += s.chunk
        if s.done < s.need or s.where == GONE:
            seats[m.number, kept].filling = i
            kept += 1
            continue
        if blocks is not None:
            name_blocks(m, s, blocks, head, hashes, spots, min(s.named_prompt, s.need // m.page))
        _close(w, s, segments)
        back = s.away == SWAPPED
        s.away = 0
        s.open, s.replica, s.step, s.ran, s.first = 1, m.number, m.step, 0, np.nan if back else now
        s.made += 0 if back else 1
        if s.answered != s.answered:
            s.answered = now
            if client is not None:
                _answer(w, d, a, reps, later, ended, client, waits, s, now)
        if s.made < s.output and m.role != PREFILL:
            join(m, s, i, seats, residue)
            continue
        leave(m, s, blocks, head, line, hashes, spots, s.need // m.page, reserved(m, s, s.need))
        if s.made >= s.output:
            _end(w, d, s, later, ended, client, OK, now)
            _free(w, s)
        elif later is not None:
            _close(w, s, segments)
            s.where, s.away = MOVING, MOVED
            _push(w, later, now + m.transfer + m.transfer_token * s.need, ARRIVE, i, s.serial)
    m.filling = kept


@inner
def _crash(
    w: Any, d: Any, a: Any, m: Any, seats: Any, residue: Any, blocks: Any, head: Any, later: Any, runs: Any,
    ended: Any, client: Any, held: Any, now: float,
) -> None:  # fmt: skip
    """All that is under way is lost, and so is what was known."""
    if m.phase != IDLE:
        m.busy += now - m.start
    if m.preponed == DONE:
        _write_run(w, m, runs, m.kept_step, m.kept_start, m.kept_pace, 0.0)
    if m.phase == DECODING:
        done = steps_by(m.pace, m.slope, now - m.start, m.steps)
        done -= lasting(m.pace, m.slope, done) > now - m.start
        if done > 0:
            _write_run(w, m, runs, m.step, m.start, m.pace, m.slope)
            m.step += done
    for n in range(m.running):
        s = a[seats[m.number, n].attempt]
        s.ran = m.step - s.begin
        if s.where != GONE:
            _end(w, d, s, later, ended, client, ERROR, now)
        _free(w, s)
    for n in range(m.filling):
        s = a[seats[m.number, n].filling]
        if s.where != GONE:
            _end(w, d, s, later, ended, client, ERROR, now)
        _free(w, s)
    while m.root >= 0:
        s = a[take(m, a)]
        if s.where != GONE:
            _end(w, d, s, later, ended, client, ERROR, now)
        _free(w, s)
    for n in range(residue.shape[1]):
        residue[m.number, n] = 0
    m.running = m.filling = m.slots = m.leaving = m.waiting = m.backlog = 0
    m.context, m.phase, m.next, m.preponed = 0.0, IDLE, NEVER, NOT_YET
    forget_all(m, blocks, head)
    if held is not None:
        forget(held, m.number)
    _stop(m, now)


@inner
def _stop(m: Any, now: float) -> None:
    m.paid += now - m.up_since if m.up else 0.0
    m.up = m.draining = 0


@inner
def _note(w: Any, log: Any, kind: int, number: int, now: float, value: float) -> None:
    if w.events < len(log):
        row = log[w.events]
        row.kind, row.replica, row.time, row.value = kind, number, now, value
        w.events += 1


@inner
def _happen(
    w: Any, d: Any, a: Any, reps: Any, seats: Any, residue: Any, blocks: Any, head: Any, later: Any, runs: Any,
    ended: Any, client: Any, events: Any, log: Any, held: Any, number: int, now: float,
) -> None:  # fmt: skip
    e = events[number]
    if now + e.every < e.until:
        _push(w, later, now + e.every, HAPPEN, number, NONE)
    m = reps[e.replica]
    if (e.kind == CRASH and m.up != 1) or (e.kind == START and m.up == 0 and m.crashed == 0 and e.value == 0):
        return  # it had been taken away, and what is not there does not come back
    _note(w, log, e.kind, e.replica, now, e.value)
    if e.kind == ROTATE:
        for r in range(len(reps)):
            reps[r].salt = int(_chance(w.seed, number, w.order) * (1 << 52))
    elif e.kind == SLOW:
        m.slow = e.value
        cut(m, now)
    elif e.kind == CRASH:
        m.crashed = m.draining != 2
        _crash(w, d, a, m, seats, residue, blocks, head, later, runs, ended, client, held, now)
    elif e.kind == START:
        if m.up != 1:
            m.up_since = now if m.up == 0 else m.up_since
            m.up, m.draining, m.crashed = 1, 0, 0
            forget_all(m, blocks, head)
            if held is not None:
                forget(held, m.number)
    elif e.kind == DRAIN and m.up == 1:
        m.draining = max(m.draining, 2 if e.value > 0 else 1)
        if m.draining == 2 and m.phase == IDLE:
            _stop(m, now)


@inner
def _look(w: Any, reps: Any, later: Any, scaler: Any, events: Any, log: Any, now: float) -> None:
    """Whether the fleet has the right size; one replica more or less at a time."""
    c = scaler[0]
    ready, coming, waiting, requests = 0, 0, 0, 0
    down, last = -1, -1
    for r in range(len(reps)):
        m = reps[r]
        if m.up == 1 and m.draining == 0:
            ready += 1
            last = r
            waiting += m.waiting
            requests += m.waiting + m.running + m.filling
        coming += m.up == 2
        if m.up == 0 and down < 0:
            down = r
    more = False
    if c.signal == QUEUES:
        more = waiting > c.target * ready
    elif c.signal == TAIL:
        more = w.slow > 0.01 * w.answers
    else:
        more = w.good < c.target * w.ends
    w.answers = w.slow = w.ends = w.good = 0
    if more and down >= 0 and ready + coming < c.most and coming == 0:
        m = reps[down]
        m.up, m.up_since, m.slow = 2, now, 1.0
        _push(w, later, now + c.delay, HAPPEN, len(events) - len(reps) + down, NONE)
        _note(w, log, SCALE_OUT, down, now, 0.0)
    elif not more and ready > c.least and requests < c.idle * ready and coming == 0:
        m = reps[last]
        m.draining = 2
        _note(w, log, SCALE_IN, last, now, 0.0)
        if m.phase == IDLE:
            _stop(m, now)
    if w.live > 0 or w.waits > 0 or w.arrived < w.scheduled:
        _push(w, later, now + c.every, LOOK, NONE, NONE)


@inner
def _put_off(
    w: Any, d: Any, a: Any, reps: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any,
    later: Any, runs: Any, ended: Any, client: Any, scaler: Any, events: Any, log: Any, views: Any, ask: Any,
    choose: Any, state: Any, knobs: Any, index: Any, held: Any, now: float,
) -> None:  # fmt: skip
    """The first of those that were put off is due."""
    kind, number, serial = later[0].kind, later[0].number, later[0].serial
    _pop(w, later)
    if kind == FOLLOW or kind == AGAIN:
        if kind == FOLLOW:
            d[number].due = now
        elif d[number].done == 1:
            return  # who would have asked again has left
        _send(w, d, a, reps, seats, hashes, spots, blocks, head, later, ended, client, views, ask, choose, state, knobs,
              index, held, number, FIRST_TRY if kind == FOLLOW else RETRY, now)  # fmt: skip
    elif kind == ARRIVE:
        s = a[number]
        if s.serial == serial and s.where == MOVING:
            best = -1
            for r in range(len(reps)):
                m = reps[r]
                if m.role == DECODE and m.up == 1 and m.draining == 0:
                    if best < 0 or m.waiting + m.running < reps[best].waiting + reps[best].running:
                        best = r
            if best < 0:
                _end(w, d, s, later, ended, client, ERROR, now)
                _free(w, s)
            else:
                _enqueue(reps[best], a, number, now)
    elif client is not None:
        if kind == GIVE_UP:
            s = a[number]
            if s.serial == serial and s.where != FREE and s.where != GONE:
                _withdraw(w, d, s, reps, later, ended, client, TIMEOUT, now)
        elif kind == LOSE_PATIENCE or kind == COPY:
            q = d[number]
            s = a[q.first]
            waiting = q.live > 0 and q.done == 0 and s.answered != s.answered
            if (
                waiting
                and kind == COPY
                and q.live == 1
                and w.hedges < client[0].hedge_budget * w.requests + BUDGET_SPARE
            ):
                w.hedges += 1
                _send(w, d, a, reps, seats, hashes, spots, blocks, head, later, ended, client, views, ask, choose,
                      state, knobs, index, held, number, HEDGE, now)  # fmt: skip
            elif waiting and kind == LOSE_PATIENCE:
                q.done = 1
                if q.live > 1:
                    _withdraw(w, d, a[q.second], reps, later, ended, client, CANCELLED, now)
                _withdraw(w, d, s, reps, later, ended, client, CANCELLED, now)
            elif kind == LOSE_PATIENCE and q.live == 0:
                q.done = 1
        elif kind == HAPPEN:
            _happen(w, d, a, reps, seats, residue, blocks, head, later, runs, ended, client, events, log, held, number,
                    now)  # fmt: skip
        else:
            _look(w, reps, later, scaler, events, log, now)


def _run(
    world: Any, d: Any, a: Any, reps: Any, seats: Any, residue: Any, hashes: Any, spots: Any, blocks: Any, head: Any,
    line: Any, later: Any, runs: Any, segments: Any, ended: Any, log: Any, waits: Any, client: Any, scaler: Any,
    events: Any, views: Any, ask: Any, choose: Any, state: Any, knobs: Any, index: Any, held: Any, until: float,
) -> int:  # fmt: skip
    w = world[0]
    while True:
        room = w.live + SPARE_ROWS
        if (
            w.ended + room > len(ended)
            or w.segments + room > len(segments)
            or w.runs + SPARE_ROWS > len(runs)
            or 2 * w.taken + SPARE_ROWS > len(a)
        ):
            return FULL
        put_off = NEVER
        if later is not None:
            if w.waits + 3 * room > len(later):
                return FULL
            if w.waits > 0:
                put_off = later[0].time
        r = NONE
        for other in range(1, len(reps)):
            if reps[other].next < reps[r].next:
                r = other
        m = reps[r]
        due = d[w.arrived].due if w.arrived < w.scheduled else NEVER
        now = min(m.next, due, put_off)
        if now > until or now == NEVER:
            return REACHED if now > until else ENDED
        w.now = now
        if choose is not None:
            if w.view_every > 0 and now >= w.viewed + w.view_every:
                _see_all(w, a, reps, seats, views, now)
        if m.next == now:
            m.busy += now - m.start
            if m.steps > 0:
                _end_steps(
                    w, d, a, m, seats, residue, hashes, spots, blocks, head, line, later, runs, ended, client, now
                )
            if m.phase == PREFILLING:
                _end_prefill(w, d, a, reps, m, seats, residue, hashes, spots, blocks, head, line, later, runs,
                             segments, ended, client, waits, now)  # fmt: skip
            if client is not None:
                if m.leaving > 0:
                    purge(m, a, seats, residue, hashes, spots, blocks, head, line)
                if m.preponed == DONE and m.filling == 0:  # who was to be prefilled has left
                    _write_run(w, m, runs, m.kept_step, m.kept_start, m.kept_pace, 0.0)
                    m.preponed = NOT_YET
            plan(m, a, seats, residue, hashes, spots, blocks, head, line, now)
            w.taken -= m.freed
            m.freed = 0
            while m.refused >= 0:
                s = a[m.refused]
                m.refused = s.left
                _end(w, d, s, later, ended, client, SHED, now)
                _free(w, s)
            if m.draining == 2 and m.phase == IDLE:
                _stop(m, now)
        elif due == now:
            w.arrived += 1
            _send(w, d, a, reps, seats, hashes, spots, blocks, head, later, ended, client, views, ask, choose, state,
                  knobs, index, held, w.arrived - 1, FIRST_TRY, now)  # fmt: skip
        elif later is not None:
            _put_off(w, d, a, reps, seats, residue, hashes, spots, blocks, head, later, runs, ended, client, scaler,
                     events, log, views, ask, choose, state, knobs, index, held, now)  # fmt: skip


# Numba keeps compiled code on disk and looks at this file only; the name says what else it is made of.
_sources = b"".join(Path(str(each.__file__)).read_bytes() for each in (prefixes, memory, replica, tables))
_run.__qualname__ = f"run-{hashlib.sha256(_sources).hexdigest()[:16]}"
advance = numba.njit(cache=True, error_model="numpy")(_run)
