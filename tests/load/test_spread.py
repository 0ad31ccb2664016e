"""A run on several machines, each a process with a clock of its own, is one run; whatever happens to one of them."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import openloop as ol
from openloop.arrivals import Poisson
from openloop.clock import Offset, offset_of
from openloop.errors import RunError, SpecError
from openloop.load import spread as spreading
from openloop.load.conductor import Snapshot, drive
from openloop.load.spread import deal, spread
from openloop.seeds import stream
from openloop.serve.process import RunningEndpoint, endpoint_process
from openloop.workload import Workload, read_source, read_warming
from tests.load.hosting import Machine
from tests.load.test_conductor import ENGINE, load_of, rows_of

HOUR = 3_600_000_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[RunningEndpoint]:
    with endpoint_process(ENGINE) as served:
        yield served


@contextlib.contextmanager
def machines(*skews_ns: int, **how: Any) -> Iterator[list[Machine]]:
    found = [Machine(f"node-{number}", skew, **how) for number, skew in enumerate(skews_ns)]
    try:
        yield found
    finally:
        for each in found:
            each.end()


delays = st.integers(0, 10**9)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(st.integers(0, 10**12), delays, delays), min_size=1))
def test_an_offset_is_never_further_off_than_its_error(truth: int, exchanges: list[tuple[int, int, int]]) -> None:
    """Whatever the ways there and back take: nothing is assumed of them."""
    readings = [(before, before + there + truth, before + there + back) for before, there, back in exchanges]
    found = offset_of(readings)
    assert abs(found.ns - truth) <= found.error_ns
    quickest = min(there + back for _, there, back in exchanges)
    assert found.error_ns <= quickest // 2 + 2


@given(st.integers(-(10**9), 10**9), st.integers(-(10**6), 10**6), st.integers(0, 10**6))
def test_an_offset_is_changed_only_as_far_as_it_is_proven_wrong(before: int, moved: int, error: int) -> None:
    now = Offset(before + moved, error)
    found = Offset(before, 5).corrected(now)
    assert abs(found.ns - now.ns) <= error
    assert (found.ns == before) == (abs(moved) <= error)


@given(st.integers(1, 7), st.integers(1, 40), st.booleans())
def test_requests_are_dealt_out_in_turn_and_sessions_whole(count: int, rate: int, talks: bool) -> None:
    source = "sessions:turns=3,think=1s,prompt=10,output=5" if talks else "synthetic:prompt=10,output=5"
    demand = Workload.of(read_source(source)).demand(Poisson(rate), 3.0, 1)
    shares = deal(demand, count)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(demand)))
    if not talks:
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        part = demand.take(share)
        if part.after is not None and demand.after is not None:
            assert np.sum(part.after >= 0) == np.sum(demand.after[share] >= 0)


def test_machines_with_other_clocks_drive_one_schedule(server: RunningEndpoint, tmp_path: Path) -> None:
    """One is seven hours ahead, one three behind, one sees no disk of ours: the run is that of a single machine."""
    load = load_of(server, 150.0, 2.0)
    alone = drive(load, tmp_path / "alone")
    server.truth()
    with machines(7 * HOUR, -3 * HOUR) as near, machines(0, apart=True) as far:
        found = spread(load, tmp_path / "run", [*near, *far])
    truth = server.truth()
    found.validate()
    assert found.missing == ()
    rows = sorted(rows_of(found), key=lambda row: row["request_id"])
    schedule = sorted((row["request_id"], row["scheduled_ns"]) for row in rows_of(alone))
    assert [(row["request_id"], row["scheduled_ns"]) for row in rows] == schedule
    assert {row["status"] for row in rows} == {"ok"}
    for node, skew in zip(found.manifest.nodes, (7 * HOUR, -3 * HOUR, 0), strict=True):
        assert abs(node.offset_ns - skew) <= node.error_ns
        assert node.lost is None
    assert sum(node.requests for node in found.manifest.nodes) == len(rows)
    early = [
        np.median([truth[row["request_id"]][0] - row["scheduled_ns"] for row in rows[number::3]]) for number in range(3)
    ]
    assert max(early) - min(early) < 50e6  # the server saw them start together
    assert np.median([row["sent_ns"] - row["scheduled_ns"] for row in rows]) < 50e6
    score = ol.score(found, "ttft<=5s")
    assert score.requests == len(rows)
    found.save(tmp_path / "one")
    assert ol.score(tmp_path / "one", "ttft<=5s").goodput_rps == score.goodput_rps
    with pytest.raises(RunError, match="grade each of them"):
        ol.grade_run(tmp_path / "run", "json")


@pytest.mark.parametrize(("how", "seconds"), [("kill", 6.0), ("freeze", 6.0), ("cut", 12.0)])
def test_a_lost_machine_is_dropped_rows_and_no_valid_run(
    server: RunningEndpoint, tmp_path: Path, how: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spreading, "LOST_S", 4.0)
    load = load_of(server, 100.0, seconds)
    struck: list[Snapshot] = []
    with machines(0, 0) as two:

        def watch(now: Snapshot) -> None:
            if now.seconds > 3.0 and not struck:
                struck.append(now)
                getattr(two[1], how)()

        began = time.monotonic()
        found = spread(load, tmp_path / "run", two, watch)
    assert time.monotonic() - began < 60
    found.validate()
    rows = rows_of(found)
    alone = Poisson(100.0).times(seconds, stream(0, "arrivals"))
    assert sorted(row["request_id"] for row in rows) == list(range(len(alone)))  # nothing that was due is missing
    fates = [Counter(row["status"] for row in rows if row["request_id"] % 2 == number) for number in range(2)]
    assert set(fates[0]) == {"ok"}
    assert fates[1]["dropped"] > 50
    assert fates[1]["ok"] > 20  # what it had flushed is kept
    first, second = found.manifest.nodes
    assert (first.lost, bool(second.lost)) == (None, True)
    assert found.num_rows == ol.open_run(tmp_path / "run").num_rows  # though one that is cut off writes on
    score = ol.score(found, "ttft<=5s")
    assert not score.valid
    assert any("node-1 was lost" in reason for reason in score.reasons)


def test_whoever_watches_sees_the_whole_and_may_end_it(server: RunningEndpoint, tmp_path: Path) -> None:
    seen: list[Snapshot] = []

    def watch(now: Snapshot) -> str | None:
        seen.append(now)
        return "enough was seen" if sum(now.statuses.values()) > 60 else None

    pytest.importorskip("upath")
    place = (tmp_path / "run").as_uri()
    with machines(0, HOUR) as two:
        found = spread(load_of(server, 80.0, 30.0), place, two, watch)
    assert found.manifest.cut_short == "overload"
    assert found.manifest.notes.count("enough was seen") == 1
    assert found.manifest.window_ns is not None
    assert found.manifest.window_ns[1] < 20e9
    inside = [row for row in rows_of(found) if row["scheduled_ns"] < found.manifest.window_ns[1]]
    assert found.manifest.offered_rps == pytest.approx(len(inside) / (found.manifest.window_ns[1] / 1e9))
    assert sum(len(each.finished) for each in seen) >= 0.9 * max(sum(each.statuses.values()) for each in seen) > 20
    with pytest.raises(RunError, match="already holds a run"), machines(0) as one:
        spread(load_of(server), place, one)


def test_what_is_wrong_before_the_run_is_a_sentence(server: RunningEndpoint, tmp_path: Path) -> None:
    with machines(0, version="0.0") as old, pytest.raises(SpecError, match=r"node-0: it has openloop .*, and 0\.0 is"):
        spread(load_of(server), tmp_path / "a", old)
    hot = load_of(server, warming=read_warming("hot"))
    with pytest.raises(SpecError, match="--warmth hot"):
        spread(hot, tmp_path / "b", [])
    assert not list(tmp_path.iterdir())


def test_a_display_that_fails_does_not_end_the_run(server: RunningEndpoint, tmp_path: Path) -> None:
    def fails(now: Snapshot) -> str | None:
        raise BrokenPipeError

    with machines(0) as hosts:
        run = spread(load_of(server, 50.0), tmp_path / "run", hosts, fails)
    assert {row["status"] for row in rows_of(run)} == {"ok"}
    assert any("the display failed (BrokenPipeError)" in note for note in run.manifest.notes)
