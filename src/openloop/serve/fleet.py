"""The simulator in real time: the same loop, run up to now whenever somebody asks, behind a real endpoint.

Requests come when they come, and a token is due when the model says. What a prefix cache knows goes by the words of
prompts and of answers.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from openloop.arrays import records
from openloop.errors import SpecError
from openloop.serve.answers import WORDS
from openloop.sim import loop
from openloop.sim.engine import SimEngine, fitting
from openloop.sim.fleet import FleetSpec, read_fleet
from openloop.sim.replica import lasting, tokens_held
from openloop.sim.tables import DECODING, FREE, GONE, OK, REQUEST, RUNNING, SHED
from openloop.units import NS_PER_S

ROWS = 256  # requests at a time, to begin with
NAMES = 1024  # blocks of a request that may be known, at most
MASK = (1 << 62) - 1


class FleetEngineSpec:
    """A fleet from its YAML file. How clients behave is left to real ones."""

    def __init__(self, path: str) -> None:
        self.fleet = msgspec.structs.replace(read_fleet(path), client=None)
        kinds = self.fleet.kinds()
        virtual = {
            "delay": self.fleet.delay is not None,
            "drafts": any(each.drafts for each in kinds),
            "quality": self.fleet.quality is not None,
            "admission deadline": self.fleet.admission == "deadline",  # no client says until when it would wait
            **{f"order {name}": any(each.order.startswith(name) for each in kinds) for name in ("deadline", "goodput")},
        }
        if unserved := [name for name, asked in virtual.items() if asked]:
            raise SpecError(f"{path}: {' and '.join(unserved)} cannot be served in real time; leave it out")

    def start(self, seed: int = 0) -> "FleetEngine":
        return FleetEngine(self.fleet, seed)


class FleetEngine:
    def __init__(self, fleet: FleetSpec, seed: int) -> None:
        self._slowness = 1.0
        self._page = fleet.kinds()[0].block
        self._room = min(each.memory_blocks * each.block for each in fleet.kinds())
        requests = _unasked(ROWS)
        hashes = np.zeros(ROWS * NAMES, np.int64) if fleet.prefix_cache else None
        self._sim = SimEngine(fleet, requests, hashes, np.inf, seed, live=True)
        self._free = list(range(ROWS))
        self._over: list[int] = []
        self._key = np.full(ROWS, -1)  # whose request a row is
        self._given = np.zeros(ROWS, np.int64)  # tokens
        self._row: dict[int, int] = {}
        self._failed: list[tuple[int, bool]] = []
        self._cached: dict[int, int] = {}
        self._hits = self._queries = self._preemptions = 0
        self._sim.advance(0.0)  # compiled before anybody waits
        self._began_ns = time.monotonic_ns()

    @property
    def slowness(self) -> float:
        return self._slowness

    @slowness.setter
    def slowness(self, factor: float) -> None:
        self._sim.replicas.slow *= factor / self._slowness
        self._slowness = factor

    @property
    def running(self) -> int:
        return int((self._sim.replicas.running + self._sim.replicas.filling).sum())

    @property
    def waiting(self) -> int:
        return int(self._sim.replicas.waiting.sum())

    def submit(self, key: int, prompt_tokens: int, output_tokens: int, now_ns: int, words: Sequence[str] = ()) -> None:
        if prompt_tokens + output_tokens > self._room:
            self._failed.append((key, False))
            return
        if not self._free:
            self._widen()
        row = self._free.pop()
        q = self._sim.requests[row]
        q.prompt, q.output, q.within = prompt_tokens, output_tokens, 1e6
        q.tries = q.live = q.done = 0
        if self._sim.hashes is not None:
            q.names = row * NAMES
            q.named_prompt = min(len(words) // self._page, NAMES)
            names = self._names(words, output_tokens)
            q.named = len(names)
            self._sim.hashes[q.names : q.names + q.named] = names
        self._key[row], self._given[row], self._row[key] = key, 0, row
        self._sim.put_off(self._seconds(now_ns), loop.FOLLOW, row)

    def cancel(self, key: int) -> None:
        row = self._row.pop(key, None)
        if row is None:
            return
        self._key[row] = -1  # nobody asks for it any more
        w = self._sim.world[0]
        put_off = self._sim.later[: w.waits]
        due = (put_off.kind == loop.FOLLOW) & (put_off.number == row)
        if due.any():  # it has not even begun
            rest = put_off[~due].copy()
            w.waits = len(rest)
            self._sim.later[: w.waits] = rest[np.lexsort((rest.order, rest.time))]
            self._free.append(row)
        now = max(self._seconds(time.monotonic_ns()), float(self._sim.world[0].now))
        for slot in np.flatnonzero((self._sim.attempts.request == row) & self._alive()):
            self._sim.put_off(now, loop.GIVE_UP, int(slot), int(self._sim.attempts[slot].serial))

    def next_ns(self) -> int | None:
        moments = [float(row.time) for row in self._sim.later[:1] if self._sim.world[0].waits]
        now = float(self._sim.world[0].now)
        for m in self._sim.replicas[np.isfinite(self._sim.replicas.next)]:
            moments.append(float(m.next))
            if m.phase == DECODING:
                done = self._steps_done(m, now)
                moments.append(float(m.start + lasting(m.pace, m.slope, done + 1)))
        return None if not moments else self._began_ns + int(min(moments) * NS_PER_S) + 1

    def advance(self, now_ns: int) -> list[int]:
        sim, now = self._sim, self._seconds(now_ns)
        due: list[int] = []
        while sim.advance(now) == loop.FULL:
            self._collect_ended(due)
            sim.grow()
        sim.world[0].now = now
        sim.keep_looking()
        self._give_running(due, now)
        self._collect_ended(due)
        return due

    def failed(self) -> list[tuple[int, bool]]:
        found, self._failed = self._failed, []
        return found

    def cached(self, key: int) -> int:
        return self._cached.pop(key, 0)

    def figures(self) -> dict[str, float]:
        sim = self._sim
        up = sim.replicas[sim.replicas.up == 1]
        used = [tokens_held(sim, m, float(sim.world[0].now)) / (m.blocks * m.page) for m in up]
        return {
            "vllm:kv_cache_usage_perc": float(np.mean(used)) if used else 0.0,
            "vllm:num_preemptions_total": self._preemptions,
            "vllm:prefix_cache_queries_total": self._queries,
            "vllm:prefix_cache_hits_total": self._hits,
        }

    def _seconds(self, now_ns: int) -> float:
        return max((now_ns - self._began_ns) / NS_PER_S, float(self._sim.world[0].now))

    def _alive(self) -> Any:
        return (self._sim.attempts.where != FREE) & (self._sim.attempts.where != GONE)

    def _give_running(self, due: list[int], now: float) -> None:
        """Tokens of those that are under way: of their prefills, of whole runs, and of the run that is going on."""
        sim = self._sim
        rows = sim.attempts[self._alive() & (sim.attempts.made > 0)]
        made = rows.made.copy()
        running = rows.where == RUNNING
        steps = sim.replicas.step.copy()
        for m in sim.replicas[sim.replicas.phase == DECODING]:
            steps[m.number] += self._steps_done(m, now)
        made[running] += steps[rows.replica[running]] - rows.begin[running]
        self._give(due, rows.request, np.minimum(made, rows.output))

    def _give(self, due: list[int], rows: Any, made: Any) -> None:
        new = made - self._given[rows]
        self._given[rows] = made
        some = (new > 0) & (self._key[rows] >= 0)
        due += np.repeat(self._key[rows[some]], new[some]).tolist()

    def _collect_ended(self, due: list[int]) -> None:
        sim, w = self._sim, self._sim.world[0]
        ended = sim.ended[: w.ended]
        done = ended[ended.status == OK]
        self._give(due, done.request, done.output)
        for s in ended:
            row, key = int(s.request), int(self._key[s.request])
            if key >= 0:
                self._row.pop(key, None)
                self._cached[key] = int(s.cached)
                if s.status != OK:
                    self._failed.append((key, bool(s.status == SHED)))
            self._key[row] = -1
            self._over.append(row)
        left = set(sim.attempts.request[sim.attempts.where == GONE].tolist())  # replicas have the names of their blocks
        self._free += [row for row in self._over if row not in left]
        self._over = [row for row in self._over if row in left]
        self._hits += int(ended.cached.sum())
        self._queries += int(ended.prompt.sum())
        self._preemptions += int(ended.preemptions.sum())
        w.ended = w.segments = w.runs = w.events = 0  # the endpoint keeps the truth

    def _steps_done(self, m: Any, now: float) -> int:
        """Of the run that is going on."""
        done = int(m.steps)
        if m.next > now and m.pace > 0:
            done = min(done, int((now - m.start) / m.pace) + 1)
            while done > 0 and m.start + lasting(m.pace, m.slope, done) > now:
                done -= 1
        return done

    def _names(self, words: Sequence[str], output_tokens: int) -> list[int]:
        """Of the blocks of a prompt and of its answer."""
        said = [*words, *(WORDS[place % len(WORDS)] for place in range(output_tokens))]
        found: list[int] = []
        before = 0
        for place in range(0, min(len(said) // self._page, NAMES) * self._page, self._page):
            before = hash((before, *said[place : place + self._page])) & MASK
            found.append(before)
        return found

    def _widen(self) -> None:
        """Twice as many requests at a time."""
        old, sim = len(self._key), self._sim
        sim.requests = fitting(sim.requests, 2 * old)
        sim.requests[old:] = _unasked(old)
        if sim.hashes is not None:
            sim.hashes, sim.spots = (fitting(each, 2 * old * NAMES) for each in (sim.hashes, sim.spots))
        self._key = np.concatenate([self._key, np.full(old, -1)])
        self._given = fitting(self._given, 2 * old)
        self._free += range(old, 2 * old)


def _unasked(count: int) -> Any:
    """Rows for requests that are still to come."""
    found = records(REQUEST, count)
    found.due, found.follower, found.session = np.nan, -1, -1
    return found
