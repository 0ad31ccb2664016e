"""Runs at URLs."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from openloop.cli import cli
from openloop.errors import RunError
from openloop.importers import open_any
from openloop.quality.grading import grade_run
from openloop.records import RunWriter, open_run
from openloop.records.run import ParquetSource
from openloop.score import score
from tests.reports import write_frontier
from tests.runs import steady_run

fsspec = pytest.importorskip("fsspec")
FILES = Path(__file__).parent.parent / "importers" / "files"
SLO = "ttft<=300ms"


def test_a_run_is_saved_to_a_url_and_scored_there() -> None:
    run = steady_run()
    run.save("memory://saved/run")
    there = open_any("memory://saved/run")
    assert isinstance(there.source, ParquetSource)  # which reads row groups, not all at once
    assert score(there, SLO).goodput_rps == score("memory://saved/run", SLO).goodput_rps == score(run, SLO).goodput_rps
    assert score(there, SLO).run == "memory://saved/run"
    with pytest.raises(RunError, match="already holds a run"):
        run.save("memory://saved/run")


def test_only_what_is_asked_for_is_read() -> None:
    steady_run(requests=20_000).save("memory://lazy/run")
    store = fsspec.filesystem("memory").store["/lazy/run/requests.parquet"]
    read = 0
    plain = type(store).read

    def counting(self: object, *args: int) -> bytes:
        nonlocal read
        found: bytes = plain(self, *args)
        read += len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(store), "read", counting)
        list(open_run("memory://lazy/run").batches(["status"]))
    assert 0 < read < store.size / 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run and a frontier."""
    folder = tmp_path_factory.mktemp("there")
    steady_run(slo=SLO).save(folder / "run")
    write_frontier(folder / "frontier")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        *("cost {}/run", "audit {}/run", "report {}/run", "report {}/run --compare {}/run", "compare {}/run {}/run"),
        *("audit {}/frontier", "report {}/frontier", "compare {}/frontier {}/frontier"),
    ],
)
def test_every_command_that_reads_a_run_reads_it_there(folder: Path, words: str) -> None:
    here, there = (
        CliRunner().invoke(cli, [each.replace("{}", f"{scheme}{folder}") for each in [*words.split(), "--json"]])
        for scheme in ("", "file://")
    )
    assert json.loads(here.stdout)
    assert there.exit_code == here.exit_code
    assert there.stdout.replace("file://", "") == here.stdout


def test_a_run_elsewhere_is_not_graded() -> None:
    with pytest.raises(RunError, match=r"is a URL.*openloop import memory://graded/run -o FOLDER"):
        grade_run("memory://graded/run", "json")


def test_a_file_of_another_tool_may_be_elsewhere() -> None:
    fsspec.filesystem("memory").pipe("/files/result.json", (FILES / "vllm.json").read_bytes())
    assert open_any("memory://files/result.json").num_rows == 40


def test_what_cannot_be_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="does not exist"):
        open_any("memory://absent/run")
    for url in (
        "nonsense://absent/run",
        "reference://x",
        "zip://x",
        "http://[",
        "data:,x://",
        "http://127.0.0.1:1/run",
    ):
        with pytest.raises(RunError, match="cannot be reached"):
            open_any(url)
    with pytest.raises(RunError, match="written as it goes to a folder here"):
        RunWriter("memory://live/run", steady_run().manifest)
    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(RunError, match=r"pip install 'openloop\[remote\]'"):
        open_any("s3://bucket/run")
