"""Tables beside the records: what servers said, what was answered, how it was graded.

Rows go to a spool first, as the table's do: it can be read up to its last whole batch, whatever happens to the run.
"""

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from openloop.errors import StorageError

GROUP_BYTES = 64 << 20


@dataclass(frozen=True)
class SideTable:
    """A table of its own in the run's folder: `name`.parquet, and `name`.arrows while it grows."""

    name: str
    schema: pa.Schema
    what: str  # it holds, for people
    short: str

    @property
    def file(self) -> str:
        return f"{self.name}.parquet"

    @property
    def spool(self) -> str:
        return f"{self.name}.arrows"

    def read(self, folder: Path) -> tuple[pa.Table | None, str | None]:
        """The table if there is one, and a sentence if not all of it is there."""
        try:
            if (folder / self.file).exists():
                with (folder / self.file).open("rb") as file:
                    # read_table reads in threads of its own, and one that outlives the process's end aborts it
                    table = pq.ParquetFile(file).read(use_threads=False)
                    return table.select(self.schema.names).cast(self.schema), None
            if (folder / self.spool).exists():
                table, end = self.read_spool(folder)
                rest = "" if end == (folder / self.spool).stat().st_size else ", and the last of them is torn"
                return table, f"{self.what} were not closed: {table.num_rows:,} were flushed{rest}"
        except (pa.ArrowException, OSError, UnicodeError, KeyError, ValueError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            return None, f"{self.file} is damaged, so {self.what} are missing: {why}"
        return None, None

    def read_spool(self, folder: Path) -> tuple[pa.Table, int]:
        """Its whole batches, and where they end."""
        batches: list[pa.RecordBatch] = []
        with (folder / self.spool).open("rb") as file:
            end = 0
            with contextlib.suppress(pa.ArrowException, OSError, UnicodeError, ValueError):
                stream = pa.ipc.open_stream(file)
                end = file.tell()
                for batch in stream:
                    batch.validate(full=True)
                    batches.append(batch)
                    end = file.tell()
        return pa.Table.from_batches(batches, self.schema), end


class SideWriter:
    """A side table in the making, from any thread. Where there is nothing to write, there is no file."""

    def __init__(self, folder: str | Path, table: SideTable) -> None:
        self.folder = Path(folder)
        self._table = table
        self._lock = threading.Lock()
        self._spool: io.FileIO | None = None
        self._closed = False

    def resume(self) -> None:
        """Go on after the last whole batch of a spool that is there."""
        path = self.folder / self._table.spool
        end = self._table.read_spool(self.folder)[1] if path.exists() else 0
        if end:
            os.truncate(path, end)
            self._spool = io.FileIO(path, "ab")
        else:
            path.unlink(missing_ok=True)

    def append(self, table: pa.Table) -> None:
        """Store rows; when this returns, they outlive the process. What comes after the end is not stored."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._spool is None:
                    self._spool = io.FileIO(self.folder / self._table.spool, "xb")
                    self._write(self._table.schema.serialize())
                for batch in table.to_batches():
                    self._write(batch.serialize())
            except OSError as error:  # a torn batch would hide all that follow
                self._closed = True
                raise self._full(self._table.spool, error) from None

    def _write(self, message: pa.Buffer) -> None:
        view = memoryview(message)
        while view and self._spool is not None:
            view = view[self._spool.write(view) :]

    def finish(self) -> None:
        """The spool becomes a Parquet file, and is removed only when that is complete."""
        with self._lock:
            self._closed = True
            if self._spool is None:
                return
            draft = self.folder / f"{self._table.file}.tmp"
            try:
                self._spool.close()
                with (
                    (self.folder / self._table.spool).open("rb") as source,
                    draft.open("wb") as file,
                    pq.ParquetWriter(file, self._table.schema, compression="zstd") as writer,
                ):
                    for group in _groups(pa.ipc.open_stream(source)):
                        writer.write_table(group)
                    writer.close()
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(self.folder / self._table.file)
                (self.folder / self._table.spool).unlink()
            except OSError as error:
                draft.unlink(missing_ok=True)
                raise self._full(self._table.file, error) from None

    def close(self) -> None:
        """Stop without finishing: the spool stays, and can be read."""
        with self._lock:
            self._closed = True
            if self._spool is not None:
                self._spool.close()

    def _full(self, name: str, error: OSError) -> StorageError:
        why = error.strerror or error
        return StorageError(f"{self.folder / name} cannot be written ({why}): later {self._table.short} are missing")


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
