"""Plans, calculators, decisions and tuning from the command line."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from openloop.cli import cli, main

PLAN = ("plan", "--knee", "450/s", "--demand", "9000/s")


@dataclass(frozen=True)
class Told:
    stdout: str


def call(*words: str | Path) -> Told:
    done = CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return Told(done.stdout)


def test_a_plan_is_written_in_three_forms_and_shown_again(tmp_path: Path) -> None:
    names = ("plan.json", "plan.html", "plan.md")
    outs = [word for name in names for word in ("-o", str(tmp_path / name))]
    told = call(*PLAN, "--capacity", "500/s", "--price", "3/h", *outs).stdout
    assert "Deploy 20 replicas for 60.0 an hour, not the 18 of raw capacity" in told
    assert all((tmp_path / name).stat().st_size > 500 for name in names)
    again = call("report", tmp_path / "plan.json", "-o", tmp_path / "again.html").stdout
    assert "Deploy 20 replicas" in again
    assert (tmp_path / "again.html").read_text() == (tmp_path / "plan.html").read_text()
    found = json.loads(call("report", tmp_path / "plan.json", "--json").stdout)
    assert found["data"]["replicas"] == 20


def test_calculators_answer_in_any_direction_and_draw(tmp_path: Path) -> None:
    plot = tmp_path / "fan.svg"
    assert "slow 63.4% of the time" in call("fanout", "--n", "100", "--p", "1%", "--plot", plot).stdout
    assert plot.stat().st_size > 5000
    assert json.loads(call("fanout", "--p", "1%", "--slow", "10%", "--json").stdout)["n"] == 10
    assert (
        "8 replicas at least" in call("little", "--rate", "5000", "--latency", "46.8ms", "--per-replica", "30").stdout
    )
    assert json.loads(call("little", "--in-flight", "24", "--latency", "60ms", "--json").stdout)["rate"] == 400
    batch = json.loads(call("batch", "--fixed", "4ms", "--each", "0.9ms", "--size", "16", "--json").stdout)
    assert batch["throughput"] == pytest.approx(16 / 0.0184)
    hedge = json.loads(call("hedge", "--service", "exponential(10ms)", "--extra", "2%", "--json").stdout)
    assert hedge["extra"] == pytest.approx(0.02, abs=1e-3)
    assert "p50: 0 s -> 0 s, 0% less" in call("hedge", "--service", "normal(0ms,1ms)").stdout
    assert "10.0 times fewer" in call("fanout", "--n", "10", "--p", "1e-17").stdout


def test_a_decision_and_a_tuning_are_folders(tmp_path: Path) -> None:
    option = "{attainment: 58% of 10000, cost_per_request: 0.011}"
    other = "{attainment: 85% of 10000, cost_per_request: 0.0145}"
    (tmp_path / "ask.yaml").write_text(f"decision: model\ndemand: 1/s\noptions:\n  X: {option}\n  Y: {other}\n")
    assert "Use Y" in call("decide", tmp_path / "ask.yaml", "-o", tmp_path / "d").stdout
    assert json.loads((tmp_path / "d" / "decision.json").read_text())["choose"] == "Y"
    assert (tmp_path / "d" / "decision.html").exists()
    (tmp_path / "fleet.yaml").write_text("step: {floor: 10ms, token: 100us}\nprice_per_hour: 2\n")
    (tmp_path / "space.yaml").write_text("replicas: [1, 2, 3]\nmax_sequences: [2, 4]\n")
    words = ("--space", tmp_path / "space.yaml", "--slo", "ttft<=200ms", "--rate", "10", "--for", "10s")
    told = call("tune", tmp_path / "fleet.yaml", *words, "--processes", "1", "-o", tmp_path / "t").stdout
    assert "Use replicas" in told
    assert {each.name for each in (tmp_path / "t").iterdir()} >= {"best.yaml", "tuning.html", "trials.jsonl"}


def test_a_calibrated_fleet_is_planned_and_tuned_for_what_was_measured(tmp_path: Path) -> None:
    asked = "{workload: 'synthetic:prompt=20,output=10', slo: ttft<=200ms}"
    fleet = tmp_path / "model.yaml"
    fleet.write_text(f"step: {{floor: 10ms, token: 100us}}\nmax_sequences: 4\ncalibration: {asked}\n")
    found = json.loads(call("plan", fleet, "--demand", "30/s", "--for", "20s", "--attain", "90%", "--json").stdout)
    assert found["system"]["slo"] == "ttft<=200ms"
    assert 20 < found["system"]["knee"] < 45  # four at a time, a tenth of a second each
    (tmp_path / "space.yaml").write_text("max_sequences: [2, 4]\n")
    words = ("--space", tmp_path / "space.yaml", "--rate", "20", "--for", "10s", "--maximize", "goodput", "--json")
    tuned = json.loads(call("tune", fleet, *words, "--processes", "1").stdout)
    assert tuned["slo"] == "ttft<=200ms"
    assert tuned["best"]["attainment"] > 0.5
    fleet.write_text(fleet.read_text().replace("ttft<=200ms", "'ttft<=200ms, quality'"))
    refused = CliRunner().invoke(cli, ["plan", str(fleet), "--demand", "30/s"])
    assert "have no quality" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("plan", "--demand", "5/s"), "say what one replica does"),
        (("plan", "--knee", "450/s"), "say what to serve"),
        ((*PLAN[:3], "--demand", "0/s"), "the demand is 0/s"),
        ((*PLAN, "--availability", "100%"), "100% cannot be reached"),
        ((*PLAN, "--price", "3"), "write it as 3/h"),
        ((*PLAN, "--peak", "half"), "not a number"),
        ((*PLAN, "-o", "plan.pdf"), "write a .json, a .html or a .md"),
        (("plan", "nowhere", "--demand", "5/s", "-o", "plan.pdf"), "write a .json"),  # before it takes minutes
        (("plan", "nowhere", "--demand", "5/s"), "does not exist"),
        (("plan", "--knee", "1/s,2/s", "--demand", "5/s"), "one rate above 0, or three"),
        (
            ("plan", "--in-flight", "nan", "--latency", "1s", "--demand", "5/s"),
            "'nan' is not a number that can be used",
        ),
        ((*PLAN, "--tokens", "inf"), "'inf' is not a number that can be used"),
        (("little", "--in-flight", "nan", "--latency", "1s"), "'nan' is not a number"),
        (("cost", "--steady", "nan", "--disrupted", "1"), "'nan' is not a number that can be used"),
        (("fanout", "--n", "3"), "give two of"),
        (("fanout", "--n", "0", "--p", "1%"), "at least one"),
        (("little", "--rate", "3"), "give two of"),
        (("batch", "--fixed", "1s", "--each", "1s", "--within", "1ms"), "even a batch of one"),
        (("hedge", "--service", "exponential(1s)", "--after", "p100"), "percentile 100"),
        (("hedge", "--service", "exponential(1s)", "--after", "20ms"), "--after is '20ms'; it is a percentile"),
        (("fanout", "--n", "1" + 20 * "0", "--p", "1%"), "up to 1,000,000,000,000 are looked at"),
        (
            ("batch", "--fixed", "1ms", "--each", "1ms", "--size", "1" + 20 * "0"),
            "up to 1,000,000,000,000 are looked at",
        ),
        (("decide", "nowhere.yaml"), "cannot be read"),
        (("tune", "nowhere.yaml", "--space", "x.yaml", "--slo", "ttft<=1s", "--rate", "1"), "cannot be read"),
        (("sweep", "--compare", "b", "--warmth", "hot,cold-cache", "-o", "x"), "--compare takes one state"),
    ],
)
def test_bad_input_is_one_sentence(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["openloop", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("more", [("--attain", "50%"), ("--prompt", "4000"), ("--seed", "3"), ("--slo", "ttft<=1ms")])
def test_what_a_plan_would_not_look_at_is_refused(more: tuple[str, str]) -> None:
    done = CliRunner().invoke(cli, ["plan", "--knee", "450/s", "--demand", "500/s", *more])
    assert done.exit_code == 2
    assert f"leave out {more[0]}, or give a fleet.yaml" in done.output
