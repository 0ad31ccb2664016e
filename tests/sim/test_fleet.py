"""Replicas in virtual time: nothing is lost or made, runs of steps equal single ones, and theory holds."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import openloop as ol
from openloop.arrivals import Poisson
from openloop.distributions import Exponential, Fixed, Uniform
from openloop.errors import SpecError
from openloop.sim import tables
from openloop.sim.batching import BATCHING, ORDERS
from openloop.sim.engine import SimEngine
from openloop.sim.fleet import FleetSpec, engine_of, read_fleet, simulate_fleet
from openloop.slo import read_slo
from openloop.workload import Demand, Sessions, Synthetic, Workload, read_source
from openloop.workload.demand import one_piece

STEP = {"floor": "5ms", "token": "50us", "context": "20ns", "attention": "1ns", "sequence": "10us"}


def fleet(**more: Any) -> FleetSpec:
    return read_fleet({"step": STEP, "memory_tokens": 20_000, **more})


def demand(
    spec: str = "synthetic:prompt=uniform(1,900),output=uniform(1,60)", rate: float = 8.0, seed: int = 1
) -> Demand:
    return Workload.of(read_source(spec)).demand(Poisson(rate), 30.0, seed)


class Outcome:
    """All blocks of an engine, request by request."""

    def __init__(self, engine: SimEngine) -> None:
        blocks = list(engine.run())
        self.engine = engine
        self.rows: Any = np.concatenate([block.rows for block in blocks]).view(np.recarray)
        self.counts = np.concatenate([block.counts for block in blocks])
        self.times = np.concatenate([block.times for block in blocks])
        order = np.lexsort((self.rows["attempt"], self.rows["request"]))
        starts = np.cumsum(self.counts) - self.counts
        places = [np.arange(starts[n], starts[n] + self.counts[n]) for n in order]
        self.times = self.times[np.concatenate(places)] if places else self.times
        self.rows, self.counts = self.rows[order], self.counts[order]


def served(found: FleetSpec, asked: Demand, longest_run: int = 1 << 40, seed: int = 0) -> Outcome:
    engine = engine_of(found, asked, read_slo("ttft<=500ms"), 30.0, seed)
    engine.replicas.longest = longest_run
    return Outcome(engine)


WORKLOADS = [
    "synthetic:prompt=uniform(1,900),output=uniform(1,60)",
    "synthetic:prompt=uniform(1,100),output=uniform(1,20),prefixes=3,prefix=uniform(50,700),reuse=70%",
    "sessions:turns=uniform(1,4),think=exponential(1s),prompt=uniform(1,200),output=uniform(1,50),system=100",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(list(BATCHING)),
    st.sampled_from([*ORDERS, "goodput:late=shed"]),
    st.sampled_from(WORKLOADS),
    st.sampled_from([2_000, 4_000, 20_000]),
    st.integers(1, 40),
    st.sampled_from([64, 512, 2048]),
    st.sampled_from([None, "2us"]),
    st.integers(1, 3),
    st.floats(1.0, 30.0),
    st.integers(0, 1000),
)
def test_nothing_is_lost_or_made(
    batching: str, order: str, spec: str, memory: int, sequences: int, tokens: int, swap: str | None, replicas: int,
    rate: float, seed: int,
) -> None:  # fmt: skip
    found = fleet(batching=batching, order=order, memory_tokens=memory, max_sequences=sequences, max_tokens=tokens,
                  swap=swap, replicas=replicas, routing="least-requests")  # fmt: skip
    asked = demand(spec, rate, seed)
    outcome = served(found, asked)
    check_whole(outcome, asked)
    assert order == "goodput:late=shed" or not np.any(outcome.rows.status == tables.SHED)
    if asked.after is None:
        assert len(outcome.rows) == len(asked)
    single = served(found, asked, 1)  # step by step
    assert np.array_equal(outcome.rows.status, single.rows.status)
    assert np.allclose(outcome.rows.ended, single.rows.ended, rtol=1e-9)


def check_whole(outcome: Outcome, asked: Demand) -> None:
    """Whatever happens, this is so."""
    rows, totals, times, reps = outcome.rows, outcome.counts, outcome.times, outcome.engine.replicas
    status = rows.status
    done = status == tables.OK
    assert np.array_equal(totals[done], rows.output[done])
    assert not totals[status == tables.SHED].any()
    assert np.all(totals <= rows.output)
    starts = np.concatenate([[0], np.cumsum(totals)])
    inside = np.ones(max(len(times) - 1, 0), bool)
    inside[starts[1:-1][(starts[1:-1] > 0) & (starts[1:-1] < len(times))] - 1] = False
    assert np.all(np.diff(times)[inside] >= 0)
    some = np.flatnonzero(totals > 0)
    assert np.all(times[starts[some]] >= 1e9 * rows.sent[some] - 1)
    assert np.all(rows.cached[done] < rows.prompt[done])
    assert np.array_equal(reps.blocks - reps.free, reps.unused)  # whatever is not free is known and unused
    for name in ("running", "filling", "waiting", "slots", "backlog", "leaving"):
        assert not reps[name].any(), name
    assert np.allclose(reps.context, 0)
    world = outcome.engine.world[0]
    assert world.live == 0
    assert not np.any((outcome.engine.attempts.where != tables.FREE) & (outcome.engine.attempts.where != tables.GONE))
    assert len(np.unique(rows.request * 1000 + rows.attempt)) == len(rows)
    first = rows[rows.attempt == 0]
    assert len(np.unique(first.request)) == len(first)


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"memory_tokens": 3_000},
        {"drafts": {"tokens": 3, "acceptance": 0.6}},
        {"memory_tokens": 2_000, "order": "shortest"},
        {"memory_tokens": 2_000, "swap": "2us", "watermark": "0%"},
        {"memory_tokens": 2_000, "client": {"timeout": "1s", "retry": "retry:most=3,on=timeout"}},
    ],
)
def test_runs_of_steps_equal_single_steps(batching: str, more: dict[str, Any]) -> None:
    """Also where whoever waits may be served once somebody made room, or comes again before others."""
    found, asked = fleet(batching=batching, **more), demand(rate=20.0 if more.get("memory_tokens") == 2_000 else 8.0)
    whole, single = served(found, asked), served(found, asked, 1)
    assert np.array_equal(whole.rows.status, single.rows.status)
    assert np.allclose(whole.rows.ended, single.rows.ended, rtol=1e-9)
    assert np.array_equal(whole.rows.preemptions, single.rows.preemptions)
    if not found.drafts:
        assert np.allclose(whole.times, single.times, rtol=0, atol=20)
    runs = []
    for longest in (1, 1 << 40):
        engine = engine_of(found, asked)
        engine.replicas.longest = longest
        assert not list(engine.run_to(np.inf))
        runs.append(engine.world[0].runs)
    assert runs[0] > 2 * runs[1]


def test_memory_is_never_over_capacity_and_someone_makes_room() -> None:
    outcome = served(fleet(memory_tokens=2_000, max_sequences=40), demand(rate=20.0))
    assert outcome.rows.preemptions.sum() > 10
    assert outcome.rows.recomputed.sum() > 0
    swapped = served(fleet(memory_tokens=2_000, max_sequences=40, swap="1us"), demand(rate=20.0))
    assert swapped.rows.preemptions.sum() > 10
    assert swapped.rows.recomputed.sum() == 0


@pytest.mark.parametrize(
    ("lengths", "square"), [(Fixed(100), 1.0), (Exponential(100), 2.0), (Uniform(1, 199), 1 + 198**2 / 12 / 100**2)]
)
def test_one_at_a_time_it_is_the_queue_of_the_textbooks(lengths: Any, square: float) -> None:
    """M/G/1: mean wait = rate * E[S^2] / (2 (1 - load)). A prompt is rounded to whole tokens, of 0.1 ms each."""
    rate, each = 70.0, 0.0001
    found = read_fleet({"step": {"floor": "0s", "token": "0.1ms"}, "max_sequences": 1, "max_tokens": 1_000_000})
    waits = []
    for seed in range(20):
        asked = Workload.of(Synthetic(lengths, Fixed(1))).demand(Poisson(rate), 300.0, seed)
        outcome = served(found, asked)
        waits.append(np.mean(outcome.rows.started - outcome.rows.due))
    service = 100 * each
    expected = rate * square * service**2 / (2 * (1 - rate * service))
    error = np.std(waits, ddof=1) / np.sqrt(len(waits))
    assert error < 0.03 * expected
    assert abs(np.mean(waits) - expected) < 4 * error + 0.01 * expected


PLAIN = """
import json, sys
from tests.sim.test_fleet import *
found = fleet(batching=sys.argv[1], memory_tokens=3000)
asked = demand(sys.argv[2], 10.0)
outcome = served(found, asked.take(np.arange(min(len(asked), 120))) if asked.after is None else asked)
print(json.dumps([outcome.rows.ended.tolist(), outcome.counts.tolist(), outcome.times.tolist()]))
"""


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("spec", WORKLOADS[:2])
def test_plain_python_gives_the_same(batching: str, spec: str) -> None:
    results = []
    for off in ("0", "1"):
        command = [sys.executable, "-c", PLAIN, batching, spec]
        done = subprocess.run(
            command, env={**os.environ, "NUMBA_DISABLE_JIT": off}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        results.append(json.loads(done.stdout))
    assert results[0] == results[1]


def run(rate: float = 9.0, seconds: float = 200.0, **more: Any) -> ol.Run:
    chosen = read_fleet({"model": "8b", "gpu": "h100", **more})
    asked = Workload.of(
        read_source("synthetic:prompt=lognormal(median=900,sigma=0.7),output=lognormal(median=150,sigma=0.7)")
    )
    return simulate_fleet(chosen, asked, Poisson(rate), seconds, 1, read_slo("ttft<=1s"))


def test_chunks_and_preponed_tokens_remove_the_stalls_of_prefill_first() -> None:
    tails = {}
    for batching in ("prefill-first", "chunked", "prepone:steps=8"):
        score = ol.score(run(batching=batching), "tbt<=10s")
        assert score.tbt_s is not None
        tails[batching] = score.tbt_s.p99
    assert tails["chunked"] < 0.6 * tails["prefill-first"]
    assert tails["prepone:steps=8"] < 0.6 * tails["prefill-first"]


def test_a_run_of_a_fleet_is_a_run_like_any_other() -> None:
    found = run(replicas=2, routing="least-requests", price_per_hour=3.0)
    found.validate()
    score = ol.score(found, "ttft<=1s, tpot<=40ms")
    assert score.attainment > 0.99
    assert score.cost is not None
    assert {row["replica"] for row in found.head(100)} == {"0", "1"}


def test_a_cache_knows_what_was_said_before() -> None:
    asked = Workload.of(Sessions(Fixed(4), Fixed(2.0), Fixed(160), Fixed(64), 320))
    warm, cold = (
        simulate_fleet(read_fleet({"model": "8b", "gpu": "h100", "prefix_cache": on}), asked, Poisson(1.0), 100.0)
        for on in (True, False)
    )
    rows = {row["request_id"]: row for row in warm.head(10_000)}
    for row in rows.values():
        if row["turn"]:
            known = (
                row["prompt_tokens"] - 160 - 1
            )  # all but the new question; the last answer's last token is not there
            assert row["cached_tokens"] == known // 16 * 16
    assert not any(row["cached_tokens"] for row in cold.head(10_000))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batching": "chunky"}, "did you mean 'chunked'"),
        ({"order": "goodput:late=x"}, "late is .x.; those who would be late"),
        ({"order": "last"}, "unknown order 'last'; known are first"),
        ({"model": "8b", "gpu": "h900", "step": None}, "unknown GPU 'h900'"),
        ({"model": "70b", "gpu": "l40s", "step": None}, "does not fit on 1 x L40S"),
        ({"step": None}, "a fleet needs a model and a gpu"),
        ({"replicas": 0}, "replicas is 0; it is at least 1"),
        ({"max_sequences": 10**12}, "at most 100,000"),
        ({"price_per_hour": -3.0}, "price_per_hour is -3"),
        ({"delay": "soon"}, "'soon' is not a number"),
        ({"memory_tokens": 3}, "at least one block"),
        ({"memory_tokens": 10**30}, "and at most 1,099"),
        ({"step": {"floor": "0s", "token": "0s"}}, "no end of capacity"),
        ({"batchng": "chunked"}, "unknown key 'batchng'; did you mean 'batching'?"),
        ({"speed": 0.0}, "speed is 0.0"),
    ],
)
def test_what_is_no_fleet_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence.replace("?", r"\?")):
        read_fleet({"step": STEP, **change})


def test_a_request_longer_than_the_memory_is_refused() -> None:
    with pytest.raises(SpecError, match="longer than the memory of a replica"):
        engine_of(fleet(memory_tokens=500), demand())


def test_a_static_batch_is_filled_whatever_fits_into_a_step() -> None:
    """A step reads 200 tokens and each has 300; who has no place waits until all of the batch are done."""
    asked = Demand(np.array([0.0, 1e-9, 1e-9, 1e-9, 1e-9]), one_piece(np.full(5, 300)), np.array([1, 5, 9, 20, 3]))
    rows = served(fleet(batching="static", max_tokens=200, max_sequences=4), asked).rows
    assert rows.started[1:].tolist() == [rows.ended[0]] * 4
    outcome = served(fleet(batching="static", max_tokens=200, max_sequences=3), asked)
    assert outcome.rows.started[4] == outcome.rows.ended[1:4].max()
    check_whole(outcome, asked)


def test_drafts_come_several_at_a_time_and_are_counted() -> None:
    """Three drafts accepted at 0.6: a step makes 1 + 0.6 + 0.36 + 0.216 tokens."""
    found = run(rate=2.0, drafts={"tokens": 3, "acceptance": 0.6, "cost": "10%"})
    found.validate()
    rows = found.head(10_000)
    assert all(sum(row["event_tokens"]) == row["output_tokens"] == row["requested_tokens"] for row in rows)
    long = [row for row in rows if row["output_tokens"] > 100]
    steps = sum(len(row["event_ns"]) - 1 for row in long)
    assert sum(row["output_tokens"] - 1 for row in long) / steps == pytest.approx(2.176, rel=0.02)
    assert sum(row["drafted_tokens"] for row in long) == 3 * steps
    plain, quick = (ol.score(each, "ttft<=9s").tpot_s for each in (run(rate=2.0), found))
    assert plain is not None
    assert quick is not None
    assert quick.p50 < 0.75 * plain.p50


@pytest.mark.parametrize("more", [{"overhead": "100ms"}, {"delay": "30ms"}])
def test_drafts_that_nobody_got_were_accepted_all_the_same(more: dict[str, Any]) -> None:
    found = run(rate=2.0, drafts={"tokens": 3, "acceptance": 0.6}, client={"timeout": "1s"}, **more)
    rows = [row for row in found.head(10_000) if row["status"] == "timeout"]
    accepted, drafted = (sum(row[f"{each}_tokens"] for row in rows) for each in ("accepted_draft", "drafted"))
    assert accepted / drafted == pytest.approx((0.6 + 0.36 + 0.216) / 3, rel=0.05)


def test_only_replicas_with_drafts_draft() -> None:
    groups = [{"replicas": 1, "drafts": {"tokens": 3, "acceptance": 0.6}}, {"replicas": 1}]
    rows = run(rate=2.0, groups=groups).head(10_000)
    for row in rows:
        assert row["drafted_tokens"] == (3 * (len(row["event_ns"]) - 1) if row["replica"] == "0" else 0)
    assert any(row["replica"] == "1" for row in rows)


def test_labels_and_overheads_are_of_requests_whoever_answers_them_and_when() -> None:
    more: dict[str, Any] = {"replicas": 3, "quality": "quality:fail=20%,rare=10%", "overhead": "exponential(30ms)"}
    found: list[dict[int, Any]] = []
    for routing in ("round-robin", "random"):
        late, plain = (run(9.0, 60.0, routing=routing, **each).head(10_000) for each in (more, {"replicas": 3}))
        first = {row["request_id"]: row["event_ns"][0] for row in plain}
        found.append(
            {
                row["request_id"]: (row["quality"], row["slices"], row["event_ns"][0] - first[row["request_id"]])
                for row in late
            }
        )
    assert found[0] == found[1]
    assert list(found[0]) != list(found[1])  # they ended in another order


def test_a_delay_at_delivery_lowers_the_tail_of_gaps_and_leaves_idle_time_as_it_is() -> None:
    slo = "tbt<=10s, read_from_first>=20tok/s"
    plain, delayed = (ol.score(run(batching="prefill-first", delay=each), slo) for each in (None, "50ms"))
    assert plain.tbt_s is not None
    assert delayed.tbt_s is not None
    assert delayed.tbt_s.p50 < 0.7 * plain.tbt_s.p50
    assert plain.idle_s is not None
    assert delayed.idle_s is not None
    assert delayed.idle_s.p99 == pytest.approx(plain.idle_s.p99, rel=0.05)
    assert delayed.ttft_s is not None
    assert plain.ttft_s is not None
    assert delayed.ttft_s.p99 == pytest.approx(plain.ttft_s.p99, rel=1e-6)


def test_refusing_what_is_late_raises_goodput_in_overload_and_serves_fewer_tokens() -> None:
    slo = "ttft<=1s"
    first, refusing = (
        ol.score(run(rate=40.0, seconds=60.0, order=order), slo) for order in ("first", "goodput:late=shed")
    )
    assert refusing.goodput_rps > 1.5 * first.goodput_rps
    assert refusing.statuses["shed"] > 0
    assert refusing.output_tokens_per_s < first.output_tokens_per_s


@pytest.mark.parametrize("batching", ["chunked", "prepone"])
def test_a_demand_in_parts_is_served_as_a_whole_one_is(batching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 40 users, one after the other in the same places, against all of them at once."""
    found = fleet(batching=batching, replicas=2, memory_tokens=4_000)
    asked = Workload.of(read_source("synthetic:prompt=uniform(1,900),output=uniform(1,60)"))
    parts = list(asked.parts(Poisson(8.0), 60.0, 1, users=40))
    assert len(parts) > 8
    lengths = np.concatenate([part.pieces.tokens for part in parts])
    whole = Demand(
        np.concatenate([part.due_s for part in parts]),
        one_piece(lengths),
        np.concatenate([part.output_tokens for part in parts]),
    )
    expected = Outcome(engine_of(found, whole))
    monkeypatch.setattr("openloop.workload.mix.Workload.parts", lambda *_: iter(parts))
    monkeypatch.setattr("openloop.sim.engine.BLOCK_ROWS", 16)
    run = simulate_fleet(found, asked, Poisson(8.0), 60.0, 1)
    rows = sorted(run.head(10_000), key=lambda row: row["request_id"])
    assert [row["request_id"] for row in rows] == list(range(len(whole)))
    assert [row["prompt_tokens"] for row in rows] == lengths.tolist()
    assert np.concatenate([row["event_ns"] for row in rows]).tolist() == expected.times.tolist()


def test_conversations_in_parts_know_what_was_said_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Workload.of(Sessions(Fixed(4), Fixed(2.0), Fixed(160), Fixed(64), 320))
    parts = list(asked.parts(Poisson(2.0), 100.0, 3, users=20))
    monkeypatch.setattr("openloop.workload.mix.Workload.parts", lambda *_: iter(parts))
    monkeypatch.setattr("openloop.sim.engine.BLOCK_ROWS", 16)
    run = simulate_fleet(read_fleet({"model": "8b", "gpu": "h100"}), asked, Poisson(2.0), 100.0, 3)
    run.validate()
    rows = run.head(10_000)
    sessions = {row["session_id"] for row in rows}
    assert len(sessions) == sum(len(part.due_s[~np.isnan(part.due_s)]) for part in parts)
    for row in rows:
        known = row["prompt_tokens"] - 160 - 1 if row["turn"] else 320
        assert row["cached_tokens"] in ((known // 16 * 16,) if row["turn"] else (0, known // 16 * 16))


def test_a_demand_in_one_part_is_the_demand() -> None:
    asked = Workload.of(read_source("synthetic:prompt=50,output=20,prefixes=3,prefix=uniform(100,900),reuse=50%"))
    (only,) = asked.parts(Poisson(8.0), 30.0, 1)
    whole = asked.demand(Poisson(8.0), 30.0, 1)
    assert np.array_equal(only.pieces.identity, whole.pieces.identity)
    several = list(asked.parts(Poisson(8.0), 30.0, 1, users=50))
    lengths = [dict(zip(p.pieces.identity.tolist(), p.pieces.tokens.tolist(), strict=True)) for p in several]
    for each in lengths[1:]:
        assert {k: v for k, v in each.items() if k >= 0} == {k: v for k, v in lengths[0].items() if k >= 0}


def test_texts_stand_for_what_they_name() -> None:
    what = {"step": STEP, "memory_tokens": 20_000}
    texts = simulate_fleet(what, "synthetic:prompt=50,output=9", "poisson:rate=8", 5.0)
    same = simulate_fleet(fleet(), Workload.of(read_source("synthetic:prompt=50,output=9")), Poisson(8.0), 5.0)
    assert texts.head(99) == same.head(99)
    assert texts.manifest == same.manifest


@pytest.mark.parametrize("more", [{"step": {"floor": "200000h", "token": "0s"}}, {"delay": "200000h"}], ids=str)
def test_what_would_take_over_thirty_years_is_refused_in_a_sentence(more: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="over thirty years"):
        simulate_fleet({"step": STEP, "memory_tokens": 20_000, **more}, "synthetic", "poisson:rate=5", 5.0)
