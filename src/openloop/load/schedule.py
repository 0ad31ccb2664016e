"""When requests are due: as was planned, or as an answer brings it about. In nanoseconds since the run's start."""

import bisect
import heapq
from collections.abc import Callable, Container

from openloop.load.worker import NEVER


class Schedule:
    """What is due next, and how many were due by when."""

    def __init__(self, due_ns: list[int], end_ns: int) -> None:
        self.due_ns = due_ns  # of each request; NEVER where that follows from an answer
        self.end_ns = end_ns  # when nothing more is due
        self.planned = bisect.bisect_left(due_ns, NEVER)  # how many do not follow from an answer
        self.taken = 0  # of these
        self._later: list[tuple[int, int]] = []  # a heap: attempts and turns that an answer has brought about
        self._turns: list[int] = []  # when those turns are due, in order

    @property
    def next_ns(self) -> int:
        """When the next is due."""
        due = self.due_ns[self.taken] if self.taken < self.planned else NEVER
        return min(due, self._later[0][0]) if self._later else due

    def take(self) -> tuple[int, int]:
        """The next: when it is due, and its number."""
        due = self.due_ns[self.taken] if self.taken < self.planned else NEVER
        if self._later and self._later[0][0] < due:
            return heapq.heappop(self._later)
        self.taken += 1
        return due, self.taken - 1

    def again(self, due_ns: int, number: int) -> None:
        """A request is due once more."""
        heapq.heappush(self._later, (due_ns, number))

    def follow(self, due_ns: int, number: int) -> None:
        """It is known now when a turn is due."""
        self.due_ns[number] = due_ns
        bisect.insort(self._turns, due_ns)
        self.again(due_ns, number)

    def planned_by(self, moment_ns: int) -> int:
        return bisect.bisect_left(self.due_ns, moment_ns, 0, self.planned)

    def due_by(self, moment_ns: int) -> int:
        return self.planned_by(moment_ns) + bisect.bisect_left(self._turns, moment_ns)

    def after(self, moment_ns: int) -> int:
        """When the first is planned that is due after a moment; else when nothing more is."""
        place = bisect.bisect_right(self.due_ns, moment_ns, 0, self.planned)
        return self.due_ns[place] if place < self.planned else self.end_ns

    def end_at(self, end_ns: int, begun: Container[int]) -> None:
        """Nothing is due from then on but more attempts at what has begun."""
        self.end_ns = end_ns
        self.planned = max(self.planned_by(end_ns), self.taken)
        self._keep(lambda due_ns, number: number in begun or due_ns < end_ns)

    def end_before(self, number: int, begun: Container[int]) -> None:
        """Neither is this request due, nor any after it, nor any turn that has not begun."""
        self.planned = self.taken = min(self.taken, number)
        self._keep(lambda _, each: each in begun)

    def forget(self, numbers: Container[int]) -> None:
        """These are not due again."""
        self._keep(lambda _, number: number not in numbers)

    def _keep(self, keeps: Callable[[int, int], bool]) -> None:
        self._later = sorted(each for each in self._later if keeps(*each))
