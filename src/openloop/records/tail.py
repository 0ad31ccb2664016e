"""A run in progress: where it is, and its rows, read on from where they were read to before.

now.json says where it is, for those who watch it from another process. Gone when the run is over.
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from openloop.errors import RunError
from openloop.records.manifest import read_manifest
from openloop.records.run import MemorySource, ParquetSource, Run
from openloop.records.schema import SCHEMA
from openloop.records.tables import Bounded
from openloop.records.writer import SPOOL_FILE, TABLE_FILE
from openloop.spec import Strict

NOW_FILE: Final = "now.json"
MOST_ROWS = 50_000  # held: the latest
KEPT_LOOKS = 480


class Now(Strict, frozen=True, kw_only=False):
    seconds: float  # since the run began
    due: int
    in_flight: int
    at: float = 0.0  # when this was written, by the wall clock


def write_now(folder: Path, now: Now) -> None:
    """A watcher sees the one before or this one. That it cannot be written is no reason to stop measuring."""
    draft = folder / f"{NOW_FILE}.tmp"
    with suppress(OSError):
        draft.write_bytes(msgspec.json.encode(msgspec.structs.replace(now, at=time.time())))
        draft.replace(folder / NOW_FILE)


def read_now(folder: Path) -> Now | None:
    try:
        return msgspec.json.decode((folder / NOW_FILE).read_bytes(), type=Now)
    except (OSError, msgspec.DecodeError):
        return None


def forget_now(folder: Path) -> None:
    with suppress(OSError):
        (folder / NOW_FILE).unlink(missing_ok=True)


class Tail:
    """The latest rows of a run that somebody is writing; `rows` counts all that were read.

    Rows that ended after `covered_ns` are all held. `seconds` says for how long a row stays, if not as long as there
    is room.
    """

    def __init__(self, folder: Path, seconds: float | None = None) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self._started_at = self.manifest.started_at
        self.rows = 0
        self.over = False  # the run is closed, and all of it was read
        self.covered_ns = -1
        self.latest_ns = 0
        self.looks: list[Now] = []  # what it said of itself, each time somebody looked
        self._seconds = seconds
        self._held: list[tuple[pa.RecordBatch, int]] = []  # with the latest end in each
        self._read = 0  # bytes

    def read_on(self, most: int = 1 << 62) -> int:
        """Take in up to about so many further rows, and say how many came."""
        before = self.rows
        closed = (self.folder / TABLE_FILE).exists()  # looked up first: what is closed later is read the next time
        try:
            with (self.folder / SPOOL_FILE).open("rb") as file:
                file.seek(self._read)
                while self.rows - before < most:
                    message = pa.ipc.read_message(Bounded(file))
                    if message.type == "record batch":
                        self._take(pa.ipc.read_record_batch(message, SCHEMA))
                    self._read = file.tell()
        except FileNotFoundError:
            self._read_table(most)
        except (EOFError, OSError, pa.ArrowException):
            pass  # the rest is not written yet
        self.over = closed and self.rows == before
        self._forget()
        self._look()
        return self.rows - before

    def _read_table(self, most: int) -> None:
        """The run was closed: its table has the same rows in the same order."""
        if not (self.folder / TABLE_FILE).exists():
            return
        place, until = 0, self.rows + most
        for batch in ParquetSource(self.folder / TABLE_FILE).batches(SCHEMA.names, 0):
            new = batch.slice(max(self.rows - place, 0))
            place += batch.num_rows
            if new.num_rows:
                self._take(new.cast(SCHEMA))
            if self.rows >= until:
                return

    def _take(self, batch: pa.RecordBatch) -> None:
        ended = pc.max(batch.column("ended_ns")).as_py() or 0
        self._held.append((batch, ended))
        self.rows += batch.num_rows
        self.latest_ns = max(self.latest_ns, ended)

    def _forget(self) -> None:
        old = -1 if self._seconds is None else self.latest_ns - int(self._seconds * 1e9)
        rows = sum(batch.num_rows for batch, _ in self._held)
        while len(self._held) > 1 and (rows - self._held[0][0].num_rows >= MOST_ROWS or self._held[0][1] < old):
            gone, ended = self._held.pop(0)
            rows -= gone.num_rows
            self.covered_ns = max(self.covered_ns, ended)

    def _look(self) -> None:
        now = self.now
        if now and (not self.looks or now.seconds > self.looks[-1].seconds):
            self.looks = [*self.looks[-KEPT_LOOKS:], now]
        with suppress(RunError):  # then it goes on being what it was
            self.manifest = read_manifest(self.folder)  # events are added as they happen

    @property
    def stale(self) -> bool:
        """Whether another run was begun in the folder since."""
        with suppress(RunError):
            return read_manifest(self.folder).started_at != self._started_at
        return False

    @property
    def now(self) -> Now | None:
        return read_now(self.folder)

    @property
    def run(self) -> Run:
        manifest = msgspec.structs.replace(self.manifest, window_ns=None)
        return Run(manifest, MemorySource([batch for batch, _ in self._held]), self.folder)
