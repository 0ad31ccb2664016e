"""A real engine, where there is one: llama-server on PATH or in OPENLOOP_LLAMA_SERVER, with a model of random numbers,
or with the one that OPENLOOP_GGUF names."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openloop as ol
from validation.engines import Engine, drive, engine, rows
from validation.gguf import write_model
from validation.llama_server import EXTRA, SLOTS, command

SERVER = os.environ.get("OPENLOOP_LLAMA_SERVER") or shutil.which("llama-server")
GGUF = os.environ.get("OPENLOOP_GGUF")

pytestmark = pytest.mark.skipif(not SERVER, reason="no llama-server on PATH; or name it in OPENLOOP_LLAMA_SERVER")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("llama")
    model = GGUF or str(write_model(folder / "random.gguf"))
    with engine(command(str(SERVER), model), folder / "server.log", patience_s=60.0) as started:
        yield started


def run_of(server: Engine, out: Path, **flags: Any) -> ol.Run:
    given = {"arrivals": "poisson:rate=10", "for": "5s", "slo": "ttft<=5s", "target.extra": EXTRA, **flags}
    return drive(server, out, **given)


def test_requests_go_well_and_tokens_are_as_the_server_counts_them(server: Engine, tmp_path: Path) -> None:
    run = run_of(server, tmp_path / "run", workload="synthetic:prompt=100,output=16")
    run.validate()
    found = rows(run)
    assert len(found) > 20
    assert {row["status"] for row in found} == {"ok"}
    assert {row["output_tokens"] for row in found} == {16}
    assert all(1 <= len(row["event_ns"]) <= 16 for row in found)
    prompts = [row["prompt_tokens"] for row in found]
    assert sum(prompts) / len(prompts) == pytest.approx(100, abs=5)  # words differ: each by itself may be further off
    assert all(row["first_any_ns"] <= row["event_ns"][0] for row in found)


def test_the_servers_figures_are_scored(server: Engine, tmp_path: Path) -> None:
    run = run_of(server, tmp_path / "run", workload="synthetic:prompt=50,output=16")
    score = ol.score(run)
    assert score.attainment == 1.0
    assert score.server is not None
    assert 0 <= score.server.running_peak <= SLOTS
    assert score.server.output_tokens_per_s == pytest.approx(score.output_tokens_per_s, rel=0.35)


def test_a_prompt_beyond_the_context_is_a_row_with_the_servers_own_words(server: Engine, tmp_path: Path) -> None:
    run = run_of(server, tmp_path / "run", workload="synthetic:prompt=9000,output=8", **{"for": "2s"})
    found = rows(run)
    assert found
    assert {(row["status"], row["http_status"]) for row in found} == {("error", 400)}
    assert all("context" in row["error"] for row in found)
