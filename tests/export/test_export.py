"""What is written can be read, by ourselves and by the rules of each form."""

import csv
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openloop.errors import OpenloopError, RunError
from openloop.export import EXPORTERS, export
from openloop.importers import open_any
from openloop.importers.hdr import decode, encode
from openloop.load.prometheus import read_page
from openloop.score import score
from openloop.score.streams import read_streams
from tests.runs import row, run_of, steady_run

SLO = "ttft<=300ms, tpot<=25ms"


def test_a_run_is_exported_from_where_it_is(tmp_path: Path) -> None:
    steady_run().save(tmp_path / "run")
    export(str(tmp_path / "run"), "csv", tmp_path / "rows.csv")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 401


@pytest.mark.parametrize("form", EXPORTERS)
def test_every_form_is_written_once(form: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out"
    result = export(steady_run(slo=SLO, model="m"), form, path)
    assert path.exists()
    assert (result is not None) == EXPORTERS[form].scored
    with pytest.raises(OpenloopError, match="exists already"):
        export(steady_run(slo=SLO), form, path)


@pytest.mark.parametrize("form", EXPORTERS)
def test_a_run_of_failures_can_be_written_too(form: str, tmp_path: Path) -> None:
    rows = [row(i, i / 10, None, status="error", error='so "bad",\nreally') for i in range(5)]
    export(run_of(rows), form, tmp_path / "out", SLO)


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OpenloopError, match="cannot export to 'cvs'; did you mean 'csv'"):
        export(steady_run(), "cvs", tmp_path / "out")
    with pytest.raises(OpenloopError, match="no goodput without an SLO"):
        export(steady_run(), "otel", tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenloopError, match="cannot be written"):
        export(steady_run(), "csv", tmp_path / "file" / "out")
    with pytest.raises(OpenloopError, match="is a URL"):
        export(steady_run(), "csv", "memory://bucket/out.csv")


def test_tables_hold_every_value(tmp_path: Path) -> None:
    run = steady_run()
    rows = run.head(run.num_rows)
    for form in ("csv", "jsonl", "arrow"):
        export(run, form, tmp_path / form)
    with pyarrow.ipc.open_file(tmp_path / "arrow") as file:
        assert file.read_all().to_pylist() == rows
    for line, whole in zip((tmp_path / "jsonl").read_text().splitlines(), rows, strict=True):
        assert json.loads(line) == {name: value for name, value in whole.items() if value is not None}
    with (tmp_path / "csv").open(newline="") as text:
        for flat, whole in zip(csv.DictReader(text), rows, strict=True):
            assert [int(ns) for ns in flat["event_ns"].split()] == whole["event_ns"]
            assert int(flat["sent_ns"]) == whole["sent_ns"]
            assert flat["tenant"] == ""


@given(st.lists(st.integers(1, 3600 * 10**9), max_size=60))
def test_a_histogram_keeps_three_digits(values: list[int]) -> None:
    found = [value for value, count in decode(encode(values, 3600 * 10**9)) for _ in range(count)]
    assert len(found) == len(values)
    assert np.allclose(found, sorted(values), rtol=1e-3)


def test_the_log_of_latencies_is_read_back(tmp_path: Path) -> None:
    run = steady_run()
    export(run, "hdr", tmp_path / "log")
    want = score(run, SLO)
    with pytest.raises(OpenloopError, match="holds 3 runs"):
        open_any(tmp_path / "log")
    for part, latency in enumerate((want.ttft_s, want.tpot_s, want.e2e_s), start=1):
        found = score(open_any(tmp_path / "log", part=part), "e2e<=1s").e2e_s
        assert found is not None
        assert latency is not None
        assert found.n == want.completed
        assert found.p99 == pytest.approx(latency.p99, rel=1e-3)


def test_the_log_of_latencies_says_when_they_were_due(tmp_path: Path) -> None:
    """Seconds count from the start of the run, and the window opens two later."""
    due = (1.0, 2.1, 2.9, 4.2)
    export(
        run_of([row(i, at, [0.5]) for i, at in enumerate(due)], window_ns=(2 * 10**9, 5 * 10**9)),
        "hdr",
        tmp_path / "log",
    )
    lines = [line.split(",") for line in (tmp_path / "log").read_text().splitlines() if line.startswith("Tag=e2e")]
    assert [(line[1], sum(count for _, count in decode(line[4]))) for line in lines] == [("2.000", 2), ("4.000", 1)]


def test_prometheus_reads_the_page(tmp_path: Path) -> None:
    result = export(steady_run(model='a "model"\\'), "prometheus", tmp_path / "page", SLO)
    assert result is not None
    text = (tmp_path / "page").read_text()
    assert f"\nopenloop_goodput_rps{{{labels(text)}}} {result.goodput_rps!r}\n" in text
    assert result.ttft_s is not None
    assert f'openloop_ttft_seconds{{{labels(text)},quantile="0.99"}} {result.ttft_s.p99!r}\n' in text
    assert "openloop_output_tokens_per_s{" in text
    kinds = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    names = {line.split()[2] for line in kinds}
    assert read_page(text, names).keys() == names


def labels(text: str) -> str:
    return text.split("openloop_requests{")[1].split("} ")[0]


def test_a_collector_reads_the_metrics(tmp_path: Path) -> None:
    run = steady_run()
    result = export(run, "otel", tmp_path / "metrics.json", SLO)
    assert result is not None
    (resource,) = json.loads((tmp_path / "metrics.json").read_text())["resourceMetrics"]
    metrics: dict[str, Any] = {metric["name"]: metric for metric in resource["scopeMetrics"][0]["metrics"]}
    assert metrics["openloop.goodput_rps"]["gauge"]["dataPoints"][0]["asDouble"] == result.goodput_rps
    (point,) = metrics["gen_ai.client.operation.duration"]["histogram"]["dataPoints"]
    assert len(point["bucketCounts"]) == len(point["explicitBounds"]) + 1
    assert sum(map(int, point["bucketCounts"])) == int(point["count"]) == result.completed
    assert result.e2e_s is not None
    assert point["sum"] / result.completed == pytest.approx(
        result.e2e_s.from_sent.mean if result.e2e_s.from_sent else 0
    )
    beyond = sum(map(int, point["bucketCounts"][point["explicitBounds"].index(0.64) + 1 :]))
    ends = [each["ended_ns"] - 1000 - each["sent_ns"] for each in run.head(run.num_rows)]
    assert beyond == sum(took > 640_000_000 for took in ends)


def test_a_run_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=read_streams)
    monkeypatch.setattr("openloop.score.judged.read_streams", counted)
    for form in EXPORTERS:
        export(steady_run(), form, tmp_path / form, SLO)
    assert counted.call_count == 4  # hdr, otel, mlflow and prometheus


@pytest.mark.parametrize("form", ["hdr", "otel", "mlflow"])
def test_a_start_that_is_no_moment_is_a_sentence(tmp_path: Path, form: str) -> None:
    with pytest.raises(RunError, match="started_at of the run is 'yesterday noon'; write it as 2026"):
        export(steady_run(started_at="yesterday noon"), form, tmp_path / "out", SLO)


def test_mlflow_takes_the_batch(tmp_path: Path) -> None:
    run = steady_run(model="m", started_at="2026-11-15T00:00:00+00:00")
    result = export(run, "mlflow", tmp_path / "batch.json", SLO)
    assert result is not None
    batch = json.loads((tmp_path / "batch.json").read_text())
    (goodput,) = (metric for metric in batch["metrics"] if metric["key"] == "goodput_rps")
    assert goodput == {"key": "goodput_rps", "value": result.goodput_rps, "timestamp": 1794700800000, "step": 0}
    params = {each["key"]: each["value"] for each in batch["params"]}
    assert (params["model"], params["slo"]) == ("m", SLO)
    assert not {name for name, value in params.items() if not value or value in ("null", "[]")}
