"""What servers and GPUs say of themselves, read once a second for as long as a run takes.

Each is read by a thread of its own, so that one that hangs holds up no other; whatever goes wrong is a note on the run.
"""

import contextlib
import http.client
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from openloop.errors import StorageError
from openloop.load.address import Place, secrets_of, tls_context
from openloop.load.prometheus import read_figures
from openloop.records import SERVER, SideWriter
from openloop.said import without_secrets

Figures = list[tuple[str, str, float]]  # replica, name, value

EVERY_S = 1.0
TIMEOUT_S = 2.0
TRIES = 3  # that fail before an endpoint counts as absent
LARGEST_PAGE = 16 << 20


class MetricsPage:
    """The /metrics of a server, over a connection that is kept; `read` raises what keeps it from telling."""

    def __init__(
        self, replica: str, place: Place, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.replica = replica
        base = place.base.removesuffix("/metrics")
        self.path = f"{base}/metrics{place.query}"
        self.where = f"{'https' if place.address.name else 'http'}://{place.host}{base}"
        self.headers = headers or {}
        self.secrets = secrets_of(self.headers, place.query)
        self._host, self._timeout_s = place.host, timeout_s
        self._connection = _connection_to(place, timeout_s)

    def read(self) -> Figures:
        found = read_figures(self.fetch())
        if not found:
            raise ValueError("there is no figure in it that openloop knows")
        return [(self.replica, name, value) for name, value in found.items()]

    def fetch(self) -> str:
        """The page itself."""
        until, body = time.monotonic() + self._timeout_s, b""
        headers = {"Host": self._host, "Accept": "text/plain", **self.headers}
        try:
            self._connection.request("GET", self.path, headers=headers)
            with self._connection.getresponse() as response:
                if response.status != 200:
                    raise ValueError(f"status {response.status}")
                while piece := response.read1(1 << 16):
                    body += piece
                    if response.length != 0 and (time.monotonic() > until or len(body) > LARGEST_PAGE):
                        raise TimeoutError("timed out")
                if response.length:
                    raise http.client.IncompleteRead(body, response.length)
        except BaseException:
            self.close()  # it may be in the middle of an answer
            raise
        return body.decode("utf-8")

    def cut(self) -> None:
        """From another thread: a read that is going on ends."""
        with contextlib.suppress(OSError, AttributeError):  # there may be no connection
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


class Gpus:
    """The GPUs of this host, through NVML."""

    where = "NVML"
    secrets: Mapping[str, str] = {}

    def __init__(self, nvml: Any) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    @classmethod
    def find(cls) -> "Gpus | None":
        """Nothing where there is no GPU, no driver, or no package to ask it with (nvidia-ml-py, the extra `gpu`)."""
        try:
            return cls(importlib.import_module("pynvml"))
        except Exception:  # NVML's errors are known only where it is installed
            return None

    def read(self) -> Figures:
        found: Figures = []
        for index, device in enumerate(self._devices):
            for name, ask in _GPU_FIGURES.items():
                with contextlib.suppress(Exception):  # not every device tells everything
                    found.append((f"gpu:{index}", name, float(ask(self._nvml, device))))
        return found

    def cut(self) -> None:
        pass

    def close(self) -> None:
        self._nvml.nvmlShutdown()


FigureSource = MetricsPage | Gpus

_GPU_FIGURES: dict[str, Callable[[Any, Any], float]] = {
    "gpu_use": lambda nvml, device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
    "gpu_memory_use": lambda nvml, device: (info := nvml.nvmlDeviceGetMemoryInfo(device)).used / info.total,
    "gpu_power_w": lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
}


@dataclass
class _Tally:
    """How reading a source went."""

    read: int = 0
    failed: int = 0
    why: str = ""

    def note(self, where: str) -> str | None:
        if not self.failed:
            return None
        if not self.read:
            return f"{where} has no /metrics that can be read ({self.why}): server figures are missing"
        return f"{self.failed} of {self.read + self.failed} readings of {where}/metrics failed ({self.why})"


class Scraper:
    """Reads sources from `start` to `stop` and writes server.parquet; it never fails the run."""

    def __init__(self, writer: SideWriter, sources: Sequence[FigureSource], every_s: float = EVERY_S) -> None:
        self._writer = writer
        self._every_s = every_s
        self._over = threading.Event()
        self._start_ns = 0
        self._full = ""
        self._hits: list[dict[tuple[str, str], float]] = []  # readings of the prefix cache's counters, as they come
        self._tallies = [(source, _Tally()) for source in sources]
        self._threads = [threading.Thread(target=self._watch, args=each, daemon=True) for each in self._tallies]

    @classmethod
    def of(
        cls, writer: SideWriter, replicas: Mapping[str, Place], headers: Mapping[str, str] | None = None
    ) -> "Scraper":
        """Of a run's replicas by name, and of the GPUs of this host if there are any."""
        sources: list[FigureSource] = [MetricsPage(name, place, headers) for name, place in replicas.items()]
        gpus = Gpus.find()
        return cls(writer, [*sources, gpus] if gpus else sources)

    def start(self, start_ns: int) -> None:
        """`start_ns` is the run's start by the monotonic clock; a reading before it tells where counters stood."""
        self._start_ns = start_ns
        for thread in self._threads:
            thread.start()

    def stop(self, patience_s: float = TIMEOUT_S) -> tuple[str, ...]:
        """Read once more, close server.parquet, and say what went wrong."""
        self._over.set()
        until = time.monotonic() + patience_s
        for thread, (source, _) in zip(self._threads, self._tallies, strict=True):
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                source.cut()
                thread.join(0.5)
        with self._noting_a_full_disk():
            self._writer.finish()
        notes = [tally.note(source.where) for source, tally in self._tallies]
        return tuple(note for note in (*notes, self._full) if note)

    def _watch(self, source: FigureSource, tally: _Tally) -> None:
        with contextlib.suppress(AttributeError, OSError):  # those who send and stamp come first
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        due, over, well = time.monotonic(), False, True
        while well or not over:
            well = self._read(source, tally)
            if over or self._full or (not tally.read and tally.failed == TRIES):
                break
            due = max(due + self._every_s, time.monotonic())
            over = self._over.wait(due - time.monotonic())
        source.close()

    def _read(self, source: FigureSource, tally: _Tally) -> bool:
        try:
            figures = source.read()
            now = time.monotonic_ns() - self._start_ns
        except Exception as error:  # whatever a server does to us, the run goes on
            tally.failed += 1
            why = error.strerror if isinstance(error, OSError) else None
            tally.why = without_secrets(why or str(error) or type(error).__name__, source.secrets).lower()
            return False
        tally.read += 1
        before = self._hits[-1] if self._hits else {}
        self._hits.append(before | {(who, name): value for who, name, value in figures if name.startswith("prefix_")})
        with self._noting_a_full_disk():
            self._writer.append(SERVER.of((now, *figure) for figure in figures))
        return True

    def hits(self) -> list[tuple[float, float]]:
        """Between readings: prompt tokens found in prefix caches, and looked up, all servers together."""
        names = ("prefix_hits", "prefix_queries")
        sums = [[sum(v for (_, name), v in each.items() if name == sought) for sought in names] for each in self._hits]
        return [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(sums)]

    @contextlib.contextmanager
    def _noting_a_full_disk(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self._full = self._full or str(error)


def _connection_to(place: Place, timeout_s: float) -> http.client.HTTPConnection:
    """For pages that are asked for now and then; it opens with the first."""
    address, context = place.address, tls_context(place.address)
    if context:
        return http.client.HTTPSConnection(address.name, address.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
