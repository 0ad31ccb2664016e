"""A run in the making: whatever was appended survives whatever happens next."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from openloop.errors import RecordError, RunError, StorageError
from openloop.records.beside import GRADES, SERVER, TEXTS, Labels
from openloop.records.manifest import MANIFEST_FILE, Manifest, checked, write_manifest
from openloop.records.remote import is_url
from openloop.records.schema import COLUMNS, SCHEMA, check_batch, count_tokens, split
from openloop.records.tables import Spool, gathered, reason, write_parquet

TABLE_FILE: Final = "requests.parquet"
SPOOL_FILE: Final = "requests.arrows"

# Row groups of about 8 MB of token times are decoded without leaving the processor's cache for long.
TOKENS_PER_ROW_GROUP: Final = 1_000_000
ROWS_PER_ROW_GROUP: Final = 100_000

_LEAVES = ["event_ns.list.element", "event_tokens.list.element"]
_PACKED = [*(name for name in COLUMNS if name.endswith("_ns") and name != "event_ns"), "request_id", *_LEAVES]
_PARQUET: Final[dict[str, Any]] = {
    "use_dictionary": [name for name, column in COLUMNS.items() if pa.types.is_string(column.type)],
    "column_encoding": dict.fromkeys(_PACKED, "DELTA_BINARY_PACKED"),
    # Packed differences hardly compress further, and unpacking them twice would cost more than it saves.
    "compression": {name: "none" if name in _PACKED else "zstd" for name in [*COLUMNS, *_LEAVES]},
    "write_statistics": ["scheduled_ns"],
    "write_page_checksum": True,
}


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
            self._spool = Spool(self.folder / SPOOL_FILE, SCHEMA)
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be made: {error.strerror}") from None
        try:
            write_manifest(self.folder, self.manifest)
        except StorageError:
            self._spool.remove()
            raise

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
        try:
            self._spool.append(batch)
        except OSError as error:
            raise StorageError(
                f"{self.folder / SPOOL_FILE} cannot grow ({reason(error)}); "
                f"the {self.rows} rows before this batch are kept"
            ) from None
        self.rows += batch.num_rows

    def finish(self, labels: Labels | None = None, **facts: Any) -> None:
        """Close the run; `facts` are manifest fields that are known only now (stopped_ns, window_ns, notes, ...)."""
        if self._spool.closed:
            raise RunError(f"{self.folder} is finished or was closed")
        self.manifest = checked(msgspec.structs.replace(self.manifest, finished=True, **facts))
        self._spool.close()
        try:
            with pa.OSFile(str(self._spool.path)) as source:
                _write_table(self.folder, pa.ipc.open_stream(source), labels)
            write_manifest(self.folder, self.manifest)
            self._spool.path.unlink()
        except OSError as error:
            raise StorageError(
                f"{self.folder / TABLE_FILE} cannot be written ({reason(error)}); "
                f"all {self.rows} rows are kept in {SPOOL_FILE}"
            ) from None

    def close(self) -> None:
        """Stop without finishing: the run stays as a crash would leave it, readable and marked as not closed."""
        self._spool.close()

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
    try:
        _write_table(folder, (batch.cast(SCHEMA) for batch in batches), labels)
    except OSError as error:
        raise StorageError(f"{folder / TABLE_FILE} cannot be written ({reason(error)}); it is as it was") from None
    write_manifest(folder, checked(manifest))


def _write_table(folder: Path, batches: Iterable[pa.RecordBatch], labels: Labels | None) -> None:
    """The Parquet file of a run, one row group at a time."""
    filled = batches if labels is None else (labels.fill(batch) for batch in batches)
    pieces = (piece for batch in filled for piece in split(batch, TOKENS_PER_ROW_GROUP, ROWS_PER_ROW_GROUP))
    groups = gathered(pieces, _size, TOKENS_PER_ROW_GROUP)
    write_parquet(folder / TABLE_FILE, SCHEMA, map(pa.Table.from_batches, groups), **_PARQUET)


def _size(batch: pa.RecordBatch) -> int:
    """In tokens; many rows of few tokens are large as well."""
    return max(count_tokens(batch), int(batch.num_rows) * TOKENS_PER_ROW_GROUP // ROWS_PER_ROW_GROUP)
