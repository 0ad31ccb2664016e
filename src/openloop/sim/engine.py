"""The tables of a fleet, the loop that works on them, and what comes out: attempts with the times of their tokens.

What is finished leaves in blocks, so memory is bounded by what is in flight, however long a run is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from openloop.admission import Bucket
from openloop.arrays import Bools, Ints, records
from openloop.errors import SpecError
from openloop.native.build import native
from openloop.routing import ASK, VIEW, make_index, read_routing, start_memory
from openloop.sim import loop, tables
from openloop.sim.clients import Client, client_row, scaler_row
from openloop.sim.events import EventRow, plan_rows
from openloop.sim.spec import MOST_BLOCKS, FleetSpec, replica_rows, request_tables
from openloop.slo import Objectives
from openloop.workload import Demand

BLOCK_ROWS = 16_384  # attempts that leave together
WAIT_BINS = 512
INDEX_TOKENS = 64  # behind one name in the index of a routing policy


@dataclass(frozen=True, eq=False)
class ServedAttempts:
    """Attempts that are over, and their tokens end to end."""

    rows: Any
    counts: Ints  # times that tokens came,
    times: Ints  # when, in nanoseconds,
    tokens: Ints | None  # and how many; None: one each time

    def some(self, wanted: Bools) -> "ServedAttempts":
        each = np.repeat(wanted, self.counts)
        tokens = None if self.tokens is None else self.tokens[each]
        return ServedAttempts(self.rows[wanted], self.counts[wanted], self.times[each], tokens)

    def clipped(self) -> "ServedAttempts":
        """Who left got nothing afterwards."""
        left = self.rows.status != tables.OK
        if not np.any(left & (self.counts > 0)):
            return self
        owner = np.repeat(np.arange(len(self.rows)), self.counts)
        keep = ~left[owner] | (self.times <= np.rint(1e9 * self.rows.ended[owner]))
        counts = np.bincount(owner[keep], minlength=len(self.rows))
        return ServedAttempts(self.rows, counts, self.times[keep], None if self.tokens is None else self.tokens[keep])


class _Place(NamedTuple):
    """Of requests that were fed together, in the table of requests and in that of names."""

    rows: int
    name: int
    names: int


class SimEngine:
    tables = (
        "world", "requests", "attempts", "replicas", "seats", "residue", "hashes", "spots", "blocks", "head", "line",
        "later", "runs", "segments", "ended", "log", "waits", "client", "scaler", "events", "views", "ask", "choose",
        "state", "knobs", "index", "held",
    )  # fmt: skip

    def __init__(
        self, fleet: FleetSpec, requests: Any, hashes: Ints | None, seconds: float, seed: int, *, live: bool = False
    ) -> None:
        """What is asked of a fleet, and the names of its blocks; events come within so many seconds. `live`: requests
        come while it runs, and may be withdrawn."""
        self.requests, self.hashes = requests, hashes
        self.replicas = reps = replica_rows(fleet)
        self.world = records(tables.WORLD, 1)
        self.attempts = records(tables.ATTEMPT, 1024)
        self.seats = records(tables.SEAT, len(reps), int(reps.sequences.max()))
        self.residue = np.zeros((len(reps), int(reps.page.max())), np.int64)
        self.runs = records(tables.RUN, 1 << 15)
        self.segments, self.ended = records(tables.SEGMENT, 4096), records(tables.ATTEMPT, 2 * BLOCK_ROWS)
        self.errors: list[Exception] = []  # of a user's own routing policy
        nothing: Any = None
        self.blocks = self.spots = self.head = self.line = nothing
        self.client = self.scaler = self.events = self.log = self.waits = self.later = nothing
        self.choose = self.views = self.ask = self.state = self.knobs = self.index = self.held = nothing
        if hashes is not None:
            self._remember(len(hashes))
        self.places = {0: _Place(len(requests), 0, 0 if hashes is None else len(hashes))}
        self.fed = 0  # where those begin that were fed last
        w = self.world[0]
        w.seed, w.delay, w.hedge_after = seed & ((1 << 62) - 1), fleet.delay_s(), np.inf
        w.scheduled = int(np.count_nonzero(~np.isnan(requests.due)))
        followed = bool(np.any(requests.follower >= 0)) or bool(np.any(reps.role != tables.BOTH))
        plan = plan_rows(fleet.plan(), fleet.most, seconds)
        told = fleet.client or Client()
        acts = live or not told.asks_only or plan or fleet.scale or isinstance(fleet.read_admission(), Bucket)
        if acts or followed or told.repair is not None:
            self.later = records(tables.LATER, 4096)
        if acts:
            self._act(fleet, plan)
        if acts or len(reps) > 1:
            self._route(fleet, seed)

    def _remember(self, names: int) -> None:
        """A prefix cache in each replica."""
        fleet, known = len(self.replicas), int(self.replicas.blocks.max())
        if fleet * known > MOST_BLOCKS:
            told = f"{known:,} blocks in each of {fleet} replicas"
            raise SpecError(
                f"a prefix cache of {told} is too large to be kept: give memory_tokens, or prefix_cache: false"
            )
        self.spots = np.zeros(names, np.int32)
        self.blocks = records(tables.BLOCK, fleet, known)
        self.line = records(tables.LINE, fleet, 4 << known.bit_length())
        self.blocks.spare, self.blocks.name = np.arange(known), -1
        self.head = np.full((fleet, 1 << known.bit_length()), -1, np.int32)
        self.replicas.spares = known

    def _act(self, fleet: FleetSpec, plan: Sequence[EventRow]) -> None:
        """Clients that do more than ask, events, a scaler."""
        count = len(self.replicas)
        self.client = client_row(fleet.client, fleet.read_admission(), fleet.scale)
        self.scaler = records(tables.SCALER, 1) if fleet.scale is None else scaler_row(fleet.scale, fleet.size)
        self.events = records(tables.EVENT, len(plan) + count)
        self.events.every = np.inf
        for row, (at, kind, replica, value, *again) in zip(self.events, plan, strict=False):
            row.time, row.kind, row.replica, row.value = at, kind, replica, value
            row.every, row.until = again or (np.inf, 0.0)
        for_scaler = self.events[len(plan) :]
        for_scaler.time, for_scaler.kind, for_scaler.value = np.inf, tables.START, 1.0
        for_scaler.replica = np.arange(count)
        self.log, self.waits = records(tables.LOG, 1024), np.zeros(WAIT_BINS, np.int64)
        w, c = self.world[0], self.client[0]
        w.hedge_after, w.bucket = c.hedge_after, c.bucket_burst
        for number in range(len(plan)):
            self.put_off(self.events[number].time, loop.HAPPEN, number)
        self.keep_looking()

    def _route(self, fleet: FleetSpec, seed: int) -> None:
        """A routing policy, and what it sees: of replicas every so often, or always; of caches what they say, if it
        listens."""
        policy, count, w = read_routing(fleet.routing), len(self.replicas), self.world[0]
        self.views, self.ask, self.state = records(VIEW, count), records(ASK, 1), start_memory(seed)
        self.choose, self.knobs = policy.pointer(self.ask, self.views, self.errors), policy.knobs()
        if policy.sees - {"memory"}:
            self.index, self.held = make_index(count)
        w.exact, w.weighs = fleet.cache_events and "cache" in policy.sees, "memory" in policy.sees
        w.stride = max(INDEX_TOKENS // int(self.replicas.page.max()), 1)
        w.view_every = fleet.stale_s()
        w.viewed = -w.view_every

    def put_off(self, time: float, kind: int, number: int, serial: int = 0) -> None:
        if self.world[0].waits + 1 >= len(self.later):
            self.later = fitting(self.later, 2 * len(self.later))
        loop.push(self, time, kind, number, serial)

    def keep_looking(self) -> None:
        """A scaler that saw nobody there, and no more to come, looks again when more may come."""
        w = self.world[0]
        every = 0.0 if self.scaler is None else float(self.scaler[0].every)
        if every > 0 and not np.any(self.later.kind[: w.waits] == loop.LOOK):
            self.put_off(every * (np.floor(w.now / every) + 1), loop.LOOK, 0)

    def prime(self, requests: Any, hashes: Ints | None) -> None:
        """Every cache knows the prompts of these, as if each replica had been asked them before the clock started."""
        if self.hashes is None or hashes is None:
            return
        whole = self.requests, self.hashes, self.spots
        self.requests, self.hashes, self.spots = requests, hashes, np.zeros(len(hashes), np.int32)
        loop.prime(self)
        self.requests, self.hashes, self.spots = whole

    def advance(self, until: float) -> int:
        """Why it stopped: a table is full, it is time, or nothing is left."""
        found: int = loop.advance(self, float(until))
        if self.errors:
            told = f"{type(self.errors[0]).__name__}: {self.errors[0]}"
            raise SpecError(f"the routing policy failed: {told}") from self.errors[0]
        return found

    def run(self) -> Iterator[ServedAttempts]:
        """To the end."""
        yield from self.run_to(np.inf)
        rows = self.ended[: self.world[0].ended]
        rows.ran = np.minimum(rows.ran, self.replicas.step[rows.replica] - rows.step)  # where a replica crashed
        yield self.flush()

    def run_to(self, until: float) -> Iterator[ServedAttempts]:
        while self.advance(until) == loop.FULL:
            if self.world[0].ended >= BLOCK_ROWS:
                yield self.flush()
            self.grow()

    def feed(self, requests: Any, hashes: Ints | None) -> Iterator[ServedAttempts]:
        """More requests, once all that were there have come: they take the place of those that are over."""
        yield self.flush()
        self.places = {first: place for first, place in self.places.items() if self._used(first, place.rows)}
        row = _gap([(first, place.rows) for first, place in self.places.items()], len(requests))
        name = _gap([(place.name, place.names) for place in self.places.values()], 0 if hashes is None else len(hashes))
        self.places[row] = _Place(len(requests), name, 0 if hashes is None else len(hashes))
        requests.follower += np.where(requests.follower >= 0, row, 0)
        requests.names += name
        self.requests = fitting(self.requests, row + len(requests))
        self.requests[row : row + len(requests)] = requests
        if hashes is not None:
            self.hashes, self.spots = (fitting(each, name + len(hashes)) for each in (self.hashes, self.spots))
            self.hashes[name : name + len(hashes)] = hashes
        w = self.world[0]
        w.arrived, w.scheduled = row, row + int(np.count_nonzero(~np.isnan(requests.due)))
        self.fed = row
        self.keep_looking()

    def _used(self, first: int, rows: int) -> bool:
        """Whether anything is still about these requests."""
        w = self.world[0]
        alive = self.attempts[self.attempts.where != tables.FREE].request
        put_off = self.later[: w.waits] if self.later is not None else self.later
        asked = put_off.number[put_off.kind <= loop.COPY] if put_off is not None else alive[:0]
        patient = put_off.number[put_off.kind == loop.LOSE_PATIENCE] if put_off is not None else alive[:0]
        found = np.concatenate([alive, self.ended[: w.ended].request, asked, patient])
        return bool(np.any((found >= first) & (found < first + rows)))

    def stays(self, until: float) -> list[tuple[int, float, float]]:
        """When each replica was there, and paid for: which, from when, and until when."""
        rows = () if self.log is None else self.log[: self.world[0].events]
        found = [(int(row.replica), float(row.value), float(row.time)) for row in rows if row.kind == tables.LEFT]
        reserved = self.replicas[(self.replicas.up > 0) | (self.replicas.crashed > 0)]
        found += [(int(m.number), float(m.up_since), until) for m in reserved]
        return [(number, begin, min(end, until)) for number, begin, end in sorted(found) if begin < until]

    def grow(self) -> None:
        """What is still full."""
        w = self.world[0]
        room = w.live + loop.SPARE_ROWS
        needed = {
            "ended": w.ended + room,
            "segments": w.segments + room,
            "runs": w.runs + room,
            "later": w.waits + 3 * room,
            "attempts": 2 * w.taken + loop.SPARE_ROWS,
            "log": w.events + loop.SPARE_ROWS,
        }
        for name, rows in needed.items():
            table = getattr(self, name)
            if table is not None and rows > len(table):
                setattr(self, name, fitting(table, 2 * len(table)))

    def flush(self) -> ServedAttempts:
        """What is over and whose steps are all on record."""
        w, reps = self.world[0], self.replicas
        rows = self.ended[: w.ended]
        place = np.maximum(rows.replica, 0)
        ready = ~rows.open.astype(bool) | (
            (rows.step + rows.ran <= reps.step[place]) & (reps.preponed[place] == tables.NOT_YET)
        )
        gone, kept = rows[ready].copy(), rows[~ready].copy()
        served = self._served(gone)
        self.ended[: len(kept)] = kept
        w.ended = len(kept)
        self._forget_runs()
        return served

    def _runs_by_replica(self) -> tuple[Any, Ints]:
        """Runs of steps by replica, and where those of each begin."""
        runs = self.runs[: self.world[0].runs]
        runs = runs[np.lexsort((runs.step, runs.replica))]
        return runs, np.searchsorted(runs.replica, np.arange(len(self.replicas) + 1))

    def _forget_runs(self) -> None:
        w, (runs, edges) = self.world[0], self._runs_by_replica()
        oldest = self.replicas.step.copy()
        alive = self.attempts[(self.attempts.where != tables.FREE) & (self.attempts.open == 1)]
        for rows in (alive, self.ended[: w.ended], self.segments[: w.segments]):
            rows = rows[rows.replica >= 0]
            np.minimum.at(oldest, rows.replica, rows.step)
        following = np.append(runs.step[1:], 0)
        following[edges[1:][np.diff(edges) > 0] - 1] = np.iinfo(np.int64).max
        kept = runs[following > oldest[runs.replica]]
        self.runs[: len(kept)] = kept
        w.runs = len(kept)

    def _served(self, rows: Any) -> ServedAttempts:
        w = self.world[0]
        parts = self.segments[: w.segments]
        mine = np.isin(parts.serial, rows.serial) if len(parts) else np.empty(0, bool)
        last = rows[rows.open == 1]
        pieces = records(tables.SEGMENT, int(mine.sum()) + len(last))
        pieces[: int(mine.sum())] = parts[mine]
        tail = pieces[int(mine.sum()) :]
        for name in tables.SEGMENT.names or ():
            tail[name] = last["ran" if name == "steps" else name]
        if mine.any():
            pieces = pieces[np.argsort(pieces.serial, kind="stable")]
            kept = parts[~mine].copy()
            self.segments[: len(kept)] = kept
            w.segments = len(kept)
            rows = rows[np.argsort(rows.serial, kind="stable")]
        has_first = ~np.isnan(pieces.first)
        each = pieces.steps + has_first
        owner = (
            np.repeat(np.arange(len(rows)), rows.open)
            if not mine.any()
            else np.searchsorted(rows.serial, pieces.serial)
        )
        counts = np.bincount(owner, each, len(rows)).astype(np.int64) if len(rows) else np.empty(0, np.int64)
        times = np.empty(int(each.sum()), np.int64)
        _copy_times(pieces, *self._clock(), times)
        tokens = self._tokens(pieces, each, owner, rows)
        return ServedAttempts(rows, counts, times, tokens).clipped()

    def _clock(self) -> tuple[Ints, Ints, Ints]:
        """When each step on record ended, replica by replica; where those of each begin, and with which step."""
        runs, edges = self._runs_by_replica()
        some = np.flatnonzero(np.diff(edges))
        ends = self.replicas.step.copy()
        following = np.append(runs.step[1:], 0)
        following[edges[some + 1] - 1] = ends[some]
        steps = np.maximum(following - runs.step, 0)
        clock = np.empty(int(steps.sum()), np.int64)
        _wind(runs, steps, clock)
        places, firsts = np.zeros(len(self.replicas), np.int64), np.zeros(len(self.replicas), np.int64)
        before = np.concatenate([[0], np.cumsum(steps)])
        places[some], firsts[some] = before[edges[some]], runs.step[edges[some]]
        return clock, places, firsts

    def _tokens(self, pieces: Any, each: Ints, owner: Ints, rows: Any) -> Ints | None:
        """How many came each time. In the n-th step of a stretch floor(n * gain) have come."""
        if np.all(self.replicas.gain == 1.0):
            return None
        first = ~np.isnan(pieces.first)
        step = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each) + np.repeat(1 - first, each)
        gain = np.repeat(self.replicas.gain[pieces.replica], each)
        made = np.floor(step * gain + 1e-9) - np.floor((step - 1) * gain + 1e-9)
        made = np.where(step == 0, 1, made).astype(np.int64)
        whose = np.repeat(owner, each)
        so_far = np.cumsum(made)
        starts = np.flatnonzero(np.diff(whose, prepend=-1))
        so_far -= np.repeat((so_far - made)[starts], np.diff(starts, append=len(whose)))
        most = rows.output[whose]
        found: Ints = np.minimum(so_far, most) - np.minimum(so_far - made, most)
        return found


def engine_of(
    fleet: FleetSpec, demand: Demand, objectives: Objectives | None = None, seconds: float = np.inf, seed: int = 0
) -> SimEngine:
    """The tables of a fleet and of what is asked of it."""
    return SimEngine(fleet, *request_tables(fleet, demand, objectives), seconds, seed)


def _gap(taken: list[tuple[int, int]], size: int) -> int:
    """The first place where so many fit."""
    at = 0
    for first, length in sorted(taken):
        if first - at >= size:
            return at
        at = max(at, first + length)
    return at


def fitting(old: Any, size: int) -> Any:
    """With room for so many; what is there stays."""
    if size <= len(old):
        return old
    new = np.zeros(size, old.dtype)
    new[: len(old)] = old
    return new.view(np.recarray) if old.dtype.names else new


@native
def _wind(runs: Any, steps: Any, clock: Any) -> None:
    """Ends of all steps, in nanoseconds."""
    place = 0
    for n in range(len(runs)):
        run = runs[n]
        for j in range(1, steps[n] + 1):
            clock[place] = np.int64(np.rint(1e9 * (run.start + j * run.pace + run.slope * (j * (j - 1) / 2))))
            place += 1


@native
def _copy_times(pieces: Any, clock: Any, places: Any, firsts: Any, times: Any) -> None:
    """The tokens of a sequence are a slice of the clock of its replica, after the one that its prefill made."""
    place = 0
    for n in range(len(pieces)):
        piece = pieces[n]
        if piece.first == piece.first:  # it is no NaN
            times[place] = np.int64(np.rint(1e9 * piece.first))
            place += 1
        at = places[piece.replica] + piece.step - firsts[piece.replica]
        for j in range(piece.steps):
            times[place + j] = clock[at + j]
        place += piece.steps
