"""The commands as people and machines call them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import openloop
from tests.runs import row, write_run

ROWS = [row(i, due=i / 20, tokens=[0.1 + (0.6 if i % 10 == 0 else 0), 0.8], replica=f"r{i % 3}") for i in range(200)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ROWS)


def call(*args: str | Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-m", "openloop", *map(str, args)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr + done.stdout
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
    assert ("required attainment 90.1%, reached 90%" in done.stderr) == bool(code)


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
