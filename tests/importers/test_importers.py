"""Files of other tools become runs whose goodput from send is what the tool itself says."""

import base64
import json
import re
import struct
import zlib
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openloop.audit import audit
from openloop.calibrate.trace import open_runs
from openloop.compare import compare
from openloop.errors import OpenloopError, RunError
from openloop.importers import IMPORTERS, hdr, open_any, read_foreign
from openloop.importers.registry import HEAD
from openloop.records import Run, ints
from openloop.report.read import read_comparison, read_report
from openloop.score import check, score

FILES = Path(__file__).parent / "files"

# A file of each, as the tool wrote it here but for texts and paths, or by its documented schema.
SAMPLES = {
    "vllm": "vllm.json",
    "sglang": "sglang.jsonl",
    "aiperf": "aiperf/profile_export.jsonl",
    "guidellm": "guidellm.json",
    "inference-perf": "inference-perf/per_request_lifecycle_metrics.json",
    "genai-bench": "genai-bench.json",
    "veeksha": "veeksha.jsonl",
    "etalon": "etalon.json",
    "llmperf": "llmperf.json",
    "loadgen": "loadgen-trace.json",
    "kneepoint": "kneepoint.jsonl",
    "vegeta": "vegeta.json",
    "k6": "k6.json",
    "locust": "locust.json",
    "hey": "hey.csv",
    "hdr": "hdr.hlog",
    "otel": "otel.json",
}


LINES = {"aiperf", "veeksha", "kneepoint", "vegeta", "k6", "loadgen"}


def told(name: str) -> Any:
    return json.loads((FILES / name).read_text())


# What the tool printed, the SLO it was given, and its file.
PRINTED: dict[str, tuple[str, str, Any]] = {
    "vllm chat": ("vllm.json", "ttft<=250ms, tpot<=20ms, e2e<=500ms", lambda: told("vllm.json")["request_goodput"]),
    "vllm completions": (
        "vllm-completions.json",
        "ttft<=250ms, tpot<=20ms, e2e<=500ms",
        lambda: told("vllm-completions.json")["request_goodput"],
    ),
    "vllm, some failed": (
        "vllm-failures.json",
        "ttft<=250ms, tpot<=18ms, e2e<=250ms",
        lambda: told("vllm-failures.json")["request_goodput"],
    ),
    "sglang": ("sglang.jsonl", "ttft<=250ms, tpot<=15ms", lambda: told("sglang.jsonl")["request_goodput"]),
    "sglang, some failed": (
        "sglang-failures.jsonl",
        "ttft<=250ms, tpot<=15ms",
        lambda: told("sglang-failures.jsonl")["request_goodput"],
    ),
    "aiperf": (
        "aiperf/profile_export.jsonl",
        "ttft<=250ms, tpot<=6ms",
        lambda: told("aiperf/profile_export_aiperf.json")["goodput"]["avg"],
    ),
    "aiperf, some failed": (
        "aiperf-failures/profile_export.jsonl",
        "ttft<=250ms, tpot<=6ms",
        lambda: told("aiperf-failures/profile_export_aiperf.json")["goodput"]["avg"],
    ),
    "guidellm": ("guidellm.json", "ttft<=250ms, e2e<=150ms", lambda: of_guidellm("guidellm.json")),
    "guidellm, some failed": (
        "guidellm-failures.json",
        "ttft<=250ms, tpot<=16ms",
        lambda: of_guidellm("guidellm-failures.json"),
    ),
    "inference-perf": (
        "inference-perf/per_request_lifecycle_metrics.json",
        "ttft<=200ms, tpot<=5ms",
        lambda: told("inference-perf/summary_lifecycle_metrics.json")["goodput_metrics"]["request_goodput"],
    ),
}


def of_guidellm(name: str) -> float:
    return float(told(name)["benchmarks"][0]["metrics"]["request_goodput"]["successful"]["mean"])


@pytest.mark.parametrize("case", PRINTED)
def test_goodput_from_send_is_what_the_tool_printed(case: str) -> None:
    name, slo, printed = PRINTED[case]
    found = score(FILES / name, slo)
    assert found.goodput_rps_from_sent == pytest.approx(printed(), rel=1e-6)
    assert 0 < found.accepted < found.completed  # or nothing would be shown
    assert ("failed" in case) == (found.completed < found.requests) or case == "inference-perf"


@pytest.mark.parametrize("name", ["vllm.json", "aiperf/profile_export.jsonl", "guidellm.json", "sglang.jsonl"])
def test_an_slo_in_the_file_is_the_runs_own(name: str) -> None:
    assert (open_any(FILES / name).manifest.slo is None) == (name == "vllm.json")  # which keeps none


def test_every_tool_has_a_sample() -> None:
    assert set(SAMPLES) == set(IMPORTERS)


@pytest.mark.parametrize("tool", IMPORTERS)
def test_a_file_is_known_by_its_content_and_to_nobody_else(tool: str, tmp_path: Path) -> None:
    path = FILES / SAMPLES[tool]
    head = path.read_text()[:HEAD]
    assert [name for name, importer in IMPORTERS.items() if importer.looks_like(head)] == [tool]
    renamed = tmp_path / "results"
    renamed.write_bytes(path.read_bytes())
    assert read_foreign(renamed).num_rows == open_any(path).num_rows


def test_a_long_file_of_etalon_is_known_by_its_first_list(tmp_path: Path) -> None:
    path = tmp_path / "request_level_metrics.json"
    for first in ({}, {"request_dispatched_at": [0.0] * 30}):  # which newer versions begin with
        path.write_text(json.dumps({name: 100 * values for name, values in (first | told("etalon.json")).items()}))
        assert path.read_text().index('"ttft"') > HEAD
        assert open_any(path).num_rows == 3000


@pytest.mark.parametrize("tool", IMPORTERS)
def test_a_byte_order_mark_changes_nothing(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "marked"
    path.write_bytes(b"\xef\xbb\xbf" + (FILES / SAMPLES[tool]).read_bytes())
    ours, theirs = (list(open_any(each).batches()) for each in (path, FILES / SAMPLES[tool]))
    assert ours == theirs


@pytest.mark.parametrize("name", ["vllm.json", "sglang.jsonl", "otel.json"])
def test_objects_spread_over_lines_are_read(name: str, tmp_path: Path) -> None:
    path, pretty = tmp_path / "pretty.json", json.dumps(told(name), indent=2)
    path.write_text(pretty + "\n")
    assert list(open_any(path).batches()) == list(open_any(FILES / name).batches())
    path.write_text(f"{pretty}\n{pretty}\n")
    rows = 2 * open_any(FILES / name).num_rows
    if name == "otel.json":
        assert open_any(path).num_rows == rows
    else:
        with pytest.raises(RunError, match="holds 2 runs"):
            open_any(path)


@pytest.mark.parametrize("tool", IMPORTERS)
def test_a_run_of_a_file_is_a_run_like_any_other(tool: str, tmp_path: Path) -> None:
    run = open_any(FILES / SAMPLES[tool])
    assert run.manifest.source == "import"
    assert run.manifest.notes, "what the file cannot tell is said"
    run.save(tmp_path / "run")
    again = open_any(tmp_path / "run")
    again.validate()
    assert score(again, "e2e<=200ms").accepted == score(run, "e2e<=200ms").accepted > 0
    assert set(run.manifest.notes) <= set(check(again).notes), "the verdict carries it"


@pytest.mark.parametrize("tool", IMPORTERS)
@pytest.mark.parametrize("damage", ["half", "empty", "numbers", "other"])
def test_a_damaged_file_is_one_sentence(tool: str, damage: str, tmp_path: Path) -> None:
    text = (FILES / SAMPLES[tool]).read_text()
    path = tmp_path / "file"
    broken = {
        "half": text[: len(text) // 2],
        "empty": "",
        "numbers": re.sub(r"\d+(\.\d+)?", '"x"', text),
        "other": '{"hello": "world"}',
    }
    path.write_text(broken[damage])
    if damage == "half" and tool in LINES:  # lines before the damage are whole
        assert 0 < read_foreign(path, tool).num_rows < open_any(FILES / SAMPLES[tool]).num_rows
        return
    with pytest.raises(OpenloopError) as refused:
        read_foreign(path, tool)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def test_what_is_no_file_of_anybody_is_refused_with_a_list(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(RunError, match="neither a run nor a file of a known tool: vllm, sglang"):
        open_any(tmp_path / "notes.txt")
    with pytest.raises(RunError, match="no importer for 'vlm'; did you mean 'vllm'"):
        open_any(tmp_path / "notes.txt", tool="vlm")
    with pytest.raises(RunError, match="absent.json does not exist"):
        open_any(tmp_path / "absent.json")


def test_a_file_with_several_runs_asks_which(tmp_path: Path) -> None:
    path = tmp_path / "appended.json"
    path.write_text((FILES / "vllm.json").read_text() + (FILES / "vllm-failures.json").read_text())
    with pytest.raises(RunError, match=r"holds 2 runs: import the one you want, openloop import \S+ --part 1"):
        open_any(path)
    assert score(open_any(path, part=2), "e2e<=9s").statuses["error"] == 2
    with pytest.raises(RunError, match="there is no part 3"):
        open_any(path, part=3)


def column(run: Run, name: str) -> list[Any]:
    return [value for batch in run.batches([name]) for value in batch.column(name).to_pylist()]


def test_vllm_waiting_in_the_client_counts_from_schedule_and_not_from_send(tmp_path: Path) -> None:
    found = told("vllm.json")
    found["queue_times"] = [1.0] * 40
    path = tmp_path / "queued.json"
    path.write_text(json.dumps(found))
    late = score(path, "ttft<=500ms")
    assert late.attainment == 0
    assert late.attainment_from_sent == 1
    assert "the client was late" in " ".join(late.reasons)


@pytest.mark.parametrize(
    ("date", "started"),
    [("20261115-121432", datetime(2026, 11, 15, 12, 14, 32).astimezone().timestamp()), ("today", None)],
)
def test_vllm_tells_when_it_was_over(date: str, started: float | None, tmp_path: Path) -> None:
    found = told("vllm.json")
    (tmp_path / "file.json").write_text(json.dumps(found | {"date": date}))
    at = open_any(tmp_path / "file.json").manifest.started_at
    if started is None:
        assert at is None
    else:
        assert datetime.fromisoformat(at or "").timestamp() == pytest.approx(started - found["duration"], abs=0.001)


def test_vllm_of_old_has_no_queue_times_and_says_so(tmp_path: Path) -> None:
    found = told("vllm.json")
    new = score(FILES / "vllm.json", "tpot<=20ms")
    del found["queue_times"], found["latencies"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(found))
    old = score(path, "tpot<=20ms")
    assert old.accepted == new.accepted
    assert any("coordinated omission" in note for note in old.notes)
    assert not any("coordinated omission" in note for note in new.notes)


def test_an_answer_is_over_when_it_was_though_no_gap_is_kept(tmp_path: Path) -> None:
    found, path = told("vllm.json"), tmp_path / "small.json"
    del found["itls"]
    path.write_text(json.dumps(found))
    whole = score(path, "e2e<=500ms")
    assert whole.e2e_s is not None
    assert whole.e2e_s.from_sent is not None
    assert whole.e2e_s.from_sent.p50 == pytest.approx(np.percentile(found["latencies"], 50))
    assert whole.accepted == sum(took <= 0.5 for took in found["latencies"])
    del found["latencies"]
    path.write_text(json.dumps(found))
    with pytest.raises(RunError, match="neither latencies nor itls"):
        open_any(path)
    rows = json.loads((FILES / "sglang.jsonl").read_text().splitlines()[0])
    del rows["itls"]
    (tmp_path / "sglang.jsonl").write_text(json.dumps(rows))
    with pytest.raises(RunError, match="it has no itls"):
        open_any(tmp_path / "sglang.jsonl")


@pytest.mark.parametrize("tool", sorted(LINES - {"loadgen"}))
def test_a_file_that_was_cut_off_says_so(tool: str, tmp_path: Path) -> None:
    lines = (FILES / SAMPLES[tool]).read_text().splitlines(keepends=True)
    path = tmp_path / "part"
    path.write_text("".join(lines[:-1]))
    whole = open_any(path, tool=tool)
    path.write_text("".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    torn = open_any(path, tool=tool)
    assert torn.num_rows == whole.num_rows
    assert set(torn.manifest.notes) - set(whole.manifest.notes) == {
        "the file ends in the middle of a line: what came after that is missing"
    }


def test_one_answer_that_does_not_tell_its_end_costs_no_other(tmp_path: Path) -> None:
    found, path = told("vllm.json"), tmp_path / "old.json"
    del found["latencies"]
    found["itls"][3] = None
    path.write_text(json.dumps(found))
    statuses = score(path, "e2e<=9s").statuses
    assert (statuses["ok"], statuses["error"]) == (39, 1)


def test_requests_of_locust_without_a_time_are_due_and_not_accepted(tmp_path: Path) -> None:
    (entry,) = told("locust.json")
    path = tmp_path / "locust.json"
    path.write_text(json.dumps([{**entry, "num_requests": 50, "num_none_requests": 4}]))
    found = score(path, "e2e<=9s")
    assert (found.requests, found.statuses["ok"], found.statuses["error"]) == (50, 38, 12)
    assert any("4 requests have no response time" in note for note in open_any(path).manifest.notes)


def test_of_several_runs_one_that_was_cut_off_is_told_of(tmp_path: Path) -> None:
    whole = (FILES / "vllm.json").read_text().strip()
    path = tmp_path / "two.jsonl"
    path.write_text(f"{whole}\n{whole[:-9]}")
    with pytest.raises(RunError, match="its last run was cut short"):
        open_any(path)
    assert open_any(path, part=1).num_rows == 40


def test_a_file_cut_off_in_its_only_line_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text((FILES / "vllm.json").read_text().strip()[:-9])
    with pytest.raises(RunError, match="its last run was cut short"):
        open_any(path)


def test_a_span_that_does_not_tell_its_first_token_has_an_end_and_no_ttft(tmp_path: Path) -> None:
    text = (FILES / "otel.json").read_text()
    path = tmp_path / "spans.json"
    path.write_text(re.sub(r"time_to_first_(chunk|token)", "x", text))
    assert path.read_text() != text
    assert score(path, "ttft<=9s").accepted == 0
    assert score(path, "e2e<=99s").accepted == score(FILES / "otel.json", "e2e<=99s").accepted > 0


def test_vllm_without_details_tells_whole_answers_or_nothing(tmp_path: Path) -> None:
    plain = score(FILES / "vllm-plain.json", "e2e<=200ms")
    assert plain.completed == 40
    assert plain.ttft_s is None
    assert any("closed loop" in reason for reason in plain.reasons)
    found = told("vllm-plain.json")
    del found["latencies"]
    (tmp_path / "totals.json").write_text(json.dumps(found))
    with pytest.raises(RunError, match="totals and no requests: let vllm bench save them with --save-detailed"):
        open_any(tmp_path / "totals.json")


@pytest.mark.parametrize(
    ("name", "column"), [("vllm.json", "latencies"), ("sglang.jsonl", "itls"), ("etalon.json", "tbt")]
)
def test_lists_that_lost_some_of_their_values_are_refused(name: str, column: str, tmp_path: Path) -> None:
    found, path = told(name), tmp_path / "short.json"
    found[column] = found[column][:20]
    path.write_text(json.dumps(found))
    with pytest.raises(RunError, match=rf"its lists are of unlike length \(.*{column} 20.*\): some of it was lost"):
        open_any(path)


def test_a_run_that_took_less_than_no_time_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vllm.json").write_text(json.dumps({**told("vllm.json"), "duration": -5}))
    with pytest.raises(RunError, match="it took -5 s; a run takes more than none"):
        open_any(tmp_path / "vllm.json")


def test_times_of_aiperf_are_in_the_unit_that_it_says(tmp_path: Path) -> None:
    text = (FILES / "aiperf/profile_export.jsonl").read_text()
    path = tmp_path / "profile_export.jsonl"
    path.write_text(text.replace('"unit":"ms"', '"unit":"us"'))
    usual, small = (score(each, "ttft<=1s").ttft_s for each in (FILES / "aiperf/profile_export.jsonl", path))
    assert usual is not None
    assert usual.from_sent is not None
    assert small is not None
    assert small.from_sent is not None
    assert small.from_sent.p50 == pytest.approx(usual.from_sent.p50 / 1000, rel=1e-4)
    path.write_text(text.replace('"unit":"ms"', '"unit":"fortnights"'))
    with pytest.raises(RunError, match="time_to_first_token is in 'fortnights'; what is read is in ns, us, ms, s, sec"):
        open_any(path)


def test_vllm_success_without_a_token_is_no_success(tmp_path: Path) -> None:
    found = told("vllm.json")
    found["ttfts"][0], found["itls"][0], found["latencies"][0] = 0.0, [], 0.0
    (tmp_path / "empty.json").write_text(json.dumps(found))
    empty = score(tmp_path / "empty.json", "ttft<=1s")
    assert empty.statuses["error"] == 1
    assert any("1 requests that vllm bench counts as successes delivered nothing" in note for note in empty.notes)


def test_chunks_that_are_no_tokens_leave_gaps_unknown_and_tpot_right() -> None:
    run = open_any(FILES / "vllm.json")
    found = told("vllm.json")
    assert all(column(run, "ends_only"))
    result = score(run, "tbt<=10s")
    assert result.accepted == 0
    assert result.itl_s is None
    assert any("asks for tbt<=10s and no request tells" in reason for reason in result.reasons)
    tpot = [(took - ttft) / 11 for took, ttft in zip(found["latencies"], found["ttfts"], strict=True)]
    assert result.tpot_s is not None
    assert result.tpot_s.p50 == pytest.approx(np.median(tpot), rel=1e-6)


@pytest.mark.parametrize("name", ["sglang.jsonl", "aiperf/profile_export.jsonl"])
def test_gaps_that_are_told_are_kept(name: str) -> None:
    run = open_any(FILES / name)
    assert not any(column(run, "ends_only"))
    gaps = [(b - a) / 1e9 for events in column(run, "event_ns") for a, b in pairwise(events)]
    result = score(run, "ttft<=1s")
    assert result.itl_s is not None
    assert result.itl_s.n == len(gaps)
    assert result.itl_s.p99 == pytest.approx(np.quantile(gaps, 0.99), rel=1e-6)


def test_streams_in_one_chunk_are_as_good_here_as_in_vllm_bench(tmp_path: Path) -> None:
    found, path = told("vllm.json"), tmp_path / "one.json"
    found["itls"][::2], found["latencies"][::2] = [[]] * 20, found["ttfts"][::2]
    path.write_text(json.dumps(found))
    tpots = [(all_ - first) / 11 for all_, first in zip(found["latencies"], found["ttfts"], strict=True)]
    good = sum(tpot <= 0.015 for tpot in tpots)
    assert 20 < good < 40
    assert score(path, "tpot<=15ms").accepted == good


def test_tokens_of_one_chunk_came_at_once() -> None:
    run = open_any(FILES / "inference-perf/per_request_lifecycle_metrics.json")
    rows = told("inference-perf/per_request_lifecycle_metrics.json")
    for row, tokens in zip(rows, column(run, "event_tokens"), strict=True):
        made = row["info"].get("response_metrics") or {}
        assert sum(tokens or ()) == len(made.get("output_token_times") or ())


def test_a_failure_after_the_last_success_is_still_due(tmp_path: Path) -> None:
    rows = told("inference-perf/per_request_lifecycle_metrics.json")
    late = max(row["end_time"] for row in rows) + 5
    gone = {"error_type": "Gone", "error_msg": "away"}
    rows.append({"start_time": late, "end_time": late, "request": "", "info": {}, "error": gone})
    (tmp_path / "late.json").write_text(json.dumps(rows))
    assert score(tmp_path / "late.json", "e2e<=1s").requests == len(rows)


def test_sends_are_not_told_by_some_and_then_nothing_about_the_load_is_believed() -> None:
    for name in ("sglang.jsonl", "hdr.hlog", "etalon.json"):
        assert any("not told when requests were sent" in reason for reason in check(open_any(FILES / name)).reasons)


def test_guidellm_tells_when_requests_were_due() -> None:
    run = open_any(FILES / "guidellm.json")
    (batch,) = run.batches()
    lag = ints(batch, "sent_ns") - ints(batch, "scheduled_ns")
    first = told("guidellm.json")["benchmarks"][0]["requests"]["successful"][0]["info"]["timings"]
    assert lag[0] / 1e9 == pytest.approx(first["request_start"] - first["targeted_start"], abs=1e-6)


def test_times_that_another_writer_made_whole_numbers_are_times(tmp_path: Path) -> None:
    found = told("guidellm.json")
    times = found["benchmarks"][0]["requests"]["successful"][0]["info"]["timings"]
    times["targeted_start"] = int(times["targeted_start"])  # as jq and JavaScript write 1794745227.0
    (tmp_path / "whole.json").write_text(json.dumps(found))
    (batch,) = open_any(tmp_path / "whole.json").batches()
    lag = ints(batch, "sent_ns") - ints(batch, "scheduled_ns")
    assert lag[0] / 1e9 == pytest.approx(times["request_start"] - times["targeted_start"], abs=1e-6)


def test_kneepoint_retries_are_attempts_at_one_request() -> None:
    found = score(FILES / "kneepoint.jsonl", "e2e<=10s")
    assert found.retries.retries == 6
    assert found.requests + found.retries.retries == len((FILES / "kneepoint.jsonl").read_text().splitlines())


def test_loadgen_counts_from_schedule() -> None:
    (batch,) = open_any(FILES / "loadgen-trace.json").batches()
    assert ints(batch, "sent_ns")[3] - ints(batch, "scheduled_ns")[3] == 1_009_995
    assert ints(batch, "ended_ns")[3] - ints(batch, "scheduled_ns")[3] == 37_821_060


def test_vegeta_csv_is_its_json(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (FILES / "vegeta.json").read_text().splitlines()]
    base = 1_794_700_800_000_000_000  # 2026-11-15T00:00:00Z
    with (tmp_path / "hits.csv").open("w") as file:
        for row in rows:
            moment = base + round(float(row["timestamp"][17:-1]) * 1e9)
            file.write(f"{moment},{row['code']},{row['latency']},80,300,{row['error']},{'QUJD' * 40_000},,0,POST,,\n")
    ours, theirs = open_any(FILES / "vegeta.json"), open_any(tmp_path / "hits.csv")
    assert [b.to_pylist() for b in ours.batches()] == [b.to_pylist() for b in theirs.batches()]


def test_k6_iterations_that_were_dropped_are_rows(tmp_path: Path) -> None:
    point = {"time": "2026-11-15T12:40:00Z", "value": 3, "tags": {}}
    line = json.dumps({"metric": "dropped_iterations", "type": "Point", "data": point})
    (tmp_path / "k6.json").write_text((FILES / "k6.json").read_text() + line + "\n")
    assert score(open_any(tmp_path / "k6.json"), "e2e<=1s").statuses["dropped"] == 3


def test_a_call_that_both_sides_tell_counts_once(tmp_path: Path) -> None:
    found = told("otel.json")
    spans = found["resourceSpans"][0]["scopeSpans"][0]["spans"]
    asked = [span for span in spans if span["kind"] == "SPAN_KIND_CLIENT"]
    spans += [{**span, "kind": "SPAN_KIND_SERVER", "name": "llm_request"} for span in asked]
    (tmp_path / "both.json").write_text(json.dumps(found))
    assert open_any(tmp_path / "both.json").num_rows == len(asked) == 20


def test_the_percentile_table_is_the_log_but_for_rounding_up() -> None:
    log, table = (score(FILES / name, "e2e<=1s") for name in ("hdr.hlog", "hdr-table.txt"))
    assert log.completed == table.completed == 500
    assert log.e2e_s is not None
    assert table.e2e_s is not None
    assert log.e2e_s.p50 <= table.e2e_s.p50 * 1.001
    assert log.e2e_s.p99 == pytest.approx(table.e2e_s.p99, rel=0.1)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("aiperf/profile_export.jsonl", "2026-11-15T12:19:50.490+00:00"),  # when its first credit was given out
        ("guidellm.json", "2026-11-15T12:20:27.548+00:00"),  # when the first was to start
        ("vegeta.json", None),
        ("k6.json", None),
        ("otel.json", None),
    ],
)
def test_times_count_from_when_a_run_is_said_to_have_begun(name: str, first: str | None) -> None:
    run = open_any(FILES / name)
    assert min(row["scheduled_ns"] for row in run.head(1000)) == 0
    assert run.manifest.started_at is not None
    assert run.manifest.started_at == first or first is None


@pytest.mark.parametrize("tool", ["vllm", "guidellm", "otel"])
def test_json_that_is_nested_without_end_is_a_sentence(tmp_path: Path, tool: str) -> None:
    (tmp_path / "file").write_text('{"a":' * 100_000)
    with pytest.raises(RunError, match=f"cannot be read as a file of {tool}: RecursionError"):
        open_any(tmp_path / "file", tool=tool)


@pytest.mark.parametrize(
    ("digits", "body", "why"),
    [(3, [-(2**60), 1], "too large for 64 bits"), (100_000, [1], "histogram of 100000 digits")],
)
def test_a_histogram_that_cannot_be_is_a_sentence(digits: int, body: list[int], why: str) -> None:
    counts = b"".join(map(hdr._zigzag, body))
    raw = zlib.compress(struct.pack(">iiiiqqd", hdr.COOKIE, len(counts), 0, digits, 1, 10**9, 1.0) + counts)
    with pytest.raises(RunError, match=why):
        hdr.decode(base64.b64encode(struct.pack(">ii", hdr.COMPRESSED, len(raw)) + raw).decode())


def test_hey_tells_when_and_how_answers_came() -> None:
    run = open_any(FILES / "hey.csv")
    rows = run.head(100)
    assert (rows[0]["sent_ns"], rows[0]["ended_ns"]) == (0, 23_300_000)
    assert (rows[2]["sent_ns"], rows[2]["ended_ns"]) == (25_300_000, 27_400_000)
    assert {row["status"]: row["http_status"] for row in rows} == {"ok": 200, "error": 503}
    found = score(run, "e2e<=50ms")
    assert (found.requests, found.completed) == (40, sum(row["status"] == "ok" for row in rows))
    assert any("closed loop" in reason for reason in found.reasons)
    assert any("answers only" in note for note in found.notes)


def test_a_file_of_an_old_hey_is_named(tmp_path: Path) -> None:
    """It did not say when, nor whether it was well."""
    lines = (FILES / "hey.csv").read_text().splitlines()
    (tmp_path / "old.csv").write_text("\n".join(line.rsplit(",", 2)[0] for line in lines))
    with pytest.raises(RunError, match="cannot be read as a file of hey: it has no 'offset'"):
        open_any(tmp_path / "old.csv")


@pytest.mark.parametrize("name", ["vllm.json", "vegeta.json", "otel.json", "kneepoint.jsonl"])
def test_a_file_is_used_where_a_run_can_be(name: str) -> None:
    path = FILES / name
    slo = "e2e<=30s"
    told = read_report(path, slo).data
    assert told["requests"] == score(path, slo).requests
    found = compare(path, path, slo)
    assert (found.a, found.b) == (str(path), str(path))
    assert found.changes["goodput"].change == 0.0
    assert read_comparison(path, path, slo).data["a"] == told
    checked = audit(path, slo)
    assert checked.kind == "run"
    assert {fact.name: fact.found for fact in checked.facts}["slo"] == slo
    assert open_runs([path])[0].num_rows == open_any(path).num_rows
