"""run.json: what makes a number reusable. What is not known is null, never a guess."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from openloop import __version__
from openloop.errors import RunError, SpecError
from openloop.records.schema import LATEST_NS, SCHEMA_VERSION
from openloop.records.tables import write_json
from openloop.spec import Strict, convert, read_json, read_yaml

MANIFEST_FILE: Final = "run.json"

Time = Annotated[int, msgspec.Meta(ge=0, le=LATEST_NS)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e12)]

Warmth = Literal["cold", "warm-model cold-cache", "warm-cache", "hot steady state", "disrupted"]


class TimedEvent(Strict, frozen=True):
    """Something that was done to the system during the run."""

    at_ns: Time
    kind: str  # deploy, scale-out, salt-rotation, failure, ...
    detail: str | None = None


class Stay(Strict, frozen=True):
    """When a replica was there."""

    replica: str
    from_ns: Time
    to_ns: Time

    def inside_ns(self, window_ns: tuple[int, int]) -> int:
        return max(min(self.to_ns, window_ns[1]) - max(self.from_ns, window_ns[0]), 0)


class Node(Strict, frozen=True):
    """A machine that drove a part of the run; its rows are in nodes/, by its place in the list, unless it was lost."""

    name: str
    requests: Count  # of the schedule
    offset_ns: int  # of its clock against the coordinator's, whose times are in all rows
    error_ns: Count  # that times are wrong by at most, for not knowing this offset better
    lost: str | None = None  # why it did not drive its part to the end


class Prices(Strict, frozen=True):
    """What the run's resources cost, in one currency."""

    per_hour: Amount = 0.0  # of everything that was reserved for the run, together
    per_gpu_hour: Amount = 0.0
    gpus: Positive | None = None  # how many of these were reserved
    per_request: Amount = 0.0
    per_million_input_tokens: Amount = 0.0
    per_million_cached_tokens: Amount | None = None  # null: cached input costs as much as any
    per_million_output_tokens: Amount = 0.0
    per_human_review: Amount = 0.0  # of an answer that fails its quality gate, and of a share of the others
    reviewed_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if self.per_gpu_hour and self.gpus is None:
            raise ValueError(f"per_gpu_hour is {self.per_gpu_hour:g}, of how many? Give gpus as well")

    @property
    def hourly(self) -> float:
        return self.per_hour + self.per_gpu_hour * (self.gpus or 0.0)

    @property
    def by_use(self) -> bool:
        """Whether requests or tokens have a price of their own: then one of each kind of token costs something."""
        return bool(self.of_each(2, 1, 1) > 0)

    def of(self, prompt_tokens: int | None, cached_tokens: int | None, output_tokens: int | None) -> float:
        """Of one attempt, apart from the time of what served it."""
        cached = cached_tokens or 0
        return float(self.of_each(max(prompt_tokens or 0, cached), cached, output_tokens or 0))

    def of_each(self, prompt: Any, cached: Any, output: Any) -> Any:
        """Of attempts with so many tokens, numbers or arrays; cached ones are part of the prompt."""
        per_input, per_cached = self.per_million_input_tokens, self.per_million_cached_tokens
        per_cached = per_input if per_cached is None else per_cached
        tokens = (prompt - cached) * per_input + cached * per_cached + output * self.per_million_output_tokens
        return self.per_request + tokens / 1e6


class Manifest(Strict, frozen=True):
    """What is known of a run besides its rows (run.json); null: it is not known."""

    source: str  # which producer: load, sim, proxy, import, example, ...
    schema_version: Annotated[int, msgspec.Meta(ge=1)] = SCHEMA_VERSION
    openloop_version: str | None = None
    command: list[str] | None = None
    started_at: str | None = None  # wall clock, ISO 8601; every time in the table counts from here
    finished: bool = False
    window_ns: tuple[Time, Time] | None = None  # arrivals due from the first to before the second are measured
    stopped_ns: Time | None = None  # when watching ended; what was still in flight then is censored
    cut_short: str | None = None  # why the schedule was not driven to its end: interrupt, requests, spend, overload
    seed: int | None = None
    stamps: str | None = None  # whose clock says when tokens arrived

    target: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    engine_flags: str | None = None
    model: str | None = None
    model_revision: str | None = None
    quantization: str | None = None
    hardware: str | None = None
    replicas: Count | None = None
    stays: tuple[Stay, ...] = ()  # of a fleet that grew or shrank; empty: all were there all the time
    nodes: tuple[Node, ...] = ()  # machines that sent, where there were several

    workload: str | None = None
    lengths: str | None = None  # distribution of prompt and output lengths
    arrivals: str | None = None
    arrivals_cv: Amount | None = None  # coefficient of variation of the gaps that the arrival process promises
    arrivals_dispersion: Amount | None = None  # variance over mean of their number; null: arrivals_cv squared
    offered_rps: Positive | None = None
    cache_warmth: Warmth | None = None
    retry_policy: str | None = None
    events: tuple[TimedEvent, ...] = ()

    slo: str | dict[str, Any] | None = None
    quality_gate: str | None = None
    prices: Prices | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.window_ns is not None and not self.window_ns[0] < self.window_ns[1]:
            raise ValueError(f"window_ns is {list(self.window_ns)}; it runs from one time to a later one")
        if self.slo is not None and not isinstance(self.slo, str | dict):
            raise ValueError("slo is text or a mapping; write an SLO object as str(slo)")


def read_prices(what: "str | Path | dict[str, Any] | Prices") -> Prices:
    """Prices from a YAML file, or from what stands in one."""
    if isinstance(what, Prices):
        return what
    raw = what if isinstance(what, dict) else read_yaml(Path(what))
    return convert({} if raw is None else raw, Prices, "the prices" if isinstance(what, dict) else str(what))


def checked(manifest: Manifest) -> Manifest:
    """The manifest as a reader will see it, or what is wrong with it; numbers may be numpy's."""
    if manifest.openloop_version is None:
        manifest = msgspec.structs.replace(manifest, openloop_version=__version__)
    try:
        return convert(msgspec.to_builtins(manifest, enc_hook=lambda value: value.item()), Manifest, "the manifest")
    except AttributeError as error:
        raise SpecError(f"the manifest holds something that is no text or number: {error}") from None


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_FILE
    try:
        raw = read_json(path)
        version = raw.get("schema_version", 0) if isinstance(raw, dict) else 0
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise RunError(
                f"{path} has schema version {version} and this openloop reads up to {SCHEMA_VERSION}: upgrade openloop"
            )
        return convert(raw, Manifest, str(path))
    except SpecError as error:
        raise RunError(str(error)) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / MANIFEST_FILE, manifest)
