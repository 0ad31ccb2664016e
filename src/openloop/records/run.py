"""Opening a run: finished, still growing, or cut short."""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from openloop.arrays import Ints
from openloop.errors import RecordError, RunError, StorageError
from openloop.records.beside import GRADES, SERVER, TEXTS
from openloop.records.manifest import MANIFEST_FILE, Manifest, read_manifest
from openloop.records.remote import copy_run, is_url, locate
from openloop.records.schema import COLUMNS, SCHEMA, check_attempts, check_batch, count_tokens, ints
from openloop.records.tables import DAMAGE, SideTable, first_line, gathered, read_spool
from openloop.records.writer import SPOOL_FILE, TABLE_FILE, RunWriter
from openloop.spec import suggest

PARTS = "nodes"  # folder of the parts of a run, a run each, where several machines drove it
WORDS = [name for name, column in COLUMNS.items() if pa.types.is_string(column.type) and name != "error"]


@dataclass(frozen=True)
class Run:
    """A manifest and a table of attempts, in memory or in a folder."""

    manifest: Manifest
    source: "RowSource" = field(repr=False)
    path: Path | None = None
    missing: tuple[str, ...] = ()  # what of the run is not here, a sentence each
    figures: pa.Table | None = field(default=None, repr=False)  # of the server, where the run is in memory

    @classmethod
    def of(cls, manifest: Manifest, batches: Sequence[pa.RecordBatch], figures: pa.Table | None = None) -> "Run":
        """A run in memory."""
        return cls(manifest, MemorySource(batches), figures=figures)

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
        for name in columns or ():
            if name not in COLUMNS:
                raise RecordError(f"unknown column {name!r}{suggest(name, COLUMNS)}")
        return self.source.batches(list(columns or COLUMNS), rows)

    def head(self, rows: int) -> list[dict[str, Any]]:
        """The first rows, as dictionaries."""
        found: list[dict[str, Any]] = []
        for batch in self.batches():
            found += batch.slice(0, rows - len(found)).to_pylist()
            if len(found) >= rows:
                break
        return found

    def server(self) -> pa.Table | None:
        """What servers and GPUs said of themselves during the run (SERVER.schema); None: nothing was recorded."""
        return self._server[0]

    @property
    def server_note(self) -> str | None:
        """What is wrong with the server's figures, if anything is: the run can be scored without them."""
        return self._server[1]

    def texts(self) -> tuple[pa.Table | None, str | None]:
        """What was asked and answered, where it was kept, and a sentence if not all of it is there."""
        return (None, None) if self.path is None else TEXTS.read(self.path)

    @cached_property
    def _server(self) -> tuple[pa.Table | None, str | None]:
        return (self.figures, None) if self.path is None else SERVER.read(self.path)

    def save(self, folder: str | Path) -> None:
        """Write the run to a folder of its own, here or at a URL; what was cut short stays so."""
        if is_url(folder):
            there = locate(folder)
            if (there / MANIFEST_FILE).exists():
                raise RunError(f"{there} already holds a run ({MANIFEST_FILE}): choose another folder or remove it")
            with TemporaryDirectory() as here:
                self.save(Path(here) / "run")
                try:
                    copy_run(Path(here) / "run", there)
                except OSError as error:
                    raise StorageError(f"{there} cannot be written: {error.strerror or error}") from None
            return
        with RunWriter(folder, _in_one(self.manifest, self.missing)) as writer:
            for batch in self.batches():
                writer.append(batch)
            for table, kept, whole in self._beside():
                side = table.writer(folder)
                side.append(kept)
                if whole:
                    side.finish()
                side.close()
            if self.missing:
                writer.close()

    def _beside(self) -> Iterator[tuple[SideTable, pa.Table, bool]]:
        """Tables beside the records, of all machines, and whether they are whole."""
        yield from [] if (figures := self.server()) is None else [(SERVER, figures, self.server_note is None)]
        folders = [] if self.path is None else [self.path, *_parts(self.path, self.manifest)]
        for table in (TEXTS, GRADES):
            found = [table.read(folder) for folder in folders]
            kept = [each for each, _ in found if each is not None]
            if kept:
                yield table, pa.concat_tables(kept), all(note is None for _, note in found)

    def _repr_html_(self) -> str:
        """For notebooks, which ask the thing itself."""
        return str(import_module("openloop.report.notebook").run_html(self))

    def validate(self) -> None:
        """Read all of it and raise RecordError at the first row that breaks a rule."""
        row = 0
        kept: list[list[Ints]] = [[np.empty(0, np.int64)] for _ in range(3)]
        for batch in self.batches():
            check_batch(batch, row)
            for column, name in zip(kept, ("request_id", "attempt", "scheduled_ns"), strict=True):
                column.append(ints(batch, name))
            row += batch.num_rows
        check_attempts(*(np.concatenate(column) for column in kept))


def open_run(path: str | Path) -> Run:
    """The run in a folder, here or at a URL. A run that was cut short opens too, and says what is missing."""
    folder = locate(path)
    if not folder.is_dir():
        what = "is a file; give the folder it is in" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {what}")
    if not (folder / MANIFEST_FILE).exists():
        raise RunError(f"{folder} is not a run: it has no {MANIFEST_FILE}")
    return _whole(_open(folder))


def _open(folder: Path) -> Run:
    manifest = read_manifest(folder)
    for _ in range(2):  # a producer may finish between our looking and our opening: look again
        try:
            if (folder / TABLE_FILE).exists():
                late = f"the table is complete, but {MANIFEST_FILE} was not updated at the end"
                return Run(manifest, ParquetSource(folder / TABLE_FILE), folder, () if manifest.finished else (late,))
            if (folder / SPOOL_FILE).exists():
                spool = SpoolSource(folder)
                return Run(manifest, spool, folder, spool.missing())
        except FileNotFoundError:
            manifest = read_manifest(folder)
    raise RunError(f"{folder} has no {TABLE_FILE}: the run's table is missing")


def _whole(run: Run) -> Run:
    """With the rows of all machines that drove it."""
    if not run.manifest.nodes or run.path is None:
        return run
    sources, missing = [run.source], list(run.missing)
    for node, folder in zip(run.manifest.nodes, _parts(run.path, run.manifest), strict=True):
        if node.lost:  # what was known of it then is among the run's own rows, and it may write on
            missing.append(f"the machine {node.name} was lost: {node.lost}")
            continue
        try:
            part = _open(folder)
        except (RunError, FileNotFoundError):
            missing.append(f"{node.name}: its rows are missing")
            continue
        sources.append(part.source)
        missing += [f"{node.name}: {each}" for each in part.missing]
    return replace(run, source=PartsSource(sources), missing=tuple(missing))


def _parts(folder: Path, manifest: Manifest) -> list[Path]:
    return [folder / PARTS / str(number) for number in range(len(manifest.nodes))]


def _in_one(manifest: Manifest, missing: Sequence[str]) -> Manifest:
    """Of a copy whose rows are in one table: what is known of the machines is a note."""
    told = [f"{node.name} was lost" if node.lost else f"{node.name} to {node.error_ns} ns" for node in manifest.nodes]
    if not told:
        return manifest
    note = f"driven by {len(told)} machines; clocks were aligned: {', '.join(told)}"
    return msgspec.structs.replace(manifest, nodes=(), notes=(*manifest.notes, note, *missing))


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
        with path.open("rb") as file:
            try:
                table = pq.ParquetFile(file)
                self._names, self.num_rows = table.schema_arrow.names, table.metadata.num_rows
                found = sum(_group_rows(table))
            except DAMAGE as error:
                raise RunError(f"{path} is damaged or cut short and cannot be read: {first_line(error)}") from None
        if found != self.num_rows:
            raise RunError(f"{path} is damaged: it says that it has {self.num_rows:,} rows, and has {found:,}")
        absent = [name for name, column in COLUMNS.items() if column.required and name not in self._names]
        if absent:
            raise RunError(f"{path} lacks the column {absent[0]!r}, which every run has")
        twice = [name for name in self._names if self._names.count(name) > 1]
        if twice:
            raise RunError(f"{path} has the column {twice[0]!r} twice")

    @cached_property
    def num_events(self) -> int:
        with contextlib.suppress(*DAMAGE):  # what is damaged is told of when it is read
            # Threads of Arrow's read it: one that still waits for Python when that ends would end the process badly.
            source = self.path.open("rb") if is_url(self.path) else pa.OSFile(str(self.path))
            with source as file:
                return _stored_events(pq.ParquetFile(file, pre_buffer=True))
        return 0

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        present = [name for name in columns if name in self._names]
        words = [name for name in WORDS if name in self._names]
        with self.path.open("rb") as file:
            table = pq.ParquetFile(file, read_dictionary=words, pre_buffer=False, page_checksum_verification=True)
            sizes = _group_rows(table)
            for groups in gathered(range(len(sizes)), sizes.__getitem__, rows):
                try:
                    read = table.read_row_groups(groups, columns=present, use_threads=False)
                except DAMAGE as error:
                    what = "needs more memory than there is, or " if isinstance(error, MemoryError) else ""
                    why = f"{what}is damaged in row group {groups[0]}: {first_line(error)}"
                    raise RunError(f"{self.path} {why}") from None
                yield _conform(read, columns, self.path)


class SpoolSource:
    """requests.arrows: the batches that were flushed before the producer stopped, or so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_rows = self.num_events = self.num_batches = 0
        with (folder / SPOOL_FILE).open("rb") as file:
            whole = 0
            for batch in read_spool(file, SCHEMA):
                self.num_rows += batch.num_rows
                self.num_events += count_tokens(batch)
                self.num_batches += 1
                whole = file.tell()
            self._unread = file.seek(0, os.SEEK_END) - whole if self.num_batches else 0

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        """What was there on opening: a producer may still be appending, or may have finished since."""
        try:
            file = (self.folder / SPOOL_FILE).open("rb")
        except FileNotFoundError:
            left = self.num_rows
            for batch in ParquetSource(self.folder / TABLE_FILE).batches(columns, rows):
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    break
            return
        with file:
            batches = itertools.islice(read_spool(file, SCHEMA), self.num_batches)
            yield from _joined((batch.select(columns) for batch in batches), rows)

    def missing(self) -> tuple[str, ...]:
        rest = f" ({self._unread:,} bytes after them are no whole batch)" if self._unread else ""
        return (
            f"the run was not closed: {self.num_rows:,} rows in {self.num_batches:,} flushed batches are here{rest}; "
            "requests that ended after the last flush or were in flight then are missing",
        )


class PartsSource:
    """The rows of several machines, one after the other."""

    def __init__(self, sources: Sequence["RowSource"]) -> None:
        self._sources = sources
        self.num_rows: int = sum(each.num_rows for each in sources)

    @property
    def num_events(self) -> int:
        return sum(each.num_events for each in self._sources)

    def batches(self, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
        return itertools.chain.from_iterable(each.batches(columns, rows) for each in self._sources)


def _group_rows(table: pq.ParquetFile) -> list[int]:
    return [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]


def _stored_events(table: pq.ParquetFile) -> int:
    metadata = table.metadata
    columns = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    index = next((i for i, path in enumerate(columns) if path.startswith("event_ns.")), None)
    if index is None:
        return 0
    # Where the facts about a column are damaged, asking for them ends the process; beginning to read it does not.
    next(table.iter_batches(1, columns=["event_ns"], use_threads=False), None)
    return sum(metadata.row_group(group).column(index).num_values for group in range(metadata.num_row_groups))


def _joined(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    return map(pa.concat_batches, gathered(batches, lambda batch: int(batch.num_rows), rows)) if rows else batches


RowSource = MemorySource | ParquetSource | SpoolSource | PartsSource


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
        if pa.types.is_temporal(array.type):
            raise RunError(f"{path}: column {name!r} is {array.type}; times are plain integers of nanoseconds")
        have = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        try:
            arrays.append(array if have == wanted else array.cast(wanted))
        except DAMAGE as error:
            raise RunError(f"{path}: column {name!r} is {array.type} and not {wanted}: {first_line(error)}") from None
    return pa.RecordBatch.from_arrays(arrays, names=columns)


def _encode_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Words as codes into a dictionary, as they come from Parquet: scoring needs no more."""
    for name in WORDS:
        column = batch.column(name)
        if not pa.types.is_dictionary(column.type):
            batch = batch.set_column(batch.schema.get_field_index(name), name, column.dictionary_encode())
    return batch
