"""Counts second by second, and their sums over any stretch."""

from collections.abc import Iterable, Mapping

import numpy as np

from openloop.arrays import Floats


class SecondCounts:
    """Named counts of each whole second; what is older than `keep_s` seconds may be forgotten."""

    def __init__(self, names: Iterable[str], keep_s: int = 1 << 40) -> None:
        self.first = 0  # the first second that is kept
        self._keep_s = keep_s
        self._sums = {name: np.zeros(1) for name in names}  # up to the start of each second

    @property
    def end(self) -> int:
        """The second after the last that was written."""
        return self.first + len(next(iter(self._sums.values()))) - 1

    def write(self, second: int, counts: Mapping[str, Floats]) -> None:
        """The counts from this second on, in place of whatever stood there."""
        second, skipped = max(second, self.first), max(self.first - second, 0)
        for name, sums in self._sums.items():
            kept = sums[: second - self.first + 1]
            kept = np.concatenate([kept, np.full(second - self.first + 1 - len(kept), kept[-1])])
            self._sums[name] = np.concatenate([kept, kept[-1] + np.cumsum(counts[name][skipped:])])
        if self.end - self.first > 2 * self._keep_s:
            gone = self.end - self._keep_s - self.first
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
