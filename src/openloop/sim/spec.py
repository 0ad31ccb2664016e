"""A fleet of modelled replicas: as a user writes it, and as the loop takes it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from openloop.admission import Admission, read_admission
from openloop.arrays import Floats, Ints, records
from openloop.distributions import Distribution, read_distribution
from openloop.errors import SpecError
from openloop.routing import read_routing
from openloop.sim.batching import BATCHING, ORDERS, Goodput, Prepone
from openloop.sim.clients import LIMITS, MOST_REPLICAS, Autoscaling, Client, client_row, scaler_row
from openloop.sim.events import EVENTS, Event, count_added
from openloop.sim.memory import block_names
from openloop.sim.quality import QualityModel, read_quality
from openloop.sim.steps import Preset, StepTime, explain, preset
from openloop.sim.tables import BOTH, DECODE, PREFILL, REPLICA, REQUEST
from openloop.slo import TTFT, Objectives
from openloop.spec import Strict, convert, read_yaml
from openloop.terms import SECONDS, read_term
from openloop.units import check_number, parse_seconds, parse_share
from openloop.workload import Demand

MOST = {"replicas": MOST_REPLICAS, "max_sequences": 100_000, "block": 100_000}  # all of them have rows in tables
MOST_TOKENS = 1 << 40
ROLES = {"both": BOTH, "prefill": PREFILL, "decode": DECODE}
MOST_BLOCKS = 1 << 25  # of prefix caches, which take some hundred bytes each


class StepSpec(Strict, frozen=True):
    """Times, as `9.3ms`, in place of a model on a GPU."""

    floor: str
    token: str
    context: str = "0s"
    attention: str = "0s"
    sequence: str = "0s"
    fixed: str = "0s"
    packed: str = "0s"


class Drafts(Strict, frozen=True):
    """Speculative decoding: `tokens` are proposed in each step, each accepted with this chance if those before it are;
    proposing one costs a share of a step of the model."""

    tokens: int
    acceptance: float
    cost: str = "5%"

    @property
    def gain(self) -> float:
        """Tokens of a step: 1 + a + a^2 + ... + a^tokens."""
        return sum(self.acceptance**n for n in range(self.tokens + 1))


class Quantization(Strict, frozen=True):
    """Smaller numbers: steps are faster, there is more memory, and answers in the tail fail more often."""

    name: str = "fp8"
    speed: float = 1.6
    memory: float = 1.0  # times as many tokens fit
    tail: float = 1.0  # times the chance to fail, in the tail of `quality`


class Transfer(Strict, frozen=True):
    """How the memory of a prompt gets from those that prefill to those that decode."""

    bandwidth: float = 50e9  # bytes per second
    latency: str = "2ms"
    bytes_per_token: float | None = None  # null: the model's


class Replicas(Strict, frozen=True):
    """Replicas that are alike."""

    replicas: int = 1
    role: Literal["both", "prefill", "decode"] = "both"
    model: str | None = None
    gpu: str | None = None
    tp: int = 1
    step: StepSpec | None = None
    speed: float = 1.0  # of all steps: 1.6 is a model that takes 1 / 1.6 of the time
    batching: str = "chunked"
    order: str = "first"
    max_sequences: int = 256
    max_tokens: int = 2048
    memory_tokens: int | None = None  # null: what the GPUs have
    block: int = 16
    padding: int = 1  # tokens in memory are read in multiples of this, as by CUDA graphs of fixed sizes
    watermark: str = "1%"
    swap: str | None = None  # time per token, out and in again; null: what is preempted is computed again
    drafts: Drafts | None = None
    price_per_hour: float | None = None  # of one replica

    def preset(self) -> Preset | None:
        return None if self.model is None or self.gpu is None else preset(self.model, self.gpu, self.tp)

    def step_time(self) -> StepTime:
        if self.step is not None:
            names = StepSpec.__struct_fields__
            return StepTime(*(parse_seconds(getattr(self.step, name)) for name in names)).scaled(1 / self.speed)
        found = self.preset()
        if found is None:
            raise SpecError("a fleet needs a model and a gpu, such as model: 8b and gpu: h100, or a step")
        return found.step.scaled(1 / self.speed)

    def kv_tokens(self) -> int:
        if self.memory_tokens is not None:
            return self.memory_tokens
        found = self.preset()
        return 1 << 34 if found is None else found.kv_tokens

    @property
    def memory_blocks(self) -> int:
        return self.kv_tokens() // self.block


class Calibrated(Strict, frozen=True):
    """Where the numbers of a fleet come from, if they were fitted to measured runs."""

    runs: tuple[str, ...] = ()
    intervals: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)  # 90%, of each time
    names: tuple[str, ...] = ()  # of the times in a draw
    draws: tuple[tuple[float, ...], ...] = ()  # seconds: what the data allow as well
    jitter: float = 0.0  # of the overhead: the standard deviation of its logarithm
    evidence: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    workload: str | None = None  # that was measured
    slo: str | dict[str, Any] | None = None
    rates: tuple[float, ...] = ()


class FleetSpec(Replicas, frozen=True):
    routing: str = "round-robin"
    view_every: str | None = None  # how often routing sees what replicas do; null: it always knows
    cache_events: bool = True  # replicas say what is in their caches, to routing policies that listen
    groups: tuple[dict[str, Any], ...] = ()  # unlike replicas: what is different in each, over the keys above
    transfer: Transfer = Transfer()
    prefix_cache: bool = True
    tenant_salt: bool = False  # what one tenant said is not known to another
    quantization: Quantization | None = None
    quality: str | None = None  # of answers, such as quality:fail=2%,tail=4%; null: they have no labels
    delay: str | None = None  # tokens are handed out no faster than one in this time
    overhead: str | None = None  # what a user waits besides, such as 3ms or exponential(3ms): network, HTTP, tokenizer
    admission: str | None = None
    client: Client | None = None
    scale: Autoscaling | None = None
    events: tuple[str, ...] = ()
    calibration: Calibrated | None = None

    def written(self) -> dict[str, Any]:
        """As a user would write it: without what is usual."""
        usual = msgspec.to_builtins(FleetSpec())
        return {key: value for key, value in msgspec.to_builtins(self).items() if value != usual[key]}

    def kinds(self) -> list[Replicas]:
        """The groups, each as a whole, quantized if they are."""
        found: list[Replicas] = [self]
        if self.groups:
            known = Replicas.__struct_fields__
            shared = {key: value for key, value in self.written().items() if key in known and key != "replicas"}
            found = [convert({**shared, **group}, Replicas, f"group {n}") for n, group in enumerate(self.groups, 1)]
        if self.quantization is None:
            return found
        more, faster = self.quantization.memory, self.quantization.speed
        return [
            msgspec.structs.replace(each, speed=each.speed * faster, memory_tokens=int(more * each.kv_tokens()))
            for each in found
        ]

    @property
    def size(self) -> int:
        """To begin with."""
        return sum(each.replicas for each in self.kinds())

    @property
    def most(self) -> int:
        """Without those that an event adds, which come after them."""
        return max(self.size, self.scale.most if self.scale else 0)

    def kinds_of(self, count: int) -> list[Replicas]:
        """Of so many replicas: those that come later are like the first ones."""
        some = [each for each in self.kinds() for _ in range(each.replicas)]
        return [some[number % len(some)] for number in range(count)]

    def plan(self) -> tuple[Event, ...]:
        return tuple(read_term(each, EVENTS, "event") for each in self.events)

    def stale_s(self) -> float:
        every = 0.0 if self.view_every is None else parse_seconds(self.view_every)
        if self.view_every is not None and not every > 0:
            raise SpecError(f"view_every is {self.view_every}; it is more than nothing, such as 1s, or left out")
        return every

    def read_quality(self) -> QualityModel | None:
        """What quantization does to the tail is in it."""
        if self.quality is None:
            return None
        found = read_quality(self.quality)
        worse = 1.0 if self.quantization is None else self.quantization.tail
        return dataclasses.replace(found, factor=found.factor * worse)

    def read_overhead(self) -> Distribution | None:
        return None if self.overhead is None else read_distribution(self.overhead, SECONDS)

    def delay_s(self) -> float:
        return 0.0 if self.delay is None else parse_seconds(self.delay)

    def read_admission(self) -> Admission | None:
        return None if self.admission is None else read_admission(self.admission)


def read_fleet(what: str | Path | dict[str, Any]) -> FleetSpec:
    found = convert(
        what if isinstance(what, dict) else read_yaml(Path(what)),
        FleetSpec,
        "the fleet" if isinstance(what, dict) else str(what),
    )
    if found.quantization is not None:
        check_number("quantization: memory", found.quantization.memory, 0.0, 1e6)
    for each in found.kinds():
        _check_replicas(each)
    roles = {each.role for each in found.kinds()}
    if roles != {"both"} and roles != {"prefill", "decode"}:
        raise SpecError("replicas of the role prefill need others of the role decode, and the other way round")
    if len({each.block for each in found.kinds()}) > 1:
        raise SpecError("all groups of a fleet have the same block: names of blocks go by it")
    if found.scale is not None:
        scaler_row(found.scale, found.size)
        if len(found.kinds()) > 1:
            raise SpecError("scale needs replicas that are alike: a fleet without groups")
    client_row(found.client, found.read_admission(), found.scale)
    read_routing(found.routing)
    found.stale_s()
    found.plan()
    if found.read_quality() is None and found.client is not None and found.client.repairs() is not None:
        raise SpecError("a repair needs answers that can fail: give quality, such as quality:fail=2%")
    found.read_overhead()
    found.delay_s()
    check_number("transfer: bytes_per_token", found.transfer.bytes_per_token or 0.0, 0.0, 1e12)
    return found


def _check_replicas(found: Replicas) -> None:
    for name in ("replicas", "max_sequences", "max_tokens", "block", "padding", "tp"):
        most = MOST.get(name, MOST_TOKENS)
        if not 1 <= getattr(found, name) <= most:
            raise SpecError(f"{name} is {getattr(found, name)}; it is at least 1, and at most {most:,}")
    if not 0 < found.speed <= 1e6:
        raise SpecError(f"speed is {found.speed}; it is above 0, and 1 where nothing is changed")
    check_number("price_per_hour", found.price_per_hour or 0.0, 0.0, 1e12)
    if found.drafts and not (1 <= found.drafts.tokens <= 64 and 0 <= found.drafts.acceptance < 1):
        raise SpecError("drafts: tokens are 1 to 64, and acceptance is a share below 1")
    if not found.block <= found.kv_tokens() <= MOST_TOKENS:
        told = f"it is at least one block of {found.block}, and at most {MOST_TOKENS:,}"
        raise SpecError(f"memory_tokens is {found.kv_tokens()}; {told}")
    step = found.step_time()
    if not step.fixed + step.floor + step.token > 0:
        raise SpecError("a step that takes no time has no end of capacity: give it a floor or a token time")
    read_term(found.batching, BATCHING, "batching policy")
    read_term(found.order, ORDERS, "order")


def explain_fleet(fleet: FleetSpec) -> Iterator[str]:
    """Every number of a replica, and where it comes from."""
    for number, each in enumerate(fleet.kinds(), 1):
        if fleet.groups:
            yield f"group {number}, {each.replicas} replicas ({each.role})"
        found = each.preset()
        if found is not None and each.step is None:
            yield from explain(found)
        else:
            yield "step times as the file has them"
        if each.speed != 1.0:
            yield f"  all of it {each.speed:g} times as fast"
        step = each.step_time()
        yield f"  so a prefill of 2,048 tokens takes {1e3 * step.prefill(2048):.1f} ms"
        decode = " / ".join(f"{1e3 * step.decode(batch, 1024):.1f}" for batch in (1, 32, 128))
        yield f"  and a decode step at a context of 1,024, by batch size 1 / 32 / 128: {decode} ms"
        if each.drafts:
            told = f"1 + a + ... + a^{each.drafts.tokens}, a = {each.drafts.acceptance:g}"
            yield f"  a step makes {each.drafts.gain:.2f} tokens: {told}"
        if each.role == "prefill":
            once, token = _transfer_s(fleet, each)
            yield f"  handing over a prompt of 2,048 tokens takes {1e3 * (once + 2048 * token):.1f} ms"


def request_tables(fleet: FleetSpec, demand: Demand, objectives: Objectives | None) -> tuple[Any, Ints | None]:
    """Requests, and the names of their blocks."""
    longest = int((demand.prompt_tokens + demand.output_tokens).max())
    for each in fleet.kinds():
        if longest > each.memory_blocks * each.block:
            raise SpecError(
                f"a request of {longest:,} tokens is longer than the memory of a replica, "
                f"{each.memory_blocks * each.block:,}: use shorter requests, or more memory_tokens"
            )
    d = records(REQUEST, len(demand))
    d.prompt, d.output = demand.prompt_tokens, np.maximum(demand.output_tokens, 1)
    d.follower = d.session = -1
    d.due, d.within = demand.due_s, _deadlines(demand, objectives)
    if demand.after is not None:
        after = np.flatnonzero(demand.after >= 0)
        d.follower[demand.after[after]] = after
    if demand.think_s is not None:
        d.think = np.nan_to_num(demand.think_s)
    if demand.session is not None:
        d.session = demand.session
    hashes = None
    if fleet.prefix_cache and bool(np.any(demand.pieces.identity >= 0)):
        if max(each.memory_blocks for each in fleet.kinds()) > MOST_BLOCKS:
            raise SpecError("a prefix cache needs memory that ends: give memory_tokens, or prefix_cache: false")
        salt = demand.tenant if fleet.tenant_salt else None
        hashes, d.names, d.named, d.named_prompt = block_names(demand, fleet.kinds()[0].block, salt)
    return d, hashes


def _deadlines(demand: Demand, objectives: Objectives | None) -> Floats:
    """When the first token is wanted, by the SLO of each class."""
    names = list(demand.classes) if demand.workload_class is not None else [None]
    bounds = []
    for name in names:
        slo = objectives.of(name) if objectives else None
        gates = [gate.within_s for gate in slo.gates if isinstance(gate, TTFT)] if slo else []
        bounds.append(gates[0] if gates else 1e6)
    places = np.zeros(len(demand), np.int64) if demand.workload_class is None else demand.workload_class
    return np.array(bounds)[places]


def replica_rows(fleet: FleetSpec) -> Any:
    """All there will ever be."""
    size, admission = fleet.size, fleet.read_admission()
    reps = records(REPLICA, fleet.most + count_added(fleet.plan()))
    for number, kind in enumerate(fleet.kinds_of(len(reps))):
        m = reps[number]
        step = kind.step_time()
        batching, order = read_term(kind.batching, BATCHING, "batching policy"), read_term(kind.order, ORDERS, "order")
        m.number, m.up, m.role = number, number < size, ROLES[kind.role]
        m.batching, m.order = list(BATCHING).index(batching.name), list(ORDERS).index(order.name)
        m.sheds = isinstance(order, Goodput) and order.late
        m.sequences, m.tokens, m.page = kind.max_sequences, kind.max_tokens, kind.block
        m.padding = kind.padding
        m.blocks = m.free = kind.memory_blocks
        m.watermark = int(parse_share(kind.watermark) * m.blocks)
        m.ahead = batching.steps if isinstance(batching, Prepone) else 0
        m.longest = 1 << 40
        m.root = m.refused = -1
        m.floor, m.token, m.reading = step.floor, step.token, step.context
        m.attention, m.sequence, m.fixed, m.packed = step.attention, step.sequence, step.fixed, step.packed
        m.swap = -1.0 if kind.swap is None else parse_seconds(kind.swap)
        m.gain = m.slow = 1.0
        m.next, m.admitted = np.inf, np.nan
        if kind.drafts:
            share = parse_share(kind.drafts.cost)
            m.drafts, m.gain = kind.drafts.tokens, kind.drafts.gain
            m.draft, m.draft_step = share * (step.token + step.sequence), share * (step.fixed + step.floor)
        if kind.role == "prefill":
            m.transfer, m.transfer_token = _transfer_s(fleet, kind)
        if admission is not None:
            m.limited, m.limit = LIMITS[type(admission)], admission.limit
    return reps


def _transfer_s(fleet: FleetSpec, kind: Replicas) -> tuple[float, float]:
    """To hand a prompt over: once, and for each of its tokens."""
    found = kind.preset()
    each = fleet.transfer.bytes_per_token
    if each is None:
        each = found.model.kv_bytes if found else 0.0
    if not fleet.transfer.bandwidth > 0:
        raise SpecError(f"transfer: bandwidth is {fleet.transfer.bandwidth:g}; it is bytes per second, such as 50e9")
    return parse_seconds(fleet.transfer.latency), each / fleet.transfer.bandwidth
