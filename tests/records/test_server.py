"""The server's figures survive whatever happens to their writer, and never cost the run."""

import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from openloop.errors import RunError, StorageError
from openloop.records import (
    MEASURES,
    SERVER,
    Manifest,
    Reading,
    Run,
    RunWriter,
    SideWriter,
    open_run,
)
from openloop.score import score
from tests.runs import batch, row, write_run

READINGS: list[Reading] = [(second * 10**9, "a", "queue", float(second)) for second in range(-1, 9)]
ROWS = [row(i, due=float(i), tokens=[0.1]) for i in range(5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ROWS)


def rows_of(run: Run) -> list[Reading]:
    table = run.server()
    assert table is not None
    return [tuple(each.values()) for each in table.to_pylist()]


def write(folder: Path, *, finish: bool) -> SideWriter:
    writer = SERVER.writer(folder)
    for start in range(0, 10, 2):
        writer.append(SERVER.of(READINGS[start : start + 2]))
    if finish:
        writer.finish()
    return writer


def test_what_was_written_is_read_back(folder: Path) -> None:
    write(folder, finish=True)
    run = open_run(folder)
    assert rows_of(run) == READINGS
    assert run.server_note is None
    assert sorted(path.name for path in folder.iterdir()) == ["requests.parquet", "run.json", "server.parquet"]
    assert pq.read_schema(folder / "server.parquet").names == SERVER.schema.names


def test_a_run_of_which_no_server_told_anything_has_no_figures_and_no_note(folder: Path) -> None:
    SERVER.writer(folder).finish()
    run = open_run(folder)
    assert (run.server(), run.server_note) == (None, None)
    assert not (folder / "server.parquet").exists()
    assert score(run, "ttft<=1s").server is None


def test_a_killed_writer_leaves_what_was_flushed(folder: Path) -> None:
    writer = write(folder, finish=False)
    assert writer._spool is not None
    writer._spool.close()
    run = open_run(folder)
    assert rows_of(run) == READINGS
    assert run.server_note == "the server's figures were not closed: 10 were flushed"
    spool = folder / "server.arrows"
    spool.write_bytes(spool.read_bytes()[:-5])
    torn = open_run(folder)
    assert rows_of(torn) == READINGS[:8]
    assert torn.server_note == "the server's figures were not closed: 8 were flushed, and the last of them is torn"


def test_a_damaged_file_is_a_note_and_the_run_is_scored_without_it(folder: Path) -> None:
    write(folder, finish=True)
    whole = (folder / "server.parquet").read_bytes()
    for damaged in (b"", whole[:50], whole[:-20], b"garbage"):
        (folder / "server.parquet").write_bytes(damaged)
        found = score(folder, "ttft<=1s")
        assert found.server is None
        assert any(note.startswith("server.parquet is damaged, so the server's figures are") for note in found.notes)


def test_a_file_without_a_column_is_a_note(folder: Path) -> None:
    pq.write_table(SERVER.of(READINGS).drop_columns(["value"]), folder / "server.parquet")
    assert "is damaged" in str(open_run(folder).server_note)


def test_several_threads_write_one_file(folder: Path) -> None:
    writer = SERVER.writer(folder)

    def append(replica: str) -> None:
        for second in range(50):
            writer.append(SERVER.of([(second, replica, "queue", 1.0), (second, replica, "running", 2.0)]))

    threads = [threading.Thread(target=append, args=(f"r{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.finish()
    assert len(rows_of(open_run(folder))) == 400


def test_what_comes_after_the_end_is_not_stored(folder: Path) -> None:
    write(folder, finish=True).append(SERVER.of(READINGS))
    assert rows_of(open_run(folder)) == READINGS


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    writer = SERVER.writer(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="server.arrows cannot be written .*: later server figures are missing"):
        writer.append(SERVER.of(READINGS))
    writer.append(SERVER.of(READINGS))
    writer.finish()


def test_figures_are_saved_with_a_run_in_memory(tmp_path: Path) -> None:
    run = Run.of(Manifest(source="test"), [batch(ROWS)], SERVER.of(READINGS))
    assert rows_of(run) == READINGS
    run.save(tmp_path / "run")
    assert rows_of(open_run(tmp_path / "run")) == READINGS


def test_figures_left_in_a_folder_are_not_taken_for_those_of_a_new_run(tmp_path: Path) -> None:
    write(tmp_path, finish=True)
    with pytest.raises(RunError, match=r"already holds a run \(server.parquet\)"):
        RunWriter(tmp_path, Manifest(source="test"))


def test_every_measure_says_what_it_means() -> None:
    assert all(measure.meaning for measure in MEASURES.values())
