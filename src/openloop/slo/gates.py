"""What counts as accepted: each gate looks at completed requests and says which of them pass.

Every latency gate is a schedule of token deadlines (see deadlines.py); the ones that need only a request's first, last
or longest-awaited token are written as the comparison they come down to.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from openloop.arrays import Bools, Codes, Floats, Ints
from openloop.slo.deadlines import Deadlines, reading, reading_from_first
from openloop.units import (
    LONGEST_S,
    SLOWEST_READER,
    check_number,
    parse_count,
    parse_number,
    parse_seconds,
    parse_token_rate,
    write_seconds,
)


class AnswerColumns(Protocol):
    """What a gate may look at: a value per logical request. NaN: not known. Times count from the clock in use."""

    @property
    def tokens(self) -> Ints: ...  # generated
    @property
    def single(self) -> Bools: ...  # whether it is known to have no more than one of them
    @property
    def timed(self) -> Bools: ...  # whether it is known when its tokens came, and not just the first
    @property
    def ttft_s(self) -> Floats: ...
    @property
    def tpot_s(self) -> Floats: ...
    @property
    def tbt_s(self) -> Floats: ...  # longest time between two tokens
    @property
    def jitter_s(self) -> Floats: ...  # longest minus shortest time between two tokens
    @property
    def e2e_s(self) -> Floats: ...
    @property
    def completion_s(self) -> Floats: ...  # from the start of the measured window
    @property
    def quality(self) -> Codes: ...  # 1 pass, 0 fail, -1 not judged
    @property
    def quality_score(self) -> Floats: ...
    @property
    def retries(self) -> Ints: ...  # retries and repairs it took
    @property
    def cost(self) -> Floats: ...  # of all attempts
    def itl_s(self, share: float) -> Floats: ...  # this share of a request's token gaps is no longer
    def lateness_s(self, deadlines: Deadlines) -> Floats: ...


class SLOGate(Protocol):
    """One reason to accept or refuse a request.

    A gate that calls `answers.lateness_s` names the schedule in an attribute `deadlines`, and one that calls
    `answers.itl_s` the share in `gap_share`: what they name is worked out in the pass over the tokens.
    """

    @property
    def name(self) -> str: ...
    def met(self, answers: AnswerColumns) -> Bools: ...


@dataclass(frozen=True)
class _Within:
    """Something within a number of seconds."""

    within_s: float
    name: ClassVar[str]
    column: ClassVar[str]  # of the answers

    def __post_init__(self) -> None:
        check_number(self.name, self.within_s, 0, LONGEST_S)

    def met(self, answers: AnswerColumns) -> Bools:
        seconds: Floats = getattr(answers, self.column)
        return seconds <= self.within_s

    def __str__(self) -> str:
        return f"{self.name}<={write_seconds(self.within_s)}"


class _WithinGaps(_Within):
    """Something of the times between tokens, of which a single one has none."""

    def met(self, answers: AnswerColumns) -> Bools:
        return answers.single | super().met(answers)


class TTFT(_Within):
    """t_1 <= within: the first token in time (d_1 of eq. 2)."""

    name, column = "ttft", "ttft_s"


class TPOT(_WithinGaps):
    """(E2E - TTFT) / (n - 1) <= within; an answer of one token has no further tokens to wait for."""

    name, column = "tpot", "tpot_s"


class TBT(_WithinGaps):
    """t_i - t_{i-1} <= within for every i (d_i of eq. 2)."""

    name, column = "tbt", "tbt_s"


class Jitter(_WithinGaps):
    """Longest minus shortest token gap <= within: a burst and a stall is worse than a steady pace."""

    name, column = "jitter", "jitter_s"


class E2E(_Within):
    """t_n <= within: the last token, or the whole answer where it is not streamed (eq. 3)."""

    name, column = "e2e", "e2e_s"


class Completion(_Within):
    """Done within the batch's completion window, which opens for all rows when the measured window does."""

    name, column = "window", "completion_s"


@dataclass(frozen=True)
class ITL:
    """This share of the request's own token gaps is within the bound: `itl_p95<=80ms`."""

    gap_share: float
    within_s: float

    def __post_init__(self) -> None:
        check_number("the share of gaps of itl", self.gap_share, 1e-6, 1)
        check_number(self.name, self.within_s, 0, LONGEST_S)

    @property
    def name(self) -> str:
        return f"itl_p{self.gap_share * 100:.10g}"

    def met(self, answers: AnswerColumns) -> Bools:
        return answers.single | (answers.itl_s(self.gap_share) <= self.within_s)

    def __str__(self) -> str:
        return f"{self.name}<={write_seconds(self.within_s)}"


@dataclass(frozen=True)
class TokenDeadlines:
    """Every token by its deadline, for a schedule of your own (eq. 1)."""

    deadlines: Deadlines
    name: str = "deadlines"

    def met(self, answers: AnswerColumns) -> Bools:
        return answers.timed & (answers.lateness_s(self.deadlines) <= 0)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Read:
    """A reader who starts on arrival never waits: t_i <= i / V (eq. 4)."""

    tokens_per_s: float
    name: ClassVar[str] = "read"

    def __post_init__(self) -> None:
        check_number(self.name, self.tokens_per_s, SLOWEST_READER, 1e9)

    @property
    def deadlines(self) -> Deadlines:
        return reading(self.tokens_per_s)

    def met(self, answers: AnswerColumns) -> Bools:
        return answers.timed & (answers.lateness_s(self.deadlines) <= 0)

    def __str__(self) -> str:
        return f"{self.name}>={self.tokens_per_s!r}tok/s"


class ReadFromFirst(Read):
    """A reader who starts with the first token never waits: t_i <= t_1 + (i - 1) / V."""

    name = "read_from_first"

    @property
    def deadlines(self) -> Deadlines:
        return reading_from_first(self.tokens_per_s)


@dataclass(frozen=True)
class Quality:
    """The output passed its quality gate, or scored `at_least`; an output that nobody judged does not pass."""

    at_least: float | None = None
    name = "quality"

    def met(self, answers: AnswerColumns) -> Bools:
        return answers.quality == 1 if self.at_least is None else answers.quality_score >= self.at_least

    def __str__(self) -> str:
        return "quality" if self.at_least is None else f"quality>={self.at_least!r}"


@dataclass(frozen=True)
class _AtMost:
    """No more than this, of the column of this name."""

    at_most: float
    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_number(self.name, self.at_most, 0, 1e12)

    def met(self, answers: AnswerColumns) -> Bools:
        amounts: Floats = getattr(answers, self.name)
        return amounts <= self.at_most

    def __str__(self) -> str:
        return f"{self.name}<={self.at_most!r}"


class Retries(_AtMost):
    """No more than this many retries and repairs; hedges do not count, they are not waited for."""

    name = "retries"


class Cost(_AtMost):
    """All attempts at the request together cost no more than this."""

    name = "cost"


@dataclass(frozen=True)
class GateForm:
    """How a gate is written."""

    build: Callable[[Any], SLOGate]
    operator: str
    parse: Callable[[str], Any]
    example: str
    bare: SLOGate | None = None  # what the name alone means


GATES: dict[str, GateForm] = {
    "ttft": GateForm(TTFT, "<=", parse_seconds, "ttft<=500ms"),
    "tpot": GateForm(TPOT, "<=", parse_seconds, "tpot<=40ms"),
    "tbt": GateForm(TBT, "<=", parse_seconds, "tbt<=200ms"),
    "itl_p95": GateForm(lambda within: ITL(0.95, within), "<=", parse_seconds, "itl_p95<=80ms"),
    "jitter": GateForm(Jitter, "<=", parse_seconds, "jitter<=1s"),
    "e2e": GateForm(E2E, "<=", parse_seconds, "e2e<=10s"),
    "window": GateForm(Completion, "<=", parse_seconds, "window<=24h"),
    "read": GateForm(Read, ">=", parse_token_rate, "read>=20tok/s"),
    "read_from_first": GateForm(ReadFromFirst, ">=", parse_token_rate, "read_from_first>=20tok/s"),
    "quality": GateForm(Quality, ">=", parse_number, "quality", bare=Quality()),
    "retries": GateForm(Retries, "<=", parse_count, "retries<=1"),
    "cost": GateForm(Cost, "<=", parse_number, "cost<=0.02"),
}


def find_form(name: str) -> GateForm | None:
    """The form of a gate by name; `itl_p99.9` and the like are forms of `itl_p95`."""
    percentile = re.fullmatch(r"itl_p(\d{1,3}(?:\.\d{1,4})?)", name)
    if percentile and 0 < float(percentile[1]) <= 100:
        share = float(percentile[1]) / 100
        return GateForm(lambda within: ITL(share, within), "<=", parse_seconds, f"{name}<=80ms")
    return GATES.get(name)
