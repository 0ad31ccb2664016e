"""One machine's part of a run, hosted there: the same conductor and workers that drive a run from one machine."""

import math
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec

from openloop import __version__
from openloop.errors import SpecError
from openloop.load.conductor import Conductor, Share, Snapshot
from openloop.load.plan import Load
from openloop.load.rows import Row
from openloop.records import MANIFEST_FILE, copy_run, is_url, locate

SHOWN = 1000  # requests of half a second that are told of: enough for percentiles, and all where there are few


class MachinePart:
    """Asked from elsewhere, `run` once and the others meanwhile. Times are of this machine's clock."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._conductor: Conductor | None = None
        self._folder = Path()
        self._ready, self._begun = threading.Event(), threading.Event()
        self._start_ns = 0
        self._patience_s = self._asked = math.inf
        self._lock = threading.Lock()
        self._now = Snapshot()
        self._why: str | None = None

    def clock(self) -> int:
        if self._version != __version__:
            raise SpecError(f"it has openloop {__version__}, and {self._version} is asked for: install the same")
        return time.monotonic_ns()

    def run(self, load: Load, share: Share, out: str, number: str, told: bytes) -> tuple[bool, dict[str, Any]]:
        """Drive it; whether its files are to be fetched, and what is known of it afterwards.

        It is written where it belongs if that can be reached from here (the manifest there is the one that was
        `told`), else beside, and copied to a URL at the end.
        """
        there = not is_url(out) and _same(Path(out).parent.parent / MANIFEST_FILE, told)
        self._folder = Path(out) if there else Path(mkdtemp(prefix="openloop-")) / number
        self._conductor = Conductor(load, self._folder, self._watch, share, self._begin)
        try:
            self._conductor.run()
        finally:
            self._ready.set()
            if is_url(out):
                copy_run(self._folder, locate(out))
                self.forget()
        facts: dict[str, Any] = msgspec.to_builtins(self._conductor.writer.manifest)
        return not there and not is_url(out), facts

    def ready(self) -> None:
        """Returns when nothing is missing but the moment to start at."""
        self._ready.wait()

    def begin(self, start_ns: int, patience_s: float) -> None:
        """Start at a moment; and stop when nobody has asked for news for so long: then it is taken for lost."""
        self._start_ns, self._patience_s, self._asked = start_ns, patience_s, time.monotonic()
        self._begun.set()

    def shift(self, start_ns: int) -> None:
        """The moment that the run started at, as it is known now."""
        if self._conductor:
            self._conductor.start_ns = start_ns

    def interrupt(self) -> None:
        if self._conductor:
            self._conductor.interrupt()

    def halt(self, why: str) -> None:
        """The system cannot keep up: end the schedule."""
        self._why = why

    def news(self) -> tuple[Snapshot, int]:
        """Where it is, with the requests that ended since it was asked last; and the time."""
        self._asked = time.monotonic()
        with self._lock:
            found, self._now = self._now, replace(self._now, finished=[])
        return found, self.clock()

    def files(self) -> list[str]:
        return sorted(each.name for each in self._folder.iterdir())

    def read(self, name: str, start: int, size: int) -> bytes:
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def forget(self) -> None:
        """What was written beside, and is elsewhere now."""
        shutil.rmtree(self._folder.parent)

    def _begin(self) -> int:
        self._ready.set()
        self._begun.wait()
        return self._start_ns

    def _watch(self, now: Snapshot) -> str | None:
        rows = [_slim(row) for row in now.finished[:: 1 + len(now.finished) // SHOWN]]
        with self._lock:
            self._now = replace(now, statuses=Counter(now.statuses), finished=[*self._now.finished, *rows])
        if time.monotonic() - self._asked > self._patience_s and self._conductor and not self._conductor.interrupts:
            self._conductor.interrupt()
            self._conductor.interrupt()
        return self._why


def _slim(row: Row) -> Row:
    """As much of it as whoever watches looks at."""
    ends = row.event_ns[:1] + row.event_ns[1:][-1:]
    outcome = replace(
        row.outcome,
        text=None,
        event_ns=[],
        event_tokens=None,
        output_tokens=row.outcome.output_tokens or len(row.event_ns),
    )
    return replace(row, event_ns=ends, outcome=outcome, ask=row.ask and row.ask._replace(messages=(), context=None))


def _same(path: Path, told: bytes) -> bool:
    try:
        return path.read_bytes() == told
    except OSError:
        return False
