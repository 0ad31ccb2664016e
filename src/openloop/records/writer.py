"""Writing a run so that whatever was appended survives whatever happens next.

Batches go to a spool first, an Arrow stream that can be read up to its last whole batch at any time: after a crash,
or while the run is still going on. `finish` turns the spool into requests.parquet, in row groups of a size that is
fast to read, and removes it only when that file is complete.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from openloop.errors import RecordError, RunError, StorageError
from openloop.records.manifest import MANIFEST_FILE, Manifest, checked, write_manifest
from openloop.records.remote import is_url
from openloop.records.schema import COLUMNS, SCHEMA, count_tokens, split
from openloop.records.server import SERVER
from openloop.records.texts import GRADES, TEXTS, Labels
from openloop.records.validate import check_batch

TABLE_FILE: Final = "requests.parquet"
SPOOL_FILE: Final = "requests.arrows"

# Row groups of about 8 MB of token times are decoded without leaving the processor's cache for long.
TOKENS_PER_ROW_GROUP: Final = 1_000_000
ROWS_PER_ROW_GROUP: Final = 100_000


class RunWriter:
    """A run in the making. As a context manager it finishes the run unless an exception passes through.

    with RunWriter("run/", Manifest(source="example")) as writer:
        writer.append(make_batch({...}))
    """

    def __init__(self, folder: str | Path, manifest: Manifest) -> None:
        if is_url(folder):
            raise RunError(
                f"{folder} is a URL, and a run is written as it goes to a folder here: copy it when it is over"
            )
        self.folder = Path(folder)
        self.manifest = checked(manifest)
        self.rows = 0
        beside = [name for each in (SERVER, TEXTS, GRADES) for name in (each.file, each.spool)]
        for name in (MANIFEST_FILE, TABLE_FILE, SPOOL_FILE, *beside):
            if (self.folder / name).exists():
                raise RunError(f"{self.folder} already holds a run ({name}): choose another folder or remove it")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._spool = (self.folder / SPOOL_FILE).open("xb", buffering=0)
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be made: {error.strerror}") from None
        write_manifest(self.folder, self.manifest)
        self._write(SCHEMA.serialize())

    def append(self, batch: pa.RecordBatch) -> None:
        """Check and store a batch; when this returns, the batch outlives the process."""
        if self._spool.closed:
            raise RunError(f"{self.folder} is finished or was closed; nothing can be appended")
        if batch.schema.names != SCHEMA.names:
            raise RecordError("a batch must have the columns of the table, in order: build it with make_batch")
        try:
            batch = batch if batch.schema.equals(SCHEMA) else batch.cast(SCHEMA)
        except (pa.ArrowException, ValueError) as error:
            raise RecordError(f"a batch does not fit the table: {error}; build it with make_batch") from None
        check_batch(batch, self.rows)
        self._write(batch.serialize())
        self.rows += batch.num_rows

    def finish(self, labels: Labels | None = None, **facts: Any) -> None:
        """Close the run; `facts` are manifest fields that are known only now (stopped_ns, window_ns, notes, ...)."""
        if self._spool.closed:
            raise RunError(f"{self.folder} is finished or was closed")
        self.manifest = checked(msgspec.structs.replace(self.manifest, finished=True, **facts))
        self._spool.close()
        draft = self.folder / f"{TABLE_FILE}.tmp"
        try:
            with pa.OSFile(str(self.folder / SPOOL_FILE)) as source:
                _write_table(pa.ipc.open_stream(source), draft, labels)
            draft.replace(self.folder / TABLE_FILE)
            write_manifest(self.folder, self.manifest)
            (self.folder / SPOOL_FILE).unlink()
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise StorageError(
                f"{self.folder / TABLE_FILE} cannot be written ({_reason(error)}); "
                f"all {self.rows} rows are kept in {SPOOL_FILE}"
            ) from None

    def close(self) -> None:
        """Stop without finishing: the run stays as a crash would leave it, readable and marked as not closed."""
        self._spool.close()

    def _write(self, message: pa.Buffer) -> None:
        """Append one whole message, or nothing: a torn one would hide all that follow."""
        start = self._spool.tell()
        view = memoryview(message)
        try:
            while view:
                view = view[self._spool.write(view) :]
        except OSError as error:
            os.ftruncate(self._spool.fileno(), start)
            self._spool.seek(start)
            raise StorageError(
                f"{self.folder / SPOOL_FILE} cannot grow ({_reason(error)}); "
                f"the {self.rows} rows before this batch are kept"
            ) from None

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._spool.closed:
            self.finish()
        self.close()


def relabel(folder: Path, batches: Iterable[pa.RecordBatch], labels: Labels, manifest: Manifest) -> None:
    """Fill grades into the table of a finished run, whose `batches` these are; a reader sees the old one or the new."""
    others = set(pq.read_schema(folder / TABLE_FILE).names) - set(COLUMNS)
    if others:
        raise RunError(
            f"{folder / TABLE_FILE} has the column {min(others)!r}, which openloop would lose: grade a copy without it"
        )
    draft = folder / f"{TABLE_FILE}.tmp"
    try:
        _write_table((batch.cast(SCHEMA) for batch in batches), draft, labels)
        draft.replace(folder / TABLE_FILE)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"{folder / TABLE_FILE} cannot be written ({_reason(error)}); it is as it was") from None
    write_manifest(folder, checked(manifest))


def _write_table(batches: Iterable[pa.RecordBatch], table: Path, labels: Labels | None) -> None:
    """The Parquet file of a run, one row group at a time."""
    filled = batches if labels is None else (labels.fill(batch) for batch in batches)
    with table.open("wb") as file, pq.ParquetWriter(file, SCHEMA, **_PARQUET) as writer:
        for group in _row_groups(filled):
            writer.write_table(group, row_group_size=group.num_rows)
        writer.close()
        file.flush()
        os.fsync(file.fileno())


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = tokens = 0
    for batch in batches:
        for piece in split(batch, TOKENS_PER_ROW_GROUP, ROWS_PER_ROW_GROUP):
            held.append(piece)
            rows += piece.num_rows
            tokens += count_tokens(piece)
            if rows >= ROWS_PER_ROW_GROUP or tokens >= TOKENS_PER_ROW_GROUP:
                yield pa.Table.from_batches(held)
                held, rows, tokens = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _parquet_options() -> dict[str, Any]:
    packed = [name for name in COLUMNS if name.endswith("_ns") and name != "event_ns"] + ["request_id"]
    strings = [name for name, column in COLUMNS.items() if pa.types.is_string(column.type)]
    leaves = ["event_ns.list.element", "event_tokens.list.element"]
    return {
        "use_dictionary": strings,
        "column_encoding": dict.fromkeys([*packed, *leaves], "DELTA_BINARY_PACKED"),
        # Packed differences hardly compress further, and unpacking them twice would cost more than it saves.
        "compression": {name: "none" if name in leaves or name in packed else "zstd" for name in [*COLUMNS, *leaves]},
        "write_statistics": ["scheduled_ns"],
        "write_page_checksum": True,
    }


_PARQUET = _parquet_options()


def _reason(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
