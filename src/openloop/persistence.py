"""What a client does when an answer is bad, or late: ask again, or ask somebody else as well.

They are pure: the same ones serve in front of a live server and in a model of one.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from openloop.errors import SpecError
from openloop.terms import COUNT, NUMBER, SECONDS, SHARE, TEXT, Codec, Term, param, read_term
from openloop.units import LONGEST_S, check_number, parse_seconds, write_seconds

MOST_TRIES = 30  # waves of attempts at one request
SPARE = 10  # what a budget allows in any case, for a share of little is nothing
FAILURES = ("error", "timeout", "shed")


@dataclass(frozen=True)
class After:
    """When a second copy is sent: after so many seconds, or after a percentile of what first copies take."""

    seconds: float | None = None
    percentile: float | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.percentile is None):
            raise SpecError("after is either a time, such as 20ms, or a percentile, such as p95")
        check_number("after", self.seconds or 0.0, 0.0, LONGEST_S)
        check_number("after", self.percentile or 0.0, 0.0, 100.0)


def _read_after(text: str) -> After:
    percentile = re.fullmatch(r"[pP]([0-9]+(\.[0-9]+)?)", text)
    if percentile is None:
        return After(seconds=parse_seconds(text))
    if float(percentile[1]) > 100:
        raise SpecError(f"{text!r} is no percentile; write p95, or a time such as 20ms")
    return After(percentile=float(percentile[1]))


def _write_after(after: After) -> str:
    return write_seconds(after.seconds) if after.seconds is not None else f"p{NUMBER.write(after.percentile)}"


AFTER = Codec(_read_after, _write_after)


def _read_failures(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split("+"))
    for each in found:
        if each not in FAILURES and not (each.isdigit() and len(each) == 3):
            raise SpecError(f"{each!r} is nothing to retry on; name {', '.join(FAILURES)} or a status such as 429")
    return found


@dataclass(frozen=True)
class Retry(Term):
    """Ask again after a failure, at most `most` times, waiting longer each time: `base` times a power of `factor`, at
    most `cap`, less a random part of it (`jitter` 1: anything from nothing to all of it). `on` names failures, as
    `429+503+timeout`: shed is 429, 503 and 529, error is a broken connection or a status of 500 and above. With a
    `budget` no more than this share of requests is asked again, and ten more."""

    name = "retry"
    most: int = param(COUNT, 2, most=MOST_TRIES - 1)
    base: float = param(SECONDS, 0.1)
    factor: float = param(NUMBER, 2.0, least=1.0, most=100.0)
    cap: float = param(SECONDS, 10.0)
    jitter: float = param(SHARE, 1.0)
    on: tuple[str, ...] = param(Codec(_read_failures, "+".join), ("shed", "error"))
    budget: float | None = param(SHARE, None)

    def applies(self, status: str, http_status: int | None) -> bool:
        if str(http_status) in self.on:
            return True
        ours = status == "error" and http_status is not None and http_status < 500 and http_status != 200
        return status in self.on and not ours

    def wait_s(self, tries: int, rng: np.random.Generator) -> float:
        """Before the next attempt, after so many."""
        longest = min(self.base * self.factor ** (tries - 1), self.cap)
        return longest * (1 - self.jitter * float(rng.random()))

    def affords(self, retries: int, requests: int) -> bool:
        return self.budget is None or retries < self.budget * requests + SPARE


@dataclass(frozen=True)
class Hedge(Term):
    """Send a copy where no answer has begun (its head alone is none: servers send that at once) `after` a time, or
    after a percentile of the time until others began (`p95`); whichever begins first is kept, and the other cancelled.
    With a `budget` no more than this share of requests is copied, and ten more."""

    name = "hedge"
    after: After = param(AFTER)
    budget: float = param(SHARE, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.after.seconds or self.after.percentile):
            zero = "0s" if self.after.percentile is None else "p0"
            raise SpecError(f"hedge: after is {zero}; a copy is sent when an answer is late, such as after 20ms or p95")


@dataclass(frozen=True)
class Repair(Term):
    """Ask again where an answer fails its quality gate, at most `most` times: with the answer, and with a `prompt` that
    says what is wrong with it (`{why}`)."""

    name = "repair"
    most: int = param(COUNT, 1, most=10)
    prompt: str = param(TEXT, "This answer is not acceptable: {why}. Answer again, and correct it.")

    def correction(self, why: str | None) -> str:
        return self.prompt.replace("{why}", why or "it fails a check")


def _read(text: str, kind: type[Term]) -> Any:
    whole = f"{kind.name}:most={text}" if text.strip().isdecimal() else text
    return read_term(whole, {kind.name: kind}, f"{kind.name} policy")


def read_repair(text: str) -> Repair:
    """`repair:most=2`, or only how many times."""
    found: Repair = _read(text, Repair)
    return found


def read_retry(text: str) -> Retry:
    """`retry:most=2,on=429+503`, or only how many times."""
    found: Retry = _read(text, Retry)
    return found


def read_hedge(text: str) -> Hedge:
    """`hedge:after=p95,budget=5%`, or only after what."""
    if ":" in text or text.strip().startswith("hedge"):
        found: Hedge = read_term(text, {"hedge": Hedge}, "hedging policy")
        return found
    return Hedge(_read_after(text.strip()))
