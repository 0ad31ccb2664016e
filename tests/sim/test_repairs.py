"""Answers that fail are asked for again in the model: rows, amplification, waste and load follow."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from openloop.arrivals import Poisson
from openloop.errors import SpecError
from openloop.persistence import Repair
from openloop.score import score
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.sim.quality import CORRECTION_TOKENS, read_quality, with_repairs
from openloop.workload import Workload, read_source

STEP = {"floor": "5ms", "token": "0.05ms", "sequence": "1ms"}
FLEET = {"step": STEP, "max_sequences": 32, "memory_tokens": 100_000, "price_per_hour": 3.6}
ALWAYS, SELDOM, HALF = ("quality:fail=100%", "quality:fail=1%,tail=0%", "quality:fail=50%")
PLAIN = "synthetic:prompt=100,output=20"


def run_of(quality: str, most: int, source: str = PLAIN, rate: float = 5.0, seconds: float = 60.0, **more: Any) -> Any:
    fleet = read_fleet({**FLEET, "quality": quality, "client": {"repair": most, **more.pop("client", {})}, **more})
    return simulate_fleet(fleet, Workload.of(read_source(source)), Poisson(rate), seconds, 3)


def test_how_often_may_be_a_number() -> None:
    fleet = read_fleet({**FLEET, "quality": SELDOM, "client": {"retry": 1, "hedge": "p95", "repair": 2}})
    assert fleet.client is not None
    assert fleet.client.persistence() == "retry:most=1; hedge:after=p95; repair:most=2"


def test_repairs_are_not_among_the_lengths_of_what_is_asked() -> None:
    long = "synthetic:prompt=lognormal(median=300,sigma=0.7),output=20"
    assert run_of(ALWAYS, 2, long).manifest.lengths == run_of(SELDOM, 2, long).manifest.lengths


def rows_of(run: Any) -> list[dict[str, Any]]:
    return sorted(run.head(1_000_000), key=lambda row: (row["request_id"], row["attempt"]))


def test_every_failure_is_repaired_as_often_as_allowed() -> None:
    run = run_of(ALWAYS, 2)
    run.validate()
    rows = rows_of(run)
    assert len(rows) > 600
    for first, second, third in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert [each["kind"] for each in (first, second, third)] == ["first", "repair", "repair"]
        assert [each["attempt"] for each in (first, second, third)] == [0, 1, 2]
        assert first["scheduled_ns"] == second["scheduled_ns"] == third["scheduled_ns"]
        assert first["ended_ns"] <= second["sent_ns"] <= second["event_ns"][0]  # it waits for what it repairs
        assert second["ended_ns"] <= third["sent_ns"]
        assert second["prompt_tokens"] == first["prompt_tokens"] + 20 + CORRECTION_TOKENS
        assert third["prompt_tokens"] == second["prompt_tokens"] + 20 + CORRECTION_TOKENS
        assert second["cached_tokens"] >= 96  # the prompt, and the answer that was not good enough
    found = score(run, "quality")
    assert found.retries.amplification == 3.0
    assert found.retries.repairs == 2 * found.requests
    assert found.accepted == 0


def test_attempts_are_numbered_without_gaps_whatever_a_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    chats = "sessions:turns=uniform(1,3),think=500ms,prompt=60,output=uniform(5,30)"
    parts = list(Workload.of(read_source(chats)).parts(Poisson(10.0), 120.0, 3, users=100))
    monkeypatch.setattr("openloop.workload.mix.Workload.parts", lambda *_: iter(parts))
    assert len(parts) > 8
    client = {"retry": "retry:most=3,base=10ms,on=timeout", "hedge": "hedge:after=15ms", "timeout": "250ms"}
    rows = rows_of(run_of(HALF, 2, chats, rate=10.0, seconds=120.0, client=client))
    kinds = Counter(row["kind"] for row in rows)
    assert min(kinds[each] for each in ("retry", "hedge", "repair")) > 20, kinds
    numbers: dict[int, list[int]] = {}
    for row in rows:
        numbers.setdefault(row["request_id"], []).append(row["attempt"])
    assert all(found == list(range(len(found))) for found in numbers.values())


def test_amplification_waste_and_money_follow_the_chance_to_fail() -> None:
    """With chance p and one repair: 1 + p attempts, p * n tokens wasted, 1 - p * p accepted."""
    once, few = score(run_of(HALF, 1, seconds=600.0), "quality"), score(run_of(SELDOM, 1, seconds=600.0), "quality")
    assert once.retries.amplification == pytest.approx(1.5, abs=0.03)
    assert once.attainment == pytest.approx(0.75, abs=0.03)
    assert once.retries.wasted_output_tokens == pytest.approx(0.5 * 20 * once.requests, rel=0.06)
    assert few.retries.amplification == pytest.approx(1.01, abs=0.005)
    assert few.attainment == pytest.approx(1.0, abs=0.002)
    assert once.cost is not None
    assert few.cost is not None
    assert once.cost.per_accepted == pytest.approx(few.cost.per_accepted * few.attainment / once.attainment, rel=0.01)


def test_repairs_are_load_and_push_the_others_back() -> None:
    calm, busy = (score(run_of(quality, 1, rate=25.0), "ttft<=10s") for quality in (SELDOM, ALWAYS))
    assert busy.ttft_s is not None
    assert calm.ttft_s is not None
    assert busy.ttft_s.p50 > 2 * calm.ttft_s.p50
    assert busy.little.L_measured > 2 * calm.little.L_measured


def test_a_conversation_goes_on_after_the_last_repair() -> None:
    source = "sessions:turns=3,think=1s,prompt=50,output=10"
    run = run_of(ALWAYS, 1, source, rate=1.0)
    run.validate()
    turns = {(row["session_id"], row["turn"], row["kind"]): row for row in rows_of(run)}
    later = [(session, turn) for session, turn, kind in turns if kind == "first" and turn > 0]
    assert len(later) > 30
    for session, turn in later:
        before, mine = turns[session, turn - 1, "repair"], turns[session, turn, "first"]
        assert mine["scheduled_ns"] == pytest.approx(before["ended_ns"] + 1e9, abs=10)
    assert all(row["scheduled_ns"] < 60e9 for row in turns.values())


def test_with_retries_attempts_keep_their_numbers_apart() -> None:
    events = ["crash:at=20s,restart=5s"]
    run = run_of(HALF, 2, rate=20.0, client={"retry": "2", "timeout": "2s"}, events=events, replicas=2)
    run.validate()
    kinds = Counter(row["kind"] for row in rows_of(run))
    assert kinds["retry"] > 0
    assert kinds["repair"] > 0


def test_each_repair_follows_what_it_repairs() -> None:
    demand = Workload.of(read_source(PLAIN)).demand(Poisson(50.0), 100.0, 1)
    found = with_repairs(demand, read_quality(HALF), Repair(1), np.random.default_rng(0))
    assert np.sum(found.wave == 0) == len(demand)
    assert len(found.demand) == len(found.origin) == len(found.wave) == len(found.good)
    again = found.wave > 0
    assert found.demand.after is not None
    assert np.array_equal(found.demand.after[again], found.origin[again])
    assert not np.any(found.good[found.origin[again]])
    assert np.all(np.isnan(found.demand.due_s[again]))


def test_a_repair_needs_answers_that_can_fail() -> None:
    with pytest.raises(SpecError, match="give memory_tokens, or prefix_cache: false"):
        run_of(ALWAYS, 1, memory_tokens=1 << 34)
    with pytest.raises(SpecError, match="a repair needs answers that can fail"):
        read_fleet({**FLEET, "client": {"repair": "1"}})
