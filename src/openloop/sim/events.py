"""What happens to a fleet at a given time: a frozen dataclass each, with the rows that the loop knows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from openloop.errors import SpecError
from openloop.sim.tables import CRASH, DRAIN, ROTATE, SLOW, START
from openloop.terms import COUNT, NUMBER, SECONDS, Codec, Term, by_name, param
from openloop.units import parse_number

EventRow = tuple[float, ...]  # time, kind, replica, value; and of what comes again: every, until
LOGGED = ("slow", "crash", "start", "drain", "salt-rotation", "scale-out", "scale-in")


def _whole(text: str) -> int:
    value = parse_number(text)
    if value != int(value) or value < 0:
        raise SpecError(f"{text!r} is no replica; they are numbered from 0")
    return int(value)


PLACE = Codec(_whole, str)


@dataclass(frozen=True)
class Event(Term):
    at: float = param(SECONDS)

    def rows(self, fleet: int, horizon_s: float) -> Iterator[EventRow]:
        """For a fleet of at most so many when this event begins."""
        raise NotImplementedError


@dataclass(frozen=True)
class _OfReplica(Event):
    replica: int = param(PLACE, 0)


@dataclass(frozen=True)
class Slow(_OfReplica):
    """All steps of a replica take `factor` times as long: for `last`, and again `every` so often."""

    name = "slow"
    factor: float = param(NUMBER, 3.0, above=0.0, most=1e6)
    last: float | None = param(SECONDS, None)
    every: float | None = param(SECONDS, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is not None and (self.last is None or not 0 < self.last < self.every):
            raise SpecError("slow: what comes again, every=60s, must last less than that: last=10s")

    def rows(self, fleet: int, horizon_s: float) -> Iterator[EventRow]:
        every, until = np.inf if self.every is None else self.every, horizon_s - 1e-6
        yield self.at, SLOW, self.replica, self.factor, every, until
        if self.last is not None:
            yield self.at + self.last, SLOW, self.replica, 1.0, every, until + self.last


@dataclass(frozen=True)
class Crash(_OfReplica):
    """A replica is gone with all that it did, and comes back after `restart` with a cold cache."""

    name = "crash"
    restart: float | None = param(SECONDS, 30.0)

    def rows(self, fleet: int, horizon_s: float) -> Iterator[EventRow]:
        yield self.at, CRASH, self.replica, 0.0
        if self.restart is not None:
            yield self.at + self.restart, START, self.replica, 0.0


@dataclass(frozen=True)
class Deploy(Event):
    """Replicas are replaced in turn, one `every` so often: each takes no more requests, has `grace` to finish those it
    has, and is back after `restart` with a cold cache."""

    name = "deploy"
    every: float = param(SECONDS, 60.0)
    grace: float = param(SECONDS, 20.0)
    restart: float = param(SECONDS, 30.0)

    def rows(self, fleet: int, horizon_s: float) -> Iterator[EventRow]:
        for replica in range(fleet):
            at = self.at + replica * self.every
            yield at, DRAIN, replica, 0.0
            yield at + self.grace, CRASH, replica, 1.0  # if it was drained: one that came since is new already
            yield at + self.grace + self.restart, START, replica, 0.0


@dataclass(frozen=True)
class Add(Event):
    """`count` replicas more, with cold caches."""

    name = "add"
    count: int = param(COUNT, 1, most=4096)

    def rows(self, fleet: int, horizon_s: float) -> Iterator[EventRow]:
        for replica in range(fleet, fleet + self.count):
            yield self.at, START, replica, 1.0


class Remove(_OfReplica):
    """A replica takes no more requests; those that it has are served, and then it is gone."""

    name = "remove"

    def rows(self, fleet: int, horizon_s: float) -> Iterator[EventRow]:
        yield self.at, DRAIN, self.replica, 1.0


class Rotate(Event):
    """The salt of all prefix caches changes: nothing is found any more."""

    name = "rotate"

    def rows(self, fleet: int, horizon_s: float) -> Iterator[EventRow]:
        yield self.at, ROTATE, 0, 0.0


EVENTS = by_name(Slow, Crash, Deploy, Add, Remove, Rotate)


def count_added(events: Sequence[Event]) -> int:
    """Replicas that are there only later."""
    return sum(event.count for event in events if isinstance(event, Add))


def plan_rows(events: tuple[Event, ...], fleet: int, horizon_s: float) -> list[EventRow]:
    """All of them in time; an event that cannot be is refused."""
    found: list[EventRow] = []
    for event in sorted(events, key=lambda each: each.at):
        if not event.at < horizon_s:
            raise SpecError(f"{event} is after the end of the run, {horizon_s:g} s; run longer, or let it come earlier")
        if isinstance(event, _OfReplica) and not event.replica < fleet:
            raise SpecError(f"{event}: there is no replica {event.replica}; they are 0 to {fleet - 1}")
        found += event.rows(fleet, horizon_s)
        fleet += count_added([event])
    order = np.argsort([row[0] for row in found], kind="stable")
    return [found[place] for place in order]
