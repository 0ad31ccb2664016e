"""Retries and hedges: pure policies."""

import numpy as np
import pytest

from openloop.errors import SpecError
from openloop.persistence import After, Hedge, Retry, read_hedge, read_retry


@pytest.mark.parametrize(
    ("on", "status", "http_status", "applies"),
    [
        (("shed", "error"), "shed", 429, True),
        (("shed", "error"), "error", 500, True),
        (("shed", "error"), "error", None, True),  # a broken connection
        (("shed", "error"), "error", 200, True),  # a broken stream
        (("shed", "error"), "error", 400, False),  # asking again does not make it right
        (("shed", "error"), "timeout", None, False),
        (("shed", "error"), "ok", 200, False),
        (("429", "timeout"), "shed", 429, True),
        (("429", "timeout"), "shed", 503, False),
        (("429", "timeout"), "timeout", None, True),
        (("404",), "error", 404, True),
    ],
)
def test_what_is_asked_again(on: tuple[str, ...], status: str, http_status: int | None, applies: bool) -> None:
    assert Retry(on=on).applies(status, http_status) == applies


def test_waiting_doubles_up_to_a_cap_and_is_spread() -> None:
    rng = np.random.default_rng(1)
    steady = Retry(base=0.1, factor=2.0, cap=0.5, jitter=0.0)
    assert [steady.wait_s(tries, rng) for tries in (1, 2, 3, 4, 9)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    spread = [Retry(base=0.1, jitter=1.0).wait_s(1, rng) for _ in range(4000)]
    assert 0 <= min(spread) < 0.001
    assert 0.099 < max(spread) <= 0.1
    assert abs(np.mean(spread) - 0.05) < 0.002


def test_a_budget_bounds_the_share_of_retries() -> None:
    assert Retry(budget=0.1).affords(10, 5)  # a few are always allowed
    assert not Retry(budget=0.1).affords(110, 1000)
    assert Retry().affords(10**9, 1)


def test_short_forms_are_read() -> None:
    assert read_retry("3") == Retry(most=3)
    assert read_retry("retry:most=3,on=429+timeout,budget=20%") == Retry(3, on=("429", "timeout"), budget=0.2)
    assert read_hedge("p95") == Hedge(After(percentile=95))
    assert read_hedge("200ms") == Hedge(After(seconds=0.2))
    assert read_hedge("hedge:after=p99,budget=5%") == Hedge(After(percentile=99), 0.05)
    for each in (Retry(3, on=("429", "timeout"), budget=0.2), Retry()):
        assert read_retry(str(each)) == each


@pytest.mark.parametrize("text", ["retry:on=nonsense", "retry:most=99", "often", "retry:jitter=2"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        read_retry(text)
    with pytest.raises(SpecError):
        read_hedge(text)
