"""The servers' figures over the window, against a case worked out by hand."""

import math
from typing import Any

import pytest

from openloop.records import SERVER, Manifest, Reading, Run
from openloop.score import ServerScore, score
from openloop.score.server import server_score
from tests.runs import batch, row

SECOND = 10**9
WINDOW = (0, 4 * SECOND)

# Two replicas, read once a second, b half a second after a; a window of 4 s. The readings at -1 s and from 4 s on are
# outside of it, but counters grow from the last reading before.
A: dict[str, list[float]] = {  # at -1, 0, 1, 2, 3, 4 s
    "queue": [9, 0, 2, 4, 2, 9],
    "running": [0, 4, 4, 4, 4, 9],
    "kv_use": [0, 0.2, 0.4, 0.8, 0.6, 1],
    "preemptions": [5, 5, 6, 1, 3, 50],  # begins anew before 2 s: 0 + 1 + 1 + 2
    "prefix_queries": [100, 100, 200, 300, 500, 900],
    "prefix_hits": [10, 10, 20, 40, 110, 900],
    "output_tokens": [0, 0, 100, 200, 300, 900],
}
B: dict[str, list[float]] = {  # at -0.5, 0.5, 1.5, 2.5, 3.5, 4.5 s
    "queue": [9, 1, 1, 5, 1, 9],
    "running": [0, 2, 2, 2, 2, 9],
    "kv_use": [0, 0.1, 0.1, 0.3, 0.1, 1],
    "preemptions": [0, 0, 0, 0, 2, 2],
    "prefix_queries": [0, 100, 200, 300, 400, 900],
    "prefix_hits": [0, 0, 0, 100, 100, 900],
    "output_tokens": [0, 0, 0, 50, 100, 900],
}
GPU: dict[str, list[float]] = {"gpu_use": [0, 0.5, 0.7, 0.9, 0.7, 0], "gpu_power_w": [90, 400, 500, 600, 500, 90]}


def readings(replica: str, figures: dict[str, list[float]], offset_s: float = 0.0) -> list[Reading]:
    return [
        (int((second - 1 + offset_s) * SECOND), replica, name, float(value))
        for name, values in figures.items()
        for second, value in enumerate(values)
    ]


def scored(rows: list[Reading], window: tuple[int, int] = WINDOW) -> ServerScore:
    found = server_score(SERVER.of(rows), window)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def hand() -> ServerScore:
    return scored([*readings("a", A), *readings("b", B, 0.5), *readings("gpu:0", GPU)])


def test_levels_of_replicas_add_up_and_shares_are_averaged(hand: ServerScore) -> None:
    assert hand.queue_mean == (0 + 2 + 4 + 2) / 4 + (1 + 1 + 5 + 1) / 4
    assert hand.queue_peak == 4 + 5  # at 2.5 s
    assert (hand.running_mean, hand.running_peak) == (6.0, 6.0)
    assert hand.kv_use_mean == pytest.approx((0.5 + 0.15) / 2)
    assert hand.kv_use_peak == 0.8
    assert hand.gpu_use == pytest.approx(0.7)
    assert hand.gpu_power_w == 500.0


def test_counters_grow_from_before_the_window_and_from_zero_after_a_restart(hand: ServerScore) -> None:
    assert hand.preemptions == (0 + 1 + 1 + 2) + 2
    assert hand.prefix_hit_rate == (100 + 100) / (400 + 400)
    assert hand.output_tokens_per_s == pytest.approx(300 / 4 + 100 / 4)  # from the last reading before, 4 s
    assert math.isnan(hand.draft_acceptance)
    assert math.isnan(hand.prompt_tokens_per_s)


def test_replicas_and_gpus_are_told_apart(hand: ServerScore) -> None:
    assert set(hand.replicas) == {"a", "b", "gpu:0"}
    assert hand.replicas["a"].queue_peak == 4
    assert hand.replicas["a"].prefix_hit_rate == 100 / 400
    assert hand.replicas["b"].preemptions == 2
    assert math.isnan(hand.replicas["gpu:0"].queue_mean)
    assert scored(readings("a", A)).replicas == {}


def test_a_counter_that_shows_only_when_it_counts_grew_from_zero() -> None:
    rows = [*readings("a", {"queue": [0] * 5}), (2 * SECOND, "a", "preemptions", 3.0)]
    assert scored(rows).preemptions == 3
    assert scored([(2 * SECOND, "a", "preemptions", 3.0)]).preemptions == 0


def test_a_rate_that_the_server_reckons_stands_in_where_it_counts_nothing() -> None:
    rates: dict[str, list[float]] = {"prefix_hit_rate": [0, 0.5, 0.6, 0.7, 0.6], "draft_acceptance": [0, 1, 1, 0, 0]}
    found = scored(readings("a", rates))
    assert found.prefix_hit_rate == pytest.approx(0.6)
    assert found.draft_acceptance == 0.5


def test_drafts() -> None:
    found = scored(readings("a", {"drafted": [0, 0, 10, 20, 40], "accepted": [0, 0, 8, 16, 24]}))
    assert found.draft_acceptance == 24 / 40


def test_nothing_in_the_window_is_nothing() -> None:
    assert server_score(None, WINDOW) is None
    assert server_score(SERVER.of([]), WINDOW) is None
    assert server_score(SERVER.of(readings("a", A)), (100 * SECOND, 101 * SECOND)) is None


def test_figures_that_nobody_knows_yet_do_no_harm() -> None:
    assert scored([(SECOND, "a", "temperature", 70.0), (SECOND, "a", "queue", 1.0)]).queue_mean == 1.0


def test_a_score_has_them_beside_what_rows_tell() -> None:
    rows: list[dict[str, Any]] = [row(i, due=i / 100, tokens=[0.1]) for i in range(400)]
    manifest = Manifest(source="test", window_ns=WINDOW)
    found = score(Run.of(manifest, [batch(rows)], SERVER.of(readings("a", A))), "ttft<=1s")
    assert str(found.server) == str(scored(readings("a", A)))  # NaN is not equal to itself
    assert math.isnan(found.cache_hit_rate)
    told = found.to_dict()["server"]
    assert (told["queue_mean"], told["gpu_use"]) == (2.0, None)
    assert score(Run.of(manifest, [batch(rows)]), "ttft<=1s").to_dict()["server"] is None
