"""What is judged, and what comes of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from openloop.terms import Term


@dataclass(frozen=True, slots=True)
class Case:
    """One answer and what it answers: all that a gate may look at."""

    text: str
    prompt: str = ""
    reference: str | None = None  # the answer that is right
    context: str | None = None  # what it is to be grounded in; null: the prompt
    finish_reason: str | None = None
    output_tokens: int | None = None
    workload_class: str | None = None


@dataclass(frozen=True, slots=True)
class Grade:
    """`passed` is null where nothing can be said, and `why` says why; `score` is from 0 to 1; `cost` what it took."""

    passed: bool | None
    score: float | None = None
    cost: float = 0.0
    why: str | None = None
    votes: tuple[int, int] = (0, 0)  # of a judge: how many agreed with the majority, of how many that made sense
    slices: tuple[str, ...] = ()  # of the user's, that the prompt belongs to


class TimeUp(BaseException):
    """An alarm rang; no `except Exception` of a user's holds it up."""

    cost = 0.0  # what the gate had spent


class QualityGate(Term):
    """One reason to accept or refuse an output."""

    @property
    def limit_s(self) -> float:
        """After which it is given up."""
        return 5.0

    @property
    def files(self) -> tuple[str, ...]:
        """That it reads."""
        return ()

    def prepare(self) -> None:
        """Raise SpecError if it cannot work."""

    def check(self, case: Case) -> Grade:
        raise NotImplementedError


def joint_grade(asked: Iterable[Grade]) -> Grade:
    """All must pass; one that cannot tell leaves it open, unless another fails. After a failure nobody is asked."""
    grades: list[Grade] = []
    for grade in asked:
        grades.append(grade)
        if grade.passed is False:
            break
    failed = [grade for grade in grades if grade.passed is False]
    silent = [grade for grade in grades if grade.passed is None]
    scores = [grade.score for grade in grades if grade.score is not None]
    first = next(iter(failed or silent), None)
    return Grade(
        False if failed else None if silent else True,
        min(scores) if scores and not (silent and not failed) else None,
        sum(grade.cost for grade in grades),
        first.why if first else None,
        (sum(grade.votes[0] for grade in grades), sum(grade.votes[1] for grade in grades)),
    )
