"""Simulated runs are runs like any other."""

from pathlib import Path

import numpy as np
import pytest

import openloop as ol
from openloop.arrivals import Constant, Recording, Replay
from openloop.distributions import Exponential
from openloop.seeds import stream
from openloop.sim import Fcfs


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        ol.simulate("fcfs:exponential(2ms)", "poisson:rate=100", 10.0, seed=3).save(tmp_path / name)
    rows = [ol.open_run(tmp_path / name).head(2000) for name in ("a", "b")]
    assert rows[0] == rows[1]
    assert rows[0] != ol.simulate("fcfs:exponential(2ms)", "poisson:rate=100", 10.0, seed=4).head(2000)


def test_arrivals_do_not_depend_on_the_queue() -> None:
    runs = [ol.simulate(queue, "gamma:rate=50,cv=2", 10.0) for queue in ("fcfs:2ms", "pipeline:1ms,exponential(2ms)")]
    due = [[row["scheduled_ns"] for row in run.head(10_000)] for run in runs]
    assert due[0] == due[1]


def test_the_manifest_says_how_to_do_it_again() -> None:
    run = ol.simulate(Fcfs(Exponential(0.002), 4), "onoff:high=40,on=2s,off=3s", 60.0, seed=9, slo="e2e<=1s")
    manifest = run.manifest
    assert manifest.source == "sim"
    assert manifest.engine_flags == "fcfs:service=exponential(mean=2ms),servers=4"
    assert manifest.arrivals == "onoff:high=40,on=2s,off=3s"
    assert manifest.offered_rps == 16.0
    assert manifest.seed == 9
    assert manifest.replicas == 4
    assert manifest.window_ns == (0, 60_000_000_000)
    again = ol.simulate(manifest.engine_flags, manifest.arrivals, 60.0, manifest.seed)
    assert again.head(100) == run.head(100)


@pytest.mark.parametrize(
    "arrivals",
    [
        "constant:rate=100",
        "poisson:rate=100",
        "gamma:rate=100,cv=3",
        "weibull:rate=100,shape=0.7",
        "onoff:high=300,on=500ms,off=1s",
        "sine:rate=100,swing=0.5,period=10s",
    ],
)
def test_arrivals_that_keep_their_promise_are_not_accused(arrivals: str) -> None:
    reasons = [ol.check(ol.simulate("fcfs:1ms,servers=inf", arrivals, 100.0, seed)).reasons for seed in range(20)]
    assert not [each for each in reasons if each]


def test_bursts_that_were_not_promised_are() -> None:
    rng = np.random.default_rng(0)
    bursty = ol.simulate("fcfs:1ms,servers=inf", "onoff:high=300,on=2s,off=4s", 100.0, rng)
    claim = ol.Manifest(source="sim", window_ns=bursty.manifest.window_ns, arrivals_cv=1.0)
    assert "gaps between arrivals vary by" in ol.check(ol.Run(claim, bursty.source)).reasons[0]


def test_more_arrivals_than_fit_are_refused() -> None:
    with pytest.raises(ol.SpecError, match="36,000,000,000 arrivals are too many"):
        ol.simulate("fcfs:1ms", Constant(1e6), 36_000.0)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(ol.SpecError, match="whole number of zero or more"):
        ol.simulate("fcfs:1ms", Constant(10), 1.0, seed)


def test_a_seed_may_be_numpys() -> None:
    assert ol.simulate("fcfs:1ms", Constant(10), 1.0, np.int64(3)).manifest.seed == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "queue",
    [
        "fcfs:service=1000000000s",
        "fcfs:service=lognormal(median=1s,sigma=10)",
        "replica:prompt=1000000000,output=1,prefill=1h,gap=1s",
        "replica:prompt=1,output=10000000,prefill=1us,gap=1us",
        "fanout:n=100000,service=1ms",
    ],
)
def test_what_does_not_fit_a_run_is_refused(queue: str) -> None:
    with pytest.raises(ol.SpecError, match="over thirty years|too many for one run|too much"):
        ol.simulate(queue, "constant:rate=100000", 1.0)


def test_rounding_moves_no_arrival_out_of_the_window() -> None:
    times = Recording("given", np.array([1.0, 9.9999999999]))
    run = ol.simulate("fcfs:1ms", Replay(times), 10.0)
    assert [row["scheduled_ns"] for row in run.head(9)] == [1_000_000_000, 9_999_999_999]


def test_service_times_do_not_repeat_the_arrivals() -> None:
    run = ol.simulate("fcfs:exponential(1s),servers=inf", "poisson:rate=100", 10.0)
    took = np.array([row["ended_ns"] - row["scheduled_ns"] for row in run.head(10_000)]) / 1e9
    assert np.allclose(took, stream(0, "service").exponential(1.0, len(took)), atol=1e-8)


def test_a_length_that_is_none_is_refused() -> None:
    with pytest.raises(ol.SpecError, match="length of the run in seconds is -1"):
        ol.simulate("fcfs:1ms", Constant(10), -1.0)


def test_nothing_due_makes_a_run_without_rows() -> None:
    run = ol.simulate("fcfs:1ms", "poisson:rate=0.0001", 1.0)
    assert run.num_rows == 0
    assert not ol.check(run).valid
