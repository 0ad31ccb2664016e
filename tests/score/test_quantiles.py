"""Percentiles against numpy, intervals against queueing theory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.score import kernel
from openloop.score.quantiles import (
    BLOCKS,
    LADDER,
    MANY,
    Ordered,
    Sample,
    block_bounds,
    independent_hits,
    ladder,
    percentiles,
    rate_interval,
    share_interval,
)
from openloop.score.streams import GapPool

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=60).map(np.array)


def sample(of: np.ndarray) -> Sample:
    return Sample(of, np.ones(len(of), np.bool_), np.linspace(0, len(of), BLOCKS + 1).astype(np.int64))


@given(values)
def test_percentiles_are_numpys(of: np.ndarray) -> None:
    found = percentiles(sample(of))
    assert found is not None
    for name, share in LADDER.items():
        assert getattr(found, name) == pytest.approx(np.quantile(of, share))
    assert found.mean == pytest.approx(of.mean())


def test_many_values_are_ranked_as_few_are() -> None:
    of = np.random.default_rng(0).normal(size=MANY)
    found = percentiles(sample(of))
    assert found is not None
    assert found.p99_9 == pytest.approx(np.quantile(of, 0.999))
    assert found.mean == pytest.approx(of.mean(), rel=1e-13)


def test_of_no_requests_no_share_is_taken() -> None:
    """A point of a frontier at which nothing was due warned of a division by zero."""
    with np.errstate(all="raise"):
        assert independent_hits(np.empty(0, np.bool_), np.zeros(BLOCKS + 1, np.int64)) == 1.0


def in_order(of: np.ndarray) -> list[float]:
    ordered = Ordered(of)
    places = np.random.default_rng(0).permutation(len(of))
    found = {int(place): ordered[int(place)] for place in places}
    return [found[place] for place in range(len(of))]


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_values_are_in_order_wherever_one_looks(of: list[float]) -> None:
    assert in_order(np.array(of)) == sorted(of)


@pytest.mark.parametrize("far", [1.0, 0.0, -1.0, np.inf, -np.inf])
def test_values_are_in_order_also_where_one_is_far_from_all_others(far: float) -> None:
    of = 1 + np.random.default_rng(0).permutation(5000) / 1e9
    of[500] = far
    assert in_order(of) == sorted(of)


@given(values, st.integers(0, 30))
def test_failures_rank_above_everything(of: np.ndarray, failures: int) -> None:
    found = ladder(sample(of), failures)
    with_inf = np.sort(np.concatenate([of, np.full(failures, np.inf)]))
    for name, share in LADDER.items():
        place = share * (len(with_inf) - 1)
        neighbours = with_inf[int(np.floor(place)) : int(np.ceil(place)) + 1]
        value = getattr(found, name)
        if np.isinf(neighbours).any():
            assert value == np.inf
        else:
            assert neighbours[0] - 1e-9 <= value <= neighbours[-1] + 1e-9


@given(values)
def test_an_interval_holds_its_own_estimate(of: np.ndarray) -> None:
    found = percentiles(sample(of))
    assert found is not None
    for name, (low, high) in found.intervals.items():
        assert low <= getattr(found, name) + 1e-9
        assert high >= getattr(found, name) - 1e-9


def test_values_that_are_not_there_do_not_count() -> None:
    of = np.array([1.0, np.nan, 3.0, 100.0])
    found = percentiles(Sample(of, np.array([True, True, True, False]), np.array([0, 2, 4])))
    assert found is not None
    assert (found.n, found.p50) == (2, 2.0)
    assert percentiles(Sample(of, np.zeros(4, np.bool_), np.array([0, 2, 4]))) is None


def test_a_tail_beyond_the_sample_has_no_upper_bound() -> None:
    found = percentiles(sample(np.arange(50.0)))
    assert found is not None
    assert found.intervals["p99_9"][1] == np.inf


def mm1(rng: np.random.Generator, load: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Due times and latencies of an M/M/1 queue with service rate 1, in its steady state (Lindley's recursion)."""
    warm = 2000
    gap, service = rng.exponential(1 / load, n + warm), rng.exponential(1.0, n + warm)
    steps = service[:-1] - gap[1:]
    walk = np.concatenate([[0.0], np.cumsum(steps)])
    waiting = walk - np.minimum.accumulate(walk)
    arrival = np.cumsum(gap)[warm:]
    return arrival - arrival[0], (waiting + service)[warm:]


@pytest.mark.parametrize("n", [200, 2000, 20_000])
def test_intervals_cover_the_truth_where_requests_queue_behind_each_other(n: int) -> None:
    """In M/M/1 latency is exponential with rate 1 - load, so every percentile is known.

    Latencies are strongly correlated. 95% intervals that respect it hold the truth about nine times out of ten or more,
    also in short runs; one that takes requests for independent holds it less than half of the time.
    """
    rng, load, trials = np.random.default_rng(3), 0.7, 120
    bound = -np.log(0.05) / (1 - load)
    held = dict.fromkeys([*LADDER, "attainment", "goodput", "as if independent"], 0)
    for _ in range(trials):
        arrival, latency = mm1(rng, load, n)
        due = (arrival * 1e9).astype(np.int64)
        window = (0, int(due[-1]) + 1)
        bounds = block_bounds(due, window)
        found_in = Sample(latency, np.ones(n, np.bool_), bounds)
        found = percentiles(found_in)
        assert found is not None
        for name, share in LADDER.items():
            low, high = found.intervals[name]
            held[name] += low <= -np.log(1 - share) / (1 - load) <= high
        accepted = latency <= bound
        low, high = share_interval(accepted, bounds, found_in.independence)
        held["attainment"] += low <= 0.95 <= high
        low, high = rate_interval(accepted, bounds, window[1] / 1e9)
        held["goodput"] += low <= 0.95 * load <= high
        held["as if independent"] += abs(accepted.mean() - 0.95) <= 1.96 * np.sqrt(0.95 * 0.05 / n)
    naive = held.pop("as if independent")
    assert naive < 0.5 * trials
    for name, count in held.items():
        assert count >= 0.86 * trials, f"{name}: {count} of {trials}"


def test_independent_requests_get_intervals_of_the_textbook_width() -> None:
    rng = np.random.default_rng(1)
    hits = rng.random(4000) < 0.9
    bounds = np.linspace(0, 4000, BLOCKS + 1).astype(np.int64)
    low, high = share_interval(hits, bounds)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.09 / 4000), rel=0.5)


@pytest.mark.parametrize("hit", [True, False])
def test_a_share_of_all_or_none_still_has_a_width(hit: bool) -> None:
    low, high = share_interval(np.full(100, hit), np.linspace(0, 100, BLOCKS + 1).astype(np.int64))
    assert (low, high) == pytest.approx((0.963, 1.0) if hit else (0.0, 0.037), abs=1e-3)


def test_blocks_split_the_window_evenly_and_hold_everyone() -> None:
    due = np.arange(1000) * 10**6
    bounds = block_bounds(due, (0, 10**9))
    assert np.diff(bounds).tolist() == [50] * BLOCKS


def test_pooled_gaps_are_exact_while_they_fit_and_close_when_they_do_not() -> None:
    gaps = np.random.default_rng(0).lognormal(np.log(20e6), 0.5, 50_000).astype(np.int64)

    def pool(room: int) -> GapPool:
        collected = GapPool(room)
        times = np.concatenate([[0], np.cumsum(gaps)])
        times.flags.writeable = False
        plan = kernel.ScanPlan(
            np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int32), np.array([0]), np.array([1])
        )
        offsets, places = np.array([0, len(times)]), np.empty(len(times), np.uint32)
        written, _ = kernel.scan(times, offsets, plan, collected.counts, collected.room, places, kernel.RowFacts.of(1))
        collected.written = written
        collected.close(int(gaps.sum()))
        return collected

    exact, close = percentiles(pool(60_000)), percentiles(pool(10))
    assert exact is not None
    assert close is not None
    for name, share in LADDER.items():
        truth = np.quantile(gaps, share) / 1e9
        assert getattr(exact, name) == pytest.approx(truth, rel=1e-12)
        assert getattr(close, name) == pytest.approx(truth, rel=0.0006)
    assert exact.mean == close.mean == pytest.approx(gaps.mean() / 1e9)
