"""A fleet of modelled replicas, as a user writes it, and a run of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from openloop import __version__
from openloop.arrivals import Arrivals
from openloop.errors import SpecError
from openloop.records import Manifest, Prices, Run, checked, make_batch, make_lists, make_words
from openloop.sim import core
from openloop.sim.batching import ORDERS, POLICIES, Goodput, Prepone
from openloop.sim.prefixes import block_names
from openloop.sim.replicas import Outcome, run_replicas, token_times, tokens_of
from openloop.sim.steps import Preset, StepTime, explain, preset
from openloop.slo import TTFT, Objectives
from openloop.spec import Strict, convert, read_yaml
from openloop.terms import read_term
from openloop.units import NS_PER_S, parse_seconds, parse_share, to_ns
from openloop.workload import Demand, Workload

__all__ = ["Drafts", "Fleet", "StepSpec", "explain_fleet", "read_fleet", "simulate_fleet"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUTING = {"round-robin": 0, "least-requests": 1}
STATUSES = {core.OK: "ok", core.SHED: "shed", core.CENSORED: "censored"}
ROWS = 50_000  # of a batch of records


class StepSpec(Strict, frozen=True):
    """Times, as `9.3ms`, in place of a model on a GPU."""

    floor: str
    token: str
    context: str = "0s"
    attention: str = "0s"
    sequence: str = "0s"


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


class Fleet(Strict, frozen=True):
    replicas: int = 1
    routing: Literal["round-robin", "least-requests"] = "round-robin"
    model: str | None = None
    gpu: str | None = None
    tp: int = 1
    step: StepSpec | None = None
    speed: float = 1.0  # of all steps: 1.6 is a model that takes 1 / 1.6 of the time
    policy: str = "chunked"
    order: str = "first"
    max_sequences: int = 256
    max_tokens: int = 2048
    memory_tokens: int | None = None  # null: what the GPUs have
    block: int = 16
    watermark: str = "1%"
    swap: str | None = None  # time per token, out and in again; null: what is preempted is computed again
    prefix_cache: bool = True
    drafts: Drafts | None = None
    delay: str | None = None  # tokens are handed out no faster than one in this time
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


def read_fleet(what: str | Path | dict[str, Any]) -> Fleet:
    found = convert(what if isinstance(what, dict) else read_yaml(Path(what)), Fleet, str(what)[:80])
    for name, least in (("replicas", 1), ("max_sequences", 1), ("max_tokens", 1), ("block", 1), ("tp", 1)):
        if getattr(found, name) < least:
            raise SpecError(f"{name} is {getattr(found, name)}; it is at least {least}")
    if not 0 < found.speed <= 1e6:
        raise SpecError(f"speed is {found.speed}; it is above 0, and 1 where nothing is changed")
    if found.drafts and not (1 <= found.drafts.tokens <= 64 and 0 <= found.drafts.acceptance < 1):
        raise SpecError("drafts: tokens are 1 to 64, and acceptance is a share below 1")
    if found.kv_tokens() < found.block:
        raise SpecError(f"memory_tokens is {found.kv_tokens()}; it is at least one block of {found.block}")
    step = found.step_time()
    if not step.floor + step.token > 0:
        raise SpecError("a step that takes no time has no end of capacity: give it a floor or a token time")
    read_term(found.policy, POLICIES, "batching policy")
    read_term(found.order, ORDERS, "order")
    return found


def explain_fleet(fleet: Fleet) -> Iterator[str]:
    """Every number of a replica, and where it comes from."""
    found = fleet.preset()
    if found is not None and fleet.step is None:
        yield from explain(found)
    else:
        yield "step times as the file has them"
    if fleet.speed != 1.0:
        yield f"  all of it {fleet.speed:g} times as fast"
    step = fleet.step_time()
    yield f"  so a prefill of 2,048 tokens takes {1e3 * step.prefill(2048):.1f} ms"
    decode = " / ".join(f"{1e3 * step.decode(batch, 1024):.1f}" for batch in (1, 32, 128))
    yield f"  and a decode step at a context of 1,024, by batch size 1 / 32 / 128: {decode} ms"
    if fleet.drafts:
        told = f"1 + a + ... + a^{fleet.drafts.tokens}, a = {fleet.drafts.acceptance:g}"
        yield f"  a step makes {fleet.drafts.gain:.2f} tokens: {told}"


def simulate_fleet(
    fleet: Fleet,
    workload: Workload,
    arrivals: Arrivals | None,
    seconds: float,
    seed: int = 0,
    objectives: Objectives | None = None,
    drain_s: float = np.inf,
    **facts: Any,
) -> Run:
    """Users of so many seconds, served by modelled replicas in virtual time."""
    demand = workload.demand(arrivals, seconds, seed)
    outcome = _serve(fleet, demand, objectives, seconds + drain_s)
    batches = list(_batches(fleet, demand, outcome, to_ns(seconds)))
    latest = np.nanmax(outcome.x[:, core.ENDED], initial=seconds)
    manifest = Manifest(
        **{
            "source": "sim",
            "engine": "openloop sim",
            "engine_version": __version__,
            "engine_flags": str(fleet),
            "model": fleet.model or "a step time",
            "hardware": f"{fleet.tp} x {fleet.gpu}" if fleet.gpu else "none: virtual time",
            "replicas": fleet.replicas,
            "workload": str(workload),
            "arrivals": "as recorded" if arrivals is None else str(arrivals),
            "arrivals_cv": None if arrivals is None or demand.with_answers else arrivals.cv,
            "window_ns": (0, to_ns(seconds)),
            "stopped_ns": to_ns(min(float(latest) + 1.0, seconds + drain_s)),
            "seed": seed,
            "finished": True,
            "prices": None if fleet.price_per_hour is None else Prices(per_hour=fleet.price_per_hour * fleet.replicas),
            **facts,
        }
    )
    return Run.of(checked(manifest), batches)


def _serve(fleet: Fleet, demand: Demand, objectives: Objectives | None, stop_s: float) -> Outcome:
    blocks = fleet.kv_tokens() // fleet.block
    longest = int((demand.prompt_tokens + demand.output_tokens).max())
    if longest > blocks * fleet.block:
        raise SpecError(
            f"a request of {longest:,} tokens is longer than the memory of a replica, {blocks * fleet.block:,}: "
            "use shorter requests, or more memory_tokens"
        )
    q, x = _requests(demand, objectives)
    f, y = _replicas(fleet, blocks)
    hashes = None
    if fleet.prefix_cache and bool(np.any(demand.pieces.identity >= 0)):
        hashes, q[:, core.NAMES], q[:, core.NAMED], q[:, core.NAMED_PROMPT] = block_names(demand, fleet.block)
    return run_replicas(q, x, f, y, hashes, routing=ROUTING[fleet.routing], stop_s=stop_s)


def _requests(demand: Demand, objectives: Objectives | None) -> tuple[Ints, Floats]:
    """A demand as the loop takes it."""
    count = len(demand)
    q, x = np.zeros((count, core.REQUEST_INTS), np.int64), np.zeros((count, core.REQUEST_FLOATS))
    q[:, core.PROMPT], q[:, core.OUTPUT] = demand.prompt_tokens, np.maximum(demand.output_tokens, 1)
    q[:, [core.FOLLOWER, core.LEFT, core.RIGHT, core.REPLICA]] = -1
    q[:, core.STATUS] = core.CENSORED
    x[:, [core.STARTED, core.ENDED, core.FIRST_TOKEN]] = np.nan
    x[:, core.DUE], x[:, core.WITHIN] = demand.due_s, _deadlines(demand, objectives)
    if demand.after is not None:
        after = np.flatnonzero(demand.after >= 0)
        q[demand.after[after], core.FOLLOWER] = after
    if demand.think_s is not None:
        x[:, core.THINK] = np.nan_to_num(demand.think_s)
    return q, x


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


def _replicas(fleet: Fleet, blocks: int, longest_run: int = 1 << 40) -> tuple[Ints, Floats]:
    f, y = (
        np.zeros((fleet.replicas, core.REPLICA_INTS), np.int64),
        np.zeros((fleet.replicas, core.REPLICA_FLOATS)),
    )
    step = fleet.step_time()
    policy, order = read_term(fleet.policy, POLICIES, "batching policy"), read_term(fleet.order, ORDERS, "order")
    whole = {
        core.POLICY: policy.code,
        core.ORDER: order.code,
        core.SHEDS: isinstance(order, Goodput) and order.late,
        core.SEQUENCES: fleet.max_sequences,
        core.TOKENS: fleet.max_tokens,
        core.SIZE: fleet.block,
        core.BLOCKS: blocks,
        core.FREE: blocks,
        core.WATERMARK: int(parse_share(fleet.watermark) * blocks),
        core.AHEAD: policy.steps if isinstance(policy, Prepone) else 0,
        core.DRAFTS: fleet.drafts.tokens if fleet.drafts else 0,
        core.LONGEST: longest_run,
        core.ROOT: -1,
        core.PREPONED: -1,
        core.NEWEST: -1,
        core.OLDEST: -1,
    }
    times = {
        core.FLOOR: step.floor,
        core.TOKEN: step.token,
        core.READING: step.context,
        core.ATTENTION: step.attention,
        core.SEQUENCE: step.sequence,
        core.SWAP: -1.0 if fleet.swap is None else parse_seconds(fleet.swap),
        core.GAIN: fleet.drafts.gain if fleet.drafts else 1.0,
        core.NEXT: np.inf,
    }
    if fleet.drafts:
        share = parse_share(fleet.drafts.cost)
        times |= {core.DRAFT: share * (step.token + step.sequence), core.DRAFT_STEP: share * step.floor}
    for column, value in whole.items():
        f[:, column] = value
    for column, seconds in times.items():
        y[:, column] = seconds
    return f, y


def _batches(fleet: Fleet, demand: Demand, outcome: Outcome, end_ns: int) -> Iterator[pa.RecordBatch]:
    """Rows of all that was due in the window."""
    q, x = outcome.q, outcome.x
    due_ns = np.minimum(_ns(x[:, core.DUE]), end_ns - 1)
    due = np.flatnonzero(~np.isnan(x[:, core.DUE]) & (x[:, core.DUE] * NS_PER_S < end_ns))
    times, totals = token_times(outcome)
    if fleet.delay is not None:
        times = _delayed(times, totals, parse_seconds(fleet.delay))
    tokens = tokens_of(outcome)
    starts = np.concatenate([[0], np.cumsum(totals)])
    for first in range(0, len(due), ROWS):
        rows = due[first : first + ROWS]
        counts = totals[rows]
        flat = np.repeat(starts[rows] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
        events = _ns(times[flat])
        served = q[rows, core.REPLICA] >= 0
        last = np.where(counts > 0, starts[rows] + counts - 1, 0)
        ended = np.where(
            counts > 0, np.fmax(x[rows, core.ENDED], times[last] if len(times) else 0), x[rows, core.ENDED]
        )
        over = q[rows, core.STATUS] != core.CENSORED
        columns: dict[str, Any] = {
            "request_id": rows,
            "scheduled_ns": due_ns[rows],
            "sent_ns": due_ns[rows],
            "ended_ns": pa.array(np.where(over, _ns(np.nan_to_num(ended)), 0), mask=~over),
            "event_ns": make_lists("event_ns", events, counts),
            "prompt_tokens": q[rows, core.PROMPT],
            "cached_tokens": q[rows, core.CACHED],
            "output_tokens": counts
            if tokens is None
            else np.bincount(np.repeat(np.arange(len(rows)), counts), tokens[flat], len(rows)).astype(np.int64),
            "requested_tokens": q[rows, core.OUTPUT],
            "recomputed_tokens": q[rows, core.RECOMPUTED],
            "preemptions": q[rows, core.PREEMPTIONS],
            "status": make_words(q[rows, core.STATUS], [STATUSES[code] for code in range(3)]),
            "finish_reason": pa.array(
                np.where(q[rows, core.STATUS] == core.OK, "length", ""), mask=q[rows, core.STATUS] != core.OK
            ),
        }
        if tokens is not None:
            assert fleet.drafts is not None
            steps = np.maximum(counts - 1, 0)
            columns["event_tokens"] = make_lists("event_tokens", tokens[flat], counts)
            columns["drafted_tokens"] = fleet.drafts.tokens * steps
            columns["accepted_draft_tokens"] = np.maximum(columns["output_tokens"] - 1 - steps, 0)
        names = [str(each) for each in range(fleet.replicas)]
        columns["replica"] = pa.array(np.array(names)[np.maximum(q[rows, core.REPLICA], 0)], mask=~served)
        if demand.session is not None and demand.turn is not None:
            alone = demand.session[rows] < 0
            columns["session_id"] = pa.array(demand.session[rows], mask=alone)
            columns["turn"] = pa.array(demand.turn[rows].astype(np.int32), mask=alone)
        if demand.workload_class is not None:
            columns["workload_class"] = make_words(demand.workload_class[rows], demand.classes)
        if demand.tenant is not None:
            columns["tenant"] = make_words(demand.tenant[rows], demand.tenants)
        yield make_batch(columns)


def _delayed(times: Floats, totals: Ints, least_s: float) -> Floats:
    """Tokens wait in a buffer until `least_s` after the one before them: a running maximum of time less place."""
    place = np.arange(len(times)) - np.repeat(np.cumsum(totals) - totals, totals)
    slack = times - least_s * place
    apart = np.repeat(np.arange(len(totals)), totals) * (np.ptp(slack) + 1.0) if len(times) else slack
    found: Floats = np.maximum.accumulate(slack + apart) - apart + least_s * place
    return found


def _ns(seconds: Floats) -> Ints:
    return np.rint(np.nan_to_num(seconds) * NS_PER_S).astype(np.int64)
