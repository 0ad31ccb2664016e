"""The formulas against values that textbooks print or that can be worked out by hand."""

import pytest

from openloop.distributions import Exponential, Fixed
from openloop.errors import SpecError
from openloop.sim import theory


def test_one_server() -> None:
    assert theory.mg1_wait(400.0, Exponential(0.002)) == pytest.approx(0.008)  # rho / (mu - lambda)
    assert theory.mg1_wait(400.0, Fixed(0.002)) == pytest.approx(0.004)  # half of it
    assert theory.mmc_wait(400.0, 0.002, 1) == pytest.approx(0.008)


def test_several_servers() -> None:
    assert theory.probability_of_waiting(1.0, 1.0, 2) == pytest.approx(1 / 3)
    assert theory.probability_of_waiting(8.0, 1.0, 10) == pytest.approx(0.4092, abs=5e-5)
    assert theory.mmc_wait(1.0, 1.0, 2) == pytest.approx(1 / 3)


def test_batches_and_pipelines() -> None:
    assert theory.batch_throughput(16, 0.004, 0.0009) == pytest.approx(869.565, abs=1e-3)
    assert theory.batch_throughput(10**9, 0.004, 0.0009) == pytest.approx(1 / 0.0009)
    assert theory.pipeline_throughput([0.005, 0.02, 0.01]) == 50.0
    assert theory.pipeline_latency([0.005, 0.02, 0.01]) == pytest.approx(0.035)


@pytest.mark.parametrize(
    ("fast", "n", "slow"), [(0.99, 100, 0.63), (0.99, 40, 0.33), (0.99, 10, 0.0956), (0.999, 200, 0.181), (0.0, 1, 1.0)]
)
def test_fan_out(fast: float, n: int, slow: float) -> None:
    assert theory.slow_share(fast, n) == pytest.approx(slow, abs=0.005)


def test_littles_law_sizes_a_fleet() -> None:
    """The embedding service: 32 in flight at 40 ms are 800/s. And 8,000/s at 120 ms keep 960 in flight."""
    assert theory.concurrency(800.0, 0.040) == 32.0
    assert theory.concurrency(8000.0, 0.120) == 960.0


def test_a_queue_that_grows_for_ever_has_no_mean() -> None:
    with pytest.raises(SpecError, match="the load is 1 of what the servers can do"):
        theory.mg1_wait(500.0, Fixed(0.002))
    with pytest.raises(SpecError, match="the load is 1.25"):
        theory.mmc_wait(500.0, 0.01, 4)
