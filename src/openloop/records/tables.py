"""Tables of a run on disk.

Rows go to a spool first, an Arrow stream that can be read up to its last whole batch at any time: after a crash, or
while the run goes on. At the end they become a Parquet file, and the spool is removed only when that is complete.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from openloop.errors import RunError, StorageError

GROUP_BYTES = 64 << 20
LARGE = 64 << 20  # a batch

# Whatever a damaged file makes Arrow say.
DAMAGE = (pa.ArrowException, OSError, UnicodeError, KeyError, ValueError)

T = TypeVar("T")


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def reason(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)


def gathered(items: Iterable[T], size: Callable[[T], int], enough: int) -> Iterator[list[T]]:
    """In groups, each of at least `enough` together."""
    held: list[T] = []
    found = 0
    for item in items:
        held.append(item)
        found += size(item)
        if found >= enough:
            yield held
            held, found = [], 0
    if held:
        yield held


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that is replaced in one step: a reader sees the old one or the new one."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """For people too; the folder is made where there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from None


def write_parquet(path: Path, schema: pa.Schema, groups: Iterable[pa.Table], **options: Any) -> None:
    """A row group for each of `groups`."""
    with replacing(path) as file, pq.ParquetWriter(file, schema, **options) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(group.num_rows, 1))


class Spool:
    """A stream in the making, of whole messages: a torn one would hide all that follow."""

    def __init__(self, path: Path, schema: pa.Schema, end: int = 0) -> None:
        """A new one, or one that is there and goes on after byte `end`."""
        self.path = path
        if end:
            os.truncate(path, end)
            self._file = path.open("ab", buffering=0)
            return
        self._file = path.open("xb", buffering=0)
        try:
            self._write(schema.serialize())
        except OSError:
            self.remove()
            raise

    @property
    def closed(self) -> bool:
        return self._file.closed

    def append(self, batch: pa.RecordBatch) -> None:
        self._write(batch.serialize())

    def _write(self, message: pa.Buffer) -> None:
        start, view = self._file.tell(), memoryview(message)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            os.ftruncate(self._file.fileno(), start)
            self._file.seek(start)
            raise

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self.close()
        self.path.unlink()


class Bounded:
    """A file for Arrow, which no more is asked of than it has: no room is made for what a damaged length says."""

    mode, closed = "rb", False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        if size > LARGE:
            at = self._file.tell()
            size = min(size, self._file.seek(0, os.SEEK_END) - at)
            self._file.seek(at)
        return self._file.read(size)


def read_spool(file: IO[bytes], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Whole batches of a stream, up to its end or to the first that is torn or damaged."""
    try:
        for batch in pa.ipc.open_stream(Bounded(file)):
            if not batch.schema.equals(schema):
                return
            batch.validate(full=True)
            yield batch
    except MemoryError as error:  # which Arrow counts among its own
        raise RunError(f"a batch of rows needs more memory than there is: {first_line(error)}") from None
    except DAMAGE:
        return


@dataclass(frozen=True)
class SideTable:
    """A table beside the records: `name`.parquet, and `name`.arrows while it grows."""

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

    def of(self, rows: Iterable[tuple[Any, ...] | Mapping[str, Any]]) -> pa.Table:
        """From rows that are tuples, or mappings in which what is absent is null."""
        names = self.schema.names
        filled = (row if isinstance(row, tuple) else tuple(map(row.get, names)) for row in rows)
        columns = list(zip(*filled, strict=True)) or [()] * len(names)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def writer(self, folder: str | Path) -> "SideWriter":
        return SideWriter(self, Path(folder))

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
                torn = 0 < end < (folder / self.spool).stat().st_size
                rest = ", and the last of them is torn" if torn else ""
                return table, f"{self.what} were not closed: {table.num_rows:,} were flushed{rest}"
        except DAMAGE as error:
            return None, f"{self.file} is damaged, so {self.what} are missing: {first_line(error)}"
        return None, None

    def read_spool(self, folder: Path) -> tuple[pa.Table, int]:
        """Its whole batches, and where they end."""
        batches, end = [], 0
        with (folder / self.spool).open("rb") as file:
            for batch in read_spool(file, self.schema):
                batches.append(batch)
                end = file.tell()
        return pa.Table.from_batches(batches, self.schema), end


class SideWriter:
    """A side table in the making, from any thread. Where there is nothing to write, there is no file."""

    def __init__(self, table: SideTable, folder: Path) -> None:
        self._table = table
        self._file, self._path = folder / table.file, folder / table.spool
        self._lock = threading.Lock()
        self._spool: Spool | None = None
        self._closed = False

    def resume(self) -> None:
        """Go on after the last whole batch of a spool that is there."""
        end = self._table.read_spool(self._path.parent)[1] if self._path.exists() else 0
        if end:
            self._spool = Spool(self._path, self._table.schema, end)
        else:
            self._path.unlink(missing_ok=True)

    def append(self, table: pa.Table) -> None:
        """Store rows; when this returns, they outlive the process. What comes after the end is not stored."""
        with self._lock, self._stopping_at_errors(self._path):
            if not self._closed:
                self._spool = self._spool or Spool(self._path, self._table.schema)
                for batch in table.to_batches():
                    self._spool.append(batch)

    def finish(self) -> None:
        """The spool becomes a Parquet file."""
        self.close()
        with self._lock, self._stopping_at_errors(self._file):
            if self._spool is None:
                return
            with self._path.open("rb") as source:
                groups = gathered(pa.ipc.open_stream(source), lambda batch: int(batch.nbytes), GROUP_BYTES)
                tables = (pa.Table.from_batches(group) for group in groups)
                write_parquet(self._file, self._table.schema, tables, compression="zstd")
            self._path.unlink()

    def close(self) -> None:
        """Stop without finishing: the spool stays, and can be read."""
        with self._lock:
            self._closed = True
            if self._spool is not None:
                self._spool.close()

    @contextlib.contextmanager
    def _stopping_at_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._closed = True
            raise StorageError(
                f"{path} cannot be written ({reason(error)}): later {self._table.short} are missing"
            ) from None
