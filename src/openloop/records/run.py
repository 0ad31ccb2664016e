"""Opening a run: finished, still growing, or cut short."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from openloop.errors import RunError
from openloop.records.manifest import MANIFEST_FILE, Manifest, read_manifest
from openloop.records.schema import COLUMNS, count_tokens, ints, missing_columns
from openloop.records.validate import check_attempts, check_batch
from openloop.records.writer import SPOOL_FILE, TABLE_FILE, RunWriter

__all__ = ["Run", "open_run"]

WORDS = [name for name, column in COLUMNS.items() if pa.types.is_string(column.type) and name != "error"]


@dataclass(frozen=True)
class Run:
    """A manifest and a table of attempts, in memory or in a folder."""

    manifest: Manifest
    source: "Source" = field(repr=False)
    path: Path | None = None
    missing: tuple[str, ...] = ()  # what of the run is not here, a sentence each

    @classmethod
    def of(cls, manifest: Manifest, batches: Sequence[pa.RecordBatch]) -> "Run":
        """A run in memory."""
        return cls(manifest, MemorySource(batches))

    @property
    def num_rows(self) -> int:
        return self.source.num_rows

    @property
    def num_events(self) -> int:
        """Deliveries of tokens, roughly: it tells large runs from small ones."""
        return self.source.num_events

    def batches(self, columns: Sequence[str] | None = None, rows: int = 0) -> Iterator[pa.RecordBatch]:
        """The table in order, a batch at a time, so that a run larger than memory can be read.

        Batches are as they were written, or joined until they have `rows` rows: that suits columns of single numbers.
        """
        return self.source.batches(list(columns or COLUMNS), rows)

    def head(self, rows: int) -> list[dict[str, Any]]:
        """The first rows, as dictionaries."""
        found: list[dict[str, Any]] = []
        for batch in self.batches():
            found += batch.slice(0, rows - len(found)).to_pylist()
            if len(found) >= rows:
                break
        return found

    def save(self, folder: str | Path) -> None:
        """Write the run to a folder of its own."""
        with RunWriter(folder, self.manifest) as writer:
            for batch in self.batches():
                writer.append(batch)

    def validate(self) -> None:
        """Read all of it and raise RecordError at the first row that breaks a rule."""
        row = 0
        kept: list[list[NDArray[np.int64]]] = [[np.empty(0, np.int64)] for _ in range(3)]
        for batch in self.batches():
            check_batch(batch, row)
            for column, name in zip(kept, ("request_id", "attempt", "scheduled_ns"), strict=True):
                column.append(ints(batch, name))
            row += batch.num_rows
        check_attempts(*(np.concatenate(column) for column in kept))


def open_run(path: str | Path) -> Run:
    """The run in a folder. A run that was cut short opens too, and says what is missing."""
    folder = Path(path)
    if not folder.is_dir():
        what = "is a file; give the folder it is in" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}")
    if not (folder / MANIFEST_FILE).exists():
        raise RunError(f"{folder} is not a run: it has no {MANIFEST_FILE}")
    manifest = read_manifest(folder)
    if (folder / TABLE_FILE).exists():
        table = ParquetSource(folder / TABLE_FILE)
        late = () if manifest.finished else (f"the table is complete, but {MANIFEST_FILE} was not updated at the end",)
        return Run(manifest, table, folder, late)
    if (folder / SPOOL_FILE).exists():
        spool = SpoolSource(folder / SPOOL_FILE)
        return Run(manifest, spool, folder, spool.missing())
    raise RunError(f"{folder} has no {TABLE_FILE}: the run's table is missing")


class MemorySource:
    """Batches as a producer made them."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._held = [_encode_words(batch) for batch in batches]
        self.num_rows = sum(batch.num_rows for batch in batches)
        self.num_events = sum(count_tokens(batch) for batch in batches)

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        return _joined((batch.select(columns) for batch in self._held), rows)


class ParquetSource:
    """requests.parquet, ours or anybody's that has the columns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file = pq.ParquetFile(path)
            self._names, self.num_rows = file.schema_arrow.names, file.metadata.num_rows
            self.num_events = _stored_events(file.metadata)
        except (pa.ArrowInvalid, OSError) as error:
            raise RunError(f"{path} is damaged or cut short and cannot be read: {_first_line(error)}") from None
        absent = missing_columns(self._names)
        if absent:
            raise RunError(f"{path} lacks the column {absent[0]!r}, which every run has")

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        present = [name for name in columns if name in self._names]
        file = self._open()
        for groups in _row_groups(file, rows):
            try:
                table = file.read_row_groups(groups, columns=present, use_threads=False)
            except (pa.ArrowInvalid, OSError) as error:
                raise RunError(f"{self.path} is damaged in row group {groups[0]}: {_first_line(error)}") from None
            yield _conform(table, columns, self.path)

    def _open(self) -> pq.ParquetFile:
        words = [name for name in WORDS if name in self._names]
        return pq.ParquetFile(self.path, read_dictionary=words, pre_buffer=False)


class SpoolSource:
    """requests.arrows: the batches that were flushed before the producer stopped, or so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_rows = self.num_events = self.num_batches = 0
        for batch in self._read():
            self.num_rows += batch.num_rows
            self.num_events += count_tokens(batch)
            self.num_batches += 1

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        # A producer may still be appending; keep to what was there on opening.
        return _joined((batch.select(columns) for batch in itertools.islice(self._read(), self.num_batches)), rows)

    def missing(self) -> tuple[str, ...]:
        return (
            f"the run was not closed: {self.num_rows:,} rows in {self.num_batches:,} flushed batches are here; "
            "requests that ended after the last flush or were in flight then are missing",
        )

    def _read(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self.path)) as source:
            try:
                yield from pa.ipc.open_stream(source)
            except (pa.ArrowInvalid, OSError):
                return  # the last message is torn: it was being written when the producer stopped


def _stored_events(metadata: pq.FileMetaData) -> int:
    columns = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    index = next((i for i, path in enumerate(columns) if path.startswith("event_ns.")), None)
    if index is None:
        return 0
    return sum(metadata.row_group(group).column(index).num_values for group in range(metadata.num_row_groups))


def _row_groups(file: pq.ParquetFile, rows: int) -> Iterator[list[int]]:
    """Row groups to read together."""
    held: list[int] = []
    found = 0
    for group in range(file.num_row_groups):
        held.append(group)
        found += file.metadata.row_group(group).num_rows
        if found >= rows:
            yield held
            held, found = [], 0
    if held:
        yield held


def _joined(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    if not rows:
        yield from batches
        return
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= rows:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


Source = MemorySource | ParquetSource | SpoolSource


def _conform(table: pa.Table, columns: list[str], path: Path) -> pa.RecordBatch:
    """One batch with exactly `columns`, whatever integer widths or list types the file used."""
    arrays = []
    for name in columns:
        wanted = COLUMNS[name].type
        if name not in table.column_names:
            arrays.append(pa.nulls(table.num_rows, wanted))
            continue
        column = table.column(name)
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
        arrays.append(array if _fits(array.type, wanted) else _cast(array, wanted, name, path))
    return pa.RecordBatch.from_arrays(arrays, names=columns)


def _encode_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Words as codes into a dictionary, as they come from Parquet: scoring needs no more."""
    for name in WORDS:
        column = batch.column(name)
        if not pa.types.is_dictionary(column.type):
            batch = batch.set_column(batch.schema.get_field_index(name), name, column.dictionary_encode())
    return batch


def _fits(have: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(have == wanted) or (pa.types.is_dictionary(have) and have.value_type == wanted)


def _cast(array: pa.Array, wanted: pa.DataType, name: str, path: Path) -> pa.Array:
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RunError(f"{path}: column {name!r} is {array.type} and not {wanted}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
