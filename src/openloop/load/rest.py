"""How long a worker may leave its sockets alone."""

from operator import sub

__all__ = ["LEAST_NS", "MOST_NS", "Rest"]

LEAST_NS = 1_000_000
MOST_NS = 5_000_000
FEW = 50  # one in so many gaps may be shorter
GROWTH = 64


class Rest:
    """Being woken is most of what a token costs, and the kernel has stamped it: many can be read together, later.

    But if two tokens of one stream arrive meanwhile, the first has the stamp of the second. So a rest is no longer than
    half of the gaps between tokens, which it learns from answers, and is halved at once where two are read together.
    """

    __slots__ = ("most_ns", "ns")

    def __init__(self, most_ns: int) -> None:
        self.most_ns = most_ns
        self.ns = min(LEAST_NS, most_ns)

    def learn(self, stamps: list[int]) -> None:
        """From the reads of an answer: the first has no words yet, and gaps that any rest may hide do not count."""
        gaps = sorted([gap for gap in map(sub, stamps[2:], stamps[1:]) if gap > LEAST_NS // 2])
        longest = gaps[len(gaps) // FEW] // 2 if gaps else self.most_ns
        self._set(min(self.ns + self.ns // GROWTH, longest))

    def shorten(self) -> None:
        self._set(self.ns // 2)

    def _set(self, ns: int) -> None:
        self.ns = min(max(ns, LEAST_NS), self.most_ns)
