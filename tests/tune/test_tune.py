"""Tuning: few places are tried, nothing is lost, and the best is confirmed."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from openloop.errors import OpenloopError, RunError, SpecError
from openloop.load.scenario import Scenario, read_scenario
from openloop.report.tuning import tuning_report
from openloop.sim.fleet import read_fleet
from openloop.tune import read_space, tune
from openloop.tune.run import MAXIMIZED
from openloop.tune.search import first_places, next_places
from tests.report.test_report import check_numbers

FLEET = {"step": {"floor": "10ms", "token": "100us"}, "routing": "least-requests", "price_per_hour": 2.0}
SPACE = {"replicas": {"from": 1, "to": 6}, "max_sequences": [1, 2, 4, 8], "batching": ["chunked", "prefill-first"]}


def scenario(**more: Any) -> Scenario:
    flags = {"rate": 60.0, "for": "20s", "slo": "ttft<=200ms, tpot<=30ms", "prompt": "20", "output": "10", **more}
    return read_scenario(None, flags, live=False)


def search(shape: tuple[int, ...], ordered: tuple[bool, ...], value: Any, budget: int, seed: int) -> float:
    seen = {place: (value(place),) for place in first_places(shape, budget // 3, seed)}
    while len(seen) < budget:
        for place in next_places(shape, ordered, seen, min(4, budget - len(seen)), seed):
            assert place not in seen
            seen[place] = (value(place),)
    return float(max(seen.values())[0])


def test_near_a_place_one_key_changes_while_there_are_such_places() -> None:
    shape, around = (3, 2), (0, 0)
    seen: dict[tuple[int, ...], tuple[float, ...]] = {around: (1.0,), (2, 1): (0.0,)}
    near = next_places(shape, (True, False), seen, 9, 0, around)
    assert sorted(near) == [(0, 1), (1, 0), (2, 0)]
    seen |= dict.fromkeys(near, (0.5,))
    assert next_places(shape, (True, False), seen, 9, 0, around) == [(1, 1)]


@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_a_landscape_with_cliffs_is_found_with_a_tenth(seed: int) -> None:
    """Ridges along numbers, words that matter, and a cliff where there is too little of something."""
    shape, ordered = (8, 8, 4, 3), (True, True, False, False)
    rng = np.random.default_rng(seed)
    peak, words, others = rng.uniform(1, 6, 2), rng.uniform(0.5, 1, 4), rng.uniform(0.8, 1, 3)

    def value(place: tuple[int, ...]) -> float:
        a, b, word, other = place
        if a + b < 4:
            return 0.0
        hill = np.exp(-((a - peak[0]) ** 2 + (b - peak[1]) ** 2) / 20)
        return float(hill * words[word] * others[other])

    places = list(itertools.product(*map(range, shape)))
    best = max(map(value, places))
    assert search(shape, ordered, value, len(places) // 10, seed) >= 0.98 * best


def test_first_places_try_every_value() -> None:
    places = np.array(first_places((4, 3, 2), 12, 1))
    assert len({tuple(row) for row in places.tolist()}) == 12
    assert [len(set(column)) for column in places.T.tolist()] == [4, 3, 2]
    assert len(first_places((2, 2), 10, 0)) == 4


def test_the_best_is_confirmed_and_the_search_goes_on_where_it_was(tmp_path: Path) -> None:
    space = read_space(FLEET, SPACE)
    seen: list[int] = []
    found = tune(
        space, scenario(), trials=16, out=tmp_path / "a", processes=1, watch=lambda *told: seen.append(told[0])
    )
    assert len(found.trials) == 16
    assert found.simulations == 16 + 3 * 2
    assert found.best is not None
    assert found.best.fresh
    assert found.best_interval is not None
    assert found.best_value is not None
    assert found.best_interval[0] <= found.best_value <= found.best_interval[1]
    assert found.best_value == max(MAXIMIZED["goodput_per_dollar"](trial) for trial in found.confirmed)
    assert found.fleet == yaml.safe_load((tmp_path / "a" / "best.yaml").read_text())
    read_fleet(tmp_path / "a" / "best.yaml")
    assert seen == [*range(1, 17), 16, 16, 16]

    lines = (tmp_path / "a" / "trials.jsonl").read_bytes().splitlines()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tune.json").write_bytes((tmp_path / "a" / "tune.json").read_bytes())
    (tmp_path / "b" / "trials.jsonl").write_bytes(b"\n".join(lines[:9]) + b"\n" + lines[9][:40])
    again: list[Any] = []
    assert (
        tune(space, scenario(), trials=16, out=tmp_path / "b", processes=1, watch=lambda *told: again.append(told))
        == found
    )
    assert len(again) == len(lines) - 9
    assert [told[0] for told in again][:7] == list(range(10, 17))
    with pytest.raises(RunError, match="with another scenario"):
        tune(space, scenario(rate=61.0), trials=16, out=tmp_path / "a", processes=1)
    (tmp_path / "a" / "tune.json").write_text("[]")
    with pytest.raises(RunError, match="with another base"):
        tune(space, scenario(), out=tmp_path / "a", processes=1)

    report = tuning_report(found)
    assert check_numbers(report) > 5
    assert report.headline.startswith("Use replicas ")
    json.dumps(found.to_dict(), allow_nan=False)


def test_no_fleet_of_the_front_is_beaten(tmp_path: Path) -> None:
    found = tune(read_space(FLEET, SPACE), scenario(), "goodput", trials=16, processes=1)
    rows = np.array([(-t.goodput_rps, t.cost_per_hour, t.tail_s) for t in found.trials], float)
    for trial in found.front:
        mine = np.array([-trial.goodput_rps, trial.cost_per_hour, trial.tail_s], float)
        assert not np.any(np.all(rows <= mine, axis=1) & np.any(rows < mine, axis=1))
    assert {t.place for t in found.front} <= {t.place for t in found.trials}


@pytest.mark.parametrize(("slo", "some"), [("ttft<=200ms, tpot<=30ms", True), ("ttft<=1ms", False)])
def test_fleets_that_accept_too_few_are_not_on_the_front(slo: str, some: bool) -> None:
    found = tune(read_space(FLEET, SPACE), scenario(slo=slo), "goodput", attain=0.95, trials=12, processes=1)
    assert bool(found.front) == some
    assert all(trial.attainment >= 0.95 for trial in found.front)
    assert any(trial.attainment < 0.95 for trial in found.trials)
    assert (check_numbers(tuning_report(found)) > 5) == some


def test_fleets_that_accept_all_are_alike(tmp_path: Path) -> None:
    """They are held to the same requests: one that seems to settle later is not measured in other seconds."""
    fleet = {"model": "8b", "gpu": "h100", "price_per_hour": 3.0}
    asked = scenario(**{"rate": 30.0, "for": "60s", "prompt": "500", "output": "100", "slo": "ttft<=1s, tpot<=40ms"})
    found = tune(read_space(fleet, {"batching": ["chunked", "prefill-first"]}), asked, "goodput", processes=1)
    assert len(found.confirmed) == 2
    for trials in (found.trials, found.confirmed):
        assert {trial.attainment for trial in trials} == {1.0}
        assert len({trial.goodput_rps for trial in trials}) == 1


def test_an_interrupt_keeps_what_was_found(tmp_path: Path) -> None:
    def stop(done: int, *_: Any) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    found = tune(read_space(FLEET, SPACE), scenario(), trials=16, out=tmp_path / "t", processes=1, watch=stop)
    assert found.stopped.startswith("interrupted")
    assert found.best is None
    assert len(found.trials) >= 6
    assert len((tmp_path / "t" / "trials.jsonl").read_bytes().splitlines()) == len(found.trials)
    assert tuning_report(found).headline.startswith("Best so far")


def test_what_is_required_is_kept() -> None:
    found = tune(read_space(FLEET, SPACE), scenario(), trials=14, attain=0.98, processes=1)
    assert found.best is not None
    assert found.best.attainment >= 0.98
    hopeless = tune(
        read_space(FLEET, SPACE), scenario(rate=2000.0, **{"for": "2s"}), trials=4, attain=0.99, processes=1
    )
    assert hopeless.best is None
    nothing = tune(read_space(FLEET, SPACE), scenario(slo="ttft<=1us"), "goodput", trials=4, processes=1)
    assert nothing.best is None
    assert tuning_report(nothing).badge == "Not confirmed"
    assert "accepts as many as required" in tuning_report(hopeless).headline


def test_fleets_that_cannot_be_are_told_and_not_chosen() -> None:
    groups = [[], [{"role": "prefill"}], [{"role": "prefill"}, {"role": "decode"}]]
    space = read_space(FLEET, {"groups": groups, "max_sequences": [4, 8]})
    found = tune(space, scenario(), "goodput", processes=1)
    refused = [trial for trial in found.trials if trial.refused]
    assert {trial.place[0] for trial in refused} == {1}
    assert found.best is not None
    assert found.best.place[0] != 1


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({}, "names no keys"),
        ({"batchng": ["chunked"]}, "no key 'batchng' to search; did you mean 'batching'"),
        ({"batching": []}, "give a list of values"),
        ({"batching": "chunked"}, "give a list of values"),
        ({"batching": ["chunked", "chunked"]}, "twice"),
        ({"batching": ["chunky"]}, "batching: 'chunky': unknown batching policy 'chunky'; did you mean 'chunked'"),
        ({"max_tokens": ["many"]}, "max_tokens: 'many': Expected `int`"),
        ({"max_tokens": {"from": 8, "to": 2}}, "no value"),
        ({"max_tokens": {"from": 1, "to": 8, "step": 0}}, "a range goes up"),
        ({"drafts.tokens": [1, 2]}, "write it in the fleet"),
        ({"step.floor.x": [1]}, "nothing inside"),
    ],
)
def test_a_space_that_cannot_be_searched_says_why(space: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OpenloopError, match=sentence):
        read_space(FLEET, space)


def test_what_is_asked_of_a_search_is_checked() -> None:
    space = read_space({**FLEET, "price_per_hour": None}, SPACE)
    with pytest.raises(SpecError, match="needs a price"):
        tune(space, scenario())
    with pytest.raises(SpecError, match="cannot maximize 'goodputs'; did you mean 'goodput'"):
        tune(space, scenario(), "goodputs")
    absent = read_scenario(None, {"workload": "trace:nowhere.jsonl", "rate": 4.0, "slo": "ttft<=1s"}, live=False)
    with pytest.raises(SpecError, match=r"nowhere\.jsonl cannot be read"):
        tune(space, absent, "goodput", processes=1)


def test_a_replica_of_more_gpus_does_not_cost_the_same() -> None:
    fleet = {"model": "8b", "gpu": "h100", "price_per_hour": 3.0}
    free = [[{"replicas": 1}], [{"replicas": 1, "tp": 2}]]
    for space in ({"tp": [1, 2]}, {"gpu": ["h100", "h200"]}, {"groups": free}):
        with pytest.raises(SpecError, match="changes what a replica costs.*search groups.*maximize goodput"):
            tune(read_space(fleet, space), scenario())
        assert tune(read_space({**fleet, "price_per_hour": None}, space), scenario(), "goodput", processes=1).best
    groups = [[{"replicas": 1, "price_per_hour": 3.0}], [{"replicas": 1, "tp": 2, "price_per_hour": 6.0}]]
    for price in (3.0, None):  # groups with prices need none beside them
        found = tune(read_space({**fleet, "price_per_hour": price}, {"groups": groups}), scenario(), processes=1)
        assert sorted(trial.cost_per_hour or 0.0 for trial in found.trials) == [3.0, 6.0]
    with pytest.raises(SpecError, match="needs a price"):
        tune(read_space({**fleet, "price_per_hour": None}, {"groups": [groups[0], free[0]]}), scenario())
    with pytest.raises(SpecError, match="tp changes what a replica costs"):
        tune(read_space({**fleet, "price_per_hour": None}, {"tp": [1, 2], "groups": groups}), scenario())
