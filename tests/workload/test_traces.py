"""Recordings of others are read as they are, and what is wrong with one is said in a sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openloop.arrivals import Constant, read_arrivals
from openloop.errors import SpecError
from openloop.load.scenario import read_scenario
from openloop.score import score
from openloop.sim import simulate
from openloop.sim.fleet import read_fleet, simulate_fleet
from openloop.sim.warmth import simulate_warm
from openloop.workload import Demand, Prompts, Words, Workload, describe, known_tokens, read_source
from openloop.workload.mix import Class
from openloop.workload.warmth import WarmCache

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 7]},
    {"timestamp": 3000, "input_length": 600, "output_length": 9, "hash_ids": [0, 9]},
]
BAILIAN = [
    {"chat_id": 5, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 20, "output_length": 3, "type": "text",
     "turn": 1, "hash_ids": [11, 12]},
    {"chat_id": 6, "parent_chat_id": -1, "timestamp": 2.0, "input_length": 9, "output_length": 3, "type": "file",
     "turn": 1, "hash_ids": [44]},
    {"chat_id": 7, "parent_chat_id": 5, "timestamp": 4.0, "input_length": 40, "output_length": 3, "type": "text",
     "turn": 2, "hash_ids": [11, 12, 13]},
]  # fmt: skip
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:00,12,1
2023-11-16 18:16:01+00:00,12,1
2023-11-16 13:16:02.5-05:00,12,1
"""
BURST = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a,1.5,ChatGPT,472,18,490,Conversation log
45,,2,GPT-4,1087,230,1317,API log
60,a,3,ChatGPT,0,0,0,Conversation log
118,a,3,ChatGPT,417,276,693,Conversation log
"""


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def read(spec: str, seconds: float = 1000.0) -> Demand:
    return Workload.of(read_source(spec)).demand(None, seconds, 1)


def test_a_run_ends_with_recorded_arrivals(tmp_path: Path) -> None:
    """They last until a mean gap after the last; one moment alone does not say how long."""
    times = tmp_path / "times.txt"
    times.write_text("\n".join(str(5 + n / 2) for n in range(100)))

    def seconds(arrivals: str, **flags: Any) -> float:
        return read_scenario(None, {"arrivals": arrivals, "for": "1h", **flags}, live=False).horizon_s

    assert seconds(f"replay:{times}") == 50.0
    assert seconds(f"replay:{times},speed=2") == 25.0
    assert seconds(f"replay:{times}", **{"for": "10s"}) == 10.0
    with pytest.raises(SpecError, match="the recording ends after 50 s"):
        seconds(f"replay:{times}", events=["2m=deploy"])
    (tmp_path / "one.txt").write_text("3")
    assert seconds(f"replay:{tmp_path / 'one.txt'}") == 3600.0
    recorded = read_arrivals(f"replay:{times}")
    fleet = read_fleet({"step": {"floor": "10ms", "token": "100us"}})
    run = simulate_fleet(fleet, Workload.of(read_source("synthetic:prompt=50,output=5")), recorded, 3600.0)
    queue = simulate("fcfs:service=1ms", recorded, 3600.0)
    assert run.manifest.window_ns == queue.manifest.window_ns == (0, 50 * 10**9)
    assert score(run, "e2e<=1h").offered_rps == score(queue, "e2e<=1h").offered_rps == queue.manifest.offered_rps == 2.0


def test_mooncake_blocks_are_honoured(tmp_path: Path) -> None:
    found = read(f"trace:{lines(tmp_path / 't.jsonl', MOONCAKE)}")
    assert found.due_s.tolist() == [0.0, 0.5, 3.0]
    assert found.prompt_tokens.tolist() == [1100, 1030, 600]
    assert found.pieces.tokens.tolist() == [512, 512, 76, 512, 512, 6, 512, 88]
    assert known_tokens(found).tolist() == [0, 1024, 512]
    asks = [Prompts(found, Words(1)).ask(number).text.split() for number in range(3)]
    assert [len(text) for text in asks] == [1100, 1030, 600]
    assert asks[0][:1024] == asks[1][:1024]
    assert asks[0][:512] == asks[2][:512]
    assert asks[0][512:600] != asks[2][512:600]


def test_prompts_are_as_long_as_was_recorded_whatever_blocks_they_have(tmp_path: Path) -> None:
    """As where blocks are smaller than the format's, and nobody said so."""
    path = lines(
        tmp_path / "t.jsonl", [{**MOONCAKE[0], "input_length": 600, "hash_ids": list(range(38))}, *MOONCAKE[1:]]
    )
    found = read(f"trace:{path}")
    assert found.prompt_tokens.tolist() == [600, 1030, 600]
    (note,) = [each for each in found.notes if "more blocks" in each]
    assert note.startswith("1 records of")
    whole = read(f"trace:{path},block=16,stop=400ms")
    assert (whole.prompt_tokens.tolist(), len(whole.pieces.tokens)) == ([600], 38)
    assert not any("more blocks" in each for each in whole.notes)


def test_a_class_of_a_trace_may_have_no_requests(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", BAILIAN)
    classes = (Class("most", 0.999, read_source("synthetic")), Class("few", 0.001, read_source(f"trace:{path}")))
    found = Workload(classes).demand(Constant(1), 3.0, 0)
    assert describe(found, 3.0).classes == {"most": 3, "few": 0}
    half = Workload(tuple(replace(each, share=0.5) for each in classes)).demand(Constant(20), 3.0, 0)
    assert describe(half, 3.0).tenants == 2


def test_bailian_tells_conversations_and_kinds_apart(tmp_path: Path) -> None:
    found = read(f"trace:{lines(tmp_path / 't.jsonl', BAILIAN)}")
    assert found.due_s.tolist() == [0.0, 0.5, 2.5]
    assert found.session is not None
    assert found.turn is not None
    assert (found.session.tolist(), found.turn.tolist()) == ([0, 1, 0], [0, 0, 1])
    assert [found.tenants[place] for place in found.tenant] == ["text", "file", "text"]  # type: ignore[union-attr]
    assert found.pieces.tokens.tolist() == [16, 4, 9, 16, 16, 8]


def test_azure_dates_have_seven_digits(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    found = read(f"trace:{tmp_path / 'a.csv'}")
    assert np.allclose(found.due_s, [0.0, 4.314579, 13.31941, 14.31941, 15.81941], atol=1e-6)
    assert found.prompt_tokens.tolist() == [374, 396, 12, 12, 12]
    assert found.output_tokens.tolist() == [44, 109, 1, 1, 1]


def test_burstgpt_failures_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(BURST)
    found = read(f"trace:{tmp_path / 'b.csv'}")
    assert found.due_s.tolist() == [0.0, 40.0, 113.0]
    assert found.session is not None
    assert found.session.tolist() == [0, -1, 0]
    assert "1 records" in found.notes[0]


def test_a_trace_is_cut_and_sped_up(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", [MOONCAKE[0] | {"timestamp": 1000 * s} for s in range(100)])
    found = read(f"trace:{path},start=10s,stop=50s,speed=4")
    assert np.allclose(found.due_s, np.arange(40) / 4)
    assert len(read(f"trace:{path},speed=4", seconds=5.0)) == 20


def test_a_run_ends_with_its_recording(tmp_path: Path) -> None:
    """Or rates and costs would be of an empty window. With arrivals of its own, or in a closed loop, it goes on."""
    path = lines(tmp_path / "t.jsonl", [MOONCAKE[0] | {"timestamp": 1000 * s} for s in range(100)])

    def seconds(spec: str, **flags: Any) -> float:
        return read_scenario(None, {"workload": spec, "for": "1h", **flags}, live=False).horizon_s

    assert seconds(f"trace:{path}") == 100.0
    assert seconds(f"trace:{path},start=20s,stop=50s,speed=4") == 7.5
    assert seconds(f"trace:{path},stop=1h") == 100.0
    assert seconds(f"trace:{path}", **{"for": "30s"}) == 30.0
    assert seconds(f"trace:{path}", rate=2.0) == seconds(f"trace:{path}", closed=3) == 3600.0
    assert seconds(f"trace:{lines(tmp_path / 'one.jsonl', MOONCAKE[:1])}") == 3600.0
    assert seconds(f"servegen:{servegen(tmp_path)},start=300s") == 900.0
    assert seconds(f"trace:{path}", warmth="hot:most=30s") == 70.0  # what is measured ends with it, after settling
    with pytest.raises(SpecError, match="may take all of it"):
        seconds(f"trace:{path}", warmth="hot:most=2m")
    with pytest.raises(SpecError, match="'deploy' is at 2m, and the recording ends after 100 s"):
        seconds(f"trace:{path}", events=["2m=deploy"])
    fleet = read_fleet({"step": {"floor": "10ms", "token": "100us"}, "prefix_cache": False})
    run = simulate_fleet(fleet, Workload.of(read_source(f"trace:{path}")), None, 3600.0)
    assert run.manifest.window_ns == (0, 100 * 10**9)
    warm = simulate_warm(fleet, WarmCache(), Workload.of(read_source(f"trace:{path}")), None, 100.0)
    assert score(warm, "e2e<=1h").requests == 100  # a recording begins after what warms the caches
    assert read(f"trace:{path}").notes == (f"{path} ends after 99 s",)
    assert read(f"trace:{path}", 30.0).notes == ()
    with pytest.raises(SpecError, match="it is 99 s long"):
        read(f"trace:{path},start=200s", seconds(f"trace:{path},start=200s"))


def test_lengths_of_a_trace_can_come_at_other_times(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", MOONCAKE)
    found = Workload.of(read_source(f"trace:{path}")).demand(Constant(2), 4.0, 1)
    assert found.due_s.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert found.prompt_tokens.tolist() == [1100, 1030, 600, 1100, 1030, 600, 1100, 1030]
    assert known_tokens(found).tolist() == [0, 1024, 512, 0, 1024, 512, 0, 1024]


def test_hashes_of_blocks_may_be_any_numbers(tmp_path: Path) -> None:
    rows = [{"timestamp": n, "input_length": 1024, "output_length": 1, "hash_ids": [-1, 2**64 - n]} for n in (0, 1)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert known_tokens(read(f"trace:{tmp_path / 't.jsonl'}")).tolist() == [0, 512]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("t.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,3\n", "no column 'GeneratedTokens'"),
        ("t.csv", "a,b\n1,2\n", "is no trace: its columns are a, b"),
        ("t.csv", AZURE + "2023-11-16 18:15:00,3,4\n", "line 7 comes before the one above it: sort"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,3,4\n", "line 2: TIMESTAMP 'yesterday'"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-3,4\n", "-3 and 4 tokens cannot be"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        ("t.jsonl", '{"timestamp": 0, "input_length": 5}\n', "line 1 is no request of a trace"),
        ("t.jsonl", '{"timestamp": 0\n', "line 1 is no request of a trace"),
        ("t.jsonl", "", "is no trace"),
        ("t.jsonl", "\xff", "is no trace"),
        ("t.csv", AZURE + '"' + "a" * 200_000, "is not CSV: field larger"),
    ],
)
def test_what_is_wrong_with_a_trace_is_said(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=sentence):
        read(f"trace:{tmp_path / name}")


def test_a_trace_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read(f"trace:{tmp_path / 'none.csv'}")
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not text"):
        read(f"trace:{tmp_path / 't.csv'}")


LENGTHS = '{{"0": {{"input_tokens": "{}", "output_tokens": "{{1: 1}}"}}}}'


def servegen(folder: Path) -> Path:
    """Two clients: a steady one, and one that comes in the second window only."""
    for number, rates in enumerate([(2.0, 2.0), (0.0, 5.0)]):
        rows = [f"{600 * n},{rate},1.5,{'Gamma' if rate else ''},{1 / 2.25},1" for n, rate in enumerate(rates)]
        (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
        seen = {"0": {"input_tokens": "{100: 0.25, 300: 0.75}", "output_tokens": f"{{{7 + number}: 1.0}}"}}
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(seen))
    return folder


def test_servegen_clients_come_at_their_rates_with_their_lengths(tmp_path: Path) -> None:
    found = read(f"servegen:{servegen(tmp_path)}", seconds=1200.0)
    assert found.tenants == ["client-0", "client-1"]
    assert found.tenant is not None
    per_client = np.bincount(found.tenant)
    assert np.allclose(per_client, [2400, 3000], rtol=0.12)
    assert found.due_s[found.tenant == 1].min() > 600
    assert abs(np.mean(found.prompt_tokens == 300) - 0.75) < 0.03
    assert set(found.output_tokens[found.tenant == 1]) == {8}
    gaps = np.diff(found.due_s[(found.tenant == 0) & (found.due_s < 600)])
    assert abs(gaps.std() / gaps.mean() - 1.5) < 0.2


def test_servegen_is_scaled_to_a_rate_and_starts_later(tmp_path: Path) -> None:
    found = read(f"servegen:{servegen(tmp_path)},start=600s,rate=14", seconds=600.0)
    assert abs(len(found) / 600 - 14) < 1
    assert abs(describe(found, 600.0).rate - 14) < 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: (folder / "chunk-0-trace.csv").write_text("0,x,1,Gamma,1,1\n"), "is no client of ServeGen"),
        (lambda folder: (folder / "chunk-0-trace.csv").write_text("0,1,1,Cauchy,1,1\n"), "'cauchy' with shape 1"),
        (lambda folder: (folder / "chunk-0-dataset.json").unlink(), "No such file"),
        (lambda folder: (folder / "chunk-0-dataset.json").write_text("{"), "is no record of lengths"),
        (lambda folder: (folder / "chunk-0-dataset.json").write_text("{}"), "has no lengths at all"),
        (
            lambda folder: (folder / "chunk-0-dataset.json").write_text(LENGTHS.format("{5: 0}")),
            "do not tell how often",
        ),
        (lambda folder: (folder / "chunk-0-dataset.json").write_text(LENGTHS.format("{1e300: 1}")), "too large"),
        (lambda folder: (folder / "chunk-0-trace.csv").write_text("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n"), "sort its"),
        (lambda folder: [each.unlink() for each in folder.iterdir()], "holds no clients"),
    ],
)
def test_what_is_wrong_with_a_servegen_folder_is_said(tmp_path: Path, change: Any, sentence: str) -> None:
    change(servegen(tmp_path))
    with pytest.raises(SpecError, match=sentence):
        read(f"servegen:{tmp_path}")


def test_servegen_has_times_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="brings its own arrivals"):
        Workload.of(read_source(f"servegen:{servegen(tmp_path)}")).demand(Constant(1), 10.0, 1)
    with pytest.raises(SpecError, match="nothing is due in 1 s"):
        read(f"servegen:{tmp_path},rate=0.0001", seconds=1.0)
    with pytest.raises(SpecError, match="no requests from 1e\\+06 s"):
        read(f"servegen:{tmp_path},start=1000000s")
