"""Whom a fleet refuses before it serves: limits as a user writes them, for the simulator and the proxy."""

from dataclasses import dataclass

from openloop.terms import COUNT, NUMBER, RATE, Term, by_name, param, read_term


@dataclass(frozen=True)
class Admission(Term):
    @property
    def limit(self) -> int:
        """Of requests at a replica; 0: there is none."""
        return getattr(self, "most", 0)


@dataclass(frozen=True)
class InFlight(Admission):
    """A replica has at most `most` requests, waiting or served."""

    name = "in-flight"
    most: int = param(COUNT)


@dataclass(frozen=True)
class Queue(Admission):
    """At most `most` requests wait at a replica: to be taken into a batch; in the proxy, which does not see batches,
    for their first token."""

    name = "queue"
    most: int = param(COUNT)


@dataclass(frozen=True)
class Bucket(Admission):
    """A bucket of `burst` tokens that fills at `rate`; each request of the fleet takes one."""

    name = "bucket"
    rate: float = param(RATE)
    burst: float = param(NUMBER, 10.0, least=1.0)


@dataclass(frozen=True)
class Deadline(Admission):
    """Refused when its first token will probably be late, by what waits before it at the replica."""

    name = "deadline"


ADMISSION = by_name(InFlight, Queue, Bucket, Deadline)


def read_admission(text: str) -> Admission:
    found: Admission = read_term(text, ADMISSION, "admission")
    return found
