"""The pass over token events: compiled, one request at a time, all its facts while its events are in cache.

Times are integer nanoseconds. What concerns pace comes from one quantity, the running maximum

    M_i = max over j <= i of (t_j - pace * j)

A reader for whom token i is expected at c + pace * i has it max(0, M_i - c) late, so

- user idle latency against d_i = arrival + pace * i is M_n - arrival (smooth goodput, eq. 4 and 6);
- Andes' QoE, the area under the reader's curve over the area under the expected one, follows from those delays;
- no token is late by etalon's deadlines, which carry slack over, exactly when M_n <= c.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from openloop.arrays import Counts, Floats, Ints
from openloop.native import kept_by_numba

compiled = partial(kept_by_numba, njit, nogil=True)
# Inside the loop over rows a call would touch the reference counts of its arrays, which costs more than a short answer.
inlined = njit(inline="always")

# Token gaps are counted in 2**11 bins to each power of two, up to 2**40 ns (18 minutes): the value that stands for a
# bin is within 0.025% of everything in it.
MANTISSA_BITS = 11
OCTAVES = 40
BINS = 1 + (OCTAVES << MANTISSA_BITS)
_SHIFT = 52 - MANTISSA_BITS
_BIAS = (1023 << MANTISSA_BITS) - 1

LONG_AGO = -(1 << 62)
HIGHEST = (1 << 63) - 1


# Numba keeps code on disk by a function's name and line, and cannot read it once one of these has another name: who
# renames one moves the functions to other lines.
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


@compiled
def scan(
    ns: Ints, offsets: Ints, plan: ScanPlan, counts: GapCounts, gaps: Ints, places: NDArray[np.uint32], out: RowFacts
) -> tuple[int, int]:
    """Fill `out` and count gaps; write them to `gaps` too while it has room.

    The tokens of row r came at ns[offsets[r] : offsets[r + 1]]. Returns how many gaps were written, and the first row
    whose tokens run backwards or -1.
    """
    # Unpacked here: inside the loop each access to a tuple's array would touch its reference count.
    arrival, objective, block_of, first_ns, pace_ns = plan
    many, few = counts
    first, last, longest, shortest, reach, qoe, fluidity = out
    written, block, found = 0, -1, 0
    for row in range(offsets.size - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        if times.size == 0:
            continue
        pace = pace_ns[objective[row]]
        first[row], last[row] = times[0], times[times.size - 1]
        if block >= 0:  # gaps of the row before are counted while the events of this one come
            _count(places, found, block, many, few)
        block, found = block_of[row], times.size - 1
        longest[row], shortest[row], reach[row] = _extremes(times, pace, places)
        if shortest[row] < 0:
            return written, row
        if block >= 0 and written + found <= gaps.size:
            _write_gaps(times, gaps[written:])
            written += found
        expected = arrival[row] + first_ns[objective[row]] - pace
        highest = max(times[0] - pace, reach[row])
        if highest <= expected:
            qoe[row] = fluidity[row] = 1.0
        else:
            qoe[row], fluidity[row] = _smoothness(times, pace, expected, highest)
    if block >= 0:
        _count(places, found, block, many, few)
    return written, -1


@compiled
def scan_again(ns: Ints, offsets: Ints, plan: ScanPlan, out: RowFacts) -> None:
    """QoE and fluidity anew, where first tokens are expected at another time; all else in `out` holds for any."""
    arrival, objective, _, first_ns, pace_ns = plan
    _, _, _, _, reach, qoe, fluidity = out
    for row in range(offsets.size - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        if times.size:
            pace = pace_ns[objective[row]]
            expected = arrival[row] + first_ns[objective[row]] - pace
            qoe[row], fluidity[row] = _smoothness(times, pace, expected, max(times[0] - pace, reach[row]))


@inlined
def _smoothness(times: Ints, pace: int, expected: int, highest: int) -> tuple[float, float]:
    """QoE and fluidity of an answer of which token i is expected at `expected` + pace * i, and M_n is `highest`.

    QoE is 1 - (area lost to delays) / (area under the expected curve until the last token is read). Fluidity is the
    share of token deadlines met: slack carries over; a late token misses one deadline per pace, and starts anew. Both
    follow M_i, beginning with what is expected: a token is late where it raises that, and once it is at its highest
    nothing more is.
    """
    n, latest, seen = times.size, expected, 0
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


@compiled
def reach_at_pace(ns: Ints, offsets: Ints, pace: int, reach: Ints) -> None:
    """M_n of each row at a pace other than the plan's."""
    for row in range(offsets.size - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        latest = LONG_AGO
        for i in range(1, times.size):
            latest = max(latest, times[i] - pace * (i + 1))
        if times.size:
            reach[row] = latest


@compiled
def gap_quantiles(ns: Ints, offsets: Ints, share: float, out: Floats) -> None:
    """The `share` quantile of each row's own token gaps in ns, interpolated as numpy does by default."""
    for row in range(offsets.size - 1):
        times = ns[offsets[row] : offsets[row + 1]]
        if times.size < 2:
            continue
        gaps = np.sort(times[1:] - times[:-1])
        place = share * (gaps.size - 1)
        below = int(place)
        above = min(below + 1, gaps.size - 1)
        out[row] = gaps[below] + (place - below) * (gaps[above] - gaps[below])


def bin_edges_and_values() -> tuple[Floats, Floats]:
    """The smallest gap of each bin in ns, and the one that stands for it: its middle."""
    edges = ((np.arange(BINS + 1, dtype=np.int64) + _BIAS) << _SHIFT).view(np.float64)
    values = (edges[:-1] + edges[1:]) / 2
    edges[0] = values[0] = 0.0
    return edges[:-1], values


@inlined
def _extremes(times: Ints, pace: int, places: NDArray[np.uint32]) -> tuple[int, int, int]:
    """Longest and shortest gap, and max of t_i - pace * i over the tokens after the first (LONG_AGO if there are none).

    The first token's deadline is a matter of its own. Beside it, the bin of each gap: the exponent and leading mantissa
    bits of its floating-point form; bin 0 is no gap at all.
    """
    if times.size < 2:
        return 0, 0, LONG_AGO
    longest = shortest = times[1] - times[0]
    reach, due = LONG_AGO, pace
    for i in range(times.size - 1):
        gap = times[i + 1] - times[i]
        due += pace
        longest = max(longest, gap)
        shortest = min(shortest, gap)
        reach = max(reach, times[i + 1] - due)
        bits = np.float64(gap).view(np.int64)
        places[i] = min(max(int(bits >> _SHIFT) - _BIAS, 0), BINS - 1)
    return longest, shortest, reach


@inlined
def _count(places: NDArray[np.uint32], n: int, block: int, many: Ints, few: NDArray[np.uint8]) -> None:
    """When all bins of a row are found: vector instructions do that, and cannot do both."""
    for i in range(n):
        place = places[i]
        few[block, place] += 1
        if few[block, place] == 0:
            many[block, place] += 256


@inlined
def _write_gaps(times: Ints, gaps: Ints) -> None:
    for i in range(times.size - 1):
        gaps[i] = times[i + 1] - times[i]


@compiled
def put_in_parts(values: Floats, lowest: float, highest: float, ends: Ints, ordered: Floats) -> None:
    """A copy of values none of which is NaN, in order part by part: all of one are no larger than any of the next.

    Parts are as wide as `lowest` and `highest` are apart over their number, in what is in order as whole numbers; the
    first and the last also hold what lies beyond. Fills `ordered`, and in `ends` where each part ends there.
    """
    low, high, shift = _key(lowest), _key(highest), 0
    while (high - low) >> shift >= ends.size:
        shift += 1
    ends[:] = 0
    for value in values:
        ends[(min(max(_key(value), low), high) - low) >> shift] += 1
    place = 0
    for part, size in enumerate(ends):
        ends[part] = place
        place += size
    for value in values:
        part = (min(max(_key(value), low), high) - low) >> shift
        ordered[ends[part]] = value
        ends[part] += 1


@inlined
def _key(value: float) -> int:
    """A whole number that is no smaller for a larger value; halved, so that the difference of two is one too."""
    bits = np.float64(value).view(np.int64)
    return int(bits ^ ((bits >> 63) & HIGHEST)) >> 1
