"""A run survives whatever happens to its writer."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openloop.errors import RecordError, RunError, SpecError, StorageError
from openloop.records import GRADES, Labels, Manifest, RunWriter, make_batch, make_lists, open_run, relabel
from openloop.records import writer as writer_module
from openloop.slo import parse_slo
from tests.runs import batch, row, write_run

ROWS = [row(i, due=i / 10, tokens=[0.1 + k / 100 for k in range(i % 5)], replica=f"r{i % 3}") for i in range(40)]


def read_all(folder: Path) -> list[dict[str, Any]]:
    return open_run(folder).head(10**6)


@settings(max_examples=25)
@given(batches=st.integers(1, 12), per_group=st.integers(1, 50), events=st.integers(1, 60))
def test_what_was_written_is_read_back_however_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory, batches: int, per_group: int, events: int
) -> None:
    folder = tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "ROWS_PER_ROW_GROUP", per_group)
        patch.setattr(writer_module, "TOKENS_PER_ROW_GROUP", events)
        write_run(folder, ROWS, batches=batches)
    assert read_all(folder) == batch(ROWS).to_pylist()
    groups = pq.ParquetFile(folder / "requests.parquet").metadata
    assert max(groups.row_group(i).num_rows for i in range(groups.num_row_groups)) <= per_group + 40 // batches + 1


def test_a_finished_run_is_two_files_that_any_parquet_reader_reads(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ROWS)
    assert sorted(path.name for path in folder.iterdir()) == ["requests.parquet", "run.json"]
    assert pq.read_table(folder / "requests.parquet").num_rows == 40
    assert open_run(folder).manifest.finished
    assert open_run(folder).missing == ()


def test_large_batches_become_row_groups_of_bounded_size(tmp_path: Path) -> None:
    requests, tokens = 30, 100_000
    times = np.arange(tokens) * 1000
    columns = {
        "request_id": np.arange(requests),
        "scheduled_ns": np.zeros(requests, np.int64),
        "sent_ns": np.zeros(requests, np.int64),
        "ended_ns": np.full(requests, 10**9),
        "event_ns": make_lists("event_ns", np.tile(times, requests), np.full(requests, tokens)),
    }
    with RunWriter(tmp_path / "run", Manifest(source="test")) as writer:
        writer.append(make_batch(columns))
    metadata = pq.ParquetFile(tmp_path / "run" / "requests.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [10, 10, 10]


def test_row_groups_are_cut_by_tokens_also_where_an_event_carries_many(tmp_path: Path) -> None:
    rows = [row(i, due=float(i), tokens=[0.1], event_tokens=[300_000]) for i in range(10)]
    write_run(tmp_path / "run", rows)
    metadata = pq.ParquetFile(tmp_path / "run" / "requests.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [6, 4]


def test_an_exception_leaves_the_run_open_with_everything_appended(tmp_path: Path) -> None:
    def produce() -> None:
        with RunWriter(tmp_path / "run", Manifest(source="test")) as writer:
            writer.append(batch(ROWS[:25]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        produce()
    run = open_run(tmp_path / "run")
    assert run.num_rows == 25
    assert not run.manifest.finished
    assert "25 rows in 1 flushed batches are here" in run.missing[0]


def test_a_bad_batch_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", Manifest(source="test")) as writer:
        writer.append(batch(ROWS[:10]))
        with pytest.raises(RecordError, match=r"row 12 \(request 12\)"):
            writer.append(batch([*ROWS[10:12], ROWS[12] | {"cost": -1.0}]))
        with pytest.raises(RecordError, match="build it with make_batch"):
            writer.append(pa.record_batch({"request_id": [1]}))
        words = pa.array(["soon"] * 10)
        with pytest.raises(RecordError, match="does not fit the table"):
            writer.append(batch(ROWS[:10]).set_column(8, "scheduled_ns", words))
        writer.append(batch(ROWS[10:]))
    assert read_all(tmp_path / "run") == batch(ROWS).to_pylist()


def test_an_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ROWS)
    with pytest.raises(RunError, match="already holds a run"):
        RunWriter(tmp_path / "run", Manifest(source="test"))
    assert open_run(tmp_path / "run").num_rows == 40


def test_a_table_that_is_not_written_to_its_end_leaves_nothing_behind(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [row(0)])
    with pytest.raises(ZeroDivisionError):
        relabel(
            tmp_path / "run", (batch([row(0 // i)]) for i in (1, 0)), Labels(GRADES.of([])), Manifest(source="test")
        )
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"requests.parquet", "run.json"}


def test_nothing_can_be_appended_to_a_finished_run(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.finish(notes=("done",))
    with pytest.raises(RunError, match="is finished"):
        writer.append(batch(ROWS))
    assert open_run(tmp_path / "run").manifest.notes == ("done",)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"seed": 1.5}, "got `float` at `seed`, found 1.5"),
        ({"cache_warmth": "hot"}, "hot"),
        ({"window_ns": (0, 1e9 + 0.5)}, "window_ns"),
        ({"stopped_ns": "now"}, "Expected `int"),
        ({"offered_rps": 0.0}, "offered_rps"),
        ({"notes": (object(),)}, "no text or number"),
    ],
)
def test_a_manifest_that_could_not_be_read_is_refused_before_anything_is_written(
    tmp_path: Path, facts: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence):
        RunWriter(tmp_path / "run", Manifest(source="test", **facts))
    assert not (tmp_path / "run").exists()
    writer = RunWriter(tmp_path / "late", Manifest(source="test"))
    writer.append(batch(ROWS))
    with pytest.raises(SpecError, match=sentence):
        writer.finish(**facts)
    writer.finish()
    assert open_run(tmp_path / "late").manifest.finished


def test_a_manifest_may_hold_numbers_of_numpy(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", Manifest(source="test", seed=np.int64(5))) as writer:  # type: ignore[arg-type]
        writer.append(batch(ROWS))
        writer.finish(stopped_ns=np.int64(10**10), offered_rps=np.float64(2.5))
    manifest = open_run(tmp_path / "run").manifest
    assert (manifest.seed, manifest.stopped_ns, manifest.offered_rps) == (5, 10**10, 2.5)


def test_an_slo_object_in_a_manifest_is_refused_with_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"write an SLO object as str\(slo\)"):
        Manifest(source="test", slo=parse_slo("ttft<=1s"))  # type: ignore[arg-type]


def test_a_run_is_finished_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.finish()
    with pytest.raises(RunError, match="is finished or was closed"):
        writer.finish()


def test_the_spool_is_kept_until_the_manifest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.append(batch(ROWS))

    def full(*_: object) -> None:
        raise StorageError("full")

    monkeypatch.setattr(writer_module, "write_manifest", full)
    with pytest.raises(StorageError):
        writer.finish()
    assert (tmp_path / "run" / "requests.arrows").exists()
    assert open_run(tmp_path / "run").num_rows == 40


def test_a_spool_cut_at_any_byte_opens_with_every_whole_batch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    writer = RunWriter(folder, Manifest(source="test"))
    spool = folder / "requests.arrows"
    ends = [spool.stat().st_size]
    for start in range(0, 40, 10):
        writer.append(batch(ROWS[start : start + 10]))
        ends.append(spool.stat().st_size)
    writer.close()
    whole = spool.read_bytes()
    cuts = {
        *ends,
        *(end + step for end in ends for step in (-9, -8, -1, 1, 4, 8, 9, 200)),
        *range(ends[0], len(whole), 997),
    }
    for cut in sorted(cut for cut in cuts if ends[0] <= cut <= len(whole)):
        spool.write_bytes(whole[:cut])
        batches = sum(end <= cut for end in ends[1:])
        assert read_all(folder) == batch(ROWS).to_pylist()[: 10 * batches], f"cut at {cut} of {len(whole)}"


PRODUCER = """
    import sys, time
    from openloop.records import Manifest, RunWriter
    from tests.runs import batch, row

    rows = [row(i, due=i / 10, tokens=[0.1, 0.2]) for i in range(1000)]
    writer = RunWriter(sys.argv[1], Manifest(source="test", window_ns=(0, 10**11)))
    for start in range(0, 1000, 50):
        writer.append(batch(rows[start : start + 50]))
        print(start + 50, flush=True)
"""


def produce(folder: Path, code: str = PRODUCER, **limits: Any) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    command = [sys.executable, "-c", textwrap.dedent(code), str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **limits
    )


@pytest.mark.parametrize("reported", [1, 7])
def test_kill_minus_nine_loses_nothing_that_was_flushed(tmp_path: Path, reported: int) -> None:
    with produce(tmp_path / "run", PRODUCER + "\n    time.sleep(60)\n") as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(reported)]
        process.send_signal(signal.SIGKILL)
    run = open_run(tmp_path / "run")
    assert run.num_rows >= flushed[-1]
    assert run.num_rows % 50 == 0
    run.validate()
    assert "was not closed" in run.missing[0]


def test_kill_minus_nine_while_the_run_is_being_finished_loses_nothing(tmp_path: Path) -> None:
    code = (
        PRODUCER
        + """
    import pyarrow.parquet as pq
    write = pq.ParquetWriter.write_table
    def slowly(self, *args, **kwargs):
        write(self, *args, **kwargs)
        print("finishing", flush=True)
        time.sleep(60)
    pq.ParquetWriter.write_table = slowly
    writer.finish()
    """
    )
    with produce(tmp_path / "run", code) as process:
        assert process.stdout is not None
        while "finishing" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGKILL)
    run = open_run(tmp_path / "run")
    assert run.num_rows == 1000
    run.validate()


@pytest.mark.parametrize("room", [100, 6000])  # for no head of a spool, and for that and no manifest
def test_a_disk_that_is_full_at_the_start_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    code = """
        import sys
        from openloop.errors import StorageError
        from openloop.records import Manifest, RunWriter

        try:
            RunWriter(sys.argv[1], Manifest(source="test", notes=("a long note" * 1000,)))
        except StorageError as error:
            print(error)
    """
    with produce(tmp_path / "run", code, preexec_fn=limit) as process:
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "cannot be" in said
    assert list((tmp_path / "run").iterdir()) == []


def test_a_disk_that_is_full_in_the_middle_keeps_the_batches_before(tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    with produce(tmp_path / "run", preexec_fn=limit) as process:
        flushed = int(process.communicate()[0].split()[-1])
    assert process.returncode == 1
    assert 0 < flushed < 1000
    assert open_run(tmp_path / "run").num_rows == flushed


def test_a_refused_write_leaves_no_torn_message_behind(tmp_path: Path) -> None:
    """The writer may go on after the disk has room again."""
    code = """
        import resource, signal, sys
        from openloop.errors import StorageError
        from openloop.records import Manifest, RunWriter
        from tests.runs import batch, row

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = RunWriter(sys.argv[1], Manifest(source="test"))
        writer.append(batch([row(0)]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        try:
            writer.append(batch([row(i) for i in range(1, 1000)]))
        except StorageError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.append(batch([row(1)]))
        writer.finish()
    """
    with produce(tmp_path / "run", code) as process:
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "requests.arrows cannot grow" in said
    assert "the 1 rows before this batch are kept" in said
    assert [each["request_id"] for each in read_all(tmp_path / "run")] == [0, 1]


def test_a_disk_that_is_full_at_the_end_keeps_all_rows(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys
        from openloop.errors import StorageError
        from openloop.records import Manifest, RunWriter
        from tests.runs import batch, row

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = RunWriter(sys.argv[1], Manifest(source="test"))
        writer.append(batch([row(i) for i in range(40)]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            writer.finish()
        except StorageError as error:
            print(error)
    """
    with produce(tmp_path / "run", code) as process:
        said, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "all 40 rows are kept in requests.arrows" in said
    assert open_run(tmp_path / "run").num_rows == 40
    assert not (tmp_path / "run" / "requests.parquet.tmp").exists()
