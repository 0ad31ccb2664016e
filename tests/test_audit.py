"""An audit names what is missing, and no claim is supported by less than it takes."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openloop as ol
from openloop.audit import CLAIMS, FACTS, MORE, audit
from openloop.errors import RunError, SpecError
from openloop.records import TimedEvent
from openloop.sim import simulate
from tests.reports import MODEL, SLO, write_frontier
from tests.runs import row, run_of, steady_run

KNOWN: dict[str, Any] = {
    "slo": "ttft<=1s",
    "lengths": "prompt 100, output 20",
    "cache_warmth": "warm-cache",
    "arrivals": "poisson:rate=20",
    "arrivals_cv": 1.0,
    "model": "m",
    "model_revision": "abc",
    "quantization": "none",
    "hardware": "1x H100",
    "engine": "vllm",
    "engine_version": "1",
    "engine_flags": "--x",
    "prices": ol.Prices(per_hour=3.0),
}


def supported(found: Any) -> dict[str, bool]:
    return {claim.claim.split(",")[0]: claim.supported for claim in found.claims}


def test_of_a_bare_run_all_but_what_it_measured_is_missing(tmp_path: Path) -> None:
    steady_run().save(tmp_path / "run")
    found = audit(tmp_path / "run", "ttft<=1s")
    assert found.missing == [
        *("lengths", "cache_warmth", "quality_gate", "cost", "arrivals"),
        *("model_revision", "quantization", "hardware", "engine_flags"),
    ]
    assert not any(supported(found).values())
    assert "slo" in audit(tmp_path / "run").missing


def test_what_the_manifest_tells_is_known() -> None:
    found = audit(steady_run(**KNOWN))
    assert found.missing == ["quality_gate"]
    assert supported(found)["p50 latency improved"]
    assert not supported(found)["X tokens/s"]
    lacks = {claim.claim: claim.lacks for claim in found.claims}
    assert lacks["this engine is faster than that engine"] == ("sweep",)
    assert lacks["GPU utilisation is 78%, so the cluster is efficient"] == ("goodput",)


def test_labels_make_it_goodput() -> None:
    rows = [row(i, i / 10 + (i % 3) / 40, [0.1] * 3, quality=i % 9 > 0) for i in range(200)]
    known = {name: value for name, value in KNOWN.items() if name != "arrivals_cv"}
    run = run_of(rows, **{**known, "slo": "ttft<=1s, quality"})
    found = audit(run)
    assert found.missing == []
    assert supported(found)["X tokens/s"]
    assert supported(found)["GPU utilisation is 78%"]


def test_an_invalid_run_supports_nothing() -> None:
    found = audit(run_of([row(i, float(i), [0.1]) for i in range(5)], **KNOWN))
    assert any("only 5 requests" in reason for reason in found.reasons)
    assert not any(supported(found).values())
    assert "interval" in found.missing


def test_a_closed_loop_has_no_arrivals() -> None:
    assert "arrivals" in audit(steady_run(**{**KNOWN, "arrivals": "closed:users=8"})).missing


def test_a_folder_of_runs_is_a_sweep_and_knows_what_all_of_them_know(tmp_path: Path) -> None:
    for number, rate in enumerate((10.0, 15.0, 20.0, 25.0, 30.0)):
        event = (TimedEvent(at_ns=10**9, kind="deploy"),) if number == 1 else ()
        run = steady_run(500, rate, **{**KNOWN, "arrivals_cv": None, "offered_rps": rate, "events": event})
        run.save(tmp_path / "sweep" / str(number))
    found = audit(tmp_path / "sweep")
    assert (found.kind, found.runs) == ("sweep", 5)
    assert supported(found)["this engine is faster than that engine"] is not bool(found.reasons)
    steady_run(seed=9).save(tmp_path / "sweep" / "other")
    assert "hardware" in audit(tmp_path / "sweep").missing


def test_probes_and_overload_of_a_sweep_are_no_missing_evidence(tmp_path: Path) -> None:
    folder = write_frontier(tmp_path / "frontier")
    simulate(MODEL, "poisson:rate=1", 15.0, 1, slo=SLO).save(folder / "points" / "1-1")
    simulate(MODEL, "poisson:rate=60", 150.0, 1, slo=SLO).save(folder / "points" / "60-1")
    scores = [score for point in ol.open_frontier(folder).points for score in point.scores]
    assert not scores[0].valid
    assert not scores[-1].valid
    found = audit(folder)
    assert (found.kind, found.runs, found.reasons) == ("sweep", 7, ())
    told = {fact.name: fact.found for fact in found.facts}
    assert told["interval"] == ol.open_frontier(folder).knee.sentence
    assert not {"sweep", "tail"} & {each for claim in found.claims for each in claim.lacks}


def test_a_warm_up_that_the_frontier_leaves_out_is_no_fault_of_its_runs(tmp_path: Path) -> None:
    folder = write_frontier(tmp_path / "frontier", rates=(5,), seconds=100.0)
    shutil.rmtree(folder / "points" / "5-1")
    rng = np.random.default_rng(1)
    due = np.sort(rng.random(500)) * 100
    first = np.where(due < 45, 2.0 - due / 25, 0.1) + rng.random(500) / 20
    rows = [row(i, due=at, tokens=[after, after + 0.05]) for i, (at, after) in enumerate(zip(due, first, strict=True))]
    facts: dict[str, Any] = {"slo": "ttft<=3s", "window_ns": (0, 100 * 10**9), "finished": True}
    run_of(rows, **facts).save(folder / "points" / "5-1")
    assert not ol.score(folder / "points" / "5-1").valid
    assert ol.open_frontier(folder).points[0].valid
    assert audit(folder).reasons == ()


def test_what_somebody_else_states_can_be_audited(tmp_path: Path) -> None:
    path = tmp_path / "post.yaml"
    path.write_text("hardware: 8x H100\nlengths: 128 in, 128 out\nslo:\n")
    found = audit(path)
    assert found.kind == "file"
    assert set(found.missing) == set(FACTS) - {"hardware", "lengths"}
    path.write_text("cost: 0\nretries: 0\nhardware: ''\nlengths: no\n")
    assert set(audit(path).missing) == set(FACTS) - {"cost", "retries"}  # none is known to be none
    path.write_text("\n".join(f"{name}: told" for name in (*FACTS, *MORE)))
    assert all(supported(audit(path)).values())


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_need_of_a_claim_is_a_fact_and_each_counts(claim: str, tmp_path: Path) -> None:
    path = tmp_path / "post.yaml"
    for need in CLAIMS[claim]:
        path.write_text("\n".join(f"{name}: told" for name in (*FACTS, *MORE) if name != need))
        lacking = {each.claim: each.lacks for each in audit(path).claims}
        assert lacking[claim] == (need,)


def test_what_is_no_run_and_no_file_of_facts_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run and holds none"):
        audit(tmp_path)
    with pytest.raises(RunError, match="does not exist"):
        audit(tmp_path / "nowhere")
    (tmp_path / "a.yaml").write_text("hardwre: x")
    with pytest.raises(
        SpecError, match=r"unknown fact 'hardwre'; did you mean 'hardware'\? known are slo, .*, utilisation"
    ):
        audit(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("- x")
    with pytest.raises(SpecError, match="states no facts"):
        audit(tmp_path / "a.yaml")
