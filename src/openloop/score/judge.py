"""Gates over answers: which requests are accepted, and what stopped the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openloop.arrays import Bools, Counts
from openloop.score.requests import Answers, Where
from openloop.slo import SLO

SUCCESS = "success"


@dataclass(frozen=True)
class GateScore:
    """One gate by itself: `failed` counts completed requests that missed it, `failed_alone` those that missed no other.

    `attainment` and `goodput_rps` are what they would be with this gate only. For `success`, an unsuccessful request
    has failed that alone: the other gates judge completed ones.
    """

    failed: int
    failed_alone: int
    attainment: float
    goodput_rps: float


@dataclass(frozen=True)
class JointFailure:
    gates: tuple[str, ...]
    requests: int


@dataclass(frozen=True)
class Judgement:
    """By request: completed, accepted, and by gate which of the completed ones missed it."""

    ok: Bools
    accepted: Bools
    missed: dict[str, Bools]

    def gate_scores(self, seconds: float) -> dict[str, GateScore]:
        due = len(self.ok)
        count = sum(self.missed.values(), np.zeros(due, np.int8))

        def by_itself(failed: Bools, alone: int) -> GateScore:
            passed = int(np.sum(self.ok & ~failed))
            return GateScore(int(failed.sum()), alone, passed / due if due else np.nan, passed / seconds)

        failed = int(np.sum(~self.ok))
        scores = {SUCCESS: GateScore(failed, failed, 1 - failed / due if due else np.nan, (due - failed) / seconds)}
        return scores | {
            name: by_itself(missed, int(np.sum(missed & (count == 1)))) for name, missed in self.missed.items()
        }

    def joint_failures(self) -> list[JointFailure]:
        """Every combination of gates that completed requests missed together, most frequent first."""
        stopped = self.ok & ~self.accepted
        code = np.zeros(int(stopped.sum()), np.int64)
        for bit, missed in enumerate(self.missed.values()):
            code |= missed[stopped].astype(np.int64) << bit
        codes, counts = np.unique(code, return_counts=True)
        names = list(self.missed)
        found = [
            JointFailure(tuple(name for bit, name in enumerate(names) if code >> bit & 1), int(count))
            for code, count in zip(codes.tolist(), counts, strict=True)
        ]
        return sorted(found, key=lambda joint: -joint.requests)

    def at(self, where: Where) -> "Judgement":
        missed = {name: column[where] for name, column in self.missed.items()}
        return Judgement(self.ok[where], self.accepted[where], missed)


def judge(answers: Answers, objective: Counts, slos: Sequence[SLO]) -> Judgement:
    """Hold each request against the gates of its own SLO, `slos[objective]`."""
    ok = answers.deliveries.ok
    missed = {gate.name: np.zeros(len(ok), np.bool_) for slo in slos for gate in slo.gates}
    for index, slo in enumerate(slos):
        mine = ok & (objective == index)
        for gate in slo.gates:
            missed[gate.name] |= mine & ~gate.met(answers)
    accepted = ok.copy()
    for column in missed.values():
        accepted &= ~column
    return Judgement(ok, accepted, missed)
