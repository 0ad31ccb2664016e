"""Queues in virtual time: when requests are due in, what became of each attempt out; and runs of them.

Models are pure. `rng` gives the service times, drawn in the order of arrival.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from openloop import __version__
from openloop.arrays import Bools, Floats, Ints
from openloop.arrivals import MOST_ARRIVALS, Arrivals, lasts_s, read_arrivals
from openloop.distributions import LENGTHS, TIMES, Distribution
from openloop.errors import SpecError
from openloop.persistence import AFTER, After
from openloop.records import Manifest, Run, checked, make_batch, make_lists, make_words
from openloop.seeds import stream
from openloop.sim.recursions import hedged_ends, multi_server, shared_clock, single_server, static_batches
from openloop.terms import COUNT, SECONDS, SHARE, Codec, Term, by_name, param, read_term
from openloop.units import LONGEST_S, NS_PER_S, check_number, to_ns

MOST_TOKENS = 100_000_000
MOST_CALLS = 2_000_000_000


@dataclass(frozen=True)
class Served:
    """What became of each attempt: a value per attempt, in seconds where it is a time."""

    sent_s: Floats
    ended_s: Floats
    request: Ints | None = None  # which arrival it belongs to; None: one attempt each
    hedge: Bools | None = None  # whether it is a second copy
    replica: Ints | None = None
    token_s: Floats | None = None  # of all attempts, end to end
    prompt_tokens: Ints | None = None
    output_tokens: Ints | None = None


class QueueModel(Protocol):
    @property
    def replicas(self) -> int | None:
        """How many serve side by side; None: as many as it takes, or more than one for each request."""

    def serve(self, due_s: Floats, rng: np.random.Generator) -> Served: ...


def _read_servers(text: str) -> int | None:
    return None if text.lower() == "inf" else int(COUNT.read(text))


def _check_servers(what: str, count: object) -> None:
    if count is not None and not (isinstance(count, int) and 1 <= count <= 1_000_000):
        raise SpecError(f"{what} is {count!r}; it is a whole number from 1 to 1,000,000, or inf")


SERVERS = Codec(_read_servers, lambda count: "inf" if count is None else str(count), _check_servers)


@dataclass(frozen=True)
class Fcfs(Term):
    """First come, first served: M/M/1, M/G/1, M/G/c, or no queue at all with `servers=inf`.

    With `stall`, everything stands still for that long at the end of every stretch of `every`. With `connections`, a
    client that has only so many sends late: what it measures from sending hides what its users wait.
    """

    name = "fcfs"
    service: Distribution = param(TIMES)
    servers: int | None = param(SERVERS, 1)
    connections: int | None = param(COUNT, None)
    stall: float = param(SECONDS, 0.0)
    every: float = param(SECONDS, 0.0)

    @property
    def replicas(self) -> int | None:
        return self.servers

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stall and not self.stall < self.every:
            raise SpecError(
                f"fcfs: stall is {self.stall:g} s, so every must be longer than that; it is {self.every:g} s"
            )

    def serve(self, due_s: Floats, rng: np.random.Generator) -> Served:
        service = self.service.draw(len(due_s), rng)
        due = self._active(due_s)
        if self.servers == 1 and self.connections is None:
            return Served(due_s, self._ended(single_server(due, service), due_s))
        connections = min(self.connections or 0, len(due_s))
        sent, ended, replica = multi_server(due, service, self.servers or 0, connections)
        sent_s = np.maximum(self._wall(sent), due_s)
        return Served(sent_s, self._ended(ended, sent_s), replica=replica if self.servers else None)

    def _active(self, wall_s: Floats) -> Floats:
        """Seconds without the stalls so far."""
        if not self.stall:
            return wall_s
        run = self.every - self.stall
        whole = np.floor(wall_s / self.every)
        active: Floats = whole * run + np.minimum(wall_s - whole * self.every, run)
        return active

    def _wall(self, active_s: Floats) -> Floats:
        if not self.stall:
            return active_s
        # What ends with the last active moment, to half a nanosecond, ends before the stall.
        run = self.every - self.stall
        wall: Floats = active_s + self.stall * np.maximum(np.floor((active_s - 5e-10) / run), 0)
        return wall

    def _ended(self, active_s: Floats, sent_s: Floats) -> Floats:
        """What was sent during a stall and takes no time at all ends with the stall."""
        wall = self._wall(active_s)
        return np.where(wall < sent_s, np.maximum(wall + self.stall, sent_s), wall)


@dataclass(frozen=True)
class Batch(Term):
    """Static batches: one takes `fixed` + `each` per request in it, and starts when full or after `timeout`."""

    name = "batch"
    size: int = param(COUNT, most=1e6)
    fixed: float = param(SECONDS)
    each: float = param(SECONDS)
    timeout: float = param(SECONDS, math.inf)
    replicas = 1

    def serve(self, due_s: Floats, rng: np.random.Generator) -> Served:
        return Served(due_s, static_batches(due_s, self.size, self.fixed, self.each, self.timeout))


@dataclass(frozen=True)
class Pipeline(Term):
    """Stages one after the other, each a queue of its own: `pipeline:2ms,exponential(20ms),5ms`."""

    name = "pipeline"
    stages: tuple[Distribution, ...] = param(TIMES, rest=True)
    replicas = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stages:
            raise SpecError("pipeline: there are no stages; give at least one, such as pipeline:2ms,20ms")

    def serve(self, due_s: Floats, rng: np.random.Generator) -> Served:
        ended = due_s
        for stage in self.stages:
            ended = single_server(ended, stage.draw(len(due_s), rng))
        return Served(due_s, ended)


@dataclass(frozen=True)
class FanOut(Term):
    """Every request asks `n` backends and waits for the slowest; `servers` are those of each backend."""

    name = "fanout"
    n: int = param(COUNT, most=100_000)
    service: Distribution = param(TIMES)
    servers: int | None = param(SERVERS, None)
    replicas = None

    def serve(self, due_s: Floats, rng: np.random.Generator) -> Served:
        if self.n * len(due_s) > MOST_CALLS:
            raise SpecError(
                f"{self.n * len(due_s):,} calls to backends are too many for one run; at most {MOST_CALLS:,} are"
            )
        backend = Fcfs(self.service, self.servers)
        slowest = due_s
        for _ in range(self.n):
            slowest = np.maximum(slowest, backend.serve(due_s, rng).ended_s)
        return Served(due_s, slowest)


@dataclass(frozen=True)
class Hedged(Term):
    """A second copy is sent when the first is late; the first answer wins, and both cost.

    `after` is a time, or a percentile of the latency without hedging (`p95`). Nobody cancels the loser: its server
    works on it to the end.
    """

    name = "hedged"
    service: Distribution = param(TIMES)
    after: After = param(AFTER)
    servers: int | None = param(SERVERS, None)

    @property
    def replicas(self) -> int | None:
        return self.servers

    def serve(self, due_s: Floats, rng: np.random.Generator) -> Served:
        n = len(due_s)
        service, again = self.service.draw(n, rng), self.service.draw(n, rng)
        delay = self._delay(due_s, service)
        first, second, server, other = hedged_ends(due_s, service, again, self.servers or 0, delay)
        copied = np.flatnonzero(np.isfinite(second))
        return Served(
            np.concatenate([due_s, due_s[copied] + delay]),
            np.concatenate([first, second[copied]]),
            np.concatenate([np.arange(n), copied]),
            np.arange(n + len(copied)) >= n,
            np.concatenate([server, other[copied]]) if self.servers else None,
        )

    def _delay(self, due_s: Floats, service: Floats) -> float:
        if self.after.percentile is None or not len(due_s):
            return self.after.seconds or 0.0
        ended = multi_server(due_s, service, self.servers or 0, 0)[1]
        return float(np.percentile(np.round(ended - due_s, 9), self.after.percentile))


@dataclass(frozen=True)
class ReplicaQueue(Term):
    """Shaped like a language model: prompts are read one at a time, `prefill` per token, and then tokens are paced.

    The first token comes when the prompt is read. Each further one takes a `gap`, longer by the share `crowding` for
    every other stream that is active: 100% is a processor that streams share evenly.
    """

    name = "replica"
    prompt: Distribution = param(LENGTHS)
    output: Distribution = param(LENGTHS)
    prefill: float = param(SECONDS)
    gap: Distribution = param(TIMES)
    crowding: float = param(SHARE, 0.0)
    replicas = 1

    def serve(self, due_s: Floats, rng: np.random.Generator) -> Served:
        n = len(due_s)
        prompt, output = (_lengths(each, n, rng) for each in (self.prompt, self.output))
        first = single_server(due_s, np.multiply(prompt, self.prefill, dtype=np.float64))
        if output.sum() > MOST_TOKENS:
            raise SpecError(f"{output.sum():,} tokens are too many for one run; at most {MOST_TOKENS:,} are")
        bounds = np.concatenate([[0], np.cumsum(output)])
        done: Floats = np.cumsum(self.gap.draw(int(output.sum()), rng))
        before = done[bounds[:-1]]  # the first token takes no more than its prompt
        started, times, clocks = shared_clock(first, done[bounds[1:] - 1] - before, self.crowding)
        token_s = np.interp(np.repeat(started - before, output) + done, clocks, times)
        token_s = np.maximum(token_s, np.repeat(first, output))
        return Served(due_s, token_s[bounds[1:] - 1], token_s=token_s, prompt_tokens=prompt, output_tokens=output)


def _lengths(distribution: Distribution, n: int, rng: np.random.Generator) -> Ints:
    """Whole tokens, at least one."""
    drawn = distribution.draw(n, rng)
    if np.any(drawn > MOST_TOKENS):
        raise SpecError(f"a length of {drawn.max():.3g} tokens is too much; at most {MOST_TOKENS:,} are")
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


def read_queue(text: str) -> QueueModel:
    found: QueueModel = read_term(text, QUEUES, "queue")
    return found


QUEUES = by_name(Fcfs, Batch, Pipeline, FanOut, Hedged, ReplicaQueue)


def simulate(
    queue: QueueModel | str,
    arrivals: Arrivals | str,
    seconds: float,
    seed: int | np.random.Generator = 0,
    **facts: Any,
) -> Run:
    """Arrivals of so many seconds, or until a recording of them ends, through a queue, all of them to their end.

    A generator in place of a seed gives the arrivals first and then the service times. `facts` go into the manifest:
    prices, slo, notes.
    """
    queue = read_queue(queue) if isinstance(queue, str) else queue
    arrivals = read_arrivals(arrivals) if isinstance(arrivals, str) else arrivals
    check_number("the length of the run in seconds", seconds, 1e-6, LONGEST_S)
    seconds = min(seconds, lasts_s(arrivals))
    expected = arrivals.expected(seconds)
    if expected > MOST_ARRIVALS:
        raise SpecError(f"{expected:,.0f} arrivals are too many for one run, which holds {MOST_ARRIVALS:,}")
    if isinstance(seed, np.random.Generator):
        chosen = None
        due_s = arrivals.times(seconds, seed)
        served = queue.serve(due_s, seed)
    else:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise SpecError(f"the seed is {seed!r}; it is a whole number of zero or more")
        chosen = int(seed)
        due_s = arrivals.times(seconds, stream(chosen, "arrivals"))
        served = queue.serve(due_s, stream(chosen, "service"))
    manifest = Manifest(
        **{
            "source": "sim",
            "engine": "queue",
            "engine_version": __version__,
            "engine_flags": str(queue),
            "model": "none: a queue",
            "hardware": "none: virtual time",
            "replicas": queue.replicas,
            "arrivals": str(arrivals),
            "arrivals_cv": arrivals.cv,
            "arrivals_dispersion": arrivals.dispersion(seconds),
            "offered_rps": expected / seconds if expected > 0 else None,
            "window_ns": (0, to_ns(seconds)),
            "seed": chosen,
            **facts,
        }
    )
    return Run.of(checked(manifest), [make_batch(_columns(due_s, served, to_ns(seconds)))])


def _columns(due_s: Floats, served: Served, end_ns: int) -> dict[str, Any]:
    latest = max((float(times.max()) for times in (served.sent_s, served.ended_s) if len(times)), default=0.0)
    if not latest <= LONGEST_S:
        raise SpecError(f"a request ends after {latest:.3g} s, over thirty years; make service times or load smaller")
    request = np.arange(len(due_s)) if served.request is None else served.request
    columns: dict[str, Any] = {
        "request_id": request,
        "scheduled_ns": np.minimum(_ns(due_s), end_ns - 1)[request],  # rounding must not move one out of the window
        "sent_ns": _ns(served.sent_s),
        "ended_ns": _ns(served.ended_s),
        "prompt_tokens": served.prompt_tokens,
        "output_tokens": served.output_tokens,
    }
    if served.hedge is not None:
        columns["attempt"] = served.hedge.astype(np.int32)
        columns["kind"] = make_words(served.hedge, ["first", "hedge"])
    if served.replica is not None and len(served.replica):
        columns["replica"] = make_words(served.replica, [str(each) for each in range(served.replica.max() + 1)])
    if served.token_s is not None and served.output_tokens is not None:
        columns["event_ns"] = make_lists("event_ns", _ns(served.token_s), served.output_tokens)
    return {name: values for name, values in columns.items() if values is not None}


def _ns(seconds: Floats) -> Ints:
    return np.rint(seconds * NS_PER_S).astype(np.int64)
