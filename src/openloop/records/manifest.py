"""run.json: what makes a number reusable. What is not known is null, never a guess."""

import os
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from openloop.errors import RunError, SpecError, StorageError
from openloop.records.schema import SCHEMA_VERSION
from openloop.spec import Strict, convert

__all__ = ["MANIFEST_FILE", "Manifest", "Prices", "TimedEvent", "Warmth", "read_manifest", "write_manifest"]

MANIFEST_FILE: Final = "run.json"

Warmth = Literal["cold", "warm-model cold-cache", "warm-cache", "hot steady state", "disrupted"]


class TimedEvent(Strict, frozen=True):
    """Something that was done to the system during the run."""

    at_ns: int
    kind: str  # deploy, scale-out, salt-rotation, failure, ...
    detail: str | None = None


class Prices(Strict, frozen=True):
    """What the run's resources cost, in one currency."""

    per_hour: float = 0.0  # of everything that was reserved for the run, together
    per_request: float = 0.0
    per_million_input_tokens: float = 0.0
    per_million_cached_tokens: float | None = None  # null: cached input costs as much as any
    per_million_output_tokens: float = 0.0

    @property
    def by_use(self) -> bool:
        """Whether requests or tokens have a price of their own."""
        return any(getattr(self, name) for name in self.__struct_fields__ if name != "per_hour")

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            price = getattr(self, name)
            if price is not None and not 0 <= price < float("inf"):
                raise ValueError(f"{name} is {price}; a price is zero or more")


class Manifest(Strict, frozen=True):
    source: str  # which producer: load, sim, proxy, import, example, ...
    schema_version: int = SCHEMA_VERSION
    openloop_version: str | None = None
    command: list[str] | None = None
    started_at: str | None = None  # wall clock, ISO 8601; every time in the table counts from here
    finished: bool = False
    window_ns: tuple[int, int] | None = None  # arrivals due from the first to before the second are measured
    stopped_ns: int | None = None  # when watching ended; what was still in flight then is censored
    seed: int | None = None

    target: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    engine_flags: str | None = None
    model: str | None = None
    model_revision: str | None = None
    quantization: str | None = None
    hardware: str | None = None
    replicas: int | None = None

    workload: str | None = None
    lengths: str | None = None  # distribution of prompt and output lengths
    arrivals: str | None = None
    arrivals_cv: float | None = None  # coefficient of variation of the gaps that the arrival process promises
    offered_rps: float | None = None
    cache_warmth: Warmth | None = None
    retry_policy: str | None = None
    events: tuple[TimedEvent, ...] = ()

    slo: str | dict[str, Any] | None = None
    quality_gate: str | None = None
    prices: Prices | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.window_ns is not None and not 0 <= self.window_ns[0] < self.window_ns[1]:
            raise ValueError(f"window_ns is {list(self.window_ns)}; it runs from zero or later to a later time")


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_FILE
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise RunError(f"{path} is not JSON: {error}") from None
    version = raw.get("schema_version", 0) if isinstance(raw, dict) else 0
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {version} and this openloop reads up to {SCHEMA_VERSION}: upgrade openloop"
        )
    try:
        return convert(raw, Manifest, str(path))
    except SpecError as error:
        raise RunError(str(error)) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace run.json in one step: a reader sees the old one or the new one."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    draft = folder / f"{MANIFEST_FILE}.tmp"
    try:
        with draft.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / MANIFEST_FILE)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"{folder / MANIFEST_FILE} cannot be written: {error.strerror}") from None
