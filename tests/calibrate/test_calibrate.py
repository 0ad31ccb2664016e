"""A model is found again from what it did, and what cannot be found is refused in a sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from openloop.arrivals import read_arrivals
from openloop.calibrate import Calibration, calibrate, compare_changes, drawn, fleet_of, read_known, write_model
from openloop.calibrate.fit import _crowds, _may_be_full, _piled
from openloop.calibrate.match import PARAMETERS, BatchLimits, TraceReplay
from openloop.calibrate.model import suggestions, system_differences, unknown
from openloop.calibrate.trace import held, open_runs, read_trace
from openloop.calibrate.whatif import FleetChange, changed, common_changes, read_change, resized, wanted
from openloop.cli import cli
from openloop.errors import OpenloopError, RunError, SpecError
from openloop.records import Manifest, Run, make_batch, make_lists
from openloop.score import score
from openloop.sim.fleet import FleetSpec, read_fleet, simulate_fleet
from openloop.slo import read_slo
from openloop.workload import Workload, read_source

MIX = "synthetic:prompt=lognormal(median=200,sigma=0.7),output=lognormal(median=40,sigma=0.5)"
STEP = {"fixed": "1ms", "floor": "4ms", "token": "30us", "context": "100ns", "sequence": "40us"}
TRUE: dict[str, Any] = {"step": STEP, "max_tokens": 512, "max_sequences": 12, "overhead": "5ms"}


def measure(fleet: FleetSpec, rate: float, seed: int, seconds: float = 20.0) -> Run:
    how = Workload.of(read_source(MIX)), read_arrivals(f"poisson:rate={rate}"), seconds, seed
    return simulate_fleet(fleet, *how, offered_rps=rate, slo="ttft<=200ms, tpot<=20ms")


def rows_of(run: Run, **columns: Any) -> Run:
    """The same requests with other columns."""
    rows = run.head(1 << 30)
    kept: dict[str, Any] = {
        name: [row[name] for row in rows]
        for name in ("request_id", "scheduled_ns", "sent_ns", "ended_ns", "prompt_tokens", "output_tokens", "status")
    }
    kept["event_ns"] = make_lists(
        "event_ns", np.concatenate([row["event_ns"] for row in rows]), np.array([len(row["event_ns"]) for row in rows])
    )
    return Run.of(run.manifest, [make_batch({**kept, **columns})])


@pytest.fixture(scope="module")
def true() -> FleetSpec:
    return read_fleet(TRUE)


@pytest.fixture(scope="module")
def runs(true: FleetSpec) -> list[Run]:
    return [measure(true, rate, seed) for seed, rate in enumerate((4.0, 18.0, 40.0))]


@pytest.fixture(scope="module")
def found(runs: list[Run]) -> Calibration:
    return calibrate(runs, "batching=chunked,max_tokens=512")


def test_memory_was_enough_where_rows_say_that_nobody_was_put_back(runs: list[Run]) -> None:
    """However much those in overload held while others waited; rows of live runs do not say it."""
    for preempted, full in ((None, True), (0, False), (1, True)):
        told = [preempted] * runs[2].num_rows
        trace = read_trace(rows_of(runs[2], preemptions=told))[0]
        _, memory, waiting = _crowds(trace)
        assert _may_be_full([trace], memory, float(memory.max()), waiting) == full


def test_a_known_system_is_found_again(true: FleetSpec, found: Calibration) -> None:
    made, real = fleet_of(found).step_time(), true.step_time()
    for probe in ((1, 250), (6, 250), (12, 250)):
        assert made.decode(*probe) == pytest.approx(real.decode(*probe), rel=0.05)
    assert made.prefill(300) == pytest.approx(real.prefill(300), rel=0.1)
    assert found.limits.max_sequences == 12
    assert found.saturated == ("max_sequences",)
    assert any(line.startswith("memory_tokens: never full") for line in unknown(found))
    assert any("openloop run" in line for line in suggestions(found))


def test_it_predicts_a_rate_that_it_has_not_seen(true: FleetSpec, found: Calibration) -> None:
    seen, made = (score(measure(each, 12.0, 9), "ttft<=1s") for each in (true, fleet_of(found)))
    assert seen.ttft_s
    assert made.ttft_s
    assert seen.tpot_s
    assert made.tpot_s
    assert made.ttft_s.p50 == pytest.approx(seen.ttft_s.p50, rel=0.1)
    assert made.tpot_s.p50 == pytest.approx(seen.tpot_s.p50, rel=0.05)
    assert made.tpot_s.p99 == pytest.approx(seen.tpot_s.p99, rel=0.15)
    assert [each.rate for each in found.held] == [4.0, 18.0, 40.0]


def test_first_and_last_tokens_are_enough(true: FleetSpec, runs: list[Run]) -> None:
    ends = []
    for run in runs[1:]:
        rows = run.head(1 << 30)
        events = np.array([[row["event_ns"][0], row["event_ns"][-1]] for row in rows])
        events[:, 1] = np.maximum(events[:, 1], events[:, 0])
        both = make_lists("event_ns", events.ravel(), np.full(len(rows), 2))
        ends.append(rows_of(run, event_ns=both, ends_only=np.ones(len(rows), bool)))
    made = fleet_of(calibrate(ends, "batching=chunked,max_tokens=512,max_sequences=12")).step_time()
    assert made.decode(8, 250) == pytest.approx(true.step_time().decode(8, 250), rel=0.05)


def test_prompts_that_are_read_in_several_steps_do_not_make_them_faster() -> None:
    """How much of a prompt is read in which step is not known, but which steps have whole ones is."""
    true = read_fleet({"step": {"floor": "9.3ms", "token": "65us", "context": "20ns"}, "max_tokens": 1024})
    mix = "synthetic:prompt=lognormal(median=500,sigma=0.7),output=lognormal(median=120,sigma=0.6)"
    runs = [
        simulate_fleet(true, Workload.of(read_source(mix)), read_arrivals(f"poisson:rate={rate}"), 60.0, rate)
        for rate in (2, 6, 8)
    ]
    found = calibrate(runs)
    assert found.limits.max_tokens == 1024
    for name, value in (("token", 65e-6), ("context", 20e-9)):
        low, high = found.interval(name)
        assert low <= value <= high
    assert found.value("token") == pytest.approx(65e-6, rel=0.01)
    assert found.value("floor") + found.value("fixed") == pytest.approx(9.3e-3, rel=0.01)
    assert all(abs(each.tpot[0]) < 0.01 for each in found.held)


@pytest.mark.parametrize("batching", ["chunked", "prefill-first"])
def test_what_most_steps_read_of_long_prompts_is_known(batching: str) -> None:
    """With the true times, a step takes what it took; also one of those in which a prompt was read in parts."""
    fleet = read_fleet({**TRUE, "batching": batching, "max_tokens": 192})
    replay = TraceReplay(read_trace(measure(fleet, 18.0, 1))[0])
    times = [getattr(fleet.step_time(), name, 0.0) for name in PARAMETERS]
    off = replay.steps(BatchLimits(batching, 192, 12), np.array(times))
    assert np.nanquantile(abs(off), 0.99) < 0.02
    assert np.mean(np.isfinite(off)) > 0.7
    read = replay.amounts[:, 5] > 192
    assert np.mean(np.isfinite(off[read])) > 0.1


@pytest.mark.parametrize(("batching", "budget", "median"), [("chunked", 1024, 1200), ("prefill-first", 512, 400)])
def test_a_budget_shows_itself_in_the_steps_that_it_makes_full(batching: str, budget: int, median: int) -> None:
    true = read_fleet({**TRUE, "batching": batching, "max_tokens": budget, "max_sequences": 24})
    mix = f"synthetic:prompt=lognormal(median={median},sigma=0.6),output=lognormal(median=60,sigma=0.6)"
    runs = [
        simulate_fleet(true, Workload.of(read_source(mix)), read_arrivals(f"poisson:rate={rate}"), 20.0, rate)
        for rate in (4, 12)
    ]
    found = calibrate(runs, f"batching={batching}")
    assert found.limits.max_tokens == budget
    assert fleet_of(found).step_time().prefill(500) == pytest.approx(true.step_time().prefill(500), rel=0.03)


def test_steps_that_stall_make_all_of_them_longer(true: FleetSpec, runs: list[Run]) -> None:
    """Six times a second everything stands still for 10 ms: 6% of the time, in few of the steps."""
    stalled = []
    for run in runs[:2]:
        rows = run.head(1 << 30)
        events = [[at + 10_000_000 * (at // 160_000_000) for at in row["event_ns"]] for row in rows]
        lists = make_lists("event_ns", np.concatenate(events), np.array([len(each) for each in events]))
        stalled.append(rows_of(run, event_ns=lists, ended_ns=[each[-1] for each in events]))
    known = "batching=chunked,max_tokens=512,max_sequences=12"
    plain, longer = (fleet_of(calibrate(each, known)).step_time() for each in (runs[:2], stalled))
    assert plain.decode(6, 250) == pytest.approx(true.step_time().decode(6, 250), rel=0.02)
    assert 1.03 < longer.decode(6, 250) / plain.decode(6, 250) < 1.09


def test_places_show_themselves_where_people_queue_for_them(true: FleetSpec) -> None:
    """Whoever queues does so while all twelve places are taken; where steps are slow, while any number decode."""
    for fleet, shown in ((true, True), (read_fleet({**TRUE, "max_sequences": 256, "max_tokens": 64}), False)):
        several, _, waiting = _crowds(read_trace(measure(fleet, 28.0, 3))[0])
        assert np.mean(waiting >= 3) > 0.1
        assert _piled(several, int(np.quantile(several, 0.999)), waiting) is shown
    found = calibrate([measure(true, rate, 7) for rate in (6.0, 27.0)], "batching=chunked,max_tokens=512").limits
    assert (found.max_sequences, found.memory_tokens) == (12, None)  # by the loss alone, memory would be short as well


def test_a_model_is_a_fleet_and_keeps_what_it_leaves_open(found: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    fleet = write_model(found, path, workload=MIX, slo="ttft<=200ms, tpot<=20ms")
    again = read_fleet(path)
    assert again == fleet
    assert again.calibration is not None
    assert len(again.calibration.draws) == len(found.draws)
    assert drawn(again, 0).step != drawn(again, 1).step
    with pytest.raises(SpecError, match="openloop calibrate"):
        drawn(read_fleet(TRUE), 0)
    result = CliRunner().invoke(
        cli,
        [
            "sim",
            str(path),
            "--for",
            "10s",
            "--replicas",
            "2",
            "--prompt-mean",
            "2x",
            "--json",
            "-o",
            str(tmp_path / "r"),
        ],
    )
    assert result.exit_code in (0, 1), result.output
    kept = json.loads((tmp_path / "r" / "run.json").read_text())
    assert kept["replicas"] == 2
    assert "prompts x 2" in kept["workload"]
    args = ["sweep", "--sim", str(path), "--rates", "5", "--for", "5s", "--json", "-o", str(tmp_path / "s")]
    assert CliRunner().invoke(cli, args).exit_code in (0, 1)
    (point,) = (tmp_path / "s").rglob("run.json")
    assert "lognormal" in json.loads(point.read_text())["workload"]
    result = CliRunner().invoke(cli, ["whatif", str(path), "--for", "5s", "--draws", "2", "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.output)) == 1 + len(common_changes(again, 0.7))


def test_more_replicas_accept_more_and_changes_meet_the_same_load(true: FleetSpec) -> None:
    load, arrivals = Workload.of(read_source(MIX)), read_arrivals("poisson:rate=40")
    outcomes = compare_changes(
        true,
        [FleetChange("two", {"replicas": 2}), FleetChange("same", {})],
        load,
        arrivals,
        10.0,
        read_slo("ttft<=200ms"),
        draws=2,
    )
    first, two, same = outcomes
    assert two.goodput_rps > first.goodput_rps
    assert two.gain_interval[0] > 0
    assert (same.goodput_rps, same.gain) == (first.goodput_rps, 0.0)


@pytest.mark.parametrize("price", [None, 3.0])
def test_replicas_that_a_scaler_stopped_are_not_paid_for(true: FleetSpec, price: float | None) -> None:
    fleet = msgspec.structs.replace(true, price_per_hour=price, replicas=3)
    scale = {"on": "queue", "target": 2, "idle": 6, "least": 1, "most": 3, "every": "5s", "delay": "5s"}
    load = Workload.of(read_source(MIX)), read_arrivals("poisson:rate=4"), 60.0, read_slo("ttft<=10s")
    fixed, scaled = compare_changes(fleet, [FleetChange("scaled", {"scale": scale})], *load, draws=1)
    alone = score(
        simulate_fleet(changed(fleet, {"scale": scale, "price_per_hour": price or 3600.0}), *load[:3]), load[3]
    )
    assert scaled.cost_per_accepted == pytest.approx(alone.cost_per_accepted)
    assert scaled.cost_per_accepted < 0.8 * fixed.cost_per_accepted


def test_longer_prompts(true: FleetSpec) -> None:
    load, arrivals = Workload.of(read_source(MIX)), read_arrivals("poisson:rate=5")
    twice, mean = resized(load, arrivals, (True, 2.0), None), resized(load, arrivals, (False, 500.0), (True, 3.0))
    plain = load.demand(arrivals, 100.0, 1)
    assert np.array_equal(twice.demand(arrivals, 100.0, 1).prompt_tokens, 2 * plain.prompt_tokens)
    assert mean.demand(arrivals, 1000.0, 0).prompt_tokens.mean() == pytest.approx(500, rel=0.01)
    assert np.array_equal(mean.demand(arrivals, 100.0, 1).output_tokens, 3 * plain.output_tokens)
    parts = list(twice.parts(arrivals, 100.0, 1))
    assert np.array_equal(parts[0].prompt_tokens, 2 * plain.prompt_tokens)


@pytest.mark.parametrize("seed", [1, 4, 5])
def test_prompts_that_hide_in_a_step_leave_open_what_a_token_takes(seed: int) -> None:
    true = read_fleet({"step": {"floor": "5ms", "token": "20us", "sequence": "40us"}})
    how = Workload.of(read_source("synthetic:prompt=100,output=40"))
    short = [simulate_fleet(true, how, read_arrivals(f"poisson:rate={rate}"), 20.0, seed) for rate in (4.0, 20.0)]
    found = calibrate(short, "batching=chunked,max_tokens=512")
    assert found.limits.padding == 1
    assert found.value("floor") == pytest.approx(5e-3, rel=0.02)
    low, high = found.interval("token")
    assert low <= 20e-6 <= high < 100e-6
    assert low <= found.value("token") <= high
    first, third = np.quantile(found.draws[:, PARAMETERS.index("token")], [0.25, 0.75])
    assert first <= found.value("token") <= third  # predictions go by the draws: what was found is in their middle
    assert any(line.startswith("token: prompts of several lengths") for line in suggestions(found))


def test_limits_that_cannot_be_are_refused(runs: list[Run]) -> None:
    for known in ("max_sequences=3", "memory_tokens=100"):
        with pytest.raises(SpecError, match=f"{known} cannot be"):
            calibrate(runs, known)


def test_what_was_set_by_hand_is_not_drawn(found: Calibration) -> None:
    fleet = fleet_of(found)
    assert fleet.step is not None
    assert fleet.calibration is not None
    slower = msgspec.structs.replace(fleet, step=msgspec.structs.replace(fleet.step, fixed="80ms"))
    assert drawn(slower, 3).step_time().fixed == 80e-3
    assert drawn(slower, 3).step_time().sequence == drawn(fleet, 3).step_time().sequence
    assert drawn(msgspec.structs.replace(fleet, overhead="90ms"), 3).overhead == "90ms"
    assert drawn(fleet, 3).overhead != drawn(fleet, 4).overhead
    broken = msgspec.structs.replace(fleet.calibration, draws=((1.0, 2.0),))
    with pytest.raises(SpecError, match="changed by hand"):
        drawn(msgspec.structs.replace(fleet, calibration=broken), 0)


def test_runs_of_unlike_systems_are_noticed(runs: list[Run]) -> None:
    slow = read_fleet({**TRUE, "step": {**STEP, "fixed": "60ms"}})
    mixed = calibrate([runs[0], measure(slow, 5.0, 3)], "batching=chunked,max_tokens=512,max_sequences=12")
    assert any(line.startswith("whether this is one system") for line in unknown(mixed))
    assert any(line.startswith("whether this is one system") for line in suggestions(mixed))
    assert np.all(mixed.draws < 100)


def test_changes_as_people_write_them() -> None:
    drafts = {"drafts": {"tokens": 4, "acceptance": 0.5}}
    for text in ("drafts: {tokens: 4, acceptance: 0.5}", "{drafts: {tokens: 4, acceptance: 0.5}}"):
        assert read_change(text).keys == drafts


def test_a_change_is_read_as_a_fleet_file_is() -> None:
    keys = read_change("scale: {on: queue, target: 2, least: 1, most: 6}, transfer: {bandwidth: 50e9}").keys
    assert keys["scale"] == {"on": "queue", "target": 2, "least": 1, "most": 6}
    assert keys["transfer"] == {"bandwidth": 50e9}
    with pytest.raises(SpecError, match="is no change"):
        read_change("replicas: 2, replicas: 3")


def test_a_number_of_replicas_is_no_change_of_a_fleet_with_groups(true: FleetSpec) -> None:
    groups = [{"replicas": 1, "role": "prefill"}, {"replicas": 2, "role": "decode"}]
    apart = changed(true, {"groups": groups})
    assert apart.size == 3
    for keys in ({"replicas": 1}, {"replicas": 4, "groups": groups}):
        with pytest.raises(SpecError, match=f"replicas: {keys['replicas']} changes nothing where a fleet has groups"):
            changed(apart, keys)
    assert changed(apart, {"replicas": 4, "groups": []}).size == 4


def test_other_hardware_has_another_price() -> None:
    fleet = read_fleet({"model": "8b", "gpu": "h100", "price_per_hour": 3.0})
    for keys in ({"tp": 4}, {"gpu": "h200"}, {"groups": [{"replicas": 2}, {"tp": 4}]}):
        with pytest.raises(SpecError, match=r"changes what a replica costs, .* stay 3: give it as well"):
            changed(fleet, keys)
    groups = [{"replicas": 2}, {"tp": 4, "price_per_hour": 12.0}]
    priced = [changed(fleet, {"tp": 4, "price_per_hour": 12.0}), changed(fleet, {"groups": groups})]
    assert [each.kinds()[-1].price_per_hour for each in priced] == [12.0, 12.0]
    assert changed(fleet, {"tp": 1, "gpu": "h100", "replicas": 3}).size == 3
    for same in ([{"replicas": 2}, {"max_sequences": 8}], [{"gpu": "h100", "replicas": 2}, {"tp": 1}]):
        assert [each.price_per_hour for each in changed(fleet, {"groups": same}).kinds()] == [3.0, 3.0]
    assert changed(msgspec.structs.replace(fleet, price_per_hour=None), {"tp": 4}).tp == 4


def test_each_replica_has_its_own_steps_and_the_model_has_all_of_them(found: Calibration) -> None:
    slow = {"step": {**STEP, "fixed": "10ms"}}
    run = measure(read_fleet({**TRUE, "groups": [{"replicas": 1}, {"replicas": 1, **slow}]}), 10.0, 1)
    traces = read_trace(run)
    quick, other = (float(np.median(np.diff(trace.gaps))) for trace in traces)
    assert other > quick + 8e-3
    fleet = fleet_of(replace(found, traces=tuple(traces)))
    assert fleet.replicas == 2
    assert fleet.calibration is not None
    assert fleet.calibration.rates == (10.0,)


def test_what_was_cut_off_is_known_from_the_seed(runs: list[Run]) -> None:
    rows = runs[0].head(1 << 30)
    order = np.argsort([row["sent_ns"] for row in rows], kind="stable")
    cut = [row["request_id"] % 3 == 0 for row in rows]
    prompts = [None if off else row["prompt_tokens"] for row, off in zip(rows, cut, strict=True)]
    status = ["censored" if off else "ok" for off in cut]
    ended = [None if off else row["ended_ns"] for row, off in zip(rows, cut, strict=True)]
    asked = [row["output_tokens"] + 5 for row in rows]
    run = rows_of(runs[0], prompt_tokens=prompts, status=status, ended_ns=ended, requested_tokens=asked)
    whole, part = read_trace(runs[0])[0], read_trace(run)[0]
    assert np.array_equal(whole.prompt, part.prompt)
    assert np.array_equal(part.output - part.came, np.where(np.array(cut)[order], 5, 0))
    lost = replace(run, manifest=msgspec.structs.replace(run.manifest, seed=12345))
    assert len(read_trace(lost)[0]) == len(rows) - sum(cut)


def test_a_client_that_left_is_not_served_further(runs: list[Run]) -> None:
    left = [row["request_id"] % 3 == 0 for row in runs[0].head(1 << 30)]
    status = ["timeout" if each else "ok" for each in left]
    trace = read_trace(rows_of(runs[0], status=status, requested_tokens=[500] * len(left)))[0]
    assert np.array_equal(trace.output, trace.came)
    assert int(trace.used.sum()) == left.count(False)


def test_prompts_that_a_cache_had_are_not_read_again() -> None:
    """Nor does a model need to know how large the cache is."""
    step = {**STEP, "attention": "2ns"}
    fleet = {"step": step, "max_tokens": 2048, "memory_tokens": 400_000, "max_sequences": 64}
    shared = "synthetic:prompt=lognormal(median=200,sigma=0.7),output=40,prefixes=3,prefix=1024"
    runs = [simulate_fleet(fleet, shared, f"poisson:rate={rate}", 20.0, rate) for rate in (4, 24)]
    assert np.median(read_trace(runs[0])[0].cached) == 1024
    found = calibrate(runs, "batching=chunked,max_tokens=2048,max_sequences=64")
    assert found.value("token") == pytest.approx(30e-6, rel=0.1)
    again = simulate_fleet(fleet_of(found), shared, "poisson:rate=4", 20.0, 5)
    assert sum(row["cached_tokens"] for row in again.head(1000)) > 1024 * again.num_rows / 2
    replay, limits = TraceReplay(read_trace(runs[1])[0]), BatchLimits(max_tokens=2048)
    theta = np.array([0.0, 4e-3, 30e-6, 100e-9, 2e-9, 40e-6, 1e-3, 0.0])
    assert np.nanquantile(abs(replay.steps(limits, theta)), 0.9) < 0.01


def test_a_rate_or_a_replica_that_tells_nothing_of_a_step_is_left_out(true: FleetSpec, runs: list[Run]) -> None:
    once = simulate_fleet(true, "synthetic:prompt=200,output=1", "poisson:rate=8", 20.0, 3)
    found = calibrate([runs[0], runs[2], once], "batching=chunked,max_tokens=512,max_sequences=12")
    assert [each.rate for each in found.held] == [4.0, 40.0]
    assert np.isfinite(found.draws).all()
    hung = read_fleet({**TRUE, "replicas": 2, "events": ["slow:at=0s,replica=1,factor=1000000"]})
    whole = simulate_fleet(hung, MIX, "poisson:rate=8", 20.0, 3)
    rows = whole.head(1000)
    times = [[at for at in row["event_ns"] if at < 20.5e9] for row in rows]
    over = [row["ended_ns"] < 20.5e9 for row in rows]
    cut_off = rows_of(
        whole,
        ended_ns=[row["ended_ns"] if done else None for row, done in zip(rows, over, strict=True)],
        status=["ok" if done else "censored" for done in over],
        event_ns=times,
        output_tokens=[len(each) for each in times],
        requested_tokens=[row["requested_tokens"] for row in rows],
        replica=[row["replica"] for row in rows],
    )
    assert over.count(False) > 50
    traces = read_trace(cut_off)
    assert [(trace.beside, bool(np.isfinite(trace.first_s).any())) for trace in traces] == [(2, True)]


def test_prefixes_are_cached_where_it_is_known_how_many(true: FleetSpec) -> None:
    for more, cached in (({}, None), ({"memory_tokens": 8000}, True)):
        *_, routed = common_changes(read_fleet({**TRUE, **more}), 0.7)
        assert routed.keys.get("prefix_cache") is cached


def test_an_overhead_that_is_not_there_is_not_found() -> None:
    true = read_fleet({"model": "8b", "gpu": "h100"})
    mix = "synthetic:prompt=lognormal(median=900,sigma=0.7),output=lognormal(median=150,sigma=0.5)"
    run = simulate_fleet(true, Workload.of(read_source(mix)), read_arrivals("poisson:rate=14"), 60.0)
    found = calibrate([run], "batching=chunked,max_tokens=2048")
    assert found.value("overhead") == 0
    assert found.interval("overhead")[0] == 0


def test_a_run_that_is_given_twice_counts_once(true: FleetSpec, tmp_path: Path) -> None:
    how = Workload.of(read_source(MIX)), read_arrivals("poisson:rate=4"), 10.0
    simulate_fleet(true, *how, out=tmp_path / "sweep" / "one")
    given: list[str | Path | Run] = [tmp_path / "sweep", str(tmp_path / "sweep" / ".." / "sweep" / "one")]
    assert len(open_runs(given)) == 1


def test_deliveries_of_several_tokens_are_no_steps(true: FleetSpec, runs: list[Run]) -> None:
    """A server that hands out four tokens at a time, or makes several in a step, is not four times as slow."""
    chunked = []
    for run in runs:
        rows = run.head(1 << 30)
        each = [[row["event_ns"][0], *row["event_ns"][4::4], row["event_ns"][-1]] for row in rows]
        sizes = np.array([len(times) for times in each])
        chunked.append(rows_of(run, event_ns=make_lists("event_ns", np.concatenate(each), sizes)))
    assert not len(read_trace(chunked[0])[0].gaps)
    made = fleet_of(calibrate(chunked, "batching=chunked,max_tokens=512")).step_time()
    for probe in ((1, 250), (6, 250), (12, 250)):
        assert made.decode(*probe) == pytest.approx(true.step_time().decode(*probe), rel=0.1)


def test_a_fleet_that_scales_is_asked_for_no_other_number_of_replicas(true: FleetSpec) -> None:
    scaled = read_fleet({**TRUE, "replicas": 2, "scale": {"on": "queue", "target": 4, "most": 2}})
    for change in common_changes(scaled, 0.7):
        assert changed(scaled, change.keys).size == 2


def _refused(runs: list[Run], what: str) -> Run:
    run = runs[0]
    rows = run.head(1 << 30)
    none = make_lists("event_ns", np.empty(0, np.int64), np.zeros(len(rows), np.int64))
    if what == "errors":
        return rows_of(run, event_ns=none, status=["error"] * len(rows))
    if what == "no tokens":
        return rows_of(run, event_ns=none)
    if what == "no prompts":
        manifest = msgspec.structs.replace(run.manifest, seed=None)
        return replace(rows_of(run, prompt_tokens=[None] * len(rows)), manifest=manifest)
    return Run.of(Manifest(source="load"), [make_batch({"request_id": [], "scheduled_ns": []})])


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("errors", "no request was answered.*measure at a rate"),
        ("no tokens", "no times of tokens; measure with streaming"),
        ("no prompts", "does not tell how long prompts were.*--tokenizer"),
        ("nothing", "has no rows"),
    ],
)
def test_what_cannot_be_used_is_refused(runs: list[Run], what: str, sentence: str) -> None:
    with pytest.raises(RunError, match=sentence):
        calibrate([_refused(runs, what)])


@pytest.mark.parametrize("name", ["etalon.json", "genai-bench.json", "llmperf.json", "sglang.jsonl"])
def test_files_that_do_not_tell_when_requests_were_sent_are_refused(name: str) -> None:
    with pytest.raises(RunError, match="does not tell when requests were sent.*openloop run"):
        calibrate([Path(__file__).parents[1] / "importers" / "files" / name])


def test_too_short_or_at_one_concurrency(true: FleetSpec) -> None:
    with pytest.raises(RunError, match="too few.*measure longer"):
        calibrate([measure(true, 3.0, 1, seconds=5.0)])
    calm = measure(read_fleet({"step": STEP}), 0.5, 1, seconds=120.0)
    with pytest.raises(RunError, match="one concurrency.*another rate"):
        calibrate([calm])


def whatif(keys: dict[str, Any]) -> None:
    load = Workload.of(read_source(MIX)), read_arrivals("poisson:rate=4"), 1.0, read_slo("ttft<=10s")
    compare_changes(read_fleet(TRUE), [FleetChange("mine", keys)], *load, draws=1)


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (lambda: read_known("max_token=3"), "did you mean 'max_tokens'"),
        (lambda: read_known("max_tokens=many"), "is a number"),
        (lambda: read_known("max_tokens=\u00b2"), "is a number"),
        (lambda: read_known(f"max_tokens={10**25}"), "is a number"),
        (lambda: read_known("batching=magic"), "chunked, prefill-first or static"),
        (lambda: read_change("replicas"), "is no change"),
        (lambda: changed(read_fleet(TRUE), {"replica": 2}), "replica"),
        (lambda: changed(read_fleet(TRUE), {"model": "70b"}), "changes nothing.*speed"),
        (lambda: system_differences([Manifest(source="load", model=each) for each in "ab"]), "several models"),
        (lambda: wanted(read_fleet(TRUE), None, None, None), "give --workload"),
        (lambda: whatif({"price_per_hour": 5}), "the fleet as it is has none; give that with --price"),
    ],
)
def test_sentences(read: Any, sentence: str) -> None:
    with pytest.raises(OpenloopError, match=sentence):
        read()


def test_what_a_server_says_of_itself_is_in_the_trace(runs: list[Run]) -> None:
    (plain,) = read_trace(runs[0])
    at = np.linspace(plain.sent_s[5], plain.sent_s[-5], 20)
    figures = {"running": np.full(20, 7.0), "kv_use": held(plain, at) / 5000, "waiting": np.full(20, 99.0)}
    table = pa.table({
        "time_ns": np.tile(np.int64(1e9 * at), 3),
        "name": np.repeat(list(figures), 20),
        "value": np.concatenate(list(figures.values())),
    })  # fmt: skip
    (told,) = read_trace(Run.of(runs[0].manifest, list(runs[0].batches()), table))
    assert np.isnan([plain.running_peak, plain.kv_peak, plain.memory_tokens]).all()
    assert (told.running_peak, told.kv_peak) == (7.0, figures["kv_use"].max())
    assert told.memory_tokens == pytest.approx(5000)
