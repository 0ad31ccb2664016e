"""Sweeps, live and simulated: resumable, within budgets, scored again from their runs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import openloop as ol
from openloop.cli import cli
from openloop.compare.states import gaps
from openloop.errors import RunError, SpecError
from openloop.frontier import Frontier
from openloop.frontier.folder import read_asked
from openloop.frontier.measure import states_in, sweep_states
from openloop.frontier.steady import BacklogWatch, after_warm_up, flow_of, settled_from
from openloop.load.conductor import Snapshot
from openloop.load.rows import Row
from openloop.load.scenario import read_scenario, run_scenario
from openloop.load.targets import Outcome
from openloop.plan import frontier_system
from openloop.records import TimedEvent
from openloop.report.read import read_report
from openloop.serve.process import endpoint_process
from tests.reports import write_frontier
from tests.runs import row, run_of

FLEET = {"step": {"floor": "5ms", "token": "0.05ms", "sequence": "1ms"}, "max_sequences": 16, "price_per_hour": 2.0}
ASKED = {"slo": "ttft<=300ms, tpot<=30ms", "prompt": "100", "output": "20", "for": "20s"}


def simulated(out: Path, **how: Any) -> Frontier:
    return ol.sweep(out, {**ASKED, **how.pop("flags", {})}, FLEET, **{"rates": [5.0, 20.0], "processes": 1, **how})


def folders(out: Path) -> list[str]:
    return sorted(each.name for each in (out / "points").iterdir())


def test_a_sweep_over_rates_is_a_folder_of_runs(tmp_path: Path) -> None:
    found = simulated(tmp_path / "f", repeat=2)
    assert folders(tmp_path / "f") == ["20-1", "20-2", "5-1", "5-2"]
    assert [point.rate for point in found.points] == [5.0, 20.0]
    assert found.stopped == "done"
    assert ol.score(tmp_path / "f" / "points" / "5-1").attainment == 1.0
    assert ol.open_frontier(tmp_path / "f").to_dict() == found.to_dict()
    json.dumps(found.to_dict(), allow_nan=False)
    point = found.points[0]
    assert point.cost_per_accepted == pytest.approx(2.0 / 3600 / point.goodput_rps)
    assert point.repeats == 2
    assert len(point.warm_up_s) == 2
    seeds = [ol.open_run(tmp_path / "f" / "points" / name).manifest.seed for name in folders(tmp_path / "f")]
    assert len(set(seeds)) == 4  # prompts of their own


def test_what_else_lies_among_the_points_stays_there(tmp_path: Path) -> None:
    found = simulated(tmp_path / "f")
    for name in ("foo-1", "nan-1", "notes"):
        (tmp_path / "f" / "points" / name).mkdir()
    assert simulated(tmp_path / "f").to_dict() == found.to_dict()
    assert folders(tmp_path / "f") == ["20-1", "5-1", "foo-1", "nan-1", "notes"]


def test_side_by_side_gives_the_same_as_one_after_the_other(tmp_path: Path) -> None:
    alone, both = (simulated(tmp_path / str(n), processes=n).to_dict() for n in (1, 2))
    for each in (alone, both):
        each.pop("path")
        for point in each["points"]:
            point.pop("runs")
    assert alone == both


def test_the_same_runs_can_be_held_to_another_slo(tmp_path: Path) -> None:
    found = simulated(tmp_path / "f")
    strict = ol.open_frontier(tmp_path / "f", "ttft<=1ms")
    assert found.points[0].attainment == 1.0
    assert strict.points[0].attainment == 0.0
    assert strict.knee.rate is None


def test_finished_runs_are_not_made_again_and_cut_ones_are_put_aside(tmp_path: Path) -> None:
    simulated(tmp_path / "f", repeat=2)
    kept, cut = tmp_path / "f" / "points" / "5-1" / "run.json", tmp_path / "f" / "points" / "20-2" / "run.json"
    before = kept.stat().st_mtime_ns
    cut.write_text(cut.read_text().replace('"finished": true', '"finished": false'))
    again = simulated(tmp_path / "f", repeat=2)
    assert kept.stat().st_mtime_ns == before
    assert "20-2.cut1" in folders(tmp_path / "f")
    assert again.points[1].repeats == 2


def test_a_run_that_is_damaged_is_not_left_out_in_silence(tmp_path: Path) -> None:
    simulated(tmp_path / "f")
    table = sorted((tmp_path / "f" / "points").glob("*/requests.parquet"))[0]
    table.write_bytes(table.read_bytes()[:1000])
    for again in (ol.open_frontier, simulated):
        with pytest.raises(RunError, match=f"damaged .*; remove {table.parent} to go on without that run"):
            again(tmp_path / "f")
    shutil.rmtree(table.parent)
    assert len(ol.open_frontier(tmp_path / "f").points) == len(folders(tmp_path / "f"))


def test_a_rate_of_many_digits_is_known_again(tmp_path: Path) -> None:
    found = simulated(tmp_path / "f", rates=[100 / 60])
    assert simulated(tmp_path / "f", rates=[100 / 60]).to_dict() == found.to_dict()
    assert folders(tmp_path / "f") == ["1.66666666667-1"]


def test_another_sweep_does_not_go_on_in_the_folder(tmp_path: Path) -> None:
    simulated(tmp_path / "f")
    with pytest.raises(RunError, match="holds a sweep with another rates"):
        simulated(tmp_path / "f", rates=[1.0])
    with pytest.raises(RunError, match="holds a sweep with another slo"):
        simulated(tmp_path / "f", flags={"slo": "ttft<=1s"})
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is no sweep"):
        simulated(tmp_path / "g")


def test_budgets_stop_a_sweep_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    found = simulated(tmp_path / "f", repeat=2, budget_s=45.0)
    assert len(folders(tmp_path / "f")) == 2
    assert found.stopped is not None
    assert "the time budget is used" in found.stopped
    assert simulated(tmp_path / "f", repeat=2).stopped == "done"
    poor = simulated(tmp_path / "g", flags={"limits.spend": 0.001, "prices.per_hour": 1.0})
    assert poor.stopped is not None
    assert "the cost budget is used" in poor.stopped
    assert len(folders(tmp_path / "g")) == 1
    assert simulated(tmp_path / "g", flags={"limits.spend": 1.0, "prices.per_hour": 1.0}).stopped == "done"
    how: dict[str, Any] = {"rates": [5.0, 6.0, 7.0, 8.0, 9.0], "processes": 2}
    side = simulated(tmp_path / "h", flags={"limits.spend": 0.001, "prices.per_hour": 1.0}, **how)
    assert len(side.points) == len(folders(tmp_path / "h")) == 1


def test_an_overloaded_point_ends_early_and_says_so(tmp_path: Path) -> None:
    point = simulated(tmp_path / "f", rates=[400.0]).points[0]
    assert point.overloaded
    assert point.cut_short == "overload"
    assert point.growth_rps > 0
    assert sum(point.warm_up_s) + point.seconds <= 10.0
    notes = ol.open_run(tmp_path / "f" / "points" / "400-1").manifest.notes
    assert any("of 20.0 s: overloaded, the backlog grows by" in note for note in notes)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"flags": {"arrivals": "onoff:high=10,on=1s,off=1s"}}, "has none to set: use constant, poisson"),
        ({"target": 1.0}, "the target is 1"),
        ({"precision": 0.0}, "the precision is 0"),
        ({"repeat": 0}, "repeat is 0"),
        ({"rates": []}, "rates are"),
        ({"rates": [0.0]}, "rates are"),
        ({"flags": {"slo": None}}, "no knee without an SLO"),
        ({"current": -1.0}, "current is -1"),
        ({"flags": {"target.url": "http://localhost:9"}}, "leave one of them out"),
        ({"flags": {"retry": "2"}}, "give it to the fleet instead, as client: {retry: '2'}"),
        ({"flags": {"hedge": "100ms"}}, "as client: {hedge: '100ms'}"),
        ({"flags": {"timeout": "1s"}}, "as client: {timeout: '1s'}"),
        ({"flags": {"gates": ["json"]}}, "have no words to grade"),
        ({"flags": {"limits.requests": 5}}, "max-requests is of a live run, and limits no simulated one"),
        ({"flags": {"connections": 5}}, "connections is of a live run"),
        ({"flags": {"events": ["5s=deploy"]}}, "events is of a live run: say in the fleet's file what happens"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_made(
    tmp_path: Path, how: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence):
        simulated(tmp_path / "f", **how)
    assert not (tmp_path / "f").exists()


def test_the_best_of_many_runs_close_by_is_all_of_them_and_not_the_luckiest(tmp_path: Path) -> None:
    rates = (20.0, 45.0, 45.3, 45.6, 45.9, 70.0)
    found = ol.open_frontier(
        write_frontier(tmp_path / "f", rates, 60.0, "fcfs:service=exponential(20ms)", "e2e<=300ms")
    )
    close = found.points[1:5]
    assert not any(point.overloaded for point in close)
    assert found.peak is not None
    assert found.peak.goodput_rps == pytest.approx(np.mean([point.goodput_rps for point in close]), rel=0.02)
    assert found.peak.goodput_rps < max(point.goodput_rps for point in close)
    assert found.peak.repeats == 4
    assert found.cheapest is not None
    assert found.cheapest.cost_per_accepted == pytest.approx(3.0 / 3600 / found.peak.goodput_rps)
    assert found.to_dict()["cheapest"]["cost_per_accepted"] == found.cheapest.cost_per_accepted


def test_a_probe_that_is_too_short_to_show_overload_is_not_the_best(tmp_path: Path) -> None:
    model, slo = "fcfs:service=exponential(20ms)", "e2e<=500ms"
    folder = write_frontier(tmp_path / "f", (20.0, 40.0, 45.0, 70.0), 60.0, model, slo)
    how = {"slo": slo, "prices": ol.Prices(per_hour=3.0)}
    ol.simulate(model, "poisson:rate=55", 3.0, 0, **how).save(folder / "points" / "55-1")
    found = ol.open_frontier(folder)
    probe = found.points[3]
    assert not probe.overloaded
    assert found.peak is not None
    assert probe.goodput_rps > found.points[2].goodput_rps == found.peak.goodput_rps
    assert found.cheapest is not None
    assert found.cheapest.rate == 45.0
    assert [load.rate for load in frontier_system(found).loads] == [20.0, 40.0, 45.0, 70.0]
    for name in ("20-1", "40-1", "45-1", "70-1"):
        shutil.rmtree(folder / "points" / name)
    alone = ol.open_frontier(folder).peak  # where there is nothing else
    assert alone is not None
    assert alone.goodput_rps == probe.goodput_rps


def test_the_burst_of_a_probe_is_not_what_a_system_can_do(tmp_path: Path) -> None:
    fleet = {"model": "8b", "gpu": "h100"}
    flags = {"slo": "ttft<=1s, tpot<=40ms", "prompt": "800", "output": "200"}
    folder = tmp_path / "f"
    ol.sweep(folder, {**flags, "for": "2m"}, fleet, rates=[16.0, 32.0, 36.0, 45.0], processes=1)
    ol.sweep(tmp_path / "probe", {**flags, "for": "12s"}, fleet, rates=[64.0], processes=1)
    shutil.move(tmp_path / "probe" / "points" / "64-1", folder / "points")
    found = ol.open_frontier(folder)
    *long, probe = found.points
    most = max(point.completed_in_window_rps for point in long)
    assert probe.completed_in_window_rps > 1.1 * most
    assert frontier_system(found).capacity == most


def test_points_that_are_short_against_an_answer_are_noted(tmp_path: Path) -> None:
    slo = "e2e<=20s"
    long, short = (
        ol.open_frontier(write_frontier(tmp_path / name, (0.3, 0.6, 0.9, 1.5), seconds, "fcfs:service=1s", slo))
        for name, seconds in (("long", 600.0), ("short", 60.0))
    )
    assert long.knee.rate is not None
    assert not any("a point lasts" in note for note in long.notes)
    assert short.knee.rate is not None
    (note,) = (note for note in short.notes if "a point lasts" in note)
    assert re.search(r"lasts \d+ times as long as an answer .* --for \d+m is enough", note)
    assert note in frontier_system(short).notes


def test_half_is_wasted_from_where_no_higher_rate_does_better(tmp_path: Path) -> None:
    model, slo = "fcfs:service=exponential(20ms)", "e2e<=500ms"
    folder = write_frontier(tmp_path / "f", (20.0, 60.0, 80.0), 60.0, model, slo)
    assert ol.open_frontier(folder).half_rate == 60.0
    ol.simulate(model, "poisson:rate=70", 1.0, 0, slo=slo).save(folder / "points" / "70-1")
    found = ol.open_frontier(folder)
    assert found.points[2].goodput_rps > found.points[2].completed_in_window_rps / 2
    assert found.half_rate == 80.0


def test_any_run_can_be_scored_without_its_warm_up(tmp_path: Path) -> None:
    """As the point of a sweep is, or without so many seconds; a note says so."""
    slow = [row(i, due=i / 10, tokens=[5.0 if i < 150 else 0.1]) for i in range(1000)]
    run = run_of(slow, window_ns=(0, 100 * 10**9))
    settled = settled_from(run, flow_of(run), 100.0)
    assert settled == 15.0
    for warm_up_s in (None, 15.0):
        late = after_warm_up(run, warm_up_s)
        assert ol.score(late, "ttft<=1s").attainment == 1.0
        assert "warm-up: the first 15.0 s of the window are left out" in ol.score(late, "ttft<=1s").notes
    assert ol.score(run, "ttft<=1s").attainment == 0.85
    for wrong, why in ((run, "its window is 100 s long"), (run_of(slow, window_ns=None), "it has no window")):
        with pytest.raises(SpecError, match=f"cannot do without its first 100 s: {why}"):
            after_warm_up(wrong, 100.0)
    facts: dict[str, Any] = {"window_ns": (0, 100 * 10**9), "offered_rps": 10.0, "arrivals": "ramp:start=5,end=15"}
    ramp = [row(i, due=100 * (i / 1000) ** 0.5, tokens=[0.1]) for i in range(1000)]
    assert not any(
        "promises" in each for each in ol.score(after_warm_up(run_of(ramp, **facts), 50.0), "ttft<=1s").reasons
    )
    run.save(tmp_path / "run")
    command = [sys.executable, "-m", "openloop", "score", str(tmp_path / "run"), "--slo", "ttft<=1s", "--json"]
    done = subprocess.run([*command, "--warm-up", "auto"], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["attainment"] == 1.0


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        ol.open_frontier(tmp_path / "nowhere")
    with pytest.raises(RunError, match="is not a frontier"):
        ol.open_frontier(tmp_path)
    simulated(tmp_path / "f", budget_s=1.0, rates=[1.0])
    found = simulated(tmp_path / "f", budget_s=1.0)  # another sweep: nothing is lost by it
    assert found.points == ()
    assert found.knee.sentence == "there are no points"
    assert ol.open_frontier(tmp_path / "f").peak is None


def told(throughput_rps: float, lag_s: Callable[[float], float] = lambda _: 0.0) -> list[str]:
    """What is said of a run at 20/s whose answers take a quarter of a second or more, and are read `lag_s` later."""
    watch, found, read = BacklogWatch(60.0, None), [], 0
    for now_s in np.arange(0.5, 60.0, 0.5).tolist():
        left = int(min(throughput_rps, 20.0) * max(now_s - lag_s(now_s) - 0.25, 0.0))
        rows = [
            Row(n, int(n / 20 * 1e9), Outcome(), ended_ns=int((n / throughput_rps + 0.25) * 1e9))
            for n in range(read, left)
        ]
        read, due = max(read, left), int(20 * now_s)
        found.append(watch(Snapshot(now_s, due, due - read, finished=rows)))
    return [each for each in found if each]


def test_a_live_backlog_that_grows_is_noticed_and_one_that_stands_is_not() -> None:
    assert told(20.0) == []
    assert re.search("overloaded, the backlog grows by (4.9|5)", told(15.0)[0])


def test_answers_that_were_not_read_yet_are_no_backlog() -> None:
    slower = lambda now_s: 0.6 * now_s  # noqa: E731
    assert told(20.0, slower) == []
    assert told(20.0, lambda now_s: max(now_s - 4.0, 0.0)) == []
    assert re.search("overloaded, the backlog grows by (4.9|5)", told(15.0, slower)[0])


@pytest.mark.parametrize("reads", [True, False])
def test_a_server_that_stops_to_answer_is_noticed_where_all_is_read(reads: bool) -> None:
    watch, found = BacklogWatch(60.0, None), []
    for now_s in np.arange(0.5, 60.0, 0.5).tolist():
        left = int(20 * min(now_s, 10.0))
        rows = [Row(n, int(n / 20 * 1e9), Outcome(), ended_ns=int(n / 20 * 1e9)) for n in range(left - 10, left)]
        due = int(20 * now_s)
        now = Snapshot(now_s, due, due - left, finished=rows if now_s <= 10 else [], read_s=now_s if reads else 0.0)
        found.append(watch(now))
    assert any(found) == reads


def test_a_reason_to_stop_ends_a_live_run_early(tmp_path: Path) -> None:
    with endpoint_process("slots:count=8,prefill=0.1ms,gap=1ms") as server:
        flags = {"target.url": server.url, "rate": 20, "for": "20s", "drain": "1s"}
        given = read_scenario(None, flags)
        run = run_scenario(given, tmp_path / "run", lambda now: "enough of it" if now.seconds > 1 else None)
    assert run.manifest.cut_short == "overload"
    assert "enough of it" in run.manifest.notes
    assert run.manifest.window_ns is not None
    assert 1e9 < run.manifest.window_ns[1] < 15e9


def test_a_live_sweep_measures_and_an_interrupt_leaves_what_is_finished(tmp_path: Path) -> None:
    out = tmp_path / "f"
    with endpoint_process("slots:count=8,prefill=0.1ms,gap=1ms") as server:
        command = [sys.executable, "-m", "openloop", "sweep", "--target", server.url, "--prompt", "20", "--output", "5"]
        command += [
            "--slo",
            "ttft<=500ms",
            "--rates",
            "10,20",
            "--for",
            "3s",
            "--header",
            "X-Key: secret",
            "-o",
            str(out),
        ]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 60
        while not (out / "points" / "20-1" / "run.json").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1.2)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
        assert running.returncode == 130, said
        assert "interrupted: the same command goes on from here" in said
        kept = (out / "points" / "10-1" / "run.json").stat().st_mtime_ns
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # a busy machine may be at fault
    assert (out / "points" / "10-1" / "run.json").stat().st_mtime_ns == kept
    assert folders(out) == ["10-1", "20-1", "20-1.cut1"]
    assert "secret" not in (out / "frontier.json").read_text()
    assert "10.0/s" in done.stdout


def test_a_sweep_that_was_killed_goes_on(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(json.dumps(FLEET))
    flags = [f"--{name}={value}" for name, value in ASKED.items()]
    out = tmp_path / "f"
    command = [sys.executable, "-m", "openloop", "sweep", "--sim", str(tmp_path / "fleet.yaml"), *flags]
    command += ["--precision", "20%", "--start", "2", "-o", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (out / "points" / "4-1").exists() and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    done = subprocess.run([*command, "--json", "--current", "10"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["knee"]["rate"] is not None
    assert found["headroom"] == pytest.approx(found["knee"]["rate"] / 10 - 1)
    assert {point["name"] for point in found["points"]} == {"comfortable", "moderate", "busy", "stressed", "overloaded"}
    assert subprocess.run([*command, "--require", "1000"], capture_output=True, check=False).returncode == 1


def test_states_of_the_caches_are_swept_apart_and_the_gap_is_told(tmp_path: Path) -> None:
    workload = "synthetic:prompt=50,output=10,prefixes=20,prefix=1000"
    flags = {**ASKED, "workload": workload, "for": "30s"}
    del flags["prompt"], flags["output"]
    scenario = read_scenario(None, {"arrivals": "poisson:rate=1", "warmth": "warm-cache", **flags}, live=False)
    fleet = {**FLEET, "prefix_cache": True, "memory_tokens": 60_000}
    states = ["warm-cache", "disrupted:at=15s", "cold-cache"]
    how: dict[str, Any] = {"rates": [5.0, 15.0], "processes": 1}
    found = sweep_states(tmp_path / "s", scenario, fleet, states, **how)
    assert [each.path.name for each in found] == ["warm-cache", "disrupted-at-15s", "cold-cache"]
    assert states_in(tmp_path / "s") == {each.warmth: each.path for each in found}
    disrupted, cold = gaps(states_in(tmp_path / "s"))
    warm, _, worst = (each.frontier for each in found)
    assert (cold.a, cold.b) == ("warm-cache", "cold-cache")
    assert cold.goodput.a == warm.peak.goodput_rps  # type: ignore[union-attr]
    assert cold.goodput.change is not None
    assert cold.goodput.change < -0.2
    assert cold.cost_per_accepted.change is not None
    assert cold.cost_per_accepted.change > 0.2
    assert cold.goodput.b == worst.peak.goodput_rps  # type: ignore[union-attr]
    assert cold.comparison.winner == "A"
    assert "warm-cache" in cold.comparison.sentence
    assert not any("warmth" in each for each in cold.comparison.warnings)
    assert disrupted.comparison.paired  # the same requests, at the same moments
    hits = [each.frontier.points[0].cache_hit_rate for each in found]
    assert hits[0] > hits[1] > hits[2]
    report = read_report(tmp_path / "s")
    assert report.sections[0].title == "Between the states"
    assert report.data["gaps"][1]["goodput"]["b"] == cold.goodput.b
    again = sweep_states(tmp_path / "s", scenario, fleet, states, **how)
    assert again[2].frontier.to_dict() == found[2].frontier.to_dict()
    assert gaps({}) == []  # none has a point yet
    (tmp_path / "s/warm-cache/in").mkdir()
    (tmp_path / "s/warm-cache/in/states.json").write_text('{"warmth": {"..": "hot"}}')
    assert states_in(tmp_path / "s/warm-cache/in") == {}  # it leads outside
    with pytest.raises(RunError, match="other states"):
        sweep_states(tmp_path / "s", scenario, fleet, states[:2], **how)
    with pytest.raises(SpecError, match="two or more"):
        sweep_states(tmp_path / "x", scenario, fleet, ["warm-cache", "warm-cache"], **how)


@pytest.mark.parametrize("rates", [[5.0, 60.0], None])
@pytest.mark.parametrize("more", [{"events": ["crash:at=15s,restart=2s"]}, {"warmth": "disrupted:at=15s"}])
def test_what_happens_at_a_given_time_is_in_every_run(tmp_path: Path, more: dict[str, Any], rates: Any) -> None:
    scenario = {**ASKED, "for": "20s"} | {key: value for key, value in more.items() if key == "warmth"}
    fleet = FLEET | {key: value for key, value in more.items() if key == "events"}
    found = ol.sweep(tmp_path / "s", scenario, fleet, rates=rates, processes=1, budget_s=60.0)
    assert found.points
    for name in folders(tmp_path / "s"):
        manifest = ol.open_run(tmp_path / "s" / "points" / name).manifest
        assert manifest.window_ns == (0, 20 * 10**9)
        assert manifest.events[0].at_ns == 15 * 10**9


def test_warming_up_ends_before_the_first_event_and_begins_after_priming() -> None:
    rows = [row(i, i / 10, (0.1 if i >= 60 else 2.0,)) for i in range(400)]
    plain = run_of(rows, window_ns=(0, 40 * 10**9))
    assert settled_from(plain, flow_of(plain), 40.0) == 6.0  # the slow start is left out
    event = TimedEvent(at_ns=2 * 10**9, kind="deploy")
    shaken = run_of(rows, window_ns=(0, 40 * 10**9), events=(event,))
    assert settled_from(shaken, flow_of(shaken), 40.0) == 2.0
    primed = run_of(rows, window_ns=(20 * 10**9, 40 * 10**9))
    assert settled_from(primed, flow_of(primed), 40.0) == 22.0


def test_quality_below_the_target_is_not_blamed_on_the_rate(tmp_path: Path) -> None:
    asked = {**ASKED, "slo": "ttft<=300ms, tpot<=30ms, quality", "for": "60s"}
    fleet = {**FLEET, "quality": "quality:fail=5%"}
    found = ol.sweep(tmp_path / "f", asked, fleet, rates=[5.0, 20.0], processes=1)
    assert found.knee.rate is None
    assert found.knee.quality == pytest.approx(0.95, abs=0.02)
    assert re.match(r"quality alone accepts 9\d\.\d%, less than 99.0% at any rate; .*--attain", found.knee.sentence)
    with pytest.raises(SpecError, match="has no knee: quality alone accepts"):
        frontier_system(found)
    lower = ol.sweep(tmp_path / "f", asked, fleet, rates=[5.0, 20.0], processes=1, target=0.9)
    assert lower.knee.above == 20.0
    searched = ol.sweep(tmp_path / "g", asked, fleet, processes=1)
    assert searched.stopped == "quality alone misses the target"


def test_simulated_points_are_long_where_nobody_says_how_long(tmp_path: Path) -> None:
    """Knees of short ones are too high, and ten minutes of a simulation take no time."""
    flags = {name: value for name, value in ASKED.items() if name != "for"}
    ol.sweep(tmp_path / "api", flags, FLEET, rates=[2.0], processes=1)
    (tmp_path / "fleet.yaml").write_text(json.dumps(FLEET))
    asked = [f"--{name}={value}" for name, value in flags.items()]
    command = ["sweep", "--sim", str(tmp_path / "fleet.yaml"), *asked, "--rates", "2", "-o", str(tmp_path / "cli")]
    assert CliRunner().invoke(cli, command).exit_code == 0
    (tmp_path / "scenario.yaml").write_text("for: 20s")
    command[1:1] = [str(tmp_path / "scenario.yaml")]
    command[-1] = str(tmp_path / "said")
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert [read_asked(tmp_path / name).seconds for name in ("api", "cli", "said")] == [600.0, 600.0, 20.0]
