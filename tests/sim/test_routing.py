"""Policies in the loop of the simulator: caches and sessions are seen, views grow old, and tournaments are fair."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openloop.arrivals import Poisson
from openloop.cli import cli
from openloop.compare.tournament import SeedMean, Standing, _ranked, read_policies, tournament
from openloop.errors import SpecError
from openloop.report.compare import show_standings
from openloop.routing import ROUTING, Router, read_routing
from openloop.sim import loop, tables
from openloop.sim.fleet import FleetSpec, engine_of, read_fleet, simulate_fleet
from openloop.slo import read_slo
from openloop.workload import Workload, read_source
from tests.sim.test_clients import CLIENTS, EVENTS
from tests.sim.test_fleet import STEP, WORKLOADS, check_whole, demand, fleet, served

ALL = [name for name in ROUTING if name != "own"]
CHATS = "sessions:turns=4,think=exponential(2s),prompt=uniform(10,100),output=uniform(5,40),system=640,systems=6"
PATIENT = {"timeout": "1000s"}  # so that all tests here share what is compiled


def plain(**more: Any) -> FleetSpec:
    return fleet(**{"client": PATIENT, **more})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(ALL),
    st.sampled_from([*WORKLOADS[1:], CHATS]),
    st.sampled_from([PATIENT, *CLIENTS[1:]]),
    st.sampled_from(EVENTS),
    st.sampled_from([None, "200ms"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_with_any_policy_every_request_ends_once_and_memory_is_whole(
    routing: str, spec: str, client: Any, events: Any, every: str | None, says: bool, seed: int
) -> None:
    found = fleet(routing=routing, client=client, events=events, view_every=every, cache_events=says, replicas=3,
                  max_sequences=16, memory_tokens=6_000)  # fmt: skip
    asked = demand(spec, 12.0, seed)
    outcome = served(found, asked, seed=seed)
    check_whole(outcome, asked)
    ok = outcome.rows[outcome.rows.status == tables.OK]
    assert len(np.unique(ok.request)) == len(ok)
    assert not outcome.engine.requests.live.any()
    assert not outcome.engine.replicas.backlog.any()


def test_a_session_stays_where_it_was_and_finds_what_it_said() -> None:
    stuck = served(plain(replicas=3, routing="sticky:lead=never"), demand(CHATS, 3.0))
    session = stuck.engine.requests.session[stuck.rows.request]
    for each in np.unique(session):
        assert len(np.unique(stuck.rows.replica[session == each])) == 1
    wandering = served(plain(replicas=3, routing="round-robin"), demand(CHATS, 3.0))
    assert stuck.rows.cached.sum() > 1.05 * wandering.rows.cached.sum()


@pytest.mark.parametrize("routing", ["least-tokens", "dynamo"])
def test_memory_is_seen_as_it_is_also_within_a_run_of_steps(routing: str) -> None:
    asked = demand("synthetic:prompt=uniform(1,300),output=uniform(1,400),prefixes=9,prefix=100", 4.0)
    found = plain(replicas=3, routing=routing)
    runs, steps = (served(found, asked, longest).rows.replica for longest in (1 << 40, 1))
    assert np.array_equal(runs, steps)


@pytest.mark.parametrize("says", [True, False])
def test_one_prefix_for_each_replica_is_found_nearly_always(says: bool) -> None:
    """Three prefixes and three replicas whose memory holds little more than one."""
    spec = "synthetic:prompt=20,output=4,prefixes=3,prefix=1600"
    asked = demand(spec, 3.0)
    shares = {}
    for routing in ("round-robin", "prefix-aware", "kv-aware"):
        outcome = served(plain(replicas=3, routing=routing, memory_tokens=2_600, cache_events=says), asked)
        shares[routing] = outcome.rows.cached.sum() / outcome.rows.prompt.sum()
    assert shares["round-robin"] < 0.6
    assert shares["prefix-aware"] > 0.9
    assert shares["kv-aware"] > 0.75


def test_what_a_policy_is_told_of_caches_is_what_they_have() -> None:
    """With one request at a time, the tokens seen where it went are those that are found there."""
    asked = demand(CHATS, 0.3, 5)
    engine = engine_of(plain(replicas=2, routing="kv-aware"), asked)
    while engine.advance(np.inf) == loop.FULL:
        engine.grow()
    alone = engine.ended[: engine.world[0].ended]
    alone = alone[alone.started == alone.sent]
    assert len(alone) > 20
    assert np.array_equal(alone.known, alone.cached)
    assert alone.cached.any()


def test_a_crash_is_forgotten_by_the_index() -> None:
    asked = demand(CHATS, 3.0)
    engine = engine_of(plain(replicas=2, routing="prefix-aware", events=["crash:at=1000s"]), asked, None, 2000.0)
    for _ in engine.run_to(999.0):
        pass
    assert engine.held is not None
    assert engine.held[0, 0] > 0
    for _ in engine.run_to(1001.0):
        pass
    assert engine.held[:, 0].sum() == 0


def test_views_are_as_old_as_the_fleet_says() -> None:
    """Idle replicas, seen every 10 s: the herd goes to one until the next look, with fresh views it alternates."""
    spec, burst = "synthetic:prompt=10,output=2000,prefixes=3,prefix=16", Poisson(5.0)
    asked = Workload.of(read_source(spec)).demand(burst, 30.0, 1)
    fresh = served(plain(replicas=3, routing="least-requests", memory_tokens=500_000), asked)
    assert np.bincount(fresh.rows.replica).min() >= len(asked) // 3 - 1
    stale = served(plain(replicas=3, routing="least-requests", view_every="10s", memory_tokens=500_000), asked)
    for start in (0.0, 10.0, 20.0):
        now = (stale.rows.sent >= start) & (stale.rows.sent < start + 10)
        assert len(np.unique(stale.rows.replica[now])) == 1
    own_counts = served(plain(replicas=3, routing="dynamo", view_every="10s", memory_tokens=500_000), asked)
    assert np.bincount(own_counts.rows.replica).min() > len(asked) // 5


def test_the_age_of_a_view_counts_from_the_last_look() -> None:
    engine = engine_of(plain(replicas=2, routing="round-robin", view_every="3s"), demand(CHATS, 5.0))
    for until in (5.0, 13.5):
        for _ in engine.run_to(until):
            pass
        last = engine.attempts.sent.max() if engine.attempts.sent.any() else 0.0
        last = max(last, float(engine.ended[: engine.world[0].ended].sent.max(initial=0.0)))
        assert engine.views is not None
        assert np.allclose(engine.views.age, last % 3.0)


OWN = """
import numba
from openloop.routing.policy import VIEW, least as busy_least

def least(request, replicas, now):
    open_ones = [r for r in range(len(replicas)) if replicas[r].open]
    return min(open_ones, key=lambda r: replicas[r].requests, default=None)

@numba.njit
def fast(request, replicas, now):
    best = -1
    for place in range(len(replicas)):
        if replicas[place].open and (best < 0 or replicas[place].requests < replicas[best].requests):
            best = place
    return best

@numba.njit(numba.int64(numba.types.Array(numba.from_dtype(VIEW), 1, "C")))
def inner(replicas):
    return busy_least(replicas)

@numba.njit
def helped(request, replicas, now):
    return inner(replicas)

def nobody(request, replicas, now):
    return None if request.prompt > 400 else 0

def broken(request, replicas, now):
    return replicas.nonsense
"""


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    expected = served(plain(replicas=3, routing="least-requests"), demand(WORKLOADS[1], 20.0))
    for name in ("least", "fast", "helped"):
        found = served(plain(replicas=3, routing=f"own:{tmp_path}/mine.py:{name}"), demand(WORKLOADS[1], 20.0))
        assert np.array_equal(found.rows.replica, expected.rows.replica)
    shed = served(plain(replicas=3, routing=f"own:{tmp_path}/mine.py:nobody"), demand(WORKLOADS[1], 20.0))
    assert np.array_equal(shed.rows.status == tables.SHED, shed.rows.prompt > 400)
    with pytest.raises(SpecError, match="the routing policy failed: AttributeError.*nonsense"):
        served(plain(replicas=3, routing=f"own:{tmp_path}/mine.py:broken"), demand(WORKLOADS[1], 20.0))
    slow = plain(replicas=3, routing=f"own:{tmp_path}/mine.py:least")
    run = simulate_fleet(slow, Workload.of(read_source(WORKLOADS[1])), Poisson(5.0), 5.0)
    assert "plain Python" in run.manifest.notes[0]
    for name in ("least", "helped"):
        router = Router(f"own:{tmp_path}/mine.py:{name}", 2)
        assert [router.route(0.0, 10).place for _ in range(3)] == [0, 1, 0]  # type: ignore[union-attr]


def test_a_policy_of_ones_own_may_call_ours_when_it_is_compiled(tmp_path: Path) -> None:
    """In a process in which nothing else has been compiled."""
    (tmp_path / "mine.py").write_text(OWN)
    code = f"""
        from openloop.routing.policies import read_routing
        from openloop.routing.router import Router
        router = Router("own:{tmp_path}/mine.py:helped", 2)
        print([router.route(0.0, 10).place for _ in range(3)])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[0, 1, 0]\n", "")


def test_a_tournament_ranks_by_goodput_on_the_same_requests() -> None:
    found = read_fleet({"step": STEP, "memory_tokens": 8_000, "replicas": 4, "price_per_hour": 2.0, "client": PATIENT})
    chats = Workload.of(
        read_source("sessions:turns=6,think=exponential(2s),prompt=50,output=20,system=1600,systems=12")
    )
    names = ["round-robin", "prefix-aware", "sticky:lead=never"]
    ranked = tournament(found, names, chats, Poisson(4.0), 40.0, read_slo("ttft<=100ms"), seeds=range(3), processes=1)
    assert {each.policy for each in ranked} == set(names)
    assert [each.rank for each in ranked] == [1, 2, 3]
    assert ranked[0].policy == "prefix-aware"
    assert not any(each.tied for each in ranked[1:])
    means = [each.goodput_rps.mean for each in ranked]
    assert means == sorted(means, reverse=True)
    assert ranked[0].behind_rps == SeedMean(0.0, 0.0, 0.0)
    for each in ranked:
        assert each.cost_per_accepted
        assert each.cost_per_accepted.mean == pytest.approx(8.0 / 3600 / each.goodput_rps.mean, rel=0.05)
        assert each.goodput_rps.low <= each.goodput_rps.mean <= each.goodput_rps.high


def test_seeds_that_ask_the_same_say_nothing_of_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace brings its own arrivals and lengths; with arrivals of its own it does not."""
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 20, "hash_ids": []}}\n'
    (tmp_path / "t.jsonl").write_text("".join(line.format(60 * n, 200 + 3000 * (n % 2)) for n in range(200)))
    trace = Workload.of(read_source(f"trace:{tmp_path}/t.jsonl"))
    two = read_fleet({"step": STEP, "memory_tokens": 80_000, "replicas": 2, "client": PATIENT})

    def ranked(arrivals: Poisson | None) -> list[Standing]:
        names = ["round-robin", "least-requests"]
        return tournament(two, names, trace, arrivals, 12.0, read_slo("ttft<=100ms"), seeds=range(2), processes=1)

    same = ranked(None)
    assert same[1].behind_rps.mean < 0
    assert same[1].tied is None
    assert np.isnan([same[0].goodput_rps.low, same[0].goodput_rps.high]).all()
    assert not np.isnan(ranked(Poisson(16.0))[0].goodput_rps.low)
    show_standings(same, 2, "ttft<=100ms")
    told = capsys.readouterr().out
    assert "all seeds asked the same" in told
    assert "(tied)" not in told
    assert "beyond chance" not in told


def test_an_interval_over_seeds_is_students() -> None:
    """Of 1, 2, 3: 2 and 4.303 * 1 / sqrt(3) to each side."""
    found = SeedMean.of(np.array([1.0, 2.0, 3.0]))
    assert found
    assert found.mean == 2.0
    assert found.high - 2.0 == pytest.approx(4.303 / np.sqrt(3))


def test_policies_are_listed_with_their_parameters() -> None:
    assert read_policies("all") == ALL
    text = "round-robin, prefix-aware:lead=4,first=64,sticky"
    assert read_policies(text) == ["round-robin", str(read_routing("prefix-aware:lead=4,first=64")), "sticky"]
    for wrong, told in (("round-robin,round-robin", "twice"), ("robin", "unknown routing policy")):
        with pytest.raises(SpecError, match=told):
            read_policies(wrong)


def test_the_commands(tmp_path: Path) -> None:
    spec = {"step": STEP, "replicas": 2, "client": PATIENT, "memory_tokens": 20_000}
    (tmp_path / "fleet.yaml").write_text(json.dumps(spec))
    base = ["sim", str(tmp_path / "fleet.yaml"), "--workload", CHATS, "--rate", "5", "--for", "10s", "--policies",
            "round-robin,sticky"]  # fmt: skip
    asked = [*base, "--seeds", "2", "--slo", "ttft<=1s"]
    refused = CliRunner().invoke(cli, [*base[:-2], "--seeds", "2"])
    assert (refused.exit_code, "--seeds is of --policies" in refused.output) == (2, True)
    table = CliRunner().invoke(cli, asked)
    assert table.exit_code == 0, table.output
    assert "2 routing policies on the same requests, 2 seeds each" in table.output
    told = json.loads(CliRunner().invoke(cli, [*asked, "--json"]).stdout)
    assert [each["rank"] for each in told] == [1, 2]
    assert CliRunner().invoke(cli, base).exit_code == 2
    with (tmp_path / "log").open("wb") as log:
        router = Router("least-requests", 2, log=log)
        for _ in range(5):
            router.route(0.0, 10)
    done = CliRunner().invoke(cli, ["decisions", str(tmp_path / "log")])
    assert (done.exit_code, done.output) == (0, "least-requests: 5 of 5 decisions are the same\n")
    lines = (tmp_path / "log").read_text().replace('"place":0', '"place":1')
    (tmp_path / "log").write_text(lines)
    assert CliRunner().invoke(cli, ["decisions", str(tmp_path / "log")]).exit_code == 1
    other = CliRunner().invoke(cli, ["decisions", str(tmp_path / "log"), "--policy", "random", "--json"])
    assert json.loads(other.stdout)["decisions"] == 5


def test_rounding_does_not_rank() -> None:
    """The same seeds in another order: sums differ in their last digit, and nothing else does."""
    goodput = np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]])
    assert goodput[1].mean() != goodput[0].mean()
    for rows in (goodput, goodput[::-1]):
        scored = np.repeat(rows[:, :, None], 7, axis=2)
        assert [each.policy for each in _ranked(["a", "b"], scored, False)] == ["a", "b"]
        assert [each.rank_by_cost for each in _ranked(["a", "b"], scored, False)] == [1, 2]
        assert _ranked(["a", "b"], scored, False)[1].behind_rps.mean == 0.0
