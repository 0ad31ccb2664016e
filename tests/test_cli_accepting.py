"""Grading, costs, audits and warmth from the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from openloop.audit import Audit, Claim, Fact
from openloop.cli import cli
from openloop.records import TEXTS, TimedEvent
from tests.runs import row, write_run
from tests.test_cli import call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """200 answers of which a tenth is no JSON, and an event after ten seconds."""
    rows = [row(i, due=i / 10, tokens=[0.1, 0.2], prompt_tokens=10) for i in range(200)]
    event = TimedEvent(at_ns=10 * 10**9, kind="deploy")
    folder = write_run(tmp_path / "run", rows, slo="ttft<=1s, quality", events=(event,), window_ns=(0, 20 * 10**9))
    writer = TEXTS.writer(folder)
    texts = [{"request_id": i, "attempt": 0, "prompt": "p", "text": "no" if i % 10 == 0 else "1"} for i in range(200)]
    writer.append(TEXTS.of(texts))
    writer.finish()
    return folder


def test_a_run_is_graded_scored_priced_and_audited(run: Path, tmp_path: Path) -> None:
    text = call("grade", run, "--gate", "json", "--jobs", "2").stdout
    assert "200 outputs, 200 judged now by json" in text
    assert "too few to tell" in text
    told = json.loads(call("grade", run, "--gate", "json", "--json").stdout)
    assert (told["graded"], told["passed"], told["failed"]) == (0, 180, 20)
    prices = tmp_path / "prices.yaml"
    prices.write_text("per_gpu_hour: 3\ngpus: 4\nper_human_review: 0.5\n")
    cost = json.loads(call("cost", run, "--prices", prices, "--disruption", "5s", "--every", "1h,1d", "--json").stdout)
    assert cost["cost"]["human_review"] == 10.0
    assert cost["cost"]["hourly"] == pytest.approx(12 / 180)
    assert [blend["every_s"] for blend in cost["blends"]] == [3600.0, 86400.0]
    assert "per accepted request" in call("cost", run, "--prices", prices).stdout
    assert "nothing is known of what it cost" in call("cost", run).stdout
    assert "lower bound" not in call("cost", run, "--prices", prices).stdout
    found = json.loads(call("audit", run, "--json").stdout)
    assert {fact["name"]: fact["found"] for fact in found["facts"]}["quality_gate"] == "json"
    assert "8 of 12 facts are missing" in call("audit", run, "--strict", code=1).stdout


def test_the_cost_of_another_tools_file_is_told(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("per_hour: 12\n")
    file = Path(__file__).parent / "importers/files/vllm.json"
    slo = ("--slo", "ttft<=250ms")
    assert f"{file}: 40 accepted requests for" in call("cost", file, *slo, "--prices", prices, code=1).stdout
    assert f"{file}: nothing is known of what it cost" in call("cost", file, *slo, code=1).stdout


def test_what_an_audit_shows_fits_a_terminal_and_says_why_a_claim_is_not_supported(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, why = "x" * 5000, ("the run was not closed",)
    claims = [Claim("it is fast", supported=False, lacks=())]
    monkeypatch.setattr(
        "openloop.audit.audit", lambda *_: Audit("run", "run", 1, why, [Fact("engine_flags", flags, "")], claims)
    )
    lines = CliRunner().invoke(cli, ["audit", str(run)]).stdout.splitlines()
    assert max(map(len, lines)) < 200
    assert any(line.split()[-4:] == ["no", "a", "valid", "run"] for line in lines)


def test_shares_of_a_cost_are_of_the_cost(run: Path, tmp_path: Path) -> None:
    call("grade", run, "--gate", "json", "--jobs", "2")
    prices = tmp_path / "prices.yaml"
    prices.write_text("per_gpu_hour: 3\ngpus: 4\nper_human_review: 0.5\n")  # of the 20 in 200 that failed
    (line,) = [each for each in call("cost", run, "--prices", prices).stdout.splitlines() if "quality failures" in each]
    assert float(line.split()[-1].strip("%")) > 90


def test_a_strict_audit_does_not_pass_what_is_not_valid(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Audit("run", "run", 1, ("the run was not closed",), [Fact("slo", "ttft<=1s", "")], [])
    monkeypatch.setattr("openloop.audit.audit", lambda *_: everything)
    assert CliRunner().invoke(cli, ["audit", str(run)]).exit_code == 0
    assert CliRunner().invoke(cli, ["audit", str(run), "--strict"]).exit_code == 1


def test_a_cost_that_is_not_known_in_full_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [row(i, due=i / 10, tokens=[0.1]) for i in range(200)], slo="ttft<=1s")
    prices = tmp_path / "prices.yaml"
    prices.write_text("per_request: 0.01\nper_million_input_tokens: 1\n")
    text = call("cost", run, "--prices", prices).stdout
    assert "200 accepted requests for 2.00" in text
    assert "cost is known in full for 0.0% of requests" in text


def test_the_articles_deployments_need_no_run() -> None:
    text = call("cost", "--steady", "0.012", "--disrupted", "0.035", "--disruption", "20m", "--every", "12h,7d").stdout
    assert "0.012639" in text
    assert "0.012046" in text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["grade", "RUN"], "Missing option '--gate'"),
        (["grade", "RUN", "--gate", "jsn"], "unknown quality gate 'jsn'; did you mean 'json'?"),
        (["grade", "RUN", "--gate", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["grade", "NOWHERE", "--gate", "json"], "does not exist"),
        (["cost"], "give a RUN, or --steady and --disrupted"),
        (["cost", "RUN", "--steady", "1"], "a RUN has costs of its own"),
        (["cost", "--steady", "-1", "--disrupted", "1"], "-1.0 is not in the range x>=0"),
        (["cost", "--steady", "1", "--disrupted", "1", "--every", "1m"], "shorter than the time between"),
        (
            ["cost", "--steady", "1", "--disrupted", "1", "--every", "12h,,7d"],
            "value for '--every': '' is not a number",
        ),
        (["cost", "RUN", "--prices", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["audit", "NOWHERE"], "does not exist"),
        (["run", "--target", "http://localhost:9", "--rate", "1", "--gate", "jsn"], "unknown quality gate 'jsn'"),
        (["run", "--target", "http://localhost:9", "--rate", "1", "--repair", "1"], "a repair needs a quality gate"),
        (
            ["run", "--target", "http://localhost:9", "--rate", "1", "--warmth", "cold"],
            "cannot be unloaded from outside",
        ),
        (["run", "--target", "http://localhost:9", "--rate", "1", "--warmth", "tepid"], "unknown cache warmth 'tepid'"),
        (["run", "--target", "http://localhost:9", "--rate", "1", "--warmth", "disrupted:at=2m"], "make it earlier"),
    ],
)
def test_mistakes_are_one_sentence(run: Path, args: list[str], sentence: str) -> None:
    named = [{"RUN": str(run), "NOWHERE": f"{run}x"}.get(each, each) for each in args]
    done = call(*named, code=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_fleet_is_brought_into_a_state_and_labelled(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("model: 8b\ngpu: h100\nprice_per_hour: 3\n")
    asked = ["sim", str(fleet), "--rate", "5", "--for", "2m", "--workload", "synthetic:prompt=50,output=20,prefix=3000"]
    asked += ["--slo", "ttft<=1s, quality", "--quality", "quality:fail=5%", "--json"]
    cold, warm = (json.loads(call(*asked, "--warmth", each).stdout) for each in ("cold-cache", "warm-cache"))
    assert cold["cache_hit_rate"] == 0.0
    assert warm["cache_hit_rate"] > 0.9
    assert warm["quality"]["judged"] == warm["completed"]
    assert warm["ttft_s"]["p50"] < cold["ttft_s"]["p50"] / 2
    assert warm["cost"]["hourly"] == pytest.approx(3 * 120 / 3600)


def test_rates_and_policies_take_what_one_rate_does(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("model: 8b\ngpu: h100\n")
    asked = ["sim", str(fleet), "--prompt", "300", "--output", "40", "--for", "30s", "--slo", "ttft<=50ms, quality"]
    asked, labels = [*asked, "--json"], ["--quality", "quality:fail=20%"]
    points = json.loads(call(*asked, *labels, "--rates", "4,8").stdout)["points"]
    assert all(0.6 < point["attainment"] < 0.95 for point in points)
    call(*asked, "--rates", "4,8", code=1)  # no label: none can be accepted
    policies = ["--rate", "4", "--policies", "round-robin,least-requests", "--seeds", "2"]
    usual, longer = (
        json.loads(call(*asked, *labels, *policies, *more).stdout)[0] for more in ([], ["--prompt-mean", "20x"])
    )
    assert 0.6 * 4 < usual["goodput_rps"]["mean"] < 0.95 * 4
    assert longer["goodput_rps"]["mean"] < 0.5 * usual["goodput_rps"]["mean"]
