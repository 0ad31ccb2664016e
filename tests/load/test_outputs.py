"""Outputs of a run are kept, graded and repaired while it goes on, and caches are brought into a state before it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import openloop as ol
from openloop.arrivals import Poisson
from openloop.distributions import Fixed, read_distribution
from openloop.load.address import find_place
from openloop.load.conductor import drive
from openloop.load.outputs import Texts
from openloop.load.plan import Load
from openloop.load.targets import Chat
from openloop.persistence import Repair, Retry
from openloop.quality import Grade, read_gating
from openloop.quality.grading import grade_run
from openloop.records import GRADES, TEXTS
from openloop.serve.process import RunningEndpoint, endpoint_process
from openloop.terms import NUMBER
from openloop.workload import Synthetic, Workload, read_source, read_warming


@pytest.fixture(scope="module")
def server() -> Iterator[RunningEndpoint]:
    with endpoint_process("slots:count=10000,prefill=0s,overhead=5ms,gap=1ms") as served:
        yield served


def load_of(server: RunningEndpoint, rate: float = 40.0, seconds: float = 1.0, **more: Any) -> Load:
    server.behave()
    place = find_place(server.url)
    mixed = Workload.of(Synthetic(Fixed(10), read_distribution("uniform(2,9)", NUMBER)))
    target = Chat(place.host, "openloop", place.base)
    load = Load([(place, target)], mixed, Poisson(rate), seconds, timeout_s=5.0, drain_s=3.0)
    return replace(load, **more)


def rows_of(run: ol.Run) -> list[dict[str, Any]]:
    return sorted(run.head(100_000), key=lambda row: (row["request_id"], row["attempt"]))


def texts_of(run: ol.Run) -> dict[tuple[int, int], dict[str, Any]]:
    table, note = run.texts()
    assert table is not None
    assert note is None
    return {(row["request_id"], row["attempt"]): row for row in table.to_pylist()}


def test_outputs_are_kept(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, keep_texts=True), tmp_path / "run")
    texts = texts_of(run)
    assert len(texts) == run.num_rows
    for row in rows_of(run):
        said = texts[row["request_id"], 0]
        assert len(said["text"].split()) == row["output_tokens"]
        assert len(said["prompt"].split()) == 10
    assert not (tmp_path / "run" / GRADES.file).exists()


def test_outputs_are_graded_meanwhile_and_a_second_grading_finds_nothing_to_do(
    server: RunningEndpoint, tmp_path: Path
) -> None:
    gates = ["length:most=6", "length:most=100,unit=characters"]
    run = drive(load_of(server, gating=read_gating(gates)), tmp_path / "run")
    for row in rows_of(run):
        assert row["quality"] is (row["output_tokens"] <= 6)
    assert run.manifest.quality_gate == "length:most=6 and length:most=100,unit=characters"
    assert grade_run(tmp_path / "run", gates, jobs=1).graded == 0


def test_what_fails_is_repaired_with_a_correction(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, gating=read_gating("length:most=6"), repair=Repair(2, "Shorter: {why}!"), retry=Retry())
    run = drive(load, tmp_path / "run")
    run.validate()
    rows, texts = rows_of(run), texts_of(run)
    assert {row["quality"] for row in rows} == {True, False}
    for row in rows:
        mine = [each for each in rows if each["request_id"] == row["request_id"]]
        assert [each["kind"] for each in mine] == (["first"] if mine[0]["quality"] else ["first", "repair", "repair"])
        if row["kind"] == "repair":
            before = texts[row["request_id"], row["attempt"] - 1]
            asked = texts[row["request_id"], row["attempt"]]["prompt"]
            assert asked == f"{before['prompt']} {before['text']} Shorter: it has {row['output_tokens']} words!"
            assert row["sent_ns"] > mine[row["attempt"] - 1]["ended_ns"]
    found = ol.score(run, "ttft<=5s, quality, retries<=2")
    repairs = sum(row["kind"] == "repair" for row in rows)
    assert found.retries.repairs == repairs > 0
    leak = {each.name: each for each in found.leaks}
    assert leak["retries_and_repairs"].requests_per_s == pytest.approx(repairs / found.window_s)


def test_a_grade_that_comes_when_the_run_is_over_makes_no_second_row(server: RunningEndpoint, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ndef check(case):\n    time.sleep(0.4)\n    return False\n")
    gating = read_gating(f"python:{tmp_path}/slow.py:check")
    run = drive(load_of(server, 10.0, 0.5, gating=gating, repair=Repair(1), drain_s=0.2), tmp_path / "run")
    run.validate()
    assert {row["status"] for row in rows_of(run) if row["kind"] == "first"} == {"ok"}
    assert {row["quality"] for row in rows_of(run) if row["status"] == "ok"} == {False}


def test_what_cannot_be_judged_is_counted_in_the_notes(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, gating=read_gating(["exact", "length"])), tmp_path / "run")
    assert {row["quality"] for row in rows_of(run)} == {None}
    assert f"{run.num_rows} outputs could not be judged: there is no reference to compare it with" in run.manifest.notes


def test_a_conversation_goes_on_after_its_repair(server: RunningEndpoint, tmp_path: Path) -> None:
    talk = Workload.of(read_source("sessions:turns=2,think=50ms,prompt=5,output=8"))
    load = load_of(server, 10.0, workload=talk, gating=read_gating("length:most=6"), repair=Repair(1))
    run = drive(load, tmp_path / "run")
    kinds = Counter((row["turn"], row["kind"]) for row in rows_of(run))
    assert kinds[0, "first"] == kinds[0, "repair"] > 0
    assert kinds[1, "first"] > 0
    assert "not acceptable" not in "".join(
        texts_of(run)[row["request_id"], 0]["prompt"] for row in rows_of(run) if row["turn"] == 1
    )


def graded(folder: Path) -> list[dict[str, Any]]:
    return GRADES.read_spool(folder)[0].to_pylist() if (folder / GRADES.spool).exists() else []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_was_kept_and_graded_survives(server: RunningEndpoint, tmp_path: Path, how: int) -> None:
    server.behave()
    command = [sys.executable, "-m", "openloop", "run", "--target", server.url, "--rate", "40", "--for", "60s"]
    command += ["--output", "uniform(2,9)", "--gate", "length:most=6", "--tokens-per-word", "1"]
    folder = tmp_path / "run"
    process = subprocess.Popen([*command, "-o", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while time.monotonic() < until and len(graded(folder)) < 20:
        time.sleep(0.1)
    os.kill(process.pid, how)
    process.communicate(timeout=30)
    run = ol.open_run(folder)
    texts = TEXTS.read(folder)[0]
    assert texts is not None
    assert texts.num_rows >= run.num_rows > 0
    if how == signal.SIGINT:
        assert run.manifest.finished
        assert {row["quality"] for row in rows_of(run)} == {True, False}
    else:
        assert len(graded(folder)) >= 20


def salts(run: ol.Run) -> dict[int, str]:
    found = {key[0]: re.match(r"([0-9a-f]{8}) ", row["prompt"]) for key, row in texts_of(run).items()}
    return {number: match[1] for number, match in found.items() if match}


def test_a_cold_cache_meets_only_prompts_that_begin_anew(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, keep_texts=True, warming=read_warming("cold-cache"))
    run = drive(load, tmp_path / "run")
    found = salts(run)
    assert len(found) == len(set(found.values())) == run.num_rows
    assert run.manifest.cache_warmth == "warm-model cold-cache"
    again = drive(load, tmp_path / "again")
    assert not set(salts(again).values()) & set(found.values())


def test_a_warm_cache_was_asked_every_prefix_before(server: RunningEndpoint, tmp_path: Path) -> None:
    asked = Workload.of(read_source("synthetic:prompt=5,output=2,prefixes=3,prefix=20"))
    load = load_of(server, workload=asked, keep_texts=True, warming=read_warming("warm-cache"))
    server.truth()
    run = drive(load, tmp_path / "run")
    assert len(set(salts(run).values())) == 1
    assert "primed with 3 of 3 prefixes" in run.manifest.notes
    assert run.manifest.cache_warmth == "warm-cache"
    primes = [number for number in server.truth() if number >= 1 << 40]
    assert len(primes) == 3
    assert all(len(row["prompt"].split()) == 26 for row in texts_of(run).values())


def test_a_disruption_changes_every_prefix_at_a_marked_time(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, seconds=2.0, keep_texts=True, warming=read_warming("disrupted:at=500ms"))
    mine = ol.TimedEvent(at_ns=10**9, kind="deploy")
    run = drive(replace(load, facts={"events": (mine,)}), tmp_path / "run")
    event, other = run.manifest.events
    assert other == mine
    assert (event.kind, event.at_ns) == ("salt-rotation", 500_000_000)
    found = salts(run)
    sides = {row["scheduled_ns"] >= event.at_ns: found[row["request_id"]] for row in rows_of(run)}
    assert len(set(sides.values())) == 2
    assert all(found[row["request_id"]] == sides[row["scheduled_ns"] >= event.at_ns] for row in rows_of(run))


def test_a_salt_may_be_a_field_of_the_request(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, keep_texts=True, warming=read_warming("cold-cache"), cache_salt=True)
    run = drive(load, tmp_path / "run")
    assert not salts(run)
    assert all(len(row["prompt"].split()) == 10 for row in texts_of(run).values())


def test_a_hit_rate_that_is_never_told_is_not_called_steady(server: RunningEndpoint, tmp_path: Path) -> None:
    run = drive(load_of(server, warming=read_warming("hot:most=1s")), tmp_path / "run")
    assert run.manifest.cache_warmth is None
    assert any("the hit rate was not steady yet after" in note for note in run.manifest.notes)
    assert run.manifest.window_ns is not None
    opened, end = run.manifest.window_ns
    assert 1e9 <= opened < 2.5e9
    assert end - opened == 10**9
    assert max(row["scheduled_ns"] for row in rows_of(run)) < end


def test_a_server_that_cannot_be_primed_has_no_warm_cache(server: RunningEndpoint, tmp_path: Path) -> None:
    asked = Workload.of(read_source("synthetic:prompt=5,output=2,prefixes=3,prefix=20"))
    load = load_of(server, workload=asked, warming=read_warming("warm-cache"))
    server.behave(fault="error")
    run = drive(load, tmp_path / "run")
    server.behave()
    assert run.manifest.cache_warmth is None
    assert any(note.startswith("primed with 0 of 3 prefixes: status 500") for note in run.manifest.notes)


def test_a_model_that_could_not_be_asked_beforehand_is_told_of(server: RunningEndpoint, tmp_path: Path) -> None:
    load = load_of(server, warming=read_warming("cold-cache"))
    server.behave(fault="error")
    run = drive(load, tmp_path / "run")
    assert run.manifest.cache_warmth is None
    assert "the model could not be asked beforehand: status 500: error, as commanded" in run.manifest.notes


def test_what_grades_cost_at_the_end_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Judges:
        pending = 2

        def finished(self, timeout_s: float) -> Iterator[tuple[tuple[int, int], Grade]]:
            while self.pending:
                self.pending -= 1
                yield (self.pending, 0), Grade(True, cost=0.25)

        def close(self) -> None:
            pass

    monkeypatch.setattr("openloop.load.outputs.Pool", lambda *_, **__: Judges())
    texts = Texts(tmp_path, read_gating(["json"]))
    texts.finish(lambda _: False, [])
    assert texts.cost == 0.5
    texts.close()
