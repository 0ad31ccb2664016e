"""A modelled fleet in each state of its caches, and modelled quality."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openloop.arrivals import Poisson, read_arrivals
from openloop.errors import SpecError
from openloop.records import Run
from openloop.score import score
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.sim.warmth import simulate_warm
from openloop.workload import Workload, read_source, read_warming

FLEET = read_fleet({"model": "8b", "gpu": "h100", "replicas": 2, "price_per_hour": 3.0})
ALONE = read_fleet({"model": "8b", "gpu": "h100"})
SLO = "ttft<=500ms"


def run_of(
    warmth: str, source: str = "synthetic:prompt=64,output=8,prefixes=5,prefix=3200", seconds: float = 60.0
) -> Run:
    return simulate_warm(FLEET, read_warming(warmth), Workload.of(read_source(source)), Poisson(10.0), seconds)


def test_a_cold_cache_finds_nothing_and_a_primed_one_every_prefix_from_the_start() -> None:
    cold, warm = score(run_of("cold-cache"), SLO), score(run_of("warm-cache"), SLO)
    assert cold.cache_hit_rate == 0.0
    assert warm.cache_hit_rate == pytest.approx(3200 / 3264)
    assert cold.requests == warm.requests
    assert cold.ttft_s is not None
    assert warm.ttft_s is not None
    assert warm.ttft_s.p50 < cold.ttft_s.p50 / 4
    assert warm.ttft_s.p99_9 < cold.ttft_s.p50  # not even the first of a prefix was cold


@pytest.mark.parametrize("routing", ["least-requests", "random", "prefix-aware", "sglang", "sticky"])
@pytest.mark.parametrize("cache_events", [True, False])
def test_every_replica_is_primed_whatever_the_routing_and_it_is_not_in_the_records(
    routing: str, cache_events: bool
) -> None:
    alike = {"model": "8b", "gpu": "h100"}
    fleet = read_fleet({"groups": [alike, {**alike, "replicas": 3}], "routing": routing, "cache_events": cache_events})
    asked = Workload.of(read_source("synthetic:prompt=64,output=8,prefixes=5,prefix=3200"))
    run = simulate_warm(fleet, read_warming("warm-cache"), asked, Poisson(60.0), 10.0)
    rows = run.head(10_000)
    assert {row["cached_tokens"] for row in rows} == {3200}
    assert len({row["replica"] for row in rows}) > 1
    assert len(rows) == len(asked.demand(Poisson(60.0), 10.0, 0))
    assert run.manifest.notes[-1] == "prefixes that every cache was primed with: 5"


@pytest.mark.parametrize("warmth", ["cold-cache", "warm-cache", "hot:most=60s", "disrupted"])
def test_events_of_a_fleet_count_from_the_beginning_of_the_window(warmth: str) -> None:
    fleet = read_fleet({"model": "8b", "gpu": "h100", "replicas": 2, "events": ["crash:at=10s,replica=1,restart=5s"]})
    asked = Workload.of(read_source("synthetic:prompt=64,output=8,prefixes=5,prefix=3200"))
    run = simulate_warm(fleet, read_warming(warmth), asked, Poisson(10.0), 30.0)
    assert run.manifest.window_ns is not None
    begin, end = run.manifest.window_ns
    assert end - begin == 30 * 10**9
    moments = {event.kind: event.at_ns - begin for event in run.manifest.events}
    assert moments["crash"] == 10 * 10**9
    assert moments["start"] == 15 * 10**9
    assert run.manifest.engine_flags is not None
    assert "crash:at=10s" in run.manifest.engine_flags
    away = [row for row in run.head(10_000) if 10e9 < row["scheduled_ns"] - begin < 15e9]
    assert {row["replica"] for row in away} == {"0"}
    with pytest.raises(SpecError, match="after the end of the run, 8 s"):
        simulate_warm(fleet, read_warming(warmth), asked, Poisson(10.0), 8.0)


@pytest.mark.parametrize(
    ("change", "price"),
    [
        ({"events": ["add:at=10s,count=3"]}, 3 * (2 + 3 * 20 / 30)),
        ({"events": ["remove:at=10s,replica=1"]}, 3 * (1 + 10 / 30)),
        ({"scale": {"on": "queue", "target": 9, "idle": 9, "most": 2, "every": "1s"}}, 3 * 1),  # one is gone after 1 s
    ],
)
def test_a_hot_fleet_costs_what_was_there_in_the_window(change: dict[str, Any], price: float) -> None:
    fleet = read_fleet({"model": "8b", "gpu": "h100", "replicas": 2, "price_per_hour": 3.0, **change})
    asked = Workload.of(read_source("synthetic:prompt=64,output=8,prefixes=5,prefix=3200"))
    run = simulate_warm(fleet, read_warming("hot:most=60s"), asked, Poisson(10.0), 30.0)
    found = score(run, SLO)
    assert found.cost is not None
    assert found.cost.total == pytest.approx(price * 30 / 3600, rel=1e-3)


def test_a_warm_run_ends_with_its_recorded_arrivals(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n".join(str(n / 2) for n in range(100)))
    recorded, workload = read_arrivals(f"replay:{tmp_path / 't.txt'}"), Workload.of(read_source("synthetic"))
    run = simulate_warm(FLEET, read_warming("warm-cache"), workload, recorded, 3600.0)
    assert run.num_rows == 100
    assert run.manifest.window_ns == (0, 50_000_000_000)
    with pytest.raises(SpecError, match="the recording ends after 50 s"):
        simulate_warm(FLEET, read_warming("hot:most=60s"), workload, recorded, 3600.0)


def test_a_disrupted_cache_loses_all_of_it_at_a_marked_time() -> None:
    run = run_of("disrupted:at=30s")
    found = score(run, SLO, disruption_s=10.0)
    (disruption,) = found.disruptions
    assert disruption.kind == "salt-rotation"
    assert found.steady is not None
    assert disruption.summary.cache_hit_rate < found.steady.cache_hit_rate == pytest.approx(3200 / 3264)
    rows = sorted(run.head(10_000), key=lambda row: row["scheduled_ns"])
    after = [row for row in rows if row["scheduled_ns"] >= run.manifest.events[0].at_ns]
    assert after[0]["cached_tokens"] == 0
    assert (
        sum(row["cached_tokens"] == 0 for row in after) >= 5
    )  # each prefix once, on either replica, or as it is computed
    assert after[-1]["cached_tokens"] == 3200


def test_turns_that_come_after_the_rotation_find_their_conversation_gone() -> None:
    talk = Workload.of(read_source("sessions:turns=4,think=10s,system=640,prompt=64,output=16"))
    run = simulate_warm(ALONE, read_warming("disrupted:at=20s"), talk, Poisson(10.0), 40.0)
    rows = run.head(10_000)
    late = [row for row in rows if row["turn"] == 1 and row["scheduled_ns"] > run.manifest.events[0].at_ns + 1e9]
    late.sort(key=lambda row: row["scheduled_ns"])
    early = [row for row in rows if row["turn"] == 1 and row["scheduled_ns"] < run.manifest.events[0].at_ns]
    assert early
    assert late
    assert np.mean([row["cached_tokens"] for row in early]) > np.mean([row["cached_tokens"] for row in late[:20]])


def test_a_hot_run_is_measured_from_when_it_is_steady() -> None:
    run = run_of("hot:most=60s", seconds=30.0)
    assert run.manifest.window_ns is not None
    opened, end = run.manifest.window_ns
    assert end - opened == 30 * 10**9
    assert run.manifest.cache_warmth == "hot steady state"
    never = run_of("hot:most=1s", seconds=30.0)
    assert never.manifest.cache_warmth is None
    assert any("not steady yet" in note for note in never.manifest.notes)


def test_modelled_answers_fail_as_often_as_they_should() -> None:
    fleet = {"model": "8b", "gpu": "h100", "quality": "quality:fail=1%,tail=10%,rare=5%,numeric=10%,factor=2"}
    run = simulate_fleet(fleet, "synthetic:prompt=10,output=2", "poisson:rate=10", 1000.0, 4)
    found = score(run, "quality").quality
    assert found is not None
    assert found.judged == score(run, SLO).completed
    expected = {"rare": 0.2, "numeric": 0.2}
    for name, failing in expected.items():
        low, high = found.slices[name].interval
        assert low < 1 - failing < high
        assert found.slices[name].worse
    tail = 1 - 0.95 * 0.9
    assert 1 - found.pass_rate == pytest.approx(0.01 * (1 - tail) + 0.2 * tail, abs=0.01)


def test_only_what_was_answered_is_labelled_and_the_same_seed_labels_alike() -> None:
    fleet = {"model": "8b", "gpu": "h100", "quality": "quality:fail=50%"}
    asked = "synthetic:prompt=64,output=8"
    once, again, other = (simulate_fleet(fleet, asked, "constant:rate=10", 60.0, seed) for seed in (1, 1, 2))
    labels = [[row["quality"] for row in each.head(10_000)] for each in (once, again, other)]
    assert labels[0] == labels[1] != labels[2]
    assert once.manifest.quality_gate == "quality:fail=0.5"
