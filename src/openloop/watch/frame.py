"""What is known at one moment: the last minute, its tails, what burns, and what disruptions cost so far.

All of it is read off a ledger of counts, second by second.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openloop.arrays import Floats
from openloop.watch.burn import Alert, Burn

GOODPUT = "goodput"  # the signal of all gates together


class SecondCounts:
    """Named counts of each whole second; what is older than `keep_s` seconds may be forgotten."""

    def __init__(self, names: Iterable[str], keep_s: int = 1 << 40) -> None:
        self.first = 0  # the first second that is kept
        self.keep_s = keep_s
        self._sums = {name: np.zeros(1) for name in names}  # up to the start of each second

    @property
    def end(self) -> int:
        """The second after the last that was written."""
        return self.first + len(next(iter(self._sums.values()))) - 1

    def write(self, second: int, counts: Mapping[str, Floats]) -> None:
        """The counts from this second on, in place of whatever stood there."""
        second, skipped = max(second, self.first), max(self.first - second, 0)
        if second - self.end > self.keep_s:  # of all before nothing is kept
            self.first, self._sums = second, {name: np.zeros(1) for name in self._sums}
        for name, sums in self._sums.items():
            kept = sums[: second - self.first + 1]
            kept = np.concatenate([kept, np.full(second - self.first + 1 - len(kept), kept[-1])])
            self._sums[name] = np.concatenate([kept, kept[-1] + np.cumsum(counts[name][skipped:])])
        if self.end - self.first > 2 * self.keep_s:
            gone = self.end - self.keep_s - self.first
            self._sums = {name: sums[gone:] for name, sums in self._sums.items()}
            self.first += gone

    def add(self, second: int, counts: Mapping[str, float]) -> None:
        """To one second at the end, or after it."""
        both = {name: self.total(name, second, second + 1) + counts.get(name, 0.0) for name in self._sums}
        self.write(second, {name: np.array([value]) for name, value in both.items()})

    def total(self, name: str, start: float, end: float) -> float:
        """Over the seconds from `start` to before `end`, as far as they are kept."""
        sums, last = self._sums[name], self.end - self.first
        a, b = (min(max(int(at) - self.first, 0), last) for at in (start, end))
        return float(sums[max(a, b)] - sums[a])


def columns(signals: Sequence[str]) -> list[str]:
    """Of the ledger: what ended, and of each signal how many were judged and how many passed, surely and perhaps."""
    return ["ended", "ok", "tokens", "spent", *(f"{each}.{part}" for each in signals for part in ("of", "low", "high"))]


@dataclass(frozen=True)
class PassedShare:
    """Of those that ended: how many passed. `at_most` differs where a source tells only bounds."""

    judged: float
    attainment: float | None
    at_most: float | None


@dataclass(frozen=True)
class RollingTail:
    requests: int
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True)
class ReplicaTails:
    replica: str
    ended: int
    attainment: float
    tails: dict[str, RollingTail]  # by metric
    straggler: dict[str, float]  # by metric: how many times the fleet's p95


@dataclass(frozen=True)
class TimedMark:
    """Something that was done to the system, or happened to it."""

    at_s: float
    kind: str
    detail: str | None = None


@dataclass(frozen=True)
class DisruptionLoss:
    """The stretch after an event, or while an alert is on, beside everything outside such stretches.

    `lost` is how many more would have been accepted at the steady attainment, and `extra_cost` the money beyond
    what the accepted ones cost when it is steady.
    """

    kind: str
    detail: str | None
    start_s: float
    end_s: float
    ended: int
    accepted: int
    attainment: float | None
    steady_attainment: float | None
    lost: float | None
    cost: float | None
    cost_per_accepted: float | None
    steady_cost_per_accepted: float | None
    extra_cost: float | None


@dataclass(frozen=True)
class Frame:
    at_s: float
    at: str | None  # by the wall clock
    window_s: float
    slo: str
    ended: int
    offered_rps: float | None
    throughput_rps: float
    tokens_per_s: float
    goodput_rps: float
    goodput_rps_at_most: float
    attainment: float | None
    attainment_at_most: float | None
    in_flight: int | None
    gates: dict[str, PassedShare]  # success, and each gate by itself
    tails: dict[str, RollingTail]
    replicas: list[ReplicaTails]
    burns: list[Burn]
    alerts: list[Alert]  # that are on
    events: list[TimedMark]  # so far
    disruptions: list[DisruptionLoss]
    limits: tuple[str, ...]  # what this source cannot show
    notes: tuple[str, ...]


def share(ledger: SecondCounts, signal: str, start: float, end: float) -> PassedShare:
    judged, low, high = (ledger.total(f"{signal}.{part}", start, end) for part in ("of", "low", "high"))
    return PassedShare(judged, low / judged if judged else None, high / judged if judged else None)


def disruptions(
    ledger: SecondCounts,
    at_s: float,
    stretches: Sequence[tuple[str, str | None, float, float]],  # kind, detail, from, to
    per_hour: float,
    priced: bool,
) -> Iterator[DisruptionLoss]:
    """Each stretch up to now, and what it cost beside everything else that was seen."""
    known = [
        (kind, detail, start, min(end, at_s))
        for kind, detail, start, end in stretches
        if start < at_s and end > ledger.first  # of what is forgotten nothing can be said
    ]
    whole = _sums(ledger, ledger.first, at_s)
    rough = [_sums(ledger, a, b) for a, b in _joined([(start, end) for *_, start, end in known])]
    calm = {name: value - sum(each[name] for each in rough) for name, value in whole.items()}
    steady, _, steady_each = _worth(calm, per_hour, priced)
    for kind, detail, start, end in known:
        there = _sums(ledger, start, end)
        attainment, cost, each = _worth(there, per_hour, priced)
        accepted = there["accepted"]
        yield DisruptionLoss(
            kind,
            detail,
            start,
            end,
            int(there["ended"]),
            int(accepted),
            attainment,
            steady,
            None if steady is None else max(steady * there["ended"] - accepted, 0.0),
            cost,
            each,
            steady_each,
            None if cost is None or steady_each is None else max(cost - accepted * steady_each, 0.0),
        )


def _sums(ledger: SecondCounts, start: float, end: float) -> dict[str, float]:
    found = {name: ledger.total(name, start, end) for name in ("ended", "spent")}
    seconds = max(int(end) - max(int(start), ledger.first), 0)
    return found | {"accepted": ledger.total(f"{GOODPUT}.low", start, end), "seconds": seconds}


def _worth(sums: Mapping[str, float], per_hour: float, priced: bool) -> tuple[float | None, float | None, float | None]:
    """Attainment, cost, and cost per accepted."""
    attainment = sums["accepted"] / sums["ended"] if sums["ended"] else None
    cost = sums["spent"] + per_hour * sums["seconds"] / 3600 if priced else None
    return attainment, cost, cost / sums["accepted"] if cost is not None and sums["accepted"] else None


def _joined(stretches: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without overlap."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found
