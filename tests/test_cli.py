"""The commands as people and machines call them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import openloop
from openloop.cli import cli
from openloop.cli.exchange import FORMS
from openloop.export import EXPORTERS
from openloop.serve.process import endpoint_process
from tests.runs import row, write_run

ROWS = [row(i, due=i / 20, tokens=[0.1 + (0.6 if i % 10 == 0 else 0), 0.8], replica=f"r{i % 3}") for i in range(200)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ROWS)


def call(*args: str | Path, code: int | None = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "openloop", *map(str, args)], capture_output=True, text=True, check=False
    )
    assert code is None or done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def test_score_prints_a_table(run: Path) -> None:
    text = call("score", run, "--slo", "ttft<=500ms").stdout
    assert "attainment" in text
    assert "90.0%" in text


def test_score_prints_json_that_equals_the_python_api(run: Path) -> None:
    found = json.loads(
        call("score", run, "--slo", "ttft<=500ms", "--by", "replica,class", "--window", "2s", "--json").stdout
    )
    same = openloop.score(run, "ttft<=500ms", by=["replica", "class"], window_s=2.0).to_dict()
    assert found == json.loads(json.dumps(same))
    assert found["attainment"] == 0.9


@pytest.mark.parametrize(("share", "code"), [("90%", 0), ("0.9", 0), ("90.1%", 1)])
def test_a_requirement_decides_the_exit_code(run: Path, share: str, code: int) -> None:
    done = call("score", run, "--slo", "ttft<=500ms", "--require", share, code=code)
    assert ("required attainment 90.1%, reached 90% of requests" in done.stderr) == bool(code)


def test_a_requirement_is_about_what_the_slo_counts(tmp_path: Path) -> None:
    rows = [{**each, "session_id": each["request_id"] // 20, "quality": True, "cost": 0.5} for each in ROWS]
    folder = write_run(tmp_path / "run", rows)
    done = call("score", folder, "--slo", "agentic, ttft<=500ms", "--require", "50%", code=1)
    assert "required attainment 50%, reached 0% of tasks" in done.stderr
    assert "cost per accepted request" in done.stdout
    assert "cost per accepted task" in done.stdout
    told = call("cost", folder, "--slo", "agentic").stdout
    assert "accepted requests for" in told
    assert "per accepted task" in told


def test_a_run_that_is_not_valid_exits_with_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ROWS[:20])
    assert "INVALID" in call("score", folder, "--slo", "ttft<=500ms", code=1).stdout
    assert json.loads(call("score", folder, "--slo", "ttft<=500ms", "--json", code=1).stdout)["valid"] is False


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["score", "nowhere", "--slo", "ttft<=1s"], "openloop: nowhere does not exist"),
        (["score", "{run}"], "openloop: there is no goodput without an SLO"),
        (["score", "{run}", "--slo", "ttft<=1"], "openloop: SLO term 1, 'ttft<=1': '1' needs a unit"),
        (["score", "{run}", "--slo", "missing.yaml"], "openloop: missing.yaml cannot be read: No such file"),
        (["score", "{run}", "--slo", "ttft<=1s", "--by", "model"], "openloop: cannot group by 'model'"),
        (["score", "{run}", "--slo", "ttft<=1s", "--require", "high"], "'high' is not a number"),
        (["score", "{run}", "--slo", "ttft<=1s", "--window", "60"], "'60' needs a unit; write it as 60ms, 60s"),
        (["inspect", "{run}/run.json"], "run.json is a file; give the folder it is in"),
        (["score"], "Missing argument 'RUN'"),
        (["scor"], "No such command 'scor'"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_two(run: Path, args: list[str], sentence: str) -> None:
    done = call(*(arg.replace("{run}", str(run)) for arg in args), code=2)
    assert sentence in done.stderr
    assert done.stdout == ""


def test_a_damaged_run_is_refused_by_both_commands(run: Path) -> None:
    table = run / "requests.parquet"
    table.write_bytes(table.read_bytes()[:-100])
    for args in (["inspect"], ["score", "--slo", "ttft<=1s"]):
        assert "requests.parquet is damaged or cut short" in call(args[0], run, *args[1:], code=2).stderr


def test_inspect_names_the_row_that_breaks_a_rule(run: Path) -> None:
    table = pq.read_table(run / "requests.parquet")
    late = pa.array([10**18 if i == 7 else None for i in range(200)], pa.int64())
    pq.write_table(
        table.set_column(table.schema.get_field_index("first_any_ns"), "first_any_ns", late), run / "requests.parquet"
    )
    call("inspect", run)
    broken = pa.array([-1 if i == 7 else 1 for i in range(200)], pa.int32())
    pq.write_table(table.set_column(table.schema.get_field_index("turn"), "turn", broken), run / "requests.parquet")
    assert "row 7 (request 7): turn is -1" in call("inspect", run, code=2).stderr


def test_inspect_exits_with_one_for_a_run_that_is_not_valid(tmp_path: Path) -> None:
    assert "INVALID" in call("inspect", write_run(tmp_path / "run", ROWS[:3]), code=1).stdout


def test_a_bad_slo_in_the_manifest_does_not_hide_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ROWS, slo="ttft<=1")
    assert "INVALID: the SLO in the run's own manifest cannot be used" in call("inspect", folder, code=1).stdout
    assert "the SLO in the run's own manifest cannot be used" in call("score", folder, code=2).stderr


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [r | {"quality_score": float("nan")} for r in ROWS])
    assert (
        json.loads(call("inspect", folder, "--json").stdout, parse_constant=pytest.fail)["head"][0]["quality_score"]
        is None
    )


def test_an_unforeseen_error_is_told_apart_from_a_missed_slo(run: Path) -> None:
    code = (
        "import sys, openloop.cli, openloop.records; sys.argv = ['openloop', 'inspect', sys.argv[1]]\n"
        "def broken(*_): raise ZeroDivisionError('by zero')\n"
        "openloop.records.open_run = broken\n"
        "openloop.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "a defect, please report it: ZeroDivisionError: by zero" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_interrupt_is_one_word_and_exit_code_130(run: Path) -> None:
    code = (
        "import sys, openloop.cli, openloop.records; sys.argv = ['openloop', 'inspect', sys.argv[1]]\n"
        "def interrupted(*_): raise KeyboardInterrupt\n"
        "openloop.records.open_run = interrupted\n"
        "openloop.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "openloop: interrupted")


def test_a_full_disk_behind_the_output_is_an_error(run: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "openloop", "score", str(run), "--slo", "ttft<=1s"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr


def test_a_terminal_that_knows_only_ascii_gets_its_table(run: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "openloop", "score", str(run), "--slo", "ttft<=500ms"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0
    assert "attainment" in done.stdout


def test_groups_may_be_named_together_or_apart(run: Path) -> None:
    together, apart = (
        json.loads(call("score", run, "--slo", "ttft<=1s", "--json", *flags).stdout)["by"]
        for flags in (["--by", "replica, turn"], ["--by", "replica", "--by", "turn"])
    )
    assert together == apart
    assert list(together) == ["replica", "turn"]


def test_disruptions_last_as_long_as_they_are_told_to(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ROWS, events=(openloop.TimedEvent(at_ns=10**9, kind="deploy"),))
    found = json.loads(call("score", folder, "--slo", "ttft<=1s", "--json", "--disruption", "2s").stdout)
    assert [(d["start_s"], d["end_s"]) for d in found["disruptions"]] == [(1.0, 3.0)]


def test_inspect_shows_what_a_run_is(run: Path) -> None:
    text = call("inspect", run, "--rows", "3").stdout
    assert "test, 200 rows" in text
    assert "VALID" in text
    assert text.count("first") == 3


def test_inspect_prints_json(run: Path) -> None:
    found = json.loads(call("inspect", run, "--rows", "2", "--json").stdout)
    assert (found["rows"], found["valid"], len(found["head"])) == (200, True, 2)
    assert found["manifest"]["source"] == "test"
    assert found["head"][1]["event_ns"] == [150_000_000, 850_000_000]


def test_a_reader_that_goes_away_is_no_error(run: Path) -> None:
    command = f"{sys.executable} -m openloop inspect {run} --rows 200 --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_help_imports_nothing_heavy() -> None:
    """`openloop --help` must take less than 0.3 s of CPU: none of these is loaded for it."""
    code = (
        "import sys; sys.argv = ['openloop', '--help']\n"
        "import openloop.cli\n"
        "try:\n    openloop.cli.main()\n"
        "finally:\n    print([m for m in ('numpy', 'pyarrow', 'numba', 'rich', 'msgspec', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip().endswith("[]")


def test_the_version_is_that_of_the_package() -> None:
    assert openloop.__version__ in call("--version").stdout


def test_a_queue_is_run_and_scored(tmp_path: Path) -> None:
    queue, out = "fcfs:service=exponential(2ms)", tmp_path / "run"
    done = call(
        "queue", queue, "--rate", "300", "--for", "2m", "--slo", "e2e<=200ms", "--price", "3", "-o", out, "--json"
    )
    found = json.loads(done.stdout)
    assert found["valid"] is True
    assert found["attainment"] == 1.0
    assert found["cost_per_accepted"] > 0
    assert found["e2e_s"]["mean"] == pytest.approx(1 / (500 - 300), rel=0.1)
    again = json.loads(call("score", out, "--json").stdout)
    assert again == found
    assert openloop.open_run(out).manifest.command[:3] == ["openloop", "queue", queue]  # type: ignore[index]


def test_a_queue_without_an_slo_is_shown(tmp_path: Path) -> None:
    done = call("queue", "fcfs:1ms", "--arrivals", "constant:rate=100", "--for", "10s")
    assert "fcfs:service=1ms" in done.stdout


def test_a_queue_does_not_write_over_a_run(run: Path) -> None:
    done = call("queue", "fcfs:1ms", "--rate", "100", "-o", run, code=2)
    assert str(run) in done.stderr
    assert openloop.open_run(run).num_rows == len(ROWS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fcfs:1ms"], "say when requests are due: --rate 450 or --arrivals"),
        (["fcfs:1ms", "--rate", "3", "--arrivals", "poisson:rate=3"], "and not both"),
        (["fcfs:1ms", "--rate", "fast"], "'fast' is not a number"),
        (["fcfs:1ms", "--rate", "3", "--for", "10"], "'10' needs a unit"),
        (["fcfs:1ms", "--rate", "3", "--slo", "ttft"], "SLO term 1"),
        (["fcsf:1ms", "--rate", "3"], "unknown queue 'fcsf'; did you mean 'fcfs'?"),
    ],
)
def test_mistakes_with_a_queue_are_named(arguments: list[str], sentence: str) -> None:
    assert sentence in " ".join(call("queue", *arguments, code=2).stderr.split())


def test_a_server_is_driven_and_scored(tmp_path: Path) -> None:
    with endpoint_process("slots:count=100,prefill=0.1ms,gap=2ms") as server:
        arguments = ["--target", f"{server.url}/v1", "--arrivals", "constant:rate=60", "--for", "3s"]
        arguments += ["--prompt", "uniform(5,20)", "--output", "6", "--price", "2", "-o", str(tmp_path / "run")]
        found = json.loads(
            call("run", *arguments, "--slo", "ttft<=1s, tpot<=100ms", "--json", code=None).stdout
        )  # a busy machine: invalid
        assert found["attainment"] == 1.0
        assert found["cost_per_accepted"] > 0
        manifest = openloop.open_run(tmp_path / "run").manifest
        assert manifest.model == "openloop"
        assert manifest.target == f"{server.url}/v1"
        call("run", *arguments, code=2)  # the folder holds a run already
        shown = call("run", *arguments[:-1], tmp_path / "b", code=None)
        assert "the run is in" in shown.stdout
        assert "offered" in shown.stderr


def test_a_key_is_sent_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sesame-open")
    with endpoint_process("slots") as server:
        arguments = ["--target", server.url, "--arrivals", "constant:rate=60", "--for", "2s", "--key-env", "MY_KEY"]
        done = call("run", *arguments, "--output", "3", "-o", tmp_path / "run", code=None)
    assert "sesame" not in done.stdout + done.stderr
    for path in (tmp_path / "run").iterdir():
        assert b"sesame" not in path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rate", "3"], "say whom to ask: --target http://localhost:8000"),
        (["--target", "http://127.0.0.1:9", "--model", "m"], "say when requests are due: --rate 20, or --arrivals"),
        (["--target", "http://127.0.0.1:9", "--rate", "3"], "does not say which models it has"),
        (["--target", "http://nowhere.invalid", "--rate", "3"], "'nowhere.invalid' cannot be found"),
        (["--target", "ftp://x", "--rate", "3"], "'ftp://x' is no address of a server"),
        (["--target", "http://x:99999", "--rate", "3"], "has a port that is none; write http://host:8000"),
        (["--target", "http://127.0.0.1:9", "--rate", "3", "--model", "m", "--prompt", "long"], "--prompt: "),
        (["--target", "http://127.0.0.1:9", "--rate", "3", "--model", "m", "--header", "x"], "--header 'x' is none"),
        (["--target", "http://127.0.0.1:9", "--rate", "3", "--model", "m", "--extra", "{"], "--extra '{' is not JSON"),
        (["--target", "http://127.0.0.1:9", "--rate", "3", "--model", "m", "--slo", "ttfd<=1s"], "unknown gate 'ttfd'"),
    ],
)
def test_mistakes_in_a_run_are_named_before_anything_is_sent(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    assert sentence in call("run", *arguments, "-o", tmp_path / "run", code=2).stderr
    assert not (tmp_path / "run").exists()


def test_a_scenario_is_started_checked_and_described(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    call("init", path)
    assert "is there already" in call("init", path, code=2).stderr
    checked = call("validate", path).stdout
    assert "can be run" in checked
    assert "prompt" in checked
    assert "unknown key" in call("validate", _changed(path, "seed:", "sede:"), code=2).stderr
    found = json.loads(call("workload", "describe", path, "--json").stdout)
    assert 150 < found["requests"] < 350


def _changed(path: Path, before: str, after: str) -> Path:
    other = path.with_name("other.yaml")
    other.write_text(path.read_text().replace(before, after))
    return other


def test_a_workload_is_shown_and_drawn(tmp_path: Path) -> None:
    spec = "synthetic:prompt=lognormal(median=500,sigma=0.8),output=64,prefixes=5,prefix=300"
    shown = call("workload", "describe", spec, "--rate", "20", "--for", "60s", "-o", tmp_path / "w.svg").stdout
    assert "of prompt tokens were seen before" in shown
    assert "█" in shown
    assert "p99" in (tmp_path / "w.svg").read_text()
    assert "say when requests are due" in call("workload", "describe", spec, code=2).stderr
    assert ".svg or .png" in call("workload", "describe", spec, "--rate", "5", "-o", tmp_path / "w.pdf", code=2).stderr


def test_a_fleet_is_simulated_scored_and_explained(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("model: 8b\ngpu: h100\n")
    arguments = ["--rate", "4", "--for", "5m", "--prompt", "500", "--output", "50", "-o", str(tmp_path / "run")]
    found = json.loads(call("sim", fleet, *arguments, "--slo", "ttft<=1s, tpot<=40ms", "--json").stdout)
    assert found["attainment"] == 1.0
    assert openloop.open_run(tmp_path / "run").manifest.model == "8b"
    assert "floor = " in call("sim", fleet, "--explain").stdout
    fleet.write_text("model: 8b\ngpu: h100\nbatching: chunky\n")
    assert "did you mean 'chunked'" in call("sim", fleet, "--rate", "4", code=2).stderr
    fleet.write_text("model: 8b\ngpu: h100\nmemory_tokens: 100\n")
    assert "longer than the memory" in call("sim", fleet, "--rate", "4", code=2).stderr
    assert "rate is 0.0" in call("sim", fleet, "--rate", "0", code=2).stderr


def test_an_interrupted_sweep_of_a_fleet_exits_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("model: 8b\ngpu: h100\n")
    monkeypatch.setattr("openloop.frontier.measure._simulate", interrupted)
    assert CliRunner().invoke(cli, ["sim", str(fleet), "--rates", "4", "--slo", "ttft<=1s"]).exit_code == 130


def test_a_server_that_is_not_there_makes_a_run_of_failures(tmp_path: Path) -> None:
    arguments = ["--target", "http://127.0.0.1:9", "--model", "m", "--rate", "200", "--for", "1s"]
    done = call("run", *arguments, "--slo", "ttft<=1s", "-o", tmp_path / "run", code=1)
    assert "no connection: connection refused" in done.stderr
    assert "none of the" in done.stdout
    assert "connection refused" in openloop.open_run(tmp_path / "run").head(1)[0]["error"]
    assert "Traceback" not in done.stdout


def test_the_machine_is_tested(tmp_path: Path) -> None:
    done = call("selftest", "--rates", "50,100", "--for", "1s", "--json")
    found = json.loads(done.stdout)
    assert [trial["offered_rps"] for trial in found["trials"]] == [50, 100]
    assert all(trial["completed"] == 1 for trial in found["trials"])
    assert "1e+06" in call("selftest", "--rates", "50", "--for", "1s", "--require", "1e6", code=1).stderr


def test_the_endpoint_says_where_a_port_is_taken() -> None:
    with endpoint_process("slots") as server:
        port = server.url.rpartition(":")[2]
        assert f"cannot listen on 127.0.0.1:{port}" in call("serve", "--port", port, code=2).stderr
    assert "unknown engine 'slot'" in call("serve", "--engine", "slot", code=2).stderr


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("target: {url: 'http://h:1', api: http, template: none.txt}", "none.txt cannot be read"),
        ("target: {url: 'http://h:1', ca: none.pem}", "none.pem is no file of certificates"),
        ("target: {url: 'http://h:1', ca: README.md}", "README.md holds no certificates that can be read"),
        ("target: {url: 'http://h:1'}\ntokenizer: none", "none is no folder of a tokenizer"),
    ],
)
def test_validate_looks_at_files(tmp_path: Path, lines: str, sentence: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"{lines}\narrivals: 'poisson:rate=5'\n")
    assert sentence in call("validate", path, code=2).stderr


def test_validate_takes_a_closed_loop(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("target: {url: 'http://h:1'}\nclosed: 3\n")
    assert "can be run" in call("validate", path).stdout


FILES = Path(__file__).parent / "importers" / "files"


def test_a_file_of_another_tool_is_imported_scored_and_exported(tmp_path: Path) -> None:
    told = call("import", FILES / "sglang.jsonl", "-o", tmp_path / "run").stdout
    assert "40 rows from sglang bench_serving" in told
    assert "note: token times are those of chunks" in told
    slo = ["--slo", "ttft<=250ms, tpot<=15ms", "--json"]
    foreign = json.loads(call("score", FILES / "sglang.jsonl", *slo, code=1).stdout)
    imported = json.loads(call("score", tmp_path / "run", *slo, code=1).stdout)
    assert foreign["goodput_rps"] == imported["goodput_rps"]
    assert "not told when requests were sent" in call("inspect", FILES / "sglang.jsonl", code=1).stdout
    call("export", FILES / "sglang.jsonl", "--to", "csv", "-o", tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 41
    told = call("export", tmp_path / "run", "--to", "prometheus", "-o", tmp_path / "page", "--json", code=1).stdout
    assert json.loads(told) == {"file": str(tmp_path / "page"), "form": "prometheus", "valid": False}


def test_a_run_is_imported_as_a_run_and_metrics_are_listed_by_their_names(tmp_path: Path, run: Path) -> None:
    assert "rows from a run" in call("import", run, "-o", tmp_path / "copy").stdout
    assert "known are ttft_s, tpot_s" in call("metrics", "nope", code=2).stderr


def test_an_export_without_a_date_says_so(tmp_path: Path) -> None:
    for name, dated in (("sglang.jsonl", False), ("aiperf/profile_export.jsonl", True)):
        out = tmp_path / name.replace("/", "-")
        told = call("export", FILES / name, "--to", "otel", "--slo", "ttft<=1s", "-o", out, code=1).stderr
        assert ("its times count from 1970" in told) != dated


def test_import_and_export_refuse_with_a_sentence(tmp_path: Path, run: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    assert "neither a run nor a file of a known tool" in call("import", tmp_path / "x.txt", "-o", "r", code=2).stderr
    assert "already holds a run" in call("import", FILES / "vllm.json", "-o", run, code=2).stderr
    assert "'cvs' is not one of" in call("export", run, "--to", "cvs", "-o", "x", code=2).stderr
    assert "exists already" in call("export", run, "--to", "csv", "-o", tmp_path / "x.txt", code=2).stderr


def test_every_form_can_be_asked_for() -> None:
    assert set(FORMS) == set(EXPORTERS)


def test_metrics_are_explained_with_what_others_call_them() -> None:
    assert "time_to_first_token" in call("metrics").stdout
    found = json.loads(call("metrics", "ttft", "goodput_rps", "--tool", "vllm", "--json").stdout)
    assert [(each["key"], list(each["theirs"])) for each in found] == [("ttft_s", ["vllm"]), ("goodput_rps", ["vllm"])]
    assert "did you mean 'ttft_s'" in call("metrics", "tttf", code=2).stderr
    assert "unknown tool 'vlm'" in call("metrics", "--tool", "vlm", code=2).stderr


def test_a_shell_is_told_how_to_complete() -> None:
    environment = os.environ | {"_OPENLOOP_COMPLETE": "bash_complete", "COMP_WORDS": "openloop exp", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'openloop'; from openloop.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["plain,export"]
