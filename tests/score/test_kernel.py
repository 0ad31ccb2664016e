"""The compiled pass against its definitions, and against itself uncompiled."""

import inspect
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from openloop.score import kernel

Ints = NDArray[np.int64]

MS = 1_000_000
PLACES = np.empty(50_000, np.uint32)

gaps = st.lists(st.integers(0, 400 * MS), min_size=1, max_size=25)


def scan(
    streams: list[Ints], first_ns: int, pace_ns: int, *, compiled: bool = True
) -> tuple[kernel.RowFacts, Ints, Ints]:
    ns = np.concatenate([*streams, np.empty(0, np.int64)])
    ns.flags.writeable = False
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in streams])])
    rows = len(streams)
    plan = kernel.ScanPlan(
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int32),
        np.arange(rows, dtype=np.int32) % 3,
        np.array([first_ns]),
        np.array([pace_ns]),
    )
    counts, written, facts = kernel.GapCounts.of(3), np.zeros(1000, np.int64), kernel.RowFacts.of(rows)
    kernels: dict[bool, Any] = {True: kernel.scan, False: inspect.unwrap(kernel.scan)}
    count, backwards = kernels[compiled](ns, offsets, plan, counts, written, PLACES, facts)
    assert backwards == -1
    return facts, counts.total(), written[:count]


def qoe_by_area(times: Ints, first: int, pace: int) -> float:
    """Integrate both curves in steps: what a reader has read by each instant, and what one expected to have read."""
    read: list[int] = []
    at = -(10**18)
    for t in times.tolist():
        at = max(t, at + pace, first if not read else at + pace)
        read.append(at)
    expected = [first + i * pace for i in range(len(times))]
    end = read[-1] + pace
    return float(sum(end - t for t in read) / sum(end - t for t in expected))


def test_the_area_of_a_long_slow_answer_is_not_too_large_for_a_number() -> None:
    """At a pace of a minute, an hour late and then as it is read."""
    n, pace = 50_000, 60_000 * MS
    times = 3600 * 1000 * MS + pace * np.arange(n)
    facts, _, _ = scan([times], pace, pace)
    assert facts.qoe[0] == pytest.approx(qoe_by_area(times, pace, pace))


def test_the_delays_of_a_long_answer_that_comes_days_late_add_up() -> None:
    n, pace, late = 50_000, 50 * MS, 60 * 86_400_000 * MS
    times = late + pace * np.arange(1, n + 1)
    facts, _, _ = scan([times], pace, pace)
    assert facts.qoe[0] == pytest.approx(qoe_by_area(times, pace, pace))


def fluidity_by_slack(times: Ints, first: int, pace: int) -> float:
    """Gap by gap with the slack that is left, as the fluidity index is published."""
    slack, met, missed, before = 0, 0, 0, 0
    for index, t in enumerate(times):
        allowed = (first if index == 0 else pace) + slack
        gap = t - before
        before = t
        if gap <= allowed:
            met += 1
            slack = allowed - gap
        else:
            late = gap - allowed
            while late >= 0:
                missed += 1
                late -= pace
            slack = 0
    return met / (met + missed)


@settings(max_examples=200)
@given(streams=st.lists(gaps, min_size=1, max_size=5), first=st.integers(0, 500 * MS), pace=st.integers(MS, 200 * MS))
def test_every_fact_is_what_its_definition_says(streams: list[list[int]], first: int, pace: int) -> None:
    times = [np.cumsum(s) for s in streams]
    facts, histogram, written = scan(times, first, pace)
    for row, t in enumerate(times):
        between = np.diff(t)
        assert (facts.first[row], facts.last[row]) == (t[0], t[-1])
        assert facts.longest[row] == (between.max() if len(between) else 0)
        assert facts.shortest[row] == (between.min() if len(between) else 0)
        assert facts.reach[row] == max([kernel.LONG_AGO, *(t[i] - pace * (i + 1) for i in range(1, len(t)))])
        assert facts.qoe[row] == pytest.approx(qoe_by_area(t, first, pace))
        assert facts.fluidity[row] == pytest.approx(fluidity_by_slack(t, first, pace))
    assert written.tolist() == [gap for t in times for gap in np.diff(t)]
    assert histogram.sum() == len(written)


@settings(max_examples=20)
@given(streams=st.lists(gaps, min_size=1, max_size=5), first=st.integers(0, 500 * MS), pace=st.integers(MS, 200 * MS))
def test_compiled_and_plain_python_agree(streams: list[list[int]], first: int, pace: int) -> None:
    times = [np.cumsum(s) for s in streams]
    fast, slow = (scan(times, first, pace, compiled=compiled) for compiled in (True, False))
    for a, b in zip(fast[0], slow[0], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(fast[1], slow[1])


@given(gap=st.integers(0, 2**41))
def test_a_bin_stands_for_its_gaps_within_a_fortieth_of_a_percent(gap: int) -> None:
    _, histogram, _ = scan([np.array([0, gap])], 0, 1)
    (place,) = np.flatnonzero(histogram[0])
    value = kernel.bin_edges_and_values()[1][place]
    assert value == pytest.approx(min(gap, 2**40 - 2**28), rel=0.00025, abs=0)


@given(gaps, st.floats(0.01, 1.0))
def test_a_requests_own_gap_quantile_is_numpys(gap: list[int], share: float) -> None:
    times = np.cumsum(gap)
    times.flags.writeable = False
    out = np.full(1, np.nan)
    kernel.gap_quantiles(times, np.array([0, len(times)]), share, np.empty(len(times), np.int64), out)
    if len(gap) > 1:
        assert out[0] == pytest.approx(np.quantile(np.diff(times), share))
    else:
        assert np.isnan(out[0])


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.99, 1.0])
def test_a_gap_quantile_of_many_in_any_order_is_numpys(share: float) -> None:
    up = np.arange(1, 1001)
    orders = [up, up[::-1], np.concatenate([up, up[::-1]]), np.concatenate([up[::-1], up]), np.full(1000, 7), up % 3]
    for order in orders:
        times, out = np.cumsum(order), np.zeros(1)
        kernel.gap_quantiles(times, np.array([0, len(times)]), share, np.empty(len(times), np.int64), out)
        assert out[0] == np.quantile(order[1:], share)


def test_tokens_that_run_backwards_are_found() -> None:
    ns = np.array([5, 6, 9, 8])
    ns.flags.writeable = False
    plan = kernel.ScanPlan(
        np.zeros(2, np.int64), np.zeros(2, np.int32), np.zeros(2, np.int32), np.array([0]), np.array([1])
    )
    _, backwards = kernel.scan(
        ns, np.array([0, 2, 4]), plan, kernel.GapCounts.of(1), np.zeros(9, np.int64), PLACES, kernel.RowFacts.of(2)
    )
    assert backwards == 1


def test_gaps_beyond_the_room_for_them_are_still_counted() -> None:
    ns = np.arange(10) * MS
    ns.flags.writeable = False
    plan = kernel.ScanPlan(
        np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int32), np.array([0]), np.array([1])
    )
    counts = kernel.GapCounts.of(1)
    written, _ = kernel.scan(ns, np.array([0, 10]), plan, counts, np.zeros(8, np.int64), PLACES, kernel.RowFacts.of(1))
    assert written == 0
    assert counts.total().sum() == 9


@pytest.mark.parametrize("tokens", [255, 256, 257, 258, 1000])
def test_a_bin_counts_on_when_its_byte_is_full(tokens: int) -> None:
    _, histogram, written = scan([np.arange(tokens) * MS], 0, 1)
    (place,) = np.flatnonzero(histogram[0])
    assert histogram[0, place] == len(written) == tokens - 1


def test_a_user_without_a_place_for_compiled_code_scores_all_the_same() -> None:
    code = """
        from numba.core import caching
        caching.CacheImpl._locator_classes = []
        import numpy as np
        from openloop.native import kept
        kept._folder = lambda: None
        import openloop.routing.router
        from openloop.routing.policies import read_routing
        from openloop.routing.policy import compiled
        from openloop.score import kernel
        reach = np.zeros(1, np.int64)
        kernel.reach_at_pace(np.array([5, 9]), np.array([0, 2]), 3, reach)
        print(reach[0], compiled(read_routing("least-requests").choose, pointer=True).address > 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("3 True\n", "")
