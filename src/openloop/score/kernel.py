"""The pass over token events: compiled, one request at a time, all its facts while its events are in cache.

Times are integer nanoseconds. What concerns pace comes from one quantity, the running maximum

    M_i = max over j <= i of (t_j - pace * j)

A reader for whom token i is expected at c + pace * i has it max(0, M_i - c) late, so

- user idle latency against d_i = arrival + pace * i is M_n - arrival (smooth goodput, eq. 4 and 6);
- Andes' QoE, the area under the reader's curve over the area under the expected one, follows from those delays;
- no token is late by etalon's deadlines, which carry slack over, exactly when M_n <= c.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from openloop.arrays import Counts, Floats, Ints
from openloop.native import bits_of
from openloop.native.build import native

# Token gaps are counted in 2**11 bins to each power of two, up to 2**40 ns (18 minutes): the value that stands for a
# bin is within 0.025% of everything in it.
MANTISSA_BITS = 11
OCTAVES = 40
BINS = 1 + (OCTAVES << MANTISSA_BITS)
_SHIFT = 52 - MANTISSA_BITS
_BIAS = (1023 << MANTISSA_BITS) - 1

LONG_AGO = -(1 << 62)
HIGHEST = (1 << 63) - 1


class ScanPlan(NamedTuple):
    """What each row is held against."""

    arrival: Ints
    objective: Counts  # index into the last two
    block_of: Counts  # where its gaps are counted; negative: nowhere
    first_ns: Ints  # when the first token is expected, after arrival
    pace_ns: Ints  # and each further one, after the one before

    def part(self, rows: slice) -> "ScanPlan":
        return self._replace(arrival=self.arrival[rows], objective=self.objective[rows], block_of=self.block_of[rows])


class RowFacts(NamedTuple):
    """What the pass finds out about each row; rows without events stay as `of` made them."""

    first: Ints
    last: Ints
    longest: Ints  # gap between two tokens
    shortest: Ints
    reach: Ints  # M_n over the tokens after the first
    qoe: NDArray[np.float32]
    fluidity: NDArray[np.float32]

    @classmethod
    def of(cls, rows: int) -> "RowFacts":
        first, last, longest, shortest, reach = np.zeros((5, rows), np.int64)
        qoe, fluidity = np.full((2, rows), np.nan, np.float32)
        return cls(first, last, longest, shortest, reach, qoe, fluidity)

    def part(self, rows: slice) -> "RowFacts":
        return RowFacts._make(column[rows] for column in self)


class GapCounts(NamedTuple):
    """Gaps by block and bin: 256 at a time, and the rest of them in bytes, which stay in the fastest cache."""

    many: Ints
    few: NDArray[np.uint8]

    @classmethod
    def of(cls, blocks: int) -> "GapCounts":
        return cls(np.zeros((blocks, BINS), np.int64), np.zeros((blocks, BINS), np.uint8))

    def total(self) -> Ints:
        """All of them; few bins have any, and the others are not touched."""
        many, few = self.many.reshape(-1), self.few.reshape(-1)
        some = np.flatnonzero(few)
        many[some] += few[some]
        few[some] = 0
        return self.many


@native
def scan(
    ns: Ints, offsets: Ints, plan: ScanPlan, counts: GapCounts, gaps: Ints, places: NDArray[np.uint32], out: RowFacts
) -> tuple[int, int]:
    """Fill `out` and count gaps; write them to `gaps` too while it has room.

    The tokens of row r came at ns[offsets[r] : offsets[r + 1]]. Returns how many gaps were written, and the first row
    whose tokens run backwards or -1.
    """
    written, block, found = 0, -1, 0
    for row in range(len(offsets) - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        if len(times) == 0:
            continue
        pace = plan.pace_ns[plan.objective[row]]
        out.first[row], out.last[row] = times[0], times[len(times) - 1]
        if block >= 0:  # gaps of the row before are counted while the events of this one come
            _count(places, found, block, counts)
        block, found = plan.block_of[row], len(times) - 1
        out.longest[row], out.shortest[row], out.reach[row] = _extremes(times, pace, places)
        if out.shortest[row] < 0:
            return written, row
        if block >= 0 and written + found <= len(gaps):
            _write_gaps(times, gaps[written:])
            written += found
        expected = plan.arrival[row] + plan.first_ns[plan.objective[row]] - pace
        highest = max(times[0] - pace, out.reach[row])
        if highest <= expected:
            out.qoe[row] = out.fluidity[row] = 1.0
        else:
            out.qoe[row], out.fluidity[row] = _smoothness(times, pace, expected, highest)
    if block >= 0:
        _count(places, found, block, counts)
    return written, -1


@native
def scan_again(ns: Ints, offsets: Ints, plan: ScanPlan, out: RowFacts) -> None:
    """QoE and fluidity anew, where first tokens are expected at another time; all else in `out` holds for any."""
    for row in range(len(offsets) - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        if len(times) > 0:
            pace = plan.pace_ns[plan.objective[row]]
            expected = plan.arrival[row] + plan.first_ns[plan.objective[row]] - pace
            highest = max(times[0] - pace, out.reach[row])
            out.qoe[row], out.fluidity[row] = _smoothness(times, pace, expected, highest)


def _smoothness(times: Ints, pace: int, expected: int, highest: int) -> tuple[float, float]:
    """QoE and fluidity of an answer of which token i is expected at `expected` + pace * i, and M_n is `highest`.

    QoE is 1 - (area lost to delays) / (area under the expected curve until the last token is read). Fluidity is the
    share of token deadlines met: slack carries over; a late token misses one deadline per pace, and starts anew. Both
    follow M_i, beginning with what is expected: a token is late where it raises that, and once it is at its highest
    nothing more is.
    """
    n, latest, seen = len(times), expected, 0
    late, missed, delays = 0, 0, 0.0  # a hundred thousand tokens that are a day late are too much for a whole number
    while latest < highest:
        over = times[seen] - pace * (seen + 1) - latest
        if over > 0:
            latest += over
            late += 1
            missed += over // pace
        delays += float(latest - expected)
        seen += 1
    delays += (n - seen) * float(latest - expected)
    whole = n * (latest - expected + pace * (n + 1) / 2)
    return 1.0 - delays / whole, (n - late) / (n + missed)


@native
def reach_at_pace(ns: Ints, offsets: Ints, pace: int, reach: Ints) -> None:
    """M_n of each row at a pace other than the plan's."""
    for row in range(len(offsets) - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        latest = LONG_AGO
        for i in range(1, len(times)):
            latest = max(latest, times[i] - pace * (i + 1))
        if len(times) > 0:
            reach[row] = latest


@native
def gap_quantiles(ns: Ints, offsets: Ints, share: float, gaps: Ints, out: Floats) -> None:
    """The `share` quantile of each row's own token gaps in ns, interpolated as numpy does by default; `gaps` has room
    for those of one row."""
    for row in range(len(offsets) - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        n = len(times) - 1
        if n < 1:
            continue
        _write_gaps(times, gaps)
        place = share * (n - 1)
        below = int(place)
        low = _put_in_place(gaps, n, below)
        high = low
        if below + 1 < n:  # the least of those that are not less
            high = gaps[below + 1]
            for i in range(below + 2, n):
                high = min(high, gaps[i])
        out[row] = low + (place - below) * (high - low)


def _put_in_place(values: Ints, n: int, place: int) -> int:
    """What is there once they are in order; what comes before is no larger then, and what comes after no smaller."""
    first, last, chance = 0, n - 1, 1
    while first < last:
        chance = chance * 48271 % 2147483647  # no order of values is a bad one each time
        middle, left, right = values[first + chance % (last - first + 1)], first, last
        while left <= right:
            while values[left] < middle:
                left += 1
            while values[right] > middle:
                right -= 1
            if left <= right:
                values[left], values[right] = values[right], values[left]
                left += 1
                right -= 1
        if place <= right:
            last = right
        elif place >= left:
            first = left
        else:
            break
    return int(values[place])


def bin_edges_and_values() -> tuple[Floats, Floats]:
    """The smallest gap of each bin in ns, and the one that stands for it: its middle."""
    edges = ((np.arange(BINS + 1, dtype=np.int64) + _BIAS) << _SHIFT).view(np.float64)
    values = (edges[:-1] + edges[1:]) / 2
    edges[0] = values[0] = 0.0
    return edges[:-1], values


def _extremes(times: Ints, pace: int, places: NDArray[np.uint32]) -> tuple[int, int, int]:
    """Longest and shortest gap, and max of t_i - pace * i over the tokens after the first (LONG_AGO if there are none).

    The first token's deadline is a matter of its own. Beside it, the bin of each gap: the exponent and leading mantissa
    bits of its floating-point form; bin 0 is no gap at all.
    """
    if len(times) < 2:
        return 0, 0, LONG_AGO
    longest = shortest = times[1] - times[0]
    reach, due = LONG_AGO, pace
    for i in range(len(times) - 1):
        gap = times[i + 1] - times[i]
        due += pace
        longest = max(longest, gap)
        shortest = min(shortest, gap)
        reach = max(reach, times[i + 1] - due)
        places[i] = min(max((bits_of(float(gap)) >> _SHIFT) - _BIAS, 0), BINS - 1)
    return longest, shortest, reach


def _count(places: NDArray[np.uint32], n: int, block: int, counts: GapCounts) -> None:
    """When all bins of a row are found: vector instructions do that, and cannot do both."""
    for i in range(n):
        place = places[i]
        counts.few[block, place] += 1
        if counts.few[block, place] == 0:
            counts.many[block, place] += 256


def _write_gaps(times: Ints, gaps: Ints) -> None:
    for i in range(len(times) - 1):
        gaps[i] = times[i + 1] - times[i]


@native
def put_in_parts(values: Floats, lowest: float, highest: float, ends: Ints, ordered: Floats) -> None:
    """A copy of values none of which is NaN, in order part by part: all of one are no larger than any of the next.

    Parts are as wide as `lowest` and `highest` are apart over their number, in what is in order as whole numbers; the
    first and the last also hold what lies beyond. Fills `ordered`, and in `ends` where each part ends there.
    """
    low, high, shift = _key(lowest), _key(highest), 0
    while (high - low) >> shift >= len(ends):
        shift += 1
    for part in range(len(ends)):
        ends[part] = 0
    for i in range(len(values)):
        ends[(min(max(_key(values[i]), low), high) - low) >> shift] += 1
    place = 0
    for part in range(len(ends)):
        size = ends[part]
        ends[part] = place
        place += size
    for i in range(len(values)):
        part = (min(max(_key(values[i]), low), high) - low) >> shift
        ordered[ends[part]] = values[i]
        ends[part] += 1


def _key(value: float) -> int:
    """A whole number that is no smaller for a larger value; halved, so that the difference of two is one too."""
    bits = bits_of(value)
    return (bits ^ ((bits >> 63) & HIGHEST)) >> 1
