"""Queues against theory.

Means are taken over 30 independent runs; a run's first tenth is left out, for queues start empty. A mean must lie
within four standard errors of theory (99.96% by Student's t with 29 degrees of freedom), and the standard error must be
small enough for that to say something.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import openloop as ol
from openloop.arrivals import Constant, Poisson
from openloop.distributions import Distribution, Exponential, Fixed, Gamma, Lognormal, Straggling, Uniform
from openloop.sim import (
    QUEUES,
    After,
    Batch,
    FanOut,
    Fcfs,
    Hedged,
    Pipeline,
    QueueModel,
    ReplicaQueue,
    read_queue,
    theory,
)

Floats = NDArray[np.float64]

RUNS = 30


def agrees(measure: Callable[[np.random.Generator], float], expected: float, precision: float = 0.02) -> None:
    values = np.array([measure(np.random.default_rng([seed, 17])) for seed in range(RUNS)])
    error = values.std(ddof=1) / math.sqrt(RUNS)
    assert error <= precision * expected, f"{values.mean():.5g} +- {error:.2g} says too little about {expected:.5g}"
    assert abs(values.mean() - expected) <= 4 * error + 1e-12, f"{values.mean():.5g} +- {error:.2g}, not {expected:.5g}"


def latencies(queue: QueueModel, rate: float, seconds: float, rng: np.random.Generator) -> Floats:
    due = Poisson(rate).times(seconds, rng)
    served = queue.serve(due, rng)
    settled: Floats = (served.ended_s[: len(due)] - due)[due > seconds / 10]
    return settled


@pytest.mark.parametrize(
    "service",
    [
        Exponential(0.002),  # M/M/1
        Fixed(0.002),  # M/D/1
        Uniform(0.001, 0.003),
        Gamma(0.002, 1.5),
        Lognormal(0.0016, 0.6),
        Straggling(Exponential(0.0012), share=0.1, factor=4.0),
    ],
    ids=str,
)
def test_one_server_waits_as_pollaczek_and_khinchine_say(service: Distribution) -> None:
    rate = 0.8 / service.mean
    expected = theory.mg1_wait(rate, service) + service.mean
    agrees(lambda rng: float(latencies(Fcfs(service), rate, 200.0, rng).mean()), expected)


@pytest.mark.parametrize("servers", [2, 4, 16])
def test_several_servers_wait_as_erlang_says(servers: int) -> None:
    rate = 0.85 * servers / 0.010
    queue = Fcfs(Exponential(0.010), servers)
    expected = theory.mmc_wait(rate, 0.010, servers) + 0.010
    agrees(lambda rng: float(latencies(queue, rate, 600 / servers, rng).mean()), expected)


def test_the_tail_of_one_server_is_exponential() -> None:
    """The time in M/M/1 is exponential with the rate mu - lambda, so its p99 is log(100) / (mu - lambda)."""
    queue = Fcfs(Exponential(0.002))
    agrees(lambda rng: float(np.quantile(latencies(queue, 350.0, 200.0, rng), 0.99)), math.log(100) / 150)


def test_a_share_of_requests_waits_as_erlang_says() -> None:
    def waited(rng: np.random.Generator) -> float:
        due = Poisson(800.0).times(60.0, rng)
        seed = rng.integers(2**32)
        ended = Fcfs(Exponential(0.010), 10).serve(due, np.random.default_rng(seed)).ended_s
        service = Exponential(0.010).draw(len(due), np.random.default_rng(seed))
        return float(np.mean((ended - due > service + 1e-9)[due > 6.0]))

    agrees(waited, theory.probability_of_waiting(800.0, 0.010, 10))


@pytest.mark.parametrize("service", [Exponential(0.010), Fixed(0.010), Lognormal(0.008, 0.7)], ids=str)
def test_crowded_streams_are_a_shared_processor(service: Distribution) -> None:
    """M/G/1 processor sharing: the mean time is s / (1 - rho), whatever the distribution of s."""
    replica = ReplicaQueue(prompt=Fixed(1), output=Fixed(2), prefill=0.0, gap=service, crowding=1.0)
    rate = 0.7 / service.mean
    agrees(lambda rng: float(latencies(replica, rate, 600.0, rng).mean()), service.mean / (1 - 0.7))


def test_a_replica_paces_its_tokens() -> None:
    replica = ReplicaQueue(prompt=Fixed(200), output=Fixed(5), prefill=0.001, gap=Fixed(0.02))
    served = replica.serve(np.array([0.0, 0.1]), np.random.default_rng(0))
    assert served.token_s == pytest.approx([0.2, 0.22, 0.24, 0.26, 0.28, 0.4, 0.42, 0.44, 0.46, 0.48])
    assert served.ended_s == pytest.approx([0.28, 0.48])


@pytest.mark.parametrize("n", [10, 50, 200])
@pytest.mark.parametrize("fast", [0.99, 0.999])
def test_fan_out_is_slow_as_often_as_any_of_n(n: int, fast: float) -> None:
    backend = Exponential(-0.050 / math.log1p(-fast))

    def slow(rng: np.random.Generator) -> float:
        return float(np.mean(latencies(FanOut(n, backend), 1000.0, 6.0, rng) > 0.050))

    agrees(slow, theory.slow_share(fast, n), precision=0.05)


def test_a_pipeline_takes_the_sum_and_carries_the_slowest() -> None:
    stages = [0.005, 0.020, 0.010]
    queue = Pipeline(tuple(Fixed(each) for each in stages))
    alone = queue.serve(np.arange(100.0), np.random.default_rng(0))
    assert alone.ended_s - np.arange(100.0) == pytest.approx(np.full(100, theory.pipeline_latency(stages)))
    flooded = queue.serve(np.zeros(1000), np.random.default_rng(0))
    assert 999 / (flooded.ended_s[-1] - flooded.ended_s[0]) == pytest.approx(theory.pipeline_throughput(stages))


def test_a_pipeline_of_random_stages_is_a_chain_of_independent_queues() -> None:
    """Burke: what leaves M/M/1 is Poisson again, so the mean times add up."""
    queue = Pipeline((Exponential(0.002), Exponential(0.0015)))
    expected = 1 / (1 / 0.002 - 300) + 1 / (1 / 0.0015 - 300)
    agrees(lambda rng: float(latencies(queue, 300.0, 200.0, rng).mean()), expected)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64])
def test_flooded_batches_carry_what_their_cost_allows(size: int) -> None:
    ended = Batch(size, 0.004, 0.0009).serve(np.zeros(64 * 50), np.random.default_rng(0)).ended_s
    assert 64 * 50 / ended[-1] == pytest.approx(theory.batch_throughput(size, 0.004, 0.0009))


def test_a_batch_of_one_is_a_server() -> None:
    batch = Batch(1, 0.004, 0.001)
    agrees(lambda rng: float(latencies(batch, 150.0, 200.0, rng).mean()), theory.mg1_wait(150.0, Fixed(0.005)) + 0.005)


def test_hedging_shortens_as_much_as_memoryless_times_allow() -> None:
    """min(s1, d + s2) has the mean m (1 - e) + e m / 2, where e = exp(-d / m) is the share that is copied."""
    late = math.exp(-2)
    queue = Hedged(Exponential(0.010), After(seconds=0.020))

    def mean(rng: np.random.Generator) -> float:
        due = np.arange(20_000) / 100.0
        served = queue.serve(due, rng)
        assert served.request is not None
        answered = np.full(len(due), np.inf)
        np.minimum.at(answered, served.request, served.ended_s)
        return float(np.mean(answered - due))

    agrees(mean, 0.010 * (1 - late) + late * 0.005)
    copied = [len(queue.serve(np.arange(20_000.0), np.random.default_rng(s)).sent_s) / 20_000 - 1 for s in range(RUNS)]
    assert np.mean(copied) == pytest.approx(late, rel=0.02)


def test_a_percentile_is_that_of_latency_without_copies() -> None:
    run = ol.simulate(Hedged(Exponential(0.010), After(percentile=95)), Constant(100), 100.0)
    score = ol.score(run, "e2e<=50ms")
    assert score.retries.hedges == 500  # of 10,000
    assert score.retries.amplification == pytest.approx(1.05)


def test_the_first_answer_wins_and_both_cost() -> None:
    run = ol.simulate(
        Hedged(Straggling(Fixed(0.010), share=0.1, factor=20.0), After(seconds=0.020)),
        Constant(100),
        100.0,
        prices=ol.Prices(per_request=0.001),
    )
    score = ol.score(run, "e2e<=100ms")
    assert score.e2e_s is not None
    assert score.e2e_s.p50 == pytest.approx(0.010)
    assert score.e2e_s.p95 == pytest.approx(0.030)
    assert score.cost is not None
    assert score.cost.total == pytest.approx(0.001 * run.num_rows)
    assert run.num_rows == 10_000 + score.retries.hedges


def test_stalls_delay_whoever_comes_during_them() -> None:
    queue = Fcfs(Fixed(0.005), servers=None, stall=1.0, every=10.0)
    due = np.array([0.0, 8.999, 9.0, 9.5, 9.999, 10.0, 18.998, 25.0])
    served = queue.serve(due, np.random.default_rng(0))
    assert served.ended_s == pytest.approx([0.005, 10.004, 10.005, 10.005, 10.005, 10.005, 20.003, 25.005])
    assert served.sent_s == pytest.approx(due)


@pytest.mark.parametrize("every", [10.0, 3600.0, 86400.0])
@pytest.mark.parametrize("service", [0.0, 1e-6, 5e-5, 0.005, 2.0])
@pytest.mark.parametrize("servers", [1, 3, None])
def test_nothing_ends_during_a_stall_or_before_it_was_sent(every: float, service: float, servers: int | None) -> None:
    stall = every / 10
    queue = Fcfs(Fixed(service), servers, stall=stall, every=every)
    due = Poisson(1000 / every).times(4 * every, np.random.default_rng(1))
    served = queue.serve(due, np.random.default_rng(0))
    assert (served.ended_s >= due + service - 1e-9).all()
    into = served.ended_s % every
    assert not ((into > every - stall + 1e-6) & (into < every - 1e-6)).any()


def test_an_unfilled_batch_waits_for_its_time() -> None:
    queue = Batch(16, 0.001, 0.001, timeout=0.05)
    due = np.array([0.0, 1.0, 2.0])
    assert queue.serve(due, np.random.default_rng(0)).ended_s - due == pytest.approx([0.052, 0.052, 0.052])


def test_equal_times_are_not_late() -> None:
    for service in (0.001, 0.010):
        queue = Hedged(Fixed(service), After(percentile=50))
        due = Poisson(10.0).times(100.0, np.random.default_rng(0))
        assert len(queue.serve(due, np.random.default_rng(0)).sent_s) == len(due)


def test_a_copy_goes_to_a_server_of_its_own_after_the_delay() -> None:
    queue = Hedged(Fixed(0.1), After(seconds=0.03), servers=3)
    served = queue.serve(np.array([0.0, 0.01]), np.random.default_rng(0))
    assert served.sent_s == pytest.approx([0.0, 0.01, 0.03, 0.04])
    assert served.ended_s == pytest.approx([0.1, 0.11, 0.13, 0.2])
    assert served.replica is not None
    assert len(set(served.replica[:3].tolist())) == 3
    assert served.replica[3] == served.replica[0]  # which is free first


def test_a_percentile_counts_the_wait_for_busy_servers() -> None:
    """One server, all at once: latencies are 1, 2, 3, 4, 5 times the service, and the median is 3 of them."""
    served = Hedged(Fixed(0.1), After(percentile=50), servers=1).serve(np.zeros(5), np.random.default_rng(0))
    assert served.sent_s[5:] == pytest.approx([0.3, 0.3])


def test_servers_are_named() -> None:
    run = ol.simulate("fcfs:10ms,servers=3", "poisson:rate=200", 30.0)
    assert {row["replica"] for row in run.head(1000)} == {"0", "1", "2"}
    assert ol.score(run, "e2e<=1s").utilisation == pytest.approx(200 * 0.01 / 3, rel=0.05)


def test_a_client_short_of_connections_hides_the_stall_from_itself() -> None:
    """The exercise: 1 s in every 10 s at 1,000/s. A tenth wait up to 1 s, so the p99 is 0.9 s; reported are 5 ms."""
    queue = Fcfs(Fixed(0.005), servers=None, connections=50, stall=1.0, every=10.0)
    score = ol.score(ol.simulate(queue, Constant(1000), 100.0), "e2e<=100ms")
    assert score.e2e_s is not None
    assert score.e2e_s.from_sent is not None
    assert score.e2e_s.p99 == pytest.approx(0.91, abs=0.01)
    assert score.e2e_s.from_sent.p99 == pytest.approx(0.005)
    assert not score.valid
    assert "client was late" in score.reasons[0]


STABLE = {
    "fcfs": "fcfs:service=exponential(2ms),servers=2",
    "batch": "batch:size=8,fixed=4ms,each=0.5ms,timeout=30ms",
    "pipeline": "pipeline:1ms,exponential(1.5ms),0.5ms",
    "fanout": "fanout:n=5,service=lognormal(median=2ms,sigma=0.4),servers=1",
    "hedged": "hedged:service=straggling(exponential(2ms),share=5%,factor=5),after=p90,servers=4",
    "replica": "replica:prompt=uniform(50,150),output=10,prefill=0.01ms,gap=exponential(5ms),crowding=3%",
}


@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize("arrivals", ["poisson:rate=400", "gamma:rate=400,cv=2", "onoff:high=600,on=1s,off=1s,low=200"])
def test_littles_law_holds_on_every_model(name: str, arrivals: str) -> None:
    """Measured from starts and ends of requests, against the product of rate and mean latency."""
    run = ol.simulate(STABLE[name], arrivals, 100.0)
    run.validate()
    score = ol.score(run, "e2e<=100ms")
    assert abs(score.little.residual) < 0.01
    assert score.little.L_law == pytest.approx(score.throughput_rps * score.e2e_s.mean)  # type: ignore[union-attr]
    assert score.completed == score.requests


@pytest.mark.parametrize("name", QUEUES)
def test_no_request_ends_before_it_is_due_and_none_is_lost(name: str) -> None:
    queue = read_queue(STABLE[name])
    for rate in (1.0, 400.0, 4000.0):
        due = Poisson(rate).times(3.0, np.random.default_rng(2))
        served = queue.serve(due, np.random.default_rng(3))
        request = np.arange(len(due)) if served.request is None else served.request
        assert set(request.tolist()) == set(range(len(due)))
        assert (served.sent_s >= due[request]).all()
        assert (served.ended_s >= served.sent_s).all()


@pytest.mark.parametrize("name", QUEUES)
def test_a_queue_that_nobody_comes_to_serves_nobody(name: str) -> None:
    served = read_queue(STABLE[name]).serve(np.empty(0), np.random.default_rng(0))
    assert len(served.sent_s) == len(served.ended_s) == 0


def test_every_queue_has_a_stable_example() -> None:
    assert set(STABLE) == set(QUEUES)
