"""server.parquet: what servers and GPUs said of themselves during a run, a row per figure and moment.

Rows go to a spool first, as the table's do: it can be read up to its last whole batch, whatever happens to the run.
"""

import io
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from openloop.errors import StorageError

__all__ = [
    "MEASURES",
    "SERVER_FILE",
    "SERVER_SCHEMA",
    "SERVER_SPOOL",
    "Measure",
    "Reading",
    "ServerWriter",
    "read_server",
    "server_table",
]

SERVER_FILE: Final = "server.parquet"
SERVER_SPOOL: Final = "server.arrows"

SERVER_SCHEMA: Final = pa.schema(
    [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("replica", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)

Reading = tuple[int, str, str, float]  # a row: time_ns, replica, name, value


@dataclass(frozen=True)
class Measure:
    kind: Literal["gauge", "share", "counter"]  # replicas add up, are averaged, or add up what they grew by
    meaning: str


MEASURES: Final[Mapping[str, Measure]] = {
    "queue": Measure("gauge", "requests that wait"),
    "running": Measure("gauge", "requests that are being computed"),
    "kv_use": Measure("share", "of the KV cache that is taken"),
    "preemptions": Measure("counter", "requests put back for want of KV cache"),
    "prefix_queries": Measure("counter", "prompt tokens looked up in the prefix cache"),
    "prefix_hits": Measure("counter", "of these, found"),
    "prefix_hit_rate": Measure("share", "the same as the server reckons it, where it counts no tokens"),
    "drafted": Measure("counter", "tokens proposed by a draft model"),
    "accepted": Measure("counter", "of these, accepted"),
    "draft_acceptance": Measure("share", "the same as the server reckons it, where it counts no tokens"),
    "prompt_tokens": Measure("counter", "tokens in prompts, cached ones included"),
    "output_tokens": Measure("counter", "tokens generated"),
    "finished": Measure("counter", "requests that ended, for whatever reason"),
    "gpu_use": Measure("share", "of the time in which the GPU computed something"),
    "gpu_memory_use": Measure("share", "of the GPU's memory that is taken"),
    "gpu_power_w": Measure("gauge", "watts that the GPU draws"),
}


def server_table(readings: Iterable[Reading]) -> pa.Table:
    columns = list(zip(*readings, strict=True)) or [()] * len(SERVER_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SERVER_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SERVER_SCHEMA)


class ServerWriter:
    """server.parquet in the making, from any thread. Where there is nothing to write, there is no file."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._spool: io.FileIO | None = None
        self._closed = False

    def append(self, table: pa.Table) -> None:
        """Store rows; when this returns, they outlive the process. What comes after the end is not stored."""
        with self._lock:
            if self._closed:
                return
            try:
                if self._spool is None:
                    self._spool = io.FileIO(self.folder / SERVER_SPOOL, "xb")
                    self._write(SERVER_SCHEMA.serialize())
                for batch in table.to_batches():
                    self._write(batch.serialize())
            except OSError as error:  # a torn batch would hide all that follow
                self._closed = True
                raise _full(self.folder / SERVER_SPOOL, error) from None

    def _write(self, message: pa.Buffer) -> None:
        view = memoryview(message)
        while view and self._spool is not None:
            view = view[self._spool.write(view) :]

    def finish(self) -> None:
        """The spool becomes server.parquet, and is removed only when that is complete."""
        with self._lock:
            self._closed = True
            if self._spool is None:
                return
            draft = self.folder / f"{SERVER_FILE}.tmp"
            try:
                self._spool.close()
                with draft.open("wb") as file:
                    pq.write_table(_read_spool(self.folder)[0], file, compression="zstd")
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(self.folder / SERVER_FILE)
                (self.folder / SERVER_SPOOL).unlink()
            except OSError as error:
                draft.unlink(missing_ok=True)
                raise _full(self.folder / SERVER_FILE, error) from None


def _full(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be written ({error.strerror or error}): later server figures are missing")


def read_server(folder: Path) -> tuple[pa.Table | None, str | None]:
    """The table if there is one, and a sentence if not all of it is there."""
    try:
        if (folder / SERVER_FILE).exists():
            with (folder / SERVER_FILE).open("rb") as file:
                return pq.read_table(file).select(SERVER_SCHEMA.names).cast(SERVER_SCHEMA), None
        if (folder / SERVER_SPOOL).exists():
            table, whole = _read_spool(folder)
            rest = "" if whole else ", and the last of them is torn"
            return table, f"the server's figures were not closed: {table.num_rows:,} were flushed{rest}"
    except (pa.ArrowException, OSError, UnicodeError, KeyError, ValueError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        return None, f"{SERVER_FILE} is damaged, so the server's figures are missing: {why}"
    return None, None


def _read_spool(folder: Path) -> tuple[pa.Table, bool]:
    """Its whole batches, and whether that is all of it."""
    batches: list[pa.RecordBatch] = []
    with (folder / SERVER_SPOOL).open("rb") as file:
        try:
            for batch in pa.ipc.open_stream(file):
                batch.validate(full=True)
                batches.append(batch)
        except (pa.ArrowException, OSError, UnicodeError, ValueError):
            return pa.Table.from_batches(batches, SERVER_SCHEMA), False
    return pa.Table.from_batches(batches, SERVER_SCHEMA), True
