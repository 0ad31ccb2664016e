"""Fleets that fail, grow and refuse, clients that give up, ask again and ask twice: attempts add up all the same."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import openloop as ol
from openloop.arrivals import Poisson, read_arrivals
from openloop.errors import SpecError
from openloop.records import Stay
from openloop.sim import tables
from openloop.sim.batching import BATCHING
from openloop.sim.fleet import engine_of, read_fleet, simulate_fleet
from openloop.sim.spec import explain_fleet
from openloop.slo import read_slo
from openloop.workload import Demand, Workload, read_source
from openloop.workload.demand import one_piece
from tests.sim.test_fleet import STEP, WORKLOADS, check_whole, demand, fleet, served

CLIENTS: list[dict[str, Any] | None] = [
    None,
    {"timeout": "2s", "retry": "retry:most=3,on=timeout+shed+error,base=50ms"},
    {"patience": "1s"},
    {"hedge": "300ms"},
    {"timeout": "4s", "hedge": "p90", "retry": "2", "patience": "8s"},
]
EVENTS = [
    [],
    ["crash:at=5s,replica=0,restart=3s"],
    ["slow:at=2s,replica=1,factor=8,last=3s,every=7s", "rotate:at=9s"],
    ["deploy:at=3s,every=6s,grace=500ms,restart=2s", "add:at=4s,count=2"],
    ["remove:at=3s,replica=0", "crash:at=6s,replica=1"],
]
SCALES: list[dict[str, Any] | None] = [
    None,
    {"on": "queue", "target": 2, "most": 6, "least": 1, "idle": 2, "every": "2s", "delay": "1s"},
    {"on": "tail", "target": "300ms", "most": 5, "every": "2s", "delay": "3s", "idle": 1},
    {"on": "goodput", "target": "90%", "most": 5, "every": "2s", "delay": "3s", "idle": 1},
]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(list(BATCHING)),
    st.sampled_from(["first", "goodput:late=shed"]),
    st.sampled_from(WORKLOADS),
    st.sampled_from(CLIENTS),
    st.sampled_from(EVENTS),
    st.sampled_from(SCALES),
    st.sampled_from([None, "in-flight:12", "queue:4", "bucket:rate=8,burst=3", "deadline"]),
    st.sampled_from(["round-robin", "least-requests"]),
    st.sampled_from([3_000, 20_000]),
    st.sampled_from([None, "2us"]),
    st.floats(2.0, 40.0),
    st.integers(0, 1000),
)
def test_every_request_ends_once_and_attempts_add_up(
    batching: str, order: str, spec: str, client: Any, events: Any, scale: Any, admission: str | None, routing: str,
    memory: int, swap: str | None, rate: float, seed: int,
) -> None:  # fmt: skip
    found = fleet(batching=batching, order=order, client=client, events=events, scale=scale, admission=admission,
                  routing=routing, memory_tokens=memory, swap=swap, replicas=2, max_sequences=16)  # fmt: skip
    asked = demand(spec, rate, seed)
    outcome = served(found, asked, seed=seed)
    check_whole(outcome, asked)
    rows = outcome.rows
    if asked.after is None:
        assert len(np.unique(rows.request)) == len(asked)
    ok = rows[rows.status == tables.OK]
    assert len(np.unique(ok.request)) == len(ok)  # nobody is answered twice
    tries = np.bincount(rows.request)
    assert np.array_equal(outcome.engine.requests.tries[: len(tries)], tries)
    assert not outcome.engine.requests.live.any()
    assert np.all((rows.kind == tables.FIRST_TRY) == (rows.attempt == 0))
    if client is None or "retry" not in client:
        assert not np.any(rows.kind == tables.RETRY)
    assert np.all(rows.sent >= rows.due - 1e-9)
    assert np.all(rows.ended >= rows.sent)
    if client is not None and "timeout" in client:
        limit = float(client["timeout"].rstrip("s"))
        assert np.all(rows.ended - rows.sent <= limit + 1e-6)


@pytest.mark.parametrize("spec", WORKLOADS)
def test_the_same_seed_gives_the_same_run(spec: str) -> None:
    found = fleet(client=CLIENTS[4], events=EVENTS[3], scale=SCALES[1], replicas=2, routing="least-requests")
    first, again = (served(found, demand(spec, 20.0, 3), seed=3) for _ in range(2))
    assert np.array_equal(first.rows.ended, again.rows.ended, equal_nan=True)
    assert np.array_equal(first.times, again.times)


def test_what_leaves_in_small_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often finished attempts leave the tables."""
    for batching in BATCHING:
        found = fleet(batching=batching, client=CLIENTS[4], events=EVENTS[1], replicas=2, memory_tokens=3_000)
        whole = served(found, demand(rate=20.0))
        monkeypatch.setattr("openloop.sim.engine.BLOCK_ROWS", 16)
        small = served(found, demand(rate=20.0))
        monkeypatch.undo()
        assert np.array_equal(whole.rows.ended, small.rows.ended)
        assert np.array_equal(whole.times, small.times)


def test_many_servers_are_the_queue_of_the_textbooks() -> None:
    """M/M/c: c places in a batch whose steps take the same time however many are in it, answers of exponential length.
    Erlang: mean wait = C / (c / service - rate), C the chance to wait."""
    rate, each, servers = 24.0, 0.1, 4
    load = rate * each
    terms = [load**n / np.prod(np.arange(1, n + 1, dtype=float)) for n in range(servers)]
    last = load**servers / np.prod(np.arange(1, servers + 1, dtype=float)) * servers / (servers - load)
    expected = last / (sum(terms) + last) / (servers / each - rate)
    found = read_fleet({"step": {"floor": "0.05ms", "token": "0s"}, "max_sequences": servers})
    waits = []
    for seed in range(20):
        asked = Workload.of(read_source("synthetic:prompt=1,output=exponential(2000)")).demand(
            Poisson(rate), 300.0, seed
        )
        outcome = served(found, asked)
        waits.append(np.mean(outcome.rows.started - outcome.rows.due))
    error = np.std(waits, ddof=1) / np.sqrt(len(waits))
    assert error < 0.05 * expected
    assert abs(np.mean(waits) - expected) < 4 * error + 0.01 * expected


def test_with_room_for_all_nobody_waits() -> None:
    """M/G/inf as a special case: more replicas never make anybody wait longer under round-robin."""
    waits = []
    for replicas in (1, 2, 4, 8):
        outcome = served(fleet(replicas=replicas, max_sequences=1), demand(rate=3.0))
        waits.append(float(np.mean(outcome.rows.started - outcome.rows.due)))
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < 0.2 * waits[0]


def run(rate: float, seconds: float = 120.0, **more: Any) -> ol.Run:
    chosen = read_fleet({"model": "8b", "gpu": "h100", **more})
    asked = Workload.of(read_source("synthetic:prompt=lognormal(median=900,sigma=0.7),output=150"))
    return simulate_fleet(chosen, asked, Poisson(rate), seconds, 1, read_slo("ttft<=1s"))


def test_what_was_asked_is_in_the_manifest() -> None:
    found = run(2.0, 60.0)
    assert found.manifest.lengths is not None
    prompts = [row["prompt_tokens"] for row in found.head(1000)]
    assert found.manifest.lengths.startswith(f"prompt mean {np.mean(prompts):.0f} (p10 ")
    assert found.manifest.lengths.endswith("), output 150 tokens")


def test_a_crash_is_in_the_manifest_and_in_the_rows() -> None:
    found = run(8.0, replicas=2, events=["crash:at=40s,replica=1,restart=20s"], client={"retry": "2"})
    found.validate()
    kinds = [(event.kind, event.at_ns) for event in found.manifest.events]
    assert kinds == [("crash", 40_000_000_000), ("start", 60_000_000_000)]
    rows = found.head(10_000)
    lost = [row for row in rows if row["status"] == "error"]
    assert lost
    assert all(row["replica"] == "1" and row["ended_ns"] == 40_000_000_000 for row in lost)
    assert all(row["event_ns"][-1] <= row["ended_ns"] for row in lost if row["event_ns"])
    again = {row["request_id"] for row in rows if row["kind"] == "retry" and row["status"] == "ok"}
    assert {row["request_id"] for row in lost} == again
    away = [row for row in rows if 40e9 < row["sent_ns"] < 60e9]
    assert {row["replica"] for row in away} == {"0"}


@pytest.mark.parametrize("more", [{"events": ["crash:at=40s,replica=1"]}, {"client": {"timeout": "1s"}}])
def test_a_stream_that_breaks_hands_out_nothing_that_was_still_to_be_delayed(more: dict[str, Any]) -> None:
    found = run(8.0, 60.0, replicas=2, delay="40ms", **more)
    found.validate()
    broken = [row for row in found.head(10_000) if row["status"] in ("error", "timeout") and row["event_ns"]]
    assert broken
    for row in broken:
        assert row["ended_ns"] - 40e6 < row["event_ns"][-1] <= row["ended_ns"]
        assert row["output_tokens"] == len(row["event_ns"])


@pytest.mark.parametrize("more", [{}, {"drafts": {"tokens": 3, "acceptance": 0.6}}, {"overhead": "exponential(20ms)"}])
def test_clients_wait_for_what_is_handed_out_slowly(more: dict[str, Any]) -> None:
    """A next turn is due when the last token is there, however steps stall; and nobody has one after a time-out."""
    how = {"delay": "15ms", "events": ["slow:at=5s,replica=0,factor=20,last=2s"], **more}
    spec = read_fleet({"step": STEP, "max_sequences": 4, "memory_tokens": 50_000, **how})
    talk = Workload.of(read_source("sessions:turns=4,think=1s,output=uniform(20,60)"))
    found = simulate_fleet(spec, talk, read_arrivals("poisson:rate=1"), 20.0)
    rows = {(row["session_id"], row["turn"]): row for row in found.head(10_000)}
    later = [(row, rows[number, turn - 1]) for (number, turn), row in rows.items() if turn]
    assert len(later) > 20
    for row, before in later:
        assert row["scheduled_ns"] >= before["event_ns"][-1]
        assert row["scheduled_ns"] - before["ended_ns"] == pytest.approx(1e9, abs=15e6 if "drafts" in more else 10)
        gaps = np.diff(before["event_ns"])
        assert gaps.min() >= 15e6
        assert before["event_tokens"] is None or set(before["event_tokens"]) == {1}
    hasty = simulate_fleet(
        {"step": STEP, "client": {"timeout": "1s"}, **how}, "synthetic:prompt=100,output=80", "poisson:rate=1", 20.0
    )
    assert {row["status"] for row in hasty.head(10_000)} == {"timeout"}  # though all was made in half of it


def test_a_client_has_an_answer_when_it_has_reached_it() -> None:
    """Steps of 10 ms and 40 ms on the way: who waits for 130 ms gets nine tokens, and not thirteen."""
    client = {"timeout": "130ms", "retry": "retry:most=1,on=timeout,base=10ms,jitter=0%"}
    found = steps_of(1.0, 60.0, overhead="40ms", client=client)
    found.validate()
    assert not found.manifest.notes
    rows = found.head(1000)
    assert {row["requested_tokens"] <= 9 for row in rows if row["status"] == "ok"} == {True}
    late = [row for row in rows if row["status"] == "timeout"]
    assert {row["requested_tokens"] > 9 for row in late} == {True}
    assert {row["ended_ns"] - row["sent_ns"] for row in late} == {130_000_000}
    assert all(row["event_ns"][0] - row["sent_ns"] >= 50e6 for row in rows)
    assert {row["output_tokens"] for row in late} <= {8, 9}


@pytest.mark.parametrize("client", [{"patience": "45ms"}, {"hedge": "45ms"}, {"hedge": "55ms"}])
def test_patience_and_copies_go_by_when_the_first_token_is_there(client: dict[str, str]) -> None:
    """One that nobody waits before is made after 10 ms and there after 50 ms."""
    rows = steps_of(0.2, 200.0, replicas=2, overhead="40ms", client=client).head(1000)
    if "patience" in client:
        assert {(row["status"], row["ended_ns"] - row["sent_ns"]) for row in rows} == {("cancelled", 45_000_000)}
    else:
        assert (len(rows) == 2 * len({row["request_id"] for row in rows})) == (client["hedge"] == "45ms")


@pytest.mark.parametrize("client", [None, {"timeout": "10s"}])
def test_the_next_turn_waits_for_all_of_the_answer(client: dict[str, str] | None) -> None:
    how = {"prefix_cache": False, "overhead": "exponential(500ms)", "client": client}
    chosen = read_fleet({"step": {"floor": "10ms", "token": "0s"}, **how})
    talk = Workload.of(read_source("sessions:turns=4,think=1s,prompt=10,output=10"))
    found = simulate_fleet(chosen, talk, Poisson(2.0), 50.0, 1)
    assert not found.manifest.notes
    rows = {(row["session_id"], row["turn"]): row for row in found.head(1000)}
    gaps = [row["scheduled_ns"] - rows[s, n - 1]["event_ns"][-1] for (s, n), row in rows.items() if n > 0]
    assert len(gaps) > 100
    assert gaps == pytest.approx([1e9] * len(gaps), abs=2)


def test_a_copy_helps_against_a_straggler_and_the_other_one_is_cancelled() -> None:
    slow: dict[str, Any] = {"replicas": 4, "events": ["slow:at=0s,replica=2,factor=20"]}
    alone, copied = run(4.0, **slow), run(4.0, client={"hedge": "200ms"}, **slow)
    first, second = (ol.score(each, "ttft<=400ms") for each in (alone, copied))
    assert first.attainment < 0.9
    assert second.attainment > 0.99
    assert second.statuses["ok"] == first.statuses["ok"]
    rows = copied.head(10_000)
    copies = [row for row in rows if row["kind"] == "hedge"]
    assert len(copies) > 20
    assert sum(row["status"] == "cancelled" for row in rows) == len(copies)


def test_who_waited_behind_a_client_that_left_is_served_from_the_next_step_on() -> None:
    """The second has no room beside the first and leaves after 5 s; the third had room all the time."""
    found = read_fleet({"step": {"floor": "10ms", "token": "0s"}, "memory_tokens": 10_000, "max_tokens": 8192,
                        "client": {"patience": "5s"}})  # fmt: skip
    asked = Demand(np.array([0.0, 0.5, 3.0]), one_piece(np.array([4000, 7000, 100])), np.array([3000, 10, 10]))
    rows = served(found, asked).rows
    assert rows.status.tolist() == [tables.OK, tables.CANCELLED, tables.OK]
    assert rows.started[2] == pytest.approx(5.5, abs=0.011)


def test_a_storm_of_retries_emerges_and_outlives_its_cause() -> None:
    """A pause of ten seconds, and clients who ask again after two: load that would be served for ever is not, minutes
    later, because most of the work is for clients who have left. Without retries the fleet recovers."""
    pause = {"events": ["slow:at=20s,replica=0,factor=50,last=10s"], "max_sequences": 64}
    retries = {"client": {"timeout": "4s", "retry": "retry:most=5,on=timeout,base=100ms"}}
    calm = ol.score(run(14.0, 240.0, **retries, max_sequences=64), "ttft<=2s", window_s=60.0)
    patient = ol.score(run(14.0, 240.0, **pause), "ttft<=2s", window_s=60.0)
    stormy = run(14.0, 240.0, **pause, **retries)
    storm = ol.score(stormy, "ttft<=2s", window_s=60.0)
    assert calm.attainment > 0.98
    last = [each.windows[-1].summary.attainment for each in (patient, storm)]
    assert last[0] > 0.95
    assert last[1] < 0.5
    assert stormy.num_rows > 2 * storm.requests


def test_a_fleet_grows_with_what_waits_and_shrinks_again_and_is_paid_for_that_long() -> None:
    scale = {"on": "queue", "target": 3, "idle": 8, "most": 6, "every": "5s", "delay": "10s"}
    chosen = read_fleet({"model": "8b", "gpu": "h100", "scale": scale, "price_per_hour": 3.0, "max_sequences": 64,
                         "routing": "least-requests"})  # fmt: skip
    asked = Workload.of(read_source("synthetic:prompt=lognormal(median=900,sigma=0.7),output=150"))
    found = simulate_fleet(chosen, asked, read_arrivals("piecewise:30@0s,4@60s"), 300.0, 1)
    kinds = [event.kind for event in found.manifest.events]
    assert kinds.count("scale-out") >= 2
    assert kinds.count("scale-in") >= 1
    assert kinds.count("start") == kinds.count("scale-out")
    assert found.manifest.prices is not None
    assert 3.0 < found.manifest.prices.per_hour < 18.0
    there = found.manifest.prices.per_hour / 3.0
    assert sum(each.inside_ns((0, 300 * 10**9)) for each in found.manifest.stays) == pytest.approx(there * 300e9)
    assert not found.manifest.notes


def test_a_replica_is_busy_or_idle_only_while_it_is_there() -> None:
    """Both are busy all the time: one that comes at half time, and one that then has its queue to serve."""
    events = ["add:at=50s", "remove:at=50s,replica=0"]
    found = steps_of(60.0, 100.0, replicas=1, max_sequences=4, events=events)
    assert found.manifest.stays == (Stay("0", 0, 100 * 10**9), Stay("1", 50 * 10**9, 100 * 10**9))
    assert ol.score(found, "ttft<=1s").utilisation == pytest.approx(1.0, abs=0.01)


def test_refusing_early_keeps_those_who_are_let_in() -> None:
    """Overload: with no limit nobody is in time; each of the ways to refuse serves many."""
    nobody = ol.score(run(40.0, 60.0), "ttft<=1s").goodput_rps
    for admission in ("in-flight:60", "queue:4", "bucket:rate=12,burst=4", "deadline"):
        found = run(40.0, 60.0, admission=admission)
        found.validate()
        score = ol.score(found, "ttft<=1s")
        assert score.statuses["shed"] > 100
        assert score.goodput_rps > 3 * nobody, admission


def test_prefill_and_decode_apart() -> None:
    """The first token comes from the pool that prefills, the others from the one that decodes, after the memory of the
    prompt has been handed over; decoding is not disturbed by prompts."""
    apart: dict[str, Any] = {"groups": [{"replicas": 2, "role": "prefill"}, {"replicas": 2, "role": "decode"}]}
    found = run(10.0, **apart)
    found.validate()
    together = run(10.0, replicas=4, batching="prefill-first")
    first, second = (ol.score(each, "tbt<=1s") for each in (found, together))
    assert first.tbt_s is not None
    assert second.tbt_s is not None
    assert first.tbt_s.p99 < 0.5 * second.tbt_s.p99
    rows = found.head(1000)
    assert {row["replica"] for row in rows} == {"2", "3"}
    assert any("those that prefill as idle" in note for note in found.manifest.notes)
    assert not together.manifest.notes
    slow = run(10.0, **apart, transfer={"bandwidth": 1e9, "latency": "5ms"})
    row, other = rows[0], next(r for r in slow.head(10_000) if r["request_id"] == rows[0]["request_id"])
    bytes_of = 131072 * row["prompt_tokens"]
    gap = other["event_ns"][1] - other["event_ns"][0] - (row["event_ns"][1] - row["event_ns"][0])
    assert gap * 1e-9 == pytest.approx(bytes_of / 1e9 + 0.005 - bytes_of / 50e9 - 0.002, abs=0.02)
    weightless = read_fleet({"model": "8b", "gpu": "h100", **apart, "transfer": {"bytes_per_token": 0.0}})
    assert "  handing over a prompt of 2,048 tokens takes 2.0 ms" in explain_fleet(weightless)


def test_a_salt_hides_what_was_known() -> None:
    spec = "synthetic:prompt=50,output=20,prefixes=1,prefix=2000,reuse=100%"
    asked = Workload.of(read_source(spec))
    chosen = read_fleet({"model": "8b", "gpu": "h100", "events": ["rotate:at=50s"]})
    found = simulate_fleet(chosen, asked, Poisson(2.0), 100.0, 1)
    assert [(each.kind, each.detail) for each in found.manifest.events] == [("salt-rotation", "all replicas")]
    rows = found.head(1000)
    rows.sort(key=lambda row: row["scheduled_ns"])
    seconds = [row["scheduled_ns"] / 1e9 for row in rows if row["cached_tokens"] == 0]
    first = rows[0]["scheduled_ns"] / 1e9
    assert any(50 <= at < 53 for at in seconds)
    assert all(first <= at < first + 0.5 or 50 <= at < 53 for at in seconds)


def test_unlike_replicas_share_the_load_by_what_they_can_do() -> None:
    groups = [{"replicas": 1}, {"replicas": 1, "gpu": "a100"}]
    rows = run(8.0, routing="least-requests", groups=groups).head(10_000)
    assert sum(row["replica"] == "0" for row in rows) > 1.4 * sum(row["replica"] == "1" for row in rows)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"events": ["crash:at=10s,replica=7"]}, "there is no replica 7; they are 0 to 0"),
        ({"events": ["crash:at=100s"]}, "after the end of the run"),
        ({"events": ["boom:at=1s"]}, "unknown event 'boom'"),
        ({"events": ["slow:at=1s,every=5s,last=9s"]}, "must last less than that"),
        ({"scale": {"on": "queue", "target": 1, "most": 0}}, "they must rise"),
        ({"scale": {"on": "queue", "target": 1, "most": 4}, "replicas": 9}, "they must rise"),
        ({"client": {"timeout": "0s"}}, "timeout is 0s"),
        ({"client": {"retry": "often"}}, "unknown retry policy"),
        ({"admission": "in-flight:0"}, "most is 0"),
        ({"admission": "some"}, "unknown admission 'some'"),
        ({"quality": "quality:fail=200%"}, "is not a share"),
        ({"quantization": {"speed": 0}}, "speed is 0"),
        ({"quantization": {"memory": 0}}, "at least one block"),
        ({"quantization": {"memory": float("nan")}}, "quantization: memory is nan"),
        ({"transfer": {"bytes_per_token": -1.0}}, "bytes_per_token is -1"),
        ({"scale": {"on": "queue", "target": 1, "most": 10**9}}, "which is 10,000 or less"),
        ({"scale": {"on": "queue", "target": 1, "most": 4, "every": "1ns"}}, "every is 1ns"),
        ({"routing": "random-ish"}, "unknown routing policy"),
        ({"groups": [{"role": "prefill"}]}, "need others of the role decode"),
        ({"groups": [{"polcy": "chunked"}]}, "unknown key 'polcy'"),
        ({"groups": [{"replicas": 0}]}, "replicas is 0"),
        ({"transfer": {"bandwidth": 0}, "groups": [{"role": "prefill"}, {"role": "decode"}]}, "bandwidth is 0"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        served(read_fleet({"step": STEP, "memory_tokens": 20_000, **change}), demand())


def test_quantization_is_faster_and_fails_more_often_in_the_tail() -> None:
    how: dict[str, Any] = {"quality": "quality:fail=1%,tail=10%,rare=20%,numeric=0%"}
    plain, small = run(6.0, 400.0, **how), run(6.0, 400.0, **how, quantization={"speed": 1.6, "tail": 3.0})
    first, second = (ol.score(each, "ttft<=9s, quality") for each in (plain, small))
    assert first.tpot_s is not None
    assert second.tpot_s is not None
    assert second.tpot_s.p50 < first.tpot_s.p50 / 1.5
    assert 1 - first.attainment == pytest.approx(0.8 * 0.01 + 0.2 * 0.10, abs=0.01)
    assert 1 - second.attainment == pytest.approx(0.8 * 0.01 + 0.2 * 0.30, abs=0.015)


def kinds_by_request(found: ol.Run) -> dict[int, list[str]]:
    kinds: dict[int, list[str]] = {}
    for row in sorted(found.head(100_000), key=lambda row: (row["request_id"], row["attempt"])):
        kinds.setdefault(row["request_id"], []).append(row["kind"])
    return kinds


def steps_of(rate: float, seconds: float, **more: Any) -> ol.Run:
    """Steps of 10 ms."""
    chosen = read_fleet({"step": {"floor": "10ms", "token": "0s"}, **more})
    asked = Workload.of(read_source("synthetic:prompt=1,output=exponential(20)"))
    return simulate_fleet(chosen, asked, Poisson(rate), seconds, 1)


def test_who_has_no_patience_left_does_not_ask_again() -> None:
    client = {"patience": "2s", "retry": "retry:most=10,base=1.5s,factor=1,jitter=0%,on=shed"}
    rows = steps_of(5.0, 60.0, client=client, admission="bucket:rate=0.5,burst=1").head(10_000)
    assert max(row["sent_ns"] - row["scheduled_ns"] for row in rows) == 1_500_000_000


def test_a_copy_is_no_retry() -> None:
    """Two retries are two, with a copy of the first attempt or without."""
    client = {"timeout": "8ms", "retry": "retry:most=2,on=timeout,base=1ms"}
    alone = kinds_by_request(steps_of(1.0, 20.0, replicas=2, client=client))
    copied = kinds_by_request(steps_of(1.0, 20.0, replicas=2, client=client | {"hedge": "5ms"}))
    assert set(map(tuple, alone.values())) == {("first", "retry", "retry")}
    assert set(map(tuple, copied.values())) == {("first", "hedge", "retry", "retry")}


def test_a_retry_is_not_copied_by_the_clock_of_the_first_attempt() -> None:
    client = {"retry": "retry:most=3,base=10ms,jitter=0%,on=shed", "hedge": "500ms"}
    how = {"step": {"floor": "100ms", "token": "1us"}, "replicas": 2, "max_sequences": 1, "admission": "in-flight:2"}
    found = simulate_fleet({**how, "client": client}, "synthetic:prompt=30,output=10", "poisson:rate=6", 30.0)
    kinds = {tuple(sorted(set(each))) for each in kinds_by_request(found).values()}
    assert kinds == {("first",), ("first", "hedge"), ("first", "retry")}


def test_time_without_a_queue_says_nothing_about_how_fast_one_moves() -> None:
    """Ten seconds of crowding, a crash that empties the queue, and a minute in which nobody is served."""
    crowded = read_arrivals("piecewise:20@0s,0.05@10s")
    asked = Workload.of(read_source("synthetic:prompt=30,output=100")).demand(crowded, 600.0, 0)
    chosen = fleet(step={"floor": "10ms", "token": "1us"}, max_sequences=4, events=["crash:at=9s,restart=60s"])
    engine = engine_of(chosen, asked, None, 600.0)
    assert list(engine.run())
    assert 0 < engine.replicas.gap[0] < 0.5


def test_a_percentile_to_copy_after_is_that_of_first_ones() -> None:
    """One of eight replicas is so slow that copies win. After p80 a fifth is copied, and not that and the eighth."""
    found = steps_of(40.0, 200.0, replicas=8, client={"hedge": "p80"}, events=["slow:at=0s,replica=2,factor=20"])
    kinds = [row["kind"] for row in found.head(100_000)]
    assert 0.14 < kinds.count("hedge") / kinds.count("first") < 0.23


def test_a_replica_that_was_sent_away_comes_back_cold_and_only_if_it_is_called() -> None:
    """Neither its crash nor a deployment brings back what a scaler had stopped; what it orders knows nothing."""
    scale = {"on": "queue", "target": 0.5, "idle": 1, "most": 2, "every": "5s", "delay": "5s"}
    chosen = read_fleet({"step": {"floor": "10ms", "token": "100us"}, "max_sequences": 4, "scale": scale,
                         "memory_tokens": 100_000, "price_per_hour": 1.0, "replicas": 2,
                         "events": ["deploy:at=60s,every=10s,grace=1s,restart=1s"]})  # fmt: skip
    asked = Workload.of(read_source("synthetic:prompt=50,output=20,prefixes=1,prefix=2000,reuse=100%"))
    found = simulate_fleet(chosen, asked, read_arrivals("piecewise:30@0s,0.2@40s,30@100s,0.2@140s"), 200.0, 1)
    events = [(event.kind, event.at_ns / 1e9) for event in found.manifest.events if event.detail == "replica 1"]
    assert [kind for kind, _ in events] == ["scale-in", "scale-out", "start", "scale-in"]
    started = events[2][1]
    later = sorted((row["sent_ns"], row["cached_tokens"]) for row in found.head(100_000) if row["replica"] == "1")
    assert next(known for sent, known in later if sent >= started * 1e9) == 0
    away = events[1][1] - events[0][1] + 200 - events[3][1]  # replica 0 was deployed anew, and reserved meanwhile
    assert found.manifest.prices is not None
    assert found.manifest.prices.per_hour == pytest.approx(2 - away / 200, abs=0.004)


def test_what_crashes_or_is_deployed_is_paid_for_all_the_time() -> None:
    """Also where a scaler orders it again while it is down."""
    scale = {"on": "queue", "target": 0.5, "idle": 0, "most": 2, "every": "5s", "delay": "5s"}
    down = {"events": ["crash:at=20s,replica=0,restart=60s"]}
    deploy = {"events": ["deploy:at=20s,every=10s,grace=1s,restart=5s"]}
    for case in (down, deploy, {"events": ["crash:at=20s,replica=0,restart=10m"]}, down | {"scale": scale}):
        found = steps_of(30.0, 100.0, replicas=2, max_sequences=2, price_per_hour=1.0, **case)
        assert ("scale-out" in [event.kind for event in found.manifest.events]) == ("scale" in case)
        assert found.manifest.prices is not None
        assert found.manifest.prices.per_hour == pytest.approx(2.0)


def test_what_is_ordered_during_a_deployment_is_another_replica_and_nothing_starts_twice() -> None:
    """Four of which one is down, then five; and where there can be no fifth, the one that is down is back once."""
    for most, ordered in ((5, "replica 4"), (4, "replica 0")):
        scale = {"on": "queue", "target": 0.1, "most": most, "every": "5s", "delay": "40s"}
        events = ["deploy:at=4s,every=100s,grace=0s,restart=30s"]
        found = steps_of(70.0, 60.0, replicas=4, max_sequences=4, scale=scale, events=events)
        told = [(event.kind, event.detail) for event in found.manifest.events]
        assert told[:3] == [("drain", "replica 0"), ("crash", "replica 0"), ("scale-out", ordered)]
        assert told.count(("start", "replica 0")) == 1


def test_one_that_is_removed_while_it_is_down_does_not_come_back() -> None:
    events = ["crash:at=20s,replica=1,restart=20s", "remove:at=30s,replica=1"]
    found = steps_of(4.0, 100.0, replicas=2, events=events)
    assert [event.kind for event in found.manifest.events] == ["crash", "drain"]
    assert found.manifest.stays == (Stay("0", 0, 100 * 10**9), Stay("1", 0, 30 * 10**9))


def test_what_happens_after_the_window_is_not_paid_for() -> None:
    scale = {"on": "queue", "target": 1, "idle": 4, "most": 4, "every": "5s", "delay": "5s"}
    found = steps_of(60.0, 30.0, scale=scale, max_sequences=4, price_per_hour=1.0)
    out = [event.at_ns / 1e9 for event in found.manifest.events if event.kind == "scale-out"]
    back = [event.at_ns / 1e9 for event in found.manifest.events if event.kind == "scale-in"]
    assert len(out) == 3
    assert min(back) > 30
    assert found.manifest.prices is not None
    assert found.manifest.prices.per_hour == pytest.approx(1 + sum(30 - at for at in out) / 30)


def test_who_is_removed_is_not_paid_for_and_does_not_come_back() -> None:
    events = ["remove:at=40s,replica=0", "crash:at=50s,replica=0,restart=1s"]
    found = steps_of(4.0, 100.0, replicas=2, price_per_hour=1.0, events=events)
    assert [event.kind for event in found.manifest.events] == ["drain"]
    assert found.manifest.prices is not None
    assert found.manifest.prices.per_hour == pytest.approx(1.4, abs=0.02)
    assert all(row["replica"] == "1" for row in found.head(10_000) if row["sent_ns"] > 40e9)


def test_what_comes_again_and_again_is_in_the_manifest_as_often() -> None:
    found = steps_of(0.1, 9000.0, events=["slow:at=0s,factor=2,last=1s,every=3s"])
    assert len(found.manifest.events) == 2 * 3000


def test_a_prefix_cache_without_end_is_refused() -> None:
    asked = Workload.of(read_source("synthetic:prefixes=1,prefix=200"))
    with pytest.raises(SpecError, match="give memory_tokens"):
        simulate_fleet(read_fleet({"step": STEP}), asked, Poisson(1.0), 10.0, 1)


def test_a_deploy_spares_who_came_since_and_replaces_who_was_ordered() -> None:
    """A replica that is ordered after its turn is new; one that was there is drained first, also beyond those that the
    fleet began with."""
    scale = {"on": "queue", "target": 1, "idle": 1, "least": 1, "most": 3, "every": "2s", "delay": "1s"}
    common = {"step": {"floor": "20ms", "token": "50us"}, "max_sequences": 4, "replicas": 2, "scale": scale}
    late, early = (
        simulate_fleet(
            {**common, "routing": "least-requests", "events": [f"deploy:at={at}s,every=9s,grace=8s,restart=5s"]},
            "synthetic:prompt=200,output=50", "piecewise:0.5@0s,12@21s,0.1@60s", 90.0,
        )
        for at in (11, 30)
    )  # fmt: skip
    for run in (late, early):
        seen = [(each.kind, each.detail) for each in run.manifest.events]
        crashed = [detail for kind, detail in seen if kind == "crash"]
        assert crashed == [detail for kind, detail in seen if kind == "drain"]
    assert crashed == ["replica 0", "replica 1", "replica 2"]


def test_what_is_to_be_added_is_ordered_by_nobody_before() -> None:
    """While one of all that there may be is drained, and more are wanted."""
    scale = {"on": "queue", "target": 1, "least": 2, "most": 2, "every": "5s", "delay": "5s"}
    events = ["deploy:at=5s,every=100s,grace=20s,restart=5s", "add:at=20s,count=2"]
    found = fleet(replicas=2, max_sequences=1, scale=scale, events=events)
    run = simulate_fleet(found, "synthetic:prompt=600,output=200", "poisson:rate=20", 40.0)
    happened = [(each.at_ns, each.kind, each.detail) for each in run.manifest.events]
    assert [each for each in happened if each[1:] in (("start", "replica 2"), ("start", "replica 3"))] == [
        (20_000_000_000, "start", "replica 2"),
        (20_000_000_000, "start", "replica 3"),
    ]


def test_replicas_are_added_to_those_that_were_ordered() -> None:
    scale = {"on": "queue", "target": 1, "most": 3, "every": "1s", "delay": "1s"}
    found = fleet(max_sequences=2, scale=scale, events=["add:at=15s,count=2"])
    outcome = served(found, demand(rate=30.0))
    assert set(outcome.rows.replica.tolist()) == {0, 1, 2, 3, 4}


def test_whoever_leaves_a_static_batch_is_computed_on() -> None:
    """Also if it left while others were still being read, and nobody else decoded."""
    step = {"floor": "10ms", "token": "1us", "sequence": "1ms"}
    found = read_fleet({"step": step, "batching": "static", "max_tokens": 100, "client": {"timeout": "130ms"}})
    asked = Demand(np.array([0.0, 0.001, 0.109]), one_piece(np.array([100, 100, 300])), np.array([10, 50, 3]))
    outcome = served(found, asked)
    assert outcome.rows.status.tolist() == [tables.OK, tables.TIMEOUT, tables.OK]
    assert np.diff(outcome.times[-3:]).tolist() == [12_000_000, 12_000_000]


def test_a_turn_comes_when_the_last_token_of_the_one_before_was_handed_out() -> None:
    """Also where steps do not all make as many tokens, so that any of them may have put the rest off."""
    drafting = {"step": STEP, "memory_tokens": 20_000, "drafts": {"tokens": 4, "acceptance": 0.5}, "delay": "4ms"}
    chat = "sessions:turns=3,think=0s,prompt=uniform(1,300),output=uniform(20,90)"
    rows = simulate_fleet({**drafting, "batching": "prefill-first"}, chat, "poisson:rate=6", 30.0).head(1 << 20)
    ended = {(row["session_id"], row["turn"]): row["ended_ns"] for row in rows}
    due = {(row["session_id"], row["turn"]): row["scheduled_ns"] for row in rows if row["turn"]}
    assert len(due) > 200
    assert all(abs(at - ended[session, turn - 1]) <= 1 for (session, turn), at in due.items())
