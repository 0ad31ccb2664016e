"""Whatever stands where a run should be, opening it says what is wrong in one sentence."""

import contextlib
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from openloop.errors import RecordError, RunError
from openloop.records import GRADES, TEXTS, Manifest, Run, RunWriter, open_run, writer
from openloop.records.tail import Tail
from openloop.score import score
from tests.runs import batch, row, run_of, write_run

CORPUS = Path(__file__).parents[1] / "corpus"
ROWS = [row(i, due=float(i), tokens=[0.1, 0.2], replica="a" if i % 2 else None) for i in range(20)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ROWS)


def edit(folder: Path, **change: object) -> None:
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(manifest | change))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere does not exist"):
        open_run(tmp_path / "nowhere")


def test_a_file_in_place_of_a_folder(folder: Path) -> None:
    with pytest.raises(RunError, match="run.json is a file; give the folder it is in"):
        open_run(folder / "run.json")


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run: it has no run.json"):
        open_run(tmp_path)


def test_a_column_that_there_is_not_is_named(folder: Path) -> None:
    with pytest.raises(RecordError, match="unknown column 'event_n'; did you mean 'event_ns'"):
        open_run(folder).batches(["event_n"])


def test_a_manifest_may_have_a_byte_order_mark(folder: Path) -> None:
    (folder / "run.json").write_bytes(b"\xef\xbb\xbf" + (folder / "run.json").read_bytes())
    assert open_run(folder).num_rows == len(ROWS)


def test_a_manifest_that_is_not_json(folder: Path) -> None:
    (folder / "run.json").write_text("{")
    with pytest.raises(RunError, match="run.json is not JSON"):
        open_run(folder)


def test_a_manifest_that_is_no_object(folder: Path) -> None:
    (folder / "run.json").write_text("[]")
    with pytest.raises(RunError, match="run.json: Expected `object`"):
        open_run(folder)


def test_a_newer_schema(folder: Path) -> None:
    edit(folder, schema_version=99, shiny="new")
    with pytest.raises(RunError, match="schema version 99 and this openloop reads up to 1: upgrade openloop"):
        open_run(folder)


def test_an_unknown_key_is_rejected_by_name(folder: Path) -> None:
    edit(folder, hardwear="H200")
    with pytest.raises(RunError, match="unknown key 'hardwear'; did you mean 'hardware'?"):
        open_run(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"window_ns": [5, 5]}, r"window_ns is \[5, 5\]"),
        ({"prices": {"per_hour": -3}}, r"Expected `float` >= 0.0 at `prices.per_hour`, found -3"),
        ({"cache_warmth": "lukewarm"}, r"lukewarm"),
        ({"prices": {"per_our": 3}}, r"unknown key 'per_our' in 'prices'; did you mean 'per_hour'?"),
        ({"source": None}, r"Expected `str`, got `null` at `source`"),
        ({"offered_rps": 0}, r"Expected `float` > 0.0 at `offered_rps`, found 0"),
        ({"stopped_ns": 10**30}, r"at `stopped_ns`"),
        ({"replicas": -1}, r"Expected `int` >= 0 at `replicas`, found -1"),
        ({"schema_version": 0}, r"Expected `int` >= 1 at `schema_version`, found 0"),
    ],
)
def test_a_manifest_without_sense(folder: Path, change: dict[str, object], sentence: str) -> None:
    edit(folder, **change)
    with pytest.raises(RunError, match=sentence):
        open_run(folder)


def test_a_missing_table(folder: Path) -> None:
    (folder / "requests.parquet").unlink()
    with pytest.raises(RunError, match=r"has no requests.parquet: the run's table is missing"):
        open_run(folder)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_table(folder: Path, share: float) -> None:
    table = folder / "requests.parquet"
    table.write_bytes(table.read_bytes()[: int(share * table.stat().st_size)])
    with pytest.raises(RunError, match=r"requests.parquet is damaged or cut short"):
        open_run(folder)


def test_a_table_damaged_in_the_middle_is_refused_when_it_is_read(folder: Path) -> None:
    table = folder / "requests.parquet"
    whole = bytearray(table.read_bytes())
    whole[4:2000] = b"\xff" * 1996
    table.write_bytes(whole)
    with pytest.raises((RunError, RecordError)):
        open_run(folder).validate()


def test_a_table_without_a_needed_column(folder: Path) -> None:
    table = folder / "requests.parquet"
    pq.write_table(pq.read_table(table).drop_columns(["status"]), table)
    with pytest.raises(RunError, match="lacks the column 'status', which every run has"):
        open_run(folder)


def test_a_column_of_another_kind(folder: Path) -> None:
    path = folder / "requests.parquet"
    table = pq.read_table(path)
    words = pa.array(["soon"] * len(table))
    pq.write_table(table.set_column(table.schema.get_field_index("scheduled_ns"), "scheduled_ns", words), path)
    with pytest.raises(RunError, match=r"column 'scheduled_ns' is string and not int64"):
        open_run(folder).validate()


def test_a_table_that_another_tool_wrote_is_read_as_ours(folder: Path) -> None:
    """Other integer widths, large lists, no optional columns, columns of their own."""
    path = folder / "requests.parquet"
    table = pq.read_table(path).select(
        ["request_id", "attempt", "kind", "status", "scheduled_ns", "sent_ns", "ended_ns", "event_ns", "replica"]
    )
    schema = pa.schema(
        [
            pa.field("request_id", pa.int32()),
            pa.field("attempt", pa.int8()),
            pa.field("kind", pa.large_string()),
            pa.field("status", pa.large_string()),
            *(pa.field(name, pa.uint64()) for name in ("scheduled_ns", "sent_ns", "ended_ns")),
            pa.field("event_ns", pa.large_list(pa.int64())),
            pa.field("replica", pa.string()),
        ]
    )
    pq.write_table(table.cast(schema).append_column("mine", [["x"] * len(table)]), path, row_group_size=7)
    run = open_run(folder)
    run.validate()
    assert run.head(100) == batch(ROWS).to_pylist()


def test_a_run_in_progress_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.append(batch(ROWS[:5]))
    run = open_run(tmp_path / "run")
    writer.append(batch(ROWS[5:]))
    writer.close()
    assert run.num_rows == len(run.head(100)) == 5
    assert open_run(tmp_path / "run").num_rows == 20


def test_a_copy_of_a_run_that_was_cut_short_is_cut_short(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.append(batch(ROWS[:5]))
    writer.close()
    run = open_run(tmp_path / "run")
    run.save(tmp_path / "copy")
    copy = open_run(tmp_path / "copy")
    assert copy.missing == run.missing != ()
    assert copy.head(100) == run.head(100)


def test_a_copy_has_the_tables_beside_the_run(folder: Path) -> None:
    texts = TEXTS.of([{"request_id": 0, "attempt": 0, "prompt": "a", "text": "b"}])
    grades = GRADES.of([{"request_id": 0, "attempt": 0, "quality": True, "gate": "g"}])
    for side, table, whole in ((TEXTS, texts, True), (GRADES, grades, False)):
        writer = side.writer(folder)
        writer.append(table)
        writer.finish() if whole else writer.close()
    copy = folder.parent / "copy"
    open_run(folder).save(copy)
    assert not open_run(copy).missing
    assert TEXTS.read(copy) == (texts, None)
    assert GRADES.read(copy) == GRADES.read(folder) == (grades, "the grades were not closed: 1 were flushed")


def test_a_copy_of_a_run_of_several_machines_is_as_incomplete_as_the_run(folder: Path) -> None:
    edit(folder, nodes=[{"name": name, "requests": 1, "offset_ns": 0, "error_ns": 0} for name in ("east", "west")])
    part = write_run(folder / "nodes" / "1", [row(30, due=3.0, tokens=[0.1])])
    side = TEXTS.writer(part)
    side.append(TEXTS.of([{"request_id": 30, "attempt": 0, "text": "b"}]))
    side.finish()
    open_run(folder).save(folder.parent / "copy")
    copy = open_run(folder.parent / "copy")
    assert copy.num_rows == 21
    assert "was not closed" in copy.missing[0]
    assert "east: its rows are missing" in copy.manifest.notes
    texts, note = copy.texts()
    assert note is None
    assert texts is not None
    assert texts.num_rows == 1


def test_a_table_whose_manifest_was_not_updated_says_so(folder: Path) -> None:
    edit(folder, finished=False)
    assert "run.json was not updated at the end" in open_run(folder).missing[0]


def test_a_run_that_is_finished_while_it_is_read_goes_on_being_read(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.append(batch(ROWS[:5]))
    run = open_run(tmp_path / "run")
    writer.append(batch(ROWS[5:]))
    writer.finish()
    assert run.head(100) == batch(ROWS[:5]).to_pylist()
    run.validate()


def test_a_path_that_looks_like_an_address_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("run-04:57:12"), ROWS)
    assert len(open_run("run-04:57:12").head(100)) == 20


def test_a_key_that_stands_twice_in_the_manifest_is_refused(folder: Path) -> None:
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"seed": null', '"seed": 1, "seed": 2'))
    with pytest.raises(RunError, match="the key 'seed' stands twice"):
        open_run(folder)


@pytest.mark.parametrize("text", ['{"source": "\\ud800"', '{"source": NaN}', "[" * 100_000])
def test_json_of_every_odd_kind_is_refused(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    with pytest.raises(RunError, match="run.json"):
        open_run(folder)


def test_every_flipped_bit_in_the_data_is_noticed(folder: Path) -> None:
    """Pages carry checksums: what is damaged is refused, and not scored as something else."""
    table = folder / "requests.parquet"
    whole = table.read_bytes()
    pages = pq.ParquetFile(folder / "requests.parquet").metadata.row_group(0)
    expected = open_run(folder).head(100)
    for name in ("scheduled_ns", "event_ns.list.element", "replica"):
        column = next(pages.column(i) for i in range(pages.num_columns) if pages.column(i).path_in_schema == name)
        start = column.dictionary_page_offset or column.data_page_offset
        for place in range(start, start + column.total_compressed_size, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 4
            table.write_bytes(damaged)
            try:
                assert open_run(folder).head(100) == expected
            except RunError as error:
                assert "damaged in row group 0" in str(error)  # noqa: PT017


def test_damaged_facts_about_a_column_are_refused_and_do_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of two numbers in the footer has a third, which Arrow takes ill when it is asked about the column."""
    monkeypatch.setattr(writer, "TOKENS_PER_ROW_GROUP", 20)
    folder = write_run(tmp_path / "run", ROWS)
    table = folder / "requests.parquet"
    data = table.read_bytes()
    assert pq.ParquetFile(table).num_row_groups == 2
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused = 0
    for found in re.finditer(rb"[\x19\x29]\x26(?:[\x80-\xff]*[\x00-\x7f]){2}", data[start:-8]):
        place, stop = start + found.start() + 1, start + found.end()
        footer = data[start:place] + b"\x36" + data[place + 1 : stop] + b"\x00" + data[stop:-8]
        table.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        try:
            run = open_run(folder)
            assert run.num_events in (0, 40)
            run.head(100)
        except RunError as error:
            refused += "histogram size mismatch" in str(error)
    assert refused


def test_a_footer_that_counts_other_rows_than_there_are_is_refused(folder: Path) -> None:
    data = (CORPUS / "parquet" / "e6ae67adfbb4").read_bytes()
    (folder / "requests.parquet").write_bytes(data)
    with pytest.raises(RunError, match=r"says that it has 37 rows, and has 40"):
        open_run(folder)


def test_a_table_that_memory_is_too_small_for_is_not_said_to_be_damaged_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 32768 failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", fail)
    with pytest.raises(RunError, match=r"needs more memory than there is, or is damaged in row group 0: malloc"):
        open_run(folder).head(1)


def test_a_batch_that_memory_is_too_small_for_is_not_the_end_of_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    writer.append(batch(ROWS[:5]))
    writer.close()

    def fail(_: object) -> Iterator[pa.RecordBatch]:
        yield batch(ROWS[:5])
        raise pa.ArrowMemoryError("malloc of size 32768 failed")

    monkeypatch.setattr(pa.ipc, "open_stream", fail)
    with pytest.raises(RunError, match="a batch of rows needs more memory than there is: malloc of size 32768 failed"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_spool_never_gives_a_batch_that_was_not_written(tmp_path: Path, seed: int) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    for start in range(0, 20, 5):
        writer.append(batch(ROWS[start : start + 5]))
    writer.close()
    spool = tmp_path / "run" / "requests.arrows"
    rng = random.Random(seed)
    damaged = bytearray(spool.read_bytes())
    for _ in range(rng.choice([1, 8])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    spool.write_bytes(damaged)
    run = open_run(tmp_path / "run")
    assert run.num_rows % 5 == 0
    assert "was not closed" in run.missing[0]
    with contextlib.suppress(RecordError):
        run.validate()


def test_a_batch_that_claims_to_be_larger_than_any_memory_ends_a_spool(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    spool = tmp_path / "run" / "requests.arrows"
    writer.append(batch(ROWS[:5]))
    whole = spool.stat().st_size
    writer.append(batch(ROWS[5:]))
    writer.close()
    data = spool.read_bytes()
    size = pa.ipc.read_message(data[whole:]).body.size.to_bytes(8, "little")
    assert size in data[whole:]
    spool.write_bytes(data[:whole] + data[whole:].replace(size, (1 << 55).to_bytes(8, "little")))
    assert open_run(tmp_path / "run").num_rows == Tail(tmp_path / "run").read_on() == 5


def test_a_spool_damaged_in_the_middle_says_how_much_cannot_be_read(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", Manifest(source="test"))
    spool = tmp_path / "run" / "requests.arrows"
    ends = []
    for start in range(0, 20, 5):
        writer.append(batch(ROWS[start : start + 5]))
        ends.append(spool.stat().st_size)
    writer.close()
    damaged = bytearray(spool.read_bytes())
    damaged[ends[0] : ends[0] + 64] = bytes(64)
    damaged[ends[0]] = 7
    spool.write_bytes(damaged)
    run = open_run(tmp_path / "run")
    assert run.num_rows == 5
    assert f"{ends[-1] - ends[0]:,} bytes after them are no whole batch" in run.missing[0]


def test_times_as_timestamps_and_columns_that_stand_twice_are_refused(folder: Path) -> None:
    path = folder / "requests.parquet"
    table = pq.read_table(path)
    stamps = table.column("scheduled_ns").cast(pa.timestamp("us"))
    pq.write_table(table.set_column(table.schema.get_field_index("scheduled_ns"), "scheduled_ns", stamps), path)
    with pytest.raises(RunError, match=r"column 'scheduled_ns' is timestamp\[us\]; times are plain integers"):
        open_run(folder).validate()
    pq.write_table(table.append_column("status", table.column("status")), path)
    with pytest.raises(RunError, match="has the column 'status' twice"):
        open_run(folder)


def test_nulls_inside_lists_are_refused_by_row(folder: Path) -> None:
    path = folder / "requests.parquet"
    table = pq.read_table(path)
    lists = table.column("event_ns").to_pylist()
    lists[3] = [lists[3][0], None]
    for broken in (lists, [*lists[:3], None, *lists[4:]]):
        column = pa.array(broken, pa.list_(pa.int64()))
        pq.write_table(table.set_column(table.schema.get_field_index("event_ns"), "event_ns", column), path)
        for read in (Run.validate, lambda run: score(run, "e2e<=1s")):
            with pytest.raises(RecordError, match=r"row 3 \(request 3\): event_ns"):
                read(open_run(folder))
    counts = pa.array([[None, *[1] * (len(times) - 1)] for times in lists], pa.list_(pa.int32()))
    pq.write_table(table.set_column(table.schema.get_field_index("event_tokens"), "event_tokens", counts), path)
    with pytest.raises(RecordError, match=r"row 0 \(request 0\): event_tokens holds a null"):
        score(open_run(folder), "e2e<=1s")


def test_joined_batches_hold_the_same_rows(folder: Path) -> None:
    for run in (open_run(folder), run_of(ROWS, batches=5)):
        joined = list(run.batches(["request_id", "replica"], rows=8))
        assert [r for each in joined for r in each.to_pylist()] == batch(ROWS).select(
            ["request_id", "replica"]
        ).to_pylist()
        assert all(each.num_rows >= 8 for each in joined[:-1])
